"""Tree → canonical YAML text. Reading it gives the same tree, comments and all."""

from collections.abc import Sequence
from typing import TypeVar

from specc.lang import tree
from specc.lang.dsl.layout import flat
from specc.lang.dsl.write import definition_head, large
from specc.lang.dsl.write_expression import one_line, type_text
from specc.lang.yaml.config import UNREAD
from specc.lang.yaml.layout import Item, List, Map, Pair, Value, block, comments
from specc.lang.yaml.write_statement import block_map, expression, require

FIELD = {"type", "from", "default", "doc"}
SINGLE = ("config", "dims", "reading", "weights", "quantize")
"""Top keys that hold one item."""


def write_yaml(file: tree.File) -> str:
    """The text of a spec."""
    out = comments(file.remarks.before, 0)
    head = [
        Pair("specc", str(file.version), tree.Remarks(behind=file.remarks.behind)),
        Pair("model", file.model),
    ]
    further = (("doc", file.doc), ("extends", file.extends))
    head += [Pair(key, text) for key, text in further if text]
    out += block(Map(head), 0)
    first, middle, last = grouped(file.items)
    previous: tree.Item | None = None
    for run in [*first, middle, *last]:
        if not run:
            continue
        if previous is None or run[0].remarks.gap or large(run[0]) or large(previous):
            out.append("")
        out += block(Map([items_pair(run) if run is middle else top(run)]), 0)
        previous = run[-1]
    if file.end:
        out += ["", *comments(file.end, 0)]
    return "\n".join(out) + "\n"


Run = list[tree.Item]
T = TypeVar("T")


def key(item: tree.Item) -> str:
    """The top key that can hold an item."""
    match item:
        case tree.Block() | tree.Definition():
            return "items"
        case _:
            return type(item).__name__.lower()


def runs(items: Sequence[tree.Item]) -> list[Run]:
    """Neighbors that one top key can hold."""
    out: list[Run] = []
    for item in items:
        last = out[-1][-1] if out else None
        fits = last is not None and key(last) == key(item) and key(item) not in SINGLE
        if fits and named(item):
            # two under one name would be one key twice
            fits = named(item) not in map(named, out[-1])
        if fits:
            out[-1].append(item)
        else:
            out.append([item])
    return out


def named(item: tree.Item) -> str:
    """The key of an item below its top key, where it has one."""
    match item:
        case tree.Generate():
            return item.name
        case tree.Stream():
            return item.source
    return ""


def grouped(items: Sequence[tree.Item]) -> tuple[list[Run], Run, list[Run]]:
    """Items under top keys of their own, those between them that go into `items:`, and
    more top keys.
    """
    left = runs(items)
    used = {"items"}
    first: list[Run] = []
    last: list[Run] = []
    # a key can stand only once at the top: what comes again goes into `items:`
    while left and key(left[0][0]) not in used:
        used.add(key(left[0][0]))
        first.append(left.pop(0))
    while left and key(left[-1][0]) not in used:
        used.add(key(left[-1][0]))
        last.insert(0, left.pop())
    return first, [item for run in left for item in run], last


def used(key: str, use: tree.Use) -> list[Pair]:
    """The keys of a `use`, its file or files under `key`."""
    pairs = [Pair(key, one_or_list(use.paths)), Pair("as", use.name)]
    pairs += [Pair("from", one_or_list(use.sources))] if use.sources else []
    return pairs + ([Pair("under", use.under.text)] if use.under else [])


def one_or_list(texts: Sequence[str]) -> str | List:
    """A text by itself, or several as a list."""
    return texts[0] if len(texts) == 1 else List([Item(text) for text in texts])


def of_kind(run: Run, kind: type[T]) -> list[T]:
    """The items of one kind in a run, which is of that kind."""
    return [item for item in run if isinstance(item, kind)]


