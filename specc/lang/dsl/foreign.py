"""What people write who come from other languages: `for`, `if`, `x += 1`, `a and b`."""

from specc.lang.dsl.misplaced import Misplaced
from specc.lang.dsl.terminals import OPERATORS
from specc.text.diagnostic import Diagnostic, Fix, Label

LOOP = (
    "turns that are counted while compiling: `repeat i in 3 { … }`",
    "turns along an axis while the model runs: `scan x in xs along n carry h { … }`",
)
CHOICE = (
    "between statements, while compiling: `when c { … } else { … }`",
    "between two values: `a if c else b`, or `where(c, a, b)` where a tensor decides",
)
NEW = ("a name is given by `name = value`, without a word before it",)
BLOCK = ("what is used again is a block: `block f(x: float[...]) -> float[...] { … }`",)
FILE = (
    'blocks of another file: `use "file.specc" as f`, outside of blocks and graphs',
)
STATEMENTS = {
    "for": LOOP,
    "while": LOOP,
    "if": CHOICE,
    "elif": CHOICE,
    "switch": CHOICE,
    "match": CHOICE,
    "let": NEW,
    "var": NEW,
    "const": NEW,
    "def": BLOCK,
    "fn": BLOCK,
    "func": BLOCK,
    "function": BLOCK,
    "class": BLOCK,
    "lambda": BLOCK,
    "import": FILE,
    "include": FILE,
}
"""Words that begin a statement elsewhere, and what is written here."""

VALUE_WORDS = {
    "IF": CHOICE[1:],
    "FOR": ("a list is `[f(i) for i in 3]`", *LOOP),
    "REPEAT": (
        "an axis of length 1 is repeated by `expand(x, axis=1, length=3)`",
        *LOOP[:1],
    ),
}
"""Words that stand where a value is due, by their kind, and what is written here."""

VALUES = frozenset({"NAME", "NUMBER", "STRING", "RPAR", "RSQB"})
"""What a value ends with."""

JOINING = {"and": "&", "or": "|"}
"""Operators that are words elsewhere."""


def of_other_languages(here: Misplaced) -> Diagnostic | None:
    """A word or sign that another language has at this place."""
    return _statement(here) or _value(here) or _joined_by_word(here) or _in_place(here)


def _statement(here: Misplaced) -> Diagnostic | None:
    """`for i in range(3) { … }`, `let x = 3`."""
    token, word = here.token, here.token
    # `for` and `if` are words of the language and fit nowhere here; the others are read
    # as the name of a result, so that what follows them does not fit
    if "RETURN" not in here.expected or token.kind not in ("FOR", "IF"):
        if here.before is None or not {"EQUAL", "COLON"} <= here.expected:
            return None
        word = here.before
    if word.text not in STATEMENTS or here.token.text in ("=", ":", ","):
        return None
    return Diagnostic(
        "E0101",
        f"`{word.text}` begins no statement",
        Label(here.span(word), "this word is of another language"),
        helps=STATEMENTS[word.text],
    )


def _value(here: Misplaced) -> Diagnostic | None:
    """`y = if c: a`, `[f(i) for …]` turned around, `repeat(x, 2)` as an operation."""
    token = here.token
    if token.kind not in VALUE_WORDS or "NUMBER" not in here.expected:
        return None
    return Diagnostic(
        "E0101",
        f"`{token.text}` begins no value",
        Label(here.span(token), "a value belongs here"),
        helps=VALUE_WORDS[token.kind],
    )


def _joined_by_word(here: Misplaced) -> Diagnostic | None:
    """`a and b`: the word does not fit, or what follows it where the word was taken for
    the name of a new result.
    """
    word = here.token
    if word.text not in JOINING:
        named = {"EQUAL", "COLON"} <= here.expected
        if here.before is None or not named or here.before.text not in JOINING:
            return None
        word = here.before
    elif here.before is None or here.before.kind not in VALUES:
        return None
    sign = JOINING[word.text]
    return Diagnostic(
        "E0101",
        f"`{word.text}` is written `{sign}`",
        Label(here.span(word), f"`{sign}` belongs here"),
        helps=(f"write `a {sign} b` for `a {word.text} b`",),
        fixes=(Fix(here.span(word), sign),),
    )


def _in_place(here: Misplaced) -> Diagnostic | None:
    """`x += 1`."""
    token, name = here.token, here.before
    after = here.tokens[here.at + 1] if here.at + 1 < len(here.tokens) else None
    if name is None or after is None or not {"EQUAL", "COLON"} <= here.expected:
        return None
    if token.kind not in OPERATORS or after.kind != "EQUAL" or after.start != token.end:
        return None
    sign = token.text
    return Diagnostic(
        "E0101",
        f"`{sign}=` is no sign of the language",
        Label(here.span(token).to(here.span(after)), "here"),
        helps=(f"write `{name.text} = {name.text} {sign} …`",),
    )
