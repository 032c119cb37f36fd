"""Print a syntax tree as canonical DSL text, which `specc fmt` writes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from specc.syntax import ast
from specc.syntax.dsl.expression_printer import (
    MAX_LINE_WIDTH,
    SECTION_BREAK,
    SPACE_BREAK,
    TARGET_BREAK,
    Pieces,
    break_lines,
    format_comment_lines,
    format_field_clauses,
    format_name_or_string,
    format_parts,
    format_setting_value,
    join_parts,
    join_pieces,
    quote_dsl_string,
)

INDENT_STEP = 2
"""The indentation of each nesting level, in columns."""


def format_dsl(file: ast.File) -> str:
    """Format a spec as canonical DSL text."""
    lines = format_comment_lines(file.comments.leading, 0)
    lines += append_trailing_comment([f"specc {file.version}"], file.comments)
    doc = [f" {quote_dsl_string(file.doc)}"] if file.doc else []
    lines += break_lines([f"model {format_name_or_string(file.model)}", *doc], 0)
    if file.extends:
        lines.append(f"extends {format_name_or_string(file.extends)}")
    previous: ast.Item | None = None
    for item in file.items:
        if (
            previous is None
            or item.comments.has_blank_line_before
            or has_blank_lines_around(item)
            or has_blank_lines_around(previous)
        ):
            lines.append("")
        lines += format_statement(item, 0)
        previous = item
    if file.end_comments:
        lines += ["", *format_comment_lines(file.end_comments, 0)]
    return "\n".join(lines) + "\n"


def has_blank_lines_around(item: ast.Item) -> bool:
    """Return True if an item is printed with a blank line before and after it."""
    return not isinstance(item, COMPACT_ITEMS)


COMPACT_ITEMS = (
    ast.UseStatement | ast.DimsSection | ast.RequireStatement | ast.AttentionDef | ast.StreamSection
)
"""The items that are printed without blank lines around them."""


def append_trailing_comment(lines: list[str], comments: ast.Comments) -> list[str]:
    """Append the trailing comment of a node to its last line."""
    if comments.trailing:
        lines[-1] += f"  # {comments.trailing}"
    return lines


def format_braced_body(
    children: Sequence[ast.Commentable], end_comments: Iterable[str], indent: int
) -> list[str]:
    """Format the lines of a body between its braces."""
    lines: list[str] = []
    for child in children:
        # a body has no blank line after the opening brace
        if child.comments.has_blank_line_before and lines:
            lines.append("")
        lines += format_statement(child, indent)
    return lines + format_comment_lines(end_comments, indent)


def format_statement(node: ast.Commentable, indent: int) -> list[str]:
    """Format a statement, item or section entry, with its comments, as lines."""
    leading_lines = format_comment_lines(node.comments.leading, indent)
    if isinstance(node, ast.RepeatLoop | ast.ScanLoop | ast.Block):
        return leading_lines + format_body_with_header(node, indent)
    if isinstance(node, ast.WhenStatement):
        return leading_lines + format_when_statement(node, indent)
    if type(node) in SECTION_LAYOUTS:
        return leading_lines + format_section(node, indent)
    if isinstance(node, ast.ConfigField):
        return leading_lines + append_trailing_comment(
            format_config_field(node, indent), node.comments
        )
    return leading_lines + append_trailing_comment(
        break_lines(format_node_without_body(node), indent), node.comments
    )


def format_body_with_header(
    node: ast.RepeatLoop | ast.ScanLoop | ast.Block, indent: int
) -> list[str]:
    """Format a statement or block with a body in braces. A block's docstring comes first."""
    lines = append_trailing_comment(
        break_lines([*format_statement_header(node), " {"], indent), node.comments
    )
    if isinstance(node, ast.Block) and node.doc:
        lines.append(" " * (indent + INDENT_STEP) + quote_dsl_string(node.doc))
    return [
        *lines,
        *format_braced_body(node.body, node.end_comments, indent + INDENT_STEP),
        " " * indent + "}",
    ]


def format_section(node: ast.Commentable, indent: int) -> list[str]:
    """Format a section. A section with few entries and without comments is printed on one line."""
    layout_head, max_on_line, list_entries = SECTION_LAYOUTS[type(node)]
    head, (children, end) = layout_head(node), list_entries(node)
    if not children and not end:
        return append_trailing_comment([f"{' ' * indent}{head} {{}}"], node.comments)
    if len(children) <= max_on_line and not end and not _has_any_comment(children):
        entries = "  ".join(join_pieces(format_node_without_body(c)) for c in children)
        line = f"{' ' * indent}{head} {{ {entries} }}"
        if len(line) <= MAX_LINE_WIDTH:
            return append_trailing_comment([line], node.comments)
    first_lines = append_trailing_comment([f"{' ' * indent}{head} {{"], node.comments)
    return [
        *first_lines,
        *format_braced_body(children, end, indent + INDENT_STEP),
        " " * indent + "}",
    ]


