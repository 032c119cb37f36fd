"""YAML nodes → expressions, types and names: every leaf is text in the grammar of the
language, and calls may be written as maps.
"""

from specc.lang import tree
from specc.lang.dsl.parse import (
    DOTTED,
    EXPR,
    SIDED_TYPE,
    TARGETS,
    TYPE,
    Start,
    T,
    parse_fragment,
)
from specc.lang.yaml.nodes import Entry, Mapping, Node, Scalar, Sequence, empty
from specc.lang.yaml.reader import Reader, first_line
from specc.lang.yaml.scalars import fragment
from specc.text.diagnostic import Failed
from specc.text.source import Span

NO_NAME = tree.Name("_")
NO_TYPE = tree.TypeName(name="_")
"""What the reader goes on with after a fault."""


def parse(reader: Reader, node: Node, start: Start[T], what: str) -> T | None:
    """What the text of a scalar says; None after a fault."""
    if not isinstance(node, Scalar):
        example = "it as a text; quote what contains brackets"
        reader.wrong_kind(node, what, "a text", example)
        return None
    try:
        return parse_fragment(fragment(node), start)
    except Failed as failed:
        reader.add(*failed.diagnostics)
        return None


def type_of(reader: Reader, node: Node, what: str = "a type") -> tree.TypeName:
    """A type."""
    return parse(reader, node, TYPE, what) or NO_TYPE


def sided_type(reader: Reader, node: Node) -> tree.TypeName:
    """A type that may say on which side padding stands."""
    return parse(reader, node, SIDED_TYPE, "a type") or NO_TYPE


def name(reader: Reader, node: Node, what: str) -> str:
    """A name, not a dotted one."""
    # the grammar has `x: type` and `a, b` here; taken apart, messages can say so
    found = parse(reader, node, TARGETS, what) or (tree.Target("_"),)
    if len(found) == 1 and found[0].type is None:
        return found[0].name
    reader.fault(
        "E0101",
        f"{what} is one name",
        node.span,
        "expected one name",
        "write a single name",
    )
    return "_"


def names(reader: Reader, node: Node, what: str) -> tuple[str, ...]:
    """One name, or a list of names."""
    found: dict[str, Span] = {}
    for part in several(node):
        one = name(reader, part, what)
        if one in found and one != "_":
            reader.twice(f"the name `{one}`", part.span, found[one])
        found[one] = part.span
    return tuple(found)


def several(node: Node) -> list[Node]:
    """The entries of a list; one thing is a list of one, nothing an empty one."""
    if isinstance(node, Sequence):
        return node.items
    return [] if empty(node) else [node]


def expression(reader: Reader, node: Node) -> tree.Expr:
    """A text, a list, or a call as a map: `{linear: {in: x, out: d, weights: q_proj}}`."""
    match node:
        case Sequence(items=items):
            values = tuple(expression(reader, n) for n in items)
            return tree.ListOf(values, span=node.span)
        case Mapping():
            return call(reader, node)
        case _:
            return parse(reader, node, EXPR, "a value") or NO_NAME


def optional(reader: Reader, entries: dict[str, Entry], key: str) -> tree.Expr | None:
    """The value of a key that may be absent."""
    return expression(reader, entries[key].value) if key in entries else None


def expressions(reader: Reader, node: Node) -> tuple[tree.Expr, ...]:
    """A list of values, or one: a text that says a list is that list."""
    if isinstance(node, Sequence):
        return tuple(expression(reader, n) for n in node.items)
    one = expression(reader, node)
    return one.items if isinstance(one, tree.ListOf) else (one,)


def call(reader: Reader, node: Mapping) -> tree.Expr:
    """`{linear: {in: x, out: d, weights: q_proj}}`."""
    if len(node.entries) != 1:
        keys = ", ".join(f"`{e.name}`" for e in node.entries[:4])
        reader.fault(
            "E0125",
            "a value as a map has one key, the name of what is called",
            first_line(node.span),
            f"its keys are {keys}" if keys else "it has no key",
            "write `{linear: {in: x, out: d, weights: q_proj}}`",
        )
        return tree.Name("_", span=node.span)
    entry = node.entries[0]
    what = "the name of what is called"
    function = parse(reader, entry.key, DOTTED, what) or NO_NAME
    args: tuple[tree.Expr, ...] = ()
    options: list[tree.Option] = []
    weights = None
    example = f"`{{{entry.name}: {{in: x}}}}`"
    for given in reader.mapping(entry.value, f"what `{entry.name}` is given", example):
        # two keys are the reader's own: an option called `in` has to be written as text
        if given.name == "in":
            args = expressions(reader, given.value)
        elif given.name == "weights":
            weights = weight_name(reader, given.value)
        else:
            name(reader, given.key, "an option")
            options.append(option(given, expression(reader, given.value)))
    return tree.Call(function, args, tuple(options), weights, span=node.span)


def option(entry: Entry, value: tree.Expr) -> tree.Option:
    """`out: d` in a call, or a field of a record."""
    span = entry.key.span.to(entry.value.span)
    return tree.Option(entry.name, value, span=span, name_span=entry.key.span)


def weight_name(reader: Reader, node: Node) -> tree.WeightName:
    """The name of weights."""
    return tree.WeightName(reader.raw(node, "the name of weights"), span=node.span)


def static(reader: Reader, node: Node) -> tree.Expr:
    """A config value: a map is a record."""
    match node:
        case Mapping(entries=entries):
            fields = []
            for entry in entries:
                name(reader, entry.key, "a field")
                fields.append(option(entry, static(reader, entry.value)))
            return tree.RecordOf(tuple(fields), span=node.span)
        case Sequence(items=items):
            values = tuple(static(reader, n) for n in items)
            return tree.ListOf(values, span=node.span)
        case _:
            return parse(reader, node, EXPR, "a value") or NO_NAME
