"""A length used as a number is that length: no other number ever stands in for it.

Random numbers made of lengths are compared, at several lengths, with Python's own arithmetic; and specs whose
lengths the input tells with the same specs told the lengths while they are compiled. A stand-in that is planted
in their place is found by both.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from length_numbers import Drawn, spec_of, value
from onnx_runtime import agree, open_quietly

import specc_numpy
from specc.driver import elaborated, open_spec
from specc.elaborate import numbers
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc_onnx import build, target

SIZES = ((1, 1), (2, 3), (5, 2), (7, 61), (67, 4))
EACH = 12


def graph_of(text: str, folder: Path) -> Graph:
    path = folder / "spec.specc"
    path.write_text(text)
    return elaborated(open_spec(str(path))).graph


def wrong(seed: int, folder: Path, compiled: bool = True) -> list[str]:
    """The numbers of spec `seed` that the reference or the compiled model takes for others."""
    drawn = Drawn(random.Random(seed))
    texts = [drawn.number() for _ in range(EACH)]
    graph = graph_of(spec_of(texts), folder)
    session = open_quietly(build(graph, target("onnx")).model) if compiled else None
    found = []
    for n, m in SIZES:
        given = {"x": np.zeros((n, m), np.float32), "one": np.ones(2, np.float32)}
        want = {f"{r}{k}": np.full(2, value(t, n, m) + (r == "b")) for k, t in enumerate(texts) for r in "ab"}
        exact = specc_numpy.run(graph, given, {})
        for name, array in want.items():
            if not np.allclose(exact[name], array, rtol=1e-9, atol=1e-9):
                found.append(f"{texts[int(name[1:])]} at n={n}, m={m}: {exact[name][0]}, not {array[0]}")
        if session is not None and not found:
            agree({r: a.astype(np.float32) for r, a in want.items()}, session.run(list(want), given))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_number_made_of_lengths(seed: int, tmp_path: Path) -> None:
    assert not wrong(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(6, 206, 20))
def test_thousands_of_numbers_made_of_lengths(start: int, tmp_path: Path) -> None:
    assert not [w for seed in range(start, start + 20) for w in wrong(seed, tmp_path)]


@pytest.mark.parametrize("stand_in", [2, 61, 67, 10_007])
def test_a_planted_stand_in_is_found(stand_in: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knows: Callable[[Any], float | None] = numbers.known

    def guess(value: Any) -> float | None:
        if not isinstance(value, Dim) or value.number is not None:
            return knows(value)
        try:
            return float(value.at(dict.fromkeys(value.symbols(), stand_in)))
        except DimError:  # a quotient that the stand-ins leave a remainder in
            return float(stand_in)

    monkeypatch.setattr(numbers, "known", guess)
    assert any(wrong(seed, tmp_path, compiled=False) for seed in range(6))


def test_the_evaluator_is_right_about_some_numbers() -> None:
    """By hand."""
    assert value("float(1 / n)", 4, 1) == 0.25
    assert value("max([sqrt(n), 1.5, m / n])", 4, 10) == 2.5
    assert value("size(x) * 0.5", 3, 5) == 7.5
    assert math.isclose(value("log(length(x, axis=-1) + 1)", 1, 6), math.log(7))
