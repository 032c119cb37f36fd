"""Every so many rows of a padded axis: what is said to stay clean of padding does."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specc_numpy
from specc.analysis.padding_check import check_padding
from specc.diagnostics.diagnostic import Failed
from specc.driver.spec_loader import elaborate_spec, open_spec
from specc.ir.graph import Graph

Array = NDArray[Any]
SLICES = ("::2", "1::2", "2::2", "0:n - 1:2", "1:n - 1:2", "::3", "2::3", "0:n - 2:3")
SIDES = ("right", "left", "")
LONGEST = 9


def graph_of(directory: Path, side: str, value: str) -> Graph:
    path = directory / "m.specc"
    path.write_text(
        "specc 1\nmodel m\ndims batch, n >= 3\n"
        f"graph g(x: float[batch, n, 2], keep: keep[batch, n] {side}) -> (y: float[batch, 2])"
        f" {{ return {value} }}\n"
    )
    return elaborate_spec(open_spec(str(path))).graph


def leaks(graph: Graph, side: str) -> bool:
    """Whether a text gives something else beside padding than alone."""
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
def test_what_is_said_to_be_clean_is(side: str, tmp_path: Path) -> None:
    clean = set()
    for rows, seen in product(SLICES, SLICES):
        value = f"masked_mean_pool(x[:, {rows}], keep[:, {seen}])"
        try:
            graph = graph_of(tmp_path, side, value)
        except Failed:
            continue  # not as many of one as of the other
        if not check_padding(graph):
            clean.add((rows, seen))
            assert not leaks(graph, side), value
    to_the_end = {(s, s) for s in SLICES if s.count("n") == 0}
    assert clean == (to_the_end if side == "right" else set())


@pytest.mark.parametrize(
    "value", ["mean(x[:, ::2], axis=1)", "max(x[:, ::2], axis=1)", "last(x[:, ::2])"]
)
def test_without_what_says_which_rows_exist_padding_is_read(value: str, tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "right", value)
    assert leaks(graph, "right")
    assert [d.code for d in check_padding(graph)] == ["W0601"]


def test_what_only_looks_back_needs_no_more(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "right", "cumsum(x[:, ::2])[:, 0]")
    assert not check_padding(graph)
    assert not leaks(graph, "right")
