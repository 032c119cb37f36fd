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
) -> list[str | None]:
    """`W`, `U` and both biases in a row. Put in order outside of any loop, so that it
    is done but once.
    """
    own = {t.name for t in g.parameters.values()}
    # Weights that were computed inside a loop's body are not to be seen outside of it.
    if all(w.name in own for w in (*weights, *biases) if w):
        with g.outside(g.site.scope, level=0):
            return _weights(g, cell, weights, biases)
    return _weights(g, cell, weights, biases)


def _weights(
    g: Emitter,
    cell: Cell,
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
) -> list[str | None]:
    bias = None
    if any(biases):
        # ONNX has both in one operand: where one is missing, zeros stand for it.
        size = weights[0].type.shape[0].number or 0
        zeros = g.constant([0.0] * size, weights[0].type.dtype)
        both = [in_order(g, b, cell) if b else zeros for b in biases]
        bias = unsqueeze(g, g.node("Concat", *both, axis=0), 0)
    return [*(unsqueeze(g, in_order(g, w, cell), 0) for w in weights), bias]


def in_order(g: Emitter, weights: Tensor, cell: Cell) -> str:
    """Weights whose first axis holds the gates one after the other, in ONNX's order."""
    count = len(cell.order)
    if count == 1:
        return weights.name
    size = exact(weights.type.shape[0], count)
    parts = list(g.nodes("Split", count, weights.name, g.shape([size] * count), axis=0))
    if cell.negated is not None:
        parts[cell.negated] = g.node("Neg", parts[cell.negated])
    return g.node("Concat", *(parts[n] for n in cell.order), axis=0)
