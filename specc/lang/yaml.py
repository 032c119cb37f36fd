"""YAML text → the same tree that the `.specc` text gives, with spans in the YAML file.

    specc: 1
    model: small
    config: {d: {type: int, default: 512}}
    dims: [batch, n]
    items:
      - graph: f
        in: {x: 'float[batch, n, d]'}
        out: float[batch, n, d]
        do:
          - h: {linear: {in: x, out: d, weights: first}}
          - return: relu(h)

The statement structure is lists and maps, every leaf is text in the grammar of expressions. JSON is YAML.
Top keys may come in any order; items keep theirs.
"""

from collections.abc import Callable
from typing import Any

from specc.lang import tree
from specc.lang.parse import capped, checked
from specc.lang.yaml_config import config
from specc.lang.yaml_nodes import Entry, Mapping, Node, Sequence, compose
from specc.lang.yaml_reader import Reader
from specc.lang.yaml_statements import require, statements
from specc.text.diagnostic import Failed
from specc.text.source import Source, Span

TOP = (
    "specc",
    "model",
    "doc",
    "extends",
    "use",
    "config",
    "dims",
    "require",
    "items",
    "reading",
    "weights",
    "generate",
)
HEAD = ("specc", "model", "doc", "extends")

BLOCK = ("in", "out", "do", "doc")


def parse_yaml(source: Source) -> tree.File:
    """The tree of a YAML text. Fails with E01xx and E0201, showing up to 20 independent faults."""
    checked(source)
    document = compose(source)
    reader = Reader(source, document.comments)
    made = file(reader, document.root)
    if reader.faults:
        raise Failed(*capped(reader.faults))
    return made


def file(reader: Reader, root: Node | None) -> tree.File:
    """The whole spec."""
    start = Span(reader.source, 0, 0)
    if root is None:
        reader.fault(
            "E0113", "this spec is empty", start, "`specc: 1` belongs here", "begin with\n  specc: 1\n  model: my_model"
        )
        return tree.File(1, "")
    entries = reader.mapping(root, "a spec", "`specc: 1`, `model: my_model` and so on")
    if not isinstance(root, Mapping):
        return tree.File(1, "")
    found = reader.known(entries, TOP, "a spec", ("specc", "model"), root.span)
    if "specc" in found:
        version = reader.raw(found["specc"].value, "`specc`")
        if version not in ("1", ""):
            reader.fault(
                "E0113",
                f"version {version} of the language is not known",
                found["specc"].value.span,
                "here",
                "this compiler reads version 1: `specc: 1`",
            )
    texts = {key: reader.raw(found[key].value, f"`{key}`") if key in found else "" for key in HEAD[1:]}
    items: list[Any] = []
    for entry in entries:
        if entry.name in ITEMS:
            items += ITEMS[entry.name](reader, entry)
    return dressed_file(reader, entries, found, texts, items)


def dressed_file(
    reader: Reader, entries: list[Entry], found: dict[str, Entry], texts: dict[str, str], items: list[Any]
) -> tree.File:
    """The file with its comments."""
    first = entries[0].key.span.start if entries else 0
    head = first
    for entry in entries:
        if entry.name not in HEAD:
            break
        head = max(entry.key.span.end, entry.value.span.end)
    dresser = reader.dresser
    text = reader.source.text
    before = dresser.take(0, first)
    line = text.find("\n", first, head)
    on_first = dresser.take(first, line) if line >= 0 else ()
    before += on_first[1:] + dresser.take(first, head)
    items.sort(key=lambda item: item.span.start)
    dressed, end, behind = dresser.body(items, head, len(text))
    both = [*on_first[:1], *([behind] if behind else [])]
    remarks = tree.Remarks((*before, *both[1:]), both[0] if both else "")
    extends = found["extends"].value.span if "extends" in found else None
    return tree.File(1, texts["model"], texts["doc"], texts["extends"], dressed, remarks, end,
                     span=Span(reader.source, 0, len(text)), extends_span=extends)  # fmt: skip


# --- items under the top keys and in `items:` --------------------------------------------------


