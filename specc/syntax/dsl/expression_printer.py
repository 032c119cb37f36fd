"""Print expressions and types as DSL text with minimal parentheses."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax import ast

MAX_LINE_WIDTH = 110
CONTINUATION_INDENT = 4
"""The indentation, in columns, of a continuation line that is not aligned with a bracket."""

BRACKET_DEPTH_PENALTY = 30
"""The penalty of a line break for each enclosing bracket, expressed in unused columns."""
ITEM_PENALTY = 60
"""The penalty of a line break inside a list item, expressed in unused columns."""


@immutable_dataclass
class SoftLineBreak:
    """A possible line break. If there is no line break, the text `flat` is printed. A line break
    with a higher `bonus`, measured in unused columns, is preferred.
    """

    flat: str = " "
    bonus: int = 0


SPACE_BREAK = SoftLineBreak(" ")
SECTION_BREAK = SoftLineBreak(" ", 80)
"""A line break before `->` or `where` in a block header."""
TARGET_BREAK = SoftLineBreak(" ", -MAX_LINE_WIDTH)
"""A line break between the targets of an assignment."""

Pieces = list[str | SoftLineBreak]


@immutable_dataclass
class LineBreakCandidate:
    """A possible line break: the piece index, the score, and the columns of open brackets."""

    index: int
    score: int
    open_columns: tuple[int, ...]


Part: TypeAlias = str | SoftLineBreak | Pieces | ast.Node | None
"""A part of a text: pieces, a syntax tree node, or None for an absent part."""


def join_pieces(pieces: Pieces) -> str:
    """Join pieces into a single line."""
    return "".join(p if isinstance(p, str) else p.flat for p in pieces)


def format_parts(*parts: Part) -> Pieces:
    """Concatenate the pieces of several parts, formatting nodes and omitting absent parts."""
    pieces: Pieces = []
    for part in parts:
        if isinstance(part, list):
            pieces += part
        elif isinstance(part, str | SoftLineBreak):
            pieces.append(part)
        elif part is not None:
            pieces += NODE_LAYOUTS[type(part)](part)
    return pieces


def break_lines(pieces: Pieces, indent: int, width: int = MAX_LINE_WIDTH) -> list[str]:
    """Break pieces into lines of at most `width` columns, the first line indented by `indent`."""
    if indent + _measure_flat_width(pieces) <= width:
        return [" " * indent + join_pieces(pieces)]
    # fill the line up to the maximum width, and then break it at the best candidate
    chunk_widths = measure_unbreakable_widths(pieces)
    lines: list[str] = []
    line = [" " * indent]
    column = indent
    open_columns: tuple[int, ...] = (indent + CONTINUATION_INDENT,)
    break_candidates: list[LineBreakCandidate] = []
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
            # if `}` is on the first line, its opening bracket is on an earlier line
            elif piece in (")", "]", "}") and len(open_columns) > 1:
                open_columns = open_columns[:-1]
        else:
            break_candidates.append(
                LineBreakCandidate(
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
    """Return the number of columns from each piece to the next line break."""
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


def quote_dsl_string(text: str) -> str:
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


def format_name_or_string(text: str) -> str:
    """Return a name unchanged, and quote any other text as a string literal."""
    return (
        text
        if NAME_PATTERN.fullmatch(text) and text not in RESERVED_WORDS
        else quote_dsl_string(text)
    )


def format_setting_value(text: str) -> str:
    """Format a value of a `quantize` section. Names and numbers are not quoted."""
    return text if COUNT_PATTERN.fullmatch(text) else format_name_or_string(text)


def format_expression(expr: ast.Expr) -> str:
    """Format an expression on one line."""
    return join_pieces(format_parts(expr))


def format_inline_type(type: ast.TypeExpr) -> str:
    """Format a type on one line."""
    return join_pieces(format_type(type))


def get_precedence(expr: ast.Expr) -> int:
    """Return the precedence of the outermost operator of an expression."""
    match expr:
        case ast.BinaryOp():
            return BINARY_LEVELS[expr.op]
        case ast.UnaryOp():
            return NOT if expr.op == "not" else SIGN
    return {ast.Conditional: CONDITIONAL, ast.Compare: COMPARE}.get(type(expr), POSTFIX)


def format_operand(expr: ast.Expr, min_precedence: int) -> Pieces:
    """Format an operand. Add parentheses if the precedence is below `min_precedence`."""
    # the grammar does not require the parentheses in `(f(x) @ name) + y`, which are for readability
    has_weights = isinstance(expr, ast.Call) and expr.weights is not None
    if get_precedence(expr) < min_precedence or has_weights:
        return format_parts("(", expr, ")")
    return format_parts(expr)


def join_parts(
    parts: Iterable[Part], separator: str = ",", line_break: SoftLineBreak = SPACE_BREAK
) -> Pieces:
    """Join parts with a separator and line breaks. Line breaks inside a part are penalized."""
    pieces: Pieces = []
    for n, part in enumerate(parts):
        if n:
            pieces += [separator, line_break]
        pieces += [
            p if isinstance(p, str) else SoftLineBreak(p.flat, p.bonus - ITEM_PENALTY)
            for p in format_parts(part)
        ]
    return pieces


def format_call(expr: ast.Call) -> Pieces:
    """Format a call, such as `f(x, out=d) @ name`."""
    options = (format_parts(f"{o.name}=", o.value) for o in expr.options)
    arguments = join_parts((*expr.args, *options))
    weights = expr.weights and format_parts(" @ ", expr.weights)
    return format_parts(expr.function.path, "(", arguments, ")", weights)


def format_binary_chain(expr: ast.BinaryOp) -> Pieces:
    """Format a chain such as `a + b - c` iteratively, because a long sum is deeply nested."""
    # powers are right-associative, so they do not form chains
    if expr.op == "**":
        left, right = format_operand(expr.left, POSTFIX), format_operand(expr.right, SIGN)
        return format_parts(left, " ** ", right)
    operations: list[Pieces] = []
    first: ast.Expr = expr
    precedence = BINARY_LEVELS[expr.op]
    while (
        isinstance(first, ast.BinaryOp)
        and first.op != "**"
        and BINARY_LEVELS[first.op] >= precedence
    ):
        precedence = BINARY_LEVELS[first.op]
        right = format_operand(first.right, precedence + 1)
        operations.append([SPACE_BREAK, f"{first.op} ", *right])
        first = first.left
    return format_parts(format_operand(first, precedence), *reversed(operations))


def format_comparison(expr: ast.Compare) -> Pieces:
    """Format a comparison, such as `0 <= i - j < n`."""
    pieces = format_operand(expr.operands[0], SUM)
    for op, right in zip(expr.ops, expr.operands[1:], strict=True):
        pieces += [SPACE_BREAK, f"{op} ", *format_operand(right, SUM)]
    return pieces


def format_unary_operation(expr: ast.UnaryOp) -> Pieces:
    """Format a unary operation, `-x` or `not x`."""
    sign, precedence = ("not ", NOT) if expr.op == "not" else ("-", SIGN)
    return format_parts(sign, format_operand(expr.operand, precedence))


def format_conditional(expr: ast.Conditional) -> Pieces:
    """Format a conditional. `a if c else b if d else e` needs no parentheses."""
    then, condition = (
        ["(", *format_parts(e), ")"] if isinstance(e, ast.Conditional) else format_parts(e)
        for e in (expr.then, expr.condition)
    )
    otherwise = format_parts("else ", expr.otherwise)
    return format_parts(then, SPACE_BREAK, "if ", condition, SPACE_BREAK, otherwise)


def format_type(type: ast.TypeExpr) -> Pieces:
    """Format a type, such as `float[batch, n]` or `choice(a | b)?`."""
    suffix = ("?" if type.optional else "") + (f" {type.side}" if type.side else "")
    if type.element_type is not None:
        return format_parts(type.name, "[", type.element_type, "]", suffix)
    if type.name == "choice" and type.names:
        names = join_parts(map(format_name_or_string, type.names), " |")
        return format_parts("choice", "(", names, ")", suffix)
    if type.name == "record":
        return [*format_record_type(type.fields), suffix]
    # `dims` is None for a type without brackets, and empty for `[]`
    if type.dims is None:
        return [type.name + suffix]
    return [f"{type.name}[{join_pieces(join_parts(type.dims))}]{suffix}"]


def format_record_type(fields: Sequence[ast.ConfigField]) -> Pieces:
    """Format a record type, as in `record { layers: int = 4 }`."""
    if not fields:
        return ["record {}"]
    parts = join_parts(fields, "", SoftLineBreak("  "))
    return format_parts("record ", "{", SPACE_BREAK, parts, SPACE_BREAK, "}")


def format_field_clauses(field: ast.ConfigField) -> Pieces:
    """Format the sources, the default value and the docstring of a config field."""
    sources = join_parts(field.sources, " |")
    return format_parts(
        format_parts(SPACE_BREAK, "from ", sources) if field.sources else None,
        field.default and format_parts(SPACE_BREAK, "= ", field.default),
        format_parts(SPACE_BREAK, quote_dsl_string(field.doc)) if field.doc else None,
    )


def format_parameter(
    node: ast.BlockParameter | ast.DefinitionParameter | ast.InputDecl | ast.AssignmentTarget,
) -> Pieces:
    """Format a parameter or a target, as in `x: float[batch, n] = 0`, `ahead=0` or `float`."""
    if not node.name:  # a single unnamed result is printed as its type
        return format_parts(node.type)
    if isinstance(node, ast.BlockParameter) and node.is_from_inputs:
        return [node.name]
    declared_type = node.type and format_parts(": ", node.type)
    default = None if isinstance(node, ast.AssignmentTarget) else node.default
    equal = " = " if node.type else "="
    return format_parts(node.name, declared_type, default and format_parts(equal, default))


NODE_LAYOUTS: Mapping[type[ast.Node], Callable[..., Pieces]] = {
    ast.NumberLiteral: lambda e: [e.text],
    ast.StringLiteral: lambda e: [quote_dsl_string(e.value)],
    ast.Name: lambda e: [e.path],
    ast.Call: format_call,
    ast.Index: lambda e: format_parts(
        format_operand(e.base, POSTFIX), "[", join_parts(e.items), "]"
    ),
    ast.Slice: lambda e: format_parts(
        # `a:b:` is equivalent to `a:b`
        e.start,
        ":",
        e.stop,
        e.step and format_parts(":", e.step),
    ),
    ast.EllipsisDims: lambda _: ["..."],
    ast.ListLiteral: lambda e: format_parts("[", join_parts(e.items), "]"),
    ast.ListComprehension: lambda e: format_parts(
        "[", e.item, SPACE_BREAK, f"for {e.variable} in ", e.iterable, "]"
    ),
    ast.RecordLiteral: lambda e: format_parts(
        "{", join_parts(format_parts(f"{o.name} = ", o.value) for o in e.fields), "}"
    ),
    ast.UnaryOp: format_unary_operation,
    ast.BinaryOp: format_binary_chain,
    ast.Compare: format_comparison,
    ast.Conditional: format_conditional,
    # a path of names and numbers is not quoted
    ast.WeightPath: lambda e: [
        e.text if DOTTED_PATH.fullmatch(e.text) else quote_dsl_string(e.text)
    ],
    ast.TypeExpr: format_type,
    ast.AssignmentTarget: format_parameter,
    ast.BlockParameter: format_parameter,
    ast.DefinitionParameter: format_parameter,
    ast.InputDecl: format_parameter,
    ast.Equation: lambda e: format_parts(f"{e.name} = ", e.value),
    # the default lower bound 0 is omitted
    ast.DimDecl: lambda d: [f"{d.name} >= {d.minimum}" if d.minimum else d.name],
    ast.ConfigField: lambda f: format_parts(f"{f.name}: ", f.type, format_field_clauses(f)),
}
"""The formatters of expressions, types and other parts of a statement, keyed by AST class."""
