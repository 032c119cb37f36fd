"""`ntm_read` agrees with the paper's eq. 2 to 9 in NumPy."""

import numpy as np
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    linear,
    lstm_step,
    sigmoid,
    softmax,
)

CELLS = 5


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def compute_addressing(w: Arrays, head: str, h: Array, memory: Array, before: Array) -> Array:
    """Eq. 5 to 9; the shift is a circular convolution over -1, 0 and 1."""
    key = linear(w, f"{head}.key", h)
    beta = softplus(linear(w, f"{head}.strength", h))
    alike = np.array([key @ m / (np.linalg.norm(key) * np.linalg.norm(m) + 1e-8) for m in memory])
    content = softmax(beta * alike)
    g = sigmoid(linear(w, f"{head}.gate", h))
    mixed = g * content + (1 - g) * before
    s = np.zeros(CELLS)
    s[[-1, 0, 1]] = softmax(linear(w, f"{head}.shift", h))
    moved = np.array(
        [sum(mixed[j] * s[(i - j) % CELLS] for j in range(CELLS)) for i in range(CELLS)]
    )
    sharp = moved ** (1 + softplus(linear(w, f"{head}.sharpening", h)))
    return sharp / sharp.sum()


def ntm(w: Arrays, x: Array) -> Arrays:
    memory = w["memory"][0]
    w_read, w_write = softmax(w["read.start"][0]), softmax(w["write.start"][0])
    r, h, c = np.zeros(4), np.zeros(6), np.zeros(6)
    y, read_weights = [], []
    for row in x:
        h, c = lstm_step(w, "controller", "", np.concatenate([row, r]), h, c)
        w_write = compute_addressing(w, "write", h, memory, w_write)
        erase, add = sigmoid(linear(w, "write.erase", h)), linear(w, "write.add", h)
        memory = memory * (1 - np.outer(w_write, erase)) + np.outer(w_write, add)
        w_read = compute_addressing(w, "read", h, memory, w_read)
        r = w_read @ memory
        y.append(sigmoid(linear(w, "output", np.concatenate([h, r]))))
        read_weights.append(w_read)
    return {"y": np.stack(y), "read_weights": np.stack(read_weights)}


def test_the_spec_agrees_with_the_equations() -> None:
    rng = np.random.default_rng(0)
    rows = [{"x": rng.standard_normal((n, 3)).astype(np.float32)} for n in (7, 1, 4)]
    size = {"inputs": 3, "outputs": 2, "hidden": 6, "cells": CELLS, "width": 4}
    assert_matches_equations("ntm_read", ntm, rows, {"x": (0,)}, **size)