def use(reader: Reader, entry: Entry) -> list[Any]:
    """`use: [{file: vit.specc, as: v}]`."""
    made = []
    for node in reader.items(entry.value, "`use`", "a list: `- {file: vit.specc, as: v}`"):
        entries = reader.mapping(node, "an entry of `use`", "`- {file: vit.specc, as: v}`")
        found = reader.known(entries, ("file", "as"), "`use`", ("file", "as"), node.span)
        if {"file", "as"} <= set(found):
            made.append(one_use(reader, found, "file", node.span))
    return made


def one_use(reader: Reader, found: dict[str, Entry], key: str, span: Span) -> tree.Use:
    """A used file and its name."""
    return tree.Use(reader.raw(found[key].value, "the file"), reader.name(found["as"].value, "`as`").path, span=span)


def dims(reader: Reader, entry: Entry) -> list[Any]:
    """`dims: [batch, src, tgt >= 1]`."""
    nodes = entry.value.items if isinstance(entry.value, Sequence) else [entry.value]
    names = tuple(reader.parse(node, "dim_name", "a length") for node in nodes)
    seen: set[str] = set()
    for name, node in zip(names, nodes, strict=True):
        if name.name in seen and name.name != "_":
            reader.fault(
                "E0116", f"the length `{name.name}` is given twice", node.span, "again here", "leave one of the two out"
            )
        seen.add(name.name)
    span = Span(reader.source, entry.key.span.start, max(entry.key.span.end, entry.value.span.end))
    return [tree.Dims(names, span=span)]


def requires(reader: Reader, entry: Entry) -> list[Any]:
    """`require: [{that: d % heads == 0, because: …}]`."""
    made: list[Any] = []
    for node in reader.items(entry.value, "`require`", "a list: `- {that: d % heads == 0, because: …}`"):
        if isinstance(node, Mapping):
            found = reader.known(node.entries, ("that", "because"), "`require`", ("that",), node.span)
            if "that" in found:
                made.append(require(reader, found, "that", node.span))
        else:
            made.append(tree.Require(reader.expression(node), span=node.span))
    return made


def items(reader: Reader, entry: Entry) -> list[Any]:
    """`items:`: blocks, graphs, definitions and anything else in the order of the source."""
    made: list[Any] = []
    example = "a list: `- graph: classify`, `- block: layer`, `- mask: near(n)`"
    for node in reader.items(entry.value, "`items`", example):
        if not isinstance(node, Mapping) or not node.entries:
            reader.wrong_kind(node, "an item", "a map", example)
            continue
        kind = next((e.name for e in node.entries if e.name in IN_ITEMS), None)
        if kind is None:
            reader.unknown(node.entries[0], IN_ITEMS, "an item")
            continue
        made += IN_ITEMS[kind](reader, node)
    return made


def item_span(reader: Reader, node: Mapping) -> Span:
    """The span of an item of `items:` with the comments at its end."""
    return Span(reader.source, node.span.start, max(node.span.end, reader.reach(node)))


def block(reader: Reader, node: Mapping) -> list[Any]:
    """`- block: name` or `- graph: name`, with `in`, `out`, `where`, `doc` and `do`."""
    kind = next(e.name for e in node.entries if e.name in ("block", "graph"))
    keys = (kind, *BLOCK, *(("where",) if kind == "graph" else ()))
    found = reader.known(node.entries, keys, f"`{kind}`", ("out", "do"), node.span)
    if not {"out", "do"} <= set(found):
        return []
    name = reader.name(found[kind].value, f"`{kind}`")
    params: tuple[Any, ...] = ()
    if "in" in found:
        inputs = reader.mapping(found["in"].value, "`in`", "`in: {x: 'float[batch, n]'}`")
        params = tuple(param(reader, e) for e in inputs)
    out = found["out"].value
    if isinstance(out, Mapping):
        results = tuple(result(reader, e) for e in out.entries)
    else:
        results = (tree.Param("", reader.parse(out, "type", "`out`"), span=out.span),)
    where = tuple(
        tree.Equation(reader.name(e.key, "a length").path, reader.expression(e.value), span=e.key.span.to(e.value.span))
        for e in (
            reader.mapping(found["where"].value, "`where`", "`where: {total: past + seq}`") if "where" in found else ()
        )
    )
    doc = reader.raw(found["doc"].value, "`doc`") if "doc" in found else ""
    body, end = statements(reader, found["do"])
    return [tree.Block(kind, name.path, params, results, body, where, doc, end=end,
                       span=item_span(reader, node), name_span=found[kind].value.span)]  # fmt: skip


