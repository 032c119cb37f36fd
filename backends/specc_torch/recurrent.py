"""`Scan`, RNN, GRU and LSTM in PyTorch: its fused layers where they are equivalent, else a loop."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from specc.ir import ops
from specc.ir.evaluation import run_scan
from specc.ir.types import Type
from specc_torch.torch_interpreter import ForwardContext, evaluate, run_graph_nodes

CellStep = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""The states after a time step with input projection `W x + b`; the first is the output."""

ACTIVATION_FUNCTIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


@evaluate
def rnn(op: ops.Rnn, place: ForwardContext, *args: Tensor | None) -> tuple[Tensor, ...]:
    """f[b t i], f[h i], f[h h], f[h]?, f[h]?, b[b t]?, f[b h]? -> f[b t h], f[b h]"""
    x = ops.RecurrentOperands.from_operands(args)

    def step(row: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        from_state = linear(before[0], x.state_weights, x.state_bias)
        return (ACTIVATION_FUNCTIONS[op.activation](row + from_state),)

    states = _list_initial_states(x, x.state_weights.shape[1:])
    # PyTorch has no fused layer for the sigmoid.
    if _can_use_torch_layer(x) and op.activation != "sigmoid":
        layer = torch.rnn_tanh if op.activation == "tanh" else torch.rnn_relu
        return _run_torch_layer(layer, x, states, op.reverse)
    return _run_cell(step, x, states, op.reverse)


@evaluate
def gru(op: ops.Gru, place: ForwardContext, *args: Tensor | None) -> tuple[Tensor, ...]:
    """f[b t i], f[g i], f[g h], f[g]?, f[g]?, b[b t]?, f[b h]? -> f[b t h], f[b h]"""
    x = ops.RecurrentOperands.from_operands(args)
    size = x.state_weights.shape[1]
    b_n = None if x.state_bias is None else x.state_bias[2 * size :]

    def step(row: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = before
        r_x, z_x, n_x = row.chunk(3, dim=1)
        r_h, z_h, n_h = linear(h, x.state_weights, x.state_bias).chunk(3, dim=1)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        after = op.reset == "after"
        past = r * n_h if after else linear(r * h, x.state_weights[2 * size :], b_n)
        n = torch.tanh(n_x + past)
        return ((1 - z) * n + z * h if op.update == "old" else (1 - z) * h + z * n,)

    states = _list_initial_states(x, [size])
    # Only this variant is cuDNN's; the others compute other functions of the same weights.
    if _can_use_torch_layer(x) and (op.reset, op.update) == ("after", "old"):
        return _run_torch_layer(torch.gru, x, states, op.reverse)
    return _run_cell(step, x, states, op.reverse)


@evaluate
def lstm(op: ops.Lstm, place: ForwardContext, *args: Tensor | None) -> tuple[Tensor, ...]:
    """f[b t i], f[g i], f[g r], f[g]?, f[g]?, b[b t]?, f[b r]?, f[b h]?, f[p]?, f[r h]?
    -> f[b t r], f[b r], f[b h]
    """
    x = ops.RecurrentOperands.from_operands(args)

    def step(row: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = before
        gates = row + linear(h, x.state_weights, x.state_bias)
        out, c = apply_lstm_gates(gates, c, x.peepholes)
        return out if x.projection is None else linear(out, x.projection), c

    states = _list_initial_states(x, [x.state_weights.shape[1], len(x.weights) // 4])
    # PyTorch's layer has no peepholes; projections run step by step here too.
    if _can_use_torch_layer(x) and x.peepholes is None and x.projection is None:
        return _run_torch_layer(torch.lstm, x, states, op.reverse)
    return _run_cell(step, x, states, op.reverse)


def apply_lstm_gates(
    gates: Tensor, cell: Tensor, peepholes: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return output and cell of an LSTM from its gate sums `[b 4h]` in the order i, f, g, o."""
    i, f, g, o = gates.chunk(4, dim=1)
    if peepholes is not None:
        p_i, p_f, p_o = peepholes.chunk(3)
        i, f = i + p_i * cell, f + p_f * cell
    new = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    # the output gate reads the new cell
    o = o if peepholes is None else o + p_o * new
    return torch.sigmoid(o) * torch.tanh(new), new


def _can_use_torch_layer(x: ops.RecurrentOperands[Tensor]) -> bool:
    """Return whether PyTorch's layers apply: no padding mask, and at least one position."""
    return x.keep is None and x.sequence.numel() > 0


def _run_torch_layer(
    layer: Callable[..., Sequence[Tensor]],
    x: ops.RecurrentOperands[Tensor],
    states: tuple[Tensor, ...],
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Run one of PyTorch's layers; `reverse` flips the sequence before and after."""
    given = [x.weights, x.state_weights]
    biases = x.bias, x.state_bias
    if any(b is not None for b in biases):
        # It takes both biases or none.
        given += [x.weights.new_zeros(len(x.weights)) if b is None else b for b in biases]
    before = [s[None] for s in states]
    rows = x.sequence.flip(1) if reverse else x.sequence
    state = before[0] if len(before) == 1 else before
    # cuDNN computes gradients only for layers called in training mode
    learns = torch.is_grad_enabled()
    out, *after = layer(rows, state, given, len(given) == 4, 1, 0.0, learns, False, True)
    return (out.flip(1) if reverse else out, *(s[0] for s in after))


def _run_cell(
    step: CellStep, x: ops.RecurrentOperands[Tensor], states: tuple[Tensor, ...], reverse: bool
) -> tuple[Tensor, ...]:
    """Return all outputs and the final states; masked positions change no state."""
    rows = linear(x.sequence, x.weights, x.bias)
    batch, steps, _ = rows.shape
    out: list[Tensor] = []
    for t in reversed(range(steps)) if reverse else range(steps):
        after = step(rows[:, t], states)
        here = after[0]
        if x.keep is not None:
            kept = x.keep[:, t, None]
            after = tuple(
                torch.where(kept, new, old) for new, old in zip(after, states, strict=True)
            )
            here = torch.where(kept, here, torch.zeros_like(here))
        states = after
        out.append(here)
    # Nothing to stack for an empty axis; the states are the initial ones.
    if not out:
        return (rows.new_zeros(batch, 0, states[0].shape[1]), *states)
    return (torch.stack(out[::-1] if reverse else out, dim=1), *states)


def _list_initial_states(
    x: ops.RecurrentOperands[Tensor], sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    return tuple(
        x.sequence.new_zeros(len(x.sequence), size) if start is None else start
        for size, start in zip(sizes, (x.initial_state, x.initial_cell), strict=False)
    )


@evaluate
def scan(op: ops.Scan, place: ForwardContext, *operands: Tensor) -> tuple[Tensor, ...]:
    """a[*s]... -> a[*t]"""
    keep, steps = op.split_operands(operands).keep, operands[op.first_body_operand].shape[op.axis]

    def select_unpadded(t: int, new: Tensor, old: Tensor | None) -> Tensor:
        # A padded position leaves the state unchanged and outputs zeros.
        if keep is None:
            return new
        kept = keep[:, t].reshape(-1, *[1] * (new.ndim - 1))
        return torch.where(kept, new, torch.zeros_like(new) if old is None else old)

    carries, collected = run_scan(
        op,
        operands,
        steps,
        slice_position=lambda x, t: x.select(op.axis, t),
        evaluate_body=lambda given, wanted: run_graph_nodes(op.body, given, place, wanted),
        select_value=select_unpadded,
        is_all_true=lambda carry: bool(carry.all()),
    )
    types = [value.type for value in op.get_collected_outputs()]
    return (
        *carries,
        *(_stack_collected(*each, op, place, steps) for each in zip(collected, types, strict=True)),
    )


def _stack_collected(
    made: list[Tensor], type: Type, op: ops.Scan, place: ForwardContext, steps: int
) -> Tensor:
    """Stack collected values in position order, zeros for iterations that were not run."""
    shape = [place.length(d) for d in type.shape]
    zeros = torch.zeros(shape, dtype=place.stored(type.dtype), device=place.device)
    if not steps:
        return zeros.unsqueeze(op.axis).narrow(op.axis, 0, 0)
    made = [*made, *[zeros] * (steps - len(made))]
    return torch.stack(made[::-1] if op.reverse else made, dim=op.axis)
