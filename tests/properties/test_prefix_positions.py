"""Prefix positions before the time axis: proofs about them are true, steps equal the full pass, and
prefix positions never change.

Random graphs with random prefixes (`support.random_prefix_graphs`). Time is counted from the end of
the prefix of the result. The same tests detect mistakes planted in the passes.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from support.decode_steps import run_encoder_graph, run_steps
from support.derived_graphs import derive_encoder_and_step
from support.parameter_sweeps import sample_sweep
from support.random_graphs import BATCH, SEQ, WIDTH
from support.random_loop_graphs import make_prefix_loop_graph
from support.random_prefix_graphs import (
    MEMORY,
    PrefixGraphBuilder,
    count_prefix_positions,
    make_prefix_graph,
    sample_prefix_values,
)

import specc_numpy
from specc.analysis import affine_indices, mask_bands, time_dataflow
from specc.analysis.attention_matrices import AttentionMatrix
from specc.analysis.causality import check_causality
from specc.analysis.masked_constants import find_masked_constants
from specc.analysis.padding_check import can_padding_reach_outputs, check_padding
from specc.analysis.padding_offsets import find_padding_offsets
from specc.analysis.time_dataflow import trace_time_dataflow as follow
from specc.incremental import encoder_graph, step_graph
from specc.incremental.step_graph import build_encoder_and_step_graphs, derive_step_graph
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Node, Value
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.loop_dependence import find_dependences
from specc.ir.model_definition import DerivedGraphs
from specc.ir.types import Interval, Type

ROWS = 6
GRAPHS = 30
PLANS = ([6], [1] * 6, [2, 2, 1, 1], [3, 3], [4, 1, 1], [1, 5])
MEMORIES = (1, 3)


def find_leak(graph: Graph, seed: int) -> str:
    """Return positions that change although a proof excludes it; "" if there are none."""
    proved = not check_causality(graph, "seq", "x", ["y"])
    state = follow(graph, "seq").get_state(graph.outputs["y"])
    for memory in MEMORIES:
        inputs, weights = sample_prefix_values(graph, seed, ROWS, memory)
        head = count_prefix_positions(graph, memory)
        before = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
        rng = np.random.default_rng(seed + 1)
        for token in range(ROWS):
            moved = {n: v.copy() for n, v in inputs.items()}
            if "x" in moved:
                moved["x"][:, token] += rng.normal(size=3) * 2
            if "keep" in moved:
                moved["keep"][:, token] ^= rng.random() < 0.5
            after = specc_numpy.evaluate_graph(graph, moved, weights)["y"]
            for row in range(before.shape[1]):
                if np.allclose(before[:, row], after[:, row], rtol=1e-9, atol=1e-12):
                    continue
                time = row - head
                if proved and token > time:
                    return f"graph {seed} is proved, token {token} moves row {time}"
                reach = state.axes.get(1, Interval(1, 0))
                if proved and time - token not in reach:
                    return f"graph {seed}: token {token} moves row {time}, not in {reach}"
    return ""


def find_step_difference(seed: int, draw: Callable[[int], Graph] = make_prefix_graph) -> str:
    """Return how the steps of graph `seed` differ from its full pass; "" if they do not or the
    graph is rejected.
    """
    graph = draw(seed)
    if "x" not in graph.inputs or check_causality(graph, "seq", "x", ["y"]):
        return ""
    for rows in ("new", "newest"):
        derived_graphs = derive_encoder_and_step(graph, "x", {"y": rows}, begins="y")
        made = [derived_graphs.step, *([derived_graphs.encode] if derived_graphs.encode else [])]
        if faults := [f for each in made for f in find_graph_errors(each)]:
            return f"graph {seed}: {faults[0]}"
        for memory in MEMORIES:
            if fault := _find_unequal(graph, derived_graphs, seed, memory, rows):
                return f"graph {seed}, memory {memory}: {fault}"
    return ""


def _find_unequal(
    graph: Graph, derived_graphs: DerivedGraphs, seed: int, memory: int, rows: str
) -> str:
    inputs, weights = sample_prefix_values(graph, seed, ROWS, memory, batch=2)
    inputs.setdefault("x", np.zeros((2, ROWS, 3)))
    used = {n: v for n, v in inputs.items() if n in graph.inputs}
    head, every = (
        count_prefix_positions(graph, memory),
        specc_numpy.evaluate_graph(graph, used, weights)["y"],
    )
    full = every[:, head:]
    if derived_graphs.initial_logits_output:
        first = run_encoder_graph(derived_graphs, inputs, weights)[
            derived_graphs.initial_logits_output
        ]
        if not np.allclose(first, every[:, head - 1 : head], rtol=1e-9, atol=1e-9):
            return "the row behind which nothing has grown differs"
    for counts in PLANS:
        ends = np.cumsum(counts)
        want = (
            np.split(full, ends[:-1], axis=1)
            if rows == "new"
            else [full[:, e - 1 : e] for e in ends]
        )
        got = [made["y"] for made in run_steps(derived_graphs, graph, inputs, weights, counts)]
        for turn, (a, b) in enumerate(zip(got, want, strict=True)):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-9, atol=1e-9):
                return f"rows {rows}, steps {counts}: step {turn} differs"
    return ""


def clear_caches() -> None:
    """Clear all caches of proofs."""
    mask_bands.find_mask_band.cache_clear()
    find_masked_constants.cache_clear()


def find_first_failure(seeds: range) -> str:
    """Return the first failing graph; an exception in a pass counts as failure."""
    for seed in seeds:
        try:
            fault = find_leak(make_prefix_graph(seed), seed) or find_step_difference(seed)
        except Exception as error:
            fault = f"graph {seed}: {type(error).__name__}: {error}"
        if fault:
            return fault
    return ""


@pytest.mark.parametrize("start", sample_sweep(range(0, GRAPHS, 10)))
def test_proofs_about_graphs_with_prefixes_are_true(start: int) -> None:
    seeds = range(start, start + 10)
    assert not [f for s in seeds if (f := find_leak(make_prefix_graph(s), s))]


@pytest.mark.parametrize("start", sample_sweep(range(0, GRAPHS, 10)))
def test_steps_of_graphs_with_prefixes_equal_the_full_pass(start: int) -> None:
    assert not [f for seed in range(start, start + 10) if (f := find_step_difference(seed))]


@pytest.mark.parametrize(
    "many",
    [8, pytest.param(25, marks=pytest.mark.parity), pytest.param(1000, marks=pytest.mark.slow)],
)
def test_steps_of_loops_with_prefixes_equal_the_full_pass(many: int) -> None:
    """Their states start with values of prefix positions in each iteration."""
    graphs = ((s, make_prefix_loop_graph(s)) for s in range(many))
    assert not [f for s, graph in graphs if (f := find_leak(graph, s))]
    seeds = range(many)
    assert not [f for s in seeds if (f := find_step_difference(s, make_prefix_loop_graph))]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(GRAPHS, GRAPHS + 2400, 200))
def test_thousands_of_graphs_with_prefixes(start: int) -> None:
    seeds = range(start, start + 200)
    assert not [
        f for s in seeds if (f := find_leak(make_prefix_graph(s), s) or find_step_difference(s))
    ]


def test_the_initial_result_of_an_empty_sequence_reads_its_position_only() -> None:
    """Most graphs with prefixes have such a position, and contractions for it read it alone."""
    seen = alone = 0
    for seed in range(20):
        graph = make_prefix_graph(seed)
        if "x" not in graph.inputs or check_causality(graph, "seq", "x", ["y"]):
            continue
        derived_graphs = derive_encoder_and_step(graph, "x", {"y": "newest"}, begins="y")
        head = graph.outputs["y"].type.shape[1] - SEQ
        sure = bool(head.number) or (head.number is None and bool(head.terms[0][1]))
        assert bool(derived_graphs.initial_logits_output) <= sure
        if not derived_graphs.initial_logits_output or not derived_graphs.encode:
            continue
        seen += 1
        plain = derive_encoder_and_step(graph, "x", {"y": "newest"})
        known = {n for n, _ in plain.encode.nodes} if plain.encode else set()
        more = [
            r
            for n, r in derived_graphs.encode.nodes
            if n not in known and n.op.is_compute_intensive
        ]
        alone += any(r[0].type.shape[1] == 1 for r in more if r[0].type.rank > 1)
    assert seen > 3, seen
    assert alone > 2, alone


@pytest.mark.parity
def test_most_graphs_are_proved() -> None:
    refused = [s for s in range(GRAPHS) if check_causality(make_prefix_graph(s), "seq", "x", ["y"])]
    assert len(refused) < GRAPHS * 0.8


@pytest.mark.parity
def test_initial_states_equal_prefix_positions_of_full_passes() -> None:
    seen = 0
    for seed in range(40):
        graph = make_prefix_graph(seed)
        if "x" not in graph.inputs or check_causality(graph, "seq", "x", ["y"]):
            continue
        half = derive_step_graph(graph, "x", {"y": "new"})
        kept = {n: f for n, f in half.initial_values.items() if f.axis is not None and not f.is_sum}
        made = build_encoder_and_step_graphs(half).encode
        if made is None or not kept:
            continue
        whole = replace(graph, outputs={n: f.value for n, f in kept.items()})
        for rows in (1, 4):
            inputs, weights = sample_prefix_values(graph, seed, rows, 3)
            given = {n: inputs[n][:, :0] if n == "x" else inputs[n] for n in made.inputs}
            own = {n: weights[n] for n in made.parameters}
            first = specc_numpy.evaluate_graph(made, given, own)
            every = specc_numpy.evaluate_graph(whole, inputs, weights)
            for name, start in kept.items():
                assert start.axis is not None
                count = every[name].shape[start.axis] - rows
                least = max(count - int(min(start.max_positions, count)), 0)
                want = np.take(every[name], range(least, count), start.axis)
                np.testing.assert_allclose(first[name], want, rtol=1e-11, atol=1e-11)
                seen += 1
    assert seen > 5


@pytest.mark.parametrize(
    "many",
    [15, pytest.param(70, marks=pytest.mark.parity), pytest.param(2000, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_without_a_warning_padding_after_a_prefix_has_no_effect(
    side: Literal["left", "right"], many: int
) -> None:
    """Each batch element runs alone and with random padding."""
    clean = 0
    for seed in range(many):
        graph = make_prefix_graph(seed, side)
        if "keep" not in graph.inputs or can_padding_reach_outputs(graph, "keep", ["y"]):
            continue
        assert not check_padding(graph)
        inputs, weights = sample_prefix_values(graph, seed, ROWS, 2)
        if "keep" not in inputs:
            continue
        clean += 1
        real = slice(2, None) if side == "left" else slice(0, ROWS - 2)
        inputs["keep"] = np.zeros((1, ROWS), bool)
        inputs["keep"][:, real] = True
        grown = [n for n in ("x", "keep") if n in inputs]
        short = {n: v[:, real] if n in grown else v for n, v in inputs.items()}
        alone = specc_numpy.evaluate_graph(graph, short, weights)["y"]
        padded = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
        places = find_padding_offsets(graph, graph.inputs["keep"], side)
        length = graph.outputs["y"].type.shape[1]
        before = places.offsets[length].evaluate({"mem": 2})
        behind = places.count_appended_positions(length).evaluate({"mem": 2})
        there = np.pad(inputs["keep"], [(0, 0), (before, behind)], constant_values=True)
        np.testing.assert_allclose(
            padded[there], alone[0], rtol=1e-9, atol=1e-12, err_msg=f"graph {seed}"
        )
    assert clean > many // 20


def test_nested_prefixes_and_removed_prefixes_change_no_step() -> None:
    """`concat` followed by `slice` of the added positions gives the same step."""
    for head in (Dim.from_value(2), MEMORY):
        texts = []
        for detour in (False, True):
            drawn = PrefixGraphBuilder(random.Random(0))
            x = drawn.build.add_input("x", Input(Type.of("f64", BATCH, SEQ, WIDTH)))
            drawn.build.add_input("memory", Input(Type.of("f64", BATCH, MEMORY, WIDTH)))
            rows = drawn.get_prefix(head)
            weight = drawn.weight(WIDTH, WIDTH)
            if detour:
                x = drawn.one(ops.Concat(1), rows, x)
                x = drawn.one(ops.Slice(1, head, head + SEQ), x)
            y = drawn.one(ops.CumSum(1), drawn.one(ops.Linear(), x, weight, None))
            graph = drawn.build.build_graph("g", {"y": drawn.one(ops.Delay(1, 1, 0.0), y)})
            texts.append(format_ir(derive_encoder_and_step(graph, "x", {"y": "new"}).step))
        assert texts[0] == texts[1]


def _use_times_as_indices(query_key: AttentionMatrix) -> affine_indices.AffineIndex | None:
    """Mutation: uses times instead of indices."""
    if (query_key.query_axis, query_key.key_axis) == (0, None):
        return affine_indices.AffineIndex(query_coefficient=affine_indices.ONE)
    return (
        affine_indices.AffineIndex(key_coefficient=affine_indices.ONE)
        if query_key.key_axis == 0
        else None
    )


def _read_wrong_end(
    self: encoder_graph.EncoderGraphBuilder, first: encoder_graph.InitialStateValue
) -> Value:
    """Mutation: reads the initial state at the wrong end."""
    value, axis = self.new_values[first.value], first.axis
    if axis is None or first.is_sum:
        return OUTPUT(self, first)
    rows = value.type.shape[axis]
    kept = self._limit_length(rows, 1)
    short = self.builder.add_op(ops.Slice(axis, Dim.from_value(0), kept), value)
    return self.builder.add_op(ops.Concat(axis), *[short] * (rows.number or 1))


def _ignore_dependents(node: Node, *results: Any) -> list[Dependence]:
    """Mutation: treats positions that others depend on as positions that depend on
    themselves only.
    """
    kinds = {} if results else {"window": "same"}
    return [replace(k, kind=kinds.get(k.kind, k.kind)) for k in find_dependences(node, *results)]


OUTPUT, SPLICED = (
    encoder_graph.EncoderGraphBuilder.build_output,
    time_dataflow.resolve_concat_or_slice_read,
)
FROM = {
    "a row alone is made of its own rows where it reads others": 30,
    "row numbers do not begin behind the head": 30,
    "lengths in masks are taken for 0": 30,
    "only the side of the queries is looked at": 200,
}
MISTAKES: dict[str, tuple[object, str, object]] = {
    "row numbers do not begin behind the head": (
        affine_indices,
        "_match_position_id",
        _use_times_as_indices,
    ),
    "lengths in masks are taken for 0": (
        affine_indices,
        "convert_length_to_affine_index",
        lambda length: affine_indices.AffineIndex(),
    ),
    "only the side of the queries is looked at": (
        mask_bands,
        "_intersect_sides",
        lambda keys, queries: queries,
    ),
    "a head on the keys' side hides everything": (
        mask_bands,
        "_intersect_sides",
        lambda keys, queries: Interval(max(keys.low, 0), queries.high),
    ),
    "a row alone is made of its own rows where it reads others": (
        encoder_graph,
        "find_dependences",
        _ignore_dependents,
    ),
    "states begin as the first rows of the head": (
        encoder_graph.EncoderGraphBuilder,
        "build_output",
        _read_wrong_end,
    ),
    "nobody tells the length of a memory": (
        step_graph,
        "add_shape_only_inputs",
        lambda graph, *_: graph,
    ),
    "rows behind what grows stay where they are": (
        time_dataflow,
        "resolve_concat_or_slice_read",
        lambda node, link, clock: (
            (link.operand_axis, Interval(0, 0))
            if isinstance(node.op, ops.Concat)
            else SPLICED(node, link, clock)
        ),
    ),
}


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES]))
def test_planted_mistakes_are_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    clear_caches()
    # One to ten of a hundred graphs detect a mistake: try those near the first one that does.
    start = FROM.get(mistake, 0)
    found = find_first_failure(range(start, start + 30))
    monkeypatch.undo()
    clear_caches()
    assert found, mistake
