"""Small specs with a padded axis, and a numeric test of their dependence on padding."""

from pathlib import Path

import numpy as np

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph

SPEC = """specc 1
model m
dims batch, n
mask strided = 2 * j <= i
mask shifted = j - 1 <= i
{first}
graph g(x: float[batch, n, 4], keep: keep[batch, n]{side}, other: bool[batch, n]) -> (y: float[{shape}]) {{
  {body}
}}
"""
LENGTH = 4
SEQUENCE_SHAPE, POOLED_SHAPE = "batch, n, 4", "batch, 4"


def write_padding_spec(body: str, shape: str, side: str, first: str = "") -> str:
    """Return the text of a spec."""
    body = body.replace("; ", "\n  ").replace("{ ", "{\n  ").replace(" }", "\n  }")
    return SPEC.format(body=body, shape=shape, side=side, first=first)


def elaborate_padding_spec(
    directory: Path, body: str, shape: str, side: str, first: str = ""
) -> Graph:
    """Return the graph of a spec."""
    path = directory / "m.specc"
    path.write_text(write_padding_spec(body, shape, side, first), encoding="utf-8")
    return elaborate_spec(open_spec(str(path))).graph


def is_affected_by_padding(graph: Graph, side: str) -> bool:
    """Whether padding on the allowed sides changes the output."""
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=(1, LENGTH, 4)), np.array([[True, False, False, True]])
    single = {"x": x, "keep": np.ones((1, LENGTH), bool), "other": other}

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return specc_numpy.evaluate_graph(
                graph, {n: v for n, v in inputs.items() if n in graph.inputs}, {}
            )["y"]

    expected = run(single)
    for before, after in ((3, 0), (0, 2), (1, 1)):
        if (before and side == " right") or (after and side == " left"):
            continue
        padded = {
            "x": np.concatenate(
                [9 * rng.normal(size=(1, before, 4)), x, 9 * rng.normal(size=(1, after, 4))], axis=1
            ),
            "keep": np.array([[False] * before + [True] * LENGTH + [False] * after]),
            "other": np.concatenate(
                [np.ones((1, before), bool), other, np.ones((1, after), bool)], axis=1
            ),
        }
        actual = run(padded)
        actual = actual[:, before : before + LENGTH] if actual.ndim == 3 else actual
        if not np.allclose(actual, expected, rtol=1e-9, atol=1e-11, equal_nan=True):
            return True
    return False
