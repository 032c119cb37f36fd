"""A length includes padded positions, so a result computed from it depends on padding."""

from pathlib import Path

import numpy as np
import pytest

import specc_numpy
from specc.analysis.padding_check import check_padding
from specc.driver.spec_loader import elaborate_spec, open_spec

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n, 2], keep: keep[batch, n] right) -> (y: float[batch, 2]) {{
  total = sum(x * insert(cast(keep, to=float), axis=2), axis=1)
  return {result}
}}
"""
COUNT = "total / insert(sum(cast(keep, to=float), axis=1), axis=1)"


@pytest.mark.parametrize(
    ("result", "clean"), [("total / n", False), ("total * n", False), (COUNT, True)]
)
def test_lengths_as_values(result: str, clean: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(SPEC.format(result=result), encoding="utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    x = np.ones((1, 2, 2))
    alone = specc_numpy.evaluate_graph(graph, {"x": x, "keep": np.ones((1, 2), bool)}, {})["y"]
    longer = {"x": np.concatenate([x, x], axis=1), "keep": np.array([[True, True, False, False]])}
    assert np.allclose(alone, specc_numpy.evaluate_graph(graph, longer, {})["y"]) == clean
    assert (check_padding(graph) == []) == clean
