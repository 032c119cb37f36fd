"""How large the text of a spec may be. Each limit has a code and a test at it and one past it."""

TEXT = 1 << 20
"""Characters of a file, and bytes before decoding (E0109)."""

NESTING = 64
"""Brackets, or YAML collections, inside each other (E0110)."""

HEIGHT = 256
"""Operators inside each other without brackets, such as `- - - x` (E0110).

Chains that group to the left, such as `a + b + c`, do not count: code that walks a tree
must follow their left operands in a loop (`specc.lang.walk.chain`) and may recurse
elsewhere.
"""

TOKENS = 10_000
"""Words and signs of one expression (E0111)."""

INTEGER = 1 << 53
"""Whole numbers stay below this: a double holds them exactly (E0108)."""

REPORTED = 20
"""Errors shown of one file."""

COLLECTED = 40
"""Errors after which reading stops; those past `REPORTED` are counted."""
