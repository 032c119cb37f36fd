"""Print a syntax tree as canonical DSL text (`specc fmt`). Parsing it returns the same tree."""

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
    join_pieces,
    join_with_commas,
    layout_expression,
    layout_field,
    layout_field_suffix,
    layout_type,
    print_comment_lines,
    print_quantize_word,
    print_weight_path,
    quote_text,
    quote_unless_name,
)

INDENT_STEP = 2
"""Indentation of a body, in columns."""


def print_dsl(file: ast.File) -> str:
    """Print a spec."""
    out = print_comment_lines(file.comments.leading, 0)
    out += append_comment([f"specc {file.version}"], file.comments)
    doc = [f" {quote_text(file.doc)}"] if file.doc else []
    out += break_lines([f"model {quote_unless_name(file.model)}", *doc], 0)
    if file.extends:
        out.append(f"extends {quote_unless_name(file.extends)}")
    previous: ast.Item | None = None
    for item in file.items:
        if (
            previous is None
            or item.comments.blank_line_before
            or is_spaced_item(item)
            or is_spaced_item(previous)
        ):
            out.append("")
        out += print_statement(item, 0)
        previous = item
    if file.end:
        out += ["", *print_comment_lines(file.end, 0)]
    return "\n".join(out) + "\n"


def is_spaced_item(item: ast.Item) -> bool:
    """Return True if blank lines surround an item."""
    return not isinstance(item, COMPACT_ITEMS)


COMPACT_ITEMS = ast.Use | ast.Dims | ast.Require | ast.Definition | ast.Stream
"""Items that fit on one line."""


def append_comment(out: list[str], comments: ast.Comments) -> list[str]:
    """Append the trailing comment to the last line."""
    if comments.trailing:
        out[-1] += f"  # {comments.trailing}"
    return out


def print_braced_body(
    children: Sequence[ast.Commentable], end: Iterable[str], indent: int
) -> list[str]:
    """Print the lines between braces."""
    out: list[str] = []
    for child in children:
        # no blank line after the brace
        if child.comments.blank_line_before and out:
            out.append("")
        out += print_statement(child, indent)
    return out + print_comment_lines(end, indent)


def print_statement(node: ast.Commentable, indent: int) -> list[str]:
    """Print a statement, item or entry with its comments."""
    above = print_comment_lines(node.comments.leading, indent)
    if isinstance(node, ast.Repeat | ast.Scan | ast.Block):
        return above + print_headed_body(node, indent)
    if isinstance(node, ast.When):
        return above + print_when(node, indent)
    if type(node) in SECTION_LAYOUTS:
        return above + print_section(node, indent)
    if isinstance(node, ast.Field):
        return above + append_comment(print_field(node, indent), node.comments)
    return above + append_comment(break_lines(layout_leaf(node), indent), node.comments)


def print_headed_body(node: ast.Repeat | ast.Scan | ast.Block, indent: int) -> list[str]:
    """Print a header with a body in braces; the body of a block begins with its docstring."""
    out = append_comment(break_lines([*layout_header(node), " {"], indent), node.comments)
    if isinstance(node, ast.Block) and node.doc:
        out.append(" " * (indent + INDENT_STEP) + quote_text(node.doc))
    return [*out, *print_braced_body(node.body, node.end, indent + INDENT_STEP), " " * indent + "}"]


def print_section(node: ast.Commentable, indent: int) -> list[str]:
    """Print a section, on one line if it has few entries and no comments."""
    layout_head, max_on_line, list_entries = SECTION_LAYOUTS[type(node)]
    head, (children, end) = layout_head(node), list_entries(node)
    if not children and not end:
        return append_comment([f"{' ' * indent}{head} {{}}"], node.comments)
    if len(children) <= max_on_line and not end and not _have_comments(children):
        entries = "  ".join(join_pieces(layout_leaf(c)) for c in children)
        line = f"{' ' * indent}{head} {{ {entries} }}"
        if len(line) <= MAX_LINE_WIDTH:
            return append_comment([line], node.comments)
    first = append_comment([f"{' ' * indent}{head} {{"], node.comments)
    return [*first, *print_braced_body(children, end, indent + INDENT_STEP), " " * indent + "}"]


def _have_comments(nodes: Iterable[ast.Commentable]) -> bool:
    """Return True if any of the nodes has a comment."""
    return any(node.comments != ast.NO_COMMENTS for node in nodes)


def print_when(node: ast.When, indent: int) -> list[str]:
    """Print `when c { … } else { … }`."""
    out = append_comment(
        break_lines(["when ", *layout_expression(node.condition), " {"], indent), node.comments
    )
    out += print_braced_body(node.body, node.end, indent + INDENT_STEP)
    if node.otherwise or node.else_end:
        out.append(" " * indent + "} else {")
        out += print_braced_body(node.otherwise, node.else_end, indent + INDENT_STEP)
    return [*out, " " * indent + "}"]


