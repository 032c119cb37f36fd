"""Print a syntax tree with its comments as canonical YAML text."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from specc.diagnostics.diagnostic import Diagnostic, Source, SpeccError
from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import parse_dsl
from specc.syntax.dsl.dsl_printer import has_blank_lines_around
from specc.syntax.dsl.expression_printer import format_comment_lines, format_parts, join_pieces
from specc.syntax.yaml.yaml_emitter import (
    CONFIG_ENTRIES,
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
from specc.syntax.yaml.yaml_keys import (
    ITEM_SCHEMAS,
    REQUIRE_ENTRY,
    USE_ENTRY,
    WEIGHT_RULE_SCHEMAS,
    find_node_schema,
    statement_to_yaml,
)
from specc.syntax.yaml.yaml_values import EQUATIONS, parameter_to_yaml


def format_yaml(file: ast.File) -> str:
    """Format a spec as canonical YAML."""
    lines = format_comment_lines(file.comments.leading, 0)
    lines += format_yaml_block(YamlMap(_list_head_pairs(file)), 0)
    previous: ast.Item | None = None
    for group, pair in item_groups_to_yaml(file.items):
        if _has_blank_line_before(previous, group[0]):
            lines.append("")
        lines += format_yaml_block(YamlMap([pair]), 0)
        previous = group[-1]
    if file.end_comments:
        lines += ["", *format_comment_lines(file.end_comments, 0)]
    return "\n".join(lines) + "\n"


def _has_blank_line_before(previous: ast.Item | None, item: ast.Item) -> bool:
    """Return True if an item is printed with a blank line before it."""
    return (
        previous is None
        or item.comments.has_blank_line_before
        or has_blank_lines_around(item)
        or has_blank_lines_around(previous)
    )


def _list_head_pairs(file: ast.File) -> list[YamlPair]:
    """Return the `key: value` pairs of a spec's header."""
    pairs = [
        YamlPair("specc", str(file.version), ast.Comments(trailing=file.comments.trailing)),
        YamlPair("model", file.model),
    ]
    optional_pairs = (("doc", file.doc), ("extends", file.extends))
    return pairs + [YamlPair(key, text) for key, text in optional_pairs if text]


ItemGroup = list[ast.Item]


def get_top_level_key(item: ast.Item) -> str:
    """Return the top-level YAML key of an item."""
    return TOP_LEVEL_KEYS.get(type(item), "items")


TOP_LEVEL_KEYS: Mapping[type[ast.Node], str] = {
    ast.UseStatement: "use",
    ast.ConfigSection: "config",
    ast.DimsSection: "dims",
    ast.InputsSection: "inputs",
    ast.RequireStatement: "require",
    ast.PreprocessingSection: "reading",
    ast.WeightsSection: "weights",
    ast.GenerateSection: "generate",
    ast.QuantizeSection: "quantize",
    ast.StreamSection: "stream",
}
"""The top-level YAML key of each item class. All other items are entries of `items`."""


def group_adjacent_items(items: Sequence[ast.Item]) -> list[ItemGroup]:
    """Group adjacent items that share a top-level key."""
    groups: list[ItemGroup] = []
    for item in items:
        key = get_item_key(item)
        if (
            groups
            and get_top_level_key(groups[-1][-1]) == get_top_level_key(item)
            and type(item) not in SECTION_CONVERTERS
            # two items with the same name would become duplicate keys
            and not (key and key in map(get_item_key, groups[-1]))
        ):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def get_item_key(item: ast.Item) -> str:
    """Return the key of an item below its top-level key, or "" for an item without a key."""
    match item:
        case ast.GenerateSection():
            return item.name
        case ast.StreamSection():
            return item.output_name
    return ""


def partition_top_level_items(
    items: Sequence[ast.Item],
) -> tuple[list[ItemGroup], ItemGroup, list[ItemGroup]]:
    """Partition items into leading top-level keys, entries of `items:`, and trailing keys."""
    remaining = group_adjacent_items(items)
    used_keys = {"items"}
    first_groups: list[ItemGroup] = []
    last_groups: list[ItemGroup] = []
    # a top-level key can occur only once, so other items of its kind are printed below `items:`
    while remaining and get_top_level_key(remaining[0][0]) not in used_keys:
        used_keys.add(get_top_level_key(remaining[0][0]))
        first_groups.append(remaining.pop(0))
    while remaining and get_top_level_key(remaining[-1][0]) not in used_keys:
        used_keys.add(get_top_level_key(remaining[-1][0]))
        last_groups.insert(0, remaining.pop())
    return first_groups, [item for group in remaining for item in group], last_groups


def item_groups_to_yaml(items: Sequence[ast.Item]) -> Iterator[tuple[ItemGroup, YamlPair]]:
    """Yield the items of each top-level key, and the `key: value` pair of the key."""
    first_groups, listed_items, last_groups = partition_top_level_items(items)
    for group in first_groups:
        yield group, item_group_to_yaml(group)
    if listed_items:
        yield listed_items, items_to_yaml(listed_items)
    for group in last_groups:
        yield group, item_group_to_yaml(group)


