"""Reductions over keys, sorts and sparse attention weights that are proved independent of padding:
each sequence with random padding on either side gives its results alone.
"""

import random
from typing import Literal

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.random_graphs import BATCH, SEQ, WIDTH, RandomGraphBuilder, sample_graph_values
from support.random_key_reductions import add_key_reduction

import specc_numpy
from specc.analysis import (
    padding_check,
    padding_constants,
    padding_dataflow,
    padding_order_and_windows,
    padding_safe_ops,
    padding_zeros,
)
from specc.ir import ops
from specc.ir.graph import Graph, Input, Value
from specc.ir.types import Type

ROWS, GRAPHS = 6, 80
Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class PaddingMaskBuilder(RandomGraphBuilder):
    """Masks that mostly hide padding."""

    def mask(self, depth: int = 0) -> Value:
        drawn = super().mask(depth + 1)
        kind = self.rng.random()
        if depth > 1 or kind < 0.15:
            return drawn
        keep = self.one(ops.Insert(1), self.build.inputs["keep"])
        x = self.streams[0]
        before = self.one(
            ops.Compare("le"), self.get_position_ids(x, 0), self.get_position_ids(x, 1)
        )
        if kind < 0.5:
            return keep
        drawn = keep if kind < 0.7 else self.one(ops.And(), drawn, keep)
        return self.one(ops.And(), drawn, before)


def make_reduction_graph(seed: int, side: Side) -> Graph:
    drawn = PaddingMaskBuilder(random.Random(seed))
    type = Type.of("f64", BATCH, SEQ, WIDTH)
    drawn.streams.append(drawn.build.add_input("x", Input(type)))
    drawn.build.add_input("keep", Input(Type.of("bool", BATCH, SEQ), padding_side=side))
    for _ in range(drawn.rng.randint(1, 2)):
        drawn.streams.append(add_key_reduction(drawn, drawn.stream(), drawn.stream()))
    return drawn.build.build_graph("keys", {"y": drawn.streams[-1]})


def find_padding_effect(seed: int, side: Side) -> str | None:
    """Return the effect of padding where it is proved to have none; None if there is no proof."""
    graph = make_reduction_graph(seed, side)
    if padding_check.check_padding(graph):
        return None
    inputs, weights = sample_graph_values(graph, seed, ROWS)
    real = slice(2, None) if side == "left" else slice(0, ROWS - 2)
    keep = np.zeros((1, ROWS), bool)
    keep[:, real] = True
    whole = {"x": inputs["x"], "keep": keep}
    there = {name: value[:, real] for name, value in whole.items()}
    alone = specc_numpy.evaluate_graph(graph, there, weights)["y"]
    found = specc_numpy.evaluate_graph(graph, whole, weights)["y"][:, real]
    same = np.allclose(found, alone, rtol=1e-9, atol=1e-12, equal_nan=True)
    return "" if same else f"graph {seed}: padding on the {side} shows"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "many",
    [
        GRAPHS // 2,
        pytest.param(GRAPHS, marks=pytest.mark.parity),
        pytest.param(1500, marks=pytest.mark.slow),
    ],
)
def test_results_proved_independent_of_padding_equal_those_alone(side: Side, many: int) -> None:
    found = [find_padding_effect(seed, side) for seed in range(many)]
    assert [f for f in found if f] == []
    assert found.count("") > 15 * many // GRAPHS


MISTAKES: dict[str, tuple[object, str, object]] = {
    "ranks beside rows": (padding_dataflow, "mixes_sorted_axes", lambda padded_result: False),
    "rows counted as ranks": (
        padding_dataflow,
        "_collect_padding_counts",
        lambda s: [{} for _ in s.operand_facts],
    ),
    "whatever is sorted last": (
        padding_order_and_windows,
        "is_sorted_last",
        lambda node, number: True,
    ),
    "sorts are clean": (padding_safe_ops, "_is_neutral_full_use", lambda use: True),
    "zero whatever it meets": (
        padding_constants,
        "fold_absorbing_constant",
        lambda fn, n, least, turned: 0.0,
    ),
    "all is held": (
        padding_zeros,
        "infer_padding_values",
        lambda padded_result: dict.fromkeys(padded_result.find_inherited_padded_axes(), 0.0),
    ),
}


FIRST_SEEDS = {
    "ranks beside rows": 55,
    "rows counted as ranks": 138,
    "whatever is sorted last": 98,
    "zero whatever it meets": 83,
    "all is held": 28,
}
"""Seeds that detect a mistake after many that do not; they are tried first."""


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES]))
def test_a_planted_mistake_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    seeds = (FIRST_SEEDS.get(mistake, 0), *range(400))
    assert any(find_padding_effect(seed, side) for seed in seeds for side in SIDES)
