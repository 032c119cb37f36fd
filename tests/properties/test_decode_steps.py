"""Derived steps are equivalent to the full graph: a full forward pass equals steps of any sizes, on
random graphs.

The reference runs every graph that is proved causal in steps of several sizes; results agree to
1e-9. The same test detects mistakes planted in the passes.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step
from support.parameter_sweeps import sample_sweep
from support.random_gather_graphs import make_gather_graph
from support.random_graphs import make_random_graph, sample_graph_values
from support.random_loop_graphs import make_loop_graph

import specc_numpy
from specc.analysis.causality import check_causality
from specc.incremental import demanded_positions, loop_step_graph, step_graph, step_plan
from specc.incremental.state_selection import select_cached_values
from specc.incremental.step_plan import StepGraphRewriter, StepPlan
from specc.incremental.step_states import StepStateBuilder
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.ir_verifier import find_graph_errors

ROWS = 7
GRAPHS = 100
PLANS = ([7], [1] * 7, [2, 2, 2, 1], [3, 4], [5, 1, 1], [1, 6])


def list_expensive_nodes(graph: Graph) -> int:
    """Return the contractions and loops of a graph, including those in loop bodies."""
    count = 0
    for node, _ in graph.nodes:
        count += node.op.is_compute_intensive
        if isinstance(node.op, ops.Scan):
            count += list_expensive_nodes(node.op.body)
    return count


def find_step_difference(seed: int, draw: Callable[[int], Graph] = make_random_graph) -> str:
    """Return how the steps of graph `seed` differ from its full pass; "" if they do not or the
    graph is rejected.
    """
    graph = draw(seed)
    if check_causality(graph, "seq", "x", ["y"]):
        return ""
    inputs, weights = sample_graph_values(graph, seed, ROWS, batch=2)
    inputs = {n: v for n, v in inputs.items() if n in graph.inputs}
    full = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
    for rows in ("new", "newest"):
        derived_graphs = derive_encoder_and_step(graph, "x", {"y": rows})
        if faults := find_graph_errors(derived_graphs.step) + (
            find_graph_errors(derived_graphs.encode) if derived_graphs.encode else []
        ):
            return f"graph {seed}: {faults[0]}"
        if list_expensive_nodes(derived_graphs.step) > list_expensive_nodes(graph):
            return f"graph {seed}: a step has {list_expensive_nodes(derived_graphs.step)} heavy ops, the whole graph {list_expensive_nodes(graph)}"
        for counts in PLANS:
            got = [made["y"] for made in run_steps(derived_graphs, graph, inputs, weights, counts)]
            ends = np.cumsum(counts)
            want = (
                np.split(full, ends[:-1], axis=1)
                if rows == "new"
                else [full[:, e - 1 : e] for e in ends]
            )
            for turn, (a, b) in enumerate(zip(got, want, strict=True)):
                if a.shape != b.shape or not np.allclose(a, b, rtol=1e-9, atol=1e-9):
                    return f"graph {seed}, rows {rows}, steps {counts}: step {turn} differs"
    return ""


@pytest.mark.parametrize("start", sample_sweep(range(0, GRAPHS, 25), stride=4))
def test_steps_equal_the_full_pass(start: int) -> None:
    faults = [f for seed in range(start, start + 25) if (f := find_step_difference(seed))]
    assert not faults


@pytest.mark.parity
def test_steps_with_loops_over_another_axis_equal_the_full_pass() -> None:
    """Loops over another axis, whose bodies are random graphs too."""
    faults = [f for seed in range(12) if (f := find_step_difference(seed, make_loop_graph))]
    assert not faults
    taken = [not check_causality(make_loop_graph(s), "seq", "x", ["y"]) for s in range(60)]
    assert 8 < sum(taken) < 45


def test_steps_with_gathered_positions_equal_the_full_pass() -> None:
    """Selected, padded and resampled features, and prefix positions."""
    faults = [f for seed in range(40) if (f := find_step_difference(seed, make_gather_graph))]
    assert not faults


@pytest.mark.slow
@pytest.mark.parametrize("draw", [make_random_graph, make_loop_graph, make_gather_graph])
@pytest.mark.parametrize("start", range(GRAPHS, GRAPHS + 4000, 250))
def test_steps_of_thousands_of_graphs_equal_the_full_pass(
    start: int, draw: Callable[[int], Graph]
) -> None:
    seeds = range(start, start + 250)
    assert not [f for seed in seeds if (f := find_step_difference(seed, draw))]


def find_first_failure(seeds: Iterable[int], draw: Callable[[int], Graph]) -> str:
    """Return the first failing graph; an exception in a pass counts as failure."""
    for seed in seeds:
        try:
            fault = find_step_difference(seed, draw)
        except Exception as error:
            fault = f"graph {seed}: {type(error).__name__}"
        if fault:
            return fault
    return ""


def _ignore_earlier_positions(*args: object) -> float:
    return 0.0


def _read_from_start(self: StepStateBuilder, need: float, head: Dim) -> Value:
    return self.rewriter.builder.add_op(ops.Size(Dim.from_value(0)))


def _drop_newest_positions(
    self: StepGraphRewriter, value: Value, axis: int, total_positions: Dim, positions: Dim
) -> Value:
    """Mutation: drops the newest positions instead of the oldest."""
    unchanged = total_positions == positions
    return (
        value
        if unchanged
        else self.builder.add_op(ops.Slice(axis, Dim.from_value(0), positions), value)
    )


def _keep_no_states(plan: StepPlan, node: Node, results: tuple[Value, ...]) -> dict[int, int]:
    return {}


FIRST_SEEDS = {
    "nothing looks back": 1,
    "positions start at zero in every step": 121,
    "the wrong end is dropped": 1,
    "no loop goes on from its state": 3,
    "nothing is kept": 21,
    "everything counts as free": 3,
    "states of turns that are not run are zeros": 158,
    "nothing is kept inside": 158,
    "states begin as zeros": 173,
    "a turn begins as the carry behind it": 173,
    "states begin anew": 153,
}
"""The first seed to try: it detected the mistake before."""
MISTAKES: dict[str, tuple[object, str, object]] = {
    "nothing looks back": (demanded_positions, "_get_operand_demand", _ignore_earlier_positions),
    "positions start at zero in every step": (
        StepStateBuilder,
        "build_first_position_id",
        _read_from_start,
    ),
    "the wrong end is dropped": (
        StepGraphRewriter,
        "select_last_positions",
        _drop_newest_positions,
    ),
    "no loop goes on from its state": (step_graph, "map_state_operands", _keep_no_states),
    "nothing is kept": (step_plan, "select_cached_values", lambda *_: []),
    "everything counts as free": (
        step_plan,
        "find_recomputable_values",
        lambda graph, *_: {r for _, results in graph.nodes for r in results},
    ),
}


def _keep_early_exit(op: object, **changed: Any) -> object:
    """Mutation: leaves loops with early exit unchanged, without state after their end."""
    changed.pop("unfrozen_output_count", None)
    return replace(op, **changed)  # type: ignore[type-var]


def _ignore_loop_bodies(*given: Any) -> list[Value]:
    """Mutation: keeps no state of values in loop bodies."""
    inside = given[0].flow.inlined_loop_bodies.values()
    within = {r for body in inside for _, made in body.nodes for r in made}
    within |= {v for body in inside for v in body.inputs.values()}
    return [v for v in select_cached_values(*given) if v not in within]


MISTAKES_IN_LOOPS: dict[str, tuple[object, str, object]] = {
    "states of turns that are not run are zeros": (loop_step_graph, "replace", _keep_early_exit),
    "nothing is kept inside": (step_plan, "select_cached_values", _ignore_loop_bodies),
    "states begin as zeros": (loop_step_graph, "stack_initial_values", lambda *_: {}),
    "a turn begins as the carry behind it": (
        loop_step_graph._ClosedBody,
        "from_loop",
        lambda loop: loop_step_graph._ClosedBody(dict.fromkeys(loop.inputs, loop.inputs[-1])),
    ),
    "states begin anew": (loop_step_graph, "stack_loop_state", lambda state, *_: state),
}


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES_IN_LOOPS]))
def test_planted_mistakes_in_loops_are_detected(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*MISTAKES_IN_LOOPS[mistake])
    assert find_first_failure([FIRST_SEEDS[mistake], *range(150, 200)], make_loop_graph), mistake


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES]))
def test_planted_mistakes_are_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    assert find_first_failure([FIRST_SEEDS[mistake], *range(150)], make_random_graph), mistake
