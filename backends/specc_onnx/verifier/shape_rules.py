"""Shape rules for contrib operators and extra checks for standard ones."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from onnx import NodeProto, TensorProto, TypeProto, helper

from specc_onnx.lower.emitter import CONTRIB_DOMAIN
from specc_onnx.verifier.onnx_value_types import (
    InferredTypes,
    OperandMismatchError,
    make_tensor_type,
    read_shape,
)

ShapeRule: TypeAlias = Callable[[InferredTypes, NodeProto], list[TypeProto]]
ShapeCheck: TypeAlias = Callable[[InferredTypes, NodeProto, Sequence[TypeProto]], None]

DATA_DEPENDENT_OPS = {
    "ConstantOfShape",
    "Expand",
    "If",
    "Loop",
    "NonZero",
    "OneHot",
    "Pad",
    "Range",
    "Reshape",
    "Scan",
    "Slice",
    "Split",
    "Tile",
    "TopK",  # these want numbers, which data may decide
    # these are young: an older onnx knows less
    "Attention",
    "Gelu",
    "RMSNormalization",
    "RotaryEmbedding",
    "Swish",
}
"""Operators whose rule may know nothing though it is given all shapes."""


def get_node_attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """An attribute of a node by its name."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _infer_fused_matmul(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """A product whose second operand is a turned matrix, the one form that is written."""
    x, w = node.input
    rows, matrix = found.sizes(x), found.sizes(w)
    if rows is None or matrix is None:
        return [make_tensor_type(found.element(x), None)]
    if (
        len(matrix) != 2
        or not get_node_attribute(node, "transB")
        or get_node_attribute(node, "transA")
    ):
        raise OperandMismatchError("this form of it is never written")
    if rows[-1] != matrix[1]:
        raise OperandMismatchError(f"rows {rows[-1]} wide meet a matrix for {matrix[1]}")
    return [make_tensor_type(found.element(x), (*rows[:-1], matrix[0]))]


def _infer_group_query_attention(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Rows as wide as the query; buffers stay as long as they are."""
    heads, groups = (
        get_node_attribute(node, "num_heads"),
        get_node_attribute(node, "kv_num_heads"),
    )
    query, key, value, *buffers = (found.sizes(n) for n in node.input[:5])
    if query is None or key is None or value is None:
        raise OperandMismatchError("its rows have no known shape")
    width = query[2] // heads
    if query[2] != heads * width or key != [*query[:2], groups * width] or key != value:
        raise OperandMismatchError(f"queries {query} do not fit keys {key} and values {value}")
    for buffer in buffers:
        _check_buffer_shape(buffer, query[0], groups, width)
    return [found.types[node.input[n]] for n in (0, 3, 4)]


def _check_buffer_shape(buffer: list[int] | None, batch: int, groups: int, width: int) -> None:
    """That a buffer `[batch, groups, rows, width]` holds these heads, of however many
    rows. Misfit.
    """
    if buffer is None or [*buffer[:2], *buffer[3:]] != [batch, groups, width]:
        raise OperandMismatchError(f"the buffer {buffer} does not hold {groups} heads of {width}")