def item_group_to_yaml(group: ItemGroup) -> YamlPair:
    """Convert a top-level key and its items to a YAML pair."""
    match group[0]:
        case ast.UseStatement() | ast.RequireStatement():
            entries = YamlList([section_entry_to_yaml(item) for item in group], is_multiline=True)
            return YamlPair(get_top_level_key(group[0]), entries)
        case ast.GenerateSection() | ast.StreamSection():
            named_entries = YamlMap(
                [output_section_to_yaml(item) for item in group], is_multiline=True
            )
            return YamlPair(get_top_level_key(group[0]), named_entries)
        case _:
            return section_to_yaml(group[0])


def section_entry_to_yaml(item: ast.Item) -> YamlItem:
    """Convert an entry of `use` or `require` to a YAML list item."""
    schema = USE_ENTRY if isinstance(item, ast.UseStatement) else REQUIRE_ENTRY
    value: YamlValue = schema.to_yaml(item)
    if isinstance(item, ast.RequireStatement) and not item.because:
        condition = expression_to_yaml(item.condition)
        value = value if isinstance(condition, YamlMap) else condition
    return YamlItem(value, item.comments)


def output_section_to_yaml(item: ast.Item) -> YamlPair:
    """Convert `generate` to `text: {of: ids, from: logits}`, and `stream` to `logits: audio`."""
    if isinstance(item, ast.StreamSection):
        return YamlPair(item.output_name, item.input_name, item.comments)
    assert isinstance(item, ast.GenerateSection)
    pairs = [YamlPair("of", item.input_name), YamlPair("from", item.output_name)]
    pairs += [YamlPair(s.name, expression_to_yaml(s.value), s.comments) for s in item.settings]
    return YamlPair(
        item.name, YamlMap(pairs, item.end_comments), item.comments, is_comment_on_first_line=True
    )


def preprocessing_to_yaml(entry: ast.ReadingEntry) -> YamlPair:
    """Convert an entry of the `reading` section to a YAML key-value pair."""
    name = f"show {entry.name}" if isinstance(entry, ast.OutputPostprocessing) else entry.name
    return YamlPair(name, expression_to_yaml(entry.value), entry.comments)


def section_to_yaml(item: ast.Item) -> YamlPair:
    """Convert an item with a separate top-level key to a YAML pair."""
    value = SECTION_CONVERTERS[type(item)](item)
    return YamlPair(
        get_top_level_key(item),
        value,
        item.comments,
        is_comment_on_first_line=not isinstance(item, ast.DimsSection),
    )


def input_declaration_to_yaml(node: ast.InputDecl) -> YamlPair:
    """Convert an entry of `inputs` to YAML."""
    pair = parameter_to_yaml(ast.BlockParameter(node.name, node.type, node.default))
    return replace(pair, comments=node.comments)


def make_multiline_map(pairs: list[YamlPair], end_comments: tuple[str, ...]) -> YamlMap:
    """Return a map with one line per entry. An empty map without comments is printed as `{}`."""
    return YamlMap(pairs, end_comments, is_multiline=bool(pairs or end_comments))


SECTION_CONVERTERS: Mapping[type[ast.Node], Callable[..., YamlMap | YamlList]] = {
    ast.DimsSection: lambda item: make_yaml_list(join_pieces(format_parts(d)) for d in item.dims),
    ast.WeightsSection: lambda item: make_multiline_list(
        [
            YamlItem(find_node_schema(WEIGHT_RULE_SCHEMAS, r).to_yaml(r), r.comments)
            for r in item.rules
        ],
        item.end_comments,
    ),
    ast.ConfigSection: lambda item: make_multiline_map(
        [CONFIG_ENTRIES[type(e)](e) for e in item.entries], item.end_comments
    ),
    ast.InputsSection: lambda item: make_multiline_map(
        list(map(input_declaration_to_yaml, item.entries)), item.end_comments
    ),
    ast.PreprocessingSection: lambda item: make_multiline_map(
        list(map(preprocessing_to_yaml, item.entries)), item.end_comments
    ),
    ast.QuantizeSection: lambda item: make_multiline_map(
        [
            YamlPair(e.name, strings_to_yaml([v.value for v in e.values]), e.comments)
            for e in item.entries
        ],
        item.end_comments,
    ),
}
"""The functions that convert items with their own top-level key to YAML, keyed by AST class."""


def items_to_yaml(items: ItemGroup) -> YamlPair:
    """Convert items to the YAML key `items` with a list in source order."""
    entries = []
    previous: ast.Item | None = None
    for item in items:
        has_blank_line = previous is not None and (
            has_blank_lines_around(item) or has_blank_lines_around(previous)
        )
        entries.append(list_item_to_yaml(item, has_blank_line))
        previous = item
    return YamlPair("items", YamlList(entries, is_multiline=True))