def print_field(node: ast.Field, indent: int) -> list[str]:
    """Print a config value; a record with comments takes one line per field."""
    kind = node.type
    if kind.name != "record" or not has_commented_field(kind.fields):
        return break_lines(layout_field(node), indent)
    inner = print_braced_body(kind.fields, (), indent + INDENT_STEP)
    last = break_lines(["}", *(["?"] if kind.optional else []), *layout_field_suffix(node)], indent)
    return [f"{' ' * indent}{node.name}: record {{", *inner, *last]


def has_commented_field(fields: Iterable[ast.Field]) -> bool:
    """Return True if any field of a record has a comment."""
    return any(f.comments != ast.NO_COMMENTS or has_commented_field(f.type.fields) for f in fields)


Entries: TypeAlias = tuple[Sequence[ast.Commentable], tuple[str, ...]]
"""The entries of a section, and the comments at its end."""
SECTION_LAYOUTS: Mapping[type[ast.Node], tuple[Callable[..., str], int, Callable[..., Entries]]] = {
    ast.Config: (lambda _: "config", 0, lambda n: (n.entries, n.end)),
    ast.Reading: (lambda _: "reading", 3, lambda n: (n.entries, n.end)),
    ast.Weights: (lambda _: "weights", 1, lambda n: (n.rules, n.end)),
    ast.Quantize: (lambda _: "quantize", 2, lambda n: (n.entries, n.end)),
    ast.Generate: (
        lambda n: f"generate {n.name} of {n.input_name} from {n.source}",
        3,
        lambda n: (n.settings, n.end),
    ),
}
"""The layout of each section: header, maximum number of entries on one line, entries."""


def layout_leaf(node: ast.Commentable) -> Pieces:
    """Lay out a statement or entry without a body."""
    return LEAF_LAYOUTS[type(node)](node)


def layout_clause(keyword: str, value: ast.Expr | None) -> Pieces:
    """Lay out a clause such as `along n`, or return no pieces if it has no value."""
    return [] if value is None else [SPACE_BREAK, f"{keyword} ", *layout_expression(value)]


def layout_words(words: Iterable[str]) -> Pieces:
    """Lay out words with commas."""
    return join_with_commas([word] for word in words)


def join_with_and(texts: Sequence[str]) -> str:
    """Format alternatives: `"llama" | "mistral"`."""
    return " | ".join(map(quote_text, texts))


def layout_use(node: ast.Use) -> Pieces:
    """Lay out the files, the name, and the locations of config and weights."""
    sources = [f" from {join_with_and(node.sources)}"] if node.sources else []
    under = [f" under {print_weight_path(node.under)}"] if node.under else []
    return ["use ", join_with_and(node.paths), f" as {node.name}", *sources, *under]


def layout_quantize_entry(node: ast.QuantizeEntry) -> Pieces:
    """Lay out `int4 = ["*.mlp.*"]`."""
    words = [print_quantize_word(v.value) for v in node.values]
    value: Pieces = [*words] if len(words) == 1 else ["[", *layout_words(words), "]"]
    return [f"{quote_unless_name(node.name)} = ", *value]


def layout_assignment(node: ast.Assign | ast.Setting | ast.InputReading) -> Pieces:
    """Lay out `stop = eos`."""
    return [f"{node.name} = ", *layout_expression(node.value)]


LEAF_LAYOUTS: Mapping[type[ast.Node], Callable[..., Pieces]] = {
    ast.Let: lambda n: [
        *join_with_commas(map(layout_target, n.targets), line_break=TARGET_BREAK),
        " = ",
        *layout_expression(n.value),
    ],
    ast.Return: lambda n: ["return ", *join_with_commas(map(layout_expression, n.values))],
    ast.Require: lambda n: [
        "require ",
        *layout_expression(n.condition),
        *((",", SPACE_BREAK, quote_text(n.because)) if n.because else ()),
    ],
    ast.Use: layout_use,
    ast.Dims: lambda n: ["dims ", *layout_words(map(layout_dim_name, n.names))],
    ast.Definition: lambda n: [
        f"{n.kind} ",
        *layout_definition_header(n.name, n.params),
        *([f" {quote_text(n.doc)}"] if n.doc else []),
        " =",
        SPACE_BREAK,
        *layout_expression(n.value),
    ],
    ast.Stream: lambda n: [f"stream {n.source} of {n.input_name}"],
    ast.Field: layout_field,
    ast.Expect: lambda n: [
        f"expect {quote_text(n.key)} in ",
        "(",
        *layout_words(map(quote_unless_name, n.values)),
        ")",
    ],
    ast.IgnoredKeys: lambda n: ["ignore ", *layout_words(map(quote_text, n.keys))],
    ast.QuantizeEntry: layout_quantize_entry,
    ast.ResultDisplay: lambda n: [f"show {n.name} = ", *layout_expression(n.value)],
    ast.Assign: layout_assignment,
    ast.Setting: layout_assignment,
    ast.InputReading: layout_assignment,
    ast.WeightsFile: lambda n: [f"from {quote_text(n.path)}"],
    ast.Tie: lambda n: [
        f"tie {print_weight_path(n.name)} =",
        SPACE_BREAK,
        print_weight_path(n.source),
        *layout_clause("when", n.condition),
    ],
    ast.Load: lambda n: [
        f"load {print_weight_path(n.name)} = ",
        *layout_expression(n.value),
        *layout_clause("when", n.condition),
    ],
    ast.Ignore: lambda n: [
        f"ignore {print_weight_path(n.name)}",
        *layout_clause("when", n.condition),
    ],
    ast.Share: lambda n: [
        f"share {print_weight_path(n.name)}",
        *layout_clause("when", n.condition),
    ],
}
"""Layouts of statements and entries without a body."""