def _infer_quantized_gemm(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Rows of bytes by a matrix of bytes that is turned over, the one form that is written."""
    rows, matrix = found.sizes(node.input[0]), found.sizes(node.input[3])
    if rows is None or matrix is None:
        return [make_tensor_type(TensorProto.FLOAT, None)]
    if not get_node_attribute(node, "transB") or len(rows) != 2 or len(matrix) != 2:
        raise OperandMismatchError("this form of it is never written")
    if rows[1] != matrix[1]:
        raise OperandMismatchError(f"rows {rows[1]} wide meet a matrix for {matrix[1]}")
    kinds = found.element(node.input[0]), found.element(node.input[3])
    if kinds != (TensorProto.UINT8, TensorProto.INT8):
        raise OperandMismatchError("its sides are not bytes without and with a sign")
    return [make_tensor_type(TensorProto.FLOAT, (rows[0], matrix[0]))]


def _infer_matmul_nbits(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Rows by weights in blocks, as wide as the node says that they are."""
    x, w, scales = (found.sizes(n) for n in node.input[:3])
    wide, out = get_node_attribute(node, "K"), get_node_attribute(node, "N")
    bits, block = (get_node_attribute(node, "bits"), get_node_attribute(node, "block_size"))
    count = -(-wide // block)
    if w is not None and w != [out, count, block * bits // 8]:
        raise OperandMismatchError(f"weights {w} are not {out} rows of {count} blocks of {block}")
    if found.element(node.input[0]) != found.element(node.input[2]):
        raise OperandMismatchError("its rows and its scales are not of one type")
    if scales is not None and scales != [out, count]:
        raise OperandMismatchError(f"scales {scales} are not those of {count} blocks in {out} rows")
    if x is None:
        return [make_tensor_type(found.element(node.input[0]), None)]
    if x[-1] != wide:
        raise OperandMismatchError(f"rows {x[-1]} wide meet weights for {wide}")
    return [make_tensor_type(found.element(node.input[0]), (*x[:-1], out))]


def _infer_gather_block_quantized(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Rows of a table in blocks, looked up, as the numbers that they stand for."""
    table, ids, scales = (found.sizes(n) for n in node.input[:3])
    bits, block = (get_node_attribute(node, "bits"), get_node_attribute(node, "block_size"))
    if (
        get_node_attribute(node, "gather_axis") != 0
        or get_node_attribute(node, "quantize_axis") != 1
    ):
        raise OperandMismatchError("this form of it is never written")
    if table is None or scales is None or len(table) != 2:
        raise OperandMismatchError("its table has no known shape")
    wide = table[1] * 8 // bits
    if scales != [table[0], wide // block] or wide % block:
        raise OperandMismatchError(f"scales {scales} are not those of {table} bytes of {bits} bits")
    made = None if ids is None else (*ids, wide)
    return [make_tensor_type(found.element(node.input[2]), made)]


def _infer_dynamic_quantize_lstm(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """An LSTM in one direction by weights of 8 bits, which lie turned over, with a scale a
    gate; the gates of both lie side by side.
    """
    hidden = get_node_attribute(node, "hidden_size")
    rows = found.sizes(node.input[0])
    if rows is None:
        return [make_tensor_type(TensorProto.FLOAT, None)] * len(node.output)
    if len(rows) != 3:
        raise OperandMismatchError(f"rows {rows} are not time, batch and width")
    time, batch, width = rows
    state, scales = [1, batch, hidden], [1, 4 * hidden]
    # rows, both matrices, bias, lengths, both states, peepholes; of each matrix then
    # scales and the number that stands for 0
    wanted = (
        rows,
        [1, width, 4 * hidden],
        [1, hidden, 4 * hidden],
        [1, 8 * hidden],
        [batch],
        state,
        state,
        [1, 3 * hidden],
        scales,
        [1],
        scales,
        [1],
    )
    _check_operand_shapes(found, node, wanted)
    whole = {found.element(node.input[n]) for n in (1, 2, 9, 11)}
    if whole != {TensorProto.INT8}:
        raise OperandMismatchError("its weights are not bytes with a sign")
    shapes = ((time, 1, batch, hidden), state, state)
    return [make_tensor_type(TensorProto.FLOAT, s) for s in shapes[: len(node.output)]]


def _check_operand_shapes(
    found: InferredTypes, node: NodeProto, wanted: Sequence[Sequence[int]]
) -> None:
    """That each operand that is there has its shape. Misfit."""
    for name, right in zip(node.input, wanted, strict=False):
        sizes = found.sizes(name) if name else None
        if sizes is not None and sizes != list(right):
            raise OperandMismatchError(f"`{name}` is {sizes}, not {list(right)}")


def _infer_top_k(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """As many along one axis as data may decide; the other axes stay as they are."""
    x, many = node.input
    shape, count = found.shape(x), found.numbers.get(many)
    element = found.element(x)
    if shape is None:
        return [make_tensor_type(element, None), make_tensor_type(TensorProto.INT64, None)]
    axis = get_node_attribute(node, "axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise OperandMismatchError(f"there is no axis {axis} in {shape}")
    sizes = list(shape)
    longest, sizes[axis] = sizes[axis], None if count is None else int(count.item())
    if longest is not None and (sizes[axis] or 0) > longest:
        raise OperandMismatchError(f"the first {sizes[axis]} of {longest} are asked for")
    return [make_tensor_type(element, sizes), make_tensor_type(TensorProto.INT64, sizes)]


# --- questions that ONNX's rules do not ask -------------------------------------------


def _check_reshape_count(found: InferredTypes, node: NodeProto, types: Sequence[TypeProto]) -> None:
    """ONNX's rule for `Reshape` counts only where it has a length to find."""
    before, after = found.sizes(node.input[0]), read_shape(types[0])
    if before is None or after is None:
        return
    known = [d for d in after if d is not None]
    if len(known) == len(after) and prod(before) != prod(known):
        raise OperandMismatchError(f"{before} cannot become {known}")


def _check_recurrent_shapes(found: InferredTypes, node: NodeProto, _: Sequence[TypeProto]) -> None:
    """Whether rows, weights and states fit each other; ONNX's rule looks at the rows alone."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type]
    hidden = get_node_attribute(node, "hidden_size")
    ways = 2 if get_node_attribute(node, "direction", b"") == b"bidirectional" else 1
    rows = found.sizes(node.input[0])
    if rows is None or len(rows) != 3:
        return
    batch, width = rows[1:]
    state = [ways, batch, hidden]
    # rows, both matrices, both biases, lengths, the first state; of an LSTM also the
    # first cell and peepholes
    wanted = (
        rows,
        [ways, gates * hidden, width],
        [ways, gates * hidden, hidden],
        [ways, 2 * gates * hidden],
        [batch],
        state,
        state,
        [ways, 3 * hidden],
    )
    _check_operand_shapes(found, node, wanted)


CONTRIB_SHAPE_RULES: Mapping[tuple[str, str], ShapeRule] = {
    (CONTRIB_DOMAIN, "DynamicQuantizeLSTM"): _infer_dynamic_quantize_lstm,
    (CONTRIB_DOMAIN, "FusedMatMul"): _infer_fused_matmul,
    (CONTRIB_DOMAIN, "GatherBlockQuantized"): _infer_gather_block_quantized,
    (CONTRIB_DOMAIN, "GroupQueryAttention"): _infer_group_query_attention,
    (CONTRIB_DOMAIN, "MatMulNBits"): _infer_matmul_nbits,
    (CONTRIB_DOMAIN, "QGemm"): _infer_quantized_gemm,
    ("", "TopK"): _infer_top_k,
}
SHAPE_CHECKS: Mapping[str, ShapeCheck] = {
    "Reshape": _check_reshape_count,
    "LSTM": _check_recurrent_shapes,
    "GRU": _check_recurrent_shapes,
    "RNN": _check_recurrent_shapes,
}
