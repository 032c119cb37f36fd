"""Fold integer constants through ONNX nodes, as shape computations need.

Each rule is written from ONNX's description of the operator. An operator that is not
here, or an operand that is not known, gives nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from specc.ir.array import Array

Attributes: TypeAlias = Mapping[str, Any]
ArithmeticRule: TypeAlias = Callable[[list[Array], Attributes], Array | None]

MAX_FOLDED_ELEMENTS = 4096
"""Values of more numbers than this are not followed: no shape has so many."""
FOLDED_DTYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
"""The element types of values that are followed."""


def fold_node(
    node: NodeProto, given: Sequence[Array | None], shape: Sequence[int] | None
) -> Array | None:
    """Fold the first result of `node` from operands or the first shape; None if unknown."""
    rule = ARITHMETIC_RULES.get(node.op_type)
    if node.domain or (rule is None and node.op_type not in SHAPE_READERS):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if rule is None:
        return None if shape is None else SHAPE_READERS[node.op_type](shape, attributes)
    known = [x for x in given if x is not None]
    return rule(known, attributes) if len(known) == len(given) else None


def read_constant_tensor(tensor: TensorProto) -> Array | None:
    """The numbers of a constant that are worth following."""
    if tensor.data_type not in FOLDED_DTYPES or np.prod(tensor.dims) > MAX_FOLDED_ELEMENTS:
        return None
    made: Array = numpy_helper.to_array(tensor)
    return made


def _fold_shape(shape: Sequence[int], a: Attributes) -> Array:
    return np.array(shape, np.int64)[a.get("start", 0) : a.get("end")]


def _fold_size(shape: Sequence[int], _: Attributes) -> Array:
    return np.array(np.prod(shape), np.int64)


SHAPE_READERS: Mapping[str, Callable[[Sequence[int], Attributes], Array]] = {
    "Shape": _fold_shape,
    "Size": _fold_size,
}


def _fold_div(x: list[Array], _: Attributes) -> Array | None:
    """Division of whole numbers, towards zero."""
    a, b = x
    return np.trunc(a / b).astype(a.dtype) if b.all() else None


def _fold_mod(x: list[Array], _: Attributes) -> Array | None:
    a, b = x
    return np.mod(a, b) if b.all() else None


def _fold_slice(x: list[Array], _: Attributes) -> Array:
    data, starts, ends = x[:3]
    axes = x[3] if len(x) > 3 else np.arange(len(starts))
    steps = x[4] if len(x) > 4 else np.ones(len(starts), int)
    cuts = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # Backwards, ONNX reaches the first row with an end far below 0, where NumPy
        # counts -1 from the behind.
        beyond = step < 0 and end < -data.shape[axis]
        cuts[axis] = slice(int(start), None if beyond else int(end), int(step))
    return data[tuple(cuts)]


def _fold_squeeze(x: list[Array], a: Attributes) -> Array:
    return np.squeeze(x[0], tuple(map(int, x[1])) if len(x) > 1 else None)


def _fold_unsqueeze(x: list[Array], _: Attributes) -> Array:
    return np.expand_dims(x[0], tuple(map(int, x[1])))


def _fold_reshape(x: list[Array], _: Attributes) -> Array:
    data, wanted = x
    # 0 stands for the length that the operand has at the same place
    shape = [data.shape[n] if d == 0 else int(d) for n, d in enumerate(wanted)]
    return data.reshape(shape)


def _fold_expand(x: list[Array], _: Attributes) -> Array | None:
    shape = np.broadcast_shapes(x[0].shape, tuple(map(int, x[1])))
    return np.broadcast_to(x[0], shape) if np.prod(shape) <= MAX_FOLDED_ELEMENTS else None


def _fold_cast(x: list[Array], a: Attributes) -> Array | None:
    if a["to"] not in FOLDED_DTYPES:
        return None
    return x[0].astype(helper.tensor_dtype_to_np_dtype(a["to"]))


def _fold_constant_of_shape(x: list[Array], a: Attributes) -> Array | None:
    # ONNX's usual value is the fraction 0.0, which is not followed
    one = read_constant_tensor(a["value"]) if "value" in a else None
    if one is None or np.prod(x[0]) > MAX_FOLDED_ELEMENTS:
        return None
    return np.full(list(map(int, x[0])), one)


def _fold_range(x: list[Array], _: Attributes) -> Array | None:
    start, end, step = map(int, x)
    if not step or abs(end - start) > MAX_FOLDED_ELEMENTS:
        return None
    return np.arange(start, end, step).astype(x[0].dtype)


def _make_numpy_rule(function: Callable[..., Any]) -> ArithmeticRule:
    """What NumPy does with the operands, whose broadcasting is ONNX's."""
    return lambda x, _: np.asarray(function(*x))


ARITHMETIC_RULES: Mapping[str, ArithmeticRule] = {
    "Add": _make_numpy_rule(np.add),
    "Sub": _make_numpy_rule(np.subtract),
    "Mul": _make_numpy_rule(np.multiply),
    "Div": _fold_div,
    "Mod": _fold_mod,
    "Max": lambda x, _: np.max(np.broadcast_arrays(*x), axis=0),
    "Min": lambda x, _: np.min(np.broadcast_arrays(*x), axis=0),
    "Equal": _make_numpy_rule(np.equal),
    "Less": _make_numpy_rule(np.less),
    "LessOrEqual": _make_numpy_rule(np.less_equal),
    "Greater": _make_numpy_rule(np.greater),
    "GreaterOrEqual": _make_numpy_rule(np.greater_equal),
    "And": _make_numpy_rule(np.logical_and),
    "Or": _make_numpy_rule(np.logical_or),
    "Not": _make_numpy_rule(np.logical_not),
    "Where": _make_numpy_rule(np.where),
    "Identity": lambda x, _: x[0],
    "Cast": _fold_cast,
    "Range": _fold_range,
    "Gather": lambda x, a: np.asarray(np.take(x[0], x[1], axis=a.get("axis", 0))),
    "Concat": lambda x, a: np.concatenate(x, axis=a["axis"]),
    "Slice": _fold_slice,
    "Squeeze": _fold_squeeze,
    "Unsqueeze": _fold_unsqueeze,
    "Reshape": _fold_reshape,
    "Expand": _fold_expand,
    "ConstantOfShape": _fold_constant_of_shape,
}
