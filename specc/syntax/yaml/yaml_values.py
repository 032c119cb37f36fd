"""Kinds of YAML values, such as expressions, types and names, with their parsers and printers."""

from collections.abc import Callable
from typing import TypeGuard

from specc.diagnostics.diagnostic import Span, SpeccError
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax import ast
from specc.syntax.ast import MISSING_TYPE
from specc.syntax.dsl.dsl_parser import (
    DEFINITION_HEAD,
    DOTTED,
    EXPR,
    REPEAT_HEAD,
    SCAN_HEAD,
    SIDED_TYPE,
    TARGETS,
    TYPE,
    StartSymbol,
    T,
    parse_fragment,
)
from specc.syntax.dsl.dsl_printer import format_definition_header
from specc.syntax.dsl.expression_printer import format_expression, format_inline_type, join_pieces
from specc.syntax.yaml.yaml_composer import (
    YamlEntry,
    YamlMapping,
    YamlNode,
    YamlScalar,
    YamlSequence,
    get_list_items,
    is_empty_yaml_node,
)
from specc.syntax.yaml.yaml_emitter import (
    YamlMap,
    YamlPair,
    YamlValue,
    expression_to_yaml,
    is_field_declaration,
    make_yaml_list,
    strings_to_yaml,
    values_to_yaml,
)
from specc.syntax.yaml.yaml_validation import YamlReader, get_first_line_span, make_dsl_fragment

MISSING_NAME = ast.Name("_")


def parse_yaml_fragment(
    reader: YamlReader, node: YamlNode, start: StartSymbol[T], subject: str
) -> T | None:
    """Parse the value of a scalar as DSL text, or return None after an error."""
    if not isinstance(node, YamlScalar):
        example = "it as a string; quote it if it contains brackets"
        reader.report_wrong_kind(node, subject, "a string", example)
        return None
    try:
        return parse_fragment(make_dsl_fragment(node), start)
    except SpeccError as failed:
        reader.add_errors(*failed.diagnostics)
        return None


def parse_yaml_type(reader: YamlReader, node: YamlNode, subject: str = "a type") -> ast.TypeExpr:
    """Parse a type, or return MISSING_TYPE after an error."""
    return parse_yaml_fragment(reader, node, TYPE, subject) or MISSING_TYPE


def parse_yaml_padding_mask_type(reader: YamlReader, node: YamlNode) -> ast.TypeExpr:
    """Parse a type with an optional padding side, as in `keep[batch, n] left`."""
    return parse_yaml_fragment(reader, node, SIDED_TYPE, "a type") or MISSING_TYPE


def parse_yaml_name(reader: YamlReader, node: YamlNode, subject: str) -> str:
    """Parse a name without dots."""
    # TARGETS also matches `x: type` and `a, b`, which are reported as specific errors
    targets = parse_yaml_fragment(reader, node, TARGETS, subject) or (ast.AssignmentTarget("_"),)
    if len(targets) == 1 and targets[0].type is None:
        return targets[0].name
    reader.report_error(
        "E0101",
        f"{subject} must be a single name",
        node.span,
        "expected one name",
        "write a single name",
    )
    return "_"


def parse_yaml_names(reader: YamlReader, node: YamlNode, subject: str) -> tuple[str, ...]:
    """Parse a single name or a list of names."""
    spans_by_name: dict[str, Span] = {}
    for item in ensure_node_list(node):
        name = parse_yaml_name(reader, item, subject)
        if name in spans_by_name and name != "_":
            reader.report_duplicate(f"the name `{name}`", item.span, spans_by_name[name])
        spans_by_name[name] = item.span
    return tuple(spans_by_name)


def ensure_node_list(node: YamlNode) -> list[YamlNode]:
    """Return the entries of a list. A single node is one entry, and an empty value has none."""
    if isinstance(node, YamlSequence):
        return node.items
    return [] if is_empty_yaml_node(node) else [node]


def is_yaml_field(node: YamlNode) -> TypeGuard[YamlMapping]:
    """Return True if a node is a map that declares a config field, possibly with unknown keys."""
    if not isinstance(node, YamlMapping):
        return False
    values = {e.key: e.value for e in node.entries}
    type_node = values.get("type")
    return is_field_declaration(
        values, type_node.value if isinstance(type_node, YamlScalar) else ""
    )


