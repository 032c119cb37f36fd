"""YAML nodes → items, under keys of their own at the top or as entries of `items:`."""

from collections.abc import Callable

from specc.lang import tree
from specc.lang.dsl.parse import DEFINITION_HEAD, DIM_NAME
from specc.lang.yaml import extent
from specc.lang.yaml.config import config
from specc.lang.yaml.expressions import (
    NO_TYPE,
    expression,
    name,
    optional,
    parse,
    sided_type,
    type_of,
    weight_name,
)
from specc.lang.yaml.nodes import Entry, Mapping, Node, Sequence
from specc.lang.yaml.reader import Reader, whole
from specc.lang.yaml.rules import weights
from specc.lang.yaml.statements import require, statements
from specc.text.source import Span

Items = list[tree.Item]


# --- under top keys -------------------------------------------------------------------


def uses(reader: Reader, entry: Entry) -> Items:
    """`use: [{file: vit.specc, as: v}]`."""
    read: Items = []
    example = "`- {file: vit.specc, as: v}`"
    for node in reader.items(entry.value, "`use`", f"a list: {example}"):
        reader.mapping(node, "an entry of `use`", example)
        found = reader.known(
            node, ("file", "as", "from", "under"), "`use`", ("file", "as")
        )
        if {"file", "as"} <= set(found):
            read.append(use(reader, found, "file", node.span))
    return read


def use(reader: Reader, found: dict[str, Entry], key: str, span: Span) -> tree.Use:
    """A used file and its name, and where its config and its weights are."""
    path, *others = texts(reader, found[key].value, "the file")
    keys = texts(reader, found["from"].value, "the key") if "from" in found else ()
    under = weight_name(reader, found["under"].value) if "under" in found else None
    named = name(reader, found["as"].value, "`as`")
    return tree.Use(
        path=path,
        name=named,
        others=tuple(others),
        sources=tuple(keys),
        under=under,
        span=span,
    )


def texts(reader: Reader, node: Node, what: str) -> list[str]:
    """One text, or a list of them."""
    if not isinstance(node, Sequence):
        return [reader.raw(node, what)]
    return [reader.raw(item, what) for item in node.items] or [""]


def dims(reader: Reader, entry: Entry) -> Items:
    """`dims: [batch, src, tgt >= 1]`."""
    nodes = entry.value.items if isinstance(entry.value, Sequence) else [entry.value]
    lengths: list[tree.DimName] = []
    for node in nodes:
        length = parse(reader, node, DIM_NAME, "a length") or tree.DimName("_")
        if length.name != "_" and length.name in {d.name for d in lengths}:
            reader.twice(f"the length `{length.name}`", node.span)
        lengths.append(length)
    return [tree.Dims(tuple(lengths), span=whole(entry))]


def requires(reader: Reader, entry: Entry) -> Items:
    """`require: [{that: d % heads == 0, because: …}]`."""
    read: Items = []
    example = "a list: `- {that: d % heads == 0, because: …}`"
    for node in reader.items(entry.value, "`require`", example):
        if isinstance(node, Mapping):
            found = reader.known(node, ("that", "because"), "`require`", ("that",))
            if "that" in found:
                read.append(require(reader, found, "that", node.span))
        else:
            read.append(tree.Require(expression(reader, node), span=node.span))
    return read


def items(reader: Reader, entry: Entry) -> Items:
    """`items:`: blocks, graphs, definitions and anything else in the order of the source."""
    read: Items = []
    example = "a list: `- graph: classify`, `- block: layer`, `- mask: near(n)`"
    for node in reader.items(entry.value, "`items`", example):
        if not isinstance(node, Mapping) or not node.entries:
            reader.wrong_kind(node, "an item", "a map", example)
            continue
        kind = next((e.name for e in node.entries if e.name in LISTED), None)
        if kind is None:
            reader.unknown(node.entries[0], LISTED, "an item")
            continue
        read += LISTED[kind](reader, node)
    return read


def reading(reader: Reader, entry: Entry) -> Items:
    """`reading: {pixels: 'image(size=[8, 8])', show logits: 'choice(labels)'}`."""
    example = "`pixels: image(size=[8, 8])`"
    nodes = reader.mapping(entry.value, "`reading`", example)
    body = extent.body(reader, entry, [reading_entry(reader, e) for e in nodes])
    behind = tree.Remarks(behind=body.behind)
    span = extent.entry_extent(reader, entry)
    return [tree.Reading(body.children, behind, body.end, span=span)]


