"""Which ops may be computed in 16 bits: one table, by what rounding does to each.

Products gather thousands of terms, which a device adds in 32 bits whatever it reads and
writes. Norms are told to reckon in 32 bits by the operators they become. What sums,
exponentiates or divides stays in 32: softmax, means, recurrences, positions.
"""

from specc.ir import ops
from specc.ir.op import Op

PRODUCTS: tuple[type[Op], ...] = (
    ops.Attend,
    ops.Conv,
    ops.Einsum,
    ops.Embedding,
    ops.Linear,
    ops.MatMul,
    ops.Patches,
    ops.Route,
    ops.Weigh,
)
"""What is computed in 16 bits whatever it reads."""

NORMS: tuple[type[Op], ...] = (ops.LayerNorm, ops.RMSNorm)
"""Norms that are one operator, which sums in 32 bits."""

MOVES: tuple[type[Op], ...] = (
    ops.Concat,
    ops.Delay,
    ops.Expand,
    ops.Flip,
    ops.Gather,
    ops.Index,
    ops.Insert,
    ops.Last,
    ops.MaxPool,
    ops.Merge,
    ops.Roll,
    ops.Slice,
    ops.Split,
    ops.Squeeze,
    ops.Stride,
    ops.Transpose,
    ops.Where,
)
"""What only moves numbers."""

DECIDING: tuple[type[Op], ...] = (ops.ArgMax, ops.Sort, ops.TopK)
"""What gives places, of which a near one is another one."""

TABLES: tuple[type[Op], ...] = (ops.OneHot, ops.RopeAngles, ops.Sinusoid)
"""Numbers from -1 to 1 that are made of none, in 32 bits; whoever reads them in 16 loses
nothing but digits.
"""

GENTLE = frozenset(
    ("abs", "gelu", "gelu_tanh", "neg", "relu", "sigmoid", "silu", "tanh")
)
"""Functions under which an error does not grow."""

SUMS = frozenset(("add", "max", "min", "mul", "sub"))


def follows(op: Op) -> bool:
    """Whether an op is computed in whatever its operands are."""
    match op:
        case ops.Pointwise(fn=fn):
            return fn in GENTLE
        case ops.Arith(fn=fn):
            return fn in SUMS
    return isinstance(op, (*MOVES, *NORMS, ops.Rotate))


def passes_on(op: Op) -> bool:
    """Whether a result behind this op is still a product's own: moved, shifted, scaled."""
    return follows(op) and not isinstance(op, NORMS)
