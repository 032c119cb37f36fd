"""Parse the items of a spec (`use`, `dims`, blocks, graphs, `generate`, …) from YAML nodes."""

from collections.abc import Callable

from specc.diagnostics.source import Span
from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import DEFINITION_HEAD, DIM_NAME
from specc.syntax.yaml import yaml_reader
from specc.syntax.yaml.yaml_config import parse_yaml_config, parse_yaml_weights
from specc.syntax.yaml.yaml_expressions import (
    MISSING_TYPE,
    parse_yaml_expression,
    parse_yaml_fragment,
    parse_yaml_name,
    parse_yaml_optional,
    parse_yaml_sided_type,
    parse_yaml_type,
    parse_yaml_weight_name,
)
from specc.syntax.yaml.yaml_nodes import YamlEntry, YamlMapping, YamlNode, YamlSequence
from specc.syntax.yaml.yaml_reader import YamlReader, get_entry_span
from specc.syntax.yaml.yaml_statements import parse_yaml_require, parse_yaml_statements

Items = list[ast.Item]


# --- under top keys -------------------------------------------------------------------


def parse_yaml_uses(reader: YamlReader, entry: YamlEntry) -> Items:
    """`use: [{file: vit.specc, as: v}]`."""
    read: Items = []
    example = "`- {file: vit.specc, as: v}`"
    for node in reader.items(entry.value, "`use`", f"a list: {example}"):
        reader.mapping(node, "an entry of `use`", example)
        found = reader.known(node, ("file", "as", "from", "under"), "`use`", ("file", "as"))
        if {"file", "as"} <= set(found):
            read.append(parse_yaml_use(reader, found, "file", node.span))
    return read


def parse_yaml_use(
    reader: YamlReader, found: dict[str, YamlEntry], key: str, span: Span
) -> ast.Use:
    """A used file and its name, and where its config and its weights are."""
    path, *others = parse_yaml_texts(reader, found[key].value, "the file")
    keys = parse_yaml_texts(reader, found["from"].value, "the key") if "from" in found else ()
    under = parse_yaml_weight_name(reader, found["under"].value) if "under" in found else None
    named = parse_yaml_name(reader, found["as"].value, "`as`")
    return ast.Use(
        path=path, name=named, others=tuple(others), sources=tuple(keys), under=under, span=span
    )


def parse_yaml_texts(reader: YamlReader, node: YamlNode, what: str) -> list[str]:
    """One text, or a list of them."""
    if not isinstance(node, YamlSequence):
        return [reader.raw(node, what)]
    return [reader.raw(item, what) for item in node.items] or [""]


def parse_yaml_dims(reader: YamlReader, entry: YamlEntry) -> Items:
    """`dims: [batch, src, tgt >= 1]`."""
    nodes = entry.value.items if isinstance(entry.value, YamlSequence) else [entry.value]
    lengths: list[ast.DimName] = []
    for node in nodes:
        length = parse_yaml_fragment(reader, node, DIM_NAME, "a length") or ast.DimName("_")
        if length.name != "_" and length.name in {d.name for d in lengths}:
            reader.twice(f"the length `{length.name}`", node.span)
        lengths.append(length)
    return [ast.Dims(tuple(lengths), span=get_entry_span(entry))]


def parse_yaml_requires(reader: YamlReader, entry: YamlEntry) -> Items:
    """`require: [{that: d % heads == 0, because: …}]`."""
    read: Items = []
    example = "a list: `- {that: d % heads == 0, because: …}`"
    for node in reader.items(entry.value, "`require`", example):
        if isinstance(node, YamlMapping):
            found = reader.known(node, ("that", "because"), "`require`", ("that",))
            if "that" in found:
                read.append(parse_yaml_require(reader, found, "that", node.span))
        else:
            read.append(ast.Require(parse_yaml_expression(reader, node), span=node.span))
    return read


