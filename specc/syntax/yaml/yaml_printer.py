"""Print a syntax tree as canonical YAML text with its comments."""

from collections.abc import Sequence
from typing import TypeVar

from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import is_spaced_item, layout_definition_header
from specc.syntax.dsl.expression_printer import print_expression, print_type
from specc.syntax.dsl.line_breaking import join_pieces
from specc.syntax.yaml.yaml_config import IGNORED_KEYS
from specc.syntax.yaml.yaml_statement_printer import (
    YamlItem,
    YamlList,
    YamlMap,
    YamlPair,
    YamlValue,
    block_to_yaml,
    expression_to_yaml,
    print_yaml_block,
    print_yaml_comments,
    require_to_yaml,
)

FIELD_KEYS = {"type", "from", "default", "doc"}
SINGLE_ITEM_KEYS = ("config", "dims", "reading", "weights", "quantize")
"""Top keys that hold one item."""


def print_yaml(file: ast.File) -> str:
    """The text of a spec."""
    out = print_yaml_comments(file.remarks.before, 0)
    head = [
        YamlPair("specc", str(file.version), ast.Comments(behind=file.remarks.behind)),
        YamlPair("model", file.model),
    ]
    further = (("doc", file.doc), ("extends", file.extends))
    head += [YamlPair(key, text) for key, text in further if text]
    out += print_yaml_block(YamlMap(head), 0)
    first, middle, last = partition_items(file.items)
    previous: ast.Item | None = None
    for run in [*first, middle, *last]:
        if not run:
            continue
        if (
            previous is None
            or run[0].remarks.blank_line_before
            or is_spaced_item(run[0])
            or is_spaced_item(previous)
        ):
            out.append("")
        out += print_yaml_block(
            YamlMap([items_to_yaml(run) if run is middle else run_to_yaml(run)]), 0
        )
        previous = run[-1]
    if file.end:
        out += ["", *print_yaml_comments(file.end, 0)]
    return "\n".join(out) + "\n"


ItemRun = list[ast.Item]
T = TypeVar("T")


def get_top_key(item: ast.Item) -> str:
    """The top key that can hold an item."""
    match item:
        case ast.Block() | ast.Definition():
            return "items"
        case _:
            return type(item).__name__.lower()


def group_neighbors(items: Sequence[ast.Item]) -> list[ItemRun]:
    """Neighbors that one top key can hold."""
    out: list[ItemRun] = []
    for item in items:
        last = out[-1][-1] if out else None
        fits = (
            last is not None
            and get_top_key(last) == get_top_key(item)
            and get_top_key(item) not in SINGLE_ITEM_KEYS
        )
        if fits and get_item_key(item):
            # two under one name would be one key twice
            fits = get_item_key(item) not in map(get_item_key, out[-1])
        if fits:
            out[-1].append(item)
        else:
            out.append([item])
    return out


def get_item_key(item: ast.Item) -> str:
    """The key of an item below its top key, where it has one."""
    match item:
        case ast.Generate():
            return item.name
        case ast.Stream():
            return item.source
    return ""


def partition_items(items: Sequence[ast.Item]) -> tuple[list[ItemRun], ItemRun, list[ItemRun]]:
    """Items under top keys of their own, those between them that go into `items:`, and
    more top keys.
    """
    left = group_neighbors(items)
    used = {"items"}
    first: list[ItemRun] = []
    last: list[ItemRun] = []
    # a key can stand only once at the top: what comes again goes into `items:`
    while left and get_top_key(left[0][0]) not in used:
        used.add(get_top_key(left[0][0]))
        first.append(left.pop(0))
    while left and get_top_key(left[-1][0]) not in used:
        used.add(get_top_key(left[-1][0]))
        last.insert(0, left.pop())
    return first, [item for run in left for item in run], last


def use_to_yaml_pairs(key: str, use: ast.Use) -> list[YamlPair]:
    """The keys of a `use`, its file or files under `get_top_key`."""
    pairs = [YamlPair(key, texts_to_yaml(use.paths)), YamlPair("as", use.name)]
    pairs += [YamlPair("from", texts_to_yaml(use.sources))] if use.sources else []
    return pairs + ([YamlPair("under", use.under.text)] if use.under else [])


def texts_to_yaml(texts: Sequence[str]) -> str | YamlList:
    """A text by itself, or several as a list."""
    return texts[0] if len(texts) == 1 else YamlList([YamlItem(text) for text in texts])


def cast_run(run: ItemRun, kind: type[T]) -> list[T]:
    """The items of one kind in a run, which is of that kind."""
    return [item for item in run if isinstance(item, kind)]


