"""Emit reshapes, reductions and matrix products, and check indices: the IR has no negative
ones, ONNX counts them from the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specc.ir import ops
from specc.ir.dim import Dim, multiply_dims
from specc.ir.graph import Node, Value
from specc.ir.length_constraints import is_never_negative
from specc.ir.types import Type
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES


def emit_reshape(g: Emitter, x: str, before: Sequence[Dim], after: Sequence[Dim]) -> str:
    """Reshape `x` from `before` to `after`; `-1` only beside nonzero numbers, as empty tensors
    need.
    """
    if tuple(before) == tuple(after):
        return x
    written = _plan_target_shape(before, after)
    numbers = [n for n in written if n is not None]
    unknown = len(written) - len(numbers)
    # Here a 0 among the lengths means a copied axis: no actual length may be 0.
    if not unknown and all(d != 0 for d in after):
        return g.node("Reshape", x, g.vector(*numbers))
    # Next to a -1 no copied axis may be 0 either, since it may turn out empty.
    if unknown == 1 and all(n > 0 for n in numbers):
        constant = [-1 if n is None else n for n in written]
        return g.node("Reshape", x, g.vector(*constant))
    # Several lengths are known only at run time, or an axis is empty: all are computed, and a 0 is
    # a length.
    return g.node("Reshape", x, g.shape(after), allowzero=1)


def _plan_target_shape(before: Sequence[Dim], after: Sequence[Dim]) -> list[int | None]:
    """Return `after` for `Reshape`: a number, 0 to keep a dynamic axis, None if dynamic."""
    stays = [axis < len(before) and before[axis] == d for axis, d in enumerate(after)]
    return [
        0 if same and length.number is None else length.number
        for same, length in zip(stays, after, strict=True)
    ]


def emit_flatten(g: Emitter, x: str, shape: Sequence[Dim]) -> str:
    """All axes but the last as one: `[n, d]`."""
    if len(shape) == 2:
        return x
    return emit_reshape(g, x, shape, (multiply_dims(shape[:-1]), shape[-1]))


def emit_expand(g: Emitter, x: Tensor, shape: Sequence[Dim]) -> str:
    """`x` repeated along the axes that are 1 in it, and new ones in front, to have `shape`."""
    if x.type.shape == tuple(shape):
        return x.name
    return g.node("Expand", x.name, g.shape(shape))


def emit_full(g: Emitter, value: float | int | bool, dtype: str, shape: Sequence[Dim]) -> str:
    """A tensor that holds `value` everywhere."""
    scalar = g.constant(value, dtype)
    return g.node("Expand", scalar, g.shape(shape)) if shape else scalar


def emit_slice(g: Emitter, x: str, axis: int, start: Dim, stop: Dim) -> str:
    """Rows `start` up to, not including, `stop` of an axis."""
    return g.node("Slice", x, g.shape([start]), g.shape([stop]), g.vector(axis))


def emit_unsqueeze(g: Emitter, x: str, *axes: int) -> str:
    """`x` with new axes of length 1 at `axes` of the result."""
    return g.node("Unsqueeze", x, g.vector(*axes)) if axes else x


def emit_reduce(g: Emitter, kind: str, x: str, axis: int, keep: bool = False) -> str:
    """`ReduceSum`, `ReduceMean`, `ReduceMax` or `ReduceMin` over one axis."""
    if kind == "ReduceSum" or g.opset >= onnx_targets.REDUCE_AXES_INPUT_SINCE:
        return g.node(kind, x, g.vector(axis), keepdims=keep)
    return g.node(kind, x, axes=[axis], keepdims=keep)


def emit_where(g: Emitter, dtype: str, condition: str, yes: str, no: str) -> str:
    """Emit a choice per element; of booleans by logic, which ONNX Runtime's `Where` lacks."""
    if dtype != "bool":
        return g.node("Where", condition, yes, no)
    return g.node("Or", g.node("And", condition, yes), g.node("And", g.node("Not", condition), no))


def emit_matmul(g: Emitter, x: Tensor, y: Tensor) -> str:
    """Emit a matrix product; a matrix that may be broadcast zero times is expanded first."""
    names = []
    for one, other in ((x, y), (y, x)):
        lead, beside = one.type.shape[:-2], other.type.shape[:-2]
        padded = (*[Dim.of(1)] * (len(beside) - len(lead)), *lead)
        counts = (*[Dim.of(1)] * (len(lead) - len(beside)), *beside)
        full_size = tuple(c if p == 1 else p for p, c in zip(padded, counts, strict=True))
        doubtful = [
            c
            for p, c in zip(padded, counts, strict=True)
            if p == 1 != c and not g.lengths.positive(c)
        ]
        # a single matrix is multiplied with all rows at once
        needed = doubtful and len(lead)
        names.append(
            emit_expand(g, one, (*full_size, *one.type.shape[-2:])) if needed else one.name
        )
    return g.node("MatMul", *names)


def emit_cast(g: Emitter, x: str, before: str, after: str) -> str:
    """Cast `x` to another element type."""
    return x if before == after else g.node("Cast", x, to=ONNX_TYPE_CODES[after])


def emit_arange(g: Emitter, length: Dim) -> str:
    """`0, 1, …, length - 1`, i64."""
    return g.node("Range", g.constant(0, "i64"), g.dim(length), g.constant(1, "i64"))


