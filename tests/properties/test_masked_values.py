"""Values at masked positions of score matrices are the proved constants, and a reduction that is
proved to ignore them does not change when more positions are masked out.
"""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.random_graphs import BATCH, SEQ, WIDTH, RandomGraphBuilder, sample_graph_values
from support.random_key_reductions import KEY, QUERY, add_key_reduction

import specc_numpy
from specc.analysis import masked_constants as module
from specc.analysis import masked_reductions as skipping
from specc.analysis import query_key_products
from specc.analysis.masked_constants import find_masked_constants
from specc.analysis.masked_reductions import find_visible_keys
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.graph import Graph, Input, Value, collect_required_nodes
from specc.ir.loop_dependence import find_dependences
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, Type

Wanted = Callable[[Graph], Iterator[Value]]
ROWS = 6
GRAPHS = 20
MANY = pytest.mark.parametrize(
    "many",
    [7, pytest.param(GRAPHS, marks=pytest.mark.parity), pytest.param(300, marks=pytest.mark.slow)],
)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class MaskedGridBuilder(RandomGraphBuilder):
    """Masks in which a position always attends to itself: a fully masked row has no finite values."""

    def mask(self, depth: int = 0) -> Value:
        x = self.streams[0]
        i, j = self.get_position_ids(x, 1), self.get_position_ids(x, 0)
        drawn = super().mask(depth)
        if self.rng.random() < 0.7:
            before = self.one(ops.Compare("le"), j, i)
            drawn = self.one(ops.And(), drawn, before)
        return self.one(ops.Or(), drawn, self.one(ops.Compare("eq"), i, j))


def make_reduction_graph(seed: int, wanted: Wanted) -> Graph:
    """Return two random reductions over keys; outputs are the values in `wanted` that have no leak."""
    drawn = MaskedGridBuilder(random.Random(seed))
    type = Type.of("f64", BATCH, SEQ, WIDTH)
    drawn.streams.append(drawn.build.add_input("x", Input(type)))
    drawn.build.add_input("keep", Input(Type.of("bool", BATCH, SEQ), padding_side="any"))
    for _ in range(2):
        drawn.streams.append(add_key_reduction(drawn, drawn.stream(), drawn.stream()))
    graph = drawn.build.build_graph("grids", {"y": drawn.streams[-1]})
    leaks = {leak.node for leak in trace_time_dataflow(graph, "seq").violations}
    sound = (v for v in wanted(graph) if not leaks & collect_required_nodes([v]))
    found = {f"v{n}": v for n, v in enumerate(sound)}
    return drawn.build.build_graph("grids", found)


def run(graph: Graph, seed: int, rows: int) -> dict[str, np.ndarray]:
    inputs, weights = sample_graph_values(graph, seed, ROWS)
    cut = {n: v[:, :rows] for n, v in inputs.items() if n in graph.inputs}
    return specc_numpy.evaluate_graph(graph, cut, weights)


def iterate_grids(graph: Graph) -> Iterator[Value]:
    """Return all score matrices [batch q k] with a proved fact."""
    for _, results in graph.nodes:
        for value in results:
            if value.type.shape[1:] == (SEQ, SEQ) and len(value.type.shape) == 3:
                yield value


def find_false_fact(seed: int) -> Iterator[str]:
    """Return false facts about score matrices."""
    graph = make_reduction_graph(seed, iterate_grids)
    found = run(graph, seed, ROWS)
    apart = np.subtract.outer(np.arange(ROWS), np.arange(ROWS))
    for name, value in graph.outputs.items():
        for number, reach in find_masked_constants(value, QUERY, KEY).items():
            outside = ~((apart >= reach.low) & (apart <= reach.high))
            if (found[name][:, outside] != number).any():
                assert value.node
                yield f"grid {seed}: {value.node.op} is not {number} outside {reach}"


def list_reductions(graph: Graph) -> Iterator[Value]:
    """Return the reductions over keys that are proved to ignore later keys."""
    for node, results in graph.nodes:
        for link in find_dependences(node, results):
            if _skips(graph, link, node.args[link.operand]):
                for _, reach in find_visible_keys(node, link):
                    if reach.low >= 0 and results[0].type.rank < 3:
                        yield results[0]


def _skips(graph: Graph, link: Dependence, x: Value | None) -> bool:
    return link.kind == "all" and x is not None and x.type.shape[1:] == (SEQ, SEQ)


def find_changed_reduction(seed: int) -> Iterator[str]:
    """Return the reductions over keys that change with one more key."""
    graph = make_reduction_graph(seed, list_reductions)
    before, after = run(graph, seed, ROWS - 1), run(graph, seed, ROWS)
    for name, value in graph.outputs.items():
        a, b = before[name], after[name][:, : ROWS - 1]
        if a.shape == b.shape and not np.allclose(a, b, rtol=1e-9, equal_nan=True):
            assert value.node
            yield f"graph {seed}: {value.node.op} changes"


@MANY
def test_masked_entries_have_the_proved_value(many: int) -> None:
    assert [f for seed in range(many) for f in find_false_fact(seed)] == []


@MANY
def test_a_reduction_that_ignores_masked_keys_is_unchanged_by_more_of_them(many: int) -> None:
    assert [f for seed in range(many) for f in find_changed_reduction(seed)] == []


@pytest.mark.parity
def test_most_score_matrices_have_a_proved_fact() -> None:
    known = read = 0
    for seed in range(15):
        for value in make_reduction_graph(seed, iterate_grids).outputs.values():
            found = find_masked_constants(value, QUERY, KEY)
            known += any(i not in (FULL_INTERVAL, EMPTY_INTERVAL) for i in found.values())
        read += len(make_reduction_graph(seed, list_reductions).outputs)
    assert known > 50
    assert read > 8


MISTAKES: dict[str, tuple[object, str, object]] = {
    "infinity absorbs all": (module, "fold_absorbing_constant", lambda fn, n, least, turned: n),
    "an exponential leaves numbers": (query_key_products.EXACT_UNARY_FUNCTIONS, "exp", lambda x: x),
    "zeros sort last": (module, "is_sorted_last", lambda node, number: True),
    "a rank is a key": (module, "compute_argsort_interval", lambda reach: reach),
    "either side hides": (
        module,
        "intersect_masked_constants",
        lambda f: {n: EMPTY_INTERVAL for p in f for n in p},
    ),
    "anything counts for nothing": (skipping, "_is_neutral_number", lambda node, number: True),
}


FIRST_SEEDS = {
    "infinity absorbs all": 1,
    "an exponential leaves numbers": 9,
    "zeros sort last": 21,
    "a rank is a key": 4,
    "either side hides": 0,
    "anything counts for nothing": 3,
}
"""The first seed to try: it detected the mistake before."""


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES]))
def test_a_planted_mistake_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    if isinstance(place, dict):
        monkeypatch.setitem(place, name, wrong)
    elif name == "is_sorted_last":
        for here in (module, skipping):
            monkeypatch.setattr(here, name, wrong)
    else:
        monkeypatch.setattr(place, name, wrong)
    find_masked_constants.cache_clear()
    seeds = [FIRST_SEEDS[mistake], *range(200)]
    found = any(
        f for seed in seeds for f in (*find_false_fact(seed), *find_changed_reduction(seed))
    )
    monkeypatch.undo()
    find_masked_constants.cache_clear()
    assert found
