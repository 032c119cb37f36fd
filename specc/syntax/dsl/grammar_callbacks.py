"""Callbacks of grammar rules, such as `NodeRuleCallback`, which `AstBuilder` runs while parsing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from specc.diagnostics.diagnostic import ErrorCollector, Label, Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax import ast
from specc.syntax.comments import CommentAttacher, CommentedBody
from specc.syntax.dsl.dsl_lexer import Comment, SourceFragment, Token, unescape_string

LITERAL_WORDS = ("true", "false", "none")
FOREIGN_LITERALS = {
    **dict.fromkeys(("yes", "on"), "true"),
    **dict.fromkeys(("no", "off"), "false"),
    **dict.fromkeys(("null", "nil"), "none"),
}
"""Literals of the spec language, keyed by the equivalent literal of another language."""
RESERVED_VALUE_NAMES = frozenset([*LITERAL_WORDS, *FOREIGN_LITERALS, "True", "False", "None"])
"""Names that specs cannot bind: literals, and names that look like literals."""


@dataclass
class AstBuilder(ErrorCollector):
    """The builder of the syntax tree of one fragment."""

    fragment: SourceFragment
    tokens: list[Token]
    comments: list[Comment]

    def __post_init__(self) -> None:
        self.attacher = CommentAttacher(self.fragment.source.text, self.comments)

    def __call__(self, rule: str, children: list[object], first: int, last: int) -> object:
        """Return the value of a grammar rule that was parsed from tokens `first` to `last`."""
        first = max(first, 0)  # the span of a rule without tokens is that of the first token
        span = self.fragment.make_span(self.tokens[first].start, self.tokens[max(last, first)].end)
        return RULE_CALLBACKS[rule](self, span, *children)

    def get_span(self, token: Token) -> Span:
        """Return the source span of a token."""
        return self.fragment.make_span(token.start, token.end)

    def unescape_string(self, token: Token) -> str:
        """Return the value of a string literal, and report invalid escape sequences."""
        return unescape_string(token, self.fragment, self)

    def convert_to_field_value(self, child: object) -> object:
        """Convert a child to a field value. Tokens become strings. Report E0115 if a literal is
        used as a name.
        """
        if not isinstance(child, Token):
            return child
        is_string = child.kind == "STRING"
        return self.unescape_string(child) if is_string else self.check_bound_name(child)

    def check_bound_name(self, token: Token) -> str:
        """Return the text of a token that binds a name. Report E0115 for a literal."""
        if token.text in RESERVED_VALUE_NAMES:
            self.report_error(
                "E0115",
                f"`{token.text}` cannot be used as a name",
                self.get_span(token),
                "this is a literal",
                f"choose another name, such as `{token.text.lower()}_`",
            )
        return token.text

    def build_body(
        self, opener: Token, remaining_children: Sequence[object]
    ) -> CommentedBody[ast.Commentable]:
        """Build a body in braces, with its comments. `remaining_children` are the children after
        the opening brace, including the closing brace.
        """
        closer = remaining_children[-1]
        assert isinstance(closer, Token)
        children = [child for child in remaining_children if isinstance(child, ast.Commentable)]
        return self.attacher.attach_comments(
            children, self.get_span(opener).end, self.get_span(closer).start
        )

    def report_duplicate_names(
        self, description: str, children: Iterable[object], help: str = "remove one of the two"
    ) -> None:
        """Report E0116 if children have equal names. `description` is e.g. "the option"."""
        spans_by_name: dict[str, Span | None] = {}
        for child in children:
            get_name_and_span = NAMES_AND_SPANS.get(type(child)) or NAMES_AND_SPANS[object]
            name, span = get_name_and_span(child, self)
            # `_` ignores a result, so it may occur several times
            if name in spans_by_name and name != "_" and span is not None:
                first_span = spans_by_name[name]
                related_labels = (
                    (Label(first_span, "first here"),) if first_span is not None else ()
                )
                title = f"{description} `{name}` is duplicated"
                self.report_error(
                    "E0116", title, span, "again here", help, related_labels=related_labels
                )
            spans_by_name.setdefault(name, span)


NameAndSpan: TypeAlias = Callable[..., tuple[str, Span | None]]


NAMES_AND_SPANS: Mapping[type[object], NameAndSpan] = {
    Token: lambda token, b: (token.text, b.get_span(token)),
    ast.StringLiteral: lambda node, _: (node.value, node.span),
    ast.ExpectedConfigValues: lambda node, _: (node.key, node.span),
    ast.IgnoredConfigKeys: lambda node, _: ("ignore", node.span),
    ast.NamedArg: lambda node, _: (node.name, node.name_span),
    object: lambda node, _: (node.name, node.span),
}
"""The functions that return a child's name and span, keyed by the class of the child."""