def reading_entry(reader: Reader, entry: Entry) -> tree.ReadingEntry:
    """How an input is read, or how a result is shown."""
    if entry.name.startswith("show "):
        shown = entry.name.removeprefix("show ").strip()
        value = expression(reader, entry.value)
        return tree.Shows(shown, value, span=whole(entry))
    read = name(reader, entry.key, "an input")
    return tree.Reads(read, expression(reader, entry.value), span=whole(entry))


def generates(reader: Reader, entry: Entry) -> Items:
    """`generate: {text: {of: ids, from: logits, stop: eos}}`."""
    example = "`text: {of: ids, from: logits, stop: eos}`"
    nodes = reader.mapping(entry.value, "`generate`", example)
    read = [generate(reader, e) for e in nodes]
    return [g for g in read if g is not None]


def generate(reader: Reader, entry: Entry) -> tree.Generate | None:
    """What a model writes; None after a fault."""
    generated = name(reader, entry.key, "the name of what is generated")
    example = "`{of: ids, from: logits, stop: eos}`"
    settings = reader.mapping(entry.value, "what is generated", example)
    found = {s.name: s for s in settings}
    if not {"of", "from"} <= set(found):
        reader.fault(
            "E0126",
            "`generate` needs `of` and `from`",
            entry.key.span,
            "for this",
            "`of:` names the input that grows, `from:` the result that its next "
            "row is chosen from",
        )
        return None
    growing = name(reader, found["of"].value, "`of`")
    source = name(reader, found["from"].value, "`from`")
    others = [s for s in settings if s.name not in ("of", "from")]
    body = extent.body(reader, entry, [setting(reader, s) for s in others])
    return tree.Generate(
        name=generated,
        growing=growing,
        source=source,
        settings=body.children,
        remarks=tree.Remarks(behind=body.behind),
        end=body.end,
        span=extent.entry_extent(reader, entry),
    )


def setting(reader: Reader, entry: Entry) -> tree.Setting:
    """`stop: eos`."""
    set_name = name(reader, entry.key, "a setting")
    return tree.Setting(set_name, expression(reader, entry.value), span=whole(entry))


def quantize(reader: Reader, entry: Entry) -> Items:
    """`quantize: {default: int8, keep: [lm_head]}`."""
    example = "`{default: int8, keep: [lm_head]}`"
    nodes = reader.mapping(entry.value, "`quantize`", example)
    body = extent.body(reader, entry, [rounds(reader, e) for e in nodes])
    behind = tree.Remarks(behind=body.behind)
    span = extent.entry_extent(reader, entry)
    return [tree.Quantize(body.children, behind, body.end, span=span)]


def rounds(reader: Reader, entry: Entry) -> tree.Rounds:
    """A word of `quantize` with its value, or a list of patterns."""
    value = entry.value
    nodes = value.items if isinstance(value, Sequence) else [value]
    what = f"`{entry.name}`"
    values = tuple(tree.Text(reader.raw(n, what), span=n.span) for n in nodes)
    return tree.Rounds(entry.name, values, span=whole(entry))


def streams(reader: Reader, entry: Entry) -> Items:
    """`stream: {logits: sound}`."""
    nodes = reader.mapping(entry.value, "`stream`", "`logits: sound`")
    return [
        tree.Stream(
            name(reader, each.key, "a result"),
            name(reader, each.value, "an input"),
            span=whole(each),
        )
        for each in nodes
    ]


# --- entries of `items:` --------------------------------------------------------------


def block(reader: Reader, node: Mapping) -> Items:
    """`- block: name` or `- graph: name`, with `in`, `out`, `where`, `doc` and `do`."""
    kind = next(e.name for e in node.entries if e.name in ("block", "graph"))
    further = ["where", "for"] if kind == "graph" else []
    keys = [kind, "in", "out", "do", "doc", *further]
    found = reader.known(node, keys, f"`{kind}`", ("out", "do"))
    if not {"out", "do"} <= set(found):
        return []
    block_name = name(reader, found[kind].value, f"`{kind}`")
    params = inputs(reader, found)
    results = outputs(reader, found["out"].value)
    where = equations(reader, found)
    made_for = architectures(reader, found)
    doc = reader.raw_of(found, "doc")
    body, end = statements(reader, found["do"])
    return [
        tree.Block(
            kind=kind,
            name=block_name,
            params=params,
            results=results,
            body=body,
            where=where,
            made_for=made_for,
            doc=doc,
            end=end,
            span=extent.node_extent(reader, node),
            name_span=found[kind].value.span,
        )
    ]


def inputs(reader: Reader, found: dict[str, Entry]) -> tuple[tree.Param, ...]:
    """`in: {x: 'float[batch, n]'}`."""
    if "in" not in found:
        return ()
    example = "`in: {x: 'float[batch, n]'}`"
    entries = reader.mapping(found["in"].value, "`in`", example)
    return tuple(param(reader, e) for e in entries)


