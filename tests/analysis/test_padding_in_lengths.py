"""A length includes padded positions, so a result computed from it depends on padding. The positions
of a table with as many rows as a sequence include padded positions, too.
"""

from pathlib import Path

import numpy as np
import pytest

import specc_numpy
from specc.analysis.check_report import analyze_graph
from specc.analysis.padding_check import check_padding
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n, 2], keep: keep[batch, n] right) -> (y: float[batch, 2]) {{
  total = sum(x * insert(cast(keep, to=float), axis=2), axis=1)
  return {result}
}}
"""
POOLED = "masked_mean_pool(x, keep)"
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


TABLES = {
    "table[:n]": {"right"},
    "table[1:n + 1]": {"right"},
    "table[9 - n:]": set(),
    "pad(table[:1], after=n - 1, axis=0)": {"right"},
    "pad(table[:1], before=n - 1, axis=0)": set(),
    "concat([table[:1], zeros(shape=[n - 1, 2])], axis=0)": {"right"},
    "concat([zeros(shape=[n - 1, 2]), table[:1]], axis=0)": set(),
    "resize(table[none], size=[n], axis=1, mode=nearest)[0]": set(),
    "gather(table, positions(x), axis=0)": {"right"},
}


@pytest.mark.parametrize("side", ["left", "right", ""])
@pytest.mark.parametrize(("rows", "sides"), TABLES.items())
def test_rows_of_tables(rows: str, sides: set[str], side: str, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(
        f"""specc 1
model m
dims batch, n
graph g(x: float[batch, n, 2], keep: keep[batch, n] {side}) -> (y: float[batch, n, 2]) {{
  table = parameter(shape=[9, 2]) @ table
  return x + ({rows})
}}
""",
        encoding="utf-8",
    )
    graph = elaborate_spec(open_spec(str(path))).graph
    weights = {"table": np.arange(18.0).reshape(9, 2)}
    x = np.ones((1, 3, 2))
    alone = specc_numpy.evaluate_graph(
        graph, {"x": x[:, :2], "keep": np.ones((1, 2), bool)}, weights
    )
    clean = {}
    for padded_side, valid in (("left", slice(1, 3)), ("right", slice(2))):
        keep = np.zeros((1, 3), bool)
        keep[:, valid] = True
        y = specc_numpy.evaluate_graph(graph, {"x": x, "keep": keep}, weights)["y"][:, valid]
        clean[padded_side] = np.array_equal(alone["y"], y)
    # `check` may warn without need if only left padding is harmless
    assert clean["right"] == ("right" in sides)
    assert (check_padding(graph) == []) == (side in sides)
    assert side not in sides or clean[side]


PADDED = {
    "pad(where(k, x, 0.0), after=9 - n)": {"right"},
    "pad(where(k, x, -inf), after=9 - n, value=-inf)": {"right"},
    "pad(where(k, x, 1.0), before=2, after=7 - n, value=1.0)": {"right"},
    "pad(where(k, x, 1.0), after=9 - n)": set(),
    "pad(x, after=9 - n)": set(),
    "pad(where(k, x, 0.0), before=9 - n)": {"left"},
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("padded", "sides"), PADDED.items())
def test_padding_to_a_fixed_length(padded: str, sides: set[str], side: str, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(
        f"""specc 1
model m
dims batch, n
graph g(x: float[batch, n, 2], keep: keep[batch, n] {side}) -> (y: float[batch, 9, 2]) {{
  k = insert(keep, axis=2)
  return {padded}
}}
""",
        encoding="utf-8",
    )
    graph = elaborate_spec(open_spec(str(path))).graph
    valid = slice(1, 3) if side == "left" else slice(2)
    x, keep = np.random.default_rng(0).standard_normal((1, 3, 2)), np.zeros((1, 3), bool)
    keep[:, valid] = True
    alone = {"x": x[:, valid], "keep": np.ones((1, 2), bool)}
    made = [
        specc_numpy.evaluate_graph(graph, given, {})["y"]
        for given in (alone, {"x": x, "keep": keep})
    ]
    assert np.array_equal(*made) == (side in sides)
    # `check` may warn without need if padding is on the left
    assert (check_padding(graph) == []) == (side in sides and side == "right")


@pytest.mark.parametrize(("pooled", "clean"), [("mean(x, axis=1)", False), (POOLED, True)])
@pytest.mark.parametrize(("dims", "where"), [("past + seq", ""), ("n", "where n = past + seq")])
def test_masks_whose_length_is_a_sum(
    pooled: str, clean: bool, dims: str, where: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.specc"
    path.write_text(
        f"""specc 1
model m
dims batch, past, seq, n
graph g(x: float[batch, {dims}, 2], keep: keep[batch, {dims}], p: float[batch, past, 2],
        s: float[batch, seq, 2]) -> (y: float[batch, 2]) {where} {{
  return {pooled} + p[:, 0] + s[:, 0] + masked_mean_pool(x, keep)
}}
""",
        encoding="utf-8",
    )
    assert (check_padding(elaborate_spec(open_spec(str(path))).graph) == []) == clean


@pytest.mark.parametrize(("length", "names"), [("n", ["keep"]), ("6", [])])
def test_only_masks_of_dynamic_axes_are_reported(
    length: str, names: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.specc"
    path.write_text(
        f"""specc 1
model m
dims batch, n
graph g(x: float[batch, {length}, 2], keep: keep[batch, {length}]) -> (y: float[batch, 2]) {{
  return mean(x, axis=1) + masked_mean_pool(x, keep)
}}
""",
        encoding="utf-8",
    )
    report = analyze_graph(elaborate_spec(open_spec(str(path))).graph)
    assert list(report.padding_masks) == names