def param(reader: Reader, entry: Entry) -> tree.Param:
    """`x: float[batch, n]` or `n: {type: int, default: 4}`."""
    name = reader.name(entry.key, "the name of an input").path
    span = entry.key.span.to(entry.value.span)
    if not isinstance(entry.value, Mapping):
        return tree.Param(name, reader.parse(entry.value, "sided_type", "a type"), span=span)
    found = reader.known(entry.value.entries, ("type", "default"), "an input", ("type",), entry.value.span)
    kind = reader.parse(found["type"].value, "sided_type", "a type") if "type" in found else tree.TypeName("_")
    default = reader.expression(found["default"].value) if "default" in found else None
    return tree.Param(name, kind, default, span=span)


def result(reader: Reader, entry: Entry) -> tree.Param:
    """A named result."""
    name = reader.name(entry.key, "the name of a result").path
    return tree.Param(name, reader.parse(entry.value, "sided_type", "a type"), span=entry.key.span.to(entry.value.span))


def definition(reader: Reader, node: Mapping) -> list[Any]:
    """`- mask: window(back, ahead=0)`, with `is` and `doc`."""
    kind = next(e.name for e in node.entries if e.name in ("mask", "score", "bias"))
    found = reader.known(node.entries, (kind, "is", "doc"), f"`{kind}`", ("is",), node.span)
    head = reader.parse(found[kind].value, "definition_head", f"`{kind}`")
    if "is" not in found or head is None:
        return []
    name, params = head
    doc = reader.raw(found["doc"].value, "`doc`") if "doc" in found else ""
    return [tree.Definition(kind, name.text, params, reader.expression(found["is"].value), doc,
                            span=node.span, name_span=found[kind].value.span)]  # fmt: skip


def reading(reader: Reader, entry: Entry) -> list[Any]:
    """`reading: {pixels: 'image(size=[8, 8])', show logits: 'choice(labels)'}`."""
    made: list[Any] = []
    for e in reader.mapping(entry.value, "`reading`", "`pixels: image(size=[8, 8])`"):
        span = Span(reader.source, e.key.span.start, max(e.key.span.end, e.value.span.end))
        if e.name.startswith("show "):
            made.append(tree.Shows(e.name[len("show ") :].strip(), reader.expression(e.value), span=span))
        else:
            made.append(tree.Reads(reader.name(e.key, "an input").path, reader.expression(e.value), span=span))
    dressed, end, behind = reader.body(entry, made)
    return [tree.Reading(dressed, tree.Remarks(behind=behind), end, span=reader.reaching(entry))]


def weights(reader: Reader, entry: Entry) -> list[Any]:
    """`weights: [{from: file}, {tie: a, to: b}, {load: a, as: b}, {ignore: c}, {share: d}]`."""
    made = [
        weight_rule(reader, n)
        for n in reader.items(entry.value, "`weights`", "a list: `- {tie: a.weight, to: b.weight}`")
    ]
    dressed, end, behind = reader.body(entry, [m for m in made if m is not None])
    return [tree.Weights(dressed, tree.Remarks(behind=behind), end, span=reader.reaching(entry))]


RULES = {
    "from": ("from",),
    "tie": ("tie", "to", "when"),
    "load": ("load", "as"),
    "ignore": ("ignore",),
    "share": ("share", "when"),
}
NEEDS = {"from": (), "tie": ("to",), "load": ("as",), "ignore": (), "share": ()}