def outputs(reader: Reader, node: Node) -> tuple[tree.Param, ...]:
    """A type for the one result, or a map of several."""
    if isinstance(node, Mapping):
        return tuple(result(reader, e) for e in node.entries)
    return (tree.Param("", type_of(reader, node, "`out`"), span=node.span),)


def architectures(reader: Reader, found: dict[str, Entry]) -> tuple[str, ...]:
    """`for: [BertForMaskedLM, BertForPreTraining]`, or one alone."""
    if "for" not in found:
        return ()
    value = found["for"].value
    nodes = value.items if isinstance(value, Sequence) else [value]
    return tuple(reader.raw(node, "`for`") for node in nodes)


def equations(reader: Reader, found: dict[str, Entry]) -> tuple[tree.Equation, ...]:
    """`where: {total: past + seq}`."""
    if "where" not in found:
        return ()
    example = "`where: {total: past + seq}`"
    return tuple(
        tree.Equation(
            name(reader, e.key, "a length"),
            expression(reader, e.value),
            span=e.key.span.to(e.value.span),
        )
        for e in reader.mapping(found["where"].value, "`where`", example)
    )


def param(reader: Reader, entry: Entry) -> tree.Param:
    """`x: float[batch, n]` or `n: {type: int, default: 4}`."""
    param_name = name(reader, entry.key, "the name of an input")
    span = entry.key.span.to(entry.value.span)
    if not isinstance(entry.value, Mapping):
        return tree.Param(param_name, sided_type(reader, entry.value), span=span)
    found = reader.known(entry.value, ("type", "default"), "an input", ("type",))
    kind = sided_type(reader, found["type"].value) if "type" in found else NO_TYPE
    return tree.Param(param_name, kind, optional(reader, found, "default"), span=span)


def result(reader: Reader, entry: Entry) -> tree.Param:
    """A named result."""
    result_name = name(reader, entry.key, "the name of a result")
    span = entry.key.span.to(entry.value.span)
    return tree.Param(result_name, sided_type(reader, entry.value), span=span)


def definition(reader: Reader, node: Mapping) -> Items:
    """`- mask: window(back, ahead=0)`, with `is` and `doc`."""
    kind = next(e.name for e in node.entries if e.name in tree.DEFINITIONS)
    found = reader.known(node, (kind, "is", "doc"), f"`{kind}`", ("is",))
    head = parse(reader, found[kind].value, DEFINITION_HEAD, f"`{kind}`")
    if "is" not in found or head is None:
        return []
    token, params = head
    doc = reader.raw_of(found, "doc")
    return [
        tree.Definition(
            kind=kind,
            name=token.text,
            params=params,
            value=expression(reader, found["is"].value),
            doc=doc,
            span=node.span,
            name_span=found[kind].value.span,
        )
    ]


def listed_use(reader: Reader, node: Mapping) -> Items:
    """`- use: vit.specc`, `as: v`."""
    found = reader.known(node, ("use", "as", "from", "under"), "`use`", ("as",))
    return [use(reader, found, "use", node.span)] if "as" in found else []


def listed_require(reader: Reader, node: Mapping) -> Items:
    """`- require: c`, `because: …`."""
    found = reader.known(node, ("require", "because"), "`require`")
    return [require(reader, found, "require", node.span)]


def listed(
    kind: str, read: Callable[[Reader, Entry], Items]
) -> Callable[[Reader, Mapping], Items]:
    """A top key as an entry: `- dims: [batch]`."""

    def read_item(reader: Reader, node: Mapping) -> Items:
        return read(reader, reader.known(node, (kind,), f"`{kind}`")[kind])

    return read_item


TOP_ITEMS: dict[str, Callable[[Reader, Entry], Items]] = {
    "use": uses,
    "config": lambda reader, entry: [config(reader, entry)],
    "dims": dims,
    "require": requires,
    "items": items,
    "reading": reading,
    "weights": lambda reader, entry: [weights(reader, entry)],
    "generate": generates,
    "quantize": quantize,
    "stream": streams,
}
LISTED: dict[str, Callable[[Reader, Mapping], Items]] = {
    "block": block,
    "graph": block,
    **dict.fromkeys(tree.DEFINITIONS, definition),
    "use": listed_use,
    "require": listed_require,
    **{
        key: listed(key, TOP_ITEMS[key])
        for key in (
            *("config", "dims", "reading", "weights", "generate", "quantize"),
            "stream",
        )
    },
}