def parse_yaml_expression(reader: YamlReader, node: YamlNode) -> ast.Expr:
    """Parse an expression: a DSL string, a list, or a map for a call, as in `{linear: {in: x}}`."""
    match node:
        case YamlSequence(items=items):
            values = tuple(parse_yaml_expression(reader, n) for n in items)
            return ast.ListLiteral(values, span=node.span)
        case YamlMapping():
            return parse_yaml_call(reader, node)
        case _:
            return parse_yaml_fragment(reader, node, EXPR, "a value") or MISSING_NAME


def parse_yaml_expressions(reader: YamlReader, node: YamlNode) -> tuple[ast.Expr, ...]:
    """Parse a list of values, a DSL string that is a list expression, or a single value."""
    if isinstance(node, YamlSequence):
        return tuple(parse_yaml_expression(reader, n) for n in node.items)
    value = parse_yaml_expression(reader, node)
    return value.items if isinstance(value, ast.ListLiteral) else (value,)


def parse_yaml_call(reader: YamlReader, node: YamlMapping) -> ast.Expr:
    """Parse a call in the form of a map, as in `{linear: {in: x, out: d, weights: q_proj}}`."""
    if len(node.entries) != 1:
        _report_invalid_call_keys(reader, node)
        return ast.Name("_", span=node.span)
    entry = node.entries[0]
    subject = "the name of the function"
    function = parse_yaml_fragment(reader, entry.key_node, DOTTED, subject) or MISSING_NAME
    args: tuple[ast.Expr, ...] = ()
    options: list[ast.NamedArg] = []
    weights = None
    example = f"`{{{entry.key}: {{in: x}}}}`"
    for argument in reader.read_mapping(entry.value, f"the arguments of `{entry.key}`", example):
        # `in` and `weights` are reserved keys, so a call with an option `in` must be a string
        if argument.key == "in":
            args = parse_yaml_expressions(reader, argument.value)
        elif argument.key == "weights":
            weights = parse_yaml_weight_name(reader, argument.value)
        else:
            parse_yaml_name(reader, argument.key_node, "an option")
            options.append(make_named_arg(argument, parse_yaml_expression(reader, argument.value)))
    return ast.Call(function, args, tuple(options), weights, span=node.span)


def _report_invalid_call_keys(reader: YamlReader, node: YamlMapping) -> None:
    """Report E0125 for a call whose map does not have exactly one key."""
    keys = ", ".join(f"`{e.key}`" for e in node.entries[:4])
    reader.report_error(
        "E0125",
        "a mapping as a value must have one key, the name of the function",
        get_first_line_span(node.span),
        f"its keys are {keys}" if keys else "the mapping is empty",
        "write `{linear: {in: x, out: d, weights: q_proj}}`",
    )


def make_named_arg(entry: YamlEntry, value: ast.Expr) -> ast.NamedArg:
    """Make an option of a call, as in `out: d`, or a field of a record."""
    span = entry.key_node.span.extend_to(entry.value.span)
    return ast.NamedArg(entry.key, value, span=span, name_span=entry.key_node.span)


def parse_yaml_weight_name(reader: YamlReader, node: YamlNode) -> ast.WeightPath:
    """Parse the weight path of a call."""
    return ast.WeightPath(reader.read_scalar(node, "the name of weights"), span=node.span)


def parse_yaml_static_value(reader: YamlReader, node: YamlNode) -> ast.Expr:
    """Parse a config value. A map is parsed as a record."""
    match node:
        case YamlMapping(entries=entries):
            fields = []
            for entry in entries:
                parse_yaml_name(reader, entry.key_node, "a field")
                fields.append(make_named_arg(entry, parse_yaml_static_value(reader, entry.value)))
            return ast.RecordLiteral(tuple(fields), span=node.span)
        case YamlSequence(items=items):
            values = tuple(parse_yaml_static_value(reader, n) for n in items)
            return ast.ListLiteral(values, span=node.span)
        case _:
            return parse_yaml_fragment(reader, node, EXPR, "a value") or MISSING_NAME


Parameters = tuple[ast.BlockParameter, ...]


class FieldValues(tuple[object, ...]):
    """The values of a YAML key that sets several node fields."""


@immutable_dataclass
class YamlValueCodec:
    """The parser and the printer of one kind of YAML value, such as an expression or a type.

    `parse(reader, entry, subject)` returns the field value, or None after an error.
    `to_yaml(fields…)` returns the YAML value, or None to omit the key.
    """

    parse: Callable[[YamlReader, YamlEntry, str], object]
    to_yaml: Callable[..., YamlValue | None]


