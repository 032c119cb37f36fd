"""Streams with strided windows: results of chunks equal the full pass.

Random graphs of causal strided convolutions, pools and slices, with attention and recurrent cells
on their results, in chunks of several sizes. The same test detects mistakes planted in the passes.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step
from support.parameter_sweeps import sample_sweep
from support.random_graphs import sample_graph_values
from support.random_strided_graphs import make_strided_graph

import specc_numpy
from specc.analysis import mask_bands, masked_constants
from specc.analysis import time_dataflow as flow_module
from specc.analysis.causality import check_causality
from specc.analysis.time_axis_prefix_and_chunks import (
    TimeAxisLayout,
    compute_chunk_size,
    count_positions_before_first_chunk,
    express_length_in_chunks,
)
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.incremental import demanded_positions
from specc.incremental.step_states import StepStateBuilder
from specc.ir.graph import Graph, Value
from specc.ir.ir_verifier import find_graph_errors

CHUNKS = 6
PLANS = ([6], [1] * 6, [2, 2, 2], [1, 5], [4, 1, 1])
GRAPHS = 120


def make_chunked_graph(graph: Graph) -> tuple[Graph, int]:
    """Return a graph in chunks, and the number of positions per chunk."""
    chunk = compute_chunk_size(graph, "seq", ["y"])
    return express_length_in_chunks(graph, "seq", chunk), chunk


def find_chunk_difference(seed: int) -> str:
    """Return how a stream differs from the full pass; "" if it does not or is rejected."""
    graph = make_strided_graph(seed)
    whole, chunk = make_chunked_graph(graph)
    if check_causality(whole, "seq", "x", ["y"], chunk):
        return ""
    inputs, weights = sample_graph_values(graph, seed, CHUNKS * chunk, batch=2)
    full = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
    derived_graphs = derive_encoder_and_step(whole, "x", {"y": "new"}, chunk=chunk)
    if faults := find_graph_errors(derived_graphs.step):
        return f"graph {seed}: {faults[0]}"
    per = full.shape[1] // CHUNKS
    for counts in PLANS:
        rows = [n * chunk for n in counts]
        got = [made["y"] for made in run_steps(derived_graphs, whole, inputs, weights, rows)]
        # Each step returns the positions of its chunks; together they are all positions.
        if [m.shape[1] for m in got] != [n * per for n in counts]:
            return f"graph {seed}, chunks of {chunk}, {counts}: rows of another step"
        made = np.concatenate(got, axis=1)
        same = made.shape == full.shape
        if not same or not np.allclose(made, full, rtol=1e-9, atol=1e-9):
            return f"graph {seed}, chunks of {chunk}, {counts}: differs"
    return ""


def find_leak(seed: int) -> str:
    """Return how graph `seed` contradicts a proof: a position that depends on input after its
    chunk, or outside the receptive field; "" if there is none.
    """
    graph = make_strided_graph(seed)
    whole, chunk = make_chunked_graph(graph)
    if check_causality(whole, "seq", "x", ["y"], chunk):
        return ""
    reach = trace_time_dataflow(whole, "seq", chunk).get_state(whole.outputs["y"]).axes[1]
    total = 3 * chunk
    inputs, weights = sample_graph_values(graph, seed, total)
    before = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
    parts = total // before.shape[1]
    for moved in range(total):
        other = {name: value.copy() for name, value in inputs.items()}
        other["x"][:, moved] += 2
        other["keep"][:, moved] ^= True
        after = specc_numpy.evaluate_graph(graph, other, weights)["y"]
        for row in range(before.shape[1]):
            same = np.allclose(before[:, row], after[:, row], rtol=1e-9, atol=1e-12)
            apart = (row + 1) * parts - 1 - moved
            if not same and (apart < 0 or apart not in reach):
                return f"graph {seed}: row {moved} moves row {row}, outside {reach}"
    return ""


@pytest.mark.parametrize("start", sample_sweep(range(0, GRAPHS, 30)))
def test_chunks_equal_the_full_pass(start: int) -> None:
    assert not [f for seed in range(start, start + 30) if (f := find_chunk_difference(seed))]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(GRAPHS, GRAPHS + 4000, 250))
def test_chunks_of_thousands_of_graphs_equal_the_full_pass(start: int) -> None:
    assert not [f for seed in range(start, start + 250) if (f := find_chunk_difference(seed))]


@pytest.mark.parametrize(
    "many",
    [20, pytest.param(60, marks=pytest.mark.parity), pytest.param(2000, marks=pytest.mark.slow)],
)
def test_proofs_about_strides_are_true(many: int) -> None:
    assert not [f for seed in range(many) if (f := find_leak(seed))]


@pytest.mark.parity
def test_most_strided_graphs_are_proved() -> None:
    taken = [s for s in range(GRAPHS) if not _is_refused(s)]
    wide = [s for s in taken if make_chunked_graph(make_strided_graph(s))[1] > 3]
    assert len(taken) > GRAPHS / 3
    assert len(wide) > GRAPHS / 10


def _is_refused(seed: int) -> bool:
    whole, chunk = make_chunked_graph(make_strided_graph(seed))
    return bool(check_causality(whole, "seq", "x", ["y"], chunk))


def _number_by_arrival(self: StepStateBuilder, need: float, track: TimeAxisLayout) -> Value:
    return FIRST_ROW(self, need, replace(track, rate=1))


FIRST_ROW = StepStateBuilder.build_first_position_id
MISTAKES: dict[str, tuple[object, str, object]] = {
    "windows look at nothing behind them": (
        demanded_positions,
        "_count_window_inputs",
        lambda node, link, need, clock: max(need, 0.0) * link.stride,
    ),
    "rows are asked for that are no whole windows": (
        demanded_positions,
        "_count_window_inputs",
        lambda node, link, need, clock: max(need, 0.0) * link.stride + link.max_offset,
    ),
    "what is kept is no whole chunks": (
        demanded_positions,
        "round_demand_to_chunks",
        lambda need, track: need + (need > 0),
    ),
    "slow rows are numbered as those that come in": (
        StepStateBuilder,
        "build_first_position_id",
        _number_by_arrival,
    ),
    "a row stands behind its chunk": (
        flow_module,
        "resolve_strided_read",
        lambda node, link, clock: (
            link.result_axis,
            link.offsets.shift(
                (count_positions_before_first_chunk(node, link, clock) or 0) + link.stride
            ),
        ),
    ),
    "rows of a head are no rows": (
        demanded_positions,
        "count_positions_before_first_chunk",
        lambda *_: 0,
    ),
    "all rows come at one pace": (
        masked_constants,
        "has_equal_downsampling_rates",
        lambda *_: True,
    ),
}


FIRST_SEEDS = {"a row stands behind its chunk": 22, "all rows come at one pace": 146}
"""Seeds that detect a mistake after many that do not; they are tried first."""


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES]))
def test_planted_mistakes_are_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    if mistake == "all rows come at one pace":
        monkeypatch.setattr(mask_bands, "has_equal_downsampling_rates", wrong)
    for cached in (
        trace_time_dataflow,
        masked_constants.find_masked_constants,
        mask_bands.find_mask_band,
    ):
        cached.cache_clear()
    found = ""
    for seed in (FIRST_SEEDS.get(mistake, 0), *range(400)):
        try:
            found = find_chunk_difference(seed)
        except Exception as error:
            found = type(error).__name__
        if found:
            break
    for cached in (
        trace_time_dataflow,
        masked_constants.find_masked_constants,
        mask_bands.find_mask_band,
    ):
        cached.cache_clear()
    assert found, mistake
