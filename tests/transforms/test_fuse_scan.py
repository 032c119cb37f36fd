"""Fusion of loops over cells of the standard library into recurrent ops; other cells remain
loops."""

from pathlib import Path

import numpy as np
import pytest
from support.elaborated_specs import (
    ElaboratedSpec,
    assert_arrays_close,
    elaborate_with_config,
    sample_spec_weights,
)
from support.parameter_sweeps import sample_sweep

import specc_numpy
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.op import Op
from specc.transforms.fuse_scan import fuse_scan
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.split_scan import split_scan

SPEC = """\
specc 1
model m
dims batch, seq
graph f(x: float[batch, seq, 3], keep: keep[batch, seq], h: float[batch, 5], c: float[batch, 5])
    -> (last: float[batch, 5], y: float[batch, seq, _]) {{
  scan row in x along seq carry {carry} collect y {options} {{
    {body}
  }}
  return h, y
}}
"""
CELLS = {
    "h = rnn_cell(row, h)": ops.Rnn(),
    "h = rnn_cell(row, h, act=relu, bias=false)": ops.Rnn("relu"),
    "h = rnn_cell(row, h, act=sigmoid)": ops.Rnn("sigmoid"),
    "h, c = lstm_cell(row, h, c)": ops.Lstm(),
    "h, c = lstm_cell(row, h, c, bias=false)": ops.Lstm(),
    **{
        f"h = gru_cell(row, h, reset={r}, update={u}{bias})": ops.Gru(r, u)  # type: ignore[arg-type]
        for r in ("before", "after")
        for u in ("old", "new")
        for bias in ("", ", bias=false")
    },
}


def elaborate_cell(
    directory: Path, cell: str, collect: str = "h", options: str = ""
) -> ElaboratedSpec:
    carry = "h, c" if ", c" in cell.split("=")[0] else "h"
    body = f"earlier = h\n    {cell} @ cell\n    y = {collect}"
    (directory / "m.specc").write_text(SPEC.format(carry=carry, options=options, body=body))
    return elaborate_with_config(str(directory / "m.specc"))


def fuse_loops(graph: Graph) -> Graph:
    return rewrite_graph(graph, [fuse_scan, split_scan])


def list_recurrent_ops(graph: Graph) -> list[Op]:
    return [
        n.op for n, _ in graph.nodes if isinstance(n.op, ops.Rnn | ops.Gru | ops.Lstm | ops.Scan)
    ]


def assert_equal_results(spec: ElaboratedSpec, found: Graph) -> None:
    rng = np.random.default_rng(0)
    keep = np.array([[1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)
    shapes = {"x": (3, 4, 3), "h": (3, 5), "c": (3, 5)}
    given = {n: rng.standard_normal(s) for n, s in shapes.items()} | {"keep": keep}
    weights = sample_spec_weights(spec)
    wanted = specc_numpy.evaluate_graph(spec.model.graph, given, weights)
    for name, array in specc_numpy.evaluate_graph(found, given, weights).items():
        assert_arrays_close(array, wanted[name], name, 1e-12)


@pytest.mark.parametrize("options", ["", "reverse", "keep keep", "reverse keep keep"])
@pytest.mark.parametrize("cell", sample_sweep([*CELLS]))
def test_standard_cells_are_fused(cell: str, options: str, tmp_path: Path) -> None:
    spec = elaborate_cell(tmp_path, cell, options=options)
    found = fuse_loops(spec.model.graph)
    assert find_graph_errors(found) == []
    (layer,) = list_recurrent_ops(found)
    assert layer == type(CELLS[cell])(
        **{**CELLS[cell].get_attributes(), "reverse": "reverse" in options}
    )
    assert not any(isinstance(n.op, ops.Slice | ops.Concat) for n, _ in found.nodes), (
        "weights are whole"
    )
    assert_equal_results(spec, found)


@pytest.mark.parametrize("options", ["", "keep keep"])
def test_other_collected_values_follow_the_layer(options: str, tmp_path: Path) -> None:
    readout = "linear(concat([h, row]), out=7) @ out"
    spec = elaborate_cell(
        tmp_path, "h = gru_cell(row, h, reset=after, update=old)", readout, options
    )
    found = fuse_loops(spec.model.graph)
    assert list_recurrent_ops(found) == [ops.Gru("after")]
    assert sum(isinstance(n.op, ops.Linear) for n, _ in found.nodes) == 1
    assert_equal_results(spec, found)


@pytest.mark.parametrize(
    ("cell", "collect"),
    [
        ("h = rnn_cell(row, h, act=gelu)", "h"),
        ("h = gru_cell(concat([row, h]), h, reset=after, update=old)", "h"),
        ("h = 0.5 * h + 0.5 * rnn_cell(row, h)", "h"),
        ("h = gru_cell(row, h, reset=after, update=old)", "earlier"),
        ("h, c = lstm_cell(row, h, c)", "c"),
    ],
)
def test_other_cells_remain_loops(cell: str, collect: str, tmp_path: Path) -> None:
    """A recurrent op returns neither the previous state nor the LSTM cell state of each
    position."""
    spec = elaborate_cell(tmp_path, cell, collect)
    found = fuse_loops(spec.model.graph)
    assert [type(op) for op in list_recurrent_ops(found)] == [ops.Scan]
    assert_equal_results(spec, found)
