"""RNN, GRU and LSTM in PyTorch: its fused layers where they are equivalent, else a loop."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from specc.ir import ops
from specc_torch.torch_interpreter import ForwardContext, evaluate

CellStep = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""The states after a row `W x + b`, the one that is given out first."""

ACTIVATION_FUNCTIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


@evaluate(ops.Rnn)
def rnn(
    op: ops.Rnn,
    place: ForwardContext,
    rows: Tensor,
    weights: Tensor,
    state_weights: Tensor,
    bias: Tensor | None = None,
    state_bias: Tensor | None = None,
    keep: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """f[b t i], f[h i], f[h h], f[h]?, f[h]?, b[b t]?, f[b h]? -> f[b t h], f[b h]"""
    states = (_make_initial_state(start, rows, state_weights.shape[1]),)

    def step(row: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (
            ACTIVATION_FUNCTIONS[op.activation](row + linear(before[0], state_weights, state_bias)),
        )

    # PyTorch has no fused layer for the sigmoid.
    if _can_use_torch_layer(rows, keep) and op.activation != "sigmoid":
        layer = torch.rnn_tanh if op.activation == "tanh" else torch.rnn_relu
        return _run_torch_layer(
            layer, rows, states, (weights, state_weights, bias, state_bias), op.reverse
        )
    return _run_cell(step, linear(rows, weights, bias), keep, states, op.reverse)


@evaluate(ops.Gru)
def gru(
    op: ops.Gru,
    place: ForwardContext,
    rows: Tensor,
    weights: Tensor,
    state_weights: Tensor,
    bias: Tensor | None = None,
    state_bias: Tensor | None = None,
    keep: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """f[b t i], f[g i], f[g h], f[g]?, f[g]?, b[b t]?, f[b h]? -> f[b t h], f[b h]"""
    size = state_weights.shape[1]
    b_n = None if state_bias is None else state_bias[2 * size :]
    states = (_make_initial_state(start, rows, size),)

    def step(row: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = before
        r_x, z_x, n_x = row.chunk(3, dim=1)
        r_h, z_h, n_h = linear(h, state_weights, state_bias).chunk(3, dim=1)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        n = torch.tanh(
            n_x
            + (r * n_h if op.reset == "after" else linear(r * h, state_weights[2 * size :], b_n))
        )
        return ((1 - z) * n + z * h if op.update == "old" else (1 - z) * h + z * n,)

    # Only this form is cuDNN's; the others are other functions of the same weights.
    if _can_use_torch_layer(rows, keep) and (op.reset, op.update) == ("after", "old"):
        return _run_torch_layer(
            torch.gru, rows, states, (weights, state_weights, bias, state_bias), op.reverse
        )
    return _run_cell(step, linear(rows, weights, bias), keep, states, op.reverse)


@evaluate(ops.Lstm)
def lstm(
    op: ops.Lstm,
    place: ForwardContext,
    rows: Tensor,
    weights: Tensor,
    state_weights: Tensor,
    bias: Tensor | None = None,
    state_bias: Tensor | None = None,
    keep: Tensor | None = None,
    start: Tensor | None = None,
    first_cell: Tensor | None = None,
    peepholes: Tensor | None = None,
    projection: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """f[b t i], f[g i], f[g r], f[g]?, f[g]?, b[b t]?, f[b r]?, f[b h]?, f[p]?, f[r h]?
    -> f[b t r], f[b r], f[b h]
    """
    size = weights.shape[0] // 4
    states = (
        _make_initial_state(start, rows, state_weights.shape[1]),
        _make_initial_state(first_cell, rows, size),
    )

    def step(row: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = before
        gates = row + linear(h, state_weights, state_bias)
        out, c = apply_lstm_gates(gates, c, peepholes)
        return out if projection is None else linear(out, projection), c

    # PyTorch's layer has no peepholes; what is projected goes row by row here, too.
    if _can_use_torch_layer(rows, keep) and peepholes is None and projection is None:
        return _run_torch_layer(
            torch.lstm, rows, states, (weights, state_weights, bias, state_bias), op.reverse
        )
    return _run_cell(step, linear(rows, weights, bias), keep, states, op.reverse)


def apply_lstm_gates(
    gates: Tensor, cell: Tensor, peepholes: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The result and the cell of an LSTM behind its sums `[b 4h]`, in the order input,
    forget, cell, output.
    """
    i, f, g, o = gates.chunk(4, dim=1)
    if peepholes is not None:
        p_i, p_f, p_o = peepholes.chunk(3)
        i, f = i + p_i * cell, f + p_f * cell
    new = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    # the output gate sees the new cell
    o = o if peepholes is None else o + p_o * new
    return torch.sigmoid(o) * torch.tanh(new), new


def _can_use_torch_layer(x: Tensor, keep: Tensor | None) -> bool:
    """Whether PyTorch's layers can do it: every row exists, and there are some."""
    return keep is None and x.numel() > 0


def _run_torch_layer(
    layer: Callable[..., Sequence[Tensor]],
    x: Tensor,
    states: tuple[Tensor, ...],
    weights: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    reverse: bool,
) -> tuple[Tensor, ...]:
    """One of PyTorch's layers; backwards by turning the rows around, and back."""
    w_ih, w_hh, b_ih, b_hh = weights
    given = [w_ih, w_hh]
    if b_ih is not None or b_hh is not None:
        # It takes both biases or none.
        given += [w_ih.new_zeros(w_ih.shape[0]) if b is None else b for b in (b_ih, b_hh)]
    before = [s[None] for s in states]
    rows = x.flip(1) if reverse else x
    state = before[0] if len(before) == 1 else before
    # cuDNN goes backwards only through what was called as training
    learns = torch.is_grad_enabled()
    out, *after = layer(rows, state, given, len(given) == 4, 1, 0.0, learns, False, True)
    return (out.flip(1) if reverse else out, *(s[0] for s in after))


def _run_cell(
    step: CellStep, rows: Tensor, keep: Tensor | None, states: tuple[Tensor, ...], reverse: bool
) -> tuple[Tensor, ...]:
    """All results and the final states; where `keep` is false nothing happens."""
    batch, steps, _ = rows.shape
    out: list[Tensor] = []
    for t in reversed(range(steps)) if reverse else range(steps):
        after = step(rows[:, t], states)
        here = after[0]
        if keep is not None:
            kept = keep[:, t, None]
            after = tuple(
                torch.where(kept, new, old) for new, old in zip(after, states, strict=True)
            )
            here = torch.where(kept, here, torch.zeros_like(here))
        states = after
        out.append(here)
    # Nothing to stack where there is no row; the states are as they began.
    if not out:
        return (rows.new_zeros(batch, 0, states[0].shape[1]), *states)
    return (torch.stack(out[::-1] if reverse else out, dim=1), *states)


def _make_initial_state(start: Tensor | None, x: Tensor, size: int) -> Tensor:
    return x.new_zeros(x.shape[0], size) if start is None else start
