"""Use of the first position of the time axis in all others: proofs about it are true, and a step
that caches it equals the full pass.

Random graphs with prefixes (`support.random_prefix_graphs`), with the properties of
`test_prefix_positions`; mistakes planted in the passes are detected.
"""

from typing import Any

import pytest
from properties.test_prefix_positions import clear_caches, find_leak, find_step_difference
from support.random_prefix_graphs import make_first_position_graph

from specc.analysis import time_axis_prefix_and_chunks
from specc.analysis.causality import check_causality
from specc.analysis.time_axis_prefix_and_chunks import (
    TimeAxis,
    find_time_axis,
    is_first_position_slice,
)
from specc.analysis.time_dependence_and_unsupported_loops import TimeDependence
from specc.incremental import step_graph
from specc.incremental.step_states import StepStateBuilder
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def find_failure(seed: int) -> str:
    return find_leak(make_first_position_graph(seed), seed) or find_step_difference(
        seed, make_first_position_graph
    )


def test_first_positions_in_steps_equal_the_full_pass() -> None:
    assert not [f for seed in range(15) if (f := find_failure(seed))]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2000, 200))
def test_first_positions_of_thousands_of_graphs_equal_the_full_pass(start: int) -> None:
    assert not [f for seed in range(start, start + 200) if (f := find_failure(seed))]


def test_most_graphs_that_read_the_first_position_are_proved() -> None:
    graphs = [make_first_position_graph(seed) for seed in range(60)]
    proved = [g for g in graphs if "x" in g.inputs and not check_causality(g, "seq", "x", ["y"])]
    picking = [
        g
        for g in proved
        if any(is_first_position_slice(n, find_time_axis(g, "seq")) for n, _ in g.nodes)
    ]
    assert len(picking) > 4


def _read_second_position(node: Node, clock: TimeAxis) -> bool:
    match node:
        case Node(ops.Slice() | ops.Index(), (x,)) if x is not None:
            return clock.get_prefix_length(x.type.shape[node.op.axis]) is not None
    return False


def _read_new_positions(states: StepStateBuilder, node: Node, result: Any, rows: Any) -> Any:
    cut = states.rewriter.add_node(
        node, ops.Slice(node.op.axis, Dim.from_value(0), Dim.from_value(1)), rows
    )
    if isinstance(node.op, ops.Index):
        return states.rewriter.add_node(node, ops.Squeeze(node.op.axis), *cut)
    return cut


FROM = {"any row may be picked": 20, "rows of a head may read it": 30}
MISTAKES: dict[str, tuple[object, str, object]] = {
    "any row may be picked": (
        time_axis_prefix_and_chunks,
        "is_first_position_slice",
        _read_second_position,
    ),
    "rows of a head may read it": (
        TimeDependence,
        "depends_only_on_first_position",
        property(lambda self: False),
    ),
    "it is the first of the new rows": (
        step_graph,
        "build_first_position_slice",
        _read_new_positions,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    clear_caches()
    # Few of a hundred graphs detect a mistake: try those near the first one that does.
    start = FROM.get(mistake, 0)
    found = next((f for s in range(start, start + 60) if (f := _plant_mistake(s))), "")
    monkeypatch.undo()
    clear_caches()
    assert found, mistake


def _plant_mistake(seed: int) -> str:
    try:
        return find_failure(seed)
    except Exception as error:
        return f"graph {seed}: {type(error).__name__}: {error}"
