"""Parse `config` and `weights` sections from YAML nodes."""

from typing import NamedTuple

from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import SOURCE
from specc.syntax.yaml import yaml_reader
from specc.syntax.yaml.yaml_expressions import (
    MISSING_TYPE,
    parse_yaml_expression,
    parse_yaml_fragment,
    parse_yaml_name,
    parse_yaml_optional,
    parse_yaml_static_value,
    parse_yaml_type,
    parse_yaml_weight_name,
)
from specc.syntax.yaml.yaml_nodes import YamlEntry, YamlMapping, YamlNode, YamlScalar, YamlSequence
from specc.syntax.yaml.yaml_reader import YamlReader, get_entry_span, get_first_line_span

FIELD_KEYS = ("type", "from", "default", "doc")
IGNORED_KEYS = "ignore keys"
"""No name of a value can have a space in it."""


def parse_yaml_config(reader: YamlReader, entry: YamlEntry) -> ast.Config:
    """`config: {d: {type: int}, heads: 4}`."""
    example = "`d: {type: int, default: 512}`"
    values = reader.mapping(entry.value, "`config`", example)
    body = yaml_reader.collect_yaml_body(
        reader, entry, [parse_yaml_config_entry(reader, e) for e in values]
    )
    return ast.Config(
        body.children,
        ast.Comments(behind=body.behind),
        body.end,
        span=yaml_reader.compute_entry_extent(reader, entry),
    )


def parse_yaml_config_entry(reader: YamlReader, entry: YamlEntry) -> ast.ConfigEntry:
    """A field, an expectation, or a value for a field of the extended spec."""
    value = entry.value
    if entry.name.startswith("expect "):
        key = entry.name.removeprefix("expect ").strip()
        nodes = value.items if isinstance(value, YamlSequence) else [value]
        values = tuple(reader.raw(node, f"`{entry.name}`") for node in nodes)
        return ast.Expect(key, values, span=get_entry_span(entry))
    if entry.name == IGNORED_KEYS:
        nodes = value.items if isinstance(value, YamlSequence) else [value]
        keys = tuple(reader.raw(node, f"`{IGNORED_KEYS}`") for node in nodes)
        return ast.IgnoredKeys(keys, span=get_entry_span(entry))
    field_name = parse_yaml_name(reader, entry.key, "the name of a config value")
    if isinstance(value, YamlMapping) and is_field_declaration(value):
        return parse_yaml_field(reader, field_name, entry, value)
    return ast.Assign(
        field_name, parse_yaml_static_value(reader, value), span=get_entry_span(entry)
    )


def is_field_declaration(node: YamlMapping) -> bool:
    """Whether a map declares a config value: it has a `type`, and nothing that a
    declaration does not have.
    """
    names = {e.name for e in node.entries}
    return "type" in names and names <= set(FIELD_KEYS)


def parse_yaml_field(
    reader: YamlReader, field_name: str, entry: YamlEntry, node: YamlMapping
) -> ast.Field:
    """`{type: int, from: [hidden_size, n_embd], default: 768, doc: width}`."""
    found = {e.name: e for e in node.entries}
    kind, above = parse_yaml_field_type(reader, found["type"])
    sources: tuple[ast.Expr, ...] = ()
    if "from" in found:
        said = found["from"].value
        nodes = said.items if isinstance(said, YamlSequence) else [said]
        sources = tuple(parse_yaml_config_path(reader, n) for n in nodes)
    default = (
        parse_yaml_static_value(reader, found["default"].value) if "default" in found else None
    )
    return ast.Field(
        name=field_name,
        type=kind,
        sources=sources,
        default=default,
        doc=reader.get_optional_text(found, "doc"),
        remarks=ast.Comments(above),
        span=get_entry_span(entry),
    )


