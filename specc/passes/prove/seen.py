"""Which number a value is seen to be everywhere, as far as the nodes that make it show.

Masks are laid over scores by constants that were cast, expanded and given axes; behind
such nodes the number is still the same.
"""

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.passes.prove.row_numbers import number_of


def number_or_infinity(value: Value | None) -> float | None:
    """The number that a value is everywhere, if it is seen to be one; infinity too."""
    if (found := number_of(value)) is not None:
        return float(found)
    inner = _unmoved(value)
    match inner and inner.node and inner.node.op:
        # True is a number for Python, and no score.
        case ops.Constant(value=number) if not isinstance(number, bool):
            return float(number)
    return None


def _unmoved(value: Value | None) -> Value | None:
    """What views move about. `Extent` is a view that makes numbers of its own: those of
    its rows, not what its operand holds.
    """
    while value and value.node and value.node.args and value.node.op.view:
        if isinstance(value.node.op, ops.Extent):
            break
        value = value.node.first
    return value


def least_of(value: Value | None) -> float | None:
    """A number that no element of a value is below, where one is seen."""
    while value and value.node:
        op = value.node.op
        if isinstance(op, ops.Extent | ops.Range):
            return 0.0
        if isinstance(op, ops.Constant):
            return number_or_infinity(value)
        if not value.node.args or not (op.view or isinstance(op, ops.Cast)):
            return None
        value = value.node.first
    return 0.0 if value is not None and value.type.dtype == "bool" else None


def zero_everywhere(value: Value | None) -> bool:
    """Whether a value is seen to be zero, or false, at every row."""
    while value and value.node and value.node.op.view and value.node.args:
        value = value.node.first
    match value and value.node and value.node.op:
        case ops.Constant(value=number):
            return not number
    return False


def topped(value: Value | None, axis: int) -> bool:
    """Whether a value is `exp(x - max(x))` along an axis: one at its greatest, so that
    it never sums to zero.
    """
    match value:
        case Value(
            node=Node(
                ops.Pointwise(fn="exp"),
                (Value(node=Node(ops.Arith(fn="sub"), (x, most))),),
            )
        ):
            while most and most.node and most.node.op.view and most.node.args:
                most = most.node.first
            return most is not None and most.node == Node(ops.Reduce("max", axis), (x,))
    return False
