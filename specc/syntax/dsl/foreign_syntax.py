"""Explain syntax of other languages in a DSL file: `for`, `if`, `x += 1`, `a and b`."""

from specc.diagnostics.diagnostic import Diagnostic, Fix, Label
from specc.syntax.dsl.unexpected_token import OPERATOR_TERMINALS, UnexpectedToken

LOOP_HELP = (
    "turns that are counted while compiling: `repeat i in 3 { … }`",
    "turns along an axis while the model runs: `scan x in xs along n carry h { … }`",
)
CONDITIONAL_HELP = (
    "between statements, while compiling: `when c { … } else { … }`",
    "between two values: `a if c else b`, or `where(c, a, b)` where a tensor decides",
)
ASSIGNMENT_HELP = ("a name is given by `name = value`, without a word before it",)
BLOCK_HELP = ("what is used again is a block: `block f(x: float[...]) -> float[...] { … }`",)
IMPORT_HELP = ('blocks of another file: `use "file.specc" as f`, outside of blocks and graphs',)
FOREIGN_STATEMENTS = {
    "for": LOOP_HELP,
    "while": LOOP_HELP,
    "if": CONDITIONAL_HELP,
    "elif": CONDITIONAL_HELP,
    "switch": CONDITIONAL_HELP,
    "match": CONDITIONAL_HELP,
    "let": ASSIGNMENT_HELP,
    "var": ASSIGNMENT_HELP,
    "const": ASSIGNMENT_HELP,
    "def": BLOCK_HELP,
    "fn": BLOCK_HELP,
    "func": BLOCK_HELP,
    "function": BLOCK_HELP,
    "class": BLOCK_HELP,
    "lambda": BLOCK_HELP,
    "import": IMPORT_HELP,
    "include": IMPORT_HELP,
}
"""Words that begin a statement elsewhere, and what is written here."""

FOREIGN_VALUE_WORDS = {
    "IF": CONDITIONAL_HELP[1:],
    "FOR": ("a list is `[f(i) for i in 3]`", *LOOP_HELP),
    "REPEAT": ("an axis of length 1 is repeated by `expand(x, axis=1, length=3)`", *LOOP_HELP[:1]),
}
"""Words that stand where a value is due, by their kind, and what is written here."""

VALUE_END_TERMINALS = frozenset({"NAME", "NUMBER", "STRING", "RPAR", "RSQB"})
"""What a value ends with."""

FOREIGN_LOGICAL_OPERATORS = {"and": "&", "or": "|"}
"""Operators that are words elsewhere."""


def explain_foreign_syntax(here: UnexpectedToken) -> Diagnostic | None:
    """A word or sign that another language has at this place."""
    return (
        _explain_module_call(here)
        or _explain_foreign_statement(here)
        or _explain_foreign_value(here)
        or _explain_logical_word(here)
        or _explain_in_place_operator(here)
    )


def _explain_module_call(here: UnexpectedToken) -> Diagnostic | None:
    """`nn.Linear(8, 4)(x)`: a call of what a call returns."""
    if here.token.text != "(" or here.before is None or here.before.text != ")":
        return None
    return Diagnostic(
        "E0101",
        "the result of a call cannot be called",
        Label(here.span(here.token), "this would call it"),
        helps=(
            "the input is the first argument, and `@` names the weights: "
            "`layer_norm(x, eps=1e-5) @ norm` for `nn.LayerNorm(d)(x)`",
        ),
    )


def _explain_foreign_statement(here: UnexpectedToken) -> Diagnostic | None:
    """`for i in range(3) { … }`, `let x = 3`."""
    token, word = here.token, here.token
    # `for` and `if` are words of the language and fit nowhere here; the others are read
    # as the name of a result, so that what follows them does not fit
    if "RETURN" not in here.expected or token.kind not in ("FOR", "IF"):
        if here.before is None or not {"EQUAL", "COLON"} <= here.expected:
            return None
        word = here.before
    if word.text not in FOREIGN_STATEMENTS or here.token.text in ("=", ":", ","):
        return None
    return Diagnostic(
        "E0101",
        f"`{word.text}` begins no statement",
        Label(here.span(word), "this word is of another language"),
        helps=FOREIGN_STATEMENTS[word.text],
    )


def _explain_foreign_value(here: UnexpectedToken) -> Diagnostic | None:
    """`y = if c: a`, `[f(i) for …]` turned around, `repeat(x, 2)` as an operation."""
    token = here.token
    if token.kind not in FOREIGN_VALUE_WORDS or "NUMBER" not in here.expected:
        return None
    return Diagnostic(
        "E0101",
        f"`{token.text}` begins no value",
        Label(here.span(token), "a value belongs here"),
        helps=FOREIGN_VALUE_WORDS[token.kind],
    )


def _explain_logical_word(here: UnexpectedToken) -> Diagnostic | None:
    """`a and b`: the word does not fit, or what follows it where the word was taken for
    the name of a new result.
    """
    word = here.token
    if word.text not in FOREIGN_LOGICAL_OPERATORS:
        named = {"EQUAL", "COLON"} <= here.expected
        if here.before is None or not named or here.before.text not in FOREIGN_LOGICAL_OPERATORS:
            return None
        word = here.before
    elif here.before is None or here.before.kind not in VALUE_END_TERMINALS:
        return None
    sign = FOREIGN_LOGICAL_OPERATORS[word.text]
    return Diagnostic(
        "E0101",
        f"`{word.text}` is written `{sign}`",
        Label(here.span(word), f"`{sign}` belongs here"),
        helps=(f"write `a {sign} b` for `a {word.text} b`",),
        fixes=(Fix(here.span(word), sign),),
    )


def _explain_in_place_operator(here: UnexpectedToken) -> Diagnostic | None:
    """`x += 1`."""
    token, name = here.token, here.before
    after = here.tokens[here.at + 1] if here.at + 1 < len(here.tokens) else None
    if name is None or after is None or not {"EQUAL", "COLON"} <= here.expected:
        return None
    if token.kind not in OPERATOR_TERMINALS or after.kind != "EQUAL" or after.start != token.end:
        return None
    sign = token.text
    return Diagnostic(
        "E0101",
        f"`{sign}=` is no sign of the language",
        Label(here.span(token).to(here.span(after)), "here"),
        helps=(f"write `{name.text} = {name.text} {sign} …`",),
    )
