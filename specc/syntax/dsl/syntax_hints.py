"""Explain syntax of Python, C and PyTorch, such as `x += 1`, and misspelled keywords."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from specc.diagnostics.diagnostic import Diagnostic, Fix
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.syntax.dsl.dsl_lexer import Token
from specc.syntax.dsl.unexpected_token import (
    HYPHENATED_NAMES,
    KEYWORD_TERMINALS,
    OPERATOR_TERMINALS,
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
    return "".join(t.text for t in error.all_tokens[max(error.index - 1, 0) : error.index + 2])


def _has_token_before(error: UnexpectedToken, kind: str, between: frozenset[str]) -> bool:
    """Return True if a token `kind` precedes the error, with only tokens `between` in between."""
    for token in reversed(error.all_tokens[: error.index]):
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
    before = error.all_tokens[: error.index]
    opener = max((n for n, t in enumerate(before) if t.kind == "LPAR"), default=0)
    return opener > 0 and before[opener - 1].kind in ("EQUAL", "COMMA", "LPAR", "LSQB")


def _is_choice_list(error: UnexpectedToken, token: Token, _: Token) -> bool:
    """Return True if the alternatives of `choice(…)` are separated by commas."""
    return token.kind == "COMMA" and [t.text for t in error.all_tokens[error.index - 3 :][:2]] == [
        "choice",
        "(",
    ]


def _is_missing_comma(error: UnexpectedToken, token: Token, previous: Token) -> bool:
    """Return True if a comma is missing between two parameters of a block or graph."""
    following = error.all_tokens[error.index + 1 : error.index + 2]
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
        "the parts of a name start with a letter; select an element with `[0]`",
    ),
    (
        lambda e, *_: e.expected_terminals == {"ARROW"},
        "add the return type: `-> float[batch, n, d]`, or `-> (name: type, …)`",
    ),
    (lambda e, t, _: t.kind == "COLON" and "EQUAL" in e.expected_terminals, "assign with `=`"),
    (
        lambda e, *_: e.index >= 2 and e.all_tokens[e.index - 2].kind == "SCAN",
        "a loop requires a bound: `scan row in x along n` iterates over rows, "
        "`scan step in 8` runs eight times",
    ),
    (_is_comment, "begin a comment with `#`"),
    (_is_quoted_pattern, 'write the pattern in quotes: `under "layers.{{i}}"`'),
    (
        lambda _, t, previous: t.kind == "STRING" and previous.text == "f",
        "write the string without `f`: placeholders in {token} work without it",
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
        lambda e, *_: any(t.text == "lambda" for t in e.all_tokens[max(e.index - 5, 0) : e.index]),
        "define a block outside graphs: `block f(x: float[...]) -> float[...] {{ … }}`",
    ),
)
"""Pairs of a condition (on the error, the unexpected and the previous token) and a help message."""


LOOP_HELP = (
    "iterations unrolled at compile time: `repeat i in 3 { … }`",
    "iterations along an axis at run time: `scan x in xs along n carry h { … }`",
)


CONDITIONAL_HELP = (
    "between statements, while compiling: `when c { … } else { … }`",
    "between two values: `a if c else b`, or `where(c, a, b)` if `c` is a tensor",
)


ASSIGNMENT_HELP = ("assign with `name = value`, without a keyword",)


BLOCK_HELP = ("define a block for reuse: `block f(x: float[...]) -> float[...] { … }`",)


IMPORT_HELP = (
    'import blocks of another file with `use "file.specc" as f`, outside blocks and graphs',
)


FOREIGN_STATEMENTS = {
    **dict.fromkeys(("for", "while"), LOOP_HELP),
    **dict.fromkeys(("if", "elif", "switch", "match"), CONDITIONAL_HELP),
    **dict.fromkeys(("let", "var", "const"), ASSIGNMENT_HELP),
    **dict.fromkeys(("def", "fn", "func", "function", "class", "lambda"), BLOCK_HELP),
    **dict.fromkeys(("import", "include"), IMPORT_HELP),
}
"""The help messages for words that begin a statement in other languages."""


FOREIGN_VALUE_WORDS = {
    "IF": CONDITIONAL_HELP[1:],
    "FOR": ("a list is `[f(i) for i in 3]`", *LOOP_HELP),
    "REPEAT": ("an axis of length 1 is repeated by `expand(x, axis=1, length=3)`", *LOOP_HELP[:1]),
}
"""The help messages for keywords where a value is expected."""


VALUE_END_TERMINALS = frozenset({"NAME", "NUMBER", "STRING", "RPAR", "RSQB"})
"""The terminals that can end a value."""


FOREIGN_LOGICAL_OPERATORS = {"and": "&", "or": "|"}
"""The spec operators that replace the logical operators `and` and `or`."""


def explain_foreign_syntax(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 for a statement, value or operator of another language, otherwise None."""
    return (
        _explain_module_call(error)
        or _explain_foreign_statement(error)
        or _explain_foreign_value(error)
        or _explain_logical_word(error)
        or _explain_in_place_operator(error)
    )


