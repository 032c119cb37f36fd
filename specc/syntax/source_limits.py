"""Size limits of spec text: bytes, nesting, tokens, reported errors."""

MAX_SPEC_BYTES = 1 << 20
"""Maximum characters of a file, and bytes before decoding (E0109)."""

MAX_NESTING = 64
"""Maximum nesting depth of brackets or YAML collections (E0110)."""

MAX_EXPRESSION_DEPTH = 256
"""Maximum nesting depth of operators without brackets, such as `- - - x` (E0110). Left-associative
chains such as `a + b + c` do not count: code that walks a tree must follow their left operands in a
loop (`specc.syntax.ast_walk.flatten_binary_chain`) and may recurse elsewhere."""

MAX_EXPRESSION_TOKENS = 10_000
"""Maximum number of tokens of one expression (E0111)."""

MAX_INTEGER = 1 << 53
"""Upper bound of integers: a double holds them exactly (E0108)."""

MAX_REPORTED_ERRORS = 20
"""Maximum number of reported errors per file."""

MAX_COLLECTED_ERRORS = 40
"""Number of errors after which parsing stops; those past `MAX_REPORTED_ERRORS` are only counted."""
