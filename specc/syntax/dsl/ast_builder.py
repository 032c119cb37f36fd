"""`AstBuilder`: run the callbacks of grammar rules, with source spans and escape sequences."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.diagnostics.source import Span
from specc.syntax import ast
from specc.syntax.comments import CommentAttacher
from specc.syntax.dsl.lexer import Comment, Fragment, Token

ESCAPE_SEQUENCE = re.compile(r"\\(u\{([0-9a-fA-F]{1,6})\}|.)")
ESCAPED_CHARACTERS = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
LITERAL_WORDS = ("true", "false", "none")
FOREIGN_LITERALS = {
    "yes": "true",
    "no": "false",
    "on": "true",
    "off": "false",
    "null": "none",
    "nil": "none",
}
"""Words that other languages read as values, and what is written here."""
RESERVED_VALUE_NAMES = frozenset([*LITERAL_WORDS, *FOREIGN_LITERALS, "True", "False", "None"])
"""What nothing may be called, lest a spec mean something else than it says."""


@dataclass
class AstBuilder:
    """The making of one tree."""

    fragment: Fragment
    tokens: list[Token]
    comments: list[Comment]
    faults: list[Diagnostic] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.attacher = CommentAttacher(self.fragment.source.text, self.comments)

    def __call__(self, rule: str, children: list[object], first: int, last: int) -> object:
        """The value of a rule that was read from tokens `first` to `last`."""
        at = max(first, 0)  # a rule that read nothing stands where the text begins
        span = self.fragment.span(self.tokens[at].start, self.tokens[max(last, at)].end)
        return RULE_CALLBACKS[rule](self, span, *children)

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
        self.faults.append(Diagnostic(code, title, Label(span, label), tuple(others), helps=helps))

    def unescape_string(self, token: Token) -> str:
        """The characters of a text, escapes resolved."""

        def character(match: re.Match[str]) -> str:
            letter, code = match.group(1), match.group(2)
            if code is not None and is_unicode_scalar(int(code, 16)):
                return chr(int(code, 16))
            if letter in ESCAPED_CHARACTERS:
                return ESCAPED_CHARACTERS[letter]
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

        return ESCAPE_SEQUENCE.sub(character, token.text[1:-1])

    def text(self, token: Token | None) -> str:
        """A text that may be absent."""
        return "" if token is None else self.unescape_string(token)

    def bound(self, token: Token) -> str:
        """A name that the spec gives to something."""
        if token.text in RESERVED_VALUE_NAMES:
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


RuleCallback = Callable[..., object]
"""`(build, span, *children)` → value."""
R = TypeVar("R", bound=RuleCallback)
T = TypeVar("T")
RULE_CALLBACKS: dict[str, RuleCallback] = {}


def register_rule(name: str) -> Callable[[R], R]:
    """Register the callback of a rule of the grammar."""

    def register(function: R) -> R:
        assert name not in RULE_CALLBACKS, f"two callbacks for {name}"
        RULE_CALLBACKS[name] = function
        return function

    return register


def drop_absent_options(children: Iterable[T | None]) -> tuple[T, ...]:
    """Children without the places of absent options."""
    return tuple(c for c in children if c is not None)


def is_unicode_scalar(code: int) -> bool:
    """Whether a number is that of a character, and not half of a pair of UTF-16."""
    return code < 0xD800 or 0xDFFF < code < 0x110000


@register_rule("name")
@register_rule("field_name")
@register_rule("type_name")
@register_rule("component")
@register_rule("soft")
@register_rule("hard")
@register_rule("comparison")
def _only(b: AstBuilder, span: Span, token: Token) -> Token:
    return token


@register_rule("title")
def _title(b: AstBuilder, span: Span, token: Token) -> ast.TextLiteral:
    text = b.unescape_string(token) if token.kind == "STRING" else token.text
    return ast.TextLiteral(text, span=span)
