"""Print a syntax tree as canonical YAML text with its comments."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from specc.diagnostics.diagnostic import Diagnostic, Failed
from specc.diagnostics.source import Source
from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import parse_dsl
from specc.syntax.dsl.dsl_printer import format_dim_name, has_blank_lines_around
from specc.syntax.dsl.expression_printer import format_comment_lines
from specc.syntax.yaml.yaml_config import CONFIG_ENTRIES
from specc.syntax.yaml.yaml_keys import (
    ITEM_CONSTRUCTS,
    REQUIRE_ENTRY,
    USE_ENTRY,
    WEIGHT_RULE_CONSTRUCTS,
    find_construct,
    statement_to_yaml,
)
from specc.syntax.yaml.yaml_layout import (
    YamlItem,
    YamlList,
    YamlMap,
    YamlPair,
    YamlValue,
    expression_to_yaml,
    format_yaml_block,
    format_yaml_flow,
    make_multiline_list,
    make_yaml_list,
    strings_to_yaml,
)
from specc.syntax.yaml.yaml_values import EQUATIONS


def format_yaml(file: ast.File) -> str:
    """Format a spec as canonical YAML."""
    out = format_comment_lines(file.comments.leading, 0)
    out += format_yaml_block(YamlMap(_list_head_pairs(file)), 0)
    previous: ast.Item | None = None
    for run, pair in convert_item_groups(file.items):
        if _needs_blank_line(previous, run[0]):
            out.append("")
        out += format_yaml_block(YamlMap([pair]), 0)
        previous = run[-1]
    if file.end:
        out += ["", *format_comment_lines(file.end, 0)]
    return "\n".join(out) + "\n"


def _needs_blank_line(previous: ast.Item | None, item: ast.Item) -> bool:
    """Return True if a blank line precedes an item."""
    return (
        previous is None
        or item.comments.has_blank_line_before
        or has_blank_lines_around(item)
        or has_blank_lines_around(previous)
    )


def _list_head_pairs(file: ast.File) -> list[YamlPair]:
    """Return the top-level pairs before the items of a spec."""
    head = [
        YamlPair("specc", str(file.version), ast.Comments(trailing=file.comments.trailing)),
        YamlPair("model", file.model),
    ]
    optional = (("doc", file.doc), ("extends", file.extends))
    return head + [YamlPair(key, text) for key, text in optional if text]


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
        key = get_item_key(item)
        if (
            out
            and get_top_key(out[-1][-1]) == get_top_key(item)
            and type(item) not in SECTION_CONVERTERS
            # two items with the same name would be duplicate keys
            and not (key and key in map(get_item_key, out[-1]))
        ):
            out[-1].append(item)
        else:
            out.append([item])
    return out


def get_item_key(item: ast.Item) -> str:
    """Return the key of an item below its top-level key, or "" for an item without a key."""
    match item:
        case ast.Generate():
            return item.name
        case ast.Stream():
            return item.source
    return ""


def partition_items(items: Sequence[ast.Item]) -> tuple[list[ItemRun], ItemRun, list[ItemRun]]:
    """Partition items into groups under top-level keys, items below `items:`, and further groups
    under top-level keys.
    """
    remaining = group_neighbors(items)
    used = {"items"}
    first: list[ItemRun] = []
    last: list[ItemRun] = []
    # a top-level key can occur only once: repeated items go into `items:`
    while remaining and get_top_key(remaining[0][0]) not in used:
        used.add(get_top_key(remaining[0][0]))
        first.append(remaining.pop(0))
    while remaining and get_top_key(remaining[-1][0]) not in used:
        used.add(get_top_key(remaining[-1][0]))
        last.insert(0, remaining.pop())
    return first, [item for run in remaining for item in run], last


def convert_item_groups(items: Sequence[ast.Item]) -> Iterator[tuple[ItemRun, YamlPair]]:
    """Yield the items of each top-level key with the YAML pair of this key."""
    first, middle, last = partition_items(items)
    for run in first:
        yield run, item_group_to_yaml(run)
    if middle:
        yield middle, items_to_yaml(middle)
    for run in last:
        yield run, item_group_to_yaml(run)


def item_group_to_yaml(run: ItemRun) -> YamlPair:
    """Convert a top-level key and its items to a YAML pair."""
    match run[0]:
        case ast.Use() | ast.Require():
            listed = YamlList([top_entry_to_yaml(item) for item in run], is_multiline=True)
            return YamlPair(get_top_key(run[0]), listed)
        case ast.Generate() | ast.Stream():
            named = YamlMap([named_item_to_yaml(item) for item in run], is_multiline=True)
            return YamlPair(get_top_key(run[0]), named)
        case _:
            return section_to_yaml(run[0])


def top_entry_to_yaml(item: ast.Item) -> YamlItem:
    """Convert an entry of `use` or `require` to a YAML list item."""
    form = USE_ENTRY if isinstance(item, ast.Use) else REQUIRE_ENTRY
    value: YamlValue = form.to_yaml(item)
    if isinstance(item, ast.Require) and not item.because:
        bare = expression_to_yaml(item.condition)
        value = value if isinstance(bare, YamlMap) else bare
    return YamlItem(value, item.comments)


def named_item_to_yaml(item: ast.Item) -> YamlPair:
    """Convert a `generate` item to e.g. `text: {of: ids, from: logits, stop: eos}`, and a `stream`
    item to e.g. `logits: sound`.
    """
    if isinstance(item, ast.Stream):
        return YamlPair(item.source, item.input_name, item.comments)
    assert isinstance(item, ast.Generate)
    pairs = [YamlPair("of", item.input_name), YamlPair("from", item.source)]
    pairs += [YamlPair(s.name, expression_to_yaml(s.value), s.comments) for s in item.settings]
    return YamlPair(
        item.name, YamlMap(pairs, item.end), item.comments, is_comment_on_first_line=True
    )


def reading_entry_to_yaml(entry: ast.ReadingEntry) -> YamlPair:
    """Convert an entry of the `reading` section to a YAML key-value pair."""
    name = f"show {entry.name}" if isinstance(entry, ast.OutputPostprocessing) else entry.name
    return YamlPair(name, expression_to_yaml(entry.value), entry.comments)


def section_to_yaml(item: ast.Item) -> YamlPair:
    """Convert a top-level key that contains one item to a YAML pair."""
    value = SECTION_CONVERTERS[type(item)](item)
    return YamlPair(
        get_top_key(item),
        value,
        item.comments,
        is_comment_on_first_line=not isinstance(item, ast.Dims),
    )


def make_entries(pairs: list[YamlPair], end: tuple[str, ...]) -> YamlMap:
    """Make a map with one line per entry."""
    return YamlMap(pairs, end, is_multiline=bool(pairs or end))


SECTION_CONVERTERS: Mapping[type[ast.Node], Callable[..., YamlMap | YamlList]] = {
    ast.Dims: lambda item: make_yaml_list(map(format_dim_name, item.names)),
    ast.Weights: lambda item: make_multiline_list(
        [
            YamlItem(find_construct(WEIGHT_RULE_CONSTRUCTS, r).to_yaml(r), r.comments)
            for r in item.rules
        ],
        item.end,
    ),
    ast.Config: lambda item: make_entries(
        [CONFIG_ENTRIES[type(e)](e) for e in item.entries], item.end
    ),
    ast.Reading: lambda item: make_entries(
        list(map(reading_entry_to_yaml, item.entries)), item.end
    ),
    ast.Quantize: lambda item: make_entries(
        [
            YamlPair(e.name, strings_to_yaml([v.value for v in e.values]), e.comments)
            for e in item.entries
        ],
        item.end,
    ),
}
"""The converters of the top-level keys that contain one item, by AST class."""


def items_to_yaml(run: ItemRun) -> YamlPair:
    """Convert items of different kinds to the YAML key `items`."""
    entries = []
    previous: ast.Item | None = None
    for item in run:
        spaced = previous is not None and (
            has_blank_lines_around(item) or has_blank_lines_around(previous)
        )
        entries.append(listed_item_to_yaml(item, spaced))
        previous = item
    return YamlPair("items", YamlList(entries, is_multiline=True))


def listed_item_to_yaml(item: ast.Item, has_blank_line_above: bool) -> YamlItem:
    """Convert an item to an entry of `items:`."""
    word = item.kind if isinstance(item, ast.Block | ast.Definition) else get_top_key(item)
    if form := ITEM_CONSTRUCTS.get(word):
        return YamlItem(
            form.to_yaml(item),
            item.comments,
            is_comment_on_first_line=form.has_body,
            has_blank_line_above=has_blank_line_above,
        )
    pair = section_to_yaml(item) if type(item) in SECTION_CONVERTERS else item_group_to_yaml([item])
    return YamlItem(YamlMap([pair]), has_blank_line_above=has_blank_line_above)


CODE_SPAN_PATTERN = re.compile(r"`([^`\n]+)`")
PLACEHOLDER = "placeholder_for_ellipsis"
"""The name that replaces `…` while an example is parsed."""
EMPTY_BODY = f"{{ {PLACEHOLDER} = {PLACEHOLDER} }}"
"""The body that replaces `{ … }` while an example is parsed."""
OPTION_PIECE = re.compile(r"([a-z_]+)=([^=\s].*)")
WEIGHTS_PIECE = re.compile(r"(?:… )?@ (\S+)")
TYPED_PIECE = re.compile(r"\w+: (?:int|float|bool|text|list|choice|mask|score|bias|norm)\b")
YAML_PIECE = re.compile(r"\s*[{-]|\w+:\s")


def translate_advice_to_yaml(diagnostic: Diagnostic) -> Diagnostic:
    """Translate the DSL code in the help of a diagnostic about a YAML file to YAML."""
    text = diagnostic.primary.span.text if diagnostic.primary else ""
    in_map = YAML_PIECE.match(text) is not None

    def rewrite_code(advice: str) -> str:
        return CODE_SPAN_PATTERN.sub(
            lambda piece: f"`{rewrite_as_yaml(piece[1], in_map=in_map)}`", advice
        )

    return replace(
        diagnostic,
        notes=tuple(map(rewrite_code, diagnostic.notes)),
        helps=tuple(map(rewrite_code, diagnostic.helps)),
    )


@lru_cache(maxsize=256)
def rewrite_as_yaml(code: str, *, in_map: bool = True) -> str:
    """Rewrite a DSL fragment of a help text in YAML, or return it unchanged if it is equal in both
    syntaxes. If `in_map` is set, the erroneous code is a map, e.g. `{linear: {in: x}}`, so options
    and weight names become entries.
    """
    if option := OPTION_PIECE.fullmatch(code):
        return f"{option[1]}: {option[2]}" if in_map else code
    if in_map and (named := WEIGHTS_PIECE.fullmatch(code)):
        name = named[1].strip('"')
        return f"weights: {name}"
    for text, convert in _embed_in_specs(code):
        try:
            file = parse_dsl(Source("advice", text))
        except Failed:
            continue
        if not _has_only_docstring(file):
            return _format_flow(convert(file))
    return code


def _has_only_docstring(file: ast.File) -> bool:
    """Return True if an embedded fragment is only a string literal, which becomes the docstring of
    the file or block.
    """
    if any(isinstance(item, ast.Block) and not item.body for item in file.items):
        return True
    return not (file.items or file.extends)


FileConverter = Callable[[ast.File], YamlMap | YamlList]


def _embed_in_specs(code: str) -> Iterator[tuple[str, FileConverter]]:
    """Yield complete specs that embed a fragment, each with the function that converts the fragment
    to YAML.
    """
    text = code.replace("{ … }", EMPTY_BODY).replace("…", PLACEHOLDER)
    head = 'specc 1\nmodel m "d"\n'  # its docstring keeps the fragment from being one
    yield f"{head}{text}\n", _convert_items
    if TYPED_PIECE.match(code):
        yield f"{head}config {{ {text} }}\n", _convert_section
    if code.startswith("show "):
        yield f"{head}reading {{ {text} }}\n", _convert_section
    if code.startswith("where "):
        yield f"{head}graph g() -> float[] {text} {EMPTY_BODY}\n", _convert_where
    for body in (text, f"{text} {EMPTY_BODY}"):
        yield f"{head}block f() -> float[] {{ {body} }}\n", _convert_statement


def _convert_items(file: ast.File) -> YamlMap | YamlList:
    """Convert the items of a file; the items below `items:` become a list."""
    pairs = [YamlPair("extends", file.extends)] if file.extends else []
    pairs += [pair for _, pair in convert_item_groups(file.items)]
    only = pairs[0].value
    return only if pairs[0].key == "items" and isinstance(only, YamlList) else YamlMap(pairs)


def _convert_section(file: ast.File) -> YamlMap | YamlList:
    return SECTION_CONVERTERS[type(file.items[0])](file.items[0])


def _convert_where(file: ast.File) -> YamlMap:
    (graph,) = file.items
    assert isinstance(graph, ast.Block)
    return YamlMap([YamlPair("where", EQUATIONS.to_yaml(graph.where) or "")])


def _convert_statement(file: ast.File) -> YamlMap:
    (block,) = file.items
    assert isinstance(block, ast.Block)
    statement = statement_to_yaml(block.body[0]).value
    assert isinstance(statement, YamlMap)
    return statement


def _format_flow(value: YamlMap | YamlList) -> str:
    """Format a value on one line, without the braces of a map with one entry."""
    text = format_yaml_flow(value, is_forced=True) or ""
    if isinstance(value, YamlList):
        text = "- " + text[1:-1]
    elif len(value.pairs) == 1:
        text = text[1:-1]
    text = text.replace(f", {PLACEHOLDER}: {PLACEHOLDER}}}", f", {PLACEHOLDER}}}")  # settings
    for empty in (f"[{{{PLACEHOLDER}: {PLACEHOLDER}}}]", f"{{{PLACEHOLDER}: {PLACEHOLDER}}}"):
        text = text.replace(empty, "[…]" if empty[0] == "[" else "{…}")
    return text.replace(PLACEHOLDER, "…")