def parse_yaml_items(reader: YamlReader, entry: YamlEntry) -> Items:
    """`items:`: blocks, graphs, definitions and anything else in the order of the source."""
    read: Items = []
    example = "a list: `- graph: classify`, `- block: layer`, `- mask: near(n)`"
    for node in reader.items(entry.value, "`items`", example):
        if not isinstance(node, YamlMapping) or not node.entries:
            reader.report_wrong_kind(node, "an item", "a map", example)
            continue
        kind = next((e.name for e in node.entries if e.name in LISTED_ITEM_PARSERS), None)
        if kind is None:
            reader.unknown(node.entries[0], LISTED_ITEM_PARSERS, "an item")
            continue
        read += LISTED_ITEM_PARSERS[kind](reader, node)
    return read


def parse_yaml_reading(reader: YamlReader, entry: YamlEntry) -> Items:
    """`reading: {pixels: 'image(size=[8, 8])', show logits: 'choice(labels)'}`."""
    example = "`pixels: image(size=[8, 8])`"
    nodes = reader.mapping(entry.value, "`reading`", example)
    body = yaml_reader.collect_yaml_body(
        reader, entry, [parse_yaml_reading_entry(reader, e) for e in nodes]
    )
    behind = ast.Comments(behind=body.behind)
    span = yaml_reader.compute_entry_extent(reader, entry)
    return [ast.Reading(body.children, behind, body.end, span=span)]


def parse_yaml_reading_entry(reader: YamlReader, entry: YamlEntry) -> ast.ReadingEntry:
    """How an input is read, or how a result is shown."""
    if entry.name.startswith("show "):
        shown = entry.name.removeprefix("show ").strip()
        value = parse_yaml_expression(reader, entry.value)
        return ast.ResultDisplay(shown, value, span=get_entry_span(entry))
    read = parse_yaml_name(reader, entry.key, "an input")
    return ast.InputReading(
        read, parse_yaml_expression(reader, entry.value), span=get_entry_span(entry)
    )


def parse_yaml_generates(reader: YamlReader, entry: YamlEntry) -> Items:
    """`generate: {text: {of: ids, from: logits, stop: eos}}`."""
    example = "`text: {of: ids, from: logits, stop: eos}`"
    nodes = reader.mapping(entry.value, "`generate`", example)
    read = [parse_yaml_generate(reader, e) for e in nodes]
    return [g for g in read if g is not None]


def parse_yaml_generate(reader: YamlReader, entry: YamlEntry) -> ast.Generate | None:
    """What a model writes; None after a fault."""
    generated = parse_yaml_name(reader, entry.key, "the name of what is generated")
    example = "`{of: ids, from: logits, stop: eos}`"
    settings = reader.mapping(entry.value, "what is generated", example)
    found = {s.name: s for s in settings}
    if not {"of", "from"} <= set(found):
        reader.fault(
            "E0126",
            "`generate` needs `of` and `from`",
            entry.key.span,
            "for this",
            "`of:` names the input that grows, `from:` the result that its next row is chosen from",
        )
        return None
    growing = parse_yaml_name(reader, found["of"].value, "`of`")
    source = parse_yaml_name(reader, found["from"].value, "`from`")
    others = [s for s in settings if s.name not in ("of", "from")]
    body = yaml_reader.collect_yaml_body(
        reader, entry, [parse_yaml_setting(reader, s) for s in others]
    )
    return ast.Generate(
        name=generated,
        growing=growing,
        source=source,
        settings=body.children,
        remarks=ast.Comments(behind=body.behind),
        end=body.end,
        span=yaml_reader.compute_entry_extent(reader, entry),
    )


def parse_yaml_setting(reader: YamlReader, entry: YamlEntry) -> ast.Setting:
    """`stop: eos`."""
    set_name = parse_yaml_name(reader, entry.key, "a setting")
    return ast.Setting(
        set_name, parse_yaml_expression(reader, entry.value), span=get_entry_span(entry)
    )


def parse_yaml_quantize(reader: YamlReader, entry: YamlEntry) -> Items:
    """`quantize: {default: int8, keep: [lm_head]}`."""
    example = "`{default: int8, keep: [lm_head]}`"
    nodes = reader.mapping(entry.value, "`quantize`", example)
    body = yaml_reader.collect_yaml_body(
        reader, entry, [parse_yaml_quantize_entry(reader, e) for e in nodes]
    )
    behind = ast.Comments(behind=body.behind)
    span = yaml_reader.compute_entry_extent(reader, entry)
    return [ast.Quantize(body.children, behind, body.end, span=span)]


