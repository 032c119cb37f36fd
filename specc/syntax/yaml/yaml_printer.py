"""Print a syntax tree as canonical YAML text with its comments."""

from collections.abc import Callable, Mapping, Sequence

from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import is_spaced_item, layout_dim_name
from specc.syntax.yaml.yaml_config import CONFIG_ENTRIES
from specc.syntax.yaml.yaml_forms import (
    ITEM_FORMS,
    REQUIRE_ENTRY,
    USE_ENTRY,
    WEIGHT_RULE_FORMS,
    find_form,
)
from specc.syntax.yaml.yaml_layout import (
    YamlItem,
    YamlList,
    YamlMap,
    YamlPair,
    YamlValue,
    expression_to_yaml,
    make_tall_list,
    make_yaml_list,
    print_yaml_block,
    print_yaml_comments,
    texts_to_yaml,
)


def print_yaml(file: ast.File) -> str:
    """Print a spec."""
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


def get_top_key(item: ast.Item) -> str:
    """Return the top-level key of an item."""
    match item:
        case ast.Block() | ast.Definition():
            return "items"
        case _:
            return type(item).__name__.lower()


def group_neighbors(items: Sequence[ast.Item]) -> list[ItemRun]:
    """Group adjacent items that share a top-level key."""
    out: list[ItemRun] = []
    for item in items:
        last = out[-1][-1] if out else None
        fits = (
            last is not None
            and get_top_key(last) == get_top_key(item)
            and type(item) not in SECTION_CONVERTERS
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
    """Return the key of an item below its top-level key, if it has one."""
    match item:
        case ast.Generate():
            return item.name
        case ast.Stream():
            return item.source
    return ""


def partition_items(items: Sequence[ast.Item]) -> tuple[list[ItemRun], ItemRun, list[ItemRun]]:
    """Partition items into those under top-level keys, those between them for `items:`, and more
    top-level keys.
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


def run_to_yaml(run: ItemRun) -> YamlPair:
    """Convert a top-level key with its items."""
    match run[0]:
        case ast.Use() | ast.Require():
            listed = YamlList([top_entry_to_yaml(item) for item in run], tall=True)
            return YamlPair(get_top_key(run[0]), listed)
        case ast.Generate() | ast.Stream():
            named = YamlMap([named_item_to_yaml(item) for item in run], tall=True)
            return YamlPair(get_top_key(run[0]), named)
        case _:
            return section_to_yaml(run[0])


def top_entry_to_yaml(item: ast.Item) -> YamlItem:
    """Convert an entry of `use` or `require`."""
    form = USE_ENTRY if isinstance(item, ast.Use) else REQUIRE_ENTRY
    value: YamlValue = form.show(item)
    if isinstance(item, ast.Require) and not item.because:
        bare = expression_to_yaml(item.condition)
        value = value if isinstance(bare, YamlMap) else bare
    return YamlItem(value, item.remarks)


def named_item_to_yaml(item: ast.Item) -> YamlPair:
    """Convert to `text: {of: ids, from: logits, stop: eos}` of `generate`, `logits: sound` of
    `stream`.
    """
    if isinstance(item, ast.Stream):
        return YamlPair(item.source, item.growing, item.remarks)
    assert isinstance(item, ast.Generate)
    pairs = [YamlPair("of", item.growing), YamlPair("from", item.source)]
    pairs += [YamlPair(s.name, expression_to_yaml(s.value), s.remarks) for s in item.settings]
    return YamlPair(item.name, YamlMap(pairs, item.end), item.remarks, headed=True)


def reading_entry_to_yaml(entry: ast.ReadingEntry) -> YamlPair:
    """Convert an entry of `reading`."""
    shows = isinstance(entry, ast.ResultDisplay)
    name = f"show {entry.name}" if shows else entry.name
    return YamlPair(name, expression_to_yaml(entry.value), entry.remarks)


def section_to_yaml(item: ast.Item) -> YamlPair:
    """Convert a key with its single item."""
    value = SECTION_CONVERTERS[type(item)](item)
    return YamlPair(get_top_key(item), value, item.remarks, headed=not isinstance(item, ast.Dims))


def make_entries(pairs: list[YamlPair], end: tuple[str, ...]) -> YamlMap:
    """Make a map with a line per entry."""
    return YamlMap(pairs, end, tall=bool(pairs or end))


SECTION_CONVERTERS: Mapping[type[ast.Node], Callable[..., YamlMap | YamlList]] = {
    ast.Dims: lambda item: make_yaml_list(map(layout_dim_name, item.names)),
    ast.Weights: lambda item: make_tall_list(
        [YamlItem(find_form(WEIGHT_RULE_FORMS, r).show(r), r.remarks) for r in item.rules], item.end
    ),
    ast.Config: lambda item: make_entries(
        [CONFIG_ENTRIES[type(e)](e) for e in item.entries], item.end
    ),
    ast.Reading: lambda item: make_entries(
        list(map(reading_entry_to_yaml, item.entries)), item.end
    ),
    ast.Quantize: lambda item: make_entries(
        [
            YamlPair(e.name, texts_to_yaml([v.value for v in e.values]), e.remarks)
            for e in item.entries
        ],
        item.end,
    ),
}
"""Converters of the keys that hold one item."""


# --- what stands in `items:` ----------------------------------------------------------


def items_to_yaml(run: ItemRun) -> YamlPair:
    """Convert mixed items to `items:`."""
    entries = []
    previous: ast.Item | None = None
    for item in run:
        apart = previous is not None and (is_spaced_item(item) or is_spaced_item(previous))
        entries.append(listed_item_to_yaml(item, apart))
        previous = item
    return YamlPair("items", YamlList(entries, tall=True))


def listed_item_to_yaml(item: ast.Item, apart: bool) -> YamlItem:
    """Convert an entry of `items:`."""
    word = item.kind if isinstance(item, ast.Block | ast.Definition) else get_top_key(item)
    if form := ITEM_FORMS.get(word):
        return YamlItem(form.show(item), item.remarks, headed=form.has_body, apart=apart)
    pair = section_to_yaml(item) if type(item) in SECTION_CONVERTERS else run_to_yaml([item])
    return YamlItem(YamlMap([pair]), apart=apart)