def top(run: Run) -> Pair:
    """A top key with the items it holds."""
    item = run[0]
    match item:
        case tree.Use():
            uses = of_kind(run, tree.Use)
            entries = [Item(Map(used("file", u)), u.remarks) for u in uses]
            return Pair("use", List(entries, tall=True))
        case tree.Require():
            conditions = [requirement(r) for r in of_kind(run, tree.Require)]
            return Pair("require", List(conditions, tall=True))
        case tree.Generate():
            written = [generate(g) for g in of_kind(run, tree.Generate)]
            return Pair("generate", Map(written, tall=True))
        case tree.Stream():
            streams = [stream(s) for s in of_kind(run, tree.Stream)]
            return Pair("stream", Map(streams, tall=True))
        case (
            tree.Config()
            | tree.Dims()
            | tree.Reading()
            | tree.Weights()
            | tree.Quantize()
        ):
            return single(item)
        case _:
            raise AssertionError("blocks and definitions stand in `items`")


def requirement(node: tree.Require) -> Item:
    """`- {that: c, because: text}`."""
    if not node.because and not isinstance(expression(node.condition), Map):
        return Item(expression(node.condition), node.remarks)
    because = [Pair("because", node.because)] if node.because else []
    return Item(Map([Pair("that", expression(node.condition)), *because]), node.remarks)


def generate(node: tree.Generate) -> Pair:
    """`text: {of: ids, from: logits, stop: eos}`."""
    pairs = [Pair("of", node.growing), Pair("from", node.source)]
    pairs += [Pair(s.name, expression(s.value), s.remarks) for s in node.settings]
    return Pair(node.name, Map(pairs, node.end), node.remarks, headed=True)


def stream(node: tree.Stream) -> Pair:
    """`logits: sound`."""
    return Pair(node.source, node.growing, node.remarks)


def read(entry: tree.Reads | tree.Shows) -> Pair:
    """An entry of `reading`."""
    shows = isinstance(entry, tree.Shows)
    name = f"show {entry.name}" if shows else entry.name
    return Pair(name, expression(entry.value), entry.remarks)


def weight_rules(item: tree.Weights) -> Value:
    """The rules of weights; a map where there are none and only remarks stand there,
    since a list without items has no line of its own.
    """
    if not item.rules and item.end:
        return Map([], item.end, tall=True)
    rules = [Item(weight_rule(r), r.remarks) for r in item.rules]
    return List(rules, item.end, tall=bool(item.rules))


def single(
    item: tree.Config | tree.Dims | tree.Reading | tree.Weights | tree.Quantize,
) -> Pair:
    """A key with the one item it holds."""
    match item:
        case tree.Config():
            entries = [config_pair(e) for e in item.entries]
            return Pair("config", body(entries, item.end), item.remarks, headed=True)
        case tree.Dims():
            names = [
                Item(f"{d.name} >= {d.least}" if d.least else d.name)
                for d in item.names
            ]
            return Pair("dims", List(names), item.remarks)
        case tree.Reading():
            reads = [read(e) for e in item.entries]
            return Pair("reading", body(reads, item.end), item.remarks, headed=True)
        case tree.Weights():
            return Pair("weights", weight_rules(item), item.remarks, headed=True)
        case tree.Quantize():
            return quantized(item)


def quantized(item: tree.Quantize) -> Pair:
    """`quantize: {default: int8, keep: [lm_head]}`."""
    words = [
        Pair(e.name, one_or_list([v.value for v in e.values]), e.remarks)
        for e in item.entries
    ]
    return Pair("quantize", body(words, item.end), item.remarks, headed=True)


def body(pairs: list[Pair], end: tuple[str, ...]) -> Map:
    """A map with a line for each entry."""
    return Map(pairs, end, tall=bool(pairs or end))


def config_pair(entry: tree.ConfigEntry) -> Pair:
    """An entry of `config`."""
    match entry:
        case tree.Field():
            return field_pair(entry)
        case tree.Expect():
            return Pair(
                f"expect {entry.key}",
                List([Item(v) for v in entry.values]),
                entry.remarks,
            )
        case tree.Unread():
            return Pair(UNREAD, List([Item(k) for k in entry.keys]), entry.remarks)
        case tree.Assign():
            value = static(entry.value)
            # a record that looks like a declaration would be read as one
            shown = one_line(entry.value) if _looks_declared(value) else value
            return Pair(entry.name, shown, entry.remarks)