def parse_yaml_quantize_entry(reader: YamlReader, entry: YamlEntry) -> ast.QuantizeEntry:
    """A word of `parse_yaml_quantize` with its value, or a list of patterns."""
    value = entry.value
    nodes = value.items if isinstance(value, YamlSequence) else [value]
    what = f"`{entry.name}`"
    values = tuple(ast.TextLiteral(reader.raw(n, what), span=n.span) for n in nodes)
    return ast.QuantizeEntry(entry.name, values, span=get_entry_span(entry))


def parse_yaml_streams(reader: YamlReader, entry: YamlEntry) -> Items:
    """`stream: {logits: sound}`."""
    nodes = reader.mapping(entry.value, "`stream`", "`logits: sound`")
    return [
        ast.Stream(
            parse_yaml_name(reader, each.key, "a result"),
            parse_yaml_name(reader, each.value, "an input"),
            span=get_entry_span(each),
        )
        for each in nodes
    ]


# --- entries of `items:` --------------------------------------------------------------


def parse_yaml_block(reader: YamlReader, node: YamlMapping) -> Items:
    """`- block: name` or `- graph: name`, with `in`, `out`, `where`, `doc` and `do`."""
    kind = next(e.name for e in node.entries if e.name in ("block", "graph"))
    further = ["where", "for"] if kind == "graph" else []
    keys = [kind, "in", "out", "do", "doc", *further]
    found = reader.known(node, keys, f"`{kind}`", ("out", "do"))
    if not {"out", "do"} <= set(found):
        return []
    block_name = parse_yaml_name(reader, found[kind].value, f"`{kind}`")
    params = parse_yaml_inputs(reader, found)
    results = parse_yaml_outputs(reader, found["out"].value)
    where = parse_yaml_equations(reader, found)
    made_for = parse_yaml_architectures(reader, found)
    doc = reader.get_optional_text(found, "doc")
    body, end = parse_yaml_statements(reader, found["do"])
    return [
        ast.Block(
            kind=kind,
            name=block_name,
            params=params,
            results=results,
            body=body,
            where=where,
            made_for=made_for,
            doc=doc,
            end=end,
            span=yaml_reader.compute_node_extent(reader, node),
            name_span=found[kind].value.span,
        )
    ]


def parse_yaml_inputs(
    reader: YamlReader, found: dict[str, YamlEntry]
) -> tuple[ast.BlockParameter, ...]:
    """`in: {x: 'float[batch, n]'}`."""
    if "in" not in found:
        return ()
    example = "`in: {x: 'float[batch, n]'}`"
    entries = reader.mapping(found["in"].value, "`in`", example)
    return tuple(parse_yaml_parameter(reader, e) for e in entries)


def parse_yaml_outputs(reader: YamlReader, node: YamlNode) -> tuple[ast.BlockParameter, ...]:
    """A type for the one result, or a map of several."""
    if isinstance(node, YamlMapping):
        return tuple(parse_yaml_result(reader, e) for e in node.entries)
    return (ast.BlockParameter("", parse_yaml_type(reader, node, "`out`"), span=node.span),)


def parse_yaml_architectures(reader: YamlReader, found: dict[str, YamlEntry]) -> tuple[str, ...]:
    """`for: [BertForMaskedLM, BertForPreTraining]`, or one alone."""
    if "for" not in found:
        return ()
    value = found["for"].value
    nodes = value.items if isinstance(value, YamlSequence) else [value]
    return tuple(reader.raw(node, "`for`") for node in nodes)


def parse_yaml_equations(
    reader: YamlReader, found: dict[str, YamlEntry]
) -> tuple[ast.Equation, ...]:
    """`where: {total: past + seq}`."""
    if "where" not in found:
        return ()
    example = "`where: {total: past + seq}`"
    return tuple(
        ast.Equation(
            parse_yaml_name(reader, e.key, "a length"),
            parse_yaml_expression(reader, e.value),
            span=e.key.span.to(e.value.span),
        )
        for e in reader.mapping(found["where"].value, "`where`", example)
    )


