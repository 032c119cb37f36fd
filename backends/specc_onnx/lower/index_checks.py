"""Check indices: the IR has no negative ones, ONNX counts them from the end."""

from dataclasses import dataclass, field

from specc.ir import ops
from specc.ir.dim_bounds import is_never_negative
from specc.ir.graph import Node, Value
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor

MAX_SIGN_SEARCH_DEPTH = 48
"""Operations that are looked back through."""

VALUE_PRESERVING_OPS = (
    *(ops.Insert, ops.Squeeze, ops.Expand, ops.Split, ops.Merge, ops.Transpose),
    *(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Roll),
    *(ops.Sort, ops.TopK, ops.Stride),
)
"""Operations whose results are numbers of their first operand."""

MAX_INTEGERS = {"i64": 2**63 - 1, "i32": 2**31 - 1}


def emit_checked_indices(g: Emitter, ids: Tensor) -> str:
    """Row numbers in which a negative one has become one that no axis has; as they are
    where none is negative.
    """
    if ids.value is not None and is_nonnegative_value(ids.value, g):
        return ids.name
    dtype = ids.type.dtype
    below = g.node("Less", ids.name, g.constant(0, dtype))
    return g.node("Where", below, g.constant(MAX_INTEGERS[dtype], dtype), ids.name)


def emit_indices_without_padding(g: Emitter, ids: Tensor, keep: Tensor) -> str:
    """Row numbers in which one that is below 0 because its row does not exist has
    become 0: nobody reads that row.
    """
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
                # `past - window` is a length of the IR too, and may be below 0
                lengths = self.g.lengths
                return is_never_negative(length.substitute(lengths.facts), lengths.least)
        return None

    def _as_operands(self, node: Node) -> bool:
        """Of a node that is as its operands are. Sums and products may wrap around at
        2**63, which no index comes near.
        """
        match node:
            case Node(ops.Cast(), (Value() as x,)):
                # fractions are not looked through: -0.5 becomes 0, -1.5 does not
                whole = x.type.dtype in MAX_INTEGERS and self.of(x)
                return x.type.dtype == "bool" or whole
            case Node(ops.Arith(fn="max"), (a, b)):
                # one of them is enough: `max(ids, 0)`
                return self.of(a) or self.of(b)
            case Node(ops.Arith(fn="mod"), (_, divisor)):
                # a remainder has the sign of the divisor
                return self.of(divisor)
            case Node(ops.Delay(first=first), args):
                return first >= 0 and self.of(*args)
            case Node(ops.Where(), (_, *chosen)):
                return self.of(*chosen)
            case Node(ops.Gather(), (x, _)):
                # numbers from a table, wherever they stand in it
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
            return value.index == 1  # the first result is values
    return False


def _is_sign_preserving(node: Node) -> bool:
    """Whether numbers that are not below 0 give such alone."""
    match node.op:
        case ops.Arith(fn="add" | "mul" | "floordiv" | "min") | ops.Reduce(fn="sum"):
            return True
        case ops.Concat() | ops.CumSum():
            return True
    return False
