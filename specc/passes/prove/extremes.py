"""Numbers that no element of a value is below or above, whatever its inputs hold.

On entry: any value. On leaving: the least and the most that it can be, infinite where
nothing is seen. Weights of a softmax lie between 0 and 1, row numbers are 0 and above,
and one more than a row number is 1 and above. What is no number is not looked for.
"""

from collections.abc import Callable, Mapping
from math import exp, inf, isnan, log1p, sqrt
from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.passes.prove.seen import number_or_infinity, topped

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

RISING = ("sqrt", "exp", "softplus", "sigmoid")
"""Functions that grow with their operand."""

WEIGHTS = (ops.Softmax, ops.MaskedSoftmax, ops.Hard, ops.Share, ops.OneHot)
NUMBERS = (ops.Extent, ops.Range, ops.ArgMax, ops.Size)
PICKING = (
    *(ops.Slice, ops.Stride, ops.Index, ops.Last, ops.Flip, ops.Roll),
    *(ops.Gather, ops.Sort, ops.TopK),
)
"""Ops whose results are rows of their first operand."""

COMPUTING = (
    *(ops.Arith, ops.Pointwise, ops.Where, ops.Concat, ops.Cast),
    *(ops.Reduce, ops.CumSum, ops.AveragePool, ops.Delay),
    *(ops.Einsum, ops.MatMul, ops.Weigh),
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
        case ops.Pointwise(fn=fn):
            return _function(fn, given[0])
        case ops.Arith(fn=fn):
            return _arithmetic(fn, node, *given)
        case ops.Where():
            return _either([_refined(node, n, g) for n, g in enumerate(given) if n])
        case ops.Einsum() | ops.MatMul() | ops.Weigh():
            return COUNTS if min(given)[0] >= 0 else ANY
        case ops.Concat() | ops.Cast():
            return _either(given)
        case ops.Attend() if value.index == node.op.weights_result:
            return SHARES
        case ops.Reduce() | ops.CumSum() | ops.AveragePool():
            return _folded(node, given[0])
        case ops.Delay(first=first):
            return _either([given[0], (float(first), float(first))])
    return ANY


def _folded(node: Node, given: Extremes) -> Extremes:
    """Bounds of what is made of several elements."""
    match node.op:
        case ops.Reduce(fn="sum", axis=axis) if topped(node.first, axis):
            return 1.0, inf
        case ops.Reduce(fn="mean") | ops.AveragePool():
            return _either([given, (0.0, 0.0)])  # the mean of nothing is zero
        case ops.Reduce(fn="max" | "min", axis=axis) if node.first is not None:
            return given if (node.first.type.shape[axis].number or 0) > 0 else ANY
        case ops.Reduce(fn="sum") | ops.CumSum():
            # Of what is not negative a sum is not negative.
            return COUNTS if given[0] >= 0 else ANY
    return ANY


def _function(fn: str, given: Extremes) -> Extremes:
    """Bounds of a function of one element."""
    if fn == "neg":
        return -given[1], -given[0]
    if fn in RISING:
        return _rising(fn, given[0], FUNCTIONS[fn][1])
    if fn == "abs" and given[0] >= 0:
        return given
    return FUNCTIONS.get(fn, ANY)


def _refined(node: Node, operand: int, given: Extremes) -> Extremes:
    """Bounds of one side of a `where` whose condition compares it, or what a number was
    added to, with a number: `where(x > 0, x + 1, …)`.
    """
    match node.args[0], node.args[operand]:
        case Value(node=Node(ops.Compare(fn="gt" | "ge"), (left, right))), Value() as x:
            least = number_or_infinity(right)
        case _:
            return given
    if least is None or operand != 1:
        return given
    if x is left:
        return max(given[0], least), given[1]
    match x.node:
        case Node(ops.Arith(fn="add"), (a, b)) if a is left:
            added = number_or_infinity(b)
            return given if added is None else (max(given[0], least + added), given[1])
    return given


def _rising(fn: str, low: float, high: float) -> Extremes:
    """Bounds of a function that grows with its operand; below -80 single precision
    holds no number above 0 for an exponential.
    """
    if fn == "sqrt":
        return sqrt(low) if low > 0 else 0.0, high
    if low < -80:
        return 0.0, high
    power = exp(min(low, 80.0))
    return {"exp": power, "softplus": log1p(power)}.get(fn, power / (1 + power)), high


def _either(given: list[Extremes]) -> Extremes:
    return min(low for low, _ in given), max(high for _, high in given)


def _arithmetic(fn: str, node: Node, one: Extremes, other: Extremes) -> Extremes:
    """Of two numbers, each between its own ends."""
    match fn:
        case "mul" if node.args[0] is node.args[1]:
            return COUNTS
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
