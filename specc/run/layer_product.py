"""An LSTM by rounded weights beside what whole numbers give.

Each turn is compared by itself: it goes on from the states that the model gave out
before it, so that a number on the edge between two whole ones, which the last bit of a
state decides, is the same on both sides.
"""

from collections.abc import Mapping

import numpy as np

from specc.ir.array import Array

STEPS = np.float32(255)
"""How many steps there are from the least of 256 whole numbers to the greatest."""


def layer_results(given: Mapping[str, Array], *, reverse: bool) -> Array:
    """What `DynamicQuantizeLSTM` is to give, `[time, 1, batch, state]`, by its operands
    and the results that it gave.
    """
    x, made = given["x"].astype(np.float32), given["y"][:, 0]
    counts = given.get("lengths")
    counts = np.full(x.shape[1], len(x)) if counts is None else counts
    # The other way round each text is a text from left to right, and so is what it gives.
    if reverse:
        x, made = _turned(x, counts), _turned(made, counts)
    longest = int(counts.max(initial=0))
    # One scale for all rows of all turns: the kernel rounds them before the first turn.
    sums = _whole(x[:longest]) @ _matrix(given["w"], given["w scales"])
    # ONNX has a bias beside each matrix, one behind the other.
    if "b" in given:
        sums = sums + given["b"][0].reshape(2, -1).sum(0, dtype=np.float64)
    states = _matrix(given["u"], given["u scales"])
    zeros = np.zeros(made.shape[1:])
    cell = given["cell"][0] if "cell" in given else zeros
    fed = given["state"][0] if "state" in given else zeros
    want = np.zeros(made.shape)
    for turn in range(longest):
        # a text that is over counts with zeros, which is what was given out
        fed = made[turn - 1] if turn else fed
        gates = sums[turn] + _whole(fed) @ states
        out, cell = _through(gates, cell, given.get("peepholes"))
        want[turn] = np.where(turn < counts[:, None], out, 0)
    return (_turned(want, counts) if reverse else want)[:, None]


def _whole(x: Array) -> Array:
    """Numbers as whole ones times one scale for all, as ONNX Runtime decides in float32."""
    x = x.astype(np.float32)
    low, high = x.min(initial=0), x.max(initial=0)
    scale = (high - low) / STEPS if high > low else np.float32(1)
    middle = np.rint(-low / scale)
    units = np.clip(np.rint(x / scale) + middle, 0, STEPS) - middle
    made: Array = units.astype(np.float64) * np.float64(scale)
    return made


def _matrix(numbers: Array, scales: Array) -> Array:
    made: Array = numbers[0].astype(np.float64) * scales[0]
    return made


def _through(gates: Array, cell: Array, peepholes: Array | None) -> tuple[Array, Array]:
    """Results and cell behind gates in ONNX's order: input, output, forget, cell."""
    i, o, f, g = np.split(gates, 4, axis=1)
    peep = np.zeros((1, 3 * cell.shape[1])) if peepholes is None else peepholes
    p_i, p_o, p_f = np.split(peep[0], 3)
    kept = _sigmoid(f + p_f * cell) * cell
    taken = _sigmoid(i + p_i * cell) * np.tanh(g)
    new = kept + taken
    # the output gate's peephole is on the new cell
    return _sigmoid(o + p_o * new) * np.tanh(new), new


def _sigmoid(x: Array) -> Array:
    # 1 / (1 + exp(-x)) without an overflow
    made: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return made


def _turned(x: Array, counts: Array) -> Array:
    """Each text from its last row to its first; what lies behind it stays."""
    made = x.copy()
    for text, count in enumerate(counts):
        made[:count, text] = x[:count, text][::-1]
    return made