def parse_yaml_flag(reader: YamlReader, entry: YamlEntry, subject: str) -> bool:
    """Parse a boolean value, `true` or `false`."""
    text = reader.read_scalar(entry.value, subject)
    if text not in ("true", "false"):
        title = f"{subject} must be `true` or `false`"
        reader.report_error("E0125", title, entry.value.span, "expected a boolean", "write `true`")
    return text == "true"


def make_dsl_string_codec(
    start_symbol: StartSymbol[tuple[object, ...]], to_yaml: Callable[..., str]
) -> YamlValueCodec:
    """Return the codec of a string that is parsed as the grammar symbol `start_symbol`, for keys
    that set several node fields. `to_yaml` formats these fields as a string.
    """

    def parse(reader: YamlReader, entry: YamlEntry, subject: str) -> FieldValues | None:
        values = parse_yaml_fragment(reader, entry.value, start_symbol, subject)
        return None if values is None else FieldValues(values)

    return YamlValueCodec(parse, to_yaml)


def parse_yaml_parameter(reader: YamlReader, entry: YamlEntry) -> ast.BlockParameter:
    """Parse a block parameter, as in `x: float[batch, n]` or `n: {type: int, default: 4}`."""
    name = parse_yaml_name(reader, entry.key_node, "the name of an input")
    span, value, default = entry.key_node.span.extend_to(entry.value.span), entry.value, None
    if not isinstance(value, YamlMapping):
        return ast.BlockParameter(name, parse_yaml_padding_mask_type(reader, value), span=span)
    entries = reader.read_entries_by_key(value, ("type", "default"), "an input", ("type",))
    declared_type = MISSING_TYPE
    if "type" in entries:
        declared_type = parse_yaml_padding_mask_type(reader, entries["type"].value)
    if "default" in entries:
        default = parse_yaml_expression(reader, entries["default"].value)
    return ast.BlockParameter(name, declared_type, default, span=span)


def parse_yaml_input_declaration(reader: YamlReader, entry: YamlEntry) -> ast.InputDecl:
    """Parse an entry of `inputs`, as in `keep: {type: 'keep[batch, n]', default: ids != 0}`."""
    param = parse_yaml_parameter(reader, entry)
    return ast.InputDecl(param.name, param.type, param.default, span=entry.span)


def parse_yaml_outputs(reader: YamlReader, entry: YamlEntry, subject: str) -> Parameters:
    """Parse the results of a block: the type of a single result, or a map from names to types."""
    node = entry.value
    if not isinstance(node, YamlMapping):
        return (ast.BlockParameter("", parse_yaml_type(reader, node, subject), span=node.span),)
    return tuple(
        ast.BlockParameter(
            parse_yaml_name(reader, e.key_node, "the name of a result"),
            parse_yaml_padding_mask_type(reader, e.value),
            span=e.key_node.span.extend_to(e.value.span),
        )
        for e in node.entries
    )


def parse_yaml_equations(
    reader: YamlReader, entry: YamlEntry, subject: str
) -> tuple[ast.Equation, ...]:
    """Parse the equations of a block, as in `where: {total: past + seq}`."""
    return tuple(
        ast.Equation(
            parse_yaml_name(reader, e.key_node, "a length"),
            parse_yaml_expression(reader, e.value),
            span=e.key_node.span.extend_to(e.value.span),
        )
        for e in reader.read_mapping(entry.value, subject, "`where: {total: past + seq}`")
    )


def parse_yaml_inputs(reader: YamlReader, entry: YamlEntry, subject: str) -> Parameters:
    """Parse the inputs of a block, a map from names to types. A graph may also have a list of
    inputs, as in `[ids, {x: 'float[batch, n]'}]`. Names without a type are declared in the `inputs`
    section.
    """
    if not isinstance(entry.value, YamlSequence):
        entries = reader.read_mapping(entry.value, subject, "`in: {x: 'float[batch, n]'}`")
        return tuple(parse_yaml_parameter(reader, e) for e in entries)
    params: dict[str, ast.BlockParameter] = {}
    for param in (p for node in entry.value.items for p in parse_listed_inputs(reader, node)):
        if param.name in params and param.span is not None:
            reader.report_duplicate(f"the input `{param.name}`", param.span)
        params[param.name] = param
    return tuple(params.values())


