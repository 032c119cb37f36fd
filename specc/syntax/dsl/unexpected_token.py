"""Describe unexpected tokens, and diagnose syntax of other languages such as `x += 1`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from specc.diagnostics.diagnostic import Diagnostic, Fix, Label, Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax.dsl.dsl_lexer import Fragment, Token
from specc.syntax.dsl.lalr import LalrParser

RESERVED_TERMINALS = frozenset(
    {"IN", "IF", "ELSE", "FOR", "NOT", "REPEAT", "SCAN", "WHEN", "RETURN", "REQUIRE"}
)
"""The terminals of reserved words, which cannot be names."""
HYPHENATED_NAMES = frozenset({"int8-weights", "int8-tensor"})
"""The hyphenated words that are allowed in a `quantize` section."""
DEFINITION_TERMINALS = frozenset({"MASK", "SCORE", "BIAS", "NORMALIZER"})
"""The keywords that begin a definition."""
ITEM_TERMINALS = frozenset(
    {
        *DEFINITION_TERMINALS,
        *("USE", "CONFIG", "DIMS", "INPUTS", "REQUIRE", "BLOCK", "GRAPH"),
        *("READING", "WEIGHTS", "GENERATE", "STREAM"),
    }
)
"""The keywords that begin an item of a file."""
OPERATOR_TERMINALS = frozenset(
    {
        *("PLUS", "MINUS", "STAR", "SLASH", "SLASHES", "PERCENT", "STARS"),
        *("PIPE", "AND", "EQ", "NE", "LE", "GE", "LT", "GT", "IN", "IF"),
        *("LSQB", "DOT", "AT", "LPAR"),
    }
)
"""The terminals that can continue an expression after a value."""
TERMINAL_PUNCTUATION = {
    "RPAR": "`)`",
    "RSQB": "`]`",
    "RBRACE": "`}`",
    "COMMA": "`,`",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "ARROW": "`->`",
    "LBRACE": "`{`",
    "LPAR": "`(`",
    "STRING": "a quoted string",
    "NUMBER": "a number",
    "QUESTION": "`?`",
}
"""The descriptions of punctuation for messages. The most frequently missing tokens come first."""
KEYWORD_TERMINALS = frozenset(
    {
        *ITEM_TERMINALS,
        *RESERVED_TERMINALS,
        *("SPECC", "MODEL", "EXTENDS", "AS", "OF", "FROM", "UNDER", "COLLECT"),
        *("ALONG", "CARRY", "TIE", "LOAD"),
    }
)
"""The keywords that can be suggested for a misspelled word."""


def describe_terminals(expected: frozenset[str]) -> str:
    """Describe a set of terminals. Brackets and punctuation come before token classes."""
    remaining, group_parameter_names = _group_terminals(expected)
    punctuation = [TERMINAL_PUNCTUATION[kind] for kind in TERMINAL_PUNCTUATION if kind in remaining]
    descriptions = [*punctuation, *group_parameter_names]
    if not descriptions:
        descriptions = ["an operator" if "PLUS" in remaining else "the end of the file"]
    if len(descriptions) == 1:
        return descriptions[0]
    # show the first four descriptions, which are the most likely
    return f"{', '.join(descriptions[:4][:-1])} or {descriptions[:4][-1]}"


def _group_terminals(expected: frozenset[str]) -> tuple[set[str], list[str]]:
    """Return the terminals that are described individually, and the descriptions of groups of
    terminals. For example, "a value" describes all terminals that can begin a value.
    """
    remaining = set(expected)
    descriptions = _remove_value_terminals(remaining)
    if "RETURN" in remaining:
        descriptions.append("a statement")
    elif "NAME" in remaining:
        descriptions.append("a name")
    elif {"BLOCK", "CONFIG"} <= remaining and not descriptions:
        descriptions.append("an item such as `block`, `graph` or `config`")
        remaining.discard("STRING")
    elif not descriptions:
        descriptions += [f"`{kind.lower()}`" for kind in sorted(remaining & KEYWORD_TERMINALS)]
    return remaining, descriptions


def _remove_value_terminals(terminals: set[str]) -> list[str]:
    """Remove terminals that can begin or follow a value, and return their description."""
    if {"NUMBER", "NAME", "LPAR"} <= terminals:
        terminals -= {"STRING", "NUMBER", "LPAR", "LSQB", "LBRACE", "MINUS", "NOT", "NAME"}
        return ["a value"]
    if OPERATOR_TERMINALS & terminals and terminals - OPERATOR_TERMINALS:
        # omit operators, which may follow any value, if a closing token is expected
        terminals -= OPERATOR_TERMINALS
    return []


@immutable_dataclass(slots=False)
class UnexpectedToken:
    """The unexpected token at which a parse failed. `index` is its index."""

    fragment: Fragment
    parser: LalrParser
    index: int

    @property
    def tokens(self) -> list[Token]:
        """All tokens of the parsed text."""
        return self.parser.tokens

    @property
    def token(self) -> Token:
        """The unexpected token."""
        return self.tokens[self.index]

    @property
    def expects_assignment(self) -> bool:
        """True if the previous token was parsed as the name of a result, so that `=` may follow."""
        return {"EQUAL", "COLON"} <= self.expected_terminals

    @property
    def previous_token(self) -> Token | None:
        """The token before the unexpected token, or None."""
        return self.tokens[self.index - 1] if self.index else None

    @cached_property
    def expected_terminals(self) -> frozenset[str]:
        """The terminals that are allowed in place of the unexpected token."""
        return self.parser.list_expected_terminals()

    def get_span(self, token: Token) -> Span:
        """Return the source span of a token."""
        return self.fragment.make_span(token.start, token.end)

    def explain(
        self,
        title: str,
        token: Token,
        label: str,
        *helps: str,
        code: str = "E0101",
        related_label: tuple[Token, str] | None = None,
    ) -> Diagnostic:
        """Return the diagnostic of the unexpected token, with a label at `token`."""
        related_labels = [related_label] if related_label else []
        return Diagnostic(
            code,
            title,
            Label(self.get_span(token), label),
            tuple(Label(self.get_span(t), text) for t, text in related_labels),
            helps=helps,
        )

    def is_on_new_line(self, token: Token, previous: Token) -> bool:
        """Return True if `token` is on a later line than `previous`."""
        return "\n" in self.fragment.text[previous.end : token.start]


def format_token(token: Token) -> str:
    """Format the text of a token for messages. A long text is truncated."""
    return token.text if len(token.text) <= 30 else token.text[:29] + "…"


LOOP_HELP = (
    "iterations unrolled at compile time: `repeat i in 3 { … }`",
    "iterations along an axis at run time: `scan x in xs along n carry h { … }`",
)
CONDITIONAL_HELP = (
    "between statements, while compiling: `when c { … } else { … }`",
    "between two values: `a if c else b`, or `where(c, a, b)` where a tensor decides",
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
    """Return E0101 for a statement, value or operator of another language, or None."""
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
"""The call that replaces a PyTorch module in a spec, by module name."""


def _explain_module_call(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 for calling the result of a call, as in `nn.Linear(8, 4)(x)`, or None."""
    if error.token.text != "(" or error.previous_token is None or error.previous_token.text != ")":
        return None
    module = _find_called_name(error.tokens[: error.index])
    example = module if module in MODULE_CALLS else "LayerNorm"
    return error.explain(
        "the result of a call cannot be called",
        error.token,
        "this would call it",
        "the input is the first argument, and `@` names the weights: "
        f"`{MODULE_CALLS[example]}` for `nn.{example}(…)(x)`",
    )


