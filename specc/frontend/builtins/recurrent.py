"""Built-in recurrent layers: RNN, GRU and LSTM with PyTorch's weight layout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from specc.frontend.builtins.nn import FAN_IN_INIT, ZEROS_INIT
from specc.frontend.builtins.registry import (
    ONE,
    CallContext,
    broadcast_batch_axis,
    register_builtin,
)
from specc.frontend.parameter_kinds import Activation
from specc.frontend.spec_values import ResultTuple, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.op import Op

Direction = Literal["forward", "backward", "both"]
REVERSED_BY_DIRECTION: dict[str, tuple[bool, ...]] = {
    "forward": (False,),
    "backward": (True,),
    "both": (False, True),
}
"""The directions of a recurrent layer (True is backward), keyed by the value of `direction`."""

RNN_ACTIVATIONS: dict[str, Literal["tanh", "relu", "sigmoid"]] = {
    "tanh": "tanh",
    "relu": "relu",
    "sigmoid": "sigmoid",
}
"""The activations that `rnn` accepts."""


@register_builtin(has_weights=True)
def rnn(
    ctx: CallContext,
    x: Tensor,
    *,
    hidden: Dim,
    act: Activation = "tanh",
    layers: Dim = ONE,
    direction: Direction = "forward",
    keep: Tensor | None = None,
    start: Tensor | None = None,
    bias: bool = True,
    init: str = FAN_IN_INIT,
) -> ResultTuple:
    """Apply Elman RNN layers: h' = act(W x + b + U h + c), with `act` tanh, relu or sigmoid.
    Returns (out, last).

    The options, results and weights are those of `gru`, except that the weights have `hidden` rows.
    """
    act_name = act if isinstance(act, str) else act.name
    activation = RNN_ACTIVATIONS.get(act_name)
    if activation is None:
        helps = ["for another activation write `recurrent(x, rnn_cell(act=…), …)`"]
        ctx.raise_error(
            "E0203",
            f"`act` of `rnn` must be tanh, relu or sigmoid, got {act_name}",
            "act",
            helps=helps,
        )
    stack = _LayerStack(
        ctx=ctx,
        hidden=hidden,
        gate_count=1,
        layers=layers,
        direction=direction,
        keep=keep,
        bias=bias,
        init=init,
    )
    return stack.add_layers(
        x, lambda reverse: ops.Rnn(activation, reverse), [start], ("out", "last")
    )


@register_builtin(has_weights=True)
def gru(
    ctx: CallContext,
    x: Tensor,
    *,
    hidden: Dim,
    reset: Literal["before", "after"],
    update: Literal["old", "new"] = "old",
    layers: Dim = ONE,
    direction: Direction = "forward",
    keep: Tensor | None = None,
    start: Tensor | None = None,
    bias: bool = True,
    init: str = FAN_IN_INIT,
) -> ResultTuple:
    """Apply GRU layers (arXiv:1406.1078, eq. 5 to 8) to [batch, time, in]. Returns (out, last).

    `direction` is `forward`, `backward` or `both`. `out` [batch, time, hidden] contains the hidden
    state at every time step, with both directions concatenated. `last` [batch, layers, hidden]
    contains the final states, layer by layer, forward before backward. `start` has the layout of
    `last` and defaults to zeros. Time steps masked out by `keep` leave the state unchanged and
    output zeros. `reset=before` applies the reset gate before the recurrent projection, as in the
    paper, and `reset=after` applies it afterwards, as in PyTorch. `update` is the state, `old` or
    `new`, that is selected where the update gate is 1. Weights: `weight_ih_l0` [3 hidden, in],
    `weight_hh_l0` [3 hidden, hidden], `bias_ih_l0`, `bias_hh_l0`, as in PyTorch, with `_l1` and so
    on for further layers, and `_reverse` for the backward direction. The gate order is reset,
    update, new.
    """
    stack = _LayerStack(
        ctx=ctx,
        hidden=hidden,
        gate_count=3,
        layers=layers,
        direction=direction,
        keep=keep,
        bias=bias,
        init=init,
    )
    return stack.add_layers(
        x, lambda reverse: ops.Gru(reset, update, reverse), [start], ("out", "last")
    )


@register_builtin(has_weights=True)
def lstm(
    ctx: CallContext,
    x: Tensor,
    *,
    hidden: Dim,
    layers: Dim = ONE,
    direction: Direction = "forward",
    keep: Tensor | None = None,
    start: Tensor | None = None,
    start_cell: Tensor | None = None,
    bias: bool = True,
    peepholes: bool = False,
    proj: Dim | None = None,
    init: str = FAN_IN_INIT,
) -> ResultTuple:
    """Apply LSTM layers (Gers et al. 2000) to [batch, time, in]. Returns (out, last, cell).

    The options, results and weights are those of `gru`, but there are four gates: input, forget,
    cell and output. `cell` and `start_cell` are [batch, layers, hidden]. `peepholes=true` connects
    the input, forget and output gates to the cell state (Gers and Schmidhuber 2000), with the
    weight `peephole_l0` [3 hidden]. `proj` is the projection size of the hidden state
    (arXiv:1402.1128, PyTorch's `proj_size`), with the weight `weight_hr_l0` [proj, hidden].
    """
    stack = _LayerStack(
        ctx=ctx,
        hidden=hidden,
        gate_count=4,
        layers=layers,
        direction=direction,
        keep=keep,
        bias=bias,
        init=init,
        peepholes=peepholes,
        proj=proj,
    )
    return stack.add_layers(x, ops.Lstm, [start, start_cell], ("out", "last", "cell"))


@dataclass(frozen=True, kw_only=True)
class _LayerStack:
    """A stack of recurrent layers of the same type, with the call that creates the stack."""

    ctx: CallContext
    hidden: Dim
    gate_count: int
    layers: Dim
    direction: str
    keep: Tensor | None
    bias: bool
    init: str
    peepholes: bool = False
    proj: Dim | None = None

    def add_layers(
        self,
        x: Tensor,
        make_op: Callable[[bool], Op],
        initial_states: Sequence[Tensor | None],
        result_names: tuple[str, ...],
    ) -> ResultTuple:
        """Add the layers. Return the last layer's outputs and all layers' final states."""
        ctx, directions = self.ctx, REVERSED_BY_DIRECTION[self.direction]
        self._check_operands(x)
        # each layer has separate weights, so the number of layers must be static
        count = ctx.require_positive_count(self.layers, "layers")
        states_by_option = [
            self._make_initial_states(state, count * len(directions), option, x.shape[0])
            for state, option in zip(initial_states, ("start", "start_cell"), strict=False)
        ]
        final_states: list[tuple[Tensor, ...]] = []
        for layer in range(count):
            outputs = []
            for reverse in directions:
                # states are ordered by layer, with forward before backward
                layer_states = [states[len(final_states)] for states in states_by_option]
                out, *final = ctx.add_node(
                    make_op(reverse),
                    *self._list_operands(x, f"_l{layer}{'_reverse' * reverse}", layer_states),
                )
                outputs.append(out)
                final_states.append(tuple(final))
            # the input of the next layer contains both directions, concatenated
            x = outputs[0] if len(outputs) == 1 else ctx.add_op(ops.Concat(2), *outputs)
        stacked = [self._stack_states(list(s)) for s in zip(*final_states, strict=True)]
        return ResultTuple((x, *stacked), result_names)

    def _check_operands(self, x: Tensor) -> None:
        """Raise E0301 for an input or a padding mask of the wrong type."""
        ctx, keep = self.ctx, self.keep
        if len(x.shape) != 3 or not x.type.dtype.startswith(("f", "bf")):
            title = f"`{ctx.expr.function.path}` takes a float tensor [batch, time, features]"
            ctx.raise_error("E0301", title, "x", f"this is {describe_value(x)}")
        if keep is not None and (keep.type.dtype != "bool" or keep.shape != x.shape[:2]):
            title = f"`keep` must be a padding mask bool[{x.shape[0]}, {x.shape[1]}]"
            ctx.raise_error("E0301", title, "keep", f"this is {describe_value(keep)}")

    def _list_operands(
        self, x: Tensor, suffix: str, states: list[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the operands for one direction of a layer. `suffix` is the suffix of the weight
        names, such as `_l0_reverse`.
        """

        def add_weight(name: str, shape: Sequence[Dim], *sizes: str) -> Tensor:
            initial = self.init if name.startswith("weight") else ZEROS_INIT
            return self.ctx.add_weight(f"{name}{suffix}", shape, initial, sizes)

        gate_width = self.hidden * self.gate_count
        # if the layer has a projection, the recurrent input is the projected hidden state
        recurrent_width = self.hidden if self.proj is None else self.proj
        operands: list[Tensor | None] = [
            x,
            add_weight("weight_ih", [gate_width, x.shape[-1]], "hidden"),
            add_weight("weight_hh", [gate_width, recurrent_width], "hidden", "hidden"),
        ]
        for name in ("bias_ih", "bias_hh"):
            operands.append(add_weight(name, [gate_width], "hidden") if self.bias else None)
        operands += [self.keep, *states]
        if self.peepholes or self.proj is not None:
            operands.append(add_weight("peephole", [self.hidden * 3]) if self.peepholes else None)
        if self.proj is not None:
            operands.append(add_weight("weight_hr", [self.proj, self.hidden], "proj", "hidden"))
        return operands

    def _make_initial_states(
        self, start: Tensor | None, count: int, option: str, batch: Dim
    ) -> list[Tensor | None]:
        """Return the initial state of each layer and direction. For a single layer and direction,
        `start` may be [batch, hidden]. Batch size 1 is broadcast.
        """
        if start is None:
            return [None] * count
        start = broadcast_batch_axis(self.ctx, start, batch)
        # the initial state of a single layer usually has the shape [batch, hidden]
        if len(start.shape) == 2 and count == 1:
            return [start]
        if len(start.shape) != 3 or start.shape[1] != count:
            title = (
                f"`{option}` must be [batch, {count}, hidden]: the initial state of {count} "
                f"layer{'s' * (count > 1)}"
            )
            self.ctx.raise_error("E0301", title, option, f"this is {describe_value(start)}")
        return [self.ctx.add_op(ops.Index(1, Dim.from_value(n)), start) for n in range(count)]

    def _stack_states(self, states: list[Tensor]) -> Tensor:
        """Stack final states [batch, hidden] to a tensor [batch, layers, hidden]."""
        stacked = [self.ctx.insert_axis(s, 1) for s in states]
        return stacked[0] if len(stacked) == 1 else self.ctx.add_op(ops.Concat(1), *stacked)
