"""Unidirectional RNN, GRU and LSTM layers.

Weights have PyTorch's layout with stacked gates: reset, update and new for a GRU, and input,
forget, cell and output for an LSTM. At padded positions, the state is unchanged and the result is
zero. Right padding is equivalent to PyTorch's packed sequences. The initial state defaults to
zeros. If `reverse` is True, the loop starts at the last position.
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import divide_dims_exactly, mod_dims
from specc.ir.op import Op, Operand, OptionalOperand
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ShapeError, Type

_T = TypeVar("_T")

RnnActivation: TypeAlias = Literal["tanh", "relu", "sigmoid"]
RNN_ACTIVATIONS: tuple[RnnActivation, ...] = ("tanh", "relu", "sigmoid")


class RecurrentLayer:
    """Base class of recurrent layers, with their first seven operands and their direction."""

    signature: ClassVar[Signature]
    reverse: bool

    sequence, input_weights, recurrent_weights = Operand(0), Operand(1), Operand(2)
    input_bias, recurrent_bias, keep = OptionalOperand(3), OptionalOperand(4), OptionalOperand(5)
    initial_states: tuple[OptionalOperand, ...] = (OptionalOperand(6),)

    def get_signature(self) -> Signature:
        """Return the signature for the direction in which the layer runs."""
        return make_reverse_signature(self.signature) if self.reverse else self.signature


@immutable_dataclass(kw_only=True)
class RecurrentOperands(Generic[_T]):
    """The operands of a recurrent layer, grouped by role. `scales` is None for float weights."""

    sequence: _T
    input_weights: _T
    recurrent_weights: _T
    scales: tuple[_T, _T] | None
    input_bias: _T | None = None
    recurrent_bias: _T | None = None
    keep: _T | None = None
    initial_state: _T | None = None
    initial_cell: _T | None = None
    peepholes: _T | None = None
    projection: _T | None = None

    @classmethod
    def from_operands(
        cls, args: Sequence[_T | None], *, is_quantized: bool = False
    ) -> "RecurrentOperands[_T]":
        """Group the entries of a per-operand list of a recurrent layer by the operands' roles."""
        required_args = args[: 5 if is_quantized else 3]
        required_operands = [a for a in required_args if a is not None]
        assert len(required_operands) == len(required_args), (
            "the inputs and the weights are required operands"
        )
        sequence, input_weights, recurrent_weights, *weight_scales = required_operands
        optional_names = [f.name for f in fields(cls)][4:]
        optional_operands = dict(zip(optional_names, args[len(required_args) :], strict=False))
        scales = (weight_scales[0], weight_scales[1]) if is_quantized else None
        return cls(
            sequence=sequence,
            input_weights=input_weights,
            recurrent_weights=recurrent_weights,
            scales=scales,
            **optional_operands,
        )


class Rnn(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[h~ i], f[h~ h~], f[h~]?, f[h~]?, b[b t>]?, f[b h~]? -> f[b t h], f[b h]",
    is_compute_intensive=True,
):
    """`h' = act(W x + b + U h + c)` (Elman 1990). The results are all hidden states and the final
    state.

    The operands are the sequence, `W`, `U`, `b`, `c`, the padding mask and the initial state.
    """

    activation: RnnActivation = "tanh"
    reverse: bool = False


class Gru(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[g i], f[g h~], f[g]?, f[g]?, b[b t>]?, f[b h~]? -> f[b t h], f[b h]",
    is_compute_intensive=True,
):
    """Gated recurrent unit (arXiv:1406.1078, eq. 5 to 8). The results are all hidden states and the
    final state.

    The operands are those of `rnn`. `reset` determines whether the reset gate is applied before the
    recurrent projection, as in arXiv:1406.1078, or after the projection and the addition of the
    projection's bias. `update` is the state that an update gate of 1 selects: `old` as in PyTorch,
    or `new` as in arXiv:1409.0473.
    """

    reset: Literal["before", "after"]
    update: Literal["old", "new"] = "old"
    reverse: bool = False

    def infer_result_axes(self, axes: AxisBindings) -> None:
        _check_gate_rows(axes, 3, "three", (1, 2))


def _check_gate_rows(
    axes: AxisBindings, count: int, count_text: str, operands: tuple[int, int]
) -> None:
    """Raise ShapeError unless the number of weight rows is `count` times the hidden size."""
    rows, expected = axes["g"], axes["h"] * count
    if rows != expected:
        gates = f"{count_text} gates of size {axes['h']}"
        title = f"expected {expected} rows of weights for {gates}, got {rows}"
        raise ShapeError(title, operands, (rows, expected), "g")


class Lstm(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[g i], f[g r~], f[g]?, f[g]?, b[b t>]?, f[b r~]?, f[b h~]?, f[p]?, f[r~ h~]?"
    " -> f[b t r], f[b r], f[b h]",
    is_compute_intensive=True,
):
    """Long short-term memory (Gers et al. 2000). The results are all outputs, the final output, and
    the final cell state.

    `c' = σ(f) c + σ(i) tanh(g)`, `h' = σ(o) tanh(c')`. The operands are those of `rnn`, the initial
    cell state, the peepholes of the input, forget and output gates (Gers and Schmidhuber 2000), and
    a projection. The peephole of the output gate uses `c'`. The projection is applied to `h'`
    before `h'` is returned and fed back (arXiv:1402.1128).
    """

    reverse: bool = False

    initial_cell, peepholes, projection = (
        OptionalOperand(7),
        OptionalOperand(8),
        OptionalOperand(9),
    )
    initial_states = (OptionalOperand(6), initial_cell)
    final_result, cell_result = 1, 2

    def infer_result_axes(self, axes: AxisBindings) -> None:
        rows = axes["g"]
        if "h" not in axes.dims:
            if mod_dims(rows, 4).number:
                raise ShapeError(
                    f"{rows} rows of weights cannot be divided into four gates", (1,), (rows,), "g"
                )
            axes["h"] = divide_dims_exactly(rows, 4)
        _check_gate_rows(axes, 4, "four", (1, 7))
        if "p" in axes.dims and axes["p"] != axes["h"] * 3:
            title = f"expected {axes['h'] * 3} peephole weights, got {axes['p']}"
            raise ShapeError(title, (8,), name="p")

    def infer_result_types(self, *args: Type | None) -> tuple[Type, ...]:
        types = super().infer_result_types(*args)
        output_size, cell_size = types[self.final_result].shape[1], types[self.cell_result].shape[1]
        if output_size != cell_size and self.projection.get_entry(args) is None:
            raise ShapeError(
                f"a state of size {cell_size} is fed back with size {output_size}",
                (1, 2),
                (cell_size, output_size),
                "r",
            )
        return types


@lru_cache(maxsize=8)
def make_reverse_signature(forward: Signature) -> Signature:
    """Return the signature of a layer that runs in reverse direction."""
    return Signature.parse(forward.text.replace("t>", "t~"))