def list_item_to_yaml(item: ast.Item, has_blank_line_before: bool) -> YamlItem:
    """Convert an item to an entry of `items:`."""
    keyword = (
        item.kind if isinstance(item, ast.Block | ast.AttentionDef) else get_top_level_key(item)
    )
    if schema := ITEM_SCHEMAS.get(keyword):
        return YamlItem(
            schema.to_yaml(item),
            item.comments,
            is_comment_on_first_line=schema.has_body,
            has_blank_line_before=has_blank_line_before,
        )
    pair = section_to_yaml(item) if type(item) in SECTION_CONVERTERS else item_group_to_yaml([item])
    return YamlItem(YamlMap([pair]), has_blank_line_before=has_blank_line_before)


CODE_SPAN_PATTERN = re.compile(r"`([^`\n]+)`")
PLACEHOLDER = "placeholder_for_ellipsis"
"""The name that replaces `…` while a code fragment is parsed."""
EMPTY_BODY = f"{{ {PLACEHOLDER} = {PLACEHOLDER} }}"
"""The body that replaces `{ … }` while a code fragment is parsed."""
OPTION_PIECE = re.compile(r"([a-z_]+)=([^=\s].*)")
WEIGHTS_PIECE = re.compile(r"(?:… )?@ (\S+)")
TYPED_PIECE = re.compile(r"\w+: (?:int|float|bool|text|list|choice|mask|score|bias|norm)\b")
YAML_PIECE = re.compile(r"\s*[{-]|\w+:\s")


def convert_help_to_yaml(diagnostic: Diagnostic) -> Diagnostic:
    """Translate the DSL code in a diagnostic's notes and help messages to YAML."""
    text = diagnostic.primary.span.text if diagnostic.primary else ""
    is_in_map = YAML_PIECE.match(text) is not None

    def rewrite_code(advice: str) -> str:
        return CODE_SPAN_PATTERN.sub(
            lambda piece: f"`{rewrite_dsl_as_yaml(piece[1], is_in_map=is_in_map)}`", advice
        )

    return replace(
        diagnostic,
        notes=tuple(map(rewrite_code, diagnostic.notes)),
        helps=tuple(map(rewrite_code, diagnostic.helps)),
    )


@lru_cache(maxsize=256)
def rewrite_dsl_as_yaml(code: str, *, is_in_map: bool = True) -> str:
    """Rewrite a DSL fragment in a help message as YAML. Return the fragment unchanged if it is not
    DSL code. If `is_in_map` is True, the erroneous code is a map such as `{linear: {in: x}}`.
    Options and weight paths then become map entries.
    """
    if option := OPTION_PIECE.fullmatch(code):
        return f"{option[1]}: {option[2]}" if is_in_map else code
    if is_in_map and (match := WEIGHTS_PIECE.fullmatch(code)):
        name = match[1].strip('"')
        return f"weights: {name}"
    for text, convert in _embed_in_specs(code):
        try:
            file = parse_dsl(Source("advice", text))
        except SpeccError:
            continue
        if not _has_only_docstring(file):
            return _format_flow(convert(file))
    return code


def _has_only_docstring(file: ast.File) -> bool:
    """Return True if a fragment consists of a string, which the parser interprets as a
    docstring.
    """
    if any(isinstance(item, ast.Block) and not item.body for item in file.items):
        return True
    return not (file.items or file.extends)


FileConverter = Callable[[ast.File], YamlMap | YamlList]


def _embed_in_specs(code: str) -> Iterator[tuple[str, FileConverter]]:
    """Yield spec texts that contain a fragment, each with a function that extracts the fragment as
    YAML.
    """
    text = code.replace("{ … }", EMPTY_BODY).replace("…", PLACEHOLDER)
    # the docstring in the header prevents `code` from being parsed as the docstring
    head = 'specc 1\nmodel m "d"\n'
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
    """Convert the items of a file to a map, or to a list if they are below `items:`."""
    pairs = [YamlPair("extends", file.extends)] if file.extends else []
    pairs += [pair for _, pair in item_groups_to_yaml(file.items)]
    first_value = pairs[0].value
    return (
        first_value
        if pairs[0].key == "items" and isinstance(first_value, YamlList)
        else YamlMap(pairs)
    )


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
    """Format a YAML value on one line. A map with one entry is printed without braces."""
    text = format_yaml_flow(value, force=True) or ""
    if isinstance(value, YamlList):
        text = "- " + text[1:-1]
    elif len(value.entries) == 1:
        text = text[1:-1]
    # a map entry that consists only of placeholders is printed as `…`
    text = text.replace(f", {PLACEHOLDER}: {PLACEHOLDER}}}", f", {PLACEHOLDER}}}")
    for empty in (f"[{{{PLACEHOLDER}: {PLACEHOLDER}}}]", f"{{{PLACEHOLDER}: {PLACEHOLDER}}}"):
        text = text.replace(empty, "[…]" if empty[0] == "[" else "{…}")
    return text.replace(PLACEHOLDER, "…")
