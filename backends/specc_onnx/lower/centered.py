"""Attention around a center that only the model knows: Luong's local attention,
predictive (arXiv:1508.04025, sec. 3.2).

    abs(float(j) - center[i]) <= reach

A step has one query a text. Its keys lie between the least center less the reach and
the greatest one more: those rows alone are scored, made weights of and summed, where
they are less than half of all. The other weights are zeros.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value
from specc.ir.types import Type
from specc_onnx.lower.arrange import cast, matmul, reduce
from specc_onnx.lower.emitter import Body, Emitter, Tensor, graph_of
from specc_onnx.lower.portion import Axes, Leaf, Portion
from specc_onnx.lower.short import branch
from specc_onnx.lower.spans import Span, rows_of
from specc_onnx.lower.table import lower_nodes

KEYS = Dim.symbol("near.keys")
"""How many keys lie near a center of some text."""

Make: TypeAlias = Callable[[Emitter, Tensor, Tensor], str]
"""Weights from scores and a mask."""

FEWEST = 1000
"""Up to so many keys it is no faster to read fewer: choosing them has its price."""


@dataclass(frozen=True, slots=True)
class Near:
    """The keys that may be seen, and the condition under which they alone are read."""

    keys: Span
    few: str


def center_of(g: Emitter, mask: Tensor) -> tuple[Value, Value] | None:
    """The center that a mask `[…, 1, k]` compares its keys with, and how far they may be;
    None where it does not.
    """
    shape = mask.type.shape
    if not g.target.blocks or len(shape) < 2 or shape[-2] != 1 or shape[-1].number:
        return None
    return _around(g, mask.value, shape[-1])


def _around(g: Emitter, mask: Value | None, keys: Dim) -> tuple[Value, Value] | None:
    """Center and reach of `abs(j - center) <= reach`, which must hold."""
    todo = [mask]
    # Of conditions that must all hold any one may be the comparison.
    while todo:
        value = _outer(g, todo.pop())
        match value and value.node:
            case Node(ops.And(), both):
                todo += both
            case Node(
                ops.Compare(fn="le" | "lt"),
                (Value(node=Node(ops.Pointwise(fn="abs"), (apart,))), reach),
            ):
                sides = apart.node.args if apart and apart.node else ()
                center = _center(g, apart, sides, keys)
                if center is not None and reach and keys not in reach.type.shape:
                    return center, reach
            case Node(op, (inner,)) if op.view:
                todo.append(inner)
    return None


def _center(
    g: Emitter, apart: Value | None, sides: tuple[Value | None, ...], keys: Dim
) -> Value | None:
    """What row numbers of the keys are taken from, or that is taken from them."""
    is_difference = apart and apart.node and apart.node.op == ops.Arith("sub")
    if not is_difference or len(sides) != 2:
        return None
    # A distance is the same either way round.
    for rows, center in (sides, sides[::-1]):
        if center and keys not in center.type.shape and _counted_by(g, rows, keys):
            return center
    return None


def _counted_by(g: Emitter, rows: Value | None, keys: Dim) -> bool:
    """Whether a value holds the row numbers of the keys along its last axis."""
    return rows is not None and rows.type.shape[-1:] == (keys,) and _numbers(g, rows)


def _numbers(g: Emitter, value: Value | None) -> bool:
    """Whether a value holds row numbers, however they are laid out."""
    while (value := _outer(g, value)) is not None and value.node is not None:
        if isinstance(value.node.op, ops.Extent | ops.Range):
            return True
        if not (value.node.op.view or isinstance(value.node.op, ops.Cast)):
            return False
        value = value.node.first
    return False


def _outer(g: Emitter, value: Value | None) -> Value | None:
    """What a loop's body captures, as it is known outside."""
    while value is not None and value.node is None and value in g.tensors:
        known = g.tensors[value].value
        if known is None or known is value:
            break
        value = known
    return value


def _near(g: Emitter, center: Value, reach: Value, keys: Dim) -> Near:
    """From the least center less the reach up to the greatest and the reach; a row more
    on either side, for the difference is rounded.
    """
    ends = {}
    far = g.node("Ceil", _flat(g, reach, "ReduceMax", 0))
    far = g.node("Add", far, g.constant(1.0, "f32"))
    length = g.node("Cast", g.dim(keys), to=1)
    for kind, shift in (("ReduceMin", "Sub"), ("ReduceMax", "Add")):
        # An empty batch has no centers; what stands for none is at the other end.
        # What stands for no center makes the span as narrow as can be.
        none = length if kind == "ReduceMin" else g.constant(0.0, "f32")
        end = g.node("Floor", g.node(shift, _flat(g, center, kind, none), far))
        inside = g.node("Min", g.node("Max", end, g.constant(0.0, "f32")), length)
        ends[kind] = g.node("Unsqueeze", cast(g, inside, "f32", "i64"), g.vector(0))
    one, all_keys = g.vector(1), g.shape([keys])
    start = g.node("Min", ends["ReduceMin"], g.node("Sub", all_keys, one))
    stop = g.node("Add", g.node("Max", ends["ReduceMax"], start), one)
    stop = g.node("Min", stop, all_keys)
    read = g.node("Sub", stop, start)
    few = g.node("Less", g.node("Add", read, read), all_keys)
    return Near(Span(start, stop, KEYS), g.node("Squeeze", few, g.vector(0)))


