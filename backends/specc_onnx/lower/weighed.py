"""Sums by weights of any score, in blocks of neighboring queries: scores, weights and sum
of a block are made of the keys that its mask can show.
"""

from dataclasses import replace

from specc.ir.dim import Dim, product
from specc.ir.graph import Value
from specc.ir.types import Type
from specc.passes.prove.local import Local, blocks_of_weights
from specc_onnx.lower.arrange import matmul
from specc_onnx.lower.blocks import Apart, known_rows, long_enough, looped
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.portion import Axes, Leaf, Portion
from specc_onnx.lower.short import branch
from specc_onnx.lower.spans import Span, rows_of
from specc_onnx.lower.table import lower_nodes


def sum_in_blocks(g: Emitter, weights: Tensor, values: Tensor) -> str | None:
    """The sum of values by weights `[…, q, k]`; None where that is done at once."""
    local = _local(g, weights, values)
    if local is None:
        return None
    type = g.site.types[0]
    n = type.shape[-2]
    long = long_enough(g, product(type.shape[:-2]), n, local, Apart())
    with g.body() as body, known_rows(g, n, *type.shape[:-2]):
        rows = looped(g, n, local, _Block(g, local, weights, values), "")
        then = branch(g, body, "long", rows, type)
    with g.body(apart=True) as body:
        again = _again(g, local, weights, (n, n), lambda value, axes: value)
        made = matmul(g, again, values)
        otherwise = branch(g, body, "short", made, type)
    return g.node("If", long, then_branch=then, else_branch=otherwise)


class _Block:
    """Makes the sums of some queries."""

    def __init__(
        self, g: Emitter, local: Local, weights: Tensor, values: Tensor
    ) -> None:
        self.g, self.local, self.weights, self.values = g, local, weights, values

    def __call__(self, queries: Span, keys: Span) -> Tensor:
        g, type = self.g, self.g.site.types[0]

        def cut(value: Value, axes: Axes) -> Value:
            x = rows_of(g, g.tensors[value], axes, (queries, keys))
            made = Value(x.type)
            g.tensors[made] = replace(x, value=made)
            return made

        lengths = (queries.length, keys.length)
        some = _again(g, self.local, self.weights, lengths, cut)
        near = rows_of(g, self.values, (self.values.type.rank - 2,), (keys,))
        shape = (*type.shape[:-2], queries.length, type.shape[-1])
        return Tensor(matmul(g, some, near), Type(type.dtype, shape))


def _local(g: Emitter, weights: Tensor, values: Tensor) -> Local | None:
    """The blocks, where nothing else reads the weights and they can be made in them."""
    value, width = weights.value, values.type.shape[-1].number
    if value is None or width is None or not g.target.blocks:
        return None
    # Leading axes of the two may differ, by a 1 that is repeated.
    if (
        g.readers.get(value, 0) != 1
        or weights.type.shape[:-2] != values.type.shape[:-2]
    ):
        return None
    local = blocks_of_weights(value)
    if local is None:
        return None
    whole = _portion(g, local, weights, lambda value, axes: value)
    whole.of(value, _axes(weights))
    return local if value not in whole.grids else None


def _portion(
    g: Emitter,
    local: Local,
    weights: Tensor,
    leaf: Leaf,
    lengths: tuple[Dim, Dim] | None = None,
) -> Portion:
    queries, keys = lengths or weights.type.shape[-2:]
    return Portion(
        queries=queries, keys=keys, leaf=leaf, scope=g.site.scope, within=local.band
    )


def _axes(x: Tensor) -> Axes:
    return x.type.rank - 2, x.type.rank - 1


def _again(
    g: Emitter, local: Local, weights: Tensor, lengths: tuple[Dim, Dim], leaf: Leaf
) -> Tensor:
    """Weights of some queries and keys, written into the innermost body."""
    assert weights.value is not None, "an operand of the graph has a value"
    portion = _portion(g, local, weights, leaf, lengths)
    value = portion.of(weights.value, _axes(weights))
    site = g.site
    lower_nodes(g, portion.graph(value))
    g.site = site
    return g.tensors[value]
