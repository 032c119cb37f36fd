"""Print expressions and types as DSL text with minimal parentheses."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from specc.syntax import ast

MAX_LINE_WIDTH = 110
CONTINUATION_INDENT = 4
"""Indentation, in columns, of a continued line that is not aligned with an opening bracket."""

BRACKET_DEPTH_PENALTY = 30
"""Penalty of a line break per enclosing bracket, in unused columns."""
ITEM_PENALTY = 60
"""Penalty of a line break inside a list item, in unused columns."""


@dataclass(frozen=True, slots=True)
class LineBreak:
    """A possible line break, printed as `flat` if unused. A break with a higher `bonus`, in unused
    columns, is preferred.
    """

    flat: str = " "
    bonus: int = 0


SPACE_BREAK = LineBreak(" ")
SECTION_BREAK = LineBreak(" ", 80)
"""A break between the parts of a header: before `->` and `where`."""
TARGET_BREAK = LineBreak(" ", -MAX_LINE_WIDTH)
"""A break between the targets of an assignment."""

Pieces = list[str | LineBreak]


@dataclass(frozen=True, slots=True)
class BreakPoint:
    """A possible break in the current line: its index in the pieces, its score, and the columns
    of the open brackets.
    """

    index: int
    score: int
    open_columns: tuple[int, ...]


def join_pieces(pieces: Pieces) -> str:
    """Join pieces on one line."""
    return "".join(p if isinstance(p, str) else p.flat for p in pieces)


def break_lines(pieces: Pieces, indent: int, width: int = MAX_LINE_WIDTH) -> list[str]:
    """Break pieces into lines; the first is indented by `indent` columns."""
    if indent + _measure_flat_width(pieces) <= width:
        return [" " * indent + join_pieces(pieces)]
    # greedy: fill the line; at the first break beyond the width, return to the break on the line
    # with the best score, i.e. the least nested break
    chunk_widths = measure_chunks(pieces)
    done: list[str] = []
    line = [" " * indent]
    column = indent
    opened: tuple[int, ...] = (indent + CONTINUATION_INDENT,)
    break_points: list[BreakPoint] = []
    first = 0
    n = 0
    while n < len(pieces):
        piece = pieces[n]
        if isinstance(piece, str):
            line.append(piece)
            column += len(piece)
            if piece in ("(", "[", "{"):
                opened = (
                    *opened,
                    column if column <= width * 0.6 else indent + CONTINUATION_INDENT * len(opened),
                )
            elif piece in (")", "]", "}"):
                opened = opened[:-1]
        else:
            break_points.append(
                BreakPoint(n, column + piece.bonus - BRACKET_DEPTH_PENALTY * len(opened), opened)
            )
            if column + len(piece.flat) + chunk_widths[n + 1] > width:
                best = max(break_points, key=lambda p: p.score)
                # the text after the break begins the next line
                line = line[: best.index - first + 1]
                done.append("".join(line).rstrip())
                opened, n = best.open_columns, best.index + 1
                column = opened[-1]
                line, break_points, first = [" " * column], [], n
                continue
            line.append(piece.flat)
            column += len(piece.flat)
        n += 1
    return [*done, "".join(line).rstrip()]


def _measure_flat_width(pieces: Pieces) -> int:
    """Return the width of pieces on one line."""
    return sum(len(p) if isinstance(p, str) else len(p.flat) for p in pieces)


def print_comment_lines(texts: Iterable[str], indent: int) -> list[str]:
    """Print comment lines; both syntaxes start them with `#`."""
    return [" " * indent + f"# {text}".rstrip() for text in texts]


def measure_chunks(pieces: Pieces) -> list[int]:
    """Return, for each index in `pieces`, the columns up to the next break."""
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
    """Escape a character in a string. Invisible characters are written as code points."""
    if character in TEXT_ESCAPES:
        return TEXT_ESCAPES[character]
    return character if is_visible_character(character) else f"\\u{{{ord(character):X}}}"


def is_visible_character(character: str) -> bool:
    """Return True if a character is visible in an editor and does not affect other characters."""
    return character == " " or (character.isprintable() and character not in "\u2028\u2029")


def quote_unless_name(text: str) -> str:
    """Return a string without quotes if it is a name, otherwise as a string literal."""
    return text if NAME_PATTERN.fullmatch(text) and text not in RESERVED_WORDS else quote_text(text)


def print_quantize_word(text: str) -> str:
    """Print a value of the `quantize` section; omit the quotes of a name or a number."""
    return text if COUNT_PATTERN.fullmatch(text) else quote_unless_name(text)


def print_weight_path(name: ast.WeightName) -> str:
    """Print a weight name; omit the quotes if it consists of names and numbers."""
    return name.text if DOTTED_PATH.fullmatch(name.text) else quote_text(name.text)


def print_expression(expr: ast.Expr) -> str:
    """Print an expression on one line."""
    return join_pieces(layout_expression(expr))


def get_precedence(expr: ast.Expr) -> int:
    """Return the precedence of the outermost operator of an expression."""
    match expr:
        case ast.Binary():
            return BINARY_LEVELS[expr.op]
        case ast.Unary():
            return NOT if expr.op == "not" else SIGN
    return {ast.Conditional: CONDITIONAL, ast.Compare: COMPARE}.get(type(expr), POSTFIX)


def layout_expression(
    expr: ast.Expr, min_precedence: int = CONDITIONAL, is_operand: bool = False
) -> Pieces:
    """Lay out an expression, parenthesized if its operator is below `min_precedence`."""
    # `(f(x) @ name) + y` has parentheses for readability; the grammar does not need them
    has_weights = isinstance(expr, ast.Call) and expr.weights is not None
    if get_precedence(expr) < min_precedence or (is_operand and has_weights):
        return ["(", *layout_expression(expr), ")"]
    return EXPRESSION_LAYOUTS[type(expr)](expr)


def layout_call(expr: ast.Call) -> Pieces:
    """Lay out `f(x, out=d) @ name`."""
    arguments = [layout_expression(a) for a in expr.args]
    arguments += [[f"{o.name}=", *layout_expression(o.value)] for o in expr.options]
    weights = [f" @ {print_weight_path(expr.weights)}"] if expr.weights is not None else []
    return [expr.function.path, "(", *join_with_commas(arguments), ")", *weights]


def join_with_commas(
    parts: Iterable[Pieces], separator: str = ",", line_break: LineBreak = SPACE_BREAK
) -> Pieces:
    """Join parts with a separator and line breaks; breaks within a part get a penalty."""
    out: Pieces = []
    for n, part in enumerate(parts):
        if n:
            out += [separator, line_break]
        out += [
            p if isinstance(p, str) else LineBreak(p.flat, p.bonus - ITEM_PENALTY) for p in part
        ]
    return out


def layout_binary(expr: ast.Binary) -> Pieces:
    """Lay out `a + b - c`, iterating over left operands, since long sums exceed the stack."""
    # powers are right-associative, so they form no chain
    if expr.op == "**":
        return [
            *layout_expression(expr.left, POSTFIX, is_operand=True),
            " ** ",
            *layout_expression(expr.right, SIGN, is_operand=True),
        ]
    ends: list[Pieces] = []
    left: ast.Expr = expr
    precedence = BINARY_LEVELS[expr.op]
    while isinstance(left, ast.Binary) and left.op != "**" and BINARY_LEVELS[left.op] >= precedence:
        precedence = BINARY_LEVELS[left.op]
        right = layout_expression(left.right, precedence + 1, is_operand=True)
        ends.append([SPACE_BREAK, f"{left.op} ", *right])
        left = left.left
    out = layout_expression(left, precedence, is_operand=True)
    for end in reversed(ends):
        out += end
    return out


def layout_comparison(expr: ast.Compare) -> Pieces:
    """Lay out `0 <= i - j < n`."""
    out = layout_expression(expr.operands[0], SUM, is_operand=True)
    for op, right in zip(expr.ops, expr.operands[1:], strict=True):
        out += [SPACE_BREAK, f"{op} ", *layout_expression(right, SUM, is_operand=True)]
    return out


def layout_unary(expr: ast.Unary) -> Pieces:
    """Lay out `-x` or `not x`."""
    sign, precedence = ("not ", NOT) if expr.op == "not" else ("-", SIGN)
    return [sign, *layout_expression(expr.operand, precedence, is_operand=True)]


EXPRESSION_LAYOUTS: Mapping[type[ast.Expr], Callable[..., Pieces]] = {
    ast.NumberLiteral: lambda e: [e.text],
    ast.TextLiteral: lambda e: [quote_text(e.value)],
    ast.Name: lambda e: [e.path],
    ast.Call: layout_call,
    ast.Index: lambda e: [
        *layout_expression(e.base, POSTFIX, is_operand=True),
        "[",
        *layout_subscripts(e.items),
        "]",
    ],
    ast.ListLiteral: lambda e: ["[", *join_with_commas(map(layout_expression, e.items)), "]"],
    ast.ListComprehension: lambda e: [
        "[",
        *layout_expression(e.item),
        SPACE_BREAK,
        f"for {e.variable} in ",
        *layout_expression(e.iterable),
        "]",
    ],
    ast.RecordLiteral: lambda e: ["{", *join_with_commas(map(layout_record_field, e.fields)), "}"],
    ast.Unary: layout_unary,
    ast.Binary: layout_binary,
    ast.Compare: layout_comparison,
    # conditionals are right-associative: `a if c else b if d else e` needs no brackets
    ast.Conditional: lambda e: [
        *layout_expression(e.then, OR),
        SPACE_BREAK,
        "if ",
        *layout_expression(e.condition, OR),
        SPACE_BREAK,
        "else ",
        *layout_expression(e.otherwise),
    ],
}
"""Layouts of expressions."""


def layout_record_field(field: ast.Option) -> Pieces:
    """Lay out `layers = 4` in a record."""
    return [f"{field.name} = ", *layout_expression(field.value)]


def layout_subscripts(items: Sequence[ast.Expr | ast.Slice | ast.EllipsisDims]) -> Pieces:
    """Lay out `:, 0`."""
    return join_with_commas(layout_subscript(item) for item in items)


def layout_subscript(item: ast.Expr | ast.Slice | ast.EllipsisDims) -> Pieces:
    """Lay out one index, slice or `...`."""
    match item:
        case ast.EllipsisDims():
            return ["..."]
        case ast.Slice():
            start = layout_expression(item.start) if item.start is not None else []
            stop = layout_expression(item.stop) if item.stop is not None else []
            # `a:b:` is the same as `a:b`
            step = [":", *layout_expression(item.step)] if item.step is not None else []
            return [*start, ":", *stop, *step]
        case _:
            return layout_expression(item)


def print_type(kind: ast.TypeName) -> str:
    """Print a type on one line."""
    return join_pieces(layout_type(kind))


def layout_type(kind: ast.TypeName) -> Pieces:
    """Lay out `float[batch, n]`, `choice(a | b)?`, `record { … }`."""
    end = ("?" if kind.optional else "") + (f" {kind.side}" if kind.side else "")
    if kind.element_type is not None:
        return [kind.name, "[", *layout_type(kind.element_type), "]", end]
    if kind.name == "choice" and kind.names:
        return [
            "choice",
            "(",
            *join_with_commas(([quote_unless_name(n)] for n in kind.names), " |"),
            ")",
            end,
        ]
    if kind.name == "record":
        return [*layout_record_type(kind.fields), end]
    # dims are None without brackets; `[]` is an empty tuple
    if kind.dims is None:
        return [kind.name + end]
    return [f"{kind.name}[{join_pieces(layout_subscripts(kind.dims))}]{end}"]


def layout_record_type(fields: Sequence[ast.Field]) -> Pieces:
    """Lay out `record { layers: int = 4 }`."""
    if not fields:
        return ["record {}"]
    parts = join_with_commas((layout_field(f) for f in fields), "", LineBreak("  "))
    return ["record ", "{", SPACE_BREAK, *parts, SPACE_BREAK, "}"]


def layout_field(field: ast.Field) -> Pieces:
    """Lay out `layers: int from "n_layer" = 12 "how many"`."""
    return [f"{field.name}: ", *layout_type(field.type), *layout_field_suffix(field)]


def layout_field_suffix(field: ast.Field) -> Pieces:
    """Lay out the sources, default and docstring of a config value."""
    out: Pieces = []
    if field.sources:
        out += [
            SPACE_BREAK,
            "from ",
            *join_with_commas((layout_expression(s) for s in field.sources), " |"),
        ]
    if field.default is not None:
        out += [SPACE_BREAK, "= ", *layout_expression(field.default)]
    if field.doc:
        out += [SPACE_BREAK, quote_text(field.doc)]
    return out