def run_to_yaml(run: ItemRun) -> YamlPair:
    """A top key with the items it holds."""
    item = run[0]
    match item:
        case ast.Use():
            uses = cast_run(run, ast.Use)
            entries = [YamlItem(YamlMap(use_to_yaml_pairs("file", u)), u.remarks) for u in uses]
            return YamlPair("use", YamlList(entries, tall=True))
        case ast.Require():
            conditions = [requirement_to_yaml(r) for r in cast_run(run, ast.Require)]
            return YamlPair("require", YamlList(conditions, tall=True))
        case ast.Generate():
            written = [generate_to_yaml(g) for g in cast_run(run, ast.Generate)]
            return YamlPair("generate", YamlMap(written, tall=True))
        case ast.Stream():
            streams = [stream_to_yaml(s) for s in cast_run(run, ast.Stream)]
            return YamlPair("stream", YamlMap(streams, tall=True))
        case ast.Config() | ast.Dims() | ast.Reading() | ast.Weights() | ast.Quantize():
            return section_to_yaml(item)
        case _:
            raise AssertionError("blocks and definitions stand in `items`")


def requirement_to_yaml(node: ast.Require) -> YamlItem:
    """`- {that: c, because: text}`."""
    if not node.because and not isinstance(expression_to_yaml(node.condition), YamlMap):
        return YamlItem(expression_to_yaml(node.condition), node.remarks)
    because = [YamlPair("because", node.because)] if node.because else []
    return YamlItem(
        YamlMap([YamlPair("that", expression_to_yaml(node.condition)), *because]), node.remarks
    )


def generate_to_yaml(node: ast.Generate) -> YamlPair:
    """`text: {of: ids, from: logits, stop: eos}`."""
    pairs = [YamlPair("of", node.growing), YamlPair("from", node.source)]
    pairs += [YamlPair(s.name, expression_to_yaml(s.value), s.remarks) for s in node.settings]
    return YamlPair(node.name, YamlMap(pairs, node.end), node.remarks, headed=True)


def stream_to_yaml(node: ast.Stream) -> YamlPair:
    """`logits: sound`."""
    return YamlPair(node.source, node.growing, node.remarks)


def reading_entry_to_yaml(entry: ast.InputReading | ast.ResultDisplay) -> YamlPair:
    """An entry of `reading`."""
    shows = isinstance(entry, ast.ResultDisplay)
    name = f"show {entry.name}" if shows else entry.name
    return YamlPair(name, expression_to_yaml(entry.value), entry.remarks)


def weights_to_yaml(item: ast.Weights) -> YamlValue:
    """The rules of weights; a map where there are none and only remarks stand there,
    since a list without items has no line of its own.
    """
    if not item.rules and item.end:
        return YamlMap([], item.end, tall=True)
    rules = [YamlItem(weight_rule_to_yaml(r), r.remarks) for r in item.rules]
    return YamlList(rules, item.end, tall=bool(item.rules))


def section_to_yaml(
    item: ast.Config | ast.Dims | ast.Reading | ast.Weights | ast.Quantize,
) -> YamlPair:
    """A key with the one item it holds."""
    match item:
        case ast.Config():
            entries = [config_entry_to_yaml(e) for e in item.entries]
            return YamlPair("config", entries_to_yaml(entries, item.end), item.remarks, headed=True)
        case ast.Dims():
            names = [YamlItem(f"{d.name} >= {d.least}" if d.least else d.name) for d in item.names]
            return YamlPair("dims", YamlList(names), item.remarks)
        case ast.Reading():
            reads = [reading_entry_to_yaml(e) for e in item.entries]
            return YamlPair("reading", entries_to_yaml(reads, item.end), item.remarks, headed=True)
        case ast.Weights():
            return YamlPair("weights", weights_to_yaml(item), item.remarks, headed=True)
        case ast.Quantize():
            return quantize_to_yaml(item)


def quantize_to_yaml(item: ast.Quantize) -> YamlPair:
    """`quantize: {default: int8, keep: [lm_head]}`."""
    words = [
        YamlPair(e.name, texts_to_yaml([v.value for v in e.values]), e.remarks)
        for e in item.entries
    ]
    return YamlPair("quantize", entries_to_yaml(words, item.end), item.remarks, headed=True)


def entries_to_yaml(pairs: list[YamlPair], end: tuple[str, ...]) -> YamlMap:
    """A map with a line for each entry."""
    return YamlMap(pairs, end, tall=bool(pairs or end))


def config_entry_to_yaml(entry: ast.ConfigEntry) -> YamlPair:
    """An entry of `config`."""
    match entry:
        case ast.Field():
            return field_to_yaml(entry)
        case ast.Expect():
            return YamlPair(
                f"expect {entry.key}", YamlList([YamlItem(v) for v in entry.values]), entry.remarks
            )
        case ast.IgnoredKeys():
            return YamlPair(
                IGNORED_KEYS, YamlList([YamlItem(k) for k in entry.keys]), entry.remarks
            )
        case ast.Assign():
            value = static_value_to_yaml(entry.value)
            # a record that looks like a declaration would be read as one
            shown = print_expression(entry.value) if _is_field_like(value) else value
            return YamlPair(entry.name, shown, entry.remarks)


def _is_field_like(value: YamlValue) -> bool:
    names = {p.key for p in value.pairs} if isinstance(value, YamlMap) else set()
    return "type" in names and names <= FIELD_KEYS


