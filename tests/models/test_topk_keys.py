"""`topk` over the keys of a generated sequence: indices and values equal those of a full pass of
any later length, from the first position on.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from properties.test_prefix_positions import find_step_difference
from support.parameter_sweeps import sample_sweep
from support.random_prefix_graphs import PrefixGraphBuilder, finish_prefix_graph

import specc
from specc.incremental import encoder_graph, step_graph
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Value
from specc.runtime.decoder_sessions import KVCacheSession

SPEC = """specc 1
model nearest "Words look at the three that score highest, by their numbers and scores."
config { d: int = 8 }
dims batch, n

graph g(ids: int[batch, n]) -> (logits: float[batch, n, 11]) {
  x = %sembedding(ids, size=11, dim=d) @ words%s
  i = insert(positions(x), axis=1)
  j = insert(positions(x), axis=0)
  repeat layer in 2 under "layers.{layer}" {
    z = matmul(linear(x, out=d) @ query, transpose(x, order=[0, 2, 1]))
    best, at = topk(where(%s, 9.0 * z, -inf), 3)
    where_to = linear(float(at) - insert(insert(float(positions(x)), axis=1), axis=0), out=d) @ place
    x = x + (linear(softmax(best, axis=2), out=d) @ share) + tanh(where_to)
  }
  return linear(x%s, out=11) @ out
}
generate text of ids from logits { start = 2  stop = 1 }
"""
HEADED = ("prepend(", ", parameter(shape=[1, 2, d]) @ prompt)", "j <= i", "[:, 2:]")
KINDS = {
    "causal": ("", "", "j <= i", ""),
    "window": ("", "", "j <= i & i - j < 2", ""),
    "head": HEADED,
}


def measure_step_difference(directory: Path, kind: str, splits: tuple[int, ...]) -> float:
    """Return the largest difference of steps from a full pass of seven positions, over all
    positions.
    """
    spec = directory / "m.specc"
    spec.write_text(SPEC % KINDS[kind], encoding="utf-8")
    parts = ["score", "encode", "step"] if kind == "head" else ["score", "step"]
    specc.compile(spec, directory / "out", init=5, graphs=parts, force=True)
    model = specc.load(directory / "out", threads=1)
    ids = np.random.default_rng(0).integers(2, 11, (2, 7))
    full = model.run(ids=ids)["logits"]
    assert model.generator
    steps = model.generator.create_decoder_session({"ids": ids[:, : splits[0]]})
    assert isinstance(steps, KVCacheSession)
    past, apart = 0, 0.0
    for count in splits:
        past += count
        got = steps.step(ids[:, past - count : past])
        apart = max(apart, float(np.abs(got - full[:, past - 1]).max()))
    return apart / float(np.abs(full).max())


@pytest.mark.parametrize(
    ("kind", "splits"),
    [
        ("causal", (1,) * 7),
        pytest.param("causal", (5, 2), marks=pytest.mark.parity),
        pytest.param("window", (1, 1, 3, 2), marks=pytest.mark.parity),
        ("head", (1, 2, 4)),
    ],
)
def test_steps_equal_full_passes_from_the_first_position(
    tmp_path: Path, kind: str, splits: tuple[int, ...]
) -> None:
    assert measure_step_difference(tmp_path, kind, splits) <= 1e-5


def test_padding_before_the_keys_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted mistake: padding of too few keys changes their indices."""

    def in_front(
        b: step_graph.StepGraphRewriter, op: step_graph.ops.TopK, keys: step_graph.Value
    ) -> step_graph.Value:
        rows = encoder_graph.ops.Pad(op.axis, op.k, op.k * 0, value=-np.inf)
        return b.add_op(rows, keys)  # type: ignore[attr-defined]

    monkeypatch.setattr(step_graph, "pad_top_k_keys", in_front)
    assert measure_step_difference(tmp_path, "causal", (1, 1, 5)) > 1e-3


class TopKPrefixBuilder(PrefixGraphBuilder):
    """Adds the sum of the k largest scores of the keys up to each position."""

    def step(self) -> Value:
        x = self.streams[-1]
        positions = self.one(ops.Extent(1), x)
        query, key = (self.one(ops.Insert(axis), positions) for axis in (1, 0))
        scores = self.one(ops.Einsum("b q d, b k d -> b q k"), x, x)
        hidden = self.one(ops.Constant(-np.inf, "f64"))
        scores = self.one(ops.Where(), self.one(ops.Compare("le"), key, query), scores, hidden)
        best = self.one(ops.TopK(2, Dim.from_value(self.rng.randint(1, 5))), scores)
        total = self.one(ops.Reduce("sum", 2), self.one(ops.Pointwise("sigmoid"), best))
        return self.one(ops.Arith("mul"), x, self.one(ops.Insert(2), total))


@pytest.mark.parametrize("seed", sample_sweep(range(12)))
def test_prefixes_of_fewer_positions_than_k(seed: int) -> None:
    """Before any token is generated there may be fewer keys than k."""

    def make_graph(number: int) -> Graph:
        return finish_prefix_graph(TopKPrefixBuilder(random.Random(number)))

    assert not find_step_difference(seed, make_graph)
