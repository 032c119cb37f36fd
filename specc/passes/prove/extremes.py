"""Numbers that no element of a value is below or above, whatever its inputs hold.

On entry: any value. On leaving: the least and the most that it can be, infinite where
nothing is seen. Weights of a softmax lie between 0 and 1, row numbers are 0 and above,
and one more than a row number is 1 and above. What is no number is not looked for.
"""

from collections.abc import Callable, Mapping
from math import inf, isnan
from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Node, Value

Extremes: TypeAlias = tuple[float, float]
"""The least and the most."""

ANY: Extremes = (-inf, inf)
SHARES: Extremes = (0.0, 1.0)
COUNTS: Extremes = (0.0, inf)

FUNCTIONS: Mapping[str, Extremes] = {
    "abs": COUNTS,
    "cos": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "exp": COUNTS,
    "expm1": (-1.0, inf),
    "relu": COUNTS,
    "relu2": COUNTS,
    "sigmoid": SHARES,
    "sign": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "softplus": COUNTS,
    "sqrt": COUNTS,
    "tanh": (-1.0, 1.0),
}
"""What functions of `Pointwise` give, whatever they are given."""

WEIGHTS = (ops.Softmax, ops.MaskedSoftmax, ops.Hard, ops.Share, ops.OneHot)
NUMBERS = (ops.Extent, ops.Range, ops.ArgMax, ops.Size)
PICKING = (*(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Gather, ops.Sort, ops.TopK),)
"""Ops whose results are rows of their first operand."""

COMPUTING = (
    *(ops.Arith, ops.Pointwise, ops.Where, ops.Concat, ops.Cast),
    *(ops.Reduce, ops.CumSum),
)
"""Ops of whose results something is said by what they are given."""

MOST_VALUES = 5_000
"""How many values are looked at; behind them anything may be."""


def extremes(value: Value | None) -> Extremes:
    """The least and the most that any element can be."""
    if value is None:
        return ANY
    # Each value once, on a stack of our own: a stream that every layer adds to is
    # reached in twice as many ways with each of them.
    known: dict[Value, Extremes] = {}
    todo = [value]
    while todo:
        at = todo[-1]
        missing = [a for a in _asked(at) if a not in known]
        if at in known or not missing or len(known) > MOST_VALUES:
            known.setdefault(at, ANY if missing else _of(at, known))
            todo.pop()
        else:
            todo += missing
    return known[value]


def _asked(value: Value) -> list[Value]:
    """The operands that tell something of a value."""
    node = value.node
    if node is None or value.type.dtype == "bool" or isinstance(node.op, NUMBERS):
        return []
    if isinstance(node.op, PICKING):
        # the second result is row numbers, whatever the rows hold
        return [] if value.index or node.first is None else [node.first]
    tells = node.op.view or isinstance(node.op, COMPUTING)
    return [a for a in node.args if a] if tells else []


def _of(value: Value, known: Mapping[Value, Extremes]) -> Extremes:
    node = value.node
    if value.type.dtype == "bool" or (node and isinstance(node.op, WEIGHTS)):
        return SHARES
    if node is None:
        return ANY
    picked = isinstance(node.op, PICKING)
    if isinstance(node.op, NUMBERS) or (picked and value.index):
        return COUNTS  # row numbers, the second result of what picks rows too
    given = [known[a] for a in _asked(value)]
    return given[0] if picked else _made(node, value, given)


def _made(node: Node, value: Value, given: list[Extremes]) -> Extremes:
    """What an op that computes can give of what it is given."""
    if node.op.view and given:
        return given[0]
    match node.op:
        case ops.Constant(value=number):
            return float(number), float(number)
        case ops.Pointwise(fn="neg"):
            return -given[0][1], -given[0][0]
        case ops.Pointwise(fn=fn):
            return FUNCTIONS.get(fn, ANY)
        case ops.Arith(fn=fn):
            return _arithmetic(fn, *given)
        case ops.Where():
            return _either(given[1:])
        case ops.Concat() | ops.Cast():
            return _either(given)
        case ops.Attend() if value.index == node.op.weights_result:
            return SHARES
        case ops.Reduce(fn="sum") | ops.CumSum():
            # Of what is not negative a sum is not negative.
            return COUNTS if given[0][0] >= 0 else ANY
    return ANY


def _either(given: list[Extremes]) -> Extremes:
    return min(low for low, _ in given), max(high for _, high in given)


def _arithmetic(fn: str, one: Extremes, other: Extremes) -> Extremes:
    """Of two numbers, each between its own ends."""
    match fn:
        case "add":
            return _ends(one[0] + other[0], one[1] + other[1])
        case "sub":
            return _ends(one[0] - other[1], one[1] - other[0])
        case "mul" | "div" if one[0] >= 0 and other[0] >= 0:
            return _ends(one[0] * other[0], inf) if fn == "mul" else COUNTS
        case "max" | "min":
            pick: Callable[[float, float], float] = max if fn == "max" else min
            return pick(one[0], other[0]), pick(one[1], other[1])
        case "pow" if other[0] == other[1] and other[0] % 2 == 0:
            return COUNTS
    return ANY


def _ends(low: float, high: float) -> Extremes:
    """Two ends; infinity less infinity is no end."""
    return -inf if isnan(low) else low, inf if isnan(high) else high


__all__ = ["Extremes", "extremes"]
