"""Proofs are true: random graphs in which one token at a time changes, evaluated by the reference.

In a graph that is proved causal a later token never changes an earlier position, and no position
outside the computed receptive field changes. The same test detects mistakes planted in the facts.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.random_gather_graphs import make_gather_graph
from support.random_graphs import make_random_graph, sample_graph_values
from support.random_loop_graphs import make_loop_graph

import specc_numpy
from specc.analysis import mask_bands, time_dataflow
from specc.analysis.batch_independence import check_batch_independence
from specc.analysis.causality import check_causality
from specc.analysis.padding_check import can_padding_reach_outputs, check_padding
from specc.analysis.time_dataflow import trace_time_dataflow as follow
from specc.ir import loop_dependence, ops
from specc.ir.graph import Graph
from specc.ir.signature import Signature
from specc.ir.types import Interval

ROWS = 6
GRAPHS = 250


def iterate_effects(graph: Graph, seed: int) -> Iterator[tuple[int, int]]:
    """Yield all pairs (position of the output, token) where the token changes the position."""
    inputs, weights = sample_graph_values(graph, seed, ROWS)
    rng = np.random.default_rng(seed + 1)
    before = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
    for token in range(ROWS):
        x, keep = inputs["x"].copy(), inputs["keep"].copy()
        x[:, token] += rng.normal(size=x[:, token].shape) * 2
        keep[:, token] ^= rng.random() < 0.5
        used = {k: v for k, v in (("x", x), ("keep", keep)) if k in graph.inputs}
        after = specc_numpy.evaluate_graph(graph, used, weights)["y"]
        for row in range(ROWS):
            if not np.allclose(before[:, row], after[:, row], rtol=1e-9, atol=1e-12):
                yield row, token


def find_failure(seed: int, draw: Callable[[int], Graph] = make_random_graph) -> str:
    """Return how graph `seed` contradicts a proof; "" if it does not."""
    graph = draw(seed)
    proved = not check_causality(graph, "seq", "x", ["y"])
    state = follow(graph, "seq").get_state(graph.outputs["y"])
    for row, token in iterate_effects(graph, seed):
        if proved and token > row:
            return f"graph {seed} is proved causal, token {token} moves row {row}"
        if not (
            state.depends_on_all or state.is_last_position_only
        ) and row - token not in state.axes.get(1, Interval(1, 0)):
            return f"graph {seed}: token {token} moves row {row}, outside {state.axes}"
    return ""


@pytest.mark.parametrize("start", sample_sweep(range(0, GRAPHS, 25), stride=5))
def test_proofs_about_random_graphs_are_true(start: int) -> None:
    faults = [f for seed in range(start, start + 25) if (f := find_failure(seed))]
    assert not faults


@pytest.mark.parametrize(
    "many",
    [13, pytest.param(40, marks=pytest.mark.parity), pytest.param(2000, marks=pytest.mark.slow)],
)
def test_proofs_about_loops_over_another_axis_are_true(many: int) -> None:
    assert not [found for seed in range(many) if (found := find_failure(seed, make_loop_graph))]


@pytest.mark.parametrize(
    "many",
    [30, pytest.param(80, marks=pytest.mark.parity), pytest.param(2000, marks=pytest.mark.slow)],
)
def test_proofs_about_gathered_positions_are_true(many: int) -> None:
    assert not [found for seed in range(many) if (found := find_failure(seed, make_gather_graph))]
    proved = [
        not check_causality(make_gather_graph(seed), "seq", "x", ["y"]) for seed in range(many)
    ]
    assert many / 4 < sum(proved) < 3 * many / 4


@pytest.mark.parity
def test_most_causal_graphs_are_proved() -> None:
    proved = refused = needlessly = 0
    for seed in range(120):
        graph = make_random_graph(seed)
        if not check_causality(graph, "seq", "x", ["y"]):
            proved += 1
        elif any(token > row for row, token in iterate_effects(graph, seed)):
            refused += 1
        else:
            needlessly += 1
    assert proved > 30
    assert refused > 20
    assert needlessly < 25


@pytest.mark.parity
@pytest.mark.parametrize("draw", [make_random_graph, make_loop_graph, make_gather_graph])
def test_batch_elements_are_proved_and_are_independent(draw: Callable[[int], Graph]) -> None:
    for seed in range(40):
        graph = draw(seed)
        assert check_batch_independence(graph, "batch") == []
        inputs, weights = sample_graph_values(graph, seed, ROWS, batch=3)
        together = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
        for n in range(3):
            alone = specc_numpy.evaluate_graph(
                graph, {k: v[n : n + 1] for k, v in inputs.items()}, weights
            )["y"]
            np.testing.assert_allclose(together[n : n + 1], alone, rtol=1e-9, atol=1e-12)


SIDES = ("left", "right")
SHORT = [(make_random_graph, side, 60, 2) for side in SIDES]
PADDED = [
    pytest.param(draw, side, *numbers, marks=pytest.mark.parity)
    for side in SIDES
    for draw, *numbers in (
        (make_random_graph, 500, 20),
        (make_loop_graph, 150, 1),
        (make_gather_graph, 200, 10),
    )
]
LONG = [
    pytest.param(draw, side, 2000, 100, marks=pytest.mark.slow)
    for side in SIDES
    for draw in (make_random_graph, make_loop_graph)
]


@pytest.mark.parametrize(("draw", "side", "many", "least"), [*SHORT, *PADDED, *LONG])
def test_without_a_warning_padding_has_no_effect(
    draw: Callable[..., Graph], side: Literal["left", "right"], many: int, least: int
) -> None:
    """Each batch element runs alone and with random padding."""
    clean = 0
    for seed in range(many):
        graph = draw(seed, side)
        # like `check_padding`, without messages
        if graph.outputs["y"].node is None or can_padding_reach_outputs(graph, "keep", ["y"]):
            continue
        assert not check_padding(graph)
        clean += 1
        inputs, weights = sample_graph_values(graph, seed, ROWS)
        real = slice(2, None) if side == "left" else slice(0, ROWS - 2)
        keep = np.zeros((1, ROWS), bool)
        keep[:, real] = True
        alone = specc_numpy.evaluate_graph(
            graph, {"x": inputs["x"][:, real], "keep": keep[:, real]}, weights
        )["y"]
        padded = specc_numpy.evaluate_graph(graph, {"x": inputs["x"], "keep": keep}, weights)["y"]
        np.testing.assert_allclose(
            padded[:, real], alone, rtol=1e-9, atol=1e-12, err_msg=f"graph {seed}"
        )
    assert clean > least


def plant_mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Plant one of the mistakes that would make a proof false."""
    real = mask_bands.find_band_interval
    match name:
        case "conv reads nothing ahead":
            monkeypatch.setattr(
                ops.Conv, "get_offset_bounds", lambda self, n: (0, self.padding_before[n])
            )
        case "conv looks back one row too few":
            monkeypatch.setattr(
                ops.Conv,
                "get_offset_bounds",
                lambda self, n: (
                    self.padding_before[n] - self.get_window_extent(n),
                    self.padding_before[n] - 1,
                ),
            )
        case "delay is row for row":
            monkeypatch.setattr(ops.Delay, "signature", Signature.parse("a[*a t *b] -> a[*a t *b]"))
        case "a softmax is row for row":
            monkeypatch.setattr(
                ops.Softmax, "signature", Signature.parse("f[*a t *b] -> f[*a t *b]")
            )
        case "a running sum is row for row":
            monkeypatch.setattr(
                ops.CumSum, "signature", Signature.parse("n[*a t *b] -> n[*a t *b]")
            )
        case "every mask is causal":
            monkeypatch.setattr(
                time_dataflow,
                "find_nonzero_interval",
                lambda *at: real(*at) & Interval(0, float("inf")),
            )
        case "not is forgotten":
            monkeypatch.setattr(
                mask_bands, "NEGATED_COMPARISONS", {k: k for k in mask_bands.NEGATED_COMPARISONS}
            )


@pytest.mark.parametrize(
    ("name", "first_seed"),
    [
        ("conv reads nothing ahead", 0),
        ("conv looks back one row too few", 24),
        ("delay is row for row", 11),
        ("a softmax is row for row", 7),
        ("a running sum is row for row", 32),
        ("every mask is causal", 5),
        ("not is forgotten", 16),
    ],
)
def test_a_planted_mistake_is_detected(
    monkeypatch: pytest.MonkeyPatch, name: str, first_seed: int
) -> None:
    """`first_seed` detected the mistake before."""
    plant_mistake(monkeypatch, name)
    loop_dependence.find_op_dependences.cache_clear()
    found = any(find_failure(seed) for seed in (first_seed, *range(GRAPHS)))
    monkeypatch.undo()
    loop_dependence.find_op_dependences.cache_clear()
    assert found
