"""Parse a YAML spec into the same syntax tree as the equivalent DSL text."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from specc.diagnostics.diagnostic import Source, Span, SpeccError
from specc.syntax import ast
from specc.syntax.comments import attach_file_comments, get_node_span
from specc.syntax.dsl.dsl_lexer import check_source_characters
from specc.syntax.dsl.dsl_parser import DIM_NAME, SOURCE, truncate_diagnostics
from specc.syntax.inputs_section import resolve_declared_inputs
from specc.syntax.yaml import yaml_validation
from specc.syntax.yaml.yaml_composer import (
    YamlEntry,
    YamlMapping,
    YamlNode,
    YamlScalar,
    compose_yaml,
    get_list_items,
)
from specc.syntax.yaml.yaml_emitter import FIELD_KEYS, IGNORED_KEYS, is_unquoted_config_path
from specc.syntax.yaml.yaml_keys import ITEM_SCHEMAS, REQUIRE_ENTRY, USE_ENTRY, WEIGHT_RULE_SCHEMAS
from specc.syntax.yaml.yaml_validation import YamlReader, build_section_node, get_first_line_span
from specc.syntax.yaml.yaml_values import (
    is_yaml_field,
    parse_yaml_expression,
    parse_yaml_fragment,
    parse_yaml_input_declaration,
    parse_yaml_name,
    parse_yaml_static_value,
    parse_yaml_type,
)

Items = list[ast.Item]
ItemParser = Callable[[YamlReader, YamlEntry], Items]


def parse_yaml_use_statements(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse the key `use`, as in `use: [{file: vit.specc, as: v}]`."""
    example = "`- {file: vit.specc, as: v}`"
    nodes = reader.read_sequence(entry.value, "`use`", f"a list: {example}")
    for node in nodes:
        reader.read_mapping(node, "an entry of `use`", example)
    return [*filter(None, (USE_ENTRY.parse(reader, n) for n in nodes))]