MODULE_CALLS: Mapping[str, str] = {
    "LayerNorm": "layer_norm(x, eps=1e-5) @ norm",
    "RMSNorm": "rms_norm(x, eps=1e-6) @ norm",
    "Linear": "linear(x, out=8) @ proj",
    "Conv1d": "conv(x, out=8, kernel=3, padding=same) @ conv",
    "Embedding": "embedding(ids, size=100, dim=8) @ embed",
    "MultiheadAttention": "attention(x, heads=2, mask=all) @ attn",
    "Dropout": "dropout(x, p=0.1)",
    "Softmax": "softmax(x, axis=-1)",
    "GELU": "gelu(x)",
    "ReLU": "relu(x)",
    "SiLU": "silu(x)",
    "Sigmoid": "sigmoid(x)",
    "Tanh": "tanh(x)",
}
"""The calls that replace PyTorch modules in a spec, keyed by module name."""


def _explain_module_call(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 if a call's result is called, as in `nn.Linear(8, 4)(x)`, otherwise None."""
    if error.token.text != "(" or error.previous_token is None or error.previous_token.text != ")":
        return None
    module = _find_called_name(error.all_tokens[: error.index])
    example = module if module in MODULE_CALLS else "LayerNorm"
    return error.explain(
        "the result of a call cannot be called",
        error.token,
        "this would call it",
        "the input is the first argument, and `@` names the weights: "
        f"`{MODULE_CALLS[example]}` for `nn.{example}(…)(x)`",
    )


def _find_called_name(tokens: Sequence[Token]) -> str:
    """Return the last component of the called name if `tokens` end with a call, otherwise ""."""
    depth = 0
    for n in range(len(tokens) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(tokens[n].text, 0)
        if depth == 0:
            return tokens[n - 1].text.rpartition(".")[2]
    return ""


def _explain_foreign_statement(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 for a statement of another language (`for i in range(3) { … }`), or None."""
    token, word = error.token, error.token
    # the grammar parses `while` as a result name, so the next token is unexpected
    if "RETURN" not in error.expected_terminals or token.kind not in ("FOR", "IF"):
        if error.previous_token is None or not error.is_assignment_expected:
            return None
        word = error.previous_token
    if word.text not in FOREIGN_STATEMENTS or error.token.text in ("=", ":", ","):
        return None
    title = f"`{word.text}` does not start a statement"
    return error.explain(title, word, "keyword of another language", *FOREIGN_STATEMENTS[word.text])


def _explain_foreign_value(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 if a keyword is used where a value is expected, otherwise None. Examples are
    `y = if c: a`, a reversed `[f(i) for …]`, and `repeat(x, 2)` as an operation.
    """
    token = error.token
    if token.kind not in FOREIGN_VALUE_WORDS or "NUMBER" not in error.expected_terminals:
        return None
    title = f"`{token.text}` does not start a value"
    return error.explain(title, token, "expected a value", *FOREIGN_VALUE_WORDS[token.kind])


def _explain_logical_word(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 if a logical operator is a word, as in `a and b`, otherwise None. The unexpected
    token is the logical operator or, if the operator was parsed as a result name, the next token.
    """
    word, previous = error.token, error.previous_token
    if word.text not in FOREIGN_LOGICAL_OPERATORS:
        if previous is None or not error.is_assignment_expected:
            return None
        word = previous
    elif previous is None or previous.kind not in VALUE_END_TERMINALS:
        return None
    if word.text not in FOREIGN_LOGICAL_OPERATORS:
        return None
    sign = FOREIGN_LOGICAL_OPERATORS[word.text]
    help = f"write `a {sign} b` for `a {word.text} b`"
    diagnostic = error.explain(f"unknown operator `{word.text}`", word, f"expected `{sign}`", help)
    return replace(diagnostic, fixes=(Fix(error.get_span(word), sign),))


def _explain_in_place_operator(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 for an augmented assignment, as in `x += 1`, otherwise None."""
    token, operand = error.token, error.previous_token
    next_token = (
        error.all_tokens[error.index + 1] if error.index + 1 < len(error.all_tokens) else None
    )
    is_operator = error.is_assignment_expected and token.kind in OPERATOR_TERMINALS
    if operand is None or next_token is None or not is_operator:
        return None
    if next_token.kind != "EQUAL" or next_token.start != token.end:
        return None
    sign = token.text
    return error.explain(
        f"`{sign}=` is not an operator of specs",
        token._replace(end=next_token.end),
        "here",
        f"write `{operand.text} = {operand.text} {sign} …`",
    )
