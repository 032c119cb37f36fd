"""Shape rules for contrib operators and extra checks for standard ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from onnx import NodeProto, TensorProto, TypeProto, helper

from specc.ir.signature import Signature, assign_axis_marks
from specc_onnx.lower.emitter import CONTRIB_DOMAIN
from specc_onnx.verifier.onnx_value_types import (
    InferredTypes,
    OperandMismatchError,
    make_tensor_type,
    read_shape,
)
from specc_onnx.verifier.shape_arithmetic import Attributes

ShapeRule: TypeAlias = Callable[[InferredTypes, NodeProto], list[TypeProto]]
ShapeCheck: TypeAlias = Callable[[InferredTypes, NodeProto, Sequence[TypeProto]], object]

DATA_DEPENDENT_OPS = {
    # these want numbers, which data may decide
    *("ConstantOfShape", "Expand", "If", "Loop", "NonZero", "OneHot", "Pad", "Range", "Reshape"),
    *("Scan", "Slice", "Split", "Tile", "TopK"),
    # these are young: an older onnx knows less
    *("Attention", "Gelu", "RMSNormalization", "RotaryEmbedding", "Swish"),
}
"""Operators whose rule may know nothing though it is given all shapes."""


def get_node_attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """An attribute of a node by its name."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


@dataclass(frozen=True, kw_only=True)
class OperatorShapes:
    """An operator's shapes as a signature, of which names and order count. `lengths` computes
    lengths by attributes and bound names. `elements` are result element types, by operand number or
    fixed; `kinds` those operands must have; `fixed` attributes of the only form written.
    """

    signature: str
    elements: tuple[int, ...] = ()
    lengths: Callable[[Attributes, Mapping[str, int]], dict[str, int]] = lambda a, known: {}
    kinds: Mapping[int, int] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    of_operand: bool = True

    def bind(self, found: InferredTypes, node: NodeProto) -> dict[str, tuple[int, ...]]:
        """What each name stands for, by the operands whose lengths are known. OperandMismatchError
        where two of them, or attributes, disagree.
        """
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if any(attributes.get(name, 0) != value for name, value in self.fixed.items()):
            raise OperandMismatchError("this form of it is never written")
        for place, kind in self.kinds.items():
            if found.element(node.input[place]) != kind:
                raise OperandMismatchError(f"operand {place} is not of element type {kind}")
        bound: dict[str, tuple[int, ...]] = {}
        for name, term in zip(node.input, Signature.parse(self.signature).operands, strict=False):
            if name and (sizes := found.sizes(name)) is not None:
                for axis, places in assign_axis_marks(term, len(sizes), None, 0):
                    _bind_length(bound, axis.name, tuple(sizes[n] for n in places), name)
        known = {name: part[0] for name, part in bound.items() if len(part) == 1}
        for name, length in self.lengths(attributes, known).items():
            _bind_length(bound, name, (length,), "an attribute")
        return bound

    def infer(self, found: InferredTypes, node: NodeProto) -> list[TypeProto]:
        """The types of the results; lengths that nothing told are unknown."""
        bound = self.bind(found, node)
        made = []
        results = Signature.parse(self.signature).results[: len(node.output)]
        for element, term in zip(self.elements, results, strict=False):
            parts = [bound.get(axis.name) for axis in term.axes]
            shape = None if None in parts else [n for part in parts for n in part or ()]
            kind = found.element(node.input[element]) if self.of_operand else element
            made.append(make_tensor_type(kind, shape))
        return made


def _bind_length(
    bound: dict[str, tuple[int, ...]], name: str, lengths: tuple[int, ...], where: str
) -> None:
    known = bound.setdefault(name, lengths)
    if known != lengths:
        raise OperandMismatchError(f"`{name}` is {known}, but {lengths} by {where}")


