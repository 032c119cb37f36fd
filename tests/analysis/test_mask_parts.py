"""Decomposition of masks: a position outside all parts is masked out."""

import random

import numpy as np
import pytest

import specc_numpy
from specc.analysis import local_attention_plan as module
from specc.analysis.local_attention_plan import (
    GlobalTokenCondition,
    MaskDecomposition,
    decompose_mask,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input, Value
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, Interval, Type

ROWS = Dim.symbol("n")


class RandomMasks:
    """Random masks `[n, n]` over position ids and three boolean inputs."""

    def __init__(self, seed: int) -> None:
        self.b, self.random = GraphBuilder(), random.Random(seed)
        names = ("first", "last", "keep")
        self.flags = [self.b.add_input(n, Input(Type.of("bool", ROWS))) for n in names]
        self.k = self.b.add_op(ops.Extent(0), self.flags[0])
        self.q = self.b.add_op(ops.Insert(1), self.k)

    def mask(self, depth: int) -> Value:
        """Return a mask of a given depth and of full shape."""
        return self.b.add_op(ops.And(), self.some(depth), self._all())

    def some(self, depth: int) -> Value:
        """Return a mask that may be broadcast over queries or keys."""
        one, draw = self.b.add_op, self.random
        kind = draw.choice(("and", "or", "or", "not", "where")) if depth else "end"
        if kind == "end":
            return draw.choice((self._compare, self._flag, self._edge))()
        inner = [self.some(depth - 1) for _ in range(3)]
        if kind == "not":
            return one(ops.Not(), inner[0])
        if kind == "where":
            return one(ops.Where(), *self._alike(inner))
        return one(ops.And() if kind == "and" else ops.Or(), *inner[:2])

    def _all(self) -> Value:
        zero = self.b.add_op(ops.Constant(-1, "i64"))
        both = self.b.add_op(ops.Arith("add"), self.q, self.k)
        return self.b.add_op(ops.Compare("gt"), both, zero)

    def _alike(self, values: list[Value]) -> list[Value]:
        return [self.b.add_op(ops.And(), v, self._all()) for v in values]

    def _compare(self) -> Value:
        by = self.b.add_op(ops.Constant(self.random.randint(-2, 3), "i64"))
        far = self.b.add_op(ops.Arith("add"), self.k, by)
        fn = self.random.choice(("le", "lt", "ge", "gt", "eq"))
        return self.b.add_op(ops.Compare(fn), far, self.q)

    def _flag(self) -> Value:
        flag = self.random.choice(self.flags)
        turned = self.random.random() < 0.5
        return self.b.add_op(ops.Insert(1), flag) if turned else flag

    def _edge(self) -> Value:
        number = self.b.add_op(ops.Constant(self.random.randint(0, 3), "i64"))
        rows = self.random.choice((self.q, self.k))
        return self.b.add_op(ops.Compare("lt"), rows, number)


def count_uncovered_pairs(masks: RandomMasks, mask: Value, found: MaskDecomposition) -> int:
    """Return the number of visible pairs that are in no part, for one random sample of the
    inputs."""
    alone = [*found.key_conditions, *found.query_conditions]
    outputs = {"mask": mask, **{f"{n}": a.value for n, a in enumerate(alone)}}
    graph = masks.b.build_graph("mask", outputs)
    rng = np.random.default_rng(masks.random.randint(0, 99))
    flags = {name: rng.random(7) < 0.4 for name in graph.inputs}
    results = specc_numpy.evaluate_graph(graph, flags, {})
    i, j = np.arange(7)[:, None], np.arange(7)
    covered = (i - j >= found.band.low) & (i - j <= found.band.high)
    for n, one in enumerate(alone):
        value = np.asarray(results[str(n)], bool) != one.is_negated
        value = value.any(tuple(a for a in range(value.ndim) if a != one.axis))
        covered = covered | (value if n < len(found.key_conditions) else value[:, None])
    return int((np.asarray(results["mask"], bool) & ~covered).sum())


def check_random_mask(seed: int) -> int:
    """Return the number of uncovered pairs of a random mask."""
    masks = RandomMasks(seed)
    mask = masks.mask(seed % 4)
    padded = masks.flags[2:] if seed % 2 else ()
    return count_uncovered_pairs(masks, mask, decompose_mask(mask, 0, 1, padded))


def test_parts_cover_the_mask() -> None:
    assert [seed for seed in range(400) if check_random_mask(seed)] == []


@pytest.mark.slow
def test_parts_cover_many_masks() -> None:
    assert [seed for seed in range(400, 20_000) if check_random_mask(seed)] == []


def test_planted_intersection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.MaskDecomposition, "__or__", module.MaskDecomposition.__and__)
    assert sum(check_random_mask(seed) > 0 for seed in range(200)) > 20


def test_window_with_global_tokens() -> None:
    masks = RandomMasks(0)
    one, first, keep = masks.b.add_op, masks.flags[0], masks.flags[2]
    apart = one(ops.Pointwise("abs"), one(ops.Arith("sub"), masks.q, masks.k))
    near = one(ops.Compare("le"), apart, one(ops.Constant(4, "i64")))
    queries = one(ops.Insert(1), first)
    union = one(ops.Or(), one(ops.Or(), near, first), queries)
    mask = one(ops.And(), union, keep)
    wanted = MaskDecomposition(
        Interval(-4, 4),
        (GlobalTokenCondition(first, 0, False),),
        (GlobalTokenCondition(queries, 0, False),),
    )
    assert decompose_mask(mask, 0, 1) == wanted
    assert decompose_mask(one(ops.And(), keep, union), 0, 1, [keep]) == wanted
    only = one(ops.And(), queries, keep)
    assert decompose_mask(only, 0, 1) == MaskDecomposition(
        EMPTY_INTERVAL, query_conditions=(GlobalTokenCondition(queries, 0, False),)
    )
    padding = one(ops.And(), one(ops.Insert(1), keep), keep)
    assert decompose_mask(padding, 0, 1, [keep]) == MaskDecomposition(FULL_INTERVAL)
