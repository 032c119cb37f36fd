"""Parse a YAML spec into the same syntax tree as DSL text: the file, its sections and items."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from specc.diagnostics.diagnostic import Failed
from specc.diagnostics.source import Source, Span
from specc.syntax import ast
from specc.syntax.comments import attach_file_comments, get_node_span
from specc.syntax.dsl.dsl_parser import DIM_NAME, cap_diagnostics, check_source_characters
from specc.syntax.yaml.yaml_config import parse_yaml_config
from specc.syntax.yaml.yaml_keys import ITEM_FORMS, REQUIRE_ENTRY, USE_ENTRY, WEIGHT_RULE_FORMS
from specc.syntax.yaml.yaml_nodes import (
    YamlEntry,
    YamlMapping,
    YamlNode,
    YamlSequence,
    compose_yaml,
)
from specc.syntax.yaml.yaml_reader import YamlReader, get_entry_span, make_section
from specc.syntax.yaml.yaml_values import (
    parse_yaml_expression,
    parse_yaml_fragment,
    parse_yaml_name,
)

Items = list[ast.Item]


def parse_yaml_uses(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `use: [{file: vit.specc, as: v}]`."""
    read: list[ast.Use | None] = []
    example = "`- {file: vit.specc, as: v}`"
    for node in reader.items(entry.value, "`use`", f"a list: {example}"):
        reader.read_mapping(node, "an entry of `use`", example)
        read.append(USE_ENTRY.parse(reader, node))
    return [use for use in read if use is not None]


