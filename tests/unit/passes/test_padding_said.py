"""What the padding lint says of specs is what numbers show: padded rows before and behind, full of something else."""

from pathlib import Path

import numpy as np
import pytest

import specc_numpy
from specc.driver import elaborated, open_spec
from specc.ir.graph import Graph
from specc.passes.padding import padding

SPEC = """specc 1
model m
dims batch, n
mask strided = 2 * j <= i
mask shifted = j - 1 <= i
graph g(x: float[batch, n, 4], keep: keep[batch, n]{side}, other: bool[batch, n]) -> (y: float[{shape}]) {{
  {body}
}}
"""
N = 4
ROWS, ONE = "batch, n, 4", "batch, 4"
HIDDEN = 's = einsum("b q d, b k d -> b q k", x, x); e = where({mask}, s, {low}); '
STABLE = "w = exp(e - insert(max(e, axis=2), axis=2)); w = w / insert(sum(w, axis=2), axis=2); "
CAUSAL = "insert(keep, axis=1) & (insert(range(n), axis=0) <= insert(range(n), axis=1))"
SCAN = "h = zeros(shape=[batch, 4]); scan row in x along n carry h keep {keep} {{ h = tanh(h + row) }}; return h"


def graph_of(folder: Path, body: str, shape: str, side: str) -> Graph:
    body = body.replace("; ", "\n  ").replace("{ ", "{\n  ").replace(" }", "\n  }")
    (folder / "m.specc").write_text(SPEC.format(body=body, shape=shape, side=side), encoding="utf-8")
    return elaborated(open_spec(str(folder / "m.specc"))).graph


def moves(graph: Graph, side: str) -> bool:
    """Whether rows on the side where they may be missing change what the model gives."""
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=(1, N, 4)), np.array([[True, False, False, True]])
    given = {"x": x, "keep": np.ones((1, N), bool), "other": other}

    def made(inputs: dict[str, np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return specc_numpy.run(graph, {n: v for n, v in inputs.items() if n in graph.inputs}, {})["y"]

    alone = made(given)
    for before, behind in ((3, 0), (0, 2), (1, 1)):
        if (before and side == " right") or (behind and side == " left"):
            continue
        longer = {
            "x": np.concatenate([9 * rng.normal(size=(1, before, 4)), x, 9 * rng.normal(size=(1, behind, 4))], axis=1),
            "keep": np.array([[False] * before + [True] * N + [False] * behind]),
            "other": np.concatenate([np.ones((1, before), bool), other, np.ones((1, behind), bool)], axis=1),
        }
        found = made(longer)
        found = found[:, before : before + N] if found.ndim == 3 else found
        if not np.allclose(found, alone, rtol=1e-9, atol=1e-11, equal_nan=True):
            return True
    return False


CASES = [
    ("return last_kept(x, keep)", ONE, "", True),
    ("return last_kept(x, other)", ONE, "", False),
    ("return masked_max(x, keep)", ONE, "", True),
    (SCAN.format(keep="keep"), ONE, "", True),
    (SCAN.format(keep="keep & other"), ONE, "", True),
    (SCAN.format(keep="other"), ONE, "", False),
    (SCAN.format(keep="other"), ONE, " right", False),
    (HIDDEN.format(mask="insert(keep, axis=1)", low="-1e30") + STABLE + "return matmul(w, x)", ROWS, "", True),
    (HIDDEN.format(mask=CAUSAL, low="-1e30") + STABLE + "return matmul(w, x)", ROWS, "", True),
    (HIDDEN.format(mask=CAUSAL, low="-1e30") + "return matmul(softmax(e, axis=2), x)", ROWS, "", True),
    (HIDDEN.format(mask="insert(keep & other, axis=1)", low="-1e30") + STABLE + "return matmul(w, x)", ROWS, "", None),
    (HIDDEN.format(mask="insert(keep, axis=1)", low="-10.0") + STABLE + "return matmul(w, x)", ROWS, "", False),
    (HIDDEN.format(mask=CAUSAL, low="-inf") + STABLE + "return masked_mean(matmul(w, x), keep)", ONE, "", False),
    (HIDDEN.format(mask=CAUSAL, low="-1e30") + STABLE + "return masked_mean(matmul(w, x), keep)", ONE, "", True),
    ("y, _ = attend(x, x, x, mask=strided & visible(keep)); return y", ROWS, " left", False),
    ("y, _ = attend(x, x, x, mask=shifted & visible(keep)); return y", ROWS, " left", True),
    ("y, _ = attend(x, x, x, mask=chunked(2) & visible(keep)); return y", ROWS, " left", False),
    ("at = 2 * positions(x) - positions(x); return x * insert(float(at), axis=1)", ROWS, " left", False),
    ("at = 2 * positions(x) - positions(x) * 2; return x + insert(float(at), axis=1)", ROWS, " left", True),
    ("return x * insert(float(positions(x)), axis=1)", ROWS, " right", True),
    ("return x * insert(insert(float(argmax(x[:, :, 0], axis=1)), axis=1), axis=2)", ROWS, "", False),
]


@pytest.mark.parametrize(("body", "shape", "side", "clean"), CASES)
def test_what_is_said_is_what_numbers_show(
    body: str, shape: str, side: str, clean: bool | None, tmp_path: Path
) -> None:
    """None: told, although these numbers do not show it; other ones would."""
    graph = graph_of(tmp_path, body, shape, side)
    assert (padding(graph) == []) == bool(clean)
    assert clean is None or moves(graph, side) != clean
