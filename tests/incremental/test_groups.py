"""Groups (`same_group`): positions of an image attend to each other and arrive in one step."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step

import specc_numpy
from specc.analysis.causality import check_causality, check_streaming_causality
from specc.analysis.check_report import analyze_graph
from specc.analysis.mask_bands import find_band_interval
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.types import Interval

SPEC = """specc 1
model grouped
dims batch, n

mask mixed(a, b) = in_same_group(a[i], b[j])

graph main(ids: int[batch, n], keep: keep[batch, n] = ids >= 0) -> (logits: float[batch, n, 9]) {
  is_image = ids == 3 & keep
  group = where(is_image, cumsum(is_image & not delay(is_image, by=1, first=false)), 0)
  other = cumsum(is_image)
  x = embedding(ids, size=9, dim=8) @ embed
  x = x + (attention(x, heads=2, mask=visible(keep) & (causal | SHOWN)) @ full)
  x = x + (attention(x, heads=2, mask=visible(keep) & (causal | SHOWN) & window(3, ahead=none)) @ sliding)
  return linear(x, out=9) @ head
}
"""
GENERATE = "\ngenerate text of ids from logits { stop = 2 }\n"
IDS = np.array([[1, 3, 3, 3, 4, 3, 3, 5, 1, 4]])


def write_spec(
    directory: Path, shown: str = "same_group(group)", end: str = GENERATE
) -> LoadedSpec:
    path = directory / "grouped.specc"
    path.write_text(SPEC.replace("SHOWN", shown) + end)
    return open_spec(str(path))


def random_weights(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    facts = graph.parameter_facts.items()
    return {n: rng.normal(size=[d.number for d in f.type.shape]) for n, f in facts}


@pytest.mark.parametrize("plan", [[4, 1, 2, 1, 1, 1], [7, 3], [10]])
def test_steps_equal_the_full_forward_pass_if_groups_are_whole(
    plan: list[int], tmp_path: Path
) -> None:
    graph = elaborate_spec(write_spec(tmp_path)).graph
    weights, inputs = random_weights(graph), {"ids": IDS, "keep": np.ones(IDS.shape, bool)}
    full = specc_numpy.evaluate_graph(graph, inputs, weights)["logits"]
    derived_graphs = derive_encoder_and_step(graph, "ids", {"logits": "newest"})
    made = run_steps(derived_graphs, graph, inputs, weights, plan)
    for end, step in zip(np.cumsum(plan), made, strict=True):
        apart = np.abs(step["logits"][:, 0] - full[:, end - 1]).max()
        assert apart <= 1e-11 * np.abs(full).max()


def test_sliding_window_limits_the_cache(tmp_path: Path) -> None:
    graph = elaborate_spec(write_spec(tmp_path)).graph
    derived_graphs = derive_encoder_and_step(graph, "ids", {"logits": "newest"})
    assert sorted(
        s.max_positions for s in derived_graphs.states if (s.type.dtype, s.type.rank) == ("f32", 4)
    ) == [2, 2, inf, inf]


def test_an_image_token_depends_on_later_ones_of_its_image_and_text_does_not(
    tmp_path: Path,
) -> None:
    graph = elaborate_spec(write_spec(tmp_path)).graph
    weights, keep = random_weights(graph), np.ones(IDS.shape, bool)
    last_is_text = np.where(np.arange(10) == 3, 1, IDS)
    before, after = (
        specc_numpy.evaluate_graph(graph, {"ids": ids, "keep": keep}, weights)["logits"][0]
        for ids in (IDS, last_is_text)
    )
    assert np.array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


def test_without_a_time_axis_a_group_has_no_band(tmp_path: Path) -> None:
    """A blocked kernel must not skip later positions of a group."""
    graph = elaborate_spec(write_spec(tmp_path)).graph
    shown = [node.op.mask(node) for node, _ in graph.nodes if isinstance(node.op, ops.Attend)]
    assert [find_band_interval(mask, 2, 3) for mask in shown] == [
        Interval(-inf, inf),
        Interval(-inf, 2),
    ]


@pytest.mark.parametrize("shown", ["same(group, group)", "mixed(group, other)"])
def test_group_ids_must_be_one_tensor(shown: str, tmp_path: Path) -> None:
    graph = elaborate_spec(write_spec(tmp_path, shown)).graph
    found = check_causality(graph, "n", "ids", ["logits"])
    assert {d.code for d in found} == {"E0712"}


def test_streamed_chunks_may_split_a_group(tmp_path: Path) -> None:
    graph = elaborate_spec(write_spec(tmp_path)).graph
    found = check_streaming_causality(graph, "n", "ids", ["logits"], 1)
    assert [(d.code, "may end within a group" in d.title) for d in found] == [("E0712", True)]


def test_check_names_the_condition(tmp_path: Path) -> None:
    graph = elaborate_spec(write_spec(tmp_path)).graph
    lines = analyze_graph(graph, "ids", "logits").format_lines()
    assert "  positions of a group arrive in one step (same_group)" in lines