def _has_any_comment(nodes: Iterable[ast.Commentable]) -> bool:
    """Return True if any of the nodes has a comment."""
    return any(node.comments != ast.NO_COMMENTS for node in nodes)


def format_when_statement(node: ast.WhenStatement, indent: int) -> list[str]:
    """Format a conditional, such as `when c { … } else { … }`."""
    lines = append_trailing_comment(
        break_lines(format_parts("when ", node.condition, " {"), indent), node.comments
    )
    lines += format_braced_body(node.body, node.end_comments, indent + INDENT_STEP)
    if node.otherwise or node.else_end_comments:
        lines.append(" " * indent + "} else {")
        lines += format_braced_body(node.otherwise, node.else_end_comments, indent + INDENT_STEP)
    return [*lines, " " * indent + "}"]


def format_config_field(node: ast.ConfigField, indent: int) -> list[str]:
    """Format a config field. A record type with comments is printed with one field per line."""
    field_type = node.type
    if field_type.name != "record" or not has_commented_field(field_type.fields):
        return break_lines(format_parts(node), indent)
    field_lines = format_braced_body(field_type.fields, (), indent + INDENT_STEP)
    closer = "}?" if field_type.optional else "}"
    last_lines = break_lines([closer, *format_field_clauses(node)], indent)
    return [f"{' ' * indent}{node.name}: record {{", *field_lines, *last_lines]


def has_commented_field(fields: Iterable[ast.ConfigField]) -> bool:
    """Return True if any field of a record type has a comment."""
    return any(f.comments != ast.NO_COMMENTS or has_commented_field(f.type.fields) for f in fields)


Entries: TypeAlias = tuple[Sequence[ast.Commentable], tuple[str, ...]]
"""The entries of a section, and the comments after the last entry."""
SECTION_LAYOUTS: Mapping[type[ast.Node], tuple[Callable[..., str], int, Callable[..., Entries]]] = {
    ast.ConfigSection: (lambda _: "config", 0, lambda n: (n.entries, n.end_comments)),
    ast.InputsSection: (lambda _: "inputs", 0, lambda n: (n.entries, n.end_comments)),
    ast.PreprocessingSection: (lambda _: "reading", 3, lambda n: (n.entries, n.end_comments)),
    ast.WeightsSection: (lambda _: "weights", 1, lambda n: (n.rules, n.end_comments)),
    ast.QuantizeSection: (lambda _: "quantize", 2, lambda n: (n.entries, n.end_comments)),
    ast.GenerateSection: (
        lambda n: f"generate {n.name} of {n.input_name} from {n.output_name}",
        3,
        lambda n: (n.settings, n.end_comments),
    ),
}
"""For each section class: the header, the maximum number of entries per line, the entries."""


def format_node_without_body(node: ast.Commentable) -> Pieces:
    """Format a statement, item or section entry without a body."""
    return SIMPLE_NODE_LAYOUTS[type(node)](node)


def format_clause(keyword: str, value: ast.Expr | ast.WeightPath | None) -> Pieces:
    """Format a clause such as `along n`. If `value` is None, return an empty result."""
    return format_parts(SPACE_BREAK, f"{keyword} ", value) if value is not None else []


def format_list_clause(keyword: str, names: Iterable[str]) -> Pieces:
    """Format a clause such as `carry s, c`. If `names` is empty, return an empty result."""
    return format_parts(SPACE_BREAK, f"{keyword} ", join_parts(names)) if names else []


def join_alternatives(texts: Sequence[str]) -> str:
    """Join alternatives with `|`, as in `"llama" | "mistral"`."""
    return " | ".join(map(quote_dsl_string, texts))


def format_use_statement(node: ast.UseStatement) -> Pieces:
    """Format a `use` item, as in `use "llama" as text from "text_config" under language_model`."""
    sources = f" from {join_alternatives(node.sources)}" if node.sources else None
    under = node.under and format_parts(" under ", node.under)
    return format_parts("use ", join_alternatives(node.paths), f" as {node.name}", sources, under)


def format_quantize_setting(node: ast.QuantizeSetting) -> Pieces:
    """Format an entry of a `quantize` section, as in `int4 = ["*.mlp.*"]`."""
    words = [format_setting_value(v.value) for v in node.values]
    value = words if len(words) == 1 else ["[", *join_parts(words), "]"]
    return format_parts(f"{format_name_or_string(node.name)} = ", *value)


