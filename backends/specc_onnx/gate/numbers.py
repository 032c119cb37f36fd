"""What nodes compute from whole numbers that are known: the arithmetic of shapes, in
NumPy.

Each rule is written from ONNX's description of the operator. An operator that is not
here, or an operand that is not known, gives nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

Array: TypeAlias = NDArray[Any]
Attributes: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[list[Array], Attributes], Array | None]

LARGEST = 4096
"""Values of more numbers than this are not followed: no shape has so many."""
WHOLE = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
"""The element types of values that are followed."""


def compute(
    node: NodeProto, given: Sequence[Array | None], shape: Sequence[int] | None
) -> Array | None:
    """The first result of `node` from its operands, or from the shape of the first;
    None where it is not known.
    """
    rule = RULES.get(node.op_type)
    if node.domain or (rule is None and node.op_type not in OF_SHAPE):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if rule is None:
        return None if shape is None else OF_SHAPE[node.op_type](shape, attributes)
    known = [x for x in given if x is not None]
    return rule(known, attributes) if len(known) == len(given) else None


def of_tensor(tensor: TensorProto) -> Array | None:
    """The numbers of a constant that are worth following."""
    if tensor.data_type not in WHOLE or np.prod(tensor.dims) > LARGEST:
        return None
    made: Array = numpy_helper.to_array(tensor)
    return made


def _shape(shape: Sequence[int], a: Attributes) -> Array:
    return np.array(shape, np.int64)[a.get("start", 0) : a.get("end")]


def _size(shape: Sequence[int], _: Attributes) -> Array:
    return np.array(np.prod(shape), np.int64)


OF_SHAPE: Mapping[str, Callable[[Sequence[int], Attributes], Array]] = {
    "Shape": _shape,
    "Size": _size,
}


def _divided(x: list[Array], _: Attributes) -> Array | None:
    """Division of whole numbers, towards zero."""
    a, b = x
    return np.trunc(a / b).astype(a.dtype) if b.all() else None


def _modulo(x: list[Array], _: Attributes) -> Array | None:
    a, b = x
    return np.mod(a, b) if b.all() else None


def _slice(x: list[Array], _: Attributes) -> Array:
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


def _squeeze(x: list[Array], a: Attributes) -> Array:
    return np.squeeze(x[0], tuple(map(int, x[1])) if len(x) > 1 else None)


def _unsqueeze(x: list[Array], _: Attributes) -> Array:
    return np.expand_dims(x[0], tuple(map(int, x[1])))


def _reshape(x: list[Array], _: Attributes) -> Array:
    data, wanted = x
    # 0 stands for the length that the operand has at the same place
    shape = [data.shape[n] if d == 0 else int(d) for n, d in enumerate(wanted)]
    return data.reshape(shape)


def _expand(x: list[Array], _: Attributes) -> Array | None:
    shape = np.broadcast_shapes(x[0].shape, tuple(map(int, x[1])))
    return np.broadcast_to(x[0], shape) if np.prod(shape) <= LARGEST else None


def _cast(x: list[Array], a: Attributes) -> Array | None:
    if a["to"] not in WHOLE:
        return None
    return x[0].astype(helper.tensor_dtype_to_np_dtype(a["to"]))


def _filled(x: list[Array], a: Attributes) -> Array | None:
    # ONNX's usual value is the fraction 0.0, which is not followed
    one = of_tensor(a["value"]) if "value" in a else None
    if one is None or np.prod(x[0]) > LARGEST:
        return None
    return np.full(list(map(int, x[0])), one)


def _range(x: list[Array], _: Attributes) -> Array | None:
    start, end, step = map(int, x)
    if not step or abs(end - start) > LARGEST:
        return None
    return np.arange(start, end, step).astype(x[0].dtype)


def _by(function: Callable[..., Any]) -> Rule:
    """What NumPy does with the operands, whose broadcasting is ONNX's."""
    return lambda x, _: np.asarray(function(*x))


RULES: Mapping[str, Rule] = {
    "Add": _by(np.add),
    "Sub": _by(np.subtract),
    "Mul": _by(np.multiply),
    "Div": _divided,
    "Mod": _modulo,
    "Max": lambda x, _: np.max(np.broadcast_arrays(*x), axis=0),
    "Min": lambda x, _: np.min(np.broadcast_arrays(*x), axis=0),
    "Equal": _by(np.equal),
    "Less": _by(np.less),
    "LessOrEqual": _by(np.less_equal),
    "Greater": _by(np.greater),
    "GreaterOrEqual": _by(np.greater_equal),
    "And": _by(np.logical_and),
    "Or": _by(np.logical_or),
    "Not": _by(np.logical_not),
    "Where": _by(np.where),
    "Identity": lambda x, _: x[0],
    "Cast": _cast,
    "Range": _range,
    "Gather": lambda x, a: np.asarray(np.take(x[0], x[1], axis=a.get("axis", 0))),
    "Concat": lambda x, a: np.concatenate(x, axis=a["axis"]),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _filled,
}
