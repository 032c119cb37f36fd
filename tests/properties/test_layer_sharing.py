"""The cost of equal layers is linear in their number; they share masks, and sharing changes nothing
else.
"""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.elaborated_specs import elaborate_uncached, sample_spec_weights
from support.random_generative_specs import ALPHABET, make_generative_spec
from support.small_configs import SMALL_CONFIGS

import specc_numpy
from specc.analysis.check_report import AnalysisReport, analyze_graph
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.frontend import mask_and_bias_definitions
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.spec_values import Tensor
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.model_definition import ModelDefinition
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs


def make_unshared_position_ids(nodes: NodeBuilder, x: Tensor, axis: int, role: object) -> Tensor:
    """Position ids without sharing: separate ones for each tensor."""
    return nodes.add_op(ops.Extent(axis), x)


def list_proofs(model: ModelDefinition) -> AnalysisReport:
    """Return the facts proved for a model."""
    grows = model.generation
    if grows is None:
        return analyze_graph(model.graph)
    return analyze_graph(model.graph, grows.sequence_input, grows.logits_output, model.defaults)


def format_report(found: AnalysisReport) -> Any:
    """Return a report as text, with spans by their positions."""
    faults = [
        (d.code, d.title, d.primary and (d.primary.span.start, d.primary.span.end))
        for d in (*found.errors, *found.warnings)
    ]
    return found.format_lines(), faults


def compute_results(graph: Graph, weights: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Return the results of a graph for inputs of a seed."""
    sizes = choose_dim_sizes(graph, 2, None)
    inputs = make_random_inputs(graph, sizes, np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        return specc_numpy.evaluate_graph(graph, inputs, weights)


def find_sharing_difference(spec: str, monkeypatch: pytest.MonkeyPatch, *, run: bool) -> str:
    """Return how a spec differs from itself without sharing; "" if it does not."""
    small = SMALL_CONFIGS.get(spec, {})
    shared = elaborate_uncached(spec, **small)
    with monkeypatch.context() as patched:
        patched.setattr(mask_and_bias_definitions, "_make_position_ids", make_unshared_position_ids)
        apart = elaborate_uncached(spec, **small)
    one, other = shared.model.graph, apart.model.graph
    if one.parameter_facts != other.parameter_facts or len(one.nodes) > len(other.nodes):
        return "weights or nodes"
    if format_report(list_proofs(shared.model)) != format_report(list_proofs(apart.model)):
        return "proofs"
    if run:
        weights = sample_spec_weights(shared)
        found, wanted = compute_results(one, weights), compute_results(other, weights)
        if not all(np.array_equal(found[n], wanted[n], equal_nan=True) for n in wanted):
            return "numbers"
    return ""


FEW = ("deepseek_v3", "sparsemax_lm")


@pytest.mark.parametrize("spec", FEW)
def test_sharing_masks_changes_no_result(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not find_sharing_difference(spec, monkeypatch, run=False)


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted({*SMALL_CONFIGS} - {*FEW}))
def test_sharing_masks_changes_no_built_in_spec(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not find_sharing_difference(spec, monkeypatch, run=True)


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 200), marks=pytest.mark.slow)])
def test_sharing_masks_changes_no_random_spec(
    seeds: range, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "letters.vocab").write_text("\n".join(ALPHABET) + "\n")
    for seed in seeds:
        path = tmp_path / f"m{seed}.specc"
        path.write_text(make_generative_spec(seed).text)
        assert not find_sharing_difference(str(path), monkeypatch, run=True), seed


def test_layers_share_one_mask() -> None:
    graph = elaborate_uncached("llama", **SMALL_CONFIGS["llama"]).model.graph
    masks = {n.args[3] for n, _ in graph.nodes if isinstance(n.op, ops.Attend)}
    assert len(masks) == 1


def test_sorted_positions_do_not_share_position_ids(tmp_path: Path) -> None:
    """Sorted positions are ranks: their indices are not positions."""
    path = tmp_path / "m.specc"
    path.write_text("""specc 1
model m
dims batch, n
graph g(x: float[batch, n, 4], keep: keep[batch, n]) -> (y: float[batch, n, 4]) {
  a, _ = attend(x, x, x, mask=visible(keep) & causal)
  s, _ = sort(where(insert(keep, axis=2), a, -inf), axis=1)
  b, _ = attend(s, s, s, mask=causal)
  return b
}
""")
    graph = elaborate_uncached(str(path)).model.graph
    counted = [n for n, _ in graph.nodes if isinstance(n.op, ops.Extent)]
    assert len(counted) == 2  # queries and keys of each attention are one tensor


CROSSED = """specc 1
model m
dims batch, few, many, n
graph g(a: float[batch, few, 4], b: float[batch, many, 4], x: float[batch, n, 4])
    -> (y: float[batch, few, 4], z: float[batch, many, 4]) {
  y, _ = attend(a, x, x, mask=causal)
  z, _ = attend(b, x, x, mask=causal)
  return y, z
}
"""


def test_queries_of_other_lengths_do_not_share_position_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.specc"
    path.write_text(CROSSED)
    assert not find_sharing_difference(str(path), monkeypatch, run=True)


LOOPED = """specc 1
model m
dims batch, turns, n
graph g(x: float[batch, turns, n, 4]) -> (y: float[batch, n, 4]) {
  h = x[:, 0]
  scan row in x along turns carry h {
    h, _ = attend(row + h, row + h, row, mask=causal)
  }
  y, _ = attend(h, h, h, mask=causal)
  return y
}
"""


def test_position_ids_of_a_loop_stay_in_its_body(tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(LOOPED)
    graph = elaborate_uncached(str(path)).model.graph
    find_graph_errors(graph)
    assert compute_results(graph, {})["y"].shape[-1] == 4


def count_calls(work: Callable[[], object]) -> int:
    """Return the number of function calls."""
    count = 0

    def seen(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def measure_check_cost(spec: str, layers: int, **more: object) -> int:
    """Return the work of checking a spec with this many layers, including proofs."""
    sizes = SMALL_CONFIGS[spec] | {"layers": layers} | more
    sets = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in sizes.items()]

    def work() -> None:
        found = open_spec(spec, config_settings=sets)
        model = check_spec(found).model
        assert model is not None
        list_proofs(model)

    return count_calls(work)


def assert_linear_cost(spec: str, layers: int) -> None:
    """Assert that twice the number of added layers at most doubles the added work."""
    measure_check_cost(spec, 1)  # caches of parsed and computed values
    few, some, many = (measure_check_cost(spec, n) for n in (layers, 2 * layers, 4 * layers))
    assert many - some <= 2.1 * (some - few), (few, some, many)


@pytest.mark.parity
def test_the_cost_of_a_layer_is_constant() -> None:
    """For a spec whose layers have unshared masks and position ids."""
    assert_linear_cost("sparsemax_lm", 2)


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted(n for n, s in SMALL_CONFIGS.items() if "layers" in s))
def test_the_cost_of_a_layer_is_constant_in_every_spec(spec: str) -> None:
    assert_linear_cost(spec, 6)


@pytest.mark.slow
def test_sixty_one_layers_of_256_experts_are_checked_in_two_seconds() -> None:
    """DeepSeek-V3 with its default config in processor time, including the start of Python; best of
    three.
    """
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "specc", "check", "deepseek_v3"],
            capture_output=True,
            check=True,
            text=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert "671 026 419 200 parameters" in done.stdout
    assert min(taken) < 2.0