def parse_yaml_field_type(
    reader: YamlReader, entry: YamlEntry
) -> tuple[ast.TypeName, tuple[str, ...]]:
    """A type as text, or `{record: {layers: {type: int}}}`; comments that found no place in it."""
    node = entry.value
    if not isinstance(node, YamlMapping):
        return parse_yaml_type(reader, node), ()
    found = reader.known(node, ("record",), "a type", ("record",))
    if "record" not in found:
        return MISSING_TYPE, ()
    record = found["record"]
    example = "`{layers: {type: int, default: 6}}`"
    fields = []
    for inner in reader.mapping(record.value, "a record", example):
        field = parse_yaml_config_entry(reader, inner)
        if isinstance(field, ast.Field):
            fields.append(field)
        else:
            reader.fault(
                "E0126",
                f"`{inner.name}` has no `type`",
                get_first_line_span(inner.key.span),
                "`type` is missing here",
                f"write `{inner.name}: {{type: int}}`",
            )
    body = yaml_reader.collect_yaml_body(reader, record, fields)
    # a type has no remarks: what would stand behind it goes above the whole field
    above = ((body.behind,) if body.behind else ()) + body.end
    return ast.TypeName(name="record", fields=body.children, span=node.span), above


def parse_yaml_config_path(reader: YamlReader, node: YamlNode) -> ast.Expr:
    """A path in config.json as bare text, or a call such as `len("id2label")`."""
    if isinstance(node, YamlScalar) and is_bare_config_path(node.value):
        return ast.TextLiteral(node.value, span=node.span)
    what = "a place in config.json"
    return parse_yaml_fragment(reader, node, SOURCE, what) or ast.TextLiteral("")


def is_bare_config_path(text: str) -> bool:
    """Whether a path in config.json needs no quotes in YAML: it cannot be taken for a
    text of the language, or for a call.
    """
    return bool(text) and not text.startswith('"') and "(" not in text


class RuleKeys(NamedTuple):
    """The keys of a rule beside its own word: those it needs, and those it may have."""

    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


WEIGHT_RULE_KEYS = {
    "from": RuleKeys(),
    "tie": RuleKeys(("to",), ("when",)),
    "load": RuleKeys(("as",), ("when",)),
    "ignore": RuleKeys((), ("when",)),
    "share": RuleKeys((), ("when",)),
}


def parse_yaml_weights(reader: YamlReader, entry: YamlEntry) -> ast.Weights:
    """`weights: [{from: file}, {tie: a, to: b}, {load: a, as: b}, {ignore: c}, {share: d}]`."""
    example = "a list: `- {tie: a.weight, to: b.weight}`"
    nodes = reader.items(entry.value, "`weights`", example)
    rules = [parse_yaml_weight_rule(reader, n) for n in nodes]
    body = yaml_reader.collect_yaml_body(reader, entry, [r for r in rules if r is not None])
    behind = ast.Comments(behind=body.behind)
    span = yaml_reader.compute_entry_extent(reader, entry)
    return ast.Weights(body.children, behind, body.end, span=span)


def parse_yaml_weight_rule(reader: YamlReader, node: YamlNode) -> ast.WeightRule | None:
    """One rule; None after a fault."""
    what = "a rule of `weights`"
    entries = reader.mapping(node, what, "`- {tie: a.weight, to: b.weight}`")
    kind = next((e.name for e in entries if e.name in WEIGHT_RULE_KEYS), None)
    if kind is None:
        if entries:
            reader.unknown(entries[0], WEIGHT_RULE_KEYS, what)
        return None
    needed, allowed = WEIGHT_RULE_KEYS[kind]
    found = reader.known(node, (kind, *needed, *allowed), f"`{kind}`", needed)
    if not set(needed) <= set(found):
        return None
    return build_yaml_weight_rule(reader, kind, found, node)


def build_yaml_weight_rule(
    reader: YamlReader, kind: str, found: dict[str, YamlEntry], node: YamlNode
) -> ast.WeightRule:
    """A rule that has all that it needs."""
    value = found[kind].value
    if kind == "from":
        return ast.WeightsFrom(reader.raw(value, "`from`"), span=node.span)
    condition = parse_yaml_optional(reader, found, "when")
    path = parse_yaml_weight_name(reader, value)
    match kind:
        case "tie":
            source = parse_yaml_weight_name(reader, found["to"].value)
            return ast.Tie(path, source, condition, span=node.span)
        case "load":
            how = parse_yaml_expression(reader, found["as"].value)
            return ast.Load(path, how, condition, span=node.span)
        case "ignore":
            return ast.Ignore(path, condition, span=node.span)
        case _:
            return ast.Share(path, condition, span=node.span)
