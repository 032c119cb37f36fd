"""Grammar rules → tree: what both the expression rules and the statement rules need.

The callback of a rule takes its children one by one, so that its parameters say of what
types they are: None where an option may be absent, `*rest` where there may be many. The
grammar decides what comes; a test compares the counts. Faults that do not stop the
reading, such as an option given twice, are collected.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from specc.lang import tree
from specc.lang.dsl.fragment import Fragment
from specc.lang.dsl.lexer import Comment, Token
from specc.lang.remarks import Attacher
from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span

ESCAPE = re.compile(r"\\(u\{([0-9a-fA-F]{1,6})\}|.)")
ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
VALUES = ("true", "false", "none")
MEANT = {
    "yes": "true",
    "no": "false",
    "on": "true",
    "off": "false",
    "null": "none",
    "nil": "none",
}
"""Words that other languages read as values, and what is written here."""
NO_NAMES = frozenset([*VALUES, *MEANT, "True", "False", "None"])
"""What nothing may be called, lest a spec mean something else than it says."""


@dataclass
class Build:
    """The making of one tree."""

    fragment: Fragment
    tokens: list[Token]
    comments: list[Comment]
    faults: list[Diagnostic] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.attacher = Attacher(self.fragment.source.text, self.comments)

    def __call__(
        self, rule: str, children: list[object], first: int, last: int
    ) -> object:
        """The value of a rule that was read from tokens `first` to `last`."""
        at = max(first, 0)  # a rule that read nothing stands where the text begins
        span = self.fragment.span(self.tokens[at].start, self.tokens[max(last, at)].end)
        return RULES[rule](self, span, *children)

    def span(self, token: Token) -> Span:
        """Where a token stands."""
        return self.fragment.span(token.start, token.end)

    def fault(
        self,
        code: str,
        title: str,
        span: Span,
        label: str,
        *helps: str,
        others: Iterable[Label] = (),
    ) -> None:
        """Note a fault and go on."""
        self.faults.append(
            Diagnostic(code, title, Label(span, label), tuple(others), helps=helps)
        )

    def unquoted(self, token: Token) -> str:
        """The characters of a text, escapes resolved."""

        def character(match: re.Match[str]) -> str:
            letter, code = match.group(1), match.group(2)
            if code is not None and is_character(int(code, 16)):
                return chr(int(code, 16))
            if letter in ESCAPES:
                return ESCAPES[letter]
            start = token.start + 1 + match.start()  # 1 for the opening quote
            span = self.fragment.span(start, start + len(match.group()))
            self.fault(
                "E0118",
                f"`{match.group()}` means nothing inside a text",
                span,
                "here",
                'a text knows `\\"`, `\\\\`, `\\n`, `\\t`, `\\r` and `\\u{1F4A1}`',
            )
            return ""

        return ESCAPE.sub(character, token.text[1:-1])

    def text(self, token: Token | None) -> str:
        """A text that may be absent."""
        return "" if token is None else self.unquoted(token)

    def bound(self, token: Token) -> str:
        """A name that the spec gives to something."""
        if token.text in NO_NAMES:
            self.fault(
                "E0115",
                f"`{token.text}` cannot be used as a name",
                self.span(token),
                "this word is a value",
                f"another name, such as `{token.text.lower()}_`",
            )
        return token.text

    def twice(
        self,
        what: str,
        named: Iterable[tuple[str, Span | None]],
        help: str = "leave one of the two out",
    ) -> None:
        """Note each name that occurs again."""
        seen: dict[str, Span | None] = {}
        for name, span in named:
            # `_` skips a result, as often as there are some to skip
            if name in seen and name != "_" and span is not None:
                first = seen[name]
                others = (Label(first, "first here"),) if first is not None else ()
                self.fault(
                    "E0116",
                    f"{what} `{name}` is given twice",
                    span,
                    "again here",
                    help,
                    others=others,
                )
            seen.setdefault(name, span)


Rule = Callable[..., object]
"""`(build, span, *children)` → value."""
R = TypeVar("R", bound=Rule)
T = TypeVar("T")
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[R], R]:
    """Register the callback of a rule of the grammar."""

    def register(function: R) -> R:
        assert name not in RULES, f"two callbacks for {name}"
        RULES[name] = function
        return function

    return register


def present(children: Iterable[T | None]) -> tuple[T, ...]:
    """Children without the places of absent options."""
    return tuple(c for c in children if c is not None)


def is_character(code: int) -> bool:
    """Whether a number is that of a character, and not half of a pair of UTF-16."""
    return code < 0xD800 or 0xDFFF < code < 0x110000


@rule("name")
@rule("field_name")
@rule("type_name")
@rule("component")
@rule("soft")
@rule("hard")
@rule("comparison")
def _only(b: Build, span: Span, token: Token) -> Token:
    return token


@rule("title")
def _title(b: Build, span: Span, token: Token) -> tree.Text:
    text = b.unquoted(token) if token.kind == "STRING" else token.text
    return tree.Text(text, span=span)