def parse_yaml_dims(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse the key `dims`, as in `dims: [batch, src, tgt >= 1]`."""
    nodes = get_list_items(entry.value)
    lengths: list[ast.DimDecl] = []
    for node in nodes:
        if node is entry.value and "," in node.span.text and isinstance(node, YamlScalar):
            help_ = f"write `[{node.span.text.strip()}]`"
            reader.report_error("E0125", "`dims` must be a list", node.span, "", help_)
            continue
        length = parse_yaml_fragment(reader, node, DIM_NAME, "a length") or ast.DimDecl("_")
        if length.name != "_" and length.name in {d.name for d in lengths}:
            reader.report_duplicate(f"the length `{length.name}`", node.span)
        lengths.append(length)
    return [ast.DimsSection(tuple(lengths), span=entry.span)]


def parse_yaml_requirements(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse the key `require`, as in `require: [{that: d % heads == 0, because: …}]`."""
    example = "a list: `- {that: d % heads == 0, because: …}`"
    requires = (
        REQUIRE_ENTRY.parse(reader, node)
        if isinstance(node, YamlMapping)
        else ast.RequireStatement(parse_yaml_expression(reader, node), span=node.span)
        for node in reader.read_sequence(entry.value, "`require`", example)
    )
    return [*filter(None, requires)]


def parse_yaml_items(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse the key `items`: a list of blocks, graphs, definitions and other items."""
    items, example = Items(), "a list: `- graph: classify`, `- block: layer`, `- mask: near(n)`"
    for node in reader.read_sequence(entry.value, "`items`", example):
        if not isinstance(node, YamlMapping) or not node.entries:
            reader.report_wrong_kind(node, "an item", "a map", example)
            continue
        kind = next((e.key for e in node.entries if e.key in LISTED_ITEMS), None)
        if kind is None:
            reader.report_unknown_key(node.entries[0], LISTED_ITEMS, "an item")
        else:
            items += _parse_listed_item(reader, node, kind)
    return items


def _parse_listed_item(reader: YamlReader, node: YamlMapping, kind: str) -> Items:
    """Parse an entry of `items:` that begins with the keyword `kind`."""
    if kind in ITEM_SCHEMAS:
        item = ITEM_SCHEMAS[kind].parse(reader, node)
        return [item] if item is not None else []
    # an entry of `items:` may be a top-level key, such as `- dims: [batch]`
    entries = reader.read_entries_by_key(node, (kind,), f"`{kind}`")
    return TOP_ITEM_PARSERS[kind](reader, entries[kind])


def make_section_parser(
    node_class: Callable[..., ast.Item],
    parse_entry: Callable[[YamlReader, YamlEntry], ast.Commentable],
    example: str,
) -> ItemParser:
    """Return the parser of a section that is a map. `node_class` is the class of the section.
    `parse_entry` parses one entry. `example` is an example entry for messages.
    """

    def parse(reader: YamlReader, entry: YamlEntry) -> Items:
        nodes = reader.read_mapping(entry.value, f"`{entry.key}`", example)
        entries = [parse_entry(reader, e) for e in nodes]
        return [build_section_node(reader, entry, node_class, "entries", entries)]

    return parse


def parse_yaml_config_entry(reader: YamlReader, entry: YamlEntry) -> ast.ConfigEntry:
    """Parse a `config` entry: a field, `expect`, `ignore keys`, or an inherited field's value."""
    value = entry.value
    if entry.key.startswith("expect "):
        key = entry.key.removeprefix("expect ").strip()
        values = reader.read_strings(value, f"`{entry.key}`")
        return ast.ExpectedConfigValues(key, values, span=entry.span)
    if entry.key == IGNORED_KEYS:
        keys = reader.read_strings(value, f"`{IGNORED_KEYS}`")
        return ast.IgnoredConfigKeys(keys, span=entry.span)
    field_name = parse_yaml_name(reader, entry.key_node, "the name of a config value")
    if is_yaml_field(value):
        return parse_yaml_field(reader, field_name, entry, value)
    return ast.ConfigOverride(field_name, parse_yaml_static_value(reader, value), span=entry.span)


def parse_yaml_field(
    reader: YamlReader, field_name: str, entry: YamlEntry, node: YamlMapping
) -> ast.ConfigField:
    """Parse a config field, as in `{type: int, from: [hidden_size, n_embd], default: 768}`."""
    entries = reader.read_entries_by_key(node, FIELD_KEYS, "a config value")
    field_type, leading_comments = parse_yaml_field_type(reader, entries["type"])
    sources: tuple[ast.Expr, ...] = ()
    if "from" in entries:
        paths = entries["from"].value
        nodes = get_list_items(paths)
        sources = tuple(parse_yaml_config_path(reader, n) for n in nodes)
    default = (
        parse_yaml_static_value(reader, entries["default"].value) if "default" in entries else None
    )
    return ast.ConfigField(
        name=field_name,
        type=field_type,
        sources=sources,
        default=default,
        doc=reader.get_optional_text(entries, "doc"),
        comments=ast.Comments(leading_comments),
        span=entry.span,
    )


def parse_yaml_field_type(
    reader: YamlReader, entry: YamlEntry
) -> tuple[ast.TypeExpr, tuple[str, ...]]:
    """Parse a type, a string or `{record: {…}}`. Return the type and its leading comments."""
    node = entry.value
    if not isinstance(node, YamlMapping):
        return parse_yaml_type(reader, node), ()
    entries = reader.read_entries_by_key(node, ("record",), "a type", ("record",))
    if "record" not in entries:
        return ast.MISSING_TYPE, ()
    record = entries["record"]
    example = "`{layers: {type: int, default: 6}}`"
    fields = []
    for field_entry in reader.read_mapping(record.value, "a record", example):
        field = parse_yaml_config_entry(reader, field_entry)
        if isinstance(field, ast.ConfigField):
            fields.append(field)
        else:
            reader.report_error(
                "E0126",
                f"`{field_entry.key}` has no `type`",
                get_first_line_span(field_entry.key_node.span),
                "`type` is missing here",
                f"write `{field_entry.key}: {{type: int}}`",
            )
    body = yaml_validation.collect_yaml_body(reader, record, fields)
    leading_comments = ((body.trailing,) if body.trailing else ()) + body.end_comments
    return ast.TypeExpr(name="record", fields=body.children, span=node.span), leading_comments


def parse_yaml_config_path(reader: YamlReader, node: YamlNode) -> ast.Expr:
    """Parse a source of a config field: a path in config.json, or a call such as `len("a")`."""
    if isinstance(node, YamlScalar) and is_unquoted_config_path(node.value):
        return ast.StringLiteral(node.value, span=node.span)
    path = parse_yaml_fragment(reader, node, SOURCE, "a path in config.json")
    return path or ast.StringLiteral("")


def parse_yaml_preprocessing(reader: YamlReader, entry: YamlEntry) -> ast.ReadingEntry:
    """Parse an entry of `reading`: an input preprocessing or a result postprocessing."""
    is_result = entry.key.startswith("show ")
    name = (
        entry.key.removeprefix("show ").strip()
        if is_result
        else parse_yaml_name(reader, entry.key_node, "an input")
    )
    node = ast.OutputPostprocessing if is_result else ast.InputPreprocessing
    return node(name, parse_yaml_expression(reader, entry.value), span=entry.span)


def parse_yaml_generate_sections(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse the key `generate`, as in `generate: {text: {of: ids, from: logits}}`."""
    example = "`text: {of: ids, from: logits, stop: eos}`"
    nodes = reader.read_mapping(entry.value, "`generate`", example)
    return [*filter(None, (parse_yaml_generate_section(reader, e) for e in nodes))]


def parse_yaml_generate_section(reader: YamlReader, entry: YamlEntry) -> ast.GenerateSection | None:
    """Parse an entry of `generate`, or return None after an error."""
    name = parse_yaml_name(reader, entry.key_node, "the name of the generated output")
    example = "`{of: ids, from: logits, stop: eos}`"
    entries = reader.read_mapping(entry.value, "what is generated", example)
    entries_by_key = {e.key: e for e in entries}
    if not {"of", "from"} <= set(entries_by_key):
        reader.report_error(
            "E0126",
            "`generate` requires `of` and `from`",
            entry.key_node.span,
            "for this",
            "`of:` names the input to extend, `from:` the result with the next token's logits",
        )
        return None
    input_name = parse_yaml_name(reader, entries_by_key["of"].value, "`of`")
    output_name = parse_yaml_name(reader, entries_by_key["from"].value, "`from`")
    settings = [
        ast.GenerateSetting(
            parse_yaml_name(reader, e.key_node, "a setting"),
            parse_yaml_expression(reader, e.value),
            span=e.span,
        )
        for e in entries
        if e.key not in ("of", "from")
    ]
    header_fields = {"name": name, "input_name": input_name, "output_name": output_name}
    return build_section_node(
        reader, entry, ast.GenerateSection, "settings", settings, **header_fields
    )


def parse_yaml_quantize_setting(reader: YamlReader, entry: YamlEntry) -> ast.QuantizeSetting:
    """Parse an entry of `quantize`, whose value is a word or a list of patterns."""
    value, subject = entry.value, f"`{entry.key}`"
    nodes = get_list_items(value)
    values = tuple(ast.StringLiteral(reader.read_scalar(n, subject), span=n.span) for n in nodes)
    return ast.QuantizeSetting(entry.key, values, span=entry.span)


def parse_yaml_stream_sections(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse the key `stream`, as in `stream: {logits: audio}`."""
    nodes = reader.read_mapping(entry.value, "`stream`", "`logits: sound`")
    return [
        ast.StreamSection(
            parse_yaml_name(reader, item.key_node, "a result"),
            parse_yaml_name(reader, item.value, "an input"),
            span=item.span,
        )
        for item in nodes
    ]


def parse_yaml_weights(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse the key `weights`, as in `weights: [{from: file}, {tie: a, to: b}, {ignore: c}]`."""
    example = "a list: `- from: model.safetensors`"
    nodes = reader.read_sequence(entry.value, "`weights`", example)
    rules = [*filter(None, (parse_yaml_weight_rule(reader, n) for n in nodes))]
    return [build_section_node(reader, entry, ast.WeightsSection, "rules", rules)]


def parse_yaml_weight_rule(reader: YamlReader, node: YamlNode) -> ast.WeightRule | None:
    """Parse a weight rule, or return None after an error."""
    subject = "a rule of `weights`"
    entries = reader.read_mapping(node, subject, "`- {tie: a.weight, to: b.weight}`")
    kind = next((e.key for e in entries if e.key in WEIGHT_RULE_SCHEMAS), None)
    if kind is None:
        if entries:
            reader.report_unknown_key(entries[0], WEIGHT_RULE_SCHEMAS, subject)
        return None
    return WEIGHT_RULE_SCHEMAS[kind].parse(reader, node)


TOP_ITEM_PARSERS: dict[str, ItemParser] = {
    "use": parse_yaml_use_statements,
    "config": make_section_parser(
        ast.ConfigSection, parse_yaml_config_entry, "`d: {type: int, default: 512}`"
    ),
    "dims": parse_yaml_dims,
    "inputs": make_section_parser(ast.InputsSection, parse_yaml_input_declaration, "`x: 'int[n]'`"),
    "require": parse_yaml_requirements,
    "items": parse_yaml_items,
    "reading": make_section_parser(
        ast.PreprocessingSection, parse_yaml_preprocessing, "`pixels: image(size=[8, 8])`"
    ),
    "weights": parse_yaml_weights,
    "generate": parse_yaml_generate_sections,
    "quantize": make_section_parser(
        ast.QuantizeSection, parse_yaml_quantize_setting, "`{default: int8, keep: [lm_head]}`"
    ),
    "stream": parse_yaml_stream_sections,
}
YAML_HEADER_KEYS = ("specc", "model", "doc", "extends")
YAML_TOP_KEYS = (*YAML_HEADER_KEYS, *TOP_ITEM_PARSERS)
LISTED_ITEMS = (
    *ITEM_SCHEMAS,
    *(key for key in TOP_ITEM_PARSERS if key not in ("use", "require", "items")),
)
"""The keys that begin an entry of `items:`."""


def parse_yaml(source: Source) -> ast.File:
    """Parse a YAML text. Raise E01xx and E0201 with up to 20 independent errors."""
    check_source_characters(source)
    root, comments = compose_yaml(source)
    reader = YamlReader(source, comments)
    file = parse_yaml_file(reader, root)
    if reader.errors:
        raise SpeccError(*truncate_diagnostics(reader.errors))
    return file


def parse_yaml_file(reader: YamlReader, root: YamlNode | None) -> ast.File:
    """Parse the root node of a spec. Report E0113 if the spec is empty (`root` is None)."""
    empty = ast.File(version=1, model="")
    if root is None:
        reader.report_error(
            "E0113",
            "this spec is empty",
            Span(reader.source, 0, 0),
            "`specc: 1` belongs here",
            "start with\n  specc: 1\n  model: my_model",
        )
        return empty
    entries = reader.read_mapping(root, "a spec", "`specc: 1`, `model: my_model` and so on")
    if not isinstance(root, YamlMapping):
        return empty
    entries_by_key = reader.read_entries_by_key(root, YAML_TOP_KEYS, "a spec", ("specc", "model"))
    check_yaml_version(reader, entries_by_key)
    file_header = ast.File(
        version=1,
        model=reader.get_optional_text(entries_by_key, "model"),
        doc=reader.get_optional_text(entries_by_key, "doc"),
        extends=reader.get_optional_text(entries_by_key, "extends"),
        span=Span(reader.source, 0, len(reader.source.text)),
        extends_span=entries_by_key["extends"].value.span if "extends" in entries_by_key else None,
    )
    item_entries = [e for e in entries if e.key in TOP_ITEM_PARSERS]
    items = [item for e in item_entries for item in TOP_ITEM_PARSERS[e.key](reader, e)]
    return resolve_declared_inputs(reader, build_file_node(reader, file_header, entries, items))


def check_yaml_version(reader: YamlReader, header_entries: dict[str, YamlEntry]) -> None:
    """Report E0113 for an unsupported version."""
    version = reader.get_optional_text(header_entries, "specc")
    if version not in ("1", ""):  # an empty value is already reported as an error
        reader.report_error(
            "E0113",
            f"unknown language version {version}",
            header_entries["specc"].value.span,
            "here",
            "this compiler supports version 1: `specc: 1`",
        )


def build_file_node(
    reader: YamlReader,
    file_header: ast.File,
    entries: Sequence[YamlEntry],
    items: Iterable[ast.Item],
) -> ast.File:
    """Return a file with its items and comments. `entries` are the top-level keys of the file."""
    start = end = entries[0].key_node.span.start if entries else 0
    for entry in entries:
        if entry.key not in YAML_HEADER_KEYS:
            break
        end = entry.span.end
    # top-level keys may be in any order, but comments must be attached in source order
    sorted_items = sorted(items, key=lambda item: get_node_span(item).start)
    return attach_file_comments(
        reader.attacher, replace(file_header, items=tuple(sorted_items)), start, end
    )