def layout_dim_name(node: ast.DimName) -> str:
    """Format `tgt >= 1` in `dims`; the default lower bound 0 is omitted."""
    return f"{node.name} >= {node.minimum}" if node.minimum else node.name


def layout_target(node: ast.Target) -> Pieces:
    """Lay out `x: float[batch, n]` on the left of `=`."""
    if node.type is None:
        return [node.name]
    return [f"{node.name}: ", *layout_type(node.type)]


def layout_definition_header(name: str, params: Sequence[ast.DefinitionParameter] | None) -> Pieces:
    """Lay out `window(back, ahead=0)`."""
    if params is None:
        return [name]
    return [name, "(", *join_with_commas(layout_definition_parameter(p) for p in params), ")"]


def layout_definition_parameter(node: ast.DefinitionParameter) -> Pieces:
    """Lay out `ahead=0`, `att: int`, `heads: int = 4`."""
    kind: Pieces = [": ", *layout_type(node.type)] if node.type is not None else []
    equal = " = " if node.type is not None else "="
    value: Pieces = [equal, *layout_expression(node.default)] if node.default is not None else []
    return [node.name, *kind, *value]


def layout_block_parameter(node: ast.BlockParameter) -> Pieces:
    """Lay out `x: float[batch, n] = 0`."""
    if not node.name:
        return layout_type(node.type)
    value: Pieces = [" = ", *layout_expression(node.default)] if node.default is not None else []
    return [f"{node.name}: ", *layout_type(node.type), *value]


def layout_header(node: ast.Repeat | ast.Scan | ast.Block) -> Pieces:
    """Lay out the first line of a statement or block, without its brace."""
    return BODY_HEADERS[type(node)](node)


def layout_block_header(node: ast.Block) -> Pieces:
    """Lay out `block attention(x: float[n, d]) -> float[n, d] where d = 4`, broken by sections."""
    params = join_with_commas(layout_block_parameter(p) for p in node.params)
    found: Pieces = [f"{node.kind} {node.name}", "(", *params, ")", SECTION_BREAK, "-> "]
    found += _layout_results(node.results)
    if node.where:
        lengths = ([f"{e.name} = ", *layout_expression(e.value)] for e in node.where)
        found += [SECTION_BREAK, "where ", *join_with_commas(lengths)]
    if node.architectures:
        names = join_with_commas([quote_unless_name(name)] for name in node.architectures)
        found += [SECTION_BREAK, "for ", *names]
    return found


def _layout_results(results: Sequence[ast.BlockParameter]) -> Pieces:
    """Lay out the results of a block."""
    # one result needs neither a name nor brackets
    if len(results) == 1 and not results[0].name:
        return layout_block_parameter(results[0])
    return ["(", *join_with_commas(layout_block_parameter(r) for r in results), ")"]


def layout_name_list(keyword: str, names: Sequence[str]) -> Pieces:
    """Lay out a clause such as `carry s, c`, or return no pieces if it has no names."""
    return [SPACE_BREAK, f"{keyword} ", *layout_words(names)] if names else []


REVERSE_LAYOUT: Pieces = [SPACE_BREAK, "reverse"]
BODY_HEADERS: Mapping[type[ast.Node], Callable[..., Pieces]] = {
    ast.Repeat: lambda n: [
        f"repeat {n.variable} in ",
        *layout_expression(n.iterable),
        *([SPACE_BREAK, f"under {print_weight_path(n.under)}"] if n.under else ()),
        *layout_name_list("collect", n.collect),
    ],
    ast.Scan: lambda n: [
        f"scan {', '.join(n.variables)} in ",
        *join_with_commas(map(layout_expression, n.sequences)),
        *layout_clause("along", n.along),
        *layout_name_list("carry", n.carry),
        *layout_name_list("collect", n.collect),
        *(REVERSE_LAYOUT if n.reverse else ()),
        *layout_clause("keep", n.keep),
        *layout_clause("until", n.until),
    ],
    ast.Block: layout_block_header,
}
"""First lines of statements with a body."""