def parse_yaml_parameter(reader: YamlReader, entry: YamlEntry) -> ast.BlockParameter:
    """`x: float[batch, n]` or `n: {type: int, default: 4}`."""
    param_name = parse_yaml_name(reader, entry.key, "the name of an input")
    span = entry.key.span.to(entry.value.span)
    if not isinstance(entry.value, YamlMapping):
        return ast.BlockParameter(param_name, parse_yaml_sided_type(reader, entry.value), span=span)
    found = reader.known(entry.value, ("type", "default"), "an input", ("type",))
    kind = parse_yaml_sided_type(reader, found["type"].value) if "type" in found else MISSING_TYPE
    return ast.BlockParameter(
        param_name, kind, parse_yaml_optional(reader, found, "default"), span=span
    )


def parse_yaml_result(reader: YamlReader, entry: YamlEntry) -> ast.BlockParameter:
    """A named result."""
    result_name = parse_yaml_name(reader, entry.key, "the name of a result")
    span = entry.key.span.to(entry.value.span)
    return ast.BlockParameter(result_name, parse_yaml_sided_type(reader, entry.value), span=span)


def parse_yaml_definition(reader: YamlReader, node: YamlMapping) -> Items:
    """`- mask: window(back, ahead=0)`, with `is` and `doc`."""
    kind = next(e.name for e in node.entries if e.name in ast.DEFINITION_KINDS)
    found = reader.known(node, (kind, "is", "doc"), f"`{kind}`", ("is",))
    head = parse_yaml_fragment(reader, found[kind].value, DEFINITION_HEAD, f"`{kind}`")
    if "is" not in found or head is None:
        return []
    token, params = head
    doc = reader.get_optional_text(found, "doc")
    return [
        ast.Definition(
            kind=kind,
            name=token.text,
            params=params,
            value=parse_yaml_expression(reader, found["is"].value),
            doc=doc,
            span=node.span,
            name_span=found[kind].value.span,
        )
    ]


def parse_yaml_listed_use(reader: YamlReader, node: YamlMapping) -> Items:
    """`- use: vit.specc`, `as: v`."""
    found = reader.known(node, ("use", "as", "from", "under"), "`use`", ("as",))
    return [parse_yaml_use(reader, found, "use", node.span)] if "as" in found else []


def parse_yaml_listed_require(reader: YamlReader, node: YamlMapping) -> Items:
    """`- require: c`, `because: …`."""
    found = reader.known(node, ("require", "because"), "`require`")
    return [parse_yaml_require(reader, found, "require", node.span)]


def make_listed_parser(
    kind: str, read: Callable[[YamlReader, YamlEntry], Items]
) -> Callable[[YamlReader, YamlMapping], Items]:
    """A top key as an entry: `- dims: [batch]`."""

    def read_item(reader: YamlReader, node: YamlMapping) -> Items:
        return read(reader, reader.known(node, (kind,), f"`{kind}`")[kind])

    return read_item


TOP_ITEM_PARSERS: dict[str, Callable[[YamlReader, YamlEntry], Items]] = {
    "use": parse_yaml_uses,
    "config": lambda reader, entry: [parse_yaml_config(reader, entry)],
    "dims": parse_yaml_dims,
    "require": parse_yaml_requires,
    "items": parse_yaml_items,
    "reading": parse_yaml_reading,
    "weights": lambda reader, entry: [parse_yaml_weights(reader, entry)],
    "generate": parse_yaml_generates,
    "quantize": parse_yaml_quantize,
    "stream": parse_yaml_streams,
}
LISTED_ITEM_PARSERS: dict[str, Callable[[YamlReader, YamlMapping], Items]] = {
    "block": parse_yaml_block,
    "graph": parse_yaml_block,
    **dict.fromkeys(ast.DEFINITION_KINDS, parse_yaml_definition),
    "use": parse_yaml_listed_use,
    "require": parse_yaml_listed_require,
    **{
        key: make_listed_parser(key, TOP_ITEM_PARSERS[key])
        for key in (*("config", "dims", "reading", "weights", "generate", "quantize"), "stream")
    },
}
