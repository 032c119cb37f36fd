"""Hints for syntax errors: misspelled keywords, and syntax of Python, C and PyTorch."""

from collections.abc import Callable, Iterator, Sequence

from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.syntax.dsl.dsl_lexer import Token
from specc.syntax.dsl.unexpected_token import (
    HYPHENATED_NAMES,
    KEYWORD_TERMINALS,
    VALUE_END_TERMINALS,
    UnexpectedToken,
)


def collect_syntax_hints(error: UnexpectedToken) -> Iterator[str]:
    """Yield help messages for misspelled keywords and for the syntax of other languages."""
    token, previous = error.token, error.previous_token or Token("", "", 0, 0)
    if token.kind == "NAME" and "NAME" not in error.expected_terminals:
        words = [kind.lower() for kind in error.expected_terminals if kind in KEYWORD_TERMINALS]
        if similar_word := find_similar_name(token.text, words):
            yield format_suggestion(similar_word)
    for is_matching, hint in SYNTAX_HINTS:
        if is_matching(error, token, previous):
            yield hint.format(token=token.text, name=_join_hyphenated_name(error))


def _join_hyphenated_name(error: UnexpectedToken) -> str:
    """Join the unexpected token and its neighbors into a hyphenated name such as `int8-weights`."""
    return "".join(t.text for t in error.tokens[max(error.index - 1, 0) : error.index + 2])


def _has_token_before(error: UnexpectedToken, kind: str, between: frozenset[str]) -> bool:
    """Return True if a `kind` token precedes the error, separated only by `between` tokens."""
    for token in reversed(error.tokens[: error.index]):
        if token.kind == kind:
            return True
        if token.kind not in between:
            return False
    return False


def _is_comment(_: UnexpectedToken, token: Token, previous: Token) -> bool:
    """Return True if the unexpected token begins a C comment, `//` or `/*`."""
    after_value = previous.kind in VALUE_END_TERMINALS
    is_line_comment = token.text == "//" and not after_value
    return is_line_comment or (previous.text, token.text) in (("/", "*"), ("/", "**"))


def _is_quoted_pattern(error: UnexpectedToken, token: Token, _: Token) -> bool:
    """Return True if the error is a pattern without quotes, such as `layers.{i}`."""
    return token.text == "{" and _has_token_before(error, "UNDER", frozenset({"NAME", "DOT"}))


def _is_dims_item(error: UnexpectedToken, token: Token, _: Token) -> bool:
    """Return True if a `dims` item assigns a size, as in `dims batch, n = 8`."""
    return token.kind == "EQUAL" and _has_token_before(error, "DIMS", frozenset({"NAME", "COMMA"}))


def _is_untyped_value(error: UnexpectedToken, token: Token, previous: Token) -> bool:
    """Return True if a config field has a value instead of a type, as in `d: 8`."""
    is_value = token.kind in ("NUMBER", "STRING", "LSQB", "MINUS")
    return is_value and previous.kind == "COLON" and "NAME" in error.expected_terminals


def _is_function_keyword(error: UnexpectedToken, token: Token, _: Token) -> bool:
    """Return True if a keyword of another language begins a function or class."""
    return token.text in FUNCTION_KEYWORDS and "BLOCK" in error.expected_terminals


def _is_port_item(error: UnexpectedToken, token: Token, _: Token) -> bool:
    """Return True if a word such as `input` or `outputs` is used as an item keyword."""
    return token.text in PORT_WORDS and "BLOCK" in error.expected_terminals


def _is_tuple(error: UnexpectedToken, token: Token, _: Token) -> bool:
    """Return True if the error is a tuple, such as `(1, 2)`."""
    if token.kind != "COMMA" or "RPAR" not in error.expected_terminals:
        return False
    before = error.tokens[: error.index]
    opener = max((n for n, t in enumerate(before) if t.kind == "LPAR"), default=0)
    return opener > 0 and before[opener - 1].kind in ("EQUAL", "COMMA", "LPAR", "LSQB")


def _is_choice_list(error: UnexpectedToken, token: Token, _: Token) -> bool:
    """Return True if the alternatives of `choice(…)` are separated by commas."""
    return token.kind == "COMMA" and [t.text for t in error.tokens[error.index - 3 :][:2]] == [
        "choice",
        "(",
    ]


def _is_missing_comma(error: UnexpectedToken, token: Token, previous: Token) -> bool:
    """Return True if a comma is missing between two parameters of a block or graph."""
    following = error.tokens[error.index + 1 : error.index + 2]
    is_input = token.kind == "NAME" and [t.kind for t in following] == ["COLON"]
    return is_input and previous.kind in VALUE_END_TERMINALS and "COMMA" in error.expected_terminals


PORT_WORDS = ("input", "output", "outputs")
FUNCTION_KEYWORDS = ("def", "fn", "func", "function", "class", "module", "layer", "fun")


