"""What can stand under a key of YAML: for each kind of value how it is parsed and printed."""

from collections.abc import Callable
from dataclasses import dataclass

from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import DEFINITION_HEAD, REPEAT_HEAD, SCAN_HEAD, StartSymbol
from specc.syntax.dsl.dsl_printer import layout_definition_header
from specc.syntax.dsl.expression_printer import print_expression, print_type
from specc.syntax.dsl.line_breaking import join_pieces
from specc.syntax.yaml import yaml_expressions as parsing
from specc.syntax.yaml.yaml_expressions import MISSING_TYPE, parse_yaml_fragment, parse_yaml_name
from specc.syntax.yaml.yaml_layout import (
    YamlMap,
    YamlPair,
    YamlValue,
    expression_to_yaml,
    make_yaml_list,
    texts_to_yaml,
    values_to_yaml,
)
from specc.syntax.yaml.yaml_nodes import YamlEntry, YamlMapping
from specc.syntax.yaml.yaml_reader import YamlReader

Parameters = tuple[ast.BlockParameter, ...]


class Several(tuple[object, ...]):
    """The values of several fields that one key fills."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """What stands under a key, and the field or fields of the node that it fills.

    `parse(reader, entry, what)` returns None after an error that it reported. `show(fields…)`
    returns None for a key that is left out.
    """

    parse: Callable[[YamlReader, YamlEntry, str], object]
    show: Callable[..., YamlValue | None]


def parse_flag(reader: YamlReader, entry: YamlEntry, what: str) -> bool:
    """`true` or `false`."""
    said = reader.raw(entry.value, what)
    if said not in ("true", "false"):
        title = f"{what} is `true` or `false`"
        reader.fault("E0125", title, entry.value.span, "this is neither", "write `true`")
    return said == "true"


def parse_files(reader: YamlReader, entry: YamlEntry, what: str) -> Several:
    """The file of a `use`, and those that may be used instead."""
    path, *others = reader.texts(entry.value, what) or ("",)
    return Several((path, tuple(others)))


def make_head_kind(start: StartSymbol[tuple[object, ...]], show: Callable[..., str]) -> ValueKind:
    """A text with several parts, by its symbol of the grammar."""

    def parse(reader: YamlReader, entry: YamlEntry, what: str) -> Several | None:
        head = parse_yaml_fragment(reader, entry.value, start, what)
        return None if head is None else Several(head)

    return ValueKind(parse, show)


def parse_yaml_parameter(reader: YamlReader, entry: YamlEntry) -> ast.BlockParameter:
    """`x: float[batch, n]` or `n: {type: int, default: 4}`."""
    name = parse_yaml_name(reader, entry.key, "the name of an input")
    span, value, default = entry.key.span.to(entry.value.span), entry.value, None
    if not isinstance(value, YamlMapping):
        return ast.BlockParameter(name, parsing.parse_yaml_sided_type(reader, value), span=span)
    found = reader.known(value, ("type", "default"), "an input", ("type",))
    kind = MISSING_TYPE
    if "type" in found:
        kind = parsing.parse_yaml_sided_type(reader, found["type"].value)
    if "default" in found:
        default = parsing.parse_yaml_expression(reader, found["default"].value)
    return ast.BlockParameter(name, kind, default, span=span)


def parse_yaml_outputs(reader: YamlReader, entry: YamlEntry, what: str) -> Parameters:
    """A type for the one result, or a map of several."""
    node = entry.value
    if not isinstance(node, YamlMapping):
        return (
            ast.BlockParameter("", parsing.parse_yaml_type(reader, node, what), span=node.span),
        )
    return tuple(
        ast.BlockParameter(
            parse_yaml_name(reader, e.key, "the name of a result"),
            parsing.parse_yaml_sided_type(reader, e.value),
            span=e.key.span.to(e.value.span),
        )
        for e in node.entries
    )


def parse_yaml_equations(
    reader: YamlReader, entry: YamlEntry, what: str
) -> tuple[ast.Equation, ...]:
    """`where: {total: past + seq}`."""
    return tuple(
        ast.Equation(
            parse_yaml_name(reader, e.key, "a length"),
            parsing.parse_yaml_expression(reader, e.value),
            span=e.key.span.to(e.value.span),
        )
        for e in reader.mapping(entry.value, what, "`where: {total: past + seq}`")
    )


def parameter_to_yaml(node: ast.BlockParameter) -> YamlPair:
    """`x: float[batch, n]`, or with a default as a map."""
    kind = print_type(node.type)
    if node.default is None:
        return YamlPair(node.name, kind)
    default = YamlPair("default", expression_to_yaml(node.default))
    return YamlPair(node.name, YamlMap([YamlPair("type", kind), default]))


def outputs_to_yaml(results: Parameters) -> YamlValue:
    """The type of the one result, or a map of several."""
    if len(results) == 1 and not results[0].name:
        return print_type(results[0].type)
    return YamlMap([parameter_to_yaml(r) for r in results])


TEXT = ValueKind(lambda r, e, what: r.raw(e.value, what), lambda text: text or None)
TEXTS = ValueKind(
    lambda r, e, what: r.texts(e.value, what), lambda texts: texts_to_yaml(texts) if texts else None
)
FILES = ValueKind(parse_files, lambda path, others: texts_to_yaml((path, *others)))
NAME = ValueKind(lambda r, e, what: parse_yaml_name(r, e.value, what), str)
BLOCK_NAME = ValueKind(
    lambda r, e, what: Several((parse_yaml_name(r, e.value, what), e.value.span)),
    lambda name, _: name,
)
NAMES = ValueKind(
    lambda r, e, what: parsing.parse_yaml_names(r, e.value, what),
    lambda names: make_yaml_list(names) if names else None,
)
WEIGHT_NAME = ValueKind(
    lambda r, e, _: parsing.parse_yaml_weight_name(r, e.value), lambda name: name and name.text
)
EXPRESSION = ValueKind(
    lambda r, e, _: parsing.parse_yaml_expression(r, e.value),
    lambda value: value and expression_to_yaml(value),
)
EXPRESSIONS = ValueKind(lambda r, e, _: parsing.parse_yaml_expressions(r, e.value), values_to_yaml)
FLAG = ValueKind(parse_flag, lambda is_set: "true" if is_set else None)
INPUTS = ValueKind(
    lambda r, e, what: tuple(
        parse_yaml_parameter(r, each)
        for each in r.mapping(e.value, what, "`in: {x: 'float[batch, n]'}`")
    ),
    lambda params: YamlMap([parameter_to_yaml(p) for p in params]),
)
OUTPUTS = ValueKind(parse_yaml_outputs, outputs_to_yaml)
EQUATIONS = ValueKind(
    parse_yaml_equations,
    lambda where: (
        (where and YamlMap([YamlPair(e.name, expression_to_yaml(e.value)) for e in where])) or None
    ),
)
ARCHITECTURES = ValueKind(TEXTS.parse, NAMES.show)
REPEAT_OVER = make_head_kind(REPEAT_HEAD, lambda name, over: f"{name} in {print_expression(over)}")
SCAN_OVER = make_head_kind(
    SCAN_HEAD, lambda names, over: f"{', '.join(names)} in {', '.join(map(print_expression, over))}"
)
SIGNATURE = make_head_kind(
    DEFINITION_HEAD, lambda name, params, _: join_pieces(layout_definition_header(name, params))
)