def parse_yaml_dims(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `dims: [batch, src, tgt >= 1]`."""
    nodes = entry.value.items if isinstance(entry.value, YamlSequence) else [entry.value]
    lengths: list[ast.DimName] = []
    for node in nodes:
        length = parse_yaml_fragment(reader, node, DIM_NAME, "a length") or ast.DimName("_")
        if length.name != "_" and length.name in {d.name for d in lengths}:
            reader.report_duplicate(f"the length `{length.name}`", node.span)
        lengths.append(length)
    return [ast.Dims(tuple(lengths), span=get_entry_span(entry))]


def parse_yaml_requires(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `require: [{that: d % heads == 0, because: …}]`."""
    read: list[ast.Require | None] = []
    example = "a list: `- {that: d % heads == 0, because: …}`"
    for node in reader.items(entry.value, "`require`", example):
        if isinstance(node, YamlMapping):
            read.append(REQUIRE_ENTRY.parse(reader, node))
        else:
            read.append(ast.Require(parse_yaml_expression(reader, node), span=node.span))
    return [condition for condition in read if condition is not None]


def parse_yaml_items(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `items:`: blocks, graphs, definitions and others in source order."""
    read: Items = []
    example = "a list: `- graph: classify`, `- block: layer`, `- mask: near(n)`"
    for node in reader.items(entry.value, "`items`", example):
        if not isinstance(node, YamlMapping) or not node.entries:
            reader.report_wrong_kind(node, "an item", "a map", example)
            continue
        kind = next((e.name for e in node.entries if e.name in LISTED_ITEMS), None)
        if kind is None:
            reader.unknown(node.entries[0], LISTED_ITEMS, "an item")
        elif kind in ITEM_FORMS:
            item = ITEM_FORMS[kind].parse(reader, node)
            read += [item] if item is not None else []
        else:  # a top-level key as an entry: `- dims: [batch]`
            read += TOP_ITEM_PARSERS[kind](reader, reader.known(node, (kind,), f"`{kind}`")[kind])
    return read


def parse_yaml_reading(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `reading: {pixels: 'image(size=[8, 8])', show logits: 'choice(labels)'}`."""
    example = "`pixels: image(size=[8, 8])`"
    nodes = reader.read_mapping(entry.value, "`reading`", example)
    entries = [parse_yaml_reading_entry(reader, e) for e in nodes]
    return [make_section(reader, entry, ast.Reading, "entries", entries)]


def parse_yaml_reading_entry(reader: YamlReader, entry: YamlEntry) -> ast.ReadingEntry:
    """Parse the preprocessing of an input, or the postprocessing of a result."""
    if entry.name.startswith("show "):
        shown = entry.name.removeprefix("show ").strip()
        value = parse_yaml_expression(reader, entry.value)
        return ast.ResultDisplay(shown, value, span=get_entry_span(entry))
    read = parse_yaml_name(reader, entry.key, "an input")
    return ast.InputReading(
        read, parse_yaml_expression(reader, entry.value), span=get_entry_span(entry)
    )


def parse_yaml_generates(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `generate: {text: {of: ids, from: logits, stop: eos}}`."""
    example = "`text: {of: ids, from: logits, stop: eos}`"
    nodes = reader.read_mapping(entry.value, "`generate`", example)
    read = [parse_yaml_generate(reader, e) for e in nodes]
    return [g for g in read if g is not None]


def parse_yaml_generate(reader: YamlReader, entry: YamlEntry) -> ast.Generate | None:
    """Parse one entry of `generate`; None after an error."""
    generated = parse_yaml_name(reader, entry.key, "the name of what is generated")
    example = "`{of: ids, from: logits, stop: eos}`"
    settings = reader.read_mapping(entry.value, "what is generated", example)
    found = {s.name: s for s in settings}
    if not {"of", "from"} <= set(found):
        reader.report_error(
            "E0126",
            "`generate` needs `of` and `from`",
            entry.key.span,
            "for this",
            "`of:` names the input that grows, `from:` the result that its next row is chosen from",
        )
        return None
    input_name = parse_yaml_name(reader, found["of"].value, "`of`")
    source = parse_yaml_name(reader, found["from"].value, "`from`")
    others = [parse_yaml_setting(reader, s) for s in settings if s.name not in ("of", "from")]
    head = {"name": generated, "input_name": input_name, "source": source}
    return make_section(reader, entry, ast.Generate, "settings", others, **head)


def parse_yaml_setting(reader: YamlReader, entry: YamlEntry) -> ast.Setting:
    """Parse `stop: eos`."""
    set_name = parse_yaml_name(reader, entry.key, "a setting")
    return ast.Setting(
        set_name, parse_yaml_expression(reader, entry.value), span=get_entry_span(entry)
    )


def parse_yaml_quantize(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `quantize: {default: int8, keep: [lm_head]}`."""
    example = "`{default: int8, keep: [lm_head]}`"
    nodes = reader.read_mapping(entry.value, "`quantize`", example)
    entries = [parse_yaml_quantize_entry(reader, e) for e in nodes]
    return [make_section(reader, entry, ast.Quantize, "entries", entries)]


def parse_yaml_quantize_entry(reader: YamlReader, entry: YamlEntry) -> ast.QuantizeEntry:
    """Parse a key of `quantize` with its value, or a list of patterns."""
    value, what = entry.value, f"`{entry.name}`"
    nodes = value.items if isinstance(value, YamlSequence) else [value]
    values = tuple(ast.TextLiteral(reader.raw(n, what), span=n.span) for n in nodes)
    return ast.QuantizeEntry(entry.name, values, span=get_entry_span(entry))


def parse_yaml_streams(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `stream: {logits: sound}`."""
    nodes = reader.read_mapping(entry.value, "`stream`", "`logits: sound`")
    return [
        ast.Stream(
            parse_yaml_name(reader, each.key, "a result"),
            parse_yaml_name(reader, each.value, "an input"),
            span=get_entry_span(each),
        )
        for each in nodes
    ]


def parse_yaml_weights(reader: YamlReader, entry: YamlEntry) -> Items:
    """Parse `weights: [{from: file}, {tie: a, to: b}, {load: a, as: b}, {ignore: c},
    {share: d}]`.
    """
    example = "a list: `- {tie: a.weight, to: b.weight}`"
    nodes = reader.items(entry.value, "`weights`", example)
    rules = [parse_yaml_weight_rule(reader, n) for n in nodes]
    known = [r for r in rules if r is not None]
    return [make_section(reader, entry, ast.Weights, "rules", known)]


def parse_yaml_weight_rule(reader: YamlReader, node: YamlNode) -> ast.WeightRule | None:
    """Parse one rule; None after an error."""
    what = "a rule of `weights`"
    entries = reader.read_mapping(node, what, "`- {tie: a.weight, to: b.weight}`")
    kind = next((e.name for e in entries if e.name in WEIGHT_RULE_FORMS), None)
    if kind is None:
        if entries:
            reader.unknown(entries[0], WEIGHT_RULE_FORMS, what)
        return None
    return WEIGHT_RULE_FORMS[kind].parse(reader, node)


TOP_ITEM_PARSERS: dict[str, Callable[[YamlReader, YamlEntry], Items]] = {
    "use": parse_yaml_uses,
    "config": lambda reader, entry: [parse_yaml_config(reader, entry)],
    "dims": parse_yaml_dims,
    "require": parse_yaml_requires,
    "items": parse_yaml_items,
    "reading": parse_yaml_reading,
    "weights": parse_yaml_weights,
    "generate": parse_yaml_generates,
    "quantize": parse_yaml_quantize,
    "stream": parse_yaml_streams,
}
YAML_HEADER_KEYS = ("specc", "model", "doc", "extends")
YAML_TOP_KEYS = (*YAML_HEADER_KEYS, *TOP_ITEM_PARSERS)
LISTED_ITEMS = (
    *ITEM_FORMS,
    *(key for key in TOP_ITEM_PARSERS if key not in ("use", "require", "items")),
)
"""The words of entries of `items:`."""


def parse_yaml(source: Source) -> ast.File:
    """Parse a YAML text. Fails with E01xx and E0201, reporting up to 20 independent errors."""
    check_source_characters(source)
    document = compose_yaml(source)
    reader = YamlReader(source, document.comments)
    read = parse_yaml_file(reader, document.root)
    if reader.faults:
        raise Failed(*cap_diagnostics(reader.faults))
    return read


def parse_yaml_file(reader: YamlReader, root: YamlNode | None) -> ast.File:
    """Parse the whole spec."""
    nothing = ast.File(version=1, model="")
    if root is None:
        reader.report_error(
            "E0113",
            "this spec is empty",
            Span(reader.source, 0, 0),
            "`specc: 1` belongs here",
            "start with\n  specc: 1\n  model: my_model",
        )
        return nothing
    entries = reader.read_mapping(root, "a spec", "`specc: 1`, `model: my_model` and so on")
    if not isinstance(root, YamlMapping):
        return nothing
    found = reader.known(root, YAML_TOP_KEYS, "a spec", ("specc", "model"))
    check_yaml_version(reader, found)
    head = ast.File(
        version=1,
        model=reader.get_optional_text(found, "model"),
        doc=reader.get_optional_text(found, "doc"),
        extends=reader.get_optional_text(found, "extends"),
        span=Span(reader.source, 0, len(reader.source.text)),
        extends_span=found["extends"].value.span if "extends" in found else None,
    )
    items: list[ast.Item] = []
    for entry in entries:
        if entry.name in TOP_ITEM_PARSERS:
            items += TOP_ITEM_PARSERS[entry.name](reader, entry)
    return attach_items(reader, head, entries, items)


def check_yaml_version(reader: YamlReader, found: dict[str, YamlEntry]) -> None:
    """Report a version that this compiler does not read."""
    version = reader.get_optional_text(found, "specc")
    if version not in ("1", ""):  # an empty value is an error already
        reader.report_error(
            "E0113",
            f"version {version} of the language is not known",
            found["specc"].value.span,
            "here",
            "this compiler reads version 1: `specc: 1`",
        )


def attach_items(
    reader: YamlReader, head: ast.File, entries: Sequence[YamlEntry], items: Iterable[ast.Item]
) -> ast.File:
    """Attach items and comments to a file."""
    start = end = entries[0].key.span.start if entries else 0
    for entry in entries:
        if entry.name not in YAML_HEADER_KEYS:
            break
        end = get_entry_span(entry).end
    # top-level keys are in any order, and `items:` holds any of them: comments need the order of
    # the text
    in_order = sorted(items, key=lambda item: get_node_span(item).start)
    return attach_file_comments(reader.attacher, replace(head, items=tuple(in_order)), start, end)
