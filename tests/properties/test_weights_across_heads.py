"""Attention weights rearranged or mixed along their heads axis: causality is proved if the weights
are masked, proofs are true, and steps equal the full pass.

Random chains of ops over the heads of weights [batch, heads, query, key]: views, products,
reductions, sorts, and elementwise ops.
"""

import random
from collections.abc import Iterator

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step
from support.random_graphs import BATCH, SEQ, WIDTH, RandomGraphBuilder

import specc_numpy
from specc.analysis import attention_matrices, query_key_products
from specc.analysis.causality import check_causality
from specc.analysis.mask_bands import find_mask_band
from specc.analysis.masked_constants import find_masked_constants
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value
from specc.ir.types import Type

ROWS, HEADS = 5, 4
MANY = pytest.mark.parametrize("many", [60, pytest.param(2000, marks=pytest.mark.slow)])
D = Dim.from_value


class HeadWeightsBuilder(RandomGraphBuilder):
    """A builder of weights over heads; `order` is the order of the axes batch, heads, query and
    key.
    """

    def combine_masks(self, masked: str) -> Value:
        """Return weights [batch, heads, query, key] with one of the mask types."""
        (x,) = self.streams
        q = self.one(
            ops.Split(2, (D(HEADS), D(2))),
            self.one(ops.Linear(), x, self.weight(2 * HEADS, WIDTH), None),
        )
        q = self.one(ops.Transpose((0, 2, 1, 3)), q)
        causal = self.one(
            ops.Compare("le"), self.get_position_ids(x, 0), self.get_position_ids(x, 1)
        )
        if masked == "attend":
            mask = self.one(ops.Insert(0), self.one(ops.Insert(0), causal))
            return self.all(ops.Attend(0.7), q, q, q, mask)[1]
        scores = self.one(ops.Einsum("b h i d, b h j d -> b h i j"), q, q)
        low = self.one(ops.Constant(-np.inf if masked == "softmax" else 0.0, "f64"))
        if masked == "nothing":
            return self.one(ops.Softmax(3), scores)
        scores = self.one(ops.Where(), causal, scores, low)
        return self.one(ops.Softmax(3), scores) if masked == "softmax" else scores

    def heads(self, w: Value) -> int:
        """Return the number of heads."""
        number = w.type.shape[1].number
        assert number is not None
        return number

    def change(self, w: Value) -> Value:
        """Change the weights along heads; the axes [batch, heads, query, key] stay."""
        heads = self.heads(w)
        half = heads // 2
        match self.rng.choice([*CHANGES]):
            case "split" if heads % 2 == 0:
                apart = self.one(ops.Split(1, (D(half), D(2))), w)
                return self.one(ops.Index(self.rng.choice([1, 2]), D(0)), apart)
            case "merge" if heads % 2 == 0:
                apart = self.one(ops.Split(1, (D(2), D(half))), w)
                turned = self.one(ops.Transpose((0, 2, 1, 3, 4)), apart)
                return self.one(ops.Merge(1, 2), turned)
            case "slice" if heads > 1:
                return self.one(ops.Slice(1, D(0), D(half)), w)
            case "stride":
                return self.one(ops.StridedSlice(1, D(0), w.type.shape[1], D(2)), w)
            case "difference" if heads % 2 == 0:
                one = self.one(ops.Slice(1, D(0), D(half)), w)
                other = self.one(ops.Slice(1, D(half), D(heads)), w)
                scaled = self.one(ops.Arith("mul"), other, self.weight(half, 1, 1))
                return self.one(ops.Arith("sub"), one, scaled)
            case "einsum":
                return self.one(ops.Einsum("b h i j, h g -> b g i j"), w, self.weight(heads, 3))
            case "einsum of two":
                return self.one(
                    ops.Einsum("b h i j, b g i j, h g f -> b f i j"),
                    w,
                    w,
                    self.weight(heads, heads, 2),
                )
            case "linear":
                last = self.one(ops.Transpose((0, 2, 3, 1)), w)
                mixed = self.one(ops.Linear(), last, self.weight(3, heads), None)
                return self.one(ops.Transpose((0, 3, 1, 2)), mixed)
            case "matmul":
                last = self.one(ops.Transpose((0, 2, 3, 1)), w)
                mixed = self.one(ops.MatMul(), last, self.weight(heads, 2))
                return self.one(ops.Transpose((0, 3, 1, 2)), mixed)
            case "matmul of merged":
                # the weights as the right operand: [batch, query, heads, key]
                right = self.one(ops.Transpose((0, 2, 1, 3)), w)
                mixed = self.one(ops.MatMul(), self.weight(2, heads), right)
                return self.one(ops.Transpose((0, 2, 1, 3)), mixed)
            case "conv":
                op = ops.Conv((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
                return self.one(op, w, self.weight(3, heads, 1, 1), None)
            case "flip":
                return self.one(ops.Flip(1), w)
            case "roll":
                return self.one(ops.Roll(1, D(1)), w)
            case "topk":
                return self.all(ops.TopK(1, D(min(heads, 2)), True), w)[0]
            case "sort":
                return self.all(ops.Sort(1, descending=self.rng.random() < 0.5), w)[0]
            case "gather":
                ids = [self.number(self.rng.randrange(heads)) for _ in range(2)]
                order = self.one(ops.Concat(0), *(self.one(ops.Insert(0), n) for n in ids))
                each = self.one(ops.Expand(0, BATCH), self.one(ops.Insert(0), order))
                return self.one(ops.Gather(1), w, each)
            case "last":
                return self.one(ops.Insert(1), self.one(ops.Last(1), w))
            case "pad":
                return self.one(ops.Pad(1, D(1), D(0)), w)
            case "delay":
                return self.one(ops.Delay(1, 1, 0.0), w)
            case "cumsum":
                return self.one(ops.CumSum(1), w)
            case "max":
                return self.one(ops.Insert(1), self.one(ops.Reduce("max", 1), w))
            case "sum":
                return self.one(ops.Insert(1), self.one(ops.Reduce("sum", 1), w))
            case "join":
                return self.one(ops.Concat(1), w, self.one(ops.Pointwise("tanh"), w))
        return self.one(ops.Pointwise("relu"), w)


CHANGES = (
    *("split", "merge", "slice", "stride", "difference", "einsum", "einsum of two"),
    *("linear", "matmul", "matmul of merged", "conv", "flip", "sum", "join"),
    *("roll", "topk", "sort", "gather", "last", "pad", "delay", "cumsum", "max"),
)
MASKED = ("attend", "softmax", "zeros", "nothing")


def make_weights_graph(seed: int, *, biased: bool = False) -> tuple[Graph, str]:
    """Return a random graph and how its weights are masked."""
    drawn = HeadWeightsBuilder(random.Random(seed))
    x = drawn.build.add_input("x", Input(Type.of("f64", BATCH, SEQ, WIDTH)))
    drawn.streams.append(x)
    masked = drawn.rng.choice(MASKED)
    w = drawn.combine_masks(masked)
    for _ in range(drawn.rng.randint(1, 4)):
        w = drawn.change(w)
    if biased:
        op = ops.Conv((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
        kernel = drawn.weight(3, drawn.heads(w), 1, 1)
        w = drawn.one(op, w, kernel, drawn.weight(3))
    value = drawn.one(ops.Insert(1), x)
    y = drawn.one(ops.Reduce("sum", 1), drawn.one(ops.WeightedSum(), w, value))
    return drawn.build.build_graph("weights", {"y": y}), masked


def sample_values(graph: Graph, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return inputs and parameters."""
    rng = np.random.default_rng(seed)
    weights = {
        n: rng.normal(size=[d.evaluate({}) for d in p.type.shape])
        for n, p in graph.parameters.items()
    }
    return {"x": rng.normal(size=(2, ROWS, WIDTH))}, weights


def find_leak(graph: Graph, seed: int) -> bool:
    """Return True if a later position changes an earlier result."""
    inputs, weights = sample_values(graph, seed)
    before = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
    inputs["x"] = inputs["x"].copy()
    inputs["x"][:, -1] += 1.0
    after = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
    return not np.allclose(before[:, :-1], after[:, :-1], rtol=1e-12, atol=1e-12)


def find_false_proofs(seeds: range) -> Iterator[str]:
    """Yield graphs that are proved causal although a later position leaks."""
    for seed in seeds:
        graph, masked = make_weights_graph(seed, biased=seed % 4 == 0)
        if not check_causality(graph, "seq", "x", ["y"]) and find_leak(graph, seed):
            yield f"graph {seed}, {masked}: proved, and leaks"


@MANY
def test_masked_weights_stay_causal(many: int) -> None:
    for seed in range(many):
        graph, masked = make_weights_graph(seed)
        faults = check_causality(graph, "seq", "x", ["y"])
        assert (masked == "nothing") == bool(faults), (seed, masked, faults)


@MANY
def test_a_proof_is_never_contradicted(many: int) -> None:
    assert [*find_false_proofs(range(many))] == []
    assert any(
        find_leak(make_weights_graph(seed, biased=True)[0], seed) for seed in range(0, 40, 4)
    )


@MANY
def test_steps_equal_the_full_pass(many: int) -> None:
    for seed in range(many // 2):
        graph, masked = make_weights_graph(seed)
        if masked == "nothing":
            continue
        inputs, weights = sample_values(graph, seed)
        full = specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
        derived_graphs = derive_encoder_and_step(graph, "x", {"y": "new"})
        for plan in ([1] * ROWS, [3, 2]):
            made = [r["y"] for r in run_steps(derived_graphs, graph, inputs, weights, plan)]
            assert np.allclose(np.concatenate(made, axis=1), full, rtol=1e-9), seed


MISTAKES = {
    "axes after a split keep their numbers": (
        "_unwrap_reshape",
        lambda grid, x, axis, made, read: grid.make_operand_matrix(
            x, grid.query_axis, grid.key_axis
        ),
    ),
    "a bias adds nothing": ("_has_bias", lambda node: False),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = MISTAKES[mistake]
    place = attention_matrices if hasattr(attention_matrices, name) else query_key_products
    for cache in (find_masked_constants, find_mask_band, trace_time_dataflow):
        cache.cache_clear()
    monkeypatch.setattr(place, name, wrong)
    try:
        with pytest.raises(AssertionError):
            test_masked_weights_stay_causal(60)
            test_a_proof_is_never_contradicted(60)
    finally:
        monkeypatch.undo()
        for cache in (find_masked_constants, find_mask_band, trace_time_dataflow):
            cache.cache_clear()