def format_assignment(
    node: ast.ConfigOverride | ast.GenerateSetting | ast.InputPreprocessing, prefix: str = ""
) -> Pieces:
    """Format a config value, a setting or a preprocessing, as in `stop = eos`."""
    return format_parts(f"{prefix}{node.name} = ", node.value)


SIMPLE_NODE_LAYOUTS: Mapping[type[ast.Node], Callable[..., Pieces]] = {
    ast.Assignment: lambda n: format_parts(
        join_parts(n.targets, line_break=TARGET_BREAK), " = ", n.value
    ),
    ast.ReturnStatement: lambda n: format_parts("return ", join_parts(n.values)),
    ast.RequireStatement: lambda n: format_parts(
        "require ",
        n.condition,
        *((",", SPACE_BREAK, quote_dsl_string(n.because)) if n.because else ()),
    ),
    ast.UseStatement: format_use_statement,
    ast.DimsSection: lambda n: format_parts("dims ", join_parts(n.dims)),
    ast.AttentionDef: lambda n: format_parts(
        f"{n.kind} ",
        format_definition_header(n.name, n.params),
        f" {quote_dsl_string(n.doc)}" if n.doc else None,
        *(" =", SPACE_BREAK, n.value),
    ),
    ast.StreamSection: lambda n: [f"stream {n.output_name} of {n.input_name}"],
    ast.ConfigField: format_parts,
    ast.InputDecl: format_parts,
    ast.ExpectedConfigValues: lambda n: format_parts(
        f"expect {quote_dsl_string(n.key)} in ",
        *("(", join_parts(map(format_name_or_string, n.values)), ")"),
    ),
    ast.IgnoredConfigKeys: lambda n: format_parts(
        "ignore ", join_parts(map(quote_dsl_string, n.keys))
    ),
    ast.QuantizeSetting: format_quantize_setting,
    ast.OutputPostprocessing: lambda n: format_assignment(n, "show "),
    ast.ConfigOverride: format_assignment,
    ast.GenerateSetting: format_assignment,
    ast.InputPreprocessing: format_assignment,
    ast.WeightsFile: lambda n: [f"from {quote_dsl_string(n.path)}"],
    ast.WeightTyingRule: lambda n: format_parts(
        "tie ", n.name, " =", SPACE_BREAK, n.source, format_clause("when", n.condition)
    ),
    ast.LoadRule: lambda n: format_parts(
        "load ", n.name, " = ", n.value, format_clause("when", n.condition)
    ),
    ast.IgnoreRule: lambda n: format_parts(
        "ignore ", join_parts(n.names), format_clause("when", n.condition)
    ),
    ast.WeightSharingRule: lambda n: format_parts(
        "share ", n.name, format_clause("when", n.condition)
    ),
}
"""The formatters of statements, items and section entries without a body, keyed by AST class."""


def format_definition_header(name: str, params: Sequence[ast.DefinitionParameter] | None) -> Pieces:
    """Format the name and parameters of a definition, as in `window(back, ahead=0)`."""
    return [name] if params is None else [name, "(", *join_parts(params), ")"]


def format_statement_header(node: ast.RepeatLoop | ast.ScanLoop | ast.Block) -> Pieces:
    """Format the header of a statement or block, without the opening brace."""
    return BODY_HEADERS[type(node)](node)


def format_block_header(node: ast.Block) -> Pieces:
    """Format a block header. Line breaks are possible between the parts of the header."""
    results: Pieces = ["(", *join_parts(node.results), ")"]
    # a single unnamed result is printed without parentheses
    if len(node.results) == 1 and not node.results[0].name:
        results = format_parts(node.results[0])
    names = join_parts(map(format_name_or_string, node.architectures))
    return format_parts(
        *(f"{node.kind} {node.name}", "(", join_parts(node.params), ")"),
        *(SECTION_BREAK, "-> ", results),
        format_parts(SECTION_BREAK, "where ", join_parts(node.where)) if node.where else None,
        format_parts(SECTION_BREAK, "for ", names) if names else None,
    )


BODY_HEADERS: Mapping[type[ast.Node], Callable[..., Pieces]] = {
    ast.RepeatLoop: lambda n: format_parts(
        *(f"repeat {n.variable} in ", n.iterable, format_clause("under", n.under)),
        format_list_clause("collect", n.collect),
    ),
    ast.ScanLoop: lambda n: format_parts(
        f"scan {', '.join(n.variables)} in ",
        join_parts(n.sequences),
        [*format_clause("along", n.along), *format_list_clause("carry", n.carry)],
        format_list_clause("collect", n.collect),
        [SPACE_BREAK, "reverse"] if n.reverse else None,
        [*format_clause("keep", n.keep), *format_clause("until", n.until)],
    ),
    ast.Block: format_block_header,
}
"""The formatters of statement and block headers, keyed by AST class."""
