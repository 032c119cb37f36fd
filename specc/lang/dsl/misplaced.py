"""A token that does not fit, with what stands around it: what every explanation asks."""

from dataclasses import dataclass
from functools import cached_property

from specc.lang.dsl.fragment import Fragment
from specc.lang.dsl.lalr import Run
from specc.lang.dsl.lexer import Token
from specc.text.source import Span


@dataclass(frozen=True)
class Misplaced:
    """Token `at` of a parse, which does not fit where it stands."""

    fragment: Fragment
    run: Run
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


def shown(token: Token) -> str:
    """A token's text, cut if long."""
    return token.text if len(token.text) <= 30 else token.text[:29] + "…"
