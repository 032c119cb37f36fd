"""Print expressions and types as DSL text with minimal parentheses."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from specc.diagnostics.value_class import value_class
from specc.syntax import ast

MAX_LINE_WIDTH = 110
CONTINUATION_INDENT = 4
"""Indentation, in columns, of a continuation line that is not aligned with an opening bracket."""

BRACKET_DEPTH_PENALTY = 30
"""Penalty of a line break per enclosing bracket, in unused columns."""
ITEM_PENALTY = 60
"""Penalty of a line break inside a list item, in unused columns."""


@value_class
class LineBreak:
    """A possible line break, which is printed as the text `flat` if the line is not broken there.
    Line breaks with a higher `bonus` (in unused columns) are preferred.
    """

    flat: str = " "
    bonus: int = 0


SPACE_BREAK = LineBreak(" ")
SECTION_BREAK = LineBreak(" ", 80)
"""A line break before `->` or `where` in a block header."""
TARGET_BREAK = LineBreak(" ", -MAX_LINE_WIDTH)
"""A line break between the targets of an assignment."""

Pieces = list[str | LineBreak]


@value_class
class BreakCandidate:
    """A possible line break: its piece index, its score, and the columns of open brackets."""

    index: int
    score: int
    open_columns: tuple[int, ...]


def join_pieces(pieces: Pieces) -> str:
    """Join pieces into a single line."""
    return "".join(p if isinstance(p, str) else p.flat for p in pieces)


def break_lines(pieces: Pieces, indent: int, width: int = MAX_LINE_WIDTH) -> list[str]:
    """Break pieces into lines of at most `width` columns, the first line indented by `indent`."""
    if indent + _measure_flat_width(pieces) <= width:
        return [" " * indent + join_pieces(pieces)]
    # the algorithm is greedy: fill the line until the width is exceeded, then break the line at its
    # candidate with the best score, i.e. the least nested line break
    chunk_widths = measure_unbreakable_widths(pieces)
    lines: list[str] = []
    line = [" " * indent]
    column = indent
    open_columns: tuple[int, ...] = (indent + CONTINUATION_INDENT,)
    break_candidates: list[BreakCandidate] = []
    first_index = 0
    n = 0
    while n < len(pieces):
        piece = pieces[n]
        if isinstance(piece, str):
            line.append(piece)
            column += len(piece)
            if piece in ("(", "[", "{"):
                open_columns = (
                    *open_columns,
                    column
                    if column <= width * 0.6
                    else indent + CONTINUATION_INDENT * len(open_columns),
                )
            elif piece in (")", "]", "}"):
                open_columns = open_columns[:-1]
        else:
            break_candidates.append(
                BreakCandidate(
                    n,
                    column + piece.bonus - BRACKET_DEPTH_PENALTY * len(open_columns),
                    open_columns,
                )
            )
            if column + len(piece.flat) + chunk_widths[n + 1] > width:
                best_break = max(break_candidates, key=lambda p: p.score)
                # the text after the line break begins the next line
                line = line[: best_break.index - first_index + 1]
                lines.append("".join(line).rstrip())
                open_columns, n = best_break.open_columns, best_break.index + 1
                column = open_columns[-1]
                line, break_candidates, first_index = [" " * column], [], n
                continue
            line.append(piece.flat)
            column += len(piece.flat)
        n += 1
    return [*lines, "".join(line).rstrip()]


def _measure_flat_width(pieces: Pieces) -> int:
    """Return the width of pieces on a single line."""
    return sum(len(p) if isinstance(p, str) else len(p.flat) for p in pieces)


def format_comment_lines(texts: Iterable[str], indent: int) -> list[str]:
    """Format comments as lines that start with `#`, in the DSL and in YAML."""
    return [" " * indent + f"# {text}".rstrip() for text in texts]


def measure_unbreakable_widths(pieces: Pieces) -> list[int]:
    """Return, for each index in `pieces`, the number of columns up to the next line break."""
    widths = [0] * (len(pieces) + 1)
    for n in range(len(pieces) - 1, -1, -1):
        piece = pieces[n]
        widths[n] = len(piece) + widths[n + 1] if isinstance(piece, str) else 0
    return widths


CONDITIONAL, OR, AND, NOT, COMPARE, SUM, PRODUCT, SIGN, POWER, POSTFIX = range(10)
BINARY_LEVELS = {
    "|": OR,
    "&": AND,
    "+": SUM,
    "-": SUM,
    "*": PRODUCT,
    "/": PRODUCT,
    "//": PRODUCT,
    "%": PRODUCT,
    "**": POWER,
}
PATH_COMPONENT = r"(?:[A-Za-z_][A-Za-z0-9_]*|0|[1-9][0-9]{0,8})"
DOTTED_PATH = re.compile(rf"{PATH_COMPONENT}(?:\.{PATH_COMPONENT})*")
COUNT_PATTERN = re.compile(r"0|[1-9][0-9]{0,8}")
NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED_WORDS = frozenset(
    ["in", "if", "else", "for", "not", "repeat", "scan", "when", "return", "require"]
)


def quote_text(text: str) -> str:
    """Quote a string as a DSL string literal."""
    return '"' + "".join(map(_escape_character, text)) + '"'


TEXT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escape_character(character: str) -> str:
    r"""Escape a character for a DSL string literal. Non-printable characters become `\u{…}`."""
    if character in TEXT_ESCAPES:
        return TEXT_ESCAPES[character]
    return character if is_printable_character(character) else f"\\u{{{ord(character):X}}}"


def is_printable_character(character: str) -> bool:
    """Return True if a character can be printed without an escape sequence."""
    return character == " " or (character.isprintable() and character not in "\u2028\u2029")


def quote_unless_name(text: str) -> str:
    """Return a text unchanged if it is a name, otherwise as a string literal."""
    return text if NAME_PATTERN.fullmatch(text) and text not in RESERVED_WORDS else quote_text(text)


def format_quantize_word(text: str) -> str:
    """Format a value of a `quantize` section. Names and numbers are not quoted."""
    return text if COUNT_PATTERN.fullmatch(text) else quote_unless_name(text)


def format_weight_path(name: ast.WeightName) -> str:
    """Format a weight path. A path of names and numbers is not quoted."""
    return name.text if DOTTED_PATH.fullmatch(name.text) else quote_text(name.text)


def format_expression(expr: ast.Expr) -> str:
    """Format an expression on one line."""
    return join_pieces(format_expression_pieces(expr))


def get_precedence(expr: ast.Expr) -> int:
    """Return the precedence of the outermost operator of an expression."""
    match expr:
        case ast.Binary():
            return BINARY_LEVELS[expr.op]
        case ast.Unary():
            return NOT if expr.op == "not" else SIGN
    return {ast.Conditional: CONDITIONAL, ast.Compare: COMPARE}.get(type(expr), POSTFIX)


def format_expression_pieces(
    expr: ast.Expr, min_precedence: int = CONDITIONAL, is_operand: bool = False
) -> Pieces:
    """Format an expression, in parentheses if its precedence is below `min_precedence`."""
    # the parentheses in `(f(x) @ name) + y` are for readability; the grammar does not need them
    has_weights = isinstance(expr, ast.Call) and expr.weights is not None
    if get_precedence(expr) < min_precedence or (is_operand and has_weights):
        return ["(", *format_expression_pieces(expr), ")"]
    return EXPRESSION_LAYOUTS[type(expr)](expr)


def format_call(expr: ast.Call) -> Pieces:
    """Format a call, e.g. `f(x, out=d) @ name`."""
    arguments = [format_expression_pieces(a) for a in expr.args]
    arguments += [[f"{o.name}=", *format_expression_pieces(o.value)] for o in expr.options]
    weights = [f" @ {format_weight_path(expr.weights)}"] if expr.weights is not None else []
    return [expr.function.path, "(", *join_with_commas(arguments), ")", *weights]


def join_with_commas(
    parts: Iterable[Pieces], separator: str = ",", line_break: LineBreak = SPACE_BREAK
) -> Pieces:
    """Join parts with a separator and line breaks. Line breaks inside a part are penalized."""
    pieces: Pieces = []
    for n, part in enumerate(parts):
        if n:
            pieces += [separator, line_break]
        pieces += [
            p if isinstance(p, str) else LineBreak(p.flat, p.bonus - ITEM_PENALTY) for p in part
        ]
    return pieces


def format_binary(expr: ast.Binary) -> Pieces:
    """Format a chain such as `a + b - c`, iteratively because a long sum is deeply nested."""
    # powers are right-associative, so they do not form chains
    if expr.op == "**":
        return [
            *format_expression_pieces(expr.left, POSTFIX, is_operand=True),
            " ** ",
            *format_expression_pieces(expr.right, SIGN, is_operand=True),
        ]
    operations: list[Pieces] = []
    left: ast.Expr = expr
    precedence = BINARY_LEVELS[expr.op]
    while isinstance(left, ast.Binary) and left.op != "**" and BINARY_LEVELS[left.op] >= precedence:
        precedence = BINARY_LEVELS[left.op]
        right = format_expression_pieces(left.right, precedence + 1, is_operand=True)
        operations.append([SPACE_BREAK, f"{left.op} ", *right])
        left = left.left
    pieces = format_expression_pieces(left, precedence, is_operand=True)
    for end in reversed(operations):
        pieces += end
    return pieces


def format_comparison(expr: ast.Compare) -> Pieces:
    """Format a comparison, e.g. `0 <= i - j < n`."""
    pieces = format_expression_pieces(expr.operands[0], SUM, is_operand=True)
    for op, right in zip(expr.ops, expr.operands[1:], strict=True):
        pieces += [SPACE_BREAK, f"{op} ", *format_expression_pieces(right, SUM, is_operand=True)]
    return pieces


def format_unary(expr: ast.Unary) -> Pieces:
    """Format a unary operation, `-x` or `not x`."""
    sign, precedence = ("not ", NOT) if expr.op == "not" else ("-", SIGN)
    return [sign, *format_expression_pieces(expr.operand, precedence, is_operand=True)]


EXPRESSION_LAYOUTS: Mapping[type[ast.Expr], Callable[..., Pieces]] = {
    ast.NumberLiteral: lambda e: [e.text],
    ast.TextLiteral: lambda e: [quote_text(e.value)],
    ast.Name: lambda e: [e.path],
    ast.Call: format_call,
    ast.Index: lambda e: [
        *format_expression_pieces(e.base, POSTFIX, is_operand=True),
        "[",
        *format_subscripts(e.items),
        "]",
    ],
    ast.ListLiteral: lambda e: [
        "[",
        *join_with_commas(map(format_expression_pieces, e.items)),
        "]",
    ],
    ast.ListComprehension: lambda e: [
        "[",
        *format_expression_pieces(e.item),
        SPACE_BREAK,
        f"for {e.variable} in ",
        *format_expression_pieces(e.iterable),
        "]",
    ],
    ast.RecordLiteral: lambda e: ["{", *join_with_commas(map(format_record_field, e.fields)), "}"],
    ast.Unary: format_unary,
    ast.Binary: format_binary,
    ast.Compare: format_comparison,
    # conditionals are right-associative: `a if c else b if d else e` needs no parentheses
    ast.Conditional: lambda e: [
        *format_expression_pieces(e.then, OR),
        SPACE_BREAK,
        "if ",
        *format_expression_pieces(e.condition, OR),
        SPACE_BREAK,
        "else ",
        *format_expression_pieces(e.otherwise),
    ],
}
"""The formatters of expressions, by AST class."""


def format_record_field(field: ast.Option) -> Pieces:
    """Format a field of a record literal, as in `layers = 4`."""
    return [f"{field.name} = ", *format_expression_pieces(field.value)]


def format_subscripts(items: Sequence[ast.Expr | ast.Slice | ast.EllipsisDims]) -> Pieces:
    """Format the subscripts of an index expression, as in `:, 0`."""
    return join_with_commas(format_subscript(item) for item in items)


def format_subscript(item: ast.Expr | ast.Slice | ast.EllipsisDims) -> Pieces:
    """Format a subscript: an index, a slice or `...`."""
    match item:
        case ast.EllipsisDims():
            return ["..."]
        case ast.Slice():
            start = format_expression_pieces(item.start) if item.start is not None else []
            stop = format_expression_pieces(item.stop) if item.stop is not None else []
            # `a:b:` is equivalent to `a:b`
            step = [":", *format_expression_pieces(item.step)] if item.step is not None else []
            return [*start, ":", *stop, *step]
        case _:
            return format_expression_pieces(item)


def format_type_name(kind: ast.TypeName) -> str:
    """Format a type on one line."""
    return join_pieces(split_type_for_printing(kind))


def split_type_for_printing(kind: ast.TypeName) -> Pieces:
    """Format a type, e.g. `float[batch, n]` or `choice(a | b)?`."""
    suffix = ("?" if kind.optional else "") + (f" {kind.side}" if kind.side else "")
    if kind.element_type is not None:
        return [kind.name, "[", *split_type_for_printing(kind.element_type), "]", suffix]
    if kind.name == "choice" and kind.names:
        return [
            "choice",
            "(",
            *join_with_commas(([quote_unless_name(n)] for n in kind.names), " |"),
            ")",
            suffix,
        ]
    if kind.name == "record":
        return [*format_record_type(kind.fields), suffix]
    # `dims` is None for a type without brackets, and empty for `[]`
    if kind.dims is None:
        return [kind.name + suffix]
    return [f"{kind.name}[{join_pieces(format_subscripts(kind.dims))}]{suffix}"]


def format_record_type(fields: Sequence[ast.Field]) -> Pieces:
    """Format a record type, as in `record { layers: int = 4 }`."""
    if not fields:
        return ["record {}"]
    parts = join_with_commas((format_field(f) for f in fields), "", LineBreak("  "))
    return ["record ", "{", SPACE_BREAK, *parts, SPACE_BREAK, "}"]


def format_field(field: ast.Field) -> Pieces:
    """Format a config field, as in `layers: int from "n_layer" = 12 "number of layers"`."""
    return [f"{field.name}: ", *split_type_for_printing(field.type), *format_field_suffix(field)]


def format_field_suffix(field: ast.Field) -> Pieces:
    """Format the sources, the default value and the docstring of a config field."""
    pieces: Pieces = []
    if field.sources:
        pieces += [
            SPACE_BREAK,
            "from ",
            *join_with_commas((format_expression_pieces(s) for s in field.sources), " |"),
        ]
    if field.default is not None:
        pieces += [SPACE_BREAK, "= ", *format_expression_pieces(field.default)]
    if field.doc:
        pieces += [SPACE_BREAK, quote_text(field.doc)]
    return pieces
