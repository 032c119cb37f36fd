"""Print a syntax tree as canonical DSL text (`specc fmt`); parsing it gives the tree again."""

from collections.abc import Iterable, Sequence

from specc.syntax import ast
from specc.syntax.dsl.expression_printer import (
    join_with_commas,
    layout_expression,
    layout_field,
    layout_field_suffix,
    layout_type,
    print_quantize_word,
    print_title,
    print_weight_path,
    quote_text,
)
from specc.syntax.dsl.line_breaking import (
    MAX_LINE_WIDTH,
    SECTION_BREAK,
    SPACE_BREAK,
    Pieces,
    break_lines,
    join_pieces,
)

INDENT_STEP = 2
"""Columns a body is moved in."""


def print_dsl(file: ast.File) -> str:
    """The text of a spec."""
    out = print_comment_lines(file.remarks.before, 0)
    out += append_comment([f"specc {file.version}"], file.remarks)
    doc = [f" {quote_text(file.doc)}"] if file.doc else []
    out += break_lines([f"model {print_title(file.model)}", *doc], 0)
    if file.extends:
        out.append(f"extends {print_title(file.extends)}")
    previous: ast.Item | None = None
    for item in file.items:
        if (
            previous is None
            or item.remarks.blank_line_before
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
    """Whether empty lines stand around an item."""
    return not isinstance(item, COMPACT_ITEMS)


COMPACT_ITEMS = ast.Use | ast.Dims | ast.Require | ast.Definition | ast.Stream
"""Items of one line."""


def print_comment_lines(texts: Iterable[str], indent: int) -> list[str]:
    """Lines of comments."""
    return [" " * indent + f"# {text}".rstrip() for text in texts]


def append_comment(out: list[str], remarks: ast.Comments) -> list[str]:
    """Lines with the comment that stands behind the last of them."""
    if remarks.behind:
        out[-1] += f"  # {remarks.behind}"
    return out


def print_braced_body(
    children: Sequence[ast.Commentable], end: Iterable[str], indent: int
) -> list[str]:
    """The lines between braces."""
    out: list[str] = []
    for child in children:
        # no empty line behind the brace, whatever the user had there
        if child.remarks.blank_line_before and out:
            out.append("")
        out += print_statement(child, indent)
    return out + print_comment_lines(end, indent)


def print_statement(node: ast.Commentable, indent: int) -> list[str]:
    """The lines of a statement, item or entry with its comments."""
    above = print_comment_lines(node.remarks.before, indent)
    match node:
        case ast.Repeat() | ast.Scan() | ast.Block():
            return above + print_headed_body(node, indent)
        case ast.When():
            return above + print_when(node, indent)
        case ast.Config():
            return above + print_section("config", node.entries, node, indent, short=0)
        case ast.Reading():
            return above + print_section("reading", node.entries, node, indent, short=3)
        case ast.Weights():
            return above + print_section("weights", node.rules, node, indent, short=1)
        case ast.Generate():
            head_text = f"generate {node.name} of {node.growing} from {node.source}"
            return above + print_section(head_text, node.settings, node, indent, short=3)
        case ast.Quantize():
            return above + print_section("quantize", node.entries, node, indent, short=2)
        case ast.Field():
            return above + append_comment(print_field(node, indent), node.remarks)
        case _:
            return above + append_comment(break_lines(layout_leaf(node), indent), node.remarks)


def print_headed_body(node: ast.Repeat | ast.Scan | ast.Block, indent: int) -> list[str]:
    """A head over a body in braces, of a block first what it says of itself."""
    out = append_comment(break_lines([*layout_header(node), " {"], indent), node.remarks)
    if isinstance(node, ast.Block) and node.doc:
        out.append(" " * (indent + INDENT_STEP) + quote_text(node.doc))
    return [*out, *print_braced_body(node.body, node.end, indent + INDENT_STEP), " " * indent + "}"]


def print_section(
    head: str,
    children: Sequence[ast.Commentable],
    node: ast.Config | ast.Reading | ast.Weights | ast.Generate | ast.Quantize,
    indent: int,
    short: int,
) -> list[str]:
    """A head with a body in braces, on one line if it has at most `short` entries and
    no comments.
    """
    if not children and not node.end:
        return append_comment([f"{' ' * indent}{head} {{}}"], node.remarks)
    # one line if it is short; a comment needs the end of a line for itself
    quiet = not node.end and all(c.remarks == ast.NO_COMMENTS for c in children)
    if quiet and len(children) <= short:
        inside = "  ".join(join_pieces(layout_leaf(c)) for c in children)
        line = f"{' ' * indent}{head} {{ {inside} }}"
        if len(line) <= MAX_LINE_WIDTH:
            return append_comment([line], node.remarks)
    first = append_comment([f"{' ' * indent}{head} {{"], node.remarks)
    return [
        *first,
        *print_braced_body(children, node.end, indent + INDENT_STEP),
        " " * indent + "}",
    ]


def print_when(node: ast.When, indent: int) -> list[str]:
    """`when c { … } else { … }`."""
    out = append_comment(
        break_lines(["when ", *layout_expression(node.condition), " {"], indent), node.remarks
    )
    out += print_braced_body(node.body, node.end, indent + INDENT_STEP)
    if node.otherwise or node.else_end:
        out.append(" " * indent + "} else {")
        out += print_braced_body(node.otherwise, node.else_end, indent + INDENT_STEP)
    return [*out, " " * indent + "}"]


def print_field(node: ast.Field, indent: int) -> list[str]:
    """A config value; a record whose fields have comments takes a line for each."""
    kind = node.type
    if kind.name != "record" or not has_commented_field(kind.fields):
        return break_lines(layout_field(node), indent)
    inner = print_braced_body(kind.fields, (), indent + INDENT_STEP)
    last = break_lines(["}", *(["?"] if kind.optional else []), *layout_field_suffix(node)], indent)
    return [f"{' ' * indent}{node.name}: record {{", *inner, *last]


def has_commented_field(fields: Iterable[ast.Field]) -> bool:
    """Whether a comment stands anywhere in the fields of a record."""
    return any(f.remarks != ast.NO_COMMENTS or has_commented_field(f.type.fields) for f in fields)


def layout_use(node: ast.Use) -> Pieces:
    """The file or files, the name, and where its config and its weights are."""
    made: Pieces = ["use ", " | ".join(map(quote_text, node.paths)), f" as {node.name}"]
    if node.sources:
        made.append(" from " + " | ".join(map(quote_text, node.sources)))
    if node.under is not None:
        made.append(f" under {print_weight_path(node.under)}")
    return made


def layout_leaf(node: ast.Commentable) -> Pieces:
    """A statement or entry that has no body."""
    match node:
        case ast.Let():
            targets = join_with_commas(layout_target(t) for t in node.targets)
            return [*targets, " = ", *layout_expression(node.value)]
        case ast.Return():
            return ["return ", *join_with_commas(layout_expression(v) for v in node.values)]
        case ast.Require():
            because: Pieces = [",", SPACE_BREAK, quote_text(node.because)] if node.because else []
            return ["require ", *layout_expression(node.condition), *because]
        case ast.Use():
            return layout_use(node)
        case ast.Dims():
            return ["dims ", *join_with_commas([layout_dim_name(d)] for d in node.names)]
        case ast.Definition():
            return layout_definition(node)
        case ast.Stream():
            return [f"stream {node.source} of {node.growing}"]
        case (
            ast.Expect()
            | ast.IgnoredKeys()
            | ast.Assign()
            | ast.Setting()
            | ast.InputReading()
            | ast.ResultDisplay()
            | ast.QuantizeEntry()
        ):
            return layout_entry(node)
        case ast.WeightsFrom() | ast.Tie() | ast.Load() | ast.Ignore() | ast.Share():
            return layout_weight_rule(node)
        case _:
            raise AssertionError(f"{type(node)} has a body")


def layout_entry(
    node: ast.Expect
    | ast.IgnoredKeys
    | ast.Assign
    | ast.Setting
    | ast.ReadingEntry
    | ast.QuantizeEntry,
) -> Pieces:
    """A line of `config`, `reading`, `generate` or `quantize`."""
    match node:
        case ast.Expect():
            values = join_with_commas([print_title(v)] for v in node.values)
            return [f"expect {quote_text(node.key)} in ", "(", *values, ")"]
        case ast.IgnoredKeys():
            return ["ignore ", *join_with_commas([quote_text(key)] for key in node.keys)]
        case ast.QuantizeEntry(values=[only]):
            return [f"{print_title(node.name)} = ", print_quantize_word(only.value)]
        case ast.QuantizeEntry():
            several = join_with_commas([print_quantize_word(v.value)] for v in node.values)
            return [f"{print_title(node.name)} = ", "[", *several, "]"]
        case ast.ResultDisplay():
            return [f"show {node.name} = ", *layout_expression(node.value)]
        case _:
            return [f"{node.name} = ", *layout_expression(node.value)]


def layout_dim_name(node: ast.DimName) -> str:
    """`tgt >= 1` in `dims`; 0 is what a length is at least anyway."""
    return f"{node.name} >= {node.least}" if node.least else node.name


def layout_weight_rule(rule: ast.WeightRule) -> Pieces:
    """A rule of `weights`."""
    match rule:
        case ast.WeightsFrom():
            return [f"from {quote_text(rule.path)}"]
        case ast.Tie():
            source = print_weight_path(rule.source)
            return [
                f"tie {print_weight_path(rule.name)} =",
                SPACE_BREAK,
                source,
                *_layout_condition(rule.condition),
            ]
        case ast.Load():
            how = [f"load {print_weight_path(rule.name)} = ", *layout_expression(rule.value)]
            return [*how, *_layout_condition(rule.condition)]
        case ast.Ignore():
            return [f"ignore {print_weight_path(rule.name)}", *_layout_condition(rule.condition)]
        case ast.Share():
            return [f"share {print_weight_path(rule.name)}", *_layout_condition(rule.condition)]


def _layout_condition(condition: ast.Expr | None) -> Pieces:
    """What stands behind a rule that holds only sometimes."""
    return [] if condition is None else [SPACE_BREAK, "when ", *layout_expression(condition)]


def layout_target(node: ast.Target) -> Pieces:
    """`x: float[batch, n]` on the left of `=`."""
    if node.type is None:
        return [node.name]
    return [f"{node.name}: ", *layout_type(node.type)]


def layout_definition(node: ast.Definition) -> Pieces:
    """`mask window(back, ahead=0) "doc" = …`."""
    doc: Pieces = [f" {quote_text(node.doc)}"] if node.doc else []
    head: Pieces = [f"{node.kind} ", *layout_definition_header(node), *doc]
    return [*head, " =", SPACE_BREAK, *layout_expression(node.value)]


def layout_definition_header(node: ast.Definition) -> Pieces:
    """`window(back, ahead=0)`."""
    if node.params is None:
        return [node.name]
    return [
        node.name,
        "(",
        *join_with_commas(layout_definition_parameter(p) for p in node.params),
        ")",
    ]


def layout_definition_parameter(node: ast.DefinitionParameter) -> Pieces:
    """`ahead=0`, `att: int`, `heads: int = 4`."""
    kind: Pieces = [": ", *layout_type(node.type)] if node.type is not None else []
    equal = " = " if node.type is not None else "="
    value: Pieces = [equal, *layout_expression(node.default)] if node.default is not None else []
    return [node.name, *kind, *value]


def layout_block_parameter(node: ast.BlockParameter) -> Pieces:
    """`x: float[batch, n] = 0`."""
    if not node.name:
        return layout_type(node.type)
    value: Pieces = [" = ", *layout_expression(node.default)] if node.default is not None else []
    return [f"{node.name}: ", *layout_type(node.type), *value]


def layout_header(node: ast.Repeat | ast.Scan | ast.Block) -> Pieces:
    """The first line of a statement or block, without its brace."""
    match node:
        case ast.Repeat():
            found: Pieces = [f"repeat {node.variable} in ", *layout_expression(node.over)]
            if node.under is not None:
                found += [SPACE_BREAK, f"under {print_weight_path(node.under)}"]
            return [*found, *layout_name_list("collect", node.collect)]
        case ast.Scan():
            return layout_scan_header(node)
        case ast.Block():
            return layout_block_header(node)


def layout_block_header(node: ast.Block) -> Pieces:
    """`block attention(x: float[n, d]) -> float[n, d] where d = 4`, broken by sections."""
    params = join_with_commas(layout_block_parameter(p) for p in node.params)
    found: Pieces = [f"{node.kind} {node.name}", "(", *params, ")", SECTION_BREAK, "-> "]
    # one result needs neither a name nor brackets
    if len(node.results) == 1 and not node.results[0].name:
        found += layout_block_parameter(node.results[0])
    else:
        found += ["(", *join_with_commas(layout_block_parameter(r) for r in node.results), ")"]
    if node.where:
        lengths = ([f"{e.name} = ", *layout_expression(e.value)] for e in node.where)
        found += [SECTION_BREAK, "where ", *join_with_commas(lengths)]
    if node.made_for:
        names = join_with_commas([print_title(name)] for name in node.made_for)
        found += [SECTION_BREAK, "for ", *names]
    return found


def layout_scan_header(node: ast.Scan) -> Pieces:
    """`scan y in ys along n carry s`, and what else it says."""
    found: Pieces = [
        f"scan {', '.join(node.variables)} in ",
        *join_with_commas(layout_expression(e) for e in node.over),
    ]
    if node.along is not None:
        found += [SPACE_BREAK, "along ", *layout_expression(node.along)]
    found += [*layout_name_list("carry", node.carry), *layout_name_list("collect", node.collect)]
    if node.reverse:
        found += [SPACE_BREAK, "reverse"]
    if node.keep is not None:
        found += [SPACE_BREAK, "keep ", *layout_expression(node.keep)]
    if node.until is not None:
        found += [SPACE_BREAK, "until ", *layout_expression(node.until)]
    return found


def layout_name_list(word: str, names: Sequence[str]) -> Pieces:
    """`carry s, c`, or nothing."""
    return [SPACE_BREAK, f"{word} ", *join_with_commas([n] for n in names)] if names else []
