"""The terminals of the grammar in groups, as messages speak of them."""

RESERVED = frozenset(
    {"IN", "IF", "ELSE", "FOR", "NOT", "REPEAT", "SCAN", "WHEN", "RETURN", "REQUIRE"}
)
"""Words that are never names."""
HYPHENED = frozenset({"int8-weights", "int8-tensor"})
"""Words of `quantize` that are no names."""
DEFINING = frozenset({"MASK", "SCORE", "BIAS", "NORMALIZER"})
"""Words that begin the definition of an expression."""
ITEMS = frozenset(
    {
        *DEFINING,
        *("USE", "CONFIG", "DIMS", "REQUIRE", "BLOCK", "GRAPH"),
        *("READING", "WEIGHTS", "GENERATE", "STREAM"),
    }
)
"""Words that begin an item of a file."""
OPERATORS = frozenset(
    {
        *("PLUS", "MINUS", "STAR", "SLASH", "SLASHES", "PERCENT", "STARS"),
        *("PIPE", "AND", "EQ", "NE", "LE", "GE", "LT", "GT", "IN", "IF"),
        *("LSQB", "DOT", "AT", "LPAR"),
    }
)
"""What can follow a value and make a longer one of it."""
SIGNS = {
    "RPAR": "`)`",
    "RSQB": "`]`",
    "RBRACE": "`}`",
    "COMMA": "`,`",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "ARROW": "`->`",
    "LBRACE": "`{`",
    "LPAR": "`(`",
    "STRING": "a text in quotes",
    "NUMBER": "a number",
    "QUESTION": "`?`",
}
"""What a person is told of the signs, those first that are most often missing."""
KEYWORDS = frozenset(
    {
        *ITEMS,
        *RESERVED,
        *("SPECC", "MODEL", "EXTENDS", "AS", "OF", "FROM", "UNDER", "COLLECT"),
        *("ALONG", "CARRY", "TIE", "LOAD"),
    }
)
"""Words that a name may be a misspelling of."""


def described(expected: frozenset[str]) -> str:
    """A set of terminals in words: brackets and signs first, then kinds of things."""
    left, words = _kinds(expected)
    signs = [SIGNS[kind] for kind in SIGNS if kind in left]
    listed = [*signs, *words]
    if not listed:
        listed = ["an operator" if "PLUS" in left else "the end of the text"]
    if len(listed) == 1:
        return listed[0]
    # more than four are no help: the first are the likeliest
    return f"{', '.join(listed[:4][:-1])} or {listed[:4][-1]}"


def _kinds(expected: frozenset[str]) -> tuple[set[str], list[str]]:
    """What is still to be listed one by one, and kinds of things in words: "a value"
    for the nine terminals that can begin one.
    """
    left = set(expected)
    words: list[str] = []
    if {"NUMBER", "NAME", "LPAR"} <= left:
        left -= {"STRING", "NUMBER", "LPAR", "LSQB", "LBRACE", "MINUS", "NOT", "NAME"}
        words.append("a value")
    elif OPERATORS & left and left - OPERATORS:
        # after a value any operator fits; what closes it is more to the point
        left -= OPERATORS
    if "RETURN" in left:
        words.append("a statement")
    elif "NAME" in left:
        words.append("a name")
    elif {"BLOCK", "CONFIG"} <= left and not words:
        words.append("an item such as `block`, `graph` or `config`")
        left.discard("STRING")
    elif not words:
        words += [f"`{kind.lower()}`" for kind in sorted(left & KEYWORDS)]
    return left, words
