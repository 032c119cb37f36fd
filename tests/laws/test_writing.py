"""A package, one file and full passes of the float64 reference write the same, over random specs and settings.

What is expected is written by a loop of its own over the reference: the penalty, the best token, its log-probability.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_writers import random_writer

import specc
import specc_numpy

LENGTH = 6
CLOSE = 1e-4
"""Two best tokens nearer than this, as a part of the logits' range, may come either way."""


def expected(model: Any, given: dict[str, Any], penalty: float) -> list[list[tuple[int, float, bool]]]:
    """Greedy tokens of each row up to its stop, each with its log-probability and whether it was a near thing."""
    graph, weights, ids = model.manifest.graph, model.weights(), given["ids"].copy()
    rows: list[list[tuple[int, float, bool]]] = [[] for _ in ids]
    keep = {"keep": given["ids"] >= 0} if "keep" in graph.inputs else {}
    for _ in range(LENGTH):
        others = {n: v for n, v in given.items() if n != "ids"}
        logits = specc_numpy.run(graph, {**others, **keep, "ids": ids}, weights)["logits"][:, -1]
        newest = []
        for row, x in enumerate(logits):
            seen = {int(t) for t in ids[row] if t >= 0}
            weighed = [v / penalty if v > 0 else v * penalty for v in x]
            weighed = [w if t in seen else v for t, (v, w) in enumerate(zip(x, weighed, strict=True))]
            token = max(range(len(x)), key=lambda t: weighed[t])
            first, second = sorted(weighed)[:-3:-1]
            near = first - second < CLOSE * (max(weighed) - min(weighed))
            chance = x[token] - x.max() - np.log(np.exp(x - x.max()).sum())
            if not rows[row] or rows[row][-1][0] != 0:
                rows[row].append((token, float(chance), near))
            newest.append(token)
        ids = np.concatenate([ids, np.array(newest)[:, None]], axis=1)
        keep = {n: np.concatenate([v, np.ones((len(ids), 1), bool)], axis=1) for n, v in keep.items()}
    return rows


def fault(seed: int, folder: Path) -> str:
    """How what is written differs; empty where it does not."""
    rng, made = random.Random(seed), np.random.default_rng(seed)
    (folder / "m.specc").write_text(random_writer(seed), encoding="utf-8")
    penalty = rng.choice([1.0, 1.0, 1.7, 0.6])
    target = rng.choice(["ort-cpu", "ort-cpu", "onnx"])
    specc.compile(folder / "m.specc", folder / "p", init=seed, parts="score,step", target=target)
    settings = {"repetition_penalty": penalty, "max_tokens": LENGTH}
    specc.compile(folder / "m.specc", folder / "one.onnx", init=seed, parts="generate", settings=settings)
    package, one = specc.load(folder / "p"), specc.load(folder / "one.onnx")
    given: dict[str, Any] = {"ids": made.integers(0, 5, (2, 4))}
    if "memory" in package.manifest.graph.inputs:
        given["memory"] = made.normal(size=(2, 3, 8)).astype(np.float32)
    if "keep" in package.manifest.graph.inputs:
        given["ids"][0, : rng.randint(0, 3)] = -1
    want = expected(package, given, penalty)
    for name, model, said in (("package", package, settings), ("one file", one, {})):
        for row, (result,) in enumerate(model.generate(**given, **said, log_probabilities=True).results()):
            certain = next((n for n, (_, _, near) in enumerate(want[row]) if near), len(want[row]))
            tokens = [t for t, _, _ in want[row][:certain]]
            if list(result.tokens[:certain]) != tokens:
                return f"{seed}: {name} writes {result.tokens}, not {tokens}"
            chances = [c for _, c, _ in want[row][:certain]]
            if not np.allclose(result.log_probs[:certain], chances, atol=2e-4, rtol=1e-5):
                return f"{seed}: {name} has other log-probabilities"
    return ""


@pytest.mark.parametrize("seed", range(8))
def test_all_ways_write_the_same(seed: int, tmp_path: Path) -> None:
    assert not fault(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 400))
def test_all_ways_write_the_same_for_hundreds(seed: int, tmp_path: Path) -> None:
    assert not fault(seed, tmp_path)
