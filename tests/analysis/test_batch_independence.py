"""Batch independence: the analysis against a comparison of each batch element alone and in a
batch."""

from pathlib import Path

import numpy as np
import pytest

import specc_numpy
from specc.analysis.batch_independence import check_batch_independence, find_batch_symbol
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n, 4]) -> (y: float[{shape}]) {{
  {body}
}}
"""
N = 3


def elaborate_body(directory: Path, body: str, shape: str = "batch, n, 4") -> Graph:
    text = SPEC.format(
        shape=shape, body=body.replace("; ", "\n  ").replace("{ ", "{\n").replace(" }", "\n}")
    )
    (directory / "m.specc").write_text(text, encoding="utf-8")
    return elaborate_spec(open_spec(str(directory / "m.specc"))).graph


def are_elements_independent(graph: Graph) -> bool:
    """Return True if each of three batch elements gives the same result alone."""
    x = np.random.default_rng(0).normal(size=(3, N, 4))
    together = specc_numpy.evaluate_graph(graph, {"x": x}, {})["y"]
    alone = [specc_numpy.evaluate_graph(graph, {"x": x[n : n + 1]}, {})["y"] for n in range(3)]
    return np.allclose(np.concatenate(alone), together, rtol=1e-12)


@pytest.mark.parametrize(
    "body",
    [
        "flat = merge(x, axis=0); return split(flat * 2.0, into=[batch, n], axis=0)",
        "flat = merge(x, axis=0); flat = flat - insert(mean(flat, axis=1), axis=1)"
        "; return split(flat, into=[batch, n], axis=0)",
        "cells = merge(merge(x, axis=0), axis=0); return split(split(cells, "
        "into=[batch * n, 4], axis=0)"
        ", into=[batch, n], axis=0)",
        "halves = merge(split(x, into=[2, 2], axis=2), axis=0); y, _ = attend(halves, "
        "halves, halves, mask=all)"
        "; return merge(split(y, into=[batch, n], axis=0), axis=2)",
        'windows = rearrange(x, "b t (w d) -> (b w) t d", sizes=[2])'
        "; y, _ = attend(windows, windows, windows, mask=causal)"
        '; return rearrange(y, "(b w) t d -> b t (w d)", sizes=[batch])',
        "flat = merge(transpose(x, order=[0, 2, 1]), axis=0); h = zeros(shape=[batch * 4])"
        "; scan cell in flat along n carry h collect hs { h = tanh(h + cell); hs = h }"
        "; return transpose(split(hs, into=[batch, 4], axis=0), order=[0, 2, 1])",
    ],
    ids=["merged", "norm", "twice", "attention", "windows", "loop"],
)
def test_independent_elements(body: str, tmp_path: Path) -> None:
    graph = elaborate_body(tmp_path, body)
    assert check_batch_independence(graph, "batch") == []
    assert are_elements_independent(graph)


@pytest.mark.parametrize(
    ("body", "op"),
    [
        ("return x * insert(insert(float(range(length(x, axis=0))), axis=1), axis=2)", "range"),
        ("return x * insert(insert(float(positions(x, axis=0)), axis=1), axis=2)", "extent"),
        ("return flip(x, axis=0)", "flip"),
        ("return x - insert(mean(x, axis=0), axis=0)", "mean"),
        (
            "return split(merge(transpose(x, order=[1, 0, 2]), axis=0), into=[batch, n], axis=0)",
            "merge",
        ),
        (
            "flat = merge(x, axis=0); y = split(flat, into=[n, batch], axis=0); "
            "return transpose(y, order=[1, 0, 2])",
            "split",
        ),
        (
            "flat = merge(x, axis=0); at = float(positions(flat, axis=0))"
            "; return split(flat * insert(at, axis=1), into=[batch, n], axis=0)",
            "extent",
        ),
        (
            "h = zeros(shape=[n, 4]); scan r in x along batch carry h collect hs { h "
            "= h + r; hs = h }; return hs",
            "scan",
        ),
    ],
)
def test_dependent_elements_are_reported(body: str, op: str, tmp_path: Path) -> None:
    graph = elaborate_body(tmp_path, body)
    assert [d.title.split("`")[1] for d in check_batch_independence(graph, "batch")] == [op]
    assert not are_elements_independent(graph)


def test_warning_points_into_the_loop_body(tmp_path: Path) -> None:
    loop = "scan r in x along n carry h { h = r + insert(sum(h, axis=0), axis=0) }"
    body = f"h = zeros(shape=[batch, 4]); {loop}; return x + insert(h, axis=1)"
    graph = elaborate_body(tmp_path, body)
    (warning,) = check_batch_independence(graph, "batch")
    assert warning.primary
    assert warning.primary.span.text == "sum(h, axis=0)"
    assert not are_elements_independent(graph)


def test_batch_symbol(tmp_path: Path) -> None:
    assert find_batch_symbol(elaborate_body(tmp_path, "return x")) == "batch"
