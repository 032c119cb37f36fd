"""`Scan`, the only run-time loop, and RNN, GRU and LSTM: one layer in one direction.

Weights have PyTorch's layout with stacked gates: reset, update, new (GRU); input, forget, cell,
output (LSTM). At padded positions the state is unchanged and the result is zero; right padding is
equivalent to PyTorch's packed sequences. The initial state defaults to zeros. `reverse` starts at
the last position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeAlias, TypeVar

from specc.ir.dim import Dim, divide_dims_exactly, mod_dims
from specc.ir.op import Op, Operand, OptionalOperand
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ShapeError, Type

if TYPE_CHECKING:
    from specc.ir.graph import Graph, Node, Value


__all__ = ["Gru", "LoopOperands", "Lstm", "RecurrentLayer", "RecurrentOperands", "Rnn", "Scan"]

T = TypeVar("T")

RnnActivation: TypeAlias = Literal["tanh", "relu", "sigmoid"]
RNN_ACTIVATIONS: tuple[RnnActivation, ...] = ("tanh", "relu", "sigmoid")


class RecurrentLayer:
    """Base class of recurrent layers: their first seven operands, and the direction."""

    signature: ClassVar[Signature]
    reverse: bool

    sequence, input_weights, recurrent_weights = Operand(0), Operand(1), Operand(2)
    input_bias, recurrent_bias, keep = OptionalOperand(3), OptionalOperand(4), OptionalOperand(5)
    initial_states: tuple[OptionalOperand, ...] = (OptionalOperand(6),)

    def get_signature(self) -> Signature:
        """Return the signature for this direction."""
        return reverse_signature(self.signature) if self.reverse else self.signature


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentOperands(Generic[T]):
    """The operands of a recurrent layer by role. `scales` is None for float weights."""

    sequence: T
    input_weights: T
    recurrent_weights: T
    scales: tuple[T, T] | None
    input_bias: T | None = None
    recurrent_bias: T | None = None
    keep: T | None = None
    initial_state: T | None = None
    initial_cell: T | None = None
    peepholes: T | None = None
    projection: T | None = None

    @classmethod
    def from_operands(
        cls, args: Sequence[T | None], *, quantized: bool = False
    ) -> "RecurrentOperands[T]":
        """Group a per-operand list of `rnn`, `gru`, `lstm` or `quantized_lstm` by role."""
        first = args[: 5 if quantized else 3]
        given = [a for a in first if a is not None]
        assert len(given) == len(first), "inputs and weights are present"
        rows, input_weights, recurrent_weights, *own = given
        names = [f.name for f in fields(cls)][4:]
        rest = dict(zip(names, args[len(first) :], strict=False))
        scales = (own[0], own[1]) if quantized else None
        return cls(
            sequence=rows,
            input_weights=input_weights,
            recurrent_weights=recurrent_weights,
            scales=scales,
            **rest,
        )


class Rnn(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[h~ i], f[h~ h~], f[h~]?, f[h~]?, b[b t>]?, f[b h~]? -> f[b t h], f[b h]",
    is_heavy=True,
):
    """`h' = act(W x + b + U h + c)` (Elman 1990). Results: all hidden states, and the final state.

    Operands: the sequence, `W`, `U`, `b`, `c`, the padding mask, the initial state.
    """

    activation: RnnActivation = "tanh"
    reverse: bool = False


class Gru(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[g i], f[g h~], f[g]?, f[g]?, b[b t>]?, f[b h~]? -> f[b t h], f[b h]",
    is_heavy=True,
):
    """Gated recurrent unit (arXiv:1406.1078, eq. 5 to 8). Results: all hidden states, and the final
    state.

    Operands are those of `rnn`. `reset` determines whether the reset gate is applied before the
    recurrent projection, as in the paper, or after it, to the projection including its bias. An
    update gate of 1 selects the `old` state, as in PyTorch, or the `new` state (arXiv:1409.0473).
    """

    reset: Literal["before", "after"]
    update: Literal["old", "new"] = "old"
    reverse: bool = False

    def infer_result_axes(self, axes: AxisBindings) -> None:
        g, h = axes["g"], axes["h"]
        if g != h * 3:
            raise ShapeError(
                f"expected {h * 3} rows of weights for three gates of size {h}, got {g}",
                (1, 2),
                (g, h * 3),
                "g",
            )


class Lstm(
    RecurrentLayer,
    Op,
    sig="f[b t> i], f[g i], f[g r~], f[g]?, f[g]?, b[b t>]?, f[b r~]?, f[b h~]?, f[p]?, f[r~ h~]?"
    " -> f[b t r], f[b r], f[b h]",
    is_heavy=True,
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

    def infer_result_axes(self, axes: AxisBindings) -> None:
        g = axes["g"]
        if "h" not in axes.dims:
            if mod_dims(g, 4).number:
                raise ShapeError(
                    f"{g} rows of weights cannot be divided into four gates", (1,), (g,), "g"
                )
            axes["h"] = divide_dims_exactly(g, 4)
        h = axes["h"]
        if g != h * 4:
            raise ShapeError(
                f"expected {h * 4} rows of weights for four gates of size {h}, got {g}",
                (1, 7),
                (g, h * 4),
                "g",
            )
        if "p" in axes.dims and axes["p"] != h * 3:
            raise ShapeError(f"expected {h * 3} peephole weights, got {axes['p']}", (8,), name="p")

    def infer_result_types(self, *args: Type | None) -> tuple[Type, ...]:
        types = super().infer_result_types(*args)
        out, cell = types[self.final_result].shape[1], types[self.cell_result].shape[1]
        if out != cell and self.projection.select(args) is None:
            raise ShapeError(
                f"a state of size {cell} is fed back with size {out}", (1, 2), (cell, out), "r"
            )
        return types


@lru_cache(maxsize=8)
def reverse_signature(forward: Signature) -> Signature:
    """Return the signature of a layer in reverse direction."""
    return Signature.parse(forward.text.replace("t>", "t~"))


@dataclass(frozen=True)
class LoopOperands(Generic[T]):
    """The operands of a loop, or per-operand data, by role.

    `keep` is the padding mask; the `captured` values are loop-invariant.
    """

    keep: T | None
    scanned: tuple[T, ...]
    initial_carries: tuple[T, ...]
    captured: tuple[T, ...]

    @property
    def stacked(self) -> tuple[T, ...]:
        """Stacked operands of which the body takes one slice: the expert weights of a mixture of
        experts. A loop has none.
        """
        return ()

    @property
    def body_operands(self) -> tuple[T, ...]:
        """The operands that the body takes, in the order of its inputs."""
        return *self.scanned, *self.initial_carries, *self.captured


class Scan(Op, sig="a[*s]... -> a[*t]", is_heavy=True):
    """A loop over one axis, with loop-carried values.

    Operands: `keep` if `has_mask` (bool [b, t]), the scanned tensors (the loop runs along their
    axis `axis`), the initial loop-carried values, then captured values. Inputs of the body: the
    current slice of each scanned tensor, the loop-carried values and the captures; its outputs are
    the next loop-carried values, then the scan outputs. Results: the final loop-carried values,
    then the scan outputs stacked along axis `axis`. Where `keep` is false, the loop-carried values
    are unchanged and the scan outputs are zero. `reverse` starts at the last position. If
    `end_condition_index` is not -1, the loop-carried value with that index is boolean, and the loop
    ends as soon as all its elements are true, also before the first iteration; scan outputs of the
    remaining iterations are zero. Where this value is true, the body must not change loop-carried
    values and must output zeros, so that no result depends on the number of iterations. The last
    `unfrozen_output_count` scan outputs are computed in every iteration, from unchanged
    loop-carried values: later positions look back at them.
    """

    body: "Graph"
    scanned_count: int
    carry_count: int
    axis: int
    reverse: bool = False
    has_mask: bool = False
    end_condition_index: int = -1
    unfrozen_output_count: int = 0

    @property
    def first_body_operand(self) -> int:
        """The index of the first operand that the body takes; `keep` is not passed to the body."""
        return 1 if self.has_mask else 0

    def split_operands(self, per_operand: Sequence[T]) -> LoopOperands[T]:
        """Group the entries of a per-operand list by role (scanned, initial, captured)."""
        rows_end = self.first_body_operand + self.scanned_count
        starts_end = rows_end + self.carry_count
        return LoopOperands(
            per_operand[0] if self.has_mask else None,
            tuple(per_operand[self.first_body_operand : rows_end]),
            tuple(per_operand[rows_end:starts_end]),
            tuple(per_operand[starts_end:]),
        )

    def split_body_inputs(self) -> "LoopOperands[Value]":
        """Group the inputs of the body by role."""
        inputs = tuple(self.body.inputs.values())
        starts_end = self.scanned_count + self.carry_count
        rows, starts = inputs[: self.scanned_count], inputs[self.scanned_count : starts_end]
        return LoopOperands(None, rows, starts, inputs[starts_end:])

    def map_captures(self, per_operand: Sequence[T]) -> "dict[Value, T]":
        """Map each captured input of the body to its entry in a per-operand list."""
        captured = self.split_operands(per_operand).captured
        return dict(zip(self.split_body_inputs().captured, captured, strict=True))

    def get_next_carries(self) -> "tuple[Value, ...]":
        """Return the loop-carried outputs of the body."""
        return tuple(self.body.outputs.values())[: self.carry_count]

    def get_scan_outputs(self) -> "tuple[Value, ...]":
        """Return the scan outputs of the body."""
        return tuple(self.body.outputs.values())[self.carry_count :]

    def get_first_scanned(self, node: "Node") -> "Value":
        """Return the first scanned operand. All scanned operands have the same size along their
        scan axis.
        """
        value = node.args[self.first_body_operand]
        assert value is not None, "a scan has no optional operands"
        return value

    def infer_result_types(self, *args: Type | None) -> tuple[Type, ...]:
        types = [a for a in args if a is not None]
        assert len(types) == len(args), "a scan has no optional operands"
        given = self.split_operands(types)
        length = self._find_trip_count(given.scanned)
        inner = [v.type for v in self.body.inputs.values()]
        rows = tuple(remove_axis(r, self.axis) for r in given.scanned)
        outer = replace(given, scanned=rows).body_operands
        self._check_body_types(inner, outer)
        after = [v.type for v in self.body.outputs.values()]
        carried = inner[self.scanned_count : self.scanned_count + self.carry_count]
        _check_loop_carried_types(carried, after)
        self._check_end_condition(carried)
        stacked = (
            Type(t.dtype, (*t.shape[: self.axis], length, *t.shape[self.axis :]))
            for t in after[self.carry_count :]
        )
        return (*after[: self.carry_count], *stacked)

    def _check_body_types(self, inner: Sequence[Type], outer: Sequence[Type]) -> None:
        """Raise ShapeError if the types of an operand and of the body input differ."""
        for n, (inside, outside) in enumerate(zip(inner, outer, strict=True)):
            if inside != outside:
                title = f"the body expects {inside}, got {outside}"
                raise ShapeError(title, (self.first_body_operand + n,))

    def _check_end_condition(self, carried: Sequence[Type]) -> None:
        """Raise ShapeError unless the loop-carried value that ends the loop exists and is
        boolean.
        """
        rows = len(self.body.outputs) - self.carry_count
        if not 0 <= self.unfrozen_output_count <= (0 if self.end_condition_index == -1 else rows):
            raise ShapeError(
                f"this loop has fewer than {self.unfrozen_output_count} lasting results"
            )
        if self.end_condition_index == -1:
            return
        if not 0 <= self.end_condition_index < self.carry_count:
            raise ShapeError(
                f"the end condition must be a carry of the loop, got {self.end_condition_index}"
            )
        if carried[self.end_condition_index].dtype != "bool":
            raise ShapeError(
                f"the end condition must be boolean, got {carried[self.end_condition_index]}"
            )

    def _find_trip_count(self, scanned_types: Sequence[Type]) -> Dim:
        """Return the trip count: the common size of all scanned operands along the scan axis."""
        length = scanned_types[0].shape[self.axis]
        for n, row in enumerate(scanned_types):
            other = row.shape[self.axis]
            if other != length:
                title = f"scanned lengths {length} and {other} differ"
                places = self.first_body_operand, self.first_body_operand + n
                raise ShapeError(title, places, (length, other))
        return length


def _check_loop_carried_types(initial_types: Sequence[Type], next_types: Sequence[Type]) -> None:
    """Raise ShapeError if an iteration changes the type of a loop-carried value."""
    for before, now in zip(initial_types, next_types, strict=False):
        if before != now:
            raise ShapeError(
                f"the loop-carried value has type {before} before the iteration, but {now} after it"
            )


def remove_axis(type: Type, axis: int) -> Type:
    """Return the type of one slice along `axis`."""
    return Type(type.dtype, (*type.shape[:axis], *type.shape[axis + 1 :]))
