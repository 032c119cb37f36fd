"""Describe unexpected tokens in syntax errors."""

from functools import cached_property

from specc.diagnostics.diagnostic import Diagnostic, Label, Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax.dsl.dsl_lexer import SourceFragment, Token
from specc.syntax.dsl.lalr import LalrParser

RESERVED_TERMINALS = frozenset(
    {"IN", "IF", "ELSE", "FOR", "NOT", "REPEAT", "SCAN", "WHEN", "RETURN", "REQUIRE"}
)
"""The terminals of reserved words, which cannot be names."""
HYPHENATED_NAMES = frozenset({"int8-weights", "int8-tensor"})
"""The words with hyphens that are allowed in a `quantize` section."""
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
    # show only the first four descriptions, which are the most likely
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
        # if a closing token is expected, omit operators, because operators may follow any value
        terminals -= OPERATOR_TERMINALS
    return []


@immutable_dataclass(slots=False)
class UnexpectedToken:
    """The unexpected token at which a parse failed. `index` is the token's index in the text."""

    fragment: SourceFragment
    parser: LalrParser
    index: int

    @property
    def all_tokens(self) -> list[Token]:
        """All tokens of the parsed text."""
        return self.parser.tokens

    @property
    def token(self) -> Token:
        """The unexpected token."""
        return self.all_tokens[self.index]

    @property
    def is_assignment_expected(self) -> bool:
        """True if the previous token was parsed as the name of a result. `=` may follow."""
        return {"EQUAL", "COLON"} <= self.expected_terminals

    @property
    def previous_token(self) -> Token | None:
        """The token before the unexpected token, or None at the start of the text."""
        return self.all_tokens[self.index - 1] if self.index else None

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
