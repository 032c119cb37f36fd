"""Loop-invariant computation moves out of loops, and results are unchanged."""

from pathlib import Path

import numpy as np
import pytest

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir import ops
from specc.ir.graph import Graph
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.split_scan import split_scan

SEARCH = """
specc 1
model search
config { v: int = 11  emb: int = 6  hid: int = 8  att: int = 5 }
dims batch, src, tgt
score additive_of(att: int) =
  linear(tanh((linear(q, out=att, bias=false) @ W) + (linear(k, out=att) @ U)), out=1, bias=false) @ v
graph g(memory: float[batch, src, hid], keep: keep[batch, src], target: int[batch, tgt],
        target_keep: keep[batch, tgt], start: float[batch, hid])
    -> (logits: float[batch, tgt, v], alignment: float[batch, tgt, src], s: float[batch, hid]) {
  s = start
  scan y in embedding(target, size=v, dim=emb) @ e along tgt carry s collect logits, alignment keep target_keep {
    context, alignment = attend_by(additive_of(att), s, memory, memory, mask=visible(keep)) @ align
    t = linear(concat([s, y, context]), out=2 * hid) @ readout
    logits = linear(maxout(t, 2), out=v) @ out
    s = tanh((linear(y, out=hid) @ wy) + (linear(s, out=hid, bias=false) @ ws) + (linear(context, out=hid) @ wc))
  }
  return logits, alignment, s
}
"""


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    path = tmp_path / "search.specc"
    path.write_text(SEARCH.lstrip(), encoding="utf-8")
    return elaborate_spec(open_spec(str(path))).graph


def count_heavy_ops(graph: Graph) -> tuple[int, int]:
    """Return the number of matrix products outside and inside the loop."""
    outside = sum(
        n.op.is_compute_intensive for n, _ in graph.nodes if not isinstance(n.op, ops.Scan)
    )
    inside = sum(
        b.op.is_compute_intensive
        for n, _ in graph.nodes
        if isinstance(n.op, ops.Scan)
        for b, _ in n.op.body.nodes
    )
    return outside, inside


def test_only_carry_dependent_ops_remain(graph: Graph) -> None:
    # U h is already outside: it is loop-invariant
    assert count_heavy_ops(graph) == (1, 8)
    # W s, v tanh(…), the weighted sum, and the projections of s and the context to the next s
    # remain inside
    assert count_heavy_ops(rewrite_graph(graph, [split_scan])) == (4, 5)


@pytest.mark.parametrize("batch", [1, 3])
def test_results_are_unchanged(graph: Graph, batch: int) -> None:
    rng = np.random.default_rng(0)
    weights = {
        k: rng.normal(size=[d.number or 0 for d in v.type.shape])
        for k, v in graph.parameters.items()
    }
    lengths = np.array([5, 2, 3])[:batch, None]
    inputs = {
        "memory": rng.normal(size=(batch, 4, 8)),
        "keep": np.arange(4) < np.array([4, 2, 3])[:batch, None],
        "target": rng.integers(0, 11, (batch, 5)),
        "target_keep": np.arange(5) < lengths,
        "start": rng.normal(size=(batch, 8)),
    }
    before = specc_numpy.evaluate_graph(graph, inputs, weights)
    after = specc_numpy.evaluate_graph(rewrite_graph(graph, [split_scan]), inputs, weights)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=0, atol=1e-12)


def test_loop_without_invariants_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "sum.specc"
    path.write_text(
        "specc 1 model running dims batch, t "
        "graph g(x: float[batch, t, 4], start: float[batch, 4]) -> (y: float[batch, t, 4]) {"
        " s = start scan r in x along t carry s collect y { s = s + r  y = s } return y }",
        encoding="utf-8",
    )
    graph = elaborate_spec(open_spec(str(path))).graph
    assert [n.op for n, _ in rewrite_graph(graph, [split_scan]).nodes] == [
        n.op for n, _ in graph.nodes
    ]
