"""Expressions and types → text: as few parentheses as the grammar needs, and around
weighted operands.
"""

import re
from collections.abc import Iterable, Sequence

from specc.lang import tree
from specc.lang.dsl.layout import SPACE, Break, Pieces, flat

CHOICE, OR, AND, NOT, COMPARE, SUM, PRODUCT, SIGN, POWER, POSTFIX = range(10)
BINARY = {
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
COMPONENT = r"(?:[A-Za-z_][A-Za-z0-9_]*|0|[1-9][0-9]{0,8})"
DOTTED = re.compile(rf"{COMPONENT}(?:\.{COMPONENT})*")
COUNT = re.compile(r"0|[1-9][0-9]{0,8}")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = frozenset(
    ["in", "if", "else", "for", "not", "repeat", "scan", "when", "return", "require"]
)


def quote(text: str) -> str:
    """A text as the language writes it."""
    return '"' + "".join(map(_written, text)) + '"'


ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _written(character: str) -> str:
    """A character between quotes; by its number where nobody could see it."""
    if character in ESCAPES:
        return ESCAPES[character]
    return character if visible(character) else f"\\u{{{ord(character):X}}}"


def visible(character: str) -> bool:
    """Whether a character shows in an editor and changes nothing around it."""
    return character == " " or (
        character.isprintable() and character not in "\u2028\u2029"
    )


def title(text: str) -> str:
    """The name of a model or a choice: bare if it is a name."""
    return text if NAME.fullmatch(text) and text not in RESERVED else quote(text)


def word(text: str) -> str:
    """A word of `quantize`: bare if it is a name or a number."""
    return text if COUNT.fullmatch(text) else title(text)


def path(name: tree.WeightName) -> str:
    """The name of weights: bare if it is made of names and numbers."""
    return name.text if DOTTED.fullmatch(name.text) else quote(name.text)


def one_line(expr: tree.Expr) -> str:
    """An expression on one line."""
    return flat(pieces(expr))


def level(expr: tree.Expr) -> int:
    """How tightly the outermost operator of an expression binds."""
    match expr:
        case tree.Choice():
            return CHOICE
        case tree.Binary():
            return BINARY[expr.op]
        case tree.Unary():
            return NOT if expr.op == "not" else SIGN
        case tree.Compare():
            return COMPARE
        case _:
            return POSTFIX


def pieces(expr: tree.Expr, least: int = CHOICE, operand: bool = False) -> Pieces:
    """The text of an expression where only operators of at least level `least` may stand bare."""
    # the grammar needs no brackets in `(f(x) @ name) + y`, but a reader does
    weighted = isinstance(expr, tree.Call) and expr.weights is not None
    if level(expr) < least or (operand and weighted):
        return ["(", *pieces(expr), ")"]
    match expr:
        case tree.Num():
            return [expr.text]
        case tree.Text():
            return [quote(expr.value)]
        case tree.Name():
            return [expr.path]
        case tree.Call():
            return call(expr)
        case tree.Index():
            base = pieces(expr.base, POSTFIX, operand=True)
            return [*base, "[", *subscripts(expr.items), "]"]
        case tree.ListOf() | tree.ListFor() | tree.RecordOf():
            return collection(expr)
        case _:
            return operation(expr)


def operation(expr: tree.Unary | tree.Binary | tree.Compare | tree.Choice) -> Pieces:
    """An operator with its operands."""
    match expr:
        case tree.Unary():
            sign, bound = ("not ", NOT) if expr.op == "not" else ("-", SIGN)
            return [sign, *pieces(expr.operand, bound, operand=True)]
        case tree.Binary():
            return binary(expr)
        case tree.Compare():
            return compare(expr)
        case tree.Choice():
            # a choice groups to the right: `a if c else b if d else e` needs no brackets
            then, condition = pieces(expr.then, OR), pieces(expr.condition, OR)
            otherwise = pieces(expr.otherwise)
            return [*then, SPACE, "if ", *condition, SPACE, "else ", *otherwise]


def collection(expr: tree.ListOf | tree.ListFor | tree.RecordOf) -> Pieces:
    """What stands in square or curly brackets."""
    match expr:
        case tree.ListOf():
            return ["[", *joined(pieces(e) for e in expr.items), "]"]
        case tree.ListFor():
            over = [f"for {expr.variable} in ", *pieces(expr.over)]
            return ["[", *pieces(expr.item), SPACE, *over, "]"]
        case tree.RecordOf():
            fields = ([f"{f.name} = ", *pieces(f.value)] for f in expr.fields)
            return ["{", *joined(fields), "}"]


def call(expr: tree.Call) -> Pieces:
    """`f(x, out=d) @ name`."""
    given = [pieces(a) for a in expr.args]
    given += [[f"{o.name}=", *pieces(o.value)] for o in expr.options]
    weights = [f" @ {path(expr.weights)}"] if expr.weights is not None else []
    return [expr.function.path, "(", *joined(given), ")", *weights]


def joined(parts: Iterable[Pieces], between: str = ",", gap: Break = SPACE) -> Pieces:
    """Parts with commas, where lines may be broken."""
    out: Pieces = []
    for n, part in enumerate(parts):
        if n:
            out += [between, gap]
        out += part
    return out


def binary(expr: tree.Binary) -> Pieces:
    """`a + b - c`: a loop along the left operands, so that long sums cost no stack."""
    # a power groups to the right, and so it is no chain
    if expr.op == "**":
        return [
            *pieces(expr.left, POSTFIX, operand=True),
            " ** ",
            *pieces(expr.right, SIGN, operand=True),
        ]
    ends: list[Pieces] = []
    left: tree.Expr = expr
    bound = BINARY[expr.op]
    while (
        isinstance(left, tree.Binary) and left.op != "**" and BINARY[left.op] >= bound
    ):
        bound = BINARY[left.op]
        ends.append(
            [SPACE, f"{left.op} ", *pieces(left.right, bound + 1, operand=True)]
        )
        left = left.left
    out = pieces(left, bound, operand=True)
    for end in reversed(ends):
        out += end
    return out


def compare(expr: tree.Compare) -> Pieces:
    """`0 <= i - j < n`."""
    out = pieces(expr.operands[0], SUM, operand=True)
    for op, right in zip(expr.ops, expr.operands[1:], strict=True):
        out += [SPACE, f"{op} ", *pieces(right, SUM, operand=True)]
    return out


def subscripts(items: Sequence[tree.Expr | tree.Slice | tree.Rest]) -> Pieces:
    """`:, 0`."""
    return joined(subscript(item) for item in items)


def subscript(item: tree.Expr | tree.Slice | tree.Rest) -> Pieces:
    """One index, slice or `...`."""
    match item:
        case tree.Rest():
            return ["..."]
        case tree.Slice():
            start = pieces(item.start) if item.start is not None else []
            stop = pieces(item.stop) if item.stop is not None else []
            # `a:b:` says no more than `a:b`
            step = [":", *pieces(item.step)] if item.step is not None else []
            return [*start, ":", *stop, *step]
        case _:
            return pieces(item)


def type_text(kind: tree.TypeName) -> str:
    """A type on one line."""
    return flat(type_pieces(kind))


def type_pieces(kind: tree.TypeName) -> Pieces:
    """`float[batch, n]`, `choice(a | b)?`, `record { … }`."""
    end = ("?" if kind.optional else "") + (f" {kind.side}" if kind.side else "")
    if kind.of is not None:
        return [kind.name, "[", *type_pieces(kind.of), "]", end]
    if kind.name == "choice" and kind.names:
        return [
            "choice",
            "(",
            *joined(([title(n)] for n in kind.names), " |"),
            ")",
            end,
        ]
    if kind.name == "record":
        if not kind.fields:
            return ["record {}" + end]
        fields = joined((field_pieces(f) for f in kind.fields), "", Break("  "))
        return ["record ", "{", SPACE, *fields, SPACE, "}", end]
    # None: no brackets were written, which is not the same as `[]`
    if kind.dims is None:
        return [kind.name + end]
    return [f"{kind.name}[{flat(subscripts(kind.dims))}]{end}"]


def field_pieces(field: tree.Field) -> Pieces:
    """`layers: int from "n_layer" = 12 "how many"`."""
    return [f"{field.name}: ", *type_pieces(field.type), *field_end(field)]


def field_end(field: tree.Field) -> Pieces:
    """What stands behind the type of a config value."""
    out: Pieces = []
    if field.sources:
        out += [SPACE, "from ", *joined((pieces(s) for s in field.sources), " |")]
    if field.default is not None:
        out += [SPACE, "= ", *pieces(field.default)]
    if field.doc:
        out += [SPACE, quote(field.doc)]
    return out