def _flat(g: Emitter, value: Value, kind: str, none: str | int) -> str:
    """The least or the greatest number of a value, as f32[]."""
    x = g.tensors[value]
    numbers = g.node("Reshape", cast(g, x.name, x.type.dtype, "f32"), g.vector(-1))
    other = g.constant(float(none), "f32") if isinstance(none, int) else none
    other = g.node("Unsqueeze", other, g.vector(0))
    return reduce(g, kind, g.node("Concat", numbers, other, axis=0), 0)


def weights_near(
    g: Emitter, center: tuple[Value, Value], given: tuple[Tensor, Tensor], make: Make
) -> str:
    """Weights `[…, 1, k]` of scores and a mask; those far from the center are zeros that
    nobody computes.
    """
    type = g.site.types[0]
    keys = type.shape[-1]
    # Known outside of the branches, where it is worked out once.
    with g.outside("lengths"):
        many = g.node("Greater", g.dim(keys), g.constant(FEWEST, "i64"))
    number = Type("i64", (Dim.of(1),))
    types = [type, number, number, Type("bool", ())]
    with g.body(apart=True) as body:
        near = _near(g, *center, keys)
        made = _chosen(g, near, given, make)
        told = (made, near.keys.start, near.keys.stop, near.few)
        names = [_own(g, body, name) for name in told]
        then = graph_of("many", body, names, types)
    with g.body(apart=True) as body:
        made = _all(g, given, make)
        told = (made, g.vector(0), g.vector(0), g.constant(False, "bool"))
        otherwise = graph_of("few", body, [_own(g, body, n) for n in told], types)
    result, start, stop, few = g.nodes(
        "If", 4, many, then_branch=then, else_branch=otherwise
    )
    g.near[result] = Near(Span(start, stop, KEYS), few)
    return result


def _own(g: Emitter, body: Body, name: str) -> str:
    """A result of a branch, which has to be made inside."""
    if any(name in node.output for node in body.nodes):
        return name
    return g.alias(name, g.place("near"))


def _chosen(g: Emitter, near: Near, given: tuple[Tensor, Tensor], make: Make) -> str:
    """Weights of the keys near the center, where they are few."""
    type = g.site.types[0]
    last = type.rank - 1

    def cut(value: Value, axes: Axes) -> Value:
        x = rows_of(g, g.tensors[value], axes, (None, near.keys))
        made = Value(x.type)
        g.tensors[made] = replace(x, value=made)
        return made

    with g.body() as body, _counted(g, near):
        made = make(g, *_again(g, given, KEYS, cut))
        front = [g.vector(*[0] * last), near.keys.start, g.vector(*[0] * last)]
        behind = g.node("Sub", g.shape([type.shape[-1]]), near.keys.stop)
        padded = g.node("Pad", made, g.node("Concat", *front, behind, axis=0))
        then = branch(g, body, "near", padded, type)
    with g.body(apart=True) as body:
        otherwise = branch(g, body, "all", _all(g, given, make), type)
    return g.node("If", near.few, then_branch=then, else_branch=otherwise)


def _all(g: Emitter, given: tuple[Tensor, Tensor], make: Make) -> str:
    """Weights of all keys, made in the innermost body."""
    keys = g.site.types[0].shape[-1]
    return make(g, *_again(g, given, keys, lambda value, axes: value))


def _again(
    g: Emitter, given: tuple[Tensor, ...], keys: Dim, leaf: Leaf
) -> list[Tensor]:
    """Scores and mask over some keys, written into the innermost body."""
    portion = Portion(
        queries=Dim.of(1), keys=keys, leaf=leaf, scope=g.site.scope, one_axis=True
    )
    found, site = [], g.site
    for x in given:
        assert x.value is not None, "an operand of the graph has a value"
        value = portion.of(x.value, (None, x.type.rank - 1))
        lower_nodes(g, portion.graph(value))
        found.append(g.tensors[value])
    g.site = site
    return found


def sum_near(g: Emitter, weights: Tensor, values: Tensor) -> str | None:
    """The sum of values by weights that are zeros far away; None where they are not."""
    near = _found(g, weights.value)
    if near is None:
        return None
    type = g.site.types[0]
    with g.body() as body, _counted(g, near):
        few = rows_of(g, weights, (weights.type.rank - 1,), (near.keys,))
        some = rows_of(g, values, (values.type.rank - 2,), (near.keys,))
        then = branch(g, body, "near", matmul(g, few, some), type)
    with g.body() as body:
        otherwise = branch(g, body, "all", matmul(g, weights, values), type)
    return g.node("If", near.few, then_branch=then, else_branch=otherwise)


def _found(g: Emitter, value: Value | None) -> Near | None:
    """The keys near a center that made weights; a product with them is zero as well."""
    todo = [value]
    while todo:
        value = todo.pop()
        if value is None or value not in g.tensors:
            continue
        if (near := g.near.get(g.tensors[value].name)) is not None:
            return near
        match value.node:
            case Node(ops.Arith(fn="mul"), both):
                todo += both
            case Node(ops.Insert() | ops.Squeeze(), (inner,)):
                todo.append(inner)
    return None


@contextmanager
def _counted(g: Emitter, near: Near) -> Iterator[None]:
    """How many keys are near is known inside."""
    count = g.node("Sub", near.keys.stop, near.keys.start)
    numbers = {
        **g.lengths.numbers,
        str(KEYS): g.node("Squeeze", count, g.vector(0)),
    }
    sure = g.lengths.sure | {KEYS}
    with g.rooted(replace(g.lengths, numbers=numbers, sure=sure)):
        yield
