"""The weights of a recurrent layer as ONNX's operators want them: gates in their order,
an axis for directions in front.

All of it is made of weights alone, so a runtime does it once, when it loads the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir.dim import exact
from specc_onnx.lower.arrange import unsqueeze
from specc_onnx.lower.emitter import Emitter, Tensor


@dataclass(frozen=True, slots=True)
class Cell:
    """Which of our gates stands at each of ONNX's places, and which changes its sign."""

    order: Sequence[int]
    negated: int | None = None


def weights_in_order(
    g: Emitter,
    cell: Cell,
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    axis: int = 0,
) -> list[str | None]:
    """`W`, `U` and both biases in a row, the gates of matrices along `axis`. Put in order
    outside of any loop, so that it is done but once.
    """
    own = {t.name for t in g.parameters.values()}
    # Weights that were computed inside a loop's body are not to be seen outside of it.
    if all(w.name in own for w in (*weights, *biases) if w):
        with g.outside(g.site.scope, level=0):
            return _weights(g, cell, weights, biases, axis)
    return _weights(g, cell, weights, biases, axis)


def _weights(
    g: Emitter,
    cell: Cell,
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    axis: int,
) -> list[str | None]:
    bias = None
    if any(biases):
        # ONNX has both in one operand: where one is missing, zeros stand for it.
        size = weights[0].type.shape[axis].number or 0
        dtype = next(b.type.dtype for b in biases if b)
        zeros = g.constant([0.0] * size, dtype)
        both = [in_order(g, b, cell) if b else zeros for b in biases]
        bias = unsqueeze(g, g.node("Concat", *both, axis=0), 0)
    return [*(unsqueeze(g, in_order(g, w, cell, axis), 0) for w in weights), bias]


def in_order(g: Emitter, weights: Tensor, cell: Cell, axis: int = 0) -> str:
    """Weights whose `axis` holds the gates one after the other, in ONNX's order."""
    count = len(cell.order)
    if count == 1:
        return weights.name
    size = exact(weights.type.shape[axis], count)
    sizes = g.shape([size] * count)
    parts = list(g.nodes("Split", count, weights.name, sizes, axis=axis))
    if cell.negated is not None:
        parts[cell.negated] = g.node("Neg", parts[cell.negated])
    return g.node("Concat", *(parts[n] for n in cell.order), axis=axis)
