"""Strided slices of a padded axis: the padding analysis against computed results."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specc_numpy
from specc.analysis.padding_check import check_padding
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph

Array = NDArray[Any]
SLICES = ("::2", "1::2", "2::2", "0:n - 1:2", "1:n - 1:2", "::3", "2::3", "0:n - 2:3")
SIDES = ("right", "left", "")
LONGEST = 9


def elaborate_value(directory: Path, side: str, value: str) -> Graph:
    path = directory / "m.specc"
    path.write_text(
        "specc 1\nmodel m\ndims batch, n >= 3\n"
        f"graph g(x: float[batch, n, 2], keep: keep[batch, n] {side}) -> (y: float[batch, 2])"
        f" {{ return {value} }}\n"
    )
    return elaborate_spec(open_spec(str(path))).graph


def is_affected_by_padding(graph: Graph, side: str) -> bool:
    """Return True if padding changes a result."""
    rng = np.random.default_rng(1)
    for rows, more in product(range(3, LONGEST), range(1, 4)):
        x, junk = rng.standard_normal((1, rows, 2)), rng.standard_normal((1, more, 2))
        for at in ("right", "left") if not side else (side,):
            order = (x, 50 * junk) if at == "right" else (50 * junk, x)
            there = np.concatenate([np.full((1, p.shape[1]), p is x) for p in order], 1)
            beside = {"x": np.concatenate(order, 1), "keep": there}
            alone = {"x": x, "keep": np.ones((1, rows), bool)}
            found, wanted = (
                specc_numpy.evaluate_graph(graph, given, {})["y"] for given in (beside, alone)
            )
            if not np.allclose(found, wanted, atol=1e-9):
                return True
    return False


@pytest.mark.parametrize("side", SIDES)
def test_clean_slices_ignore_padding(side: str, tmp_path: Path) -> None:
    clean = set()
    for rows, seen in product(SLICES, SLICES):
        value = f"masked_mean_pool(x[:, {rows}], keep[:, {seen}])"
        try:
            graph = elaborate_value(tmp_path, side, value)
        except SpeccError:
            continue  # different lengths
        if not check_padding(graph):
            clean.add((rows, seen))
            assert not is_affected_by_padding(graph, side), value
    to_the_end = {(s, s) for s in SLICES if s.count("n") == 0}
    assert clean == (to_the_end if side == "right" else set())


@pytest.mark.parametrize(
    "value", ["mean(x[:, ::2], axis=1)", "max(x[:, ::2], axis=1)", "last(x[:, ::2])"]
)
def test_unmasked_slices_read_padding(value: str, tmp_path: Path) -> None:
    graph = elaborate_value(tmp_path, "right", value)
    assert is_affected_by_padding(graph, "right")
    assert [d.code for d in check_padding(graph)] == ["W0601"]


def test_causal_reductions_need_no_mask(tmp_path: Path) -> None:
    graph = elaborate_value(tmp_path, "right", "cumsum(x[:, ::2])[:, 0]")
    assert not check_padding(graph)
    assert not is_affected_by_padding(graph, "right")
