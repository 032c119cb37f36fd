"""Values of the ONNX graph under construction. Operators and methods of values emit nodes. For
example, `x * 2 + y` emits a `Mul` and an `Add`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from onnx import GraphProto

from specc.ir.dim import Dim, DimLike
from specc.ir.graph import Value
from specc.ir.types import Type
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES

if TYPE_CHECKING:
    from specc_onnx.lower.emitter import Emitter

DTYPES_BY_TYPE_CODE = {code: dtype for dtype, code in ONNX_TYPE_CODES.items()}
"""The IR element type of each ONNX data type."""

SAME_DTYPE_OPERATORS = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseXor", "Clip", "Div", "Equal", "Greater", "Less", "Max"),
        *("GreaterOrEqual", "LessOrEqual", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Where"),
    }
)
"""Operators whose operands all have the same element type, except the condition of `Where`."""

RESULT_DTYPES: Mapping[str, Sequence[str | int]] = {
    **dict.fromkeys(("And", "Equal", "Greater", "GreaterOrEqual", "IsNaN"), ("bool",)),
    **dict.fromkeys(("Less", "LessOrEqual", "Not", "Or"), ("bool",)),
    **dict.fromkeys(("ArgMax", "NonZero", "Shape", "Size"), ("i64",)),
    **dict.fromkeys(("MatMulIntegerToFloat", "QGemm"), ("f32",)),
    "DequantizeLinear": (1,),
    "DynamicQuantizeLinear": ("u8", "f32", "u8"),
    "GatherBlockQuantized": (2,),
    "GroupQueryAttention": (0, 3, 4),
    "MatMulInteger": ("i32",),
    "QuantizeLinear": (2,),
    "TopK": (0, "i64"),
    "Where": (1,),
}
"""For each result, the element type, or the index of an operand that has the same element type. The
results of all other operators have the element type of the first operand.
"""


class OnnxValue:
    """A value of the ONNX graph, with its unique name and element type. Operators and methods emit
    nodes. If the other operand is a Python number, it is converted to the value's element type.
    """

    __slots__ = ("dtype", "g", "name")

    def __init__(self, g: "Emitter", name: str, dtype: str) -> None:
        self.g, self.name, self.dtype = g, name, dtype

    def with_type(self, type: Type, value: Value | None = None) -> "Tensor":
        """Return this value as a tensor of type `type`, which represents the IR value `value`."""
        return Tensor(self.g, self.name, type, value)

    def with_shape(self, shape: Sequence[DimLike]) -> "Tensor":
        """Return this value as a tensor of shape `shape` that does not represent an IR value."""
        return self.with_type(Type.of(self.dtype, *shape))

    def apply_op(self, op_type: str, *operands: "Operand", **attributes: Any) -> "OnnxValue":
        """Emit a node with this value as its first operand."""
        return self.g.emit_node(op_type, self, *operands, **attributes)

    def __add__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Add", self, other)

    def __radd__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Add", other, self)

    def __sub__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Sub", self, other)

    def __rsub__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Sub", other, self)

    def __mul__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Mul", self, other)

    def __truediv__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Div", self, other)  # `Div` truncates integers towards zero

    def __rtruediv__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Div", other, self)

    def __mod__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Mod", self, other)

    def __and__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("And", self, other)

    def __or__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Or", self, other)

    def __xor__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("BitwiseXor", self, other)

    def __invert__(self) -> "OnnxValue":
        return self.g.emit_node("Not", self)

    def __lt__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Less", self, other)

    def __le__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("LessOrEqual", self, other)

    def __gt__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("Greater", self, other)

    def __ge__(self, other: "Operand") -> "OnnxValue":
        return self.g.emit_node("GreaterOrEqual", self, other)

    def equals(self, other: "Operand") -> "OnnxValue":
        """Emit an elementwise equality comparison (`==` compares the Python objects instead)."""
        return self.g.emit_node("Equal", self, other)

    def maximum(self, other: "Operand") -> "OnnxValue":
        """Emit the elementwise maximum."""
        return self.g.emit_node("Max", self, other)

    def minimum(self, other: "Operand") -> "OnnxValue":
        """Emit the elementwise minimum."""
        return self.g.emit_node("Min", self, other)

    def where(self, x: "Operand", y: "Operand") -> "OnnxValue":
        """Select `x` where the mask is true and `y` where it is false."""
        # ONNX Runtime's `Where` does not support boolean operands.
        if isinstance(x, OnnxValue) and x.dtype == "bool":
            return self & x | ~self & y
        return self.g.emit_node("Where", self, x, y)

    def cast(self, dtype: str) -> "OnnxValue":
        """Emit a cast to `dtype` if the dtypes differ."""
        code = ONNX_TYPE_CODES[dtype]
        return self if self.dtype == dtype else self.g.emit_node("Cast", self, to=code)

    def abs(self) -> "OnnxValue":
        """Emit the elementwise absolute value."""
        return self.apply_op("Abs")

    def exp(self) -> "OnnxValue":
        """Emit the elementwise exponential."""
        return self.apply_op("Exp")

    def floor(self) -> "OnnxValue":
        """Emit the elementwise floor."""
        return self.apply_op("Floor")

    def round(self) -> "OnnxValue":
        """Round the elements to integers, and halves to the nearest even integer."""
        return self.apply_op("Round")

    def reshape(self, shape: "Operand") -> "OnnxValue":
        """Reshape the value to the shape i64[n]. 0 copies an axis size, and -1 is inferred."""
        return self.apply_op("Reshape", shape)

    def expand(self, shape: "Operand") -> "OnnxValue":
        """Broadcast the value to the shape i64[n]."""
        return self.apply_op("Expand", shape)

    def runtime_shape(self) -> "OnnxValue":
        """Emit the axis sizes, i64[rank]."""
        return self.apply_op("Shape")

    def numel(self) -> "OnnxValue":
        """Emit the number of elements, i64[]."""
        return self.apply_op("Size")

    def squeeze(self, *axes: int) -> "OnnxValue":
        """Remove `axes` of size 1, or all axes of size 1."""
        return self.g.emit_node("Squeeze", self, [*axes] or None)

    def unsqueeze(self, *axes: int) -> "OnnxValue":
        """Insert axes of size 1 at the indices `axes` of the result."""
        return self.g.emit_node("Unsqueeze", self, [*axes]) if axes else self

    def transpose(self, axes: Sequence[int]) -> "OnnxValue":
        """Transpose the value to the axis order `axes`."""
        return self.g.emit_node("Transpose", self, perm=axes)

    def gather(self, indices: "Operand", axis: int | None = None) -> "OnnxValue":
        """Gather the entries at `indices` along an axis (default: the first axis)."""
        return self.g.emit_node("Gather", self, indices, axis=axis)

    def gather_elements(self, indices: "Operand", axis: int) -> "OnnxValue":
        """Gather the elements at `indices` along an axis (one index per result element)."""
        return self.g.emit_node("GatherElements", self, indices, axis=axis)

    def slice(self, axis: int, start: DimLike, stop: DimLike) -> "OnnxValue":
        """Slice the positions `start` to `stop` (exclusive) along an axis."""
        bounds = (self.g.emit_shape([bound]) for bound in (start, stop))
        return self.g.emit_node("Slice", self, *bounds, [axis])


class UnrankedTensor(OnnxValue):
    """A node result, constant or input whose shape is not recorded."""

    # `UnrankedTensor` and `Tensor` are not subclasses of each other. If the class of `y` were a
    # subclass of the class of `x`, Python would evaluate `x < y` as `y.__gt__(x)`.
    __slots__ = ()


class Tensor(OnnxValue):
    """A value of the ONNX graph, with its type and the IR `value` (if any) that it represents."""

    __slots__ = ("type", "value")

    def __init__(self, g: "Emitter", name: str, type: Type, value: Value | None = None) -> None:
        super().__init__(g, name, type.dtype)
        self.type, self.value = type, value

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Return the size of each axis."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """Return the number of axes."""
        return self.type.rank


Operand: TypeAlias = OnnxValue | bool | int | float | Sequence[float] | None
"""An operand of a node: a value, a constant, or None for an absent operand. In
`SAME_DTYPE_OPERATORS`, a constant has the element type of the other operands. Otherwise, integers
are i64 and floats f32.
"""


def choose_constant_dtype(op_type: str, operands: Sequence[Operand], constant: Operand) -> str:
    """Return the element type of a Python constant in the `operands` of the operator `op_type`."""
    if op_type in SAME_DTYPE_OPERATORS:
        for operand in operands[1:] if op_type == "Where" else operands:
            if isinstance(operand, OnnxValue):
                return operand.dtype
    if isinstance(constant, bool):
        return "bool"
    return "f32" if isinstance(constant, float) else "i64"


def infer_result_dtypes(
    op_type: str, operands: Sequence[OnnxValue | None], attributes: Mapping[str, Any], count: int
) -> list[str]:
    """Return the element types of the first `count` results of a node."""
    if op_type == "Cast":
        return [DTYPES_BY_TYPE_CODE[attributes["to"]]]
    for body in attributes.values():
        if isinstance(body, GraphProto):
            # The first output of a `Loop` body is the condition.
            outputs = body.output[1:] if op_type == "Loop" else body.output
            return [DTYPES_BY_TYPE_CODE[o.type.tensor_type.elem_type] for o in outputs]
    dtypes = []
    for source in RESULT_DTYPES.get(op_type, (0,) * count)[:count]:
        operand = None if isinstance(source, str) else operands[source]
        dtypes.append(operand.dtype if operand else str(source))
    return dtypes