def _find_called_name(tokens: Sequence[Token]) -> str:
    """Return the last component of the called name if `tokens` end with a call, or ""."""
    depth = 0
    for n in range(len(tokens) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(tokens[n].text, 0)
        if depth == 0:
            return tokens[n - 1].text.rpartition(".")[2]
    return ""


def _explain_foreign_statement(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 for a statement of another language, e.g. `for i in range(3) { … }`, or None."""
    token, word = error.token, error.token
    # the grammar parses `while` as a result name, so the next token is unexpected
    if "RETURN" not in error.expected_terminals or token.kind not in ("FOR", "IF"):
        if error.previous_token is None or not error.expects_assignment:
            return None
        word = error.previous_token
    if word.text not in FOREIGN_STATEMENTS or error.token.text in ("=", ":", ","):
        return None
    title = f"`{word.text}` does not start a statement"
    return error.explain(title, word, "keyword of another language", *FOREIGN_STATEMENTS[word.text])


def _explain_foreign_value(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 for a keyword where a value is expected, or None. Examples are `y = if c: a`, a
    reversed `[f(i) for …]`, and `repeat(x, 2)` as an operation.
    """
    token = error.token
    if token.kind not in FOREIGN_VALUE_WORDS or "NUMBER" not in error.expected_terminals:
        return None
    title = f"`{token.text}` does not start a value"
    return error.explain(title, token, "expected a value", *FOREIGN_VALUE_WORDS[token.kind])


def _explain_logical_word(error: UnexpectedToken) -> Diagnostic | None:
    """Return E0101 for a logical operator that is a word, as in `a and b`, or None. The unexpected
    token is the logical operator or, if the operator was parsed as a result name, the next token.
    """
    word, previous = error.token, error.previous_token
    if word.text not in FOREIGN_LOGICAL_OPERATORS:
        if previous is None or not error.expects_assignment:
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
    """Return E0101 for an augmented assignment, as in `x += 1`, or None."""
    token, operand = error.token, error.previous_token
    next_token = error.tokens[error.index + 1] if error.index + 1 < len(error.tokens) else None
    is_operator = error.expects_assignment and token.kind in OPERATOR_TERMINALS
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
