"""`UnexpectedToken`, a token that does not fit with its surroundings, and the names of grammar
terminals in messages.
"""

from dataclasses import dataclass
from functools import cached_property

from specc.diagnostics.source import Span
from specc.syntax.dsl.lalr import ParseRun
from specc.syntax.dsl.lexer import Fragment, Token

RESERVED_TERMINALS = frozenset(
    {"IN", "IF", "ELSE", "FOR", "NOT", "REPEAT", "SCAN", "WHEN", "RETURN", "REQUIRE"}
)
"""Words that are never names."""
HYPHENATED_NAMES = frozenset({"int8-weights", "int8-tensor"})
"""Words of `quantize` that are no names."""
DEFINITION_TERMINALS = frozenset({"MASK", "SCORE", "BIAS", "NORMALIZER"})
"""Words that begin the definition of an expression."""
ITEM_TERMINALS = frozenset(
    {
        *DEFINITION_TERMINALS,
        *("USE", "CONFIG", "DIMS", "REQUIRE", "BLOCK", "GRAPH"),
        *("READING", "WEIGHTS", "GENERATE", "STREAM"),
    }
)
"""Words that begin an item of a file."""
OPERATOR_TERMINALS = frozenset(
    {
        *("PLUS", "MINUS", "STAR", "SLASH", "SLASHES", "PERCENT", "STARS"),
        *("PIPE", "AND", "EQ", "NE", "LE", "GE", "LT", "GT", "IN", "IF"),
        *("LSQB", "DOT", "AT", "LPAR"),
    }
)
"""What can follow a value and make a longer one of it."""
TERMINAL_SIGNS = {
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
KEYWORD_TERMINALS = frozenset(
    {
        *ITEM_TERMINALS,
        *RESERVED_TERMINALS,
        *("SPECC", "MODEL", "EXTENDS", "AS", "OF", "FROM", "UNDER", "COLLECT"),
        *("ALONG", "CARRY", "TIE", "LOAD"),
    }
)
"""Words that a name may be a misspelling of."""


def describe_terminals(expected: frozenset[str]) -> str:
    """A set of terminals in words: brackets and signs first, then kinds of things."""
    left, words = _group_terminals(expected)
    signs = [TERMINAL_SIGNS[kind] for kind in TERMINAL_SIGNS if kind in left]
    listed = [*signs, *words]
    if not listed:
        listed = ["an operator" if "PLUS" in left else "the end of the text"]
    if len(listed) == 1:
        return listed[0]
    # more than four are no help: the first are the likeliest
    return f"{', '.join(listed[:4][:-1])} or {listed[:4][-1]}"


def _group_terminals(expected: frozenset[str]) -> tuple[set[str], list[str]]:
    """What is still to be listed one by one, and kinds of things in words: "a value"
    for the nine terminals that can begin one.
    """
    left = set(expected)
    words: list[str] = []
    if {"NUMBER", "NAME", "LPAR"} <= left:
        left -= {"STRING", "NUMBER", "LPAR", "LSQB", "LBRACE", "MINUS", "NOT", "NAME"}
        words.append("a value")
    elif OPERATOR_TERMINALS & left and left - OPERATOR_TERMINALS:
        # after a value any operator fits; what closes it is more to the point
        left -= OPERATOR_TERMINALS
    if "RETURN" in left:
        words.append("a statement")
    elif "NAME" in left:
        words.append("a name")
    elif {"BLOCK", "CONFIG"} <= left and not words:
        words.append("an item such as `block`, `graph` or `config`")
        left.discard("STRING")
    elif not words:
        words += [f"`{kind.lower()}`" for kind in sorted(left & KEYWORD_TERMINALS)]
    return left, words


@dataclass(frozen=True)
class UnexpectedToken:
    """Token `at` of a parse, which does not fit where it stands."""

    fragment: Fragment
    run: ParseRun
    at: int

    @property
    def tokens(self) -> list[Token]:
        """All tokens of the text."""
        return self.run.tokens

    @property
    def token(self) -> Token:
        """The one that does not fit."""
        return self.tokens[self.at]

    @property
    def before(self) -> Token | None:
        """The token before it."""
        return self.tokens[self.at - 1] if self.at else None

    @cached_property
    def expected(self) -> frozenset[str]:
        """The terminals that would fit."""
        return self.run.expected()

    def span(self, token: Token) -> Span:
        """Where a token stands."""
        return self.fragment.span(token.start, token.end)

    def end_of(self, token: Token) -> Span:
        """The last character of a token: what is missing is missing after it."""
        return self.fragment.span(max(token.start, token.end - 1), token.end)

    def on_new_line(self, token: Token, before: Token) -> bool:
        """Whether a line ends between two tokens."""
        return "\n" in self.fragment.text[before.end : token.start]


def format_token(token: Token) -> str:
    """A token's text, cut if long."""
    return token.text if len(token.text) <= 30 else token.text[:29] + "…"
