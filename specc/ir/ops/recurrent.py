"""RNN, GRU and LSTM: one layer in one direction.

Weights are PyTorch's, gates stacked: reset, update, new; input, forget, cell, output. At a
padded position the state is unchanged and the result zero; padding on the right is PyTorch's
packed sequence. The initial state defaults to zero; `reverse` starts at the last position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

from specc.ir.dim import divide_dims_exactly, mod_dims
from specc.ir.op import Op, Operand, OptionalOperand
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ShapeError, Type

__all__ = ["Gru", "Lstm", "RecurrentLayer", "RecurrentOperands", "Rnn"]

RnnActivation: TypeAlias = Literal["tanh", "relu", "sigmoid"]
RNN_ACTIVATIONS: tuple[RnnActivation, ...] = ("tanh", "relu", "sigmoid")


class RecurrentLayer:
    """Common part of the recurrent layers: their first seven operands, and both directions."""

    signature: ClassVar[Signature]
    reverse: bool

    sequence, weights, state_weights = Operand(0), Operand(1), Operand(2)
    bias, state_bias, keep = OptionalOperand(3), OptionalOperand(4), OptionalOperand(5)
    initial_states: tuple[OptionalOperand, ...] = (OptionalOperand(6),)

    def get_signature(self) -> Signature:
        """Return the shape rule of this direction."""
        return reverse_signature(self.signature) if self.reverse else self.signature


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentOperands(Generic[T]):
    """Operands of a recurrent layer by role; `scales` are those of quantized weights."""

    sequence: T
    weights: T
    state_weights: T
    scales: tuple[T, T] | None
    bias: T | None = None
    state_bias: T | None = None
    keep: T | None = None
    initial_state: T | None = None
    initial_cell: T | None = None
    peepholes: T | None = None
    projection: T | None = None

    @classmethod
    def from_operands(
        cls, args: Sequence[T | None], *, quantized: bool = False
    ) -> "RecurrentOperands[T]":
        """Assign a per-operand list of `rnn`, `gru` or `lstm`, or of `lstm_q`."""
        first = args[: 5 if quantized else 3]
        given = [a for a in first if a is not None]
        assert len(given) == len(first), "inputs and weights are present"
        rows, weights, state_weights, *own = given
        names = [f.name for f in fields(cls)][4:]
        rest = dict(zip(names, args[len(first) :], strict=False))
        scales = (own[0], own[1]) if quantized else None
        return cls(
            sequence=rows, weights=weights, state_weights=state_weights, scales=scales, **rest
        )


class Rnn(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[h~ i], f[h~ h~], f[h~]?, f[h~]?, b[b t>]?, f[b h~]? -> f[b t h], f[b h]",
    heavy=True,
):
    """`h' = act(W x + b + U h + c)` (Elman 1990). Results: all hidden states, and the final one.

    Operands: the sequence, `W`, `U`, `b`, `c`, the padding mask, the initial state.
    """

    activation: RnnActivation = "tanh"
    reverse: bool = False


class Gru(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[g i], f[g h~], f[g]?, f[g]?, b[b t>]?, f[b h~]? -> f[b t h], f[b h]",
    heavy=True,
):
    """Gated recurrent unit (arXiv:1406.1078, eq. 5 to 8). Results: all hidden states, and the
    final one.

    Operands are those of `rnn`. `reset` says whether the reset gate is applied before the
    recurrent projection, as in the paper, or after it, to the product with its bias. An open
    update gate keeps the `old` state, as in PyTorch, or takes the `new` one (arXiv:1409.0473).
    """

    reset: Literal["before", "after"]
    update: Literal["old", "new"] = "old"
    reverse: bool = False

    def bind_result_axes(self, axes: AxisBindings) -> None:
        g, h = axes["g"], axes["h"]
        if g != h * 3:
            raise ShapeError(
                f"three gates of size {h} need {h * 3} rows of weights, got {g}",
                (1, 2),
                (g, h * 3),
                "g",
            )


class Lstm(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[g i], f[g r~], f[g]?, f[g]?, b[b t>]?, f[b r~]?, f[b h~]?, f[p]?, f[r~ h~]?"
    " -> f[b t r], f[b r], f[b h]",
    heavy=True,
):
    """Long short-term memory (Gers et al. 2000). Results: all outputs, the final output, and
    the final cell state.

    `c' = σ(f) c + σ(i) tanh(g)`, `h' = σ(o) tanh(c')`. Operands: those of `rnn`, then the
    initial cell state, peepholes of the input, forget and output gates (Gers and Schmidhuber
    2000; the last one uses `c'`), and a projection of `h'` before it is returned and fed back
    (arXiv:1402.1128).
    """

    reverse: bool = False

    initial_cell, peepholes, projection = (
        OptionalOperand(7),
        OptionalOperand(8),
        OptionalOperand(9),
    )
    initial_states = (OptionalOperand(6), initial_cell)
    final_result, cell_result = 1, 2

    def bind_result_axes(self, axes: AxisBindings) -> None:
        g = axes["g"]
        if "h" not in axes.dims:
            if mod_dims(g, 4).number:
                raise ShapeError(
                    f"{g} rows of weights are not divisible into four gates", (1,), (g,), "g"
                )
            axes["h"] = divide_dims_exactly(g, 4)
        h = axes["h"]
        if g != h * 4:
            raise ShapeError(
                f"four gates of size {h} need {h * 4} rows of weights, got {g}",
                (1, 7),
                (g, h * 4),
                "g",
            )
        if "p" in axes.dims and axes["p"] != h * 3:
            raise ShapeError(
                f"peepholes of three gates of {h} are {h * 3}, not {axes['p']}", (8,), name="p"
            )

    def infer(self, *args: Type | None) -> tuple[Type, ...]:
        types = super().infer(*args)
        out, cell = types[self.final_result].shape[1], types[self.cell_result].shape[1]
        if out != cell and self.projection.select(args) is None:
            raise ShapeError(
                f"a state of size {cell} is fed back with size {out}", (1, 2), (cell, out), "r"
            )
        return types


@lru_cache(maxsize=8)
def reverse_signature(forward: Signature) -> Signature:
    """Return the rule of a layer in reverse direction."""
    return Signature.parse(forward.text.replace("t>", "t~"))
