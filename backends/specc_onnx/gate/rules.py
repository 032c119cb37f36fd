"""Rules for the shapes of operators that ONNX does not have, or of which it forgets what
data does not decide, and questions that its own rules do not ask.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from onnx import NodeProto, TensorProto, TypeProto, helper

from specc_onnx.gate.types import Found, Misfit, shape_of, typed
from specc_onnx.lower.emitter import CONTRIB

Rule: TypeAlias = Callable[[Found, NodeProto], list[TypeProto]]
Question: TypeAlias = Callable[[Found, NodeProto, Sequence[TypeProto]], None]

SILENT = {
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


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """An attribute of a node by its name."""
    return next(
        (helper.get_attribute_value(a) for a in node.attribute if a.name == name),
        default,
    )


def _fused_matmul(found: Found, node: NodeProto) -> list[TypeProto]:
    """A product whose second operand is a turned matrix, the one form that is written."""
    x, w = node.input
    rows, matrix = found.sizes(x), found.sizes(w)
    if rows is None or matrix is None:
        return [typed(found.element(x), None)]
    if len(matrix) != 2 or not attribute(node, "transB") or attribute(node, "transA"):
        raise Misfit("this form of it is never written")
    if rows[-1] != matrix[1]:
        raise Misfit(f"rows {rows[-1]} wide meet a matrix for {matrix[1]}")
    return [typed(found.element(x), (*rows[:-1], matrix[0]))]


def _group_query_attention(found: Found, node: NodeProto) -> list[TypeProto]:
    """Rows as wide as the query; buffers stay as long as they are."""
    heads, groups = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
    query, key, value, *buffers = (found.sizes(n) for n in node.input[:5])
    if query is None or key is None or value is None:
        raise Misfit("its rows have no known shape")
    width = query[2] // heads
    if query[2] != heads * width or key != [*query[:2], groups * width] or key != value:
        raise Misfit(f"queries {query} do not fit keys {key} and values {value}")
    for buffer in buffers:
        _fit_buffer(buffer, query[0], groups, width)
    return [found.types[node.input[n]] for n in (0, 3, 4)]


def _fit_buffer(buffer: list[int] | None, batch: int, groups: int, width: int) -> None:
    """That a buffer `[batch, groups, rows, width]` holds these heads, of however many
    rows. Misfit.
    """
    if buffer is None or [*buffer[:2], *buffer[3:]] != [batch, groups, width]:
        raise Misfit(f"the buffer {buffer} does not hold {groups} heads of {width}")


def _quantized_gemm(found: Found, node: NodeProto) -> list[TypeProto]:
    """Rows of bytes by a matrix of bytes that is turned over, the one form that is written."""
    rows, matrix = found.sizes(node.input[0]), found.sizes(node.input[3])
    if rows is None or matrix is None:
        return [typed(TensorProto.FLOAT, None)]
    if not attribute(node, "transB") or len(rows) != 2 or len(matrix) != 2:
        raise Misfit("this form of it is never written")
    if rows[1] != matrix[1]:
        raise Misfit(f"rows {rows[1]} wide meet a matrix for {matrix[1]}")
    kinds = found.element(node.input[0]), found.element(node.input[3])
    if kinds != (TensorProto.UINT8, TensorProto.INT8):
        raise Misfit("its sides are not bytes without and with a sign")
    return [typed(TensorProto.FLOAT, (rows[0], matrix[0]))]


def _product_of_blocks(found: Found, node: NodeProto) -> list[TypeProto]:
    """Rows by weights in blocks, as wide as the node says that they are."""
    x, w, scales = (found.sizes(n) for n in node.input[:3])
    wide, out = attribute(node, "K"), attribute(node, "N")
    bits, block = attribute(node, "bits"), attribute(node, "block_size")
    count = -(-wide // block)
    if w is not None and w != [out, count, block * bits // 8]:
        raise Misfit(f"weights {w} are not {out} rows of {count} blocks of {block}")
    if found.element(node.input[0]) != found.element(node.input[2]):
        raise Misfit("its rows and its scales are not of one type")
    if scales is not None and scales != [out, count]:
        raise Misfit(f"scales {scales} are not those of {count} blocks in {out} rows")
    if x is None:
        return [typed(found.element(node.input[0]), None)]
    if x[-1] != wide:
        raise Misfit(f"rows {x[-1]} wide meet weights for {wide}")
    return [typed(found.element(node.input[0]), (*x[:-1], out))]


def _rows_of_blocks(found: Found, node: NodeProto) -> list[TypeProto]:
    """Rows of a table in blocks, looked up, as the numbers that they stand for."""
    table, ids, scales = (found.sizes(n) for n in node.input[:3])
    bits, block = attribute(node, "bits"), attribute(node, "block_size")
    if attribute(node, "gather_axis") != 0 or attribute(node, "quantize_axis") != 1:
        raise Misfit("this form of it is never written")
    if table is None or scales is None or len(table) != 2:
        raise Misfit("its table has no known shape")
    wide = table[1] * 8 // bits
    if scales != [table[0], wide // block] or wide % block:
        raise Misfit(f"scales {scales} are not those of {table} bytes of {bits} bits")
    made = None if ids is None else (*ids, wide)
    return [typed(found.element(node.input[2]), made)]


def _layer_of_whole_numbers(found: Found, node: NodeProto) -> list[TypeProto]:
    """An LSTM in one direction by weights of 8 bits, which lie turned over, with a scale a
    gate; the gates of both lie side by side.
    """
    hidden = attribute(node, "hidden_size")
    rows = found.sizes(node.input[0])
    if rows is None:
        return [typed(TensorProto.FLOAT, None)] * len(node.output)
    if len(rows) != 3:
        raise Misfit(f"rows {rows} are not time, batch and width")
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
    _fit(found, node, wanted)
    whole = {found.element(node.input[n]) for n in (1, 2, 9, 11)}
    if whole != {TensorProto.INT8}:
        raise Misfit("its weights are not bytes with a sign")
    shapes = ((time, 1, batch, hidden), state, state)
    return [typed(TensorProto.FLOAT, s) for s in shapes[: len(node.output)]]


def _fit(found: Found, node: NodeProto, wanted: Sequence[Sequence[int]]) -> None:
    """That each operand that is there has its shape. Misfit."""
    for name, right in zip(node.input, wanted, strict=False):
        sizes = found.sizes(name) if name else None
        if sizes is not None and sizes != list(right):
            raise Misfit(f"`{name}` is {sizes}, not {list(right)}")


def _top(found: Found, node: NodeProto) -> list[TypeProto]:
    """As many along one axis as data may decide; the other axes stay as they are."""
    x, many = node.input
    shape, count = found.shape(x), found.numbers.get(many)
    element = found.element(x)
    if shape is None:
        return [typed(element, None), typed(TensorProto.INT64, None)]
    axis = attribute(node, "axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise Misfit(f"there is no axis {axis} in {shape}")
    sizes = list(shape)
    longest, sizes[axis] = sizes[axis], None if count is None else int(count.item())
    if longest is not None and (sizes[axis] or 0) > longest:
        raise Misfit(f"the first {sizes[axis]} of {longest} are asked for")
    return [typed(element, sizes), typed(TensorProto.INT64, sizes)]


# --- questions that ONNX's rules do not ask -------------------------------------------


def _same_count(found: Found, node: NodeProto, types: Sequence[TypeProto]) -> None:
    """ONNX's rule for `Reshape` counts only where it has a length to find."""
    before, after = found.sizes(node.input[0]), shape_of(types[0])
    if before is None or after is None:
        return
    known = [d for d in after if d is not None]
    if len(known) == len(after) and prod(before) != prod(known):
        raise Misfit(f"{before} cannot become {known}")


def _recurrent(found: Found, node: NodeProto, _: Sequence[TypeProto]) -> None:
    """Whether rows, weights and states fit each other; ONNX's rule looks at the rows alone."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type]
    hidden = attribute(node, "hidden_size")
    ways = 2 if attribute(node, "direction", b"") == b"bidirectional" else 1
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
    _fit(found, node, wanted)


RULES: Mapping[tuple[str, str], Rule] = {
    (CONTRIB, "DynamicQuantizeLSTM"): _layer_of_whole_numbers,
    (CONTRIB, "FusedMatMul"): _fused_matmul,
    (CONTRIB, "GatherBlockQuantized"): _rows_of_blocks,
    (CONTRIB, "GroupQueryAttention"): _group_query_attention,
    (CONTRIB, "MatMulNBits"): _product_of_blocks,
    (CONTRIB, "QGemm"): _quantized_gemm,
    ("", "TopK"): _top,
}
QUESTIONS: Mapping[str, Question] = {
    "Reshape": _same_count,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
