"""`AstBuilder`: run the callbacks of grammar rules, with source spans and escape sequences;
`NodeRule` and `TupleRule`: the callbacks that only copy children to fields.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.diagnostics.source import Span
from specc.syntax import ast
from specc.syntax.comments import CommentAttacher, CommentedBody
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
"""Literals of other languages, and their equivalents here."""
RESERVED_VALUE_NAMES = frozenset([*LITERAL_WORDS, *FOREIGN_LITERALS, "True", "False", "None"])
"""Names that may not be bound, since a spec would be misread."""


@dataclass
class AstBuilder:
    """Builds the syntax tree of one text."""

    fragment: Fragment
    tokens: list[Token]
    comments: list[Comment]
    faults: list[Diagnostic] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.attacher = CommentAttacher(self.fragment.source.text, self.comments)

    def __call__(self, rule: str, children: list[object], first: int, last: int) -> object:
        """Build the value of a rule parsed from tokens `first` to `last`."""
        at = max(first, 0)  # a rule that matched no tokens is located at the start of the text
        span = self.fragment.span(self.tokens[at].start, self.tokens[max(last, at)].end)
        return RULE_CALLBACKS[rule](self, span, *children)

    def span(self, token: Token) -> Span:
        """Return the span of a token."""
        return self.fragment.span(token.start, token.end)

    def report_error(
        self,
        code: str,
        title: str,
        span: Span,
        label: str,
        *helps: str,
        others: Iterable[Label] = (),
    ) -> None:
        """Report an error and continue."""
        self.faults.append(Diagnostic(code, title, Label(span, label), tuple(others), helps=helps))

    def unescape_string(self, token: Token) -> str:
        """Return the characters of a string literal, escapes resolved."""

        def unescape_character(match: re.Match[str]) -> str:
            letter, code = match.group(1), match.group(2)
            if code is not None and is_unicode_scalar(int(code, 16)):
                return chr(int(code, 16))
            if letter in ESCAPED_CHARACTERS:
                return ESCAPED_CHARACTERS[letter]
            start = token.start + 1 + match.start()  # 1 for the opening quote
            span = self.fragment.span(start, start + len(match.group()))
            self.report_error(
                "E0118",
                f"unknown escape sequence `{match.group()}`",
                span,
                "here",
                'strings support `\\"`, `\\\\`, `\\n`, `\\t`, `\\r` and `\\u{1F4A1}`',
            )
            return ""

        return ESCAPE_SEQUENCE.sub(unescape_character, token.text[1:-1])

    def value(self, child: object) -> object:
        """Convert a child to a field value: a token is a string or a binding name."""
        if not isinstance(child, Token):
            return child
        return (
            self.unescape_string(child) if child.kind == "STRING" else self.check_bound_name(child)
        )

    def check_bound_name(self, token: Token) -> str:
        """Return a name that the spec binds. E0115 for a reserved one."""
        if token.text in RESERVED_VALUE_NAMES:
            self.report_error(
                "E0115",
                f"`{token.text}` cannot be used as a name",
                self.span(token),
                "this is a literal",
                f"another name, such as `{token.text.lower()}_`",
            )
        return token.text

    def body(self, opened: Token, rest: Sequence[object]) -> CommentedBody[ast.Commentable]:
        """Build the nodes between braces with their comments. `rest` follows the opening brace and
        ends with the closing one.
        """
        closed = rest[-1]
        assert isinstance(closed, Token)
        children = [child for child in rest if isinstance(child, ast.Commentable)]
        return self.attacher.body(children, self.span(opened).end, self.span(closed).start)

    def report_duplicates(
        self, what: str, children: Iterable[object], help: str = "leave one of the two out"
    ) -> None:
        """Report each name that occurs twice among the children."""
        seen: dict[str, Span | None] = {}
        for child in children:
            name, span = find_name_and_span(child, self)
            # `_` skips a result, as often as there are results to skip
            if name in seen and name != "_" and span is not None:
                first = seen[name]
                others = (Label(first, "first here"),) if first is not None else ()
                title = f"{what} `{name}` is duplicated"
                self.report_error("E0116", title, span, "again here", help, others=others)
            seen.setdefault(name, span)


def _get_name_and_span(node: ast.Target, _: AstBuilder) -> tuple[str, Span | None]:
    return node.name, node.span


NameAndSpan: TypeAlias = Callable[..., tuple[str, Span | None]]


def find_name_and_span(child: object, b: AstBuilder) -> tuple[str, Span | None]:
    """Return the name that must be unique, and its span."""
    return (NAMES_AND_SPANS.get(type(child)) or NAMES_AND_SPANS[object])(child, b)


NAMES_AND_SPANS: Mapping[type[object], NameAndSpan] = {
    Token: lambda token, b: (token.text, b.span(token)),
    ast.TextLiteral: lambda node, _: (node.value, node.span),
    ast.Expect: lambda node, _: (node.key, node.span),
    ast.IgnoredKeys: lambda node, _: ("ignore", node.span),
    ast.Option: lambda node, _: (node.name, node.name_span),
    object: lambda node, _: (node.name, node.span),
}


RuleCallback = Callable[..., object]
"""`(build, span, *children)` → value."""
R = TypeVar("R", bound=RuleCallback)
T = TypeVar("T")
N = TypeVar("N", bound=ast.Node)
RULE_CALLBACKS: dict[str, RuleCallback] = {}


def register_rule(name: str) -> Callable[[R], R]:
    """Register the callback of a rule of the grammar."""

    def register(function: R) -> R:
        assert name not in RULE_CALLBACKS, f"two callbacks for {name}"
        RULE_CALLBACKS[name] = function
        return function

    return register


def drop_absent_options(children: Iterable[T | None]) -> tuple[T, ...]:
    """Drop the placeholders of absent options."""
    return tuple(c for c in children if c is not None)


def is_unicode_scalar(code: int) -> bool:
    """Return whether a code point is a Unicode scalar value, not a surrogate."""
    return code < 0xD800 or 0xDFFF < code < 0x110000


@dataclass(frozen=True, slots=True)
class TupleRule:
    """A callback that returns its children; `unique` is what messages call them if no two may
    have one name.
    """

    unique: str = ""

    def __call__(self, b: AstBuilder, span: Span, *children: object) -> tuple[object, ...]:
        """Return the children that are present."""
        given = drop_absent_options(children)
        if self.unique:
            b.report_duplicates(self.unique, given)
        return tuple(map(b.value, given))


FLAG_FIELDS = ("reverse", "optional")
"""Boolean fields: whether a keyword or sign is present."""


class NodeRule(Generic[N]):
    """A callback that builds a node from its children, in the order of `fields`.

    `*name` takes the rest, `{name}` the body between braces, with a description before it if `doc`
    is a field. An absent child keeps its field's default. `unique` names the children in messages
    if their names must be unique.
    """

    def __init__(
        self, kind: type[N], fields: str = "", unique: str = "", /, **constants: object
    ) -> None:
        self.kind: Callable[..., N] = kind
        self.fields = [name for name in fields.split() if name[0] not in "*{"]
        self.rest = next((n[1:] for n in fields.split() if n[0] == "*"), "")
        self.body = next((n[1:-1] for n in fields.split() if n[0] == "{"), "")
        self.unique = unique
        self.constants: Mapping[str, object] = constants
        self.has_name_span = kind in (ast.Option, ast.Block)

    def __call__(self, b: AstBuilder, span: Span, *children: object) -> N:
        """Build the node."""
        size = len(self.fields)
        head, rest = children[:size], drop_absent_options(children[size:])
        values = {**self.constants, "span": span}
        for name, child in zip(self.fields, head, strict=True):
            if child is not None:
                values[name] = b.value(child) if name not in FLAG_FIELDS else True
                if name == "name" and self.has_name_span and isinstance(child, Token):
                    values["name_span"] = b.span(child)
        if self.body:
            opened, *inner = rest
            assert isinstance(opened, Token)
            if isinstance(inner[0], Token) and inner[0].kind == "STRING":
                values["doc"] = b.unescape_string(inner[0])
            body = b.body(opened, inner)
            values |= {self.body: body.children, "end": body.end}
            values["comments"] = ast.Comments(trailing=body.trailing)
            rest = body.children
        elif self.rest:
            values[self.rest] = tuple(map(b.value, rest))
        if self.unique:
            b.report_duplicates(self.unique, rest)
        return self.kind(**values)