SYNTAX_HINTS: Sequence[tuple[Callable[[UnexpectedToken, Token, Token], bool], str]] = (
    (lambda e, t, _: t.kind == "EQUAL" and "EQ" in e.expected_terminals, "write equality as `==`"),
    (
        lambda _, t, previous: t.text in ("&", "|") and previous.text == t.text,
        "write one `{token}`",
    ),
    (lambda e, *_: _join_hyphenated_name(e) in HYPHENATED_NAMES, 'write "{name}" in quotes'),
    (lambda _, t, previous: (t.text, previous.text) == ("*", "**"), "write a power as `**`"),
    (
        lambda e, t, _: t.kind == "NOT" and "IN" in e.expected_terminals,
        "`x not in y` is written `not x in y`",
    ),
    (
        lambda _, t, previous: t.kind == "DOT" and previous.kind in ("RPAR", "RSQB"),
        "operations are functions: `x.f()` is `f(x)`; `a, b = f(x)` names the results of a call",
    ),
    (
        lambda _, t, previous: t.kind == "DOT" and previous.kind not in ("RPAR", "RSQB"),
        "start a number with a digit: `0.5`",
    ),
    (lambda _, t, __: t.text == "is", "write equality as `==`"),
    (_is_tuple, "write a list in brackets: `[1, 2]`"),
    (_is_choice_list, "separate the alternatives by `|`: `choice(a | b)`"),
    (
        lambda _, t, previous: (previous.text, t.kind) == ("from", "LSQB"),
        'separate the alternatives by `|`: `from "hidden_size" | "n_embd"`',
    ),
    (
        lambda e, t, _: t.text == "from" and _has_token_before(e, "EQUAL", frozenset({"NAME"})),
        'declare the type after a colon: `d: int from "hidden_size" = 768`',
    ),
    (
        lambda e, *_: _has_token_before(e, "EXPECT", frozenset({"STRING"})),
        'list the expected values in parentheses: `expect "model_type" in (bert, none)`',
    ),
    (_is_missing_comma, "separate inputs by commas: `a: int[batch, n], b: float[batch, n]`"),
    (
        lambda _, t, previous: (t.kind, previous.kind) == ("NUMBER", "DOT"),
        "the parts of a name start with a letter; take an element with `[0]`",
    ),
    (
        lambda e, *_: e.expected_terminals == {"ARROW"},
        "add the return type: `-> float[batch, n, d]`, or `-> (name: type, …)`",
    ),
    (lambda e, t, _: t.kind == "COLON" and "EQUAL" in e.expected_terminals, "assign with `=`"),
    (
        lambda e, *_: e.index >= 2 and e.tokens[e.index - 2].kind == "SCAN",
        "a loop needs a bound: `scan row in x along n` iterates over rows, "
        "`scan step in 8` runs eight times",
    ),
    (_is_comment, "begin a comment with `#`"),
    (_is_quoted_pattern, 'write the pattern in quotes: `under "layers.{{i}}"`'),
    (
        lambda _, t, previous: t.kind == "STRING" and previous.text == "f",
        "write the string without `f`: {token} inserts values too",
    ),
    (
        lambda _, t, previous: (previous.kind, t.kind) == ("ELSE", "WHEN"),
        "write it inside the braces: `else {{ when c {{ … }} }}`",
    ),
    (
        lambda _, t, previous: (
            t.kind == "LPAR" and previous.text in ("float", "int", "bool", "keep")
        ),
        "a tensor type has its lengths in brackets: `float[batch, n]`",
    ),
    (
        lambda e, t, _: t.kind == "COLON" and "LBRACE" in e.expected_terminals,
        "write a body in braces: `{{ … }}`",
    ),
    (
        _is_function_keyword,
        "define a function with `block f(x: float[...]) -> float[...] {{ … }}`, and the model with "
        "`graph`",
    ),
    (
        _is_port_item,
        "inputs and outputs belong to a graph: `graph main(x: float[batch, 4]) -> "
        "(y: float[batch, 4]) {{ … }}`",
    ),
    (_is_untyped_value, "declare a type: `name: int = 8`; a derived spec sets `name = 8`"),
    (
        lambda e, t, _: t.kind == "COMMA" and {"NAME", "RBRACE"} <= e.expected_terminals,
        "remove the comma: entries are separated by spaces or line ends",
    ),
    (
        lambda _, t, previous: (previous.kind, t.kind) == ("DIMS", "LSQB"),
        "write the names without brackets: `dims batch, n`",
    ),
    (
        _is_dims_item,
        "`dims` declares lengths that are known at run time; declare a fixed length in `config`: "
        "`n: int = 8`",
    ),
    (
        lambda e, t, _: t.kind == "MINUS" and _has_token_before(e, "MODEL", frozenset({"NAME"})),
        "write a name with `_`, or in quotes",
    ),
    (
        lambda e, t, _: (
            t.kind in ("LBRACE", "UNDER") and _has_token_before(e, "REPEAT", frozenset({"NAME"}))
        ),
        "name the loop variable: `repeat i in layers {{ … }}`",
    ),
    (
        lambda e, t, _: t.kind == "STRING" and {"TIE", "LOAD"} <= e.expected_terminals,
        "declare a weights file with `from {token}`",
    ),
    (
        lambda e, *_: any(t.text == "lambda" for t in e.tokens[max(e.index - 5, 0) : e.index]),
        "define a block outside graphs: `block f(x: float[...]) -> float[...] {{ … }}`",
    ),
)
"""The hints. Each has a condition on the error, the unexpected token and the previous token."""