def _list_block_lengths(a: Attributes, known: Mapping[str, int]) -> dict[str, int]:
    """Rows are cut into blocks, of which the last may be filled up."""
    count = -(-a["K"] // a["block_size"])
    return {"k": a["K"], "n": a["N"], "c": count, "p": a["block_size"] * a["bits"] // 8}


def _list_table_lengths(a: Attributes, known: Mapping[str, int]) -> dict[str, int]:
    """A row of bytes holds whole blocks."""
    if "w" not in known:
        raise OperandMismatchError("its table has no known shape")
    wide = known["w"] * 8 // a["bits"]
    if wide % a["block_size"]:
        raise OperandMismatchError(f"{wide} numbers are no blocks of {a['block_size']}")
    return {"d": wide, "c": wide // a["block_size"]}


def _list_head_lengths(a: Attributes, known: Mapping[str, int]) -> dict[str, int]:
    """Queries and keys hold heads of one width side by side."""
    if "q" not in known or "k" not in known:
        raise OperandMismatchError("its rows have no known shape")
    width = known["q"] // a["num_heads"]
    groups = a["kv_num_heads"]
    return {"d": width, "q": width * a["num_heads"], "g": groups, "k": width * groups}


def _list_gate_lengths(gates: int) -> Callable[[Attributes, Mapping[str, int]], dict[str, int]]:
    """The gates of a layer lie below one another, peepholes are three."""

    def list_lengths(a: Attributes, known: Mapping[str, int]) -> dict[str, int]:
        h = a["hidden_size"]
        ways = 2 if a.get("direction") == b"bidirectional" else 1
        return {"y": ways, "h": h, "g": gates * h, "c": 2 * gates * h, "p": 3 * h}

    return list_lengths


CONTRIB_SHAPES = {
    "FusedMatMul": OperatorShapes(
        signature="f[*r k], f[n k] -> f[*r n]", elements=(0,), fixed={"transB": 1, "transA": 0}
    ),
    "GroupQueryAttention": OperatorShapes(
        signature="f[b t q], f[b t k], f[b t k], a[b g m d], a[b g m d]"
        " -> f[b t q], a[b g m d], a[b g m d]",
        elements=(0, 3, 4),
        lengths=_list_head_lengths,
    ),
    "QGemm": OperatorShapes(
        signature="q[m k], f[], q[], q[n k] -> f[m n]",
        elements=(TensorProto.FLOAT,),
        of_operand=False,
        kinds={0: TensorProto.UINT8, 3: TensorProto.INT8},
        fixed={"transB": 1},
    ),
    "MatMulNBits": OperatorShapes(
        signature="f[*r k], q[n c p], f[n c] -> f[*r n]", elements=(0,), lengths=_list_block_lengths
    ),
    "GatherBlockQuantized": OperatorShapes(
        signature="q[v w], i[*s], f[v c] -> f[*s d]",
        elements=(2,),
        lengths=_list_table_lengths,
        fixed={"gather_axis": 0, "quantize_axis": 1},
    ),
    # of each matrix scales and the number that stands for 0 come last
    "DynamicQuantizeLSTM": OperatorShapes(
        signature="f[t b w], q[y w g], q[y h g], f[y c], i[b], f[y b h], f[y b h], f[y p],"
        " f[y g], q[y], f[y g], q[y] -> f[t y b h], f[y b h], f[y b h]",
        elements=(TensorProto.FLOAT,) * 3,
        of_operand=False,
        lengths=_list_gate_lengths(4),
        kinds=dict.fromkeys((1, 2, 9, 11), TensorProto.INT8),
    ),
}
"""ONNX Runtime's operators, which ONNX has no rules for, in the forms that are written."""

RECURRENT_SHAPES = {
    kind: OperatorShapes(
        signature="f[t b w], f[y g w], f[y g h], f[y c], i[b], f[y b h], f[y b h], f[y p] ->",
        lengths=_list_gate_lengths(gates),
    )
    for kind, gates in {"LSTM": 4, "GRU": 3, "RNN": 1}.items()
}
"""Whether rows, weights and states fit each other; ONNX's rule looks at the rows alone."""


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


def _check_reshape_count(found: InferredTypes, node: NodeProto, types: Sequence[TypeProto]) -> None:
    """ONNX's rule for `Reshape` counts only where it has a length to find."""
    before, after = found.sizes(node.input[0]), read_shape(types[0])
    if before is None or after is None:
        return
    known = [d for d in after if d is not None]
    if len(known) == len(after) and prod(before) != prod(known):
        raise OperandMismatchError(f"{before} cannot become {known}")


CONTRIB_SHAPE_RULES: Mapping[tuple[str, str], ShapeRule] = {
    **{(CONTRIB_DOMAIN, kind): shapes.infer for kind, shapes in CONTRIB_SHAPES.items()},
    ("", "TopK"): _infer_top_k,
}
SHAPE_CHECKS: Mapping[str, ShapeCheck] = {
    "Reshape": _check_reshape_count,
    **{
        kind: lambda found, node, _: RECURRENT_SHAPES[node.op_type].bind(found, node)
        for kind in RECURRENT_SHAPES
    },
}
"""Questions that ONNX's rules do not ask."""
