"""Evaluate RNN, GRU and LSTM layers."""

from collections.abc import Callable, Sequence

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc_numpy.nn import apply_linear
from specc_numpy.numpy_interpreter import LengthValues, evaluate
from specc_numpy.tensor import POINTWISE_FUNCTIONS, sigmoid

CellStep = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]
"""A function that computes the states after a time step from the step's input and the previous
states. The first state is also the output of the time step.
"""


@evaluate
def rnn(op: ops.Rnn, lengths: LengthValues, *args: Array | None) -> tuple[Array, ...]:
    """Run an RNN layer in one direction.

    f[b t i], f[h i], f[h h], f[h]?, f[h]?, b[b t]?, f[b h]? -> f[b t h], f[b h]
    """
    x = ops.RecurrentOperands.from_operands(args)

    def compute_step(inputs: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        return (
            POINTWISE_FUNCTIONS[op.activation](_project_inputs_and_state(x, inputs, states[0])),
        )

    return _run_cell(compute_step, x, x.recurrent_weights.shape[1:], op.reverse)


@evaluate
def gru(op: ops.Gru, lengths: LengthValues, *args: Array | None) -> tuple[Array, ...]:
    """Run a GRU layer in one direction.

    f[b t i], f[g i], f[g h], f[g]?, f[g]?, b[b t]?, f[b h]? -> f[b t h], f[b h]
    """
    x = ops.RecurrentOperands.from_operands(args)
    size = x.recurrent_weights.shape[1]
    b_n = None if x.recurrent_bias is None else x.recurrent_bias[2 * size :]

    def compute_step(inputs: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        (h,) = states
        r_x, z_x, n_x = np.split(apply_linear(inputs, x.input_weights, x.input_bias), 3, axis=1)
        r_h, z_h, n_h = np.split(apply_linear(h, x.recurrent_weights, x.recurrent_bias), 3, axis=1)
        r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
        # In arXiv:1406.1078, the reset gate is applied before the product, but in cuDNN, it is
        # applied after the product.
        resets_after = op.reset == "after"
        state_term = (
            r * n_h if resets_after else apply_linear(r * h, x.recurrent_weights[2 * size :], b_n)
        )
        n = np.tanh(n_x + state_term)
        return ((1 - z) * n + z * h if op.update == "old" else (1 - z) * h + z * n,)

    return _run_cell(compute_step, x, [size], op.reverse)


@evaluate
def lstm(op: ops.Lstm, lengths: LengthValues, *args: Array | None) -> tuple[Array, ...]:
    """Run an LSTM layer in one direction.

    f[b t i], f[g i], f[g r], f[g]?, f[g]?, b[b t]?, f[b r]?, f[b h]?, f[p]?, f[r h]?
    -> f[b t r], f[b r], f[b h]
    """
    x = ops.RecurrentOperands.from_operands(args)

    def compute_step(inputs: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        h, c = states
        output, new_cell = apply_lstm_gates(_project_inputs_and_state(x, inputs, h), c, x.peepholes)
        return output if x.projection is None else apply_linear(
            output, x.projection, None
        ), new_cell

    return _run_cell(
        compute_step, x, [x.recurrent_weights.shape[1], len(x.input_weights) // 4], op.reverse
    )


def _project_inputs_and_state(
    x: ops.RecurrentOperands[Array], inputs: Array, state: Array
) -> Array:
    """Return the gate inputs `W x + b + U h + c` for the input x and the previous state h."""
    return apply_linear(inputs, x.input_weights, x.input_bias) + apply_linear(
        state, x.recurrent_weights, x.recurrent_bias
    )


def apply_lstm_gates(gates: Array, cell: Array, peepholes: Array | None) -> tuple[Array, Array]:
    """Return an LSTM's output and cell state for its gate pre-activations i, f, g, o `[b 4h]`."""
    i, f, g, o = np.split(gates, 4, axis=1)
    p_i, p_f, p_o = np.split(np.zeros(3 * cell.shape[1]) if peepholes is None else peepholes, 3)
    # The peepholes of the input and forget gates use the previous cell state, and the output gate's
    # peephole uses the new cell state (Gers and Schmidhuber, 2000).
    new_cell = sigmoid(f + p_f * cell) * cell + sigmoid(i + p_i * cell) * np.tanh(g)
    return sigmoid(o + p_o * new_cell) * np.tanh(new_cell), new_cell


def _run_cell(
    step: CellStep, x: ops.RecurrentOperands[Array], sizes: Sequence[int], reverse: bool
) -> tuple[Array, ...]:
    """Run a recurrent cell over all time steps. Return all outputs, and the final states, which
    have the feature sizes `sizes`. Masked positions do not change the states.
    """
    batch, steps, _ = x.sequence.shape
    states = tuple(
        np.zeros((batch, size)) if initial_state is None else initial_state
        for size, initial_state in zip(sizes, (x.initial_state, x.initial_cell), strict=False)
    )
    outputs: Array = np.zeros((batch, steps, sizes[0]))
    for t in reversed(range(steps)) if reverse else range(steps):
        is_valid = np.ones((batch, 1), bool) if x.keep is None else x.keep[:, t, None]
        new_states = step(x.sequence[:, t], states)
        # At a padded position, all states are unchanged and the output is zeros.
        states = tuple(
            np.where(is_valid, new_state, old_state)
            for new_state, old_state in zip(new_states, states, strict=True)
        )
        outputs[:, t] = np.where(is_valid, new_states[0], 0.0)
    return (outputs, *states)