def weight_rule(reader: Reader, node: Node) -> Any:
    """One rule of `weights`; None after a fault."""
    entries = reader.mapping(node, "a rule of `weights`", "`- {tie: a.weight, to: b.weight}`")
    kind = next((e.name for e in entries if e.name in RULES), None)
    if kind is None:
        if entries:
            reader.unknown(entries[0], RULES, "a rule of `weights`")
        return None
    found = reader.known(entries, RULES[kind], f"`{kind}`", NEEDS[kind], node.span)
    if not set(NEEDS[kind]) <= set(found):
        return None
    value = found[kind].value
    condition = reader.expression(found["when"].value) if "when" in found else None
    match kind:
        case "from":
            return tree.From(reader.raw(value, "`from`"), span=node.span)
        case "tie":
            return tree.Tie(reader.weights(value), reader.weights(found["to"].value), condition, span=node.span)
        case "load":
            return tree.Load(reader.weights(value), reader.expression(found["as"].value), span=node.span)
        case "ignore":
            return tree.Ignore(reader.weights(value), span=node.span)
        case _:
            return tree.Share(reader.weights(value), condition, span=node.span)


def generate(reader: Reader, entry: Entry) -> list[Any]:
    """`generate: {text: {of: ids, from: logits, stop: eos}}`."""
    made: list[Any] = []
    for e in reader.mapping(entry.value, "`generate`", "`text: {of: ids, from: logits, stop: eos}`"):
        name = reader.name(e.key, "the name of what is generated").path
        settings = reader.mapping(e.value, "what is generated", "`{of: ids, from: logits, stop: eos}`")
        found = {s.name: s for s in settings}
        if not {"of", "from"} <= set(found):
            reader.fault(
                "E0126",
                "`generate` needs `of` and `from`",
                e.key.span,
                "for this",
                "`of:` names the input that grows, `from:` the result that its next row is chosen from",
            )
            continue
        growing, source = (reader.name(found[key].value, f"`{key}`").path for key in ("of", "from"))
        given = [
            tree.Setting(reader.name(s.key, "a setting").path, reader.expression(s.value),
                         span=Span(reader.source, s.key.span.start, max(s.key.span.end, s.value.span.end)))
            for s in settings if s.name not in ("of", "from")
        ]  # fmt: skip
        dressed, end, behind = reader.body(e, given)
        remarks = tree.Remarks(behind=behind)
        made.append(tree.Generate(name, growing, source, dressed, remarks, end, span=reader.reaching(e)))
    return made


def wrapped(kind: str, read: Callable[[Reader, Entry], list[Any]]) -> Callable[[Reader, Mapping], list[Any]]:
    """A top key as an entry of `items:`: `- dims: [batch]`."""

    def read_item(reader: Reader, node: Mapping) -> list[Any]:
        found = reader.known(node.entries, (kind,), f"`{kind}`", (), node.span)
        return read(reader, found[kind])

    return read_item


def used(reader: Reader, node: Mapping) -> list[Any]:
    """`- use: vit.specc`, `as: v` in `items:`."""
    found = reader.known(node.entries, ("use", "as"), "`use`", ("as",), node.span)
    return [one_use(reader, found, "use", node.span)] if "as" in found else []


def required(reader: Reader, node: Mapping) -> list[Any]:
    """`- require: c`, `because: …` in `items:`."""
    found = reader.known(node.entries, ("require", "because"), "`require`", (), node.span)
    return [require(reader, found, "require", node.span)]


ITEMS: dict[str, Callable[[Reader, Entry], list[Any]]] = {
    "use": use, "config": config, "dims": dims, "require": requires, "items": items,
    "reading": reading, "weights": weights, "generate": generate,
}  # fmt: skip
IN_ITEMS: dict[str, Callable[[Reader, Mapping], list[Any]]] = {
    "block": block, "graph": block, "mask": definition, "score": definition, "bias": definition,
    "use": used, "require": required,
    **{key: wrapped(key, ITEMS[key]) for key in ("config", "dims", "reading", "weights", "generate")},
}  # fmt: skip
