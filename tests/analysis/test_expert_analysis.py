"""Mixture-of-experts routing: tokens are independent, masked tokens are zero, and the cost counts
the selected experts."""

from pathlib import Path

import pytest

from specc.analysis.batch_independence import check_batch_independence
from specc.analysis.causality import check_causality
from specc.analysis.model_cost import count_multiply_adds
from specc.analysis.padding_check import check_padding
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.dim import Dim
from specc.ir.graph import Graph

SPEC = """
specc 1
model experts
config {{ experts: int = 8  k: int = 2 }}
dims batch >= 1, seq >= 1

graph main(ids: int[batch, seq], keep: keep[batch, seq] = ids >= 0) -> (y: float[batch, {rows}4]) {{
  x = embedding(ids, size=10, dim=4) @ table
  best, chosen = topk(linear({scored}, out=experts, bias=false) @ gate, k)
  {route}
}}

generate text of ids from y {{ stop = [1] }}
"""
ROUTE = (
    "route(x, chosen, softmax(best), to=gated_mlp(hidden=6, act=silu), experts=experts{}) @ experts"
)


def elaborate_route(
    directory: Path, result: str, rows: str = "seq, ", scored: str = "x", **sets: int
) -> Graph:
    path = directory / "m.specc"
    path.write_text(SPEC.format(route=result, rows=rows, scored=scored))
    given = [f"{name}={value}" for name, value in sets.items()]
    return elaborate_spec(open_spec(str(path), config_settings=given)).graph


def test_tokens_are_independent(tmp_path: Path) -> None:
    graph = elaborate_route(tmp_path, f"return {ROUTE.format('')}")
    assert not check_batch_independence(graph, "batch")
    assert not check_padding(graph)
    assert not check_causality(graph, "seq", "ids", ["y"])


def test_routing_by_later_tokens_is_not_causal(tmp_path: Path) -> None:
    """The expert indices are an operand like any other."""
    mean = "x + insert(mean(x, axis=1), axis=1)"
    graph = elaborate_route(tmp_path, f"return {ROUTE.format('')}", scored=mean)
    codes = [d.code for d in check_causality(graph, "seq", "ids", ["y"])]
    assert codes
    assert set(codes) == {"E0711"}


@pytest.mark.parametrize(("keep", "clean"), [(", keep=keep", True), ("", False)])
def test_masked_tokens_are_zero(keep: str, clean: bool, tmp_path: Path) -> None:
    result = f"return sum({ROUTE.format(keep)}, axis=1)"
    graph = elaborate_route(tmp_path, result, rows="")
    assert [d.code for d in check_padding(graph)] == ([] if clean else ["W0601"])


@pytest.mark.parametrize("experts", [2, 8, 512])
def test_cost_counts_the_selected_experts(experts: int, tmp_path: Path) -> None:
    graph = elaborate_route(tmp_path, f"return {ROUTE.format('')}", experts=experts)
    (node,) = (n for n, _ in graph.nodes if n.op.name == "mixture_of_experts")
    rows = Dim.symbol("batch") * Dim.symbol("seq")
    assert count_multiply_adds(node) == rows * 2 * (3 * 4 * 6)


def test_graph_size_does_not_depend_on_the_number_of_experts(tmp_path: Path) -> None:
    few, many = (
        elaborate_route(tmp_path, f"return {ROUTE.format('')}", experts=n) for n in (2, 4096)
    )
    assert len(few.nodes) == len(many.nodes)
    assert len(few.parameters) == len(many.parameters)
