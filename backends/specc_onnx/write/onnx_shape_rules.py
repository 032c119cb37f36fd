"""Shape rules for contrib operators, additional checks for standard operators, and constant folding
of the integers in shape computations.

Each rule follows the operator's ONNX documentation. Nodes with other operators or with unknown
operands are not folded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper

from specc.ir.array import Array
from specc.ir.signature import Signature, assign_operand_axes
from specc_onnx.lower.emitter import CONTRIB_DOMAIN
from specc_onnx.write.onnx_value_types import (
    FOLDED_DTYPES,
    MAX_FOLDED_ELEMENTS,
    InferredTypes,
    OperandMismatchError,
    make_tensor_type,
    read_shape,
)

Attributes: TypeAlias = Mapping[str, Any]
ShapeRule: TypeAlias = Callable[[InferredTypes, NodeProto], list[TypeProto]]
ShapeCheck: TypeAlias = Callable[[InferredTypes, NodeProto, Sequence[TypeProto]], object]

DATA_DEPENDENT_OPS = {
    # the result shapes of these operators depend on the values of operands
    *("ConstantOfShape", "Expand", "If", "Loop", "NonZero", "OneHot", "Pad", "Range", "Reshape"),
    *("Scan", "Slice", "Split", "Tile", "TopK"),
    # older versions of the onnx package cannot infer shapes for attention and recent operators
    *("Attention", "Gelu", "RMSNormalization", "RotaryEmbedding", "Swish"),
}
"""Operators whose result shapes may be unknown even if all operand shapes are known."""


def get_node_attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return an attribute of a node, or `default` if the node has no such attribute."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


@dataclass(frozen=True, kw_only=True)
class OperatorSignature:
    """The signature of an operator, which contains the axis names of its operands and results.
    `compute_lengths` computes the sizes of named axes from attributes and known sizes. If
    `uses_operand_types` is True, `result_types` contains, for each result, the index of an operand
    with the same element type. Otherwise, it contains type codes. `operand_types` maps operand
    indices to required element types. `required_attributes` maps attributes to values that a node
    must have for the signature to apply.
    """

    signature: str
    result_types: tuple[int, ...] = ()
    compute_lengths: Callable[[Attributes, Mapping[str, int]], dict[str, int]] = lambda a, known: {}
    operand_types: Mapping[int, int] = field(default_factory=dict)
    required_attributes: Mapping[str, int] = field(default_factory=dict)
    uses_operand_types: bool = True

    def infer_axis_lengths(
        self, inferred_types: InferredTypes, node: NodeProto
    ) -> dict[str, tuple[int, ...]]:
        """Map each axis name of the signature to axis sizes, which are computed from the operands
        and attributes of a node. A name such as `*r` has several sizes. Raise OperandMismatchError
        if two operands have different sizes for the same axis name.
        """
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._check_form(inferred_types, node, attributes)
        axis_lengths: dict[str, tuple[int, ...]] = {}
        for name, term in zip(node.input, Signature.parse(self.signature).operands, strict=False):
            if name and (sizes := inferred_types.get_static_shape(name)) is not None:
                for axis, axes in assign_operand_axes(term, len(sizes), None, 0):
                    _bind_length(axis_lengths, axis.name, tuple(sizes[n] for n in axes), name)
        known_lengths = {
            name: lengths[0] for name, lengths in axis_lengths.items() if len(lengths) == 1
        }
        for name, length in self.compute_lengths(attributes, known_lengths).items():
            _bind_length(axis_lengths, name, (length,), "an attribute")
        return axis_lengths

    def _check_form(
        self, inferred_types: InferredTypes, node: NodeProto, attributes: Attributes
    ) -> None:
        if any(
            attributes.get(name, 0) != value for name, value in self.required_attributes.items()
        ):
            raise OperandMismatchError("specc never emits this form of the operator")
        for index, type_code in self.operand_types.items():
            if inferred_types.get_element_type(node.input[index]) != type_code:
                raise OperandMismatchError(f"operand {index} is not of element type {type_code}")

    def infer_types(self, inferred_types: InferredTypes, node: NodeProto) -> list[TypeProto]:
        """Return the result types of a node. Dimensions that cannot be computed are unknown."""
        axis_lengths = self.infer_axis_lengths(inferred_types, node)
        types = []
        results = Signature.parse(self.signature).results[: len(node.output)]
        for result_type, term in zip(self.result_types, results, strict=False):
            dims = [axis_lengths.get(axis.name) for axis in term.axes]
            shape = None if None in dims else [n for lengths in dims for n in lengths or ()]
            type_code = (
                inferred_types.get_element_type(node.input[result_type])
                if self.uses_operand_types
                else result_type
            )
            types.append(make_tensor_type(type_code, shape))
        return types


def _bind_length(
    axis_lengths: dict[str, tuple[int, ...]], name: str, lengths: tuple[int, ...], source: str
) -> None:
    bound_lengths = axis_lengths.setdefault(name, lengths)
    if bound_lengths != lengths:
        raise OperandMismatchError(
            f"conflicting lengths of `{name}`: {bound_lengths}, but {lengths} from {source}"
        )


def _compute_block_lengths(a: Attributes, lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the axis sizes of `MatMulNBits`, whose weights are padded to complete blocks."""
    block_count = -(-a["K"] // a["block_size"])
    return {"k": a["K"], "n": a["N"], "c": block_count, "p": a["block_size"] * a["bits"] // 8}


def _compute_table_lengths(a: Attributes, lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the dimensions of the quantized table of a `GatherBlockQuantized`. Raise
    OperandMismatchError unless the row size is a multiple of `block_size`.
    """
    if "w" not in lengths:
        raise OperandMismatchError("the shape of its table is not static")
    width = lengths["w"] * 8 // a["bits"]
    if width % a["block_size"]:
        raise OperandMismatchError(
            f"{width} values cannot be divided into blocks of {a['block_size']}"
        )
    return {"d": width, "c": width // a["block_size"]}


def _compute_head_lengths(a: Attributes, lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the axis sizes of `GroupQueryAttention`, whose packed heads have equal sizes."""
    if "q" not in lengths or "k" not in lengths:
        raise OperandMismatchError("the shape of its queries or keys is not static")
    head_size = lengths["q"] // a["num_heads"]
    kv_heads = a["kv_num_heads"]
    return {
        "d": head_size,
        "q": head_size * a["num_heads"],
        "g": kv_heads,
        "k": head_size * kv_heads,
    }


def _make_gate_length_rule(gates: int) -> Callable[[Attributes, Mapping[str, int]], dict[str, int]]:
    """Return the function that computes the axis sizes of a recurrent layer with `gates` gates."""

    def compute_lengths(a: Attributes, lengths: Mapping[str, int]) -> dict[str, int]:
        h = a["hidden_size"]
        directions = 2 if a.get("direction") == b"bidirectional" else 1
        return {"y": directions, "h": h, "g": gates * h, "c": 2 * gates * h, "p": 3 * h}

    return compute_lengths


CONTRIB_SHAPES = {
    "FusedMatMul": OperatorSignature(
        signature="f[*r k], f[n k] -> f[*r n]",
        result_types=(0,),
        required_attributes={"transB": 1, "transA": 0},
    ),
    "GroupQueryAttention": OperatorSignature(
        signature="f[b t q], f[b t k], f[b t k], a[b g m d], a[b g m d]"
        " -> f[b t q], a[b g m d], a[b g m d]",
        result_types=(0, 3, 4),
        compute_lengths=_compute_head_lengths,
    ),
    "QGemm": OperatorSignature(
        signature="q[m k], f[], q[], q[n k] -> f[m n]",
        result_types=(TensorProto.FLOAT,),
        uses_operand_types=False,
        operand_types={0: TensorProto.UINT8, 3: TensorProto.INT8},
        required_attributes={"transB": 1},
    ),
    "MatMulIntegerToFloat": OperatorSignature(
        signature="q[*r k], q[k n], f[*r #s], f[n], q[] -> f[*r n]",
        result_types=(2,),
        operand_types={0: TensorProto.UINT8, 1: TensorProto.INT8},
    ),
    "MatMulNBits": OperatorSignature(
        signature="f[*r k], q[n c p], f[n c] -> f[*r n]",
        result_types=(0,),
        compute_lengths=_compute_block_lengths,
    ),
    "GatherBlockQuantized": OperatorSignature(
        signature="q[v w], i[*s], f[v c] -> f[*s d]",
        result_types=(2,),
        compute_lengths=_compute_table_lengths,
        required_attributes={"gather_axis": 0, "quantize_axis": 1},
    ),
    "DynamicQuantizeLSTM": OperatorSignature(
        signature="f[t b w], q[y w g], q[y h g], f[y c], i[b], f[y b h], f[y b h], f[y p],"
        " f[y g], q[y], f[y g], q[y] -> f[t y b h], f[y b h], f[y b h]",
        result_types=(TensorProto.FLOAT,) * 3,
        uses_operand_types=False,
        compute_lengths=_make_gate_length_rule(4),
        operand_types=dict.fromkeys((1, 2, 9, 11), TensorProto.INT8),
    ),
}
"""Shapes of ONNX Runtime's contrib operators."""

RECURRENT_SHAPES = {
    kind: OperatorSignature(
        signature="f[t b w], f[y g w], f[y g h], f[y c], i[b], f[y b h], f[y b h], f[y p] ->",
        compute_lengths=_make_gate_length_rule(gates),
    )
    for kind, gates in {"LSTM": 4, "GRU": 3, "RNN": 1}.items()
}
"""Signatures of recurrent layers. The signatures check that the shapes of input, weights and states
agree. ONNX's shape inference checks only the shape of the input.
"""


def _infer_top_k(inferred_types: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Infer the result types of `TopK`, whose `k` may be data-dependent."""
    x, k = node.input
    shape, count = inferred_types.get_shape(x), inferred_types.constants.get(k)
    element = inferred_types.get_element_type(x)
    if shape is None:
        return [make_tensor_type(element, None), make_tensor_type(TensorProto.INT64, None)]
    axis = get_node_attribute(node, "axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise OperandMismatchError(f"no axis {axis} in {shape}")
    sizes = list(shape)
    length, sizes[axis] = sizes[axis], None if count is None else int(count.item())
    if length is not None and (sizes[axis] or 0) > length:
        raise OperandMismatchError(f"k is {sizes[axis]}, but the axis has length {length}")
    return [make_tensor_type(element, sizes), make_tensor_type(TensorProto.INT64, sizes)]


def _check_reshape_count(
    inferred_types: InferredTypes, node: NodeProto, types: Sequence[TypeProto]
) -> None:
    """Raise OperandMismatchError if a `Reshape` changes the element count (ONNX checks only -1)."""
    source_shape, result_shape = (
        inferred_types.get_static_shape(node.input[0]),
        read_shape(types[0]),
    )
    if source_shape is None or result_shape is None:
        return
    static_shape = [d for d in result_shape if d is not None]
    if len(static_shape) == len(result_shape) and prod(source_shape) != prod(static_shape):
        raise OperandMismatchError(f"cannot reshape {source_shape} to {static_shape}")


CONTRIB_SHAPE_RULES: Mapping[tuple[str, str], ShapeRule] = {
    **{(CONTRIB_DOMAIN, kind): shapes.infer_types for kind, shapes in CONTRIB_SHAPES.items()},
    ("", "TopK"): _infer_top_k,
}
SHAPE_CHECKS: Mapping[str, ShapeCheck] = {
    "Reshape": _check_reshape_count,
    **{
        kind: lambda inferred, node, _: RECURRENT_SHAPES[node.op_type].infer_axis_lengths(
            inferred, node
        )
        for kind in RECURRENT_SHAPES
    },
}
"""Checks of operators that ONNX's shape inference does not perform."""


ArithmeticRule: TypeAlias = Callable[[list[Array], Attributes], Array | None]


def fold_node(
    node: NodeProto, operands: Sequence[Array | None], shape: Sequence[int] | None
) -> Array | None:
    """Return the value of the first result of `node`, or None if it is unknown. The value is
    computed from the operand values or from the `shape` of the first operand. Return None if the
    node cannot be folded.
    """
    rule = ARITHMETIC_RULES.get(node.op_type)
    if node.domain or (rule is None and node.op_type not in SHAPE_READERS):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if rule is None:
        return None if shape is None else SHAPE_READERS[node.op_type](shape, attributes)
    constants = [x for x in operands if x is not None]
    return rule(constants, attributes) if len(constants) == len(operands) else None


def read_constant_tensor(tensor: TensorProto) -> Array | None:
    """Return the value of a small integer or boolean constant, or None for other tensors."""
    if tensor.data_type not in FOLDED_DTYPES or np.prod(tensor.dims) > MAX_FOLDED_ELEMENTS:
        return None
    array: Array = numpy_helper.to_array(tensor)
    return array


SHAPE_READERS: Mapping[str, Callable[[Sequence[int], Attributes], Array]] = {
    "Shape": lambda shape, a: np.array(shape, np.int64)[a.get("start", 0) : a.get("end")],
    "Size": lambda shape, a: np.array(np.prod(shape), np.int64),
}


def _fold_div(x: list[Array], _: Attributes) -> Array | None:
    """Fold integer division, which truncates towards zero."""
    a, b = x
    return np.trunc(a / b).astype(a.dtype) if b.all() else None


def _fold_slice(x: list[Array], _: Attributes) -> Array:
    data, starts, ends = x[:3]
    axes = x[3] if len(x) > 3 else np.arange(len(starts))
    steps = x[4] if len(x) > 4 else np.ones(len(starts), int)
    slices = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # If a reversed slice includes index 0, its end is a large negative index in ONNX, but None
        # in NumPy.
        includes_start = step < 0 and end < -data.shape[axis]
        slices[axis] = slice(int(start), None if includes_start else int(end), int(step))
    return data[tuple(slices)]


def _fold_reshape(x: list[Array], _: Attributes) -> Array:
    data, target = x
    # 0 in the shape operand of `Reshape` copies the size of the data operand at the same index
    shape = [data.shape[n] if d == 0 else int(d) for n, d in enumerate(target)]
    return data.reshape(shape)


def _fold_expand(x: list[Array], _: Attributes) -> Array | None:
    shape = np.broadcast_shapes(x[0].shape, tuple(map(int, x[1])))
    return np.broadcast_to(x[0], shape) if np.prod(shape) <= MAX_FOLDED_ELEMENTS else None


def _fold_cast(x: list[Array], a: Attributes) -> Array | None:
    if a["to"] not in FOLDED_DTYPES:
        return None
    return x[0].astype(helper.tensor_dtype_to_np_dtype(a["to"]))


def _fold_constant_of_shape(x: list[Array], a: Attributes) -> Array | None:
    # the default fill value in ONNX is the float 0.0, and floats are not folded
    fill_value = read_constant_tensor(a["value"]) if "value" in a else None
    if fill_value is None or np.prod(x[0]) > MAX_FOLDED_ELEMENTS:
        return None
    return np.full(list(map(int, x[0])), fill_value)


def _fold_range(x: list[Array], _: Attributes) -> Array | None:
    start, end, step = map(int, x)
    if not step or abs(end - start) > MAX_FOLDED_ELEMENTS:
        return None
    return np.arange(start, end, step).astype(x[0].dtype)


def _make_numpy_rule(function: Callable[..., Any]) -> ArithmeticRule:
    return lambda x, _: np.asarray(function(*x))


NUMPY_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Where": np.where,
}
"""NumPy functions with ONNX's broadcasting rules."""

ARITHMETIC_RULES: Mapping[str, ArithmeticRule] = {
    **{kind: _make_numpy_rule(function) for kind, function in NUMPY_FUNCTIONS.items()},
    "Div": _fold_div,
    "Mod": lambda x, _: np.mod(x[0], x[1]) if x[1].all() else None,
    "Max": lambda x, _: np.max(np.broadcast_arrays(*x), axis=0),
    "Min": lambda x, _: np.min(np.broadcast_arrays(*x), axis=0),
    "Identity": lambda x, _: x[0],
    "Cast": _fold_cast,
    "Range": _fold_range,
    "Gather": lambda x, a: np.asarray(np.take(x[0], x[1], axis=a.get("axis", 0))),
    "Concat": lambda x, a: np.concatenate(x, axis=a["axis"]),
    "Slice": _fold_slice,
    "Squeeze": lambda x, _: np.squeeze(x[0], tuple(map(int, x[1])) if len(x) > 1 else None),
    "Unsqueeze": lambda x, _: np.expand_dims(x[0], tuple(map(int, x[1]))),
    "Reshape": _fold_reshape,
    "Expand": _fold_expand,
    "ConstantOfShape": _fold_constant_of_shape,
}
