"""Rules for the shapes of operators that ONNX does not have, and questions that its own rules do not ask."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from onnx import NodeProto, TypeProto, helper

from specc_onnx.emit import CONTRIB
from specc_onnx.shape_types import Found, Misfit, shape_of, typed

Rule: TypeAlias = Callable[[Found, NodeProto], list[TypeProto]]
Question: TypeAlias = Callable[[Found, NodeProto, Sequence[TypeProto]], None]

SILENT = {
    "ConstantOfShape", "Expand", "If", "Loop", "OneHot", "Pad", "Range", "Reshape", "Scan", "Slice", "Split", "Tile",
    "TopK",  # these want numbers, which data may decide
    "Attention", "Gelu", "RMSNormalization", "RotaryEmbedding", "Swish",  # these are young: an older onnx knows less
}  # fmt: skip
"""Operators whose rule may know nothing though it is given all shapes."""


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """An attribute of a node by its name."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


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
        if buffer is None or [*buffer[:2], *buffer[3:]] != [query[0], groups, width]:
            raise Misfit(f"the buffer {buffer} does not hold {groups} heads of {width}")
    return [found.types[node.input[n]] for n in (0, 3, 4)]


# --- questions that ONNX's rules do not ask ----------------------------------------------------


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
    wanted = (
        rows, [ways, gates * hidden, width], [ways, gates * hidden, hidden], [ways, 2 * gates * hidden], [batch],
        state, state, [ways, 3 * hidden],
    )  # fmt: skip
    for name, right in zip(node.input, wanted, strict=False):
        sizes = found.sizes(name) if name else None
        if sizes is not None and sizes != right:
            raise Misfit(f"`{name}` is {sizes}, not {right}")


RULES: Mapping[tuple[str, str], Rule] = {
    (CONTRIB, "FusedMatMul"): _fused_matmul,
    (CONTRIB, "GroupQueryAttention"): _group_query_attention,
}
QUESTIONS: Mapping[str, Question] = {"Reshape": _same_count, "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent}