def _looks_declared(value: Value) -> bool:
    names = {p.key for p in value.pairs} if isinstance(value, Map) else set()
    return "type" in names and names <= FIELD


def field_pair(node: tree.Field) -> Pair:
    """`d: {type: int, from: hidden_size, default: 768, doc: width}`."""
    pairs = [Pair("type", field_type(node.type))]
    if node.sources:
        pairs.append(Pair("from", one_or_list([source(s) for s in node.sources])))
    if node.default is not None:
        pairs.append(Pair("default", static(node.default)))
    if node.doc:
        pairs.append(Pair("doc", node.doc))
    return Pair(node.name, Map(pairs), node.remarks, headed=bool(node.type.fields))


def field_type(kind: tree.TypeName) -> Value:
    """A type as text, a record as a map of its fields."""
    if kind.name != "record" or kind.optional or not kind.fields:
        return type_text(kind)
    return Map([Pair("record", Map([field_pair(f) for f in kind.fields]))])


def source(expr: tree.Expr) -> str:
    """A path in config.json bare, anything else as the language writes it."""
    if not isinstance(expr, tree.Text):
        return one_line(expr)
    text = expr.value
    # what is empty, begins with a quote or looks like a call would be read otherwise
    bare = text and not text.startswith('"') and "(" not in text
    return text if bare else one_line(expr)


def static(expr: tree.Expr) -> Value:
    """A config value: records are maps."""
    match expr:
        case tree.RecordOf():
            return Map([Pair(f.name, static(f.value)) for f in expr.fields])
        case tree.ListOf():
            return List([Item(static(e)) for e in expr.items])
        case _:
            return one_line(expr)


def weight_rule(
    rule: tree.From | tree.Tie | tree.Load | tree.Ignore | tree.Share,
) -> Map:
    """A rule of `weights`."""
    match rule:
        case tree.From():
            return Map([Pair("from", rule.path)])
        case tree.Tie():
            to = Pair("to", rule.source.text)
            return Map([Pair("tie", rule.name.text), to, *_when(rule.condition)])
        case tree.Load():
            how = Pair("as", expression(rule.value))
            return Map([Pair("load", rule.name.text), how, *_when(rule.condition)])
        case tree.Ignore():
            return Map([Pair("ignore", rule.name.text), *_when(rule.condition)])
        case tree.Share():
            return Map([Pair("share", rule.name.text), *_when(rule.condition)])


def _when(condition: tree.Expr | None) -> list[Pair]:
    """When a rule holds, where that is not always."""
    return [] if condition is None else [Pair("when", expression(condition))]


# --- what stands in `items:` and `do:` ------------------------------------------------


def items_pair(run: Run) -> Pair:
    """`items:` with anything in it."""
    entries = []
    previous: tree.Item | None = None
    for item in run:
        apart = previous is not None and (large(item) or large(previous))
        entries.append(listed(item, apart))
        previous = item
    return Pair("items", List(entries, tall=True))


def listed(item: tree.Item, apart: bool) -> Item:
    """An entry of `items:`."""
    match item:
        case tree.Block():
            return Item(block_map(item), item.remarks, headed=True, apart=apart)
        case tree.Definition():
            pairs = [Pair(item.kind, flat(definition_head(item)))]
            pairs += [Pair("doc", item.doc)] if item.doc else []
            pairs.append(Pair("is", expression(item.value)))
            return Item(Map(pairs, tall=True), item.remarks, apart=apart)
        case tree.Use():
            return Item(Map(used("use", item)), item.remarks, apart=apart)
        case tree.Require():
            return Item(require(item), item.remarks, apart=apart)
        case tree.Generate():
            inner = Map([generate(item)], tall=True)
            return Item(Map([Pair("generate", inner)]), tree.NONE, apart=apart)
        case tree.Stream():
            inner = Map([stream(item)], tall=True)
            return Item(Map([Pair("stream", inner)]), tree.NONE, apart=apart)
        case _:
            pair = single(item)
            return Item(Map([pair]), tree.NONE, apart=apart)
