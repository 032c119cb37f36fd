"""What a requirement tells about symbols: `a % b == 0` makes `a / b` a symbol, `a == b`
makes them one.
"""

from dataclasses import replace

from specc.elaborate.context import Context, Env
from specc.elaborate.expressions import plain
from specc.elaborate.needs import NeedsValue
from specc.elaborate.values import (
    DefinitionFunction,
    Joined,
    Known,
    MaskLike,
    Record,
    WordFunction,
)
from specc.ir.dim import Dim, Part
from specc.lang import tree
from specc.text.diagnostic import Failed


def _divisible(config: dict[str, Known], whole: Dim, divisor: Dim) -> dict[str, Known]:
    """The config where `whole` is a multiple of `divisor`."""
    # of `side % window == 0`, with `side` as `image / patch`, `image` is the product of
    # all three
    parted, by = _parts_of(whole) or (whole, Dim.of(1))
    # `d % d == 0` and the like say nothing: `d` would be made of itself
    if not parted.name or parted.name in (by * divisor).symbols():
        return config
    quotient = Dim.symbol(f"{whole} / {divisor}", parted.origin)
    return _replaced(config, {parted.name: by * divisor * quotient})


def _equal(config: dict[str, Known], left: Dim, right: Dim) -> dict[str, Known]:
    """The config with a symbol that is one side replaced by the other side."""
    for one, other in ((left, right), (right, left)):
        # a symbol that is part of the other side cannot give way to it
        if one.name and one.name not in other.symbols():
            return _replaced(config, {one.name: other})
    return config


def assume(
    context: Context, condition: tree.Expr, config: dict[str, Known], env: Env
) -> dict[str, Known]:
    """The config with symbols replaced by what the condition says of them."""
    match condition:
        case tree.Binary(op="&"):
            # each part may use what the parts before it say
            for part in _joined(condition):
                inner = Env(module=env.module, config=config)
                config = assume(context, part, config, inner)
        case tree.Binary(op="|", left=a, right=b):
            # `not shared | vocab == target_vocab`: where `shared` holds, the rest must
            for ruled_out, left_over in ((a, b), (b, a)):
                if _value(context, ruled_out, env) is False:
                    return assume(context, left_over, config, env)
        case tree.Compare(
            ops=("==",),
            operands=(tree.Binary(op="%", left=a, right=b), tree.Num(text="0")),
        ):
            # `d % heads == 0`: from here on `d` is `heads * (d / heads)`, which `heads`
            # divides
            whole, divisor = _dim(context, a, env), _dim(context, b, env)
            if whole and divisor:
                return _divisible(config, whole, divisor)
        case tree.Compare(ops=("==",), operands=(a, b)):
            # `a == b` of two symbols: one is put for the other everywhere
            left, right = _dim(context, a, env), _dim(context, b, env)
            if left and right:
                return _equal(config, left, right)
    return config


def _parts_of(length: Dim) -> tuple[Dim, Dim] | None:
    """The `p` and `q` of a length that is `p / q` and no more."""
    match length.terms:
        case (((((Part("/", args), 1),)), 1),):
            return args
    return None


def _joined(condition: tree.Binary) -> list[tree.Expr]:
    """The parts of `a & b & c`, of which there may be thousands."""
    parts: list[tree.Expr] = []
    left: tree.Expr = condition
    while isinstance(left, tree.Binary) and left.op == "&":
        parts.append(left.right)
        left = left.left
    return [left, *reversed(parts)]


def _dim(context: Context, expr: tree.Expr, env: Env) -> Dim | None:
    value = _value(context, expr, env)
    return value if isinstance(value, Dim) else None


def _value(context: Context, expr: tree.Expr, env: Env) -> Known:
    try:
        return plain(context, expr, env)
    # a condition that cannot be worked out yet says nothing; it is held again later
    except (Failed, NeedsValue):
        return None


def _replaced(config: dict[str, Known], values: dict[str, Dim]) -> dict[str, Known]:
    return {k: _in(v, values) for k, v in config.items()}


def _in(value: Known, values: dict[str, Dim]) -> Known:
    match value:
        case Dim() as dim:
            return dim.substitute(values)
        case Record(fields=fields):
            return replace(value, fields={k: _in(v, values) for k, v in fields.items()})
        case tuple(items):
            return tuple(_in(i, values) for i in items)
        # the arguments that a function holds: `window(width)` of a config value
        case DefinitionFunction(given=given) | WordFunction(given=given) if given:
            return replace(value, given={k: _in(v, values) for k, v in given.items()})
        case Joined(op, parts):
            made = (_in(part, values) for part in parts)
            return Joined(op, tuple(m for m in made if isinstance(m, MaskLike)))
        case _:
            return value