def field_to_yaml(node: ast.Field) -> YamlPair:
    """`d: {type: int, from: hidden_size, default: 768, doc: width}`."""
    pairs = [YamlPair("type", field_type_to_yaml(node.type))]
    if node.sources:
        pairs.append(
            YamlPair("from", texts_to_yaml([config_path_to_yaml(s) for s in node.sources]))
        )
    if node.default is not None:
        pairs.append(YamlPair("default", static_value_to_yaml(node.default)))
    if node.doc:
        pairs.append(YamlPair("doc", node.doc))
    return YamlPair(node.name, YamlMap(pairs), node.remarks, headed=bool(node.type.fields))


def field_type_to_yaml(kind: ast.TypeName) -> YamlValue:
    """A type as text, a record as a map of its fields."""
    if kind.name != "record" or kind.optional or not kind.fields:
        return print_type(kind)
    return YamlMap([YamlPair("record", YamlMap([field_to_yaml(f) for f in kind.fields]))])


def config_path_to_yaml(expr: ast.Expr) -> str:
    """A path in config.json bare, anything else as the language writes it."""
    if not isinstance(expr, ast.TextLiteral):
        return print_expression(expr)
    text = expr.value
    # what is empty, begins with a quote or looks like a call would be read otherwise
    bare = text and not text.startswith('"') and "(" not in text
    return text if bare else print_expression(expr)


def static_value_to_yaml(expr: ast.Expr) -> YamlValue:
    """A config value: records are maps."""
    match expr:
        case ast.RecordLiteral():
            return YamlMap([YamlPair(f.name, static_value_to_yaml(f.value)) for f in expr.fields])
        case ast.ListLiteral():
            return YamlList([YamlItem(static_value_to_yaml(e)) for e in expr.items])
        case _:
            return print_expression(expr)


def weight_rule_to_yaml(
    rule: ast.WeightsFrom | ast.Tie | ast.Load | ast.Ignore | ast.Share,
) -> YamlMap:
    """A rule of `weights`."""
    match rule:
        case ast.WeightsFrom():
            return YamlMap([YamlPair("from", rule.path)])
        case ast.Tie():
            to = YamlPair("to", rule.source.text)
            return YamlMap(
                [YamlPair("tie", rule.name.text), to, *_condition_to_yaml(rule.condition)]
            )
        case ast.Load():
            how = YamlPair("as", expression_to_yaml(rule.value))
            return YamlMap(
                [YamlPair("load", rule.name.text), how, *_condition_to_yaml(rule.condition)]
            )
        case ast.Ignore():
            return YamlMap(
                [YamlPair("ignore", rule.name.text), *_condition_to_yaml(rule.condition)]
            )
        case ast.Share():
            return YamlMap([YamlPair("share", rule.name.text), *_condition_to_yaml(rule.condition)])


def _condition_to_yaml(condition: ast.Expr | None) -> list[YamlPair]:
    """When a rule holds, where that is not always."""
    return [] if condition is None else [YamlPair("when", expression_to_yaml(condition))]


# --- what stands in `items:` and `do:` ------------------------------------------------


def items_to_yaml(run: ItemRun) -> YamlPair:
    """`items:` with anything in it."""
    entries = []
    previous: ast.Item | None = None
    for item in run:
        apart = previous is not None and (is_spaced_item(item) or is_spaced_item(previous))
        entries.append(listed_item_to_yaml(item, apart))
        previous = item
    return YamlPair("items", YamlList(entries, tall=True))


def listed_item_to_yaml(item: ast.Item, apart: bool) -> YamlItem:
    """An entry of `items:`."""
    match item:
        case ast.Block():
            return YamlItem(block_to_yaml(item), item.remarks, headed=True, apart=apart)
        case ast.Definition():
            pairs = [YamlPair(item.kind, join_pieces(layout_definition_header(item)))]
            pairs += [YamlPair("doc", item.doc)] if item.doc else []
            pairs.append(YamlPair("is", expression_to_yaml(item.value)))
            return YamlItem(YamlMap(pairs, tall=True), item.remarks, apart=apart)
        case ast.Use():
            return YamlItem(YamlMap(use_to_yaml_pairs("use", item)), item.remarks, apart=apart)
        case ast.Require():
            return YamlItem(require_to_yaml(item), item.remarks, apart=apart)
        case ast.Generate():
            inner = YamlMap([generate_to_yaml(item)], tall=True)
            return YamlItem(YamlMap([YamlPair("generate", inner)]), ast.NO_COMMENTS, apart=apart)
        case ast.Stream():
            inner = YamlMap([stream_to_yaml(item)], tall=True)
            return YamlItem(YamlMap([YamlPair("stream", inner)]), ast.NO_COMMENTS, apart=apart)
        case _:
            pair = section_to_yaml(item)
            return YamlItem(YamlMap([pair]), ast.NO_COMMENTS, apart=apart)