RuleCallback = Callable[..., object]
"""A function `(builder, span, *children)` that returns the value of a grammar rule."""
R = TypeVar("R", bound=RuleCallback)
T = TypeVar("T")
N = TypeVar("N", bound=ast.Node)
RULE_CALLBACKS: dict[str, RuleCallback] = {}


def register_rule_callback(name: str) -> Callable[[R], R]:
    """Register a function as the callback of a grammar rule."""

    def register(function: R) -> R:
        assert name not in RULE_CALLBACKS, f"two callbacks for {name}"
        RULE_CALLBACKS[name] = function
        return function

    return register


def drop_absent_symbols(children: Iterable[T | None]) -> tuple[T, ...]:
    """Return the children without None, which is the placeholder for an absent optional symbol."""
    return tuple(c for c in children if c is not None)


@immutable_dataclass
class TupleRuleCallback:
    """A callback that returns a rule's children as a tuple. If `unique` is set, duplicate names are
    reported. `unique` is the description of a child in messages.
    """

    unique: str = ""

    def __call__(self, b: AstBuilder, span: Span, *children: object) -> tuple[object, ...]:
        """Return the children without absent optional symbols."""
        present_children = drop_absent_symbols(children)
        if self.unique:
            b.report_duplicate_names(self.unique, present_children)
        return tuple(map(b.convert_to_field_value, present_children))


FLAG_FIELDS = ("reverse", "optional")
"""The Boolean fields that are True if a keyword or `?` is present."""


class NodeRuleCallback(Generic[N]):
    """A callback that builds a node. The children set the fields `fields` in order.

    In `fields`, `a+b` are the fields that a tuple sets, `*name` collects all further children, and
    `{name}` is a body in braces. A body may begin with a docstring (field `doc`). The field of an
    absent child has its default value. `unique` has the same meaning as in `TupleRuleCallback`.
    """

    def __init__(
        self, node_class: type[N], fields: str = "", unique: str = "", /, **constants: object
    ) -> None:
        self.kind: Callable[..., N] = node_class
        self.fields = [name for name in fields.split() if name[0] not in "*{"]
        self.rest_field = next((n[1:] for n in fields.split() if n[0] == "*"), "")
        self.body_field = next((n[1:-1] for n in fields.split() if n[0] == "{"), "")
        self.unique = unique
        self.constants: Mapping[str, object] = constants
        self.has_name_span = node_class in (ast.NamedArg, ast.Block)

    def __call__(self, b: AstBuilder, span: Span, *children: object) -> N:
        """Return the node built from its children."""
        size = len(self.fields)
        head, rest = children[:size], drop_absent_symbols(children[size:])
        values = {**self.constants, "span": span}
        for name, child in zip(self.fields, head, strict=True):
            values |= self._read_field(b, name, child)
        if self.body_field:
            body, doc = self._read_body(b, rest)
            values |= zip((self.body_field, "end_comments", "trailing"), body, strict=True)
            values |= {"doc": doc} if doc is not None else {}
            rest = body.children
        elif self.rest_field:
            values[self.rest_field] = tuple(map(b.convert_to_field_value, rest))
        if self.unique:
            b.report_duplicate_names(self.unique, rest)
        if isinstance(trailing := values.pop("trailing", None), str):
            values["comments"] = ast.Comments(trailing=trailing)
        return self.kind(**values)

    def _read_field(self, b: AstBuilder, name: str, child: object) -> dict[str, object]:
        """Return field values by field name, including the span of a name."""
        if isinstance(child, tuple) and "+" in name:
            return dict(zip(name.split("+"), child, strict=True))
        if child is None:
            return {}
        values = {name: b.convert_to_field_value(child) if name not in FLAG_FIELDS else True}
        if name == "name" and self.has_name_span and isinstance(child, Token):
            values["name_span"] = b.get_span(child)
        return values

    def _read_body(
        self, b: AstBuilder, children: Sequence[object]
    ) -> tuple[CommentedBody[ast.Commentable], str | None]:
        """Return the body in braces, and its initial docstring, which is None if there is none."""
        opener, *inner = children
        assert isinstance(opener, Token)
        doc = None
        if isinstance(inner[0], Token) and inner[0].kind == "STRING":
            doc = b.unescape_string(inner[0])
        return b.build_body(opener, inner), doc
