"""All proofs about random graphs hold: steps equal the full pass, padding has no effect, batch
elements are independent.

The graphs contain loops over another axis, position ids with factors, low scores at masked
positions, pooling, rotations, and merged batch axes. The float64 reference on other inputs (longer,
padded, alone) decides. Each rule of the proofs is then disabled in turn, and the same properties
must detect that.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step
from support.parameter_sweeps import sample_sweep
from support.random_batch_axis_graphs import make_batch_axis_graph
from support.random_dataflow_graphs import make_dataflow_graph, sample_dataflow_values

import specc_numpy
from specc.analysis import (
    batch_independence,
    padding_check,
    padding_dataflow,
    padding_facts,
    padding_masked_scores,
    padding_position_ids,
    padding_rotary_embedding,
    padding_safe_ops,
    padding_zeros,
    time_dataflow,
    time_dependence_and_unsupported_loops,
)
from specc.analysis.causality import check_causality
from specc.ir.graph import Graph
from specc.ir.ir_verifier import find_graph_errors

ROWS = 6
GRAPHS, MANY = 90, 4000
Side = Literal["left", "right", "any"]
SIDES: tuple[Side, ...] = ("left", "right", "any")


def same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and np.allclose(a, b, rtol=1e-8, atol=1e-10, equal_nan=True))


def run(graph: Graph, inputs: dict[str, Any], weights: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"):
        return specc_numpy.evaluate_graph(
            graph, {n: v for n, v in inputs.items() if n in graph.inputs}, weights
        )["y"]


def find_step_difference(seed: int) -> str:
    """Return how the steps of a graph that is proved causal differ from its full pass."""
    graph = make_dataflow_graph(seed)
    if check_causality(graph, "seq", "x", ["y"]):
        return ""
    inputs, weights = sample_dataflow_values(graph, seed, ROWS, batch=2)
    full = run(graph, inputs, weights)
    derived_graphs = derive_encoder_and_step(graph, "x", {"y": "new"})
    if faults := find_graph_errors(derived_graphs.step) + (
        find_graph_errors(derived_graphs.encode) if derived_graphs.encode else []
    ):
        return f"graph {seed}: {faults[0]}"
    used = {n: v for n, v in inputs.items() if n in graph.inputs}
    for plan in ([ROWS], [1] * ROWS, [3, 2, 1]):
        with np.errstate(all="ignore"):
            made = np.concatenate(
                [r["y"] for r in run_steps(derived_graphs, graph, used, weights, plan)], axis=1
            )
        if not same(made, full):
            return f"graph {seed}: steps {plan} differ from the full pass"
    return ""


def find_padding_effect(seed: int) -> str:
    """Return how padding changes valid positions of a graph for which a proof excludes it."""
    side = SIDES[seed % 3]
    graph = make_dataflow_graph(seed, side)
    if padding_check.check_padding(graph):
        return ""
    inputs, weights = sample_dataflow_values(graph, seed, ROWS)
    alone = run(graph, inputs, weights)
    rng = np.random.default_rng(seed)
    for before, behind in ((1, 0), (3, 0), (0, 2), (2, 1)):
        if (before and side == "right") or (behind and side == "left"):
            continue
        longer = dict(inputs)
        for name in ("x", "keep", "other"):
            shape = inputs[name].shape
            junk = [np.zeros((1, n, *shape[2:]), bool) for n in (before, behind)]
            if name != "keep":
                junk = [
                    rng.normal(size=j.shape) * 9 if name == "x" else rng.random(j.shape) < 0.5
                    for j in junk
                ]
            longer[name] = np.concatenate([junk[0], inputs[name], junk[1]], axis=1)
        if not same(run(graph, longer, weights)[:, before : before + ROWS], alone):
            return f"graph {seed}, {side}: {before} rows before and {behind} behind move it"
    return ""


def find_batch_effect(seed: int) -> str:
    """Return how a batch element alone differs from itself in a batch, in a graph for which a proof
    excludes it.
    """
    graph = make_dataflow_graph(seed, mixes=True)
    if batch_independence.check_batch_independence(graph, "batch"):
        return ""
    inputs, weights = sample_dataflow_values(graph, seed, ROWS, batch=3)
    together = run(graph, inputs, weights)
    for n in range(3):
        if not same(
            run(graph, {k: v[n : n + 1] for k, v in inputs.items()}, weights), together[n : n + 1]
        ):
            return f"graph {seed}: example {n} alone differs"
    return ""


Law = Callable[[int], str]
LAWS: dict[str, Law] = {
    "steps": find_step_difference,
    "padding": find_padding_effect,
    "examples": find_batch_effect,
}


@pytest.mark.parametrize("many", [GRAPHS // 6, pytest.param(GRAPHS, marks=pytest.mark.parity)])
@pytest.mark.parametrize("law", LAWS)
def test_proofs_hold(law: str, many: int) -> None:
    assert not [fault for seed in range(many) if (fault := LAWS[law](seed))]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(GRAPHS, GRAPHS + MANY, 500))
@pytest.mark.parametrize("law", LAWS)
def test_proofs_about_thousands_of_graphs_hold(law: str, start: int) -> None:
    assert not [fault for seed in range(start, start + 500) if (fault := LAWS[law](seed))]


@pytest.mark.parity
def test_most_graphs_are_proved() -> None:
    """The properties are useless if no graph is proved."""
    graphs = [make_dataflow_graph(seed, SIDES[seed % 3]) for seed in range(GRAPHS)]
    assert sum(not check_causality(g, "seq", "x", ["y"]) for g in graphs) > 20
    assert sum(not padding_check.check_padding(g) for g in graphs) > 10
    assert (
        sum(
            not batch_independence.check_batch_independence(
                make_dataflow_graph(s, mixes=True), "batch"
            )
            for s in range(GRAPHS)
        )
        > 40
    )


MISTAKES: dict[str, tuple[str, object, str, object]] = {
    "bodies are not judged": ("steps", time_dataflow, "_analyze_loop_body", lambda *_: []),
    "a loop may be told to keep any rows": (
        "padding",
        padding_safe_ops,
        "_is_loop_skipping_padding",
        lambda *_: True,
    ),
    "row numbers do not count padding": (
        "padding",
        padding_dataflow,
        "infer_padding_count",
        lambda *_: {},
    ),
    "factors are forgotten": (
        "padding",
        padding_position_ids,
        "_add_counts",
        lambda one, other, by: dict(one or other),
    ),
    "every mask shows a row itself": (
        "padding",
        padding_masked_scores,
        "is_true_at_valid_positions",
        lambda *_: True,
    ),
    "a maximum passes over anything": (
        "padding",
        padding_facts.PaddingFacts,
        "is_ignored_by_max",
        lambda *_: True,
    ),
    "what is turned shows nothing": (
        "padding",
        padding_dataflow,
        "infer_rotary_embedding",
        lambda *_: None,
    ),
    "pairs of features do not matter": (
        "padding",
        padding_rotary_embedding,
        "_is_matched_product",
        lambda left, right, at, to: True,
    ),
    "zero times anything is zero": (
        "padding",
        padding_zeros,
        "can_be_nan_at_padding",
        lambda *_: False,
    ),
    "axes of the batch are read anyhow": (
        "examples",
        batch_independence._BatchAxis,
        "_crosses_batch",
        lambda *_: False,
    ),
    "lengths of the batch are numbers": (
        "examples",
        batch_independence._BatchAxis,
        "_has_batch_attribute",
        lambda *_: False,
    ),
}


FIRST_SEEDS = {
    "factors are forgotten": 366,
    "every mask shows a row itself": 85,
    "a maximum passes over anything": 109,
    "zero times anything is zero": 479,
}
"""Seeds that detect a mistake after many that do not; they are tried first."""


def is_detected(law: Law, graphs: int = 1500, first: int = 0) -> bool:
    """Return True if a property fails; an exception in a pass counts as failure."""
    for seed in (first, *range(graphs)):
        try:
            if law(seed):
                return True
        except Exception:
            return True
    return False


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES]))
def test_a_disabled_rule_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, place, name, wrong = MISTAKES[mistake]
    time_dataflow.trace_time_dataflow.cache_clear()
    monkeypatch.setattr(place, name, wrong)
    if place is time_dataflow:
        # the search for loops without steps detects the same in loop bodies
        # too
        explain = time_dependence_and_unsupported_loops._explain_unsupported_node
        monkeypatch.setattr(
            time_dependence_and_unsupported_loops,
            "_explain_unsupported_node",
            lambda node, results, axis, flow: (
                explain(node, results, axis, flow) if axis is None else ""
            ),
        )
    missed = is_detected(LAWS[law], first=FIRST_SEEDS.get(mistake, 0))
    monkeypatch.undo()
    time_dataflow.trace_time_dataflow.cache_clear()
    assert missed, mistake


WINDOWS = 40
"""Graphs with merged batch axes, and loops whose bodies read earlier positions or count batch
elements.
"""


@pytest.fixture
def windowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the properties on these graphs."""
    monkeypatch.setitem(globals(), "make_dataflow_graph", make_batch_axis_graph)


@pytest.mark.usefixtures("windowed")
@pytest.mark.parametrize("law", LAWS)
def test_proofs_about_batch_axis_graphs_hold(law: str) -> None:
    assert not [fault for seed in range(WINDOWS) if (fault := LAWS[law](seed))]


@pytest.mark.slow
@pytest.mark.usefixtures("windowed")
@pytest.mark.parametrize("start", range(WINDOWS, WINDOWS + MANY, 500))
@pytest.mark.parametrize("law", LAWS)
def test_proofs_about_thousands_of_batch_axis_graphs_hold(law: str, start: int) -> None:
    seeds = range(start, start + 500)
    assert not [fault for seed in seeds if (fault := LAWS[law](seed))]


@pytest.mark.usefixtures("windowed")
def test_a_loop_over_batch_elements_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = sum(
        not batch_independence.check_batch_independence(
            make_batch_axis_graph(s, mixes=True), "batch"
        )
        for s in range(40)
    )
    assert kept > 8
    monkeypatch.setattr(batch_independence._BatchAxis, "_is_mixing_scan", lambda *_: False)
    assert is_detected(LAWS["examples"], 100)
