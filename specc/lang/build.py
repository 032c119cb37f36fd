"""Grammar rules → tree: what both the expression rules and the statement rules need.

A callback takes the children of a complete rule and the span of its text. Faults that do not stop the
reading, such as an option given twice, are collected.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from specc.lang import tree
from specc.lang.fragment import Fragment
from specc.lang.lexer import Comment, Token
from specc.lang.remarks import Dresser
from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span

ESCAPE = re.compile(r"\\(u\{([0-9a-fA-F]{1,6})\}|.)")
ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
VALUES = ("true", "false", "none")
MEANT = {"yes": "true", "no": "false", "on": "true", "off": "false", "null": "none", "nil": "none"}
"""Words that other languages read as values, and what is written here."""


@dataclass
class Build:
    """The making of one tree."""

    fragment: Fragment
    tokens: list[Token]
    comments: list[Comment]
    faults: list[Diagnostic] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dresser = Dresser(self.fragment.source.text, self.comments)

    def __call__(self, rule: str, children: list[Any], first: int, last: int) -> Any:
        """The value of a rule that was read from tokens `first` to `last`."""
        at = max(first, 0)
        span = self.fragment.span(self.tokens[at].start, self.tokens[max(last, at)].end)
        return RULES[rule](self, children, span)

    def span(self, token: Token) -> Span:
        """Where a token stands."""
        return self.fragment.span(token.start, token.end)

    def fault(self, code: str, title: str, span: Span, label: str, *helps: str, others: Iterable[Label] = ()) -> None:
        """Note a fault and go on."""
        self.faults.append(Diagnostic(code, title, Label(span, label), tuple(others), helps=helps))

    def unquoted(self, token: Token) -> str:
        """The characters of a text, escapes resolved."""

        def character(match: re.Match[str]) -> str:
            code = match.group(2)
            if code is not None and (int(code, 16) < 0xD800 or 0xDFFF < int(code, 16) < 0x110000):
                return chr(int(code, 16))
            if match.group(1) in ESCAPES:
                return ESCAPES[match.group(1)]
            start = token.start + 1 + match.start()
            span = self.fragment.span(start, start + len(match.group()))
            self.fault("E0118", f"`{match.group()}` means nothing inside a text", span, "here",
                       'a text knows `\\"`, `\\\\`, `\\n`, `\\t`, `\\r` and `\\u{1F4A1}`')  # fmt: skip
            return ""

        return ESCAPE.sub(character, token.text[1:-1])

    def text(self, token: Token | None) -> str:
        """A text that may be absent."""
        return "" if token is None else self.unquoted(token)

    def bound(self, token: Token) -> str:
        """A name that the spec gives to something."""
        if token.text in VALUES or token.text in MEANT or token.text in ("True", "False", "None"):
            self.fault("E0115", f"`{token.text}` cannot be used as a name", self.span(token), "this word is a value",
                       f"another name, such as `{token.text.lower()}_`")  # fmt: skip
        return token.text

    def twice(self, what: str, named: Iterable[tuple[str, Span | None]]) -> None:
        """Note each name that occurs again."""
        seen: dict[str, Span | None] = {}
        for name, span in named:
            if name in seen and name != "_" and span is not None:
                first = seen[name]
                others = (Label(first, "first here"),) if first is not None else ()
                self.fault("E0116", f"{what} `{name}` is given twice", span, "again here",
                           "leave one of the two out", others=others)  # fmt: skip
            seen.setdefault(name, span)


Rule = Callable[[Build, list[Any], Span], Any]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register the callback of a rule of the grammar."""

    def register(function: Rule) -> Rule:
        assert name not in RULES, f"two callbacks for {name}"
        RULES[name] = function
        return function

    return register


def present(children: list[Any]) -> list[Any]:
    """Children without the places of absent options."""
    return [c for c in children if c is not None]


@rule("name")
@rule("field_name")
@rule("type_name")
@rule("component")
@rule("soft")
@rule("hard")
@rule("comparison")
def _only(b: Build, c: list[Any], span: Span) -> Any:
    return c[0]


@rule("title")
def _title(b: Build, c: list[Any], span: Span) -> tree.Text:
    token: Token = c[0]
    return tree.Text(b.unquoted(token) if token.kind == "STRING" else token.text, span=span)