def parse_listed_inputs(reader: YamlReader, node: YamlNode) -> Parameters:
    """Parse an entry in a list of inputs, which is a name or a map from names to types."""
    if isinstance(node, YamlMapping):
        return tuple(parse_yaml_parameter(reader, e) for e in node.entries)
    name = parse_yaml_name(reader, node, "an input")
    return (ast.BlockParameter(name, MISSING_TYPE, None, True, span=node.span),)


def inputs_to_yaml(params: Parameters) -> YamlValue:
    """Convert a block's inputs to a map, or to a list if `inputs` declares some of them."""
    if any(p.is_from_inputs for p in params):
        return make_yaml_list(map(input_to_yaml, params))
    return YamlMap(list(map(parameter_to_yaml, params)))


def input_to_yaml(param: ast.BlockParameter) -> YamlValue:
    """Convert a listed input to a name if `inputs` declares it, otherwise to a map."""
    return param.name if param.is_from_inputs else YamlMap([parameter_to_yaml(param)])


def parameter_to_yaml(node: ast.BlockParameter) -> YamlPair:
    """Convert a parameter to `x: float[batch, n]`, or to a map if the parameter has a default."""
    type_text = format_inline_type(node.type)
    if node.default is None:
        return YamlPair(node.name, type_text)
    default = YamlPair("default", expression_to_yaml(node.default))
    return YamlPair(node.name, YamlMap([YamlPair("type", type_text), default]))


def outputs_to_yaml(results: Parameters) -> YamlValue:
    """Convert the results of a block to a map, or a single unnamed result to its type."""
    if len(results) == 1 and not results[0].name:
        return format_inline_type(results[0].type)
    return YamlMap([parameter_to_yaml(r) for r in results])


TEXT = YamlValueCodec(
    lambda r, e, subject: r.read_scalar(e.value, subject), lambda text: text or None
)
FILE = YamlValueCodec(TEXT.parse, str)
TEXTS = YamlValueCodec(
    lambda r, e, subject: r.read_strings(e.value, subject),
    lambda texts: strings_to_yaml(texts) if texts else None,
)
FILES = YamlValueCodec(
    lambda r, e, subject: r.read_strings(e.value, subject) or ("",), strings_to_yaml
)
NAME = YamlValueCodec(lambda r, e, subject: parse_yaml_name(r, e.value, subject), str)
BLOCK_NAME = YamlValueCodec(
    lambda r, e, subject: FieldValues((parse_yaml_name(r, e.value, subject), e.value.span)),
    lambda name, _: name,
)
NAMES = YamlValueCodec(
    lambda r, e, subject: parse_yaml_names(r, e.value, subject),
    lambda names: make_yaml_list(names) if names else None,
)
WEIGHT_NAME = YamlValueCodec(
    lambda r, e, _: parse_yaml_weight_name(r, e.value), lambda name: name and name.text
)
WEIGHT_NAMES = YamlValueCodec(
    lambda r, e, _: tuple(parse_yaml_weight_name(r, n) for n in get_list_items(e.value)),
    lambda names: strings_to_yaml([name.text for name in names]),
)
EXPRESSION = YamlValueCodec(
    lambda r, e, _: parse_yaml_expression(r, e.value),
    lambda value: value and expression_to_yaml(value),
)
EXPRESSIONS = YamlValueCodec(lambda r, e, _: parse_yaml_expressions(r, e.value), values_to_yaml)
FLAG = YamlValueCodec(parse_yaml_flag, lambda is_set: "true" if is_set else None)
INPUTS = YamlValueCodec(parse_yaml_inputs, inputs_to_yaml)
OUTPUTS = YamlValueCodec(parse_yaml_outputs, outputs_to_yaml)
EQUATIONS = YamlValueCodec(
    parse_yaml_equations,
    lambda where: (
        (where and YamlMap([YamlPair(e.name, expression_to_yaml(e.value)) for e in where])) or None
    ),
)
ARCHITECTURES = YamlValueCodec(TEXTS.parse, NAMES.to_yaml)
REPEAT_OVER = make_dsl_string_codec(
    REPEAT_HEAD, lambda name, iterable: f"{name} in {format_expression(iterable)}"
)
SCAN_OVER = make_dsl_string_codec(
    SCAN_HEAD,
    lambda names, sequences: (
        f"{', '.join(names)} in {', '.join(map(format_expression, sequences))}"
    ),
)
SIGNATURE = make_dsl_string_codec(
    DEFINITION_HEAD, lambda name, params, _: join_pieces(format_definition_header(name, params))
)
