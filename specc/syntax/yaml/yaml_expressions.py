"""Parse expressions, types and names from YAML nodes."""

from specc.diagnostics.diagnostic import Failed
from specc.diagnostics.source import Span
from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import (
    DOTTED,
    EXPR,
    SIDED_TYPE,
    TARGETS,
    TYPE,
    StartSymbol,
    T,
    parse_fragment,
)
from specc.syntax.yaml.yaml_nodes import (
    YamlEntry,
    YamlMapping,
    YamlNode,
    YamlScalar,
    YamlSequence,
    is_empty_node,
    scalar_to_fragment,
)
from specc.syntax.yaml.yaml_reader import YamlReader, get_first_line_span

MISSING_NAME = ast.Name("_")
MISSING_TYPE = ast.TypeName(name="_")
"""What the reader goes on with after a fault."""


def parse_yaml_fragment(
    reader: YamlReader, node: YamlNode, start: StartSymbol[T], what: str
) -> T | None:
    """What the text of a scalar says; None after a fault."""
    if not isinstance(node, YamlScalar):
        example = "it as a text; quote what contains brackets"
        reader.report_wrong_kind(node, what, "a text", example)
        return None
    try:
        return parse_fragment(scalar_to_fragment(node), start)
    except Failed as failed:
        reader.add(*failed.diagnostics)
        return None


def parse_yaml_type(reader: YamlReader, node: YamlNode, what: str = "a type") -> ast.TypeName:
    """A type."""
    return parse_yaml_fragment(reader, node, TYPE, what) or MISSING_TYPE


def parse_yaml_sided_type(reader: YamlReader, node: YamlNode) -> ast.TypeName:
    """A type that may say on which side padding stands."""
    return parse_yaml_fragment(reader, node, SIDED_TYPE, "a type") or MISSING_TYPE


def parse_yaml_name(reader: YamlReader, node: YamlNode, what: str) -> str:
    """A name, not a dotted one."""
    # the grammar has `x: type` and `a, b` here; taken apart, messages can say so
    found = parse_yaml_fragment(reader, node, TARGETS, what) or (ast.Target("_"),)
    if len(found) == 1 and found[0].type is None:
        return found[0].name
    reader.fault(
        "E0101", f"{what} is one name", node.span, "expected one name", "write a single name"
    )
    return "_"


def parse_yaml_names(reader: YamlReader, node: YamlNode, what: str) -> tuple[str, ...]:
    """One name, or a list of names."""
    found: dict[str, Span] = {}
    for part in list_nodes(node):
        one = parse_yaml_name(reader, part, what)
        if one in found and one != "_":
            reader.twice(f"the name `{one}`", part.span, found[one])
        found[one] = part.span
    return tuple(found)


def list_nodes(node: YamlNode) -> list[YamlNode]:
    """The entries of a list; one thing is a list of one, nothing an empty one."""
    if isinstance(node, YamlSequence):
        return node.items
    return [] if is_empty_node(node) else [node]


def parse_yaml_expression(reader: YamlReader, node: YamlNode) -> ast.Expr:
    """A text, a list, or a call as a map: `{linear: {in: x, out: d, weights: q_proj}}`."""
    match node:
        case YamlSequence(items=items):
            values = tuple(parse_yaml_expression(reader, n) for n in items)
            return ast.ListLiteral(values, span=node.span)
        case YamlMapping():
            return parse_yaml_call(reader, node)
        case _:
            return parse_yaml_fragment(reader, node, EXPR, "a value") or MISSING_NAME


def parse_yaml_optional(
    reader: YamlReader, entries: dict[str, YamlEntry], key: str
) -> ast.Expr | None:
    """The value of a key that may be absent."""
    return parse_yaml_expression(reader, entries[key].value) if key in entries else None


def parse_yaml_expressions(reader: YamlReader, node: YamlNode) -> tuple[ast.Expr, ...]:
    """A list of values, or one: a text that says a list is that list."""
    if isinstance(node, YamlSequence):
        return tuple(parse_yaml_expression(reader, n) for n in node.items)
    one = parse_yaml_expression(reader, node)
    return one.items if isinstance(one, ast.ListLiteral) else (one,)


def parse_yaml_call(reader: YamlReader, node: YamlMapping) -> ast.Expr:
    """`{linear: {in: x, out: d, weights: q_proj}}`."""
    if len(node.entries) != 1:
        keys = ", ".join(f"`{e.name}`" for e in node.entries[:4])
        reader.fault(
            "E0125",
            "a value as a map has one key, the name of what is called",
            get_first_line_span(node.span),
            f"its keys are {keys}" if keys else "it has no key",
            "write `{linear: {in: x, out: d, weights: q_proj}}`",
        )
        return ast.Name("_", span=node.span)
    entry = node.entries[0]
    what = "the name of what is called"
    function = parse_yaml_fragment(reader, entry.key, DOTTED, what) or MISSING_NAME
    args: tuple[ast.Expr, ...] = ()
    options: list[ast.Option] = []
    weights = None
    example = f"`{{{entry.name}: {{in: x}}}}`"
    for given in reader.mapping(entry.value, f"what `{entry.name}` is given", example):
        # two keys are the reader's own: an option called `in` has to be written as text
        if given.name == "in":
            args = parse_yaml_expressions(reader, given.value)
        elif given.name == "weights":
            weights = parse_yaml_weight_name(reader, given.value)
        else:
            parse_yaml_name(reader, given.key, "an option")
            options.append(make_option(given, parse_yaml_expression(reader, given.value)))
    return ast.Call(function, args, tuple(options), weights, span=node.span)


def make_option(entry: YamlEntry, value: ast.Expr) -> ast.Option:
    """`out: d` in a call, or a field of a record."""
    span = entry.key.span.to(entry.value.span)
    return ast.Option(entry.name, value, span=span, name_span=entry.key.span)


def parse_yaml_weight_name(reader: YamlReader, node: YamlNode) -> ast.WeightName:
    """The name of weights."""
    return ast.WeightName(reader.raw(node, "the name of weights"), span=node.span)


def parse_yaml_static_value(reader: YamlReader, node: YamlNode) -> ast.Expr:
    """A config value: a map is a record."""
    match node:
        case YamlMapping(entries=entries):
            fields = []
            for entry in entries:
                parse_yaml_name(reader, entry.key, "a field")
                fields.append(make_option(entry, parse_yaml_static_value(reader, entry.value)))
            return ast.RecordLiteral(tuple(fields), span=node.span)
        case YamlSequence(items=items):
            values = tuple(parse_yaml_static_value(reader, n) for n in items)
            return ast.ListLiteral(values, span=node.span)
        case _:
            return parse_yaml_fragment(reader, node, EXPR, "a value") or MISSING_NAME
