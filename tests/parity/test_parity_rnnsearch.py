"""`rnnsearch` matches the paper's equations in NumPy, float64.

Symbols, section and equation numbers are those of arXiv:1409.0473. The matrices are sampled under
the paper's names; `by_our_names` stacks them as the spec's weights. The other scores are those of
arXiv:1508.04025, sec. 3.1, and an MLP with another tanh layer; the states of both directions may be
summed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_published, build_weighted_spec

pytestmark = pytest.mark.parity

Array = NDArray[np.float64]
# n hidden units, m of an embedding, l of the readout, n' of the alignment
N, M, L, A = (7, 5, 4, 6)
K_X, K_Y = 13, 11  # words of source and target
SIZES = {"hidden": N, "embed_dim": M, "readout": L, "src_vocab": K_X, "tgt_vocab": K_Y}

SHAPES = {
    "E_x": (K_X, M),
    "E_y": (K_Y, M),
    **{f"{name}_{side}": shape
       for side in ("forward", "backward")
       for name, shape in {"W": (N, M), "W_z": (N, M), "W_r": (N, M), "U": (N, N), "U_z": (N, N), "U_r": (N, N),
                           "b": (N,), "b_z": (N,), "b_r": (N,)}.items()},
    "W_s": (N, N), "b_s": (N,),
    "v_a": (A,), "W_a": (A, N), "U_a": (A, 2 * N),
    "W": (N, M), "W_z": (N, M), "W_r": (N, M),
    "U": (N, N), "U_z": (N, N), "U_r": (N, N),
    "C": (N, 2 * N), "C_z": (N, 2 * N), "C_r": (N, 2 * N),
    "b": (N,), "b_z": (N,), "b_r": (N,),
    "U_o": (2 * L, N), "V_o": (2 * L, M), "C_o": (2 * L, 2 * N), "b_o": (2 * L,),
    "W_o": (K_Y, L), "b_y": (K_Y,),
}  # fmt: skip
GIVEN = make_samples(
    {
        "source": TokenIds("src", K_X),
        "source_keep": PaddingMask("src"),
        "target": TokenIds("tgt", K_Y),
    },
    {"src": (6, 1, 3), "tgt": (2, 5, 4)},
)


OTHERS = {"W_g": (N, 2 * N), "b_a": (A,), "W_2": (A, A), "b_2": (A,)}
"""Matrices of other scores: Luong's `general`, and of a layer more."""
Score = Callable[[Mapping[str, Array], Array, Array], float]
SCORES: dict[str, Score] = {
    f"additive({A})": lambda p, s, h: p["v_a"] @ np.tanh(p["W_a"] @ s + p["U_a"] @ h),
    "general": lambda p, s, h: s @ p["W_g"] @ h,
    "dot": lambda p, s, h: s @ h,
    f"layered(2, {A})": lambda p, s, h: (
        p["v_a"] @ np.tanh(p["W_2"] @ np.tanh(p["W_a"] @ s + p["b_a"] + p["U_a"] @ h) + p["b_2"])
    ),
}
READ: dict[str, dict[str, str]] = {
    "additive": {"W.weight": "W_a", "U.weight": "U_a", "v.weight": "v_a"},
    "general": {"W.weight": "W_g"},
    "dot": {},
    "layered": {
        "W.weight": "W_a",
        "W.bias": "b_a",
        "U.weight": "U_a",
        "v.weight": "v_a",
        "layers.0.hidden.weight": "W_2",
        "layers.0.hidden.bias": "b_2",
    },
}
"""Our names of a score's weights, and its matrices."""


def drawn(added: bool = False) -> dict[str, Array]:
    """Return random matrices of the paper, and the biases that it omits for readability; the values
    are exact in float32. If states are summed, the matrices that read them have half the width.
    """
    rng = np.random.default_rng(7)
    wide = {k: s for k, s in (SHAPES | OTHERS).items() if s[1:] == (2 * N,)}
    shapes = SHAPES | OTHERS | {k: (s[0], N) for k, s in wide.items() if added}
    return {
        k: rng.normal(size=s).astype(np.float32).astype(np.float64) / 2 for k, s in shapes.items()
    }