def emit_min_length_padding(g: Emitter, x: Tensor, axis: int, count: int = 1) -> str:
    """`x`, with rows of zeros behind an axis that turns out to have fewer than `count`."""
    length = x.type.shape[axis]
    if g.lengths.floor_of(length) >= count:
        return x.name
    short = g.node("Sub", g.vector(count), g.shape([length]))
    missing = g.node("Max", short, g.vector(0))
    sides = [g.shape([d]) for d in x.type.shape]
    sides[axis] = missing
    zero = g.constant(0, x.type.dtype)
    return g.node(
        "Concat", x.name, g.node("Expand", zero, g.node("Concat", *sides, axis=0)), axis=axis
    )


def is_always_true(x: Tensor) -> bool:
    """Whether a boolean is true everywhere, whatever the inputs."""
    value = x.value
    while value is not None and value.node is not None:
        op = value.node.op
        if op.name == "constant":
            return op.attributes()["value"] is True
        if op.name not in ("insert", "expand", "squeeze", "transpose", "split", "merge"):
            return False
        value = value.node.args[0]
    return False


def make_typed_tensor(name: str, dtype: str, shape: Sequence[Dim]) -> Tensor:
    """A tensor that a rule made on its way."""
    return Tensor(name, Type(dtype, tuple(shape)))


MAX_SIGN_SEARCH_DEPTH = 48
"""Maximum number of operations between a value and the one that determines its sign."""

VALUE_PRESERVING_OPS = (
    *(ops.Insert, ops.Squeeze, ops.Expand, ops.Split, ops.Merge, ops.Transpose),
    *(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Roll),
    *(ops.Sort, ops.TopK, ops.Stride),
)
"""Operations whose results are elements of their first operand."""

MAX_INTEGERS = {"i64": 2**63 - 1, "i32": 2**31 - 1}


def emit_checked_indices(g: Emitter, ids: Tensor) -> str:
    """Replace negative indices by one out of range, unless none can be negative."""
    if ids.value is not None and is_nonnegative_value(ids.value, g):
        return ids.name
    dtype = ids.type.dtype
    below = g.node("Less", ids.name, g.constant(0, dtype))
    return g.node("Where", below, g.constant(MAX_INTEGERS[dtype], dtype), ids.name)


def emit_indices_without_padding(g: Emitter, ids: Tensor, keep: Tensor) -> str:
    """Replace negative indices at padded positions by 0."""
    zero = g.constant(0, ids.type.dtype)
    unread = g.node("And", g.node("Not", keep.name), g.node("Less", ids.name, zero))
    return g.node("Where", unread, zero, ids.name)


def is_nonnegative_value(value: Value, g: Emitter) -> bool:
    """Whether whole numbers are surely not below 0, whatever the inputs."""
    return SignAnalysis(g).of(value)


@dataclass
class SignAnalysis:
    """Looks back from values to what they are made of, at each once."""

    g: Emitter
    known: dict[Value, bool] = field(default_factory=dict)
    depth: int = 0

    def of(self, *values: Value | None) -> bool:
        """Whether none of these numbers is below 0."""
        return all(v is not None and self._one(v) for v in values)

    def _one(self, value: Value) -> bool:
        if value not in self.known:
            self.depth += 1
            self.known[value] = (
                value.node is not None
                and self.depth <= MAX_SIGN_SEARCH_DEPTH
                and (is_position_id_source(value) or self._made(value.node))
            )
            self.depth -= 1
        return self.known[value]

    def _made(self, node: Node) -> bool:
        known = self._at_the_start(node)
        return self._as_operands(node) if known is None else known

    def _at_the_start(self, node: Node) -> bool | None:
        """Of a node that tells by itself; None for the others."""
        match node.op:
            case ops.Constant(value=number):
                return number >= 0
            case ops.Size(length=length):
                # `past - window` is a length in the IR, and may be negative
                lengths = self.g.lengths
                return is_never_negative(length.substitute(lengths.facts), lengths.least)
        return None

    def _as_operands(self, node: Node) -> bool:
        """Return whether a node of nonnegative operands is nonnegative, overflow aside."""
        match node:
            case Node(ops.Cast(), (Value() as x,)):
                # float casts are not followed: -0.5 becomes 0, -1.5 does not
                whole = x.type.dtype in MAX_INTEGERS and self.of(x)
                return x.type.dtype == "bool" or whole
            case Node(ops.Arith(fn="max"), (a, b)):
                # one nonnegative operand suffices: `max(ids, 0)`
                return self.of(a) or self.of(b)
            case Node(ops.Arith(fn="mod"), (_, divisor)):
                # a remainder has the sign of the divisor
                return self.of(divisor)
            case Node(ops.Delay(first=first), args):
                return first >= 0 and self.of(*args)
            case Node(ops.Where(), (_, *chosen)):
                return self.of(*chosen)
            case Node(ops.Gather(), (x, _)):
                # elements of a table, at any index
                return self.of(x)
        if isinstance(node.op, VALUE_PRESERVING_OPS):
            return self.of(node.args[0])
        return _is_sign_preserving(node) and self.of(*node.args)


def is_position_id_source(value: Value) -> bool:
    """Whether a value is row numbers by the op that makes it."""
    match value.node and value.node.op:
        case ops.Range() | ops.Extent() | ops.ArgMax():
            return True
        case ops.Sort() | ops.TopK():
            return value.index == 1  # the first result holds values
    return False


def _is_sign_preserving(node: Node) -> bool:
    """Whether numbers that are not below 0 give such alone."""
    match node.op:
        case (
            ops.Arith(fn="add" | "mul" | "floordiv" | "min")
            | ops.Reduce(fn="sum")
            | ops.Concat()
            | ops.CumSum()
        ):
            return True
    return False
