"""RNN, GRU and LSTM in PyTorch, with PyTorch's fused layers where they are equivalent."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from specc.ir import ops
from specc_torch.torch_interpreter import ForwardContext, evaluate

CellStep = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""A function that computes the states after a time step from the input projection `W x + b` and the
previous states. The first state is also the output of the time step.
"""

ACTIVATION_FUNCTIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


@evaluate
def rnn(op: ops.Rnn, context: ForwardContext, *args: Tensor | None) -> tuple[Tensor, ...]:
    """Run an RNN layer in one direction.

    f[b t i], f[h i], f[h h], f[h]?, f[h]?, b[b t]?, f[b h]? -> f[b t h], f[b h]
    """
    x = ops.RecurrentOperands.from_operands(args)

    def compute_step(inputs: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        state_projection = linear(states[0], x.recurrent_weights, x.recurrent_bias)
        return (ACTIVATION_FUNCTIONS[op.activation](inputs + state_projection),)

    states = _list_initial_states(x, x.recurrent_weights.shape[1:])
    # PyTorch has no fused RNN layer with a sigmoid activation.
    if _can_use_torch_layer(x) and op.activation != "sigmoid":
        layer = torch.rnn_tanh if op.activation == "tanh" else torch.rnn_relu
        return _run_torch_layer(layer, x, states, op.reverse)
    return _run_cell(compute_step, x, states, op.reverse)


@evaluate
def gru(op: ops.Gru, context: ForwardContext, *args: Tensor | None) -> tuple[Tensor, ...]:
    """Run a GRU layer in one direction.

    f[b t i], f[g i], f[g h], f[g]?, f[g]?, b[b t]?, f[b h]? -> f[b t h], f[b h]
    """
    x = ops.RecurrentOperands.from_operands(args)
    size = x.recurrent_weights.shape[1]
    b_n = None if x.recurrent_bias is None else x.recurrent_bias[2 * size :]

    def compute_step(inputs: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = states
        r_x, z_x, n_x = inputs.chunk(3, dim=1)
        r_h, z_h, n_h = linear(h, x.recurrent_weights, x.recurrent_bias).chunk(3, dim=1)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        resets_after = op.reset == "after"
        state_term = (
            r * n_h if resets_after else linear(r * h, x.recurrent_weights[2 * size :], b_n)
        )
        n = torch.tanh(n_x + state_term)
        return ((1 - z) * n + z * h if op.update == "old" else (1 - z) * h + z * n,)

    states = _list_initial_states(x, [size])
    # cuDNN implements only the variant with the reset gate after the matrix product
    if _can_use_torch_layer(x) and (op.reset, op.update) == ("after", "old"):
        return _run_torch_layer(torch.gru, x, states, op.reverse)
    return _run_cell(compute_step, x, states, op.reverse)


@evaluate
def lstm(op: ops.Lstm, context: ForwardContext, *args: Tensor | None) -> tuple[Tensor, ...]:
    """Run an LSTM layer in one direction.

    f[b t i], f[g i], f[g r], f[g]?, f[g]?, b[b t]?, f[b r]?, f[b h]?, f[p]?, f[r h]?
    -> f[b t r], f[b r], f[b h]
    """
    x = ops.RecurrentOperands.from_operands(args)

    def compute_step(inputs: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = states
        gates = inputs + linear(h, x.recurrent_weights, x.recurrent_bias)
        output, c = apply_lstm_gates(gates, c, x.peepholes)
        return output if x.projection is None else linear(output, x.projection), c

    states = _list_initial_states(x, [x.recurrent_weights.shape[1], len(x.input_weights) // 4])
    # PyTorch's layer has no peepholes. Layers with a projection are also computed step by step.
    if _can_use_torch_layer(x) and x.peepholes is None and x.projection is None:
        return _run_torch_layer(torch.lstm, x, states, op.reverse)
    return _run_cell(compute_step, x, states, op.reverse)


def apply_lstm_gates(
    gates: Tensor, cell: Tensor, peepholes: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return an LSTM's output and cell state for its gate pre-activations i, f, g, o `[b 4h]`."""
    i, f, g, o = gates.chunk(4, dim=1)
    if peepholes is not None:
        p_i, p_f, p_o = peepholes.chunk(3)
        i, f = i + p_i * cell, f + p_f * cell
    new_cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    # the peephole of the output gate uses the new cell state
    o = o if peepholes is None else o + p_o * new_cell
    return torch.sigmoid(o) * torch.tanh(new_cell), new_cell


def _can_use_torch_layer(x: ops.RecurrentOperands[Tensor]) -> bool:
    """Return True if a fused PyTorch layer can run: no padding mask, and at least one position."""
    return x.keep is None and x.sequence.numel() > 0


def _run_torch_layer(
    layer: Callable[..., Sequence[Tensor]],
    x: ops.RecurrentOperands[Tensor],
    states: tuple[Tensor, ...],
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Run a fused PyTorch layer. If `reverse` is True, flip the input and the output sequence."""
    parameters = [x.input_weights, x.recurrent_weights]
    biases = x.input_bias, x.recurrent_bias
    if any(b is not None for b in biases):
        # a PyTorch layer has either both biases or no biases
        parameters += [
            x.input_weights.new_zeros(len(x.input_weights)) if b is None else b for b in biases
        ]
    initial_states = [s[None] for s in states]
    sequence = x.sequence.flip(1) if reverse else x.sequence
    state = initial_states[0] if len(initial_states) == 1 else initial_states
    # cuDNN computes gradients only for layers that were called in training mode
    is_training = torch.is_grad_enabled()
    output, *final_states = layer(
        sequence, state, parameters, len(parameters) == 4, 1, 0.0, is_training, False, True
    )
    return (output.flip(1) if reverse else output, *(s[0] for s in final_states))


def _run_cell(
    step: CellStep, x: ops.RecurrentOperands[Tensor], states: tuple[Tensor, ...], reverse: bool
) -> tuple[Tensor, ...]:
    """Run a recurrent cell over all time steps. Return all outputs and the final states. Masked
    positions do not change the states.
    """
    input_projections = linear(x.sequence, x.input_weights, x.input_bias)
    batch, steps, _ = input_projections.shape
    outputs: list[Tensor] = []
    for t in reversed(range(steps)) if reverse else range(steps):
        new_states = step(input_projections[:, t], states)
        output = new_states[0]
        if x.keep is not None:
            is_valid = x.keep[:, t, None]
            new_states = tuple(
                torch.where(is_valid, new_state, old_state)
                for new_state, old_state in zip(new_states, states, strict=True)
            )
            output = torch.where(is_valid, output, torch.zeros_like(output))
        states = new_states
        outputs.append(output)
    # An empty sequence has no outputs to stack, and its final states are the initial states.
    if not outputs:
        return (input_projections.new_zeros(batch, 0, states[0].shape[1]), *states)
    return (torch.stack(outputs[::-1] if reverse else outputs, dim=1), *states)


def _list_initial_states(
    x: ops.RecurrentOperands[Tensor], sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    return tuple(
        x.sequence.new_zeros(len(x.sequence), size) if initial_state is None else initial_state
        for size, initial_state in zip(sizes, (x.initial_state, x.initial_cell), strict=False)
    )