def sigma(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def encoder(p: Mapping[str, Array], words: Array, side: str) -> list[Array]:
    """App. A.2.1: the states of one direction, in reading order."""
    h, states = np.zeros(N), []
    for x in words:
        z = sigma(p[f"W_z_{side}"] @ x + p[f"U_z_{side}"] @ h + p[f"b_z_{side}"])
        r = sigma(p[f"W_r_{side}"] @ x + p[f"U_r_{side}"] @ h + p[f"b_r_{side}"])
        candidate = np.tanh(p[f"W_{side}"] @ x + p[f"U_{side}"] @ (r * h) + p[f"b_{side}"])
        h = (1 - z) * h + z * candidate
        states.append(h)
    return states


def translate(
    p: Mapping[str, Array],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    score: Score,
    added: bool,
) -> tuple[Array, Array]:
    """App. A.2.2: for each target token the logits of the next, and the attention weights."""
    words = p["E_x"][source]
    backward = encoder(p, words[::-1], "backward")[::-1]
    forward = encoder(p, words, "forward")
    both = np.array([forward, backward])
    h = both.sum(0) if added else np.concatenate(both, axis=1)  # eq. 7
    s = np.tanh(p["W_s"] @ backward[0] + p["b_s"])
    scores, alignment = [], []
    for y in p["E_y"][target]:
        e = np.array([score(p, s, h_j) for h_j in h])
        alpha = np.exp(e) / np.exp(e).sum()  # eq. 6
        c = alpha @ h  # eq. 5
        t_tilde = p["U_o"] @ s + p["V_o"] @ y + p["C_o"] @ c + p["b_o"]
        t = np.array([max(t_tilde[2 * j], t_tilde[2 * j + 1]) for j in range(L)])
        scores.append(p["W_o"] @ t + p["b_y"])
        alignment.append(alpha)
        z = sigma(p["W_z"] @ y + p["U_z"] @ s + p["C_z"] @ c + p["b_z"])
        r = sigma(p["W_r"] @ y + p["U_r"] @ s + p["C_r"] @ c + p["b_r"])
        candidate = np.tanh(p["W"] @ y + p["U"] @ (r * s) + p["C"] @ c + p["b"])
        s = (1 - z) * s + z * candidate
    return np.array(scores), np.array(alignment)


def by_our_names(p: Mapping[str, Array], score: str) -> dict[str, NDArray[np.float32]]:
    """Gates in the order reset, update, new; the encoder's update gate is 1 where it keeps the old
    state.
    """
    made = {"encoder.embed.weight": p["E_x"], "decoder.embed.weight": p["E_y"]}
    for side, suffix in (("forward", "_l0"), ("backward", "_l0_reverse")):
        for letter, name in (("W", "weight_ih"), ("U", "weight_hh"), ("b", "bias_ih")):
            reset, update, new = (
                p[f"{letter}_r_{side}"],
                p[f"{letter}_z_{side}"],
                p[f"{letter}_{side}"],
            )
            made[f"encoder.rnn.{name}{suffix}"] = np.concatenate([reset, -update, new])
        made[f"encoder.rnn.bias_hh{suffix}"] = np.zeros(3 * N)
    given = [np.concatenate([p["W" + gate], p["C" + gate]], axis=1) for gate in ("_r", "_z", "")]
    made |= {
        "decoder.init.weight": p["W_s"],
        "decoder.init.bias": p["b_s"],
        "decoder.rnn.weight_ih": np.concatenate(given),
        "decoder.rnn.weight_hh": np.concatenate([p["U_r"], p["U_z"], p["U"]]),
        "decoder.rnn.bias_ih": np.zeros(3 * N),
        "decoder.rnn.bias_hh": np.concatenate([p["b_r"], p["b_z"], p["b"]]),
        "decoder.readout.weight": np.concatenate([p["U_o"], p["V_o"], p["C_o"]], axis=1),
        "decoder.readout.bias": p["b_o"],
        "decoder.out.weight": p["W_o"],
        "decoder.out.bias": p["b_y"],
    }
    for name, matrix in READ[score.partition("(")[0]].items():
        made[f"decoder.align.{name}"] = p[matrix][None] if matrix == "v_a" else p[matrix]
    return {name: value.astype(np.float32) for name, value in made.items()}


@pytest.mark.parametrize(
    ("score", "added"),
    [*((score, score == "dot") for score in SCORES), (f"additive({A})", True), ("general", True)],
)
def test_rnnsearch(score: str, added: bool, tmp_path: Path) -> None:
    p = drawn(added)
    states = "sum" if added else "concat"
    size = {"attention_dim": A} if "additive" in score else {"score": score}
    ours = build_weighted_spec(
        "rnnsearch", by_our_names(p, score), tmp_path, **SIZES, **size, states=states
    )

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        keep = x["source_keep"].numpy()
        rows, tgt = x["target"].shape
        logits, alignment = (np.zeros((rows, tgt, K_Y)), np.zeros((rows, tgt, keep.shape[1])))
        for row in range(rows):
            source, target = (x["source"][row].numpy()[keep[row]], x["target"][row].numpy())
            logits[row], alignment[row][:, keep[row]] = translate(
                p, source, target, SCORES[score], added
            )
        return {"logits": torch.from_numpy(logits), "alignment": torch.from_numpy(alignment)}

    assert_matches_published(ours, GIVEN, published, {"logits": "tgt", "alignment": "tgt"})
