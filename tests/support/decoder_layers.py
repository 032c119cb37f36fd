"""Layers of a decoder in NumPy, for models with rows before their text: pre-norm, with a
mask given as a table of who sees whom.
"""

from math import erf

import numpy as np

from support.equations import Array, Arrays, affine, layer_norm, softmax


def gelu(x: Array) -> Array:
    """arXiv:1606.08415, eq. 1."""
    made: Array = x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return made


def attention(w: Arrays, name: str, x: Array, heads: int, seen: Array) -> Array:
    """arXiv:1706.03762, eq. 1, head by head; `seen[i, j]` says whether i looks at j."""
    q, k, v = (np.split(affine(w, f"{name}.{part}_proj", x), heads, axis=1) for part in "qkv")
    made = []
    for head in range(heads):
        scores = q[head] @ k[head].T / np.sqrt(q[head].shape[1])
        rows = [
            softmax(row[there]) @ v[head][there] for row, there in zip(scores, seen, strict=True)
        ]
        made.append(np.stack(rows))
    return affine(w, f"{name}.out_proj", np.concatenate(made, axis=1))


def network(w: Arrays, name: str, x: Array) -> Array:
    return affine(w, f"{name}.fc2", gelu(affine(w, f"{name}.fc1", x)))


def layers(w: Arrays, under: str, x: Array, heads: int, seen: Array) -> Array:
    """All layers of the name `under`, counted from 0."""
    n = 0
    while f"{under}{n}.norm1.weight" in w:
        at = f"{under}{n}"
        h = layer_norm(w, f"{at}.norm1", x)
        x = x + attention(w, f"{at}.attention", h, heads, seen)
        x = x + network(w, f"{at}.mlp", layer_norm(w, f"{at}.norm2", x))
        n += 1
    return x


def prefix_mask(head: int, rows: int) -> Array:
    """Rows of the head see each other, those behind see it and what is before them."""
    seen = np.tri(head + rows, dtype=bool)
    seen[:, :head] = True
    return seen
