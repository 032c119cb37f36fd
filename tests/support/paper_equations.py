"""Reference models transcribed from the equations of papers, in NumPy and float64, for one sample;
and the comparison of specs with them.

A spec that agrees with such a transcription, alone and in a padded batch, implements the paper.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.elaborated_specs import (
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Equations = Callable[..., Arrays]
"""Maps the weights and one sample's inputs by name, without batch axis and padding, to its results."""


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    powers: Array = np.exp(x - x.max())
    return powers / powers.sum()


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def linear(w: Arrays, name: str, x: Array) -> Array:
    """Return `W x + b` of each row of x; b is optional."""
    result: Array = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)
    return result


def layer_norm(w: Arrays, name: str, x: Array, eps: float = 1e-5) -> Array:
    """Normalize each row of x: arXiv:1607.06450, eq. 4."""
    apart = x - x.mean(-1, keepdims=True)
    result: Array = (
        apart / np.sqrt((apart**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]
        + w[f"{name}.bias"]
    )
    return result


def lstm_step(
    w: Arrays, name: str, suffix: str, x: Array, h: Array, c: Array
) -> tuple[Array, Array]:
    """Return the next hidden and cell state. Gates in PyTorch's order: input, forget, cell, output."""
    gates = w[f"{name}.weight_ih{suffix}"] @ x + w[f"{name}.bias_ih{suffix}"]
    gates = gates + w[f"{name}.weight_hh{suffix}"] @ h + w[f"{name}.bias_hh{suffix}"]
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def pad_batch(
    rows: Sequence[Arrays], padded: Mapping[str, tuple[int, ...]], left: Collection[str] = ()
) -> dict[str, Array]:
    """Return samples as one batch.

    The axes in `padded` are one position longer than the longest sample. Padding contains values
    that must have no effect; inputs in `left` are padded on the left.
    """
    result = {}
    for name in rows[0]:
        shape = list(np.max([r[name].shape for r in rows], axis=0))
        for axis in padded.get(name, ()):
            shape[axis] += 1
        dtype = rows[0][name].dtype
        result[name] = np.full((len(rows), *shape), {"b": False, "i": 1, "f": 9}[dtype.kind], dtype)
        for n, row in enumerate(rows):
            sizes = zip(row[name].shape, shape, strict=True)
            before = [most - size if name in left else 0 for size, most in sizes]
            at = (slice(b, b + s) for b, s in zip(before, row[name].shape, strict=True))
            result[name][(n, *at)] = row[name]
    return result


def assert_matches_equations(
    spec: str,
    equations: Equations,
    rows: Sequence[Arrays],
    padded: Mapping[str, tuple[int, ...]],
    scales: Mapping[str, float] | None = None,
    left: Collection[str] = (),
    graph: str = "",
    **sets: object,
) -> None:
    """Assert that the spec agrees with the equations: the reference to 1e-9, ONNX Runtime to 1e-5.

    Inputs in `left` are padded on the left, all others on the right. `louder` scales the random
    values of weights by name.
    """
    found = elaborate_with_config(spec, graph=graph, **sets)
    drawn = sample_spec_weights(found)
    weights = {n: w * (scales or {}).get(n, 1) for n, w in drawn.items()}
    exact = {name: w.astype(np.float64) for name, w in weights.items()}
    model = OrtModel(found, weights)
    expected = [equations(exact, **{k: _in_float64(v) for k, v in row.items()}) for row in rows]
    for chosen, inputs in (
        (expected[:1], {k: v[None] for k, v in rows[0].items()}),
        (expected, pad_batch(rows, padded, left)),
    ):
        reference, compiled = run_reference(found, weights, inputs), model.run(inputs)
        for n, results in enumerate(chosen):
            assert set(results) == set(reference)
            for name, value in results.items():
                there = (n, *map(slice, value.shape))
                what = f"{name} of sample {n} of {len(chosen)}"
                assert_arrays_close(reference[name][there], value, f"{what}, reference", 1e-9)
                assert_arrays_close(compiled[name][there], value, f"{what}, compiled", 1e-5)


def sample_sentences(rng: np.random.Generator, below: int, lengths: Sequence[int]) -> list[Array]:
    """Return token ids from 3 up: no padding, no special tokens."""
    return [rng.integers(3, below, n) for n in lengths]


def _in_float64(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def gelu(x: Array) -> Array:
    """arXiv:1606.08415, eq. 1."""
    result: Array = x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return result


def masked_attention(w: Arrays, name: str, x: Array, heads: int, visible: Array) -> Array:
    """Compute arXiv:1706.03762, eq. 1, head by head; `seen[i, j]`: position i attends to position
    j.
    """
    q, k, v = (np.split(linear(w, f"{name}.{part}_proj", x), heads, axis=1) for part in "qkv")
    result = []
    for head in range(heads):
        scores = q[head] @ k[head].T / np.sqrt(q[head].shape[1])
        rows = [
            softmax(row[visible_keys]) @ v[head][visible_keys]
            for row, visible_keys in zip(scores, visible, strict=True)
        ]
        result.append(np.stack(rows))
    return linear(w, f"{name}.out_proj", np.concatenate(result, axis=1))


def mlp(w: Arrays, name: str, x: Array) -> Array:
    return linear(w, f"{name}.fc2", gelu(linear(w, f"{name}.fc1", x)))


def decoder_layers(w: Arrays, prefix: str, x: Array, heads: int, visible: Array) -> Array:
    """Apply all layers whose names start with `under`, counted from 0."""
    n = 0
    while f"{prefix}{n}.norm1.weight" in w:
        name = f"{prefix}{n}"
        h = layer_norm(w, f"{name}.norm1", x)
        x = x + masked_attention(w, f"{name}.attention", h, heads, visible)
        x = x + mlp(w, f"{name}.mlp", layer_norm(w, f"{name}.norm2", x))
        n += 1
    return x


def make_prefix_mask(head: int, rows: int) -> Array:
    """Return a prefix LM mask: prefix positions attend to each other, later ones to the prefix and
    causally.
    """
    visible = np.tri(head + rows, dtype=bool)
    visible[:, :head] = True
    return visible
