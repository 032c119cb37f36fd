"""Random reductions over the keys of a score matrix with masked positions."""

import random
from collections.abc import Callable
from math import inf
from typing import Protocol

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.op import Op


class GridBuilder(Protocol):
    """The interface of a random graph builder that these functions need."""

    rng: random.Random

    def one(self, op: Op, *args: Value | None) -> Value: ...
    def all(self, op: Op, *args: Value | None) -> tuple[Value, ...]: ...
    def mask(self, depth: int = 0) -> Value: ...
    def scores(self, x: Value, y: Value) -> Value: ...


QUERY, KEY = 1, 2


def add_constant(builder: GridBuilder, value: float) -> Value:
    """Add a float constant."""
    return builder.one(ops.Constant(value, "f64"))


def add_masked_scores(builder: GridBuilder, x: Value, y: Value, fill: float) -> tuple[Value, Value]:
    """Add scores [batch q k] with a fill value at masked positions; return scores and mask."""
    seen, scores = builder.mask(1), builder.scores(x, y)
    scores = builder.one(ops.Where(), seen, scores, add_constant(builder, fill))
    return transform_scores(builder, scores, x, y) if builder.rng.random() < 0.2 else scores, seen


def transform_scores(builder: GridBuilder, scores: Value, x: Value, y: Value) -> Value:
    """Combine scores with other scores, or with one value per query."""
    other = builder.scores(y, x)
    if builder.rng.random() < 0.4:
        other = builder.one(ops.Insert(KEY), builder.one(ops.Reduce("sum", KEY), x))
    if builder.rng.random() < 0.4:
        other = builder.one(ops.Pointwise("exp"), builder.one(ops.Pointwise("tanh"), other))
    fn = builder.rng.choice(["add", "sub", "mul", "max", "min"])
    sides = [scores, other]
    if builder.rng.random() < 0.3:
        sides.reverse()
    return builder.one(ops.Arith(fn), *sides)


def choose_fill_value(builder: GridBuilder, neutral: float) -> float:
    """Return mostly the neutral fill value, else another."""
    return builder.rng.choice([neutral] * 5 + [0.0, -inf, inf, -1e4])


def bound_values(builder: GridBuilder, rows: Value) -> Value:
    """Return values [batch q] bounded by tanh, as a factor of a stream [batch q d]."""
    return builder.one(ops.Insert(2), builder.one(ops.Pointwise("tanh"), rows))


def add_reduction(builder: GridBuilder, x: Value, y: Value) -> Value:
    """Scale a stream by a sum, mean, maximum, minimum, any or all over the keys."""
    fn = builder.rng.choice(["sum", "max", "min", "any", "all", "mean"])
    neutral = {"max": -inf, "min": inf}.get(fn, 0.0)
    scores, seen = add_masked_scores(builder, x, y, choose_fill_value(builder, neutral))
    if fn in ("any", "all"):
        high = builder.one(ops.Compare("gt"), scores, add_constant(builder, 0.25))
        pair = ops.And() if fn == "any" else ops.Or()
        seen = seen if fn == "any" else builder.one(ops.Not(), seen)
        scores = high if builder.rng.random() < 0.5 else builder.one(pair, high, seen)
        rows = builder.one(ops.Cast("f64"), builder.one(ops.Reduce(fn, KEY), scores))
    else:
        if builder.rng.random() < 0.3:
            scores = builder.one(ops.Pointwise("relu"), scores)
        rows = builder.one(ops.Reduce(fn, KEY), scores)
    return builder.one(ops.Arith("mul"), x, bound_values(builder, rows))


def add_softmax(builder: GridBuilder, x: Value, y: Value) -> Value:
    """Add a softmax op or its decomposition over filled scores."""
    scores, seen = add_masked_scores(builder, x, y, choose_fill_value(builder, -inf))
    if builder.rng.random() < 0.5:
        weights = builder.one(ops.Softmax(KEY), scores)
    else:
        largest = builder.one(ops.Insert(KEY), builder.one(ops.Reduce("max", KEY), scores))
        high = builder.one(ops.Arith("sub"), scores, largest)
        share = builder.one(ops.Pointwise("exp"), high)
        total = builder.one(ops.Insert(KEY), builder.one(ops.Reduce("sum", KEY), share))
        weights = builder.one(ops.Arith("div"), share, total)
    if builder.rng.random() < 0.8:  # fully masked rows have no finite values
        weights = builder.one(ops.Where(), seen, weights, add_constant(builder, 0.0))
    else:
        weights = builder.one(
            ops.Where(),
            builder.one(ops.Compare("ge"), weights, add_constant(builder, 0.0)),
            weights,
            add_constant(builder, 0.0),
        )
    return builder.one(ops.WeightedSum(), weights, y)


def add_argmax(builder: GridBuilder, x: Value, y: Value) -> Value:
    """Return the value at the key with the highest score."""
    scores, _ = add_masked_scores(builder, x, y, choose_fill_value(builder, -inf))
    return builder.one(ops.Gather(1), y, builder.one(ops.ArgMax(KEY), scores))


def add_sparsemax(builder: GridBuilder, x: Value, y: Value) -> Value:
    """Add sparsemax weights, by sorting (arXiv:1602.02068, algorithm 1)."""
    down = builder.rng.random() < 0.7
    scores, seen = add_masked_scores(
        builder, x, y, choose_fill_value(builder, -inf if down else inf)
    )
    if not down:
        scores = builder.one(ops.Pointwise("neg"), scores)
    order = builder.one(ops.Sort(KEY, descending=True), scores)
    rank = builder.one(ops.Cast("f64"), builder.one(ops.Extent(KEY), scores))
    rank = builder.one(ops.Arith("add"), rank, add_constant(builder, 1.0))
    total = builder.one(ops.CumSum(KEY), order)
    left = builder.one(ops.Arith("mul"), rank, order)
    left = builder.one(ops.Arith("add"), left, add_constant(builder, 1.0))
    inside = builder.one(ops.Compare("gt"), left, total)
    count = builder.one(ops.Reduce("sum", KEY), builder.one(ops.Cast("f64"), inside))
    taken = builder.one(ops.Where(), inside, order, add_constant(builder, 0.0))
    excess = builder.one(ops.Reduce("sum", KEY), taken)
    tau = builder.one(
        ops.Arith("div"),
        builder.one(ops.Arith("sub"), excess, add_constant(builder, 1.0)),
        builder.one(ops.Arith("max"), count, add_constant(builder, 1.0)),
    )
    low = builder.one(ops.Arith("sub"), scores, builder.one(ops.Insert(KEY), tau))
    weights = builder.one(ops.Pointwise("relu"), low)
    if builder.rng.random() < 0.8:
        weights = builder.one(ops.Where(), seen, weights, add_constant(builder, 0.0))
    weights = builder.one(ops.Pointwise("tanh"), weights)
    return builder.one(ops.WeightedSum(), weights, y)


def add_sort(builder: GridBuilder, x: Value, y: Value) -> Value:
    """Combine sorted scores with ranks, or with unsorted values, and sum them."""
    scores, _ = add_masked_scores(builder, x, y, choose_fill_value(builder, -inf))
    down = builder.one(ops.Sort(KEY, descending=True), scores)
    there = builder.one(ops.Compare("gt"), down, add_constant(builder, -inf))
    match builder.rng.choice(["rank", "rank", "row", "keep", "scores", "sums", "picked"]):
        case "rank":
            other = builder.one(ops.Cast("f64"), builder.one(ops.Extent(KEY), down))
        case "row":
            other = builder.one(ops.Cast("f64"), builder.one(ops.Extent(KEY), scores))
        case "keep":
            other = builder.one(ops.Cast("f64"), builder.mask(3))
        case "scores":
            other = builder.scores(x, y)
        case "sums":
            other = builder.one(ops.CumSum(KEY), builder.one(ops.Cast("f64"), there))
        case _:
            ids = builder.all(ops.Sort(KEY, descending=True), scores)[1]
            weights = builder.one(ops.MaskedSoftmax(), scores, builder.mask(3))
            other = builder.one(ops.Gather(KEY), weights, ids)
    level = builder.one(ops.Where(), there, down, add_constant(builder, 0.0))
    sums = builder.one(ops.Reduce("sum", KEY), builder.one(ops.Arith("mul"), level, other))
    return builder.one(ops.Arith("mul"), x, bound_values(builder, sums))


def add_topk(builder: GridBuilder, x: Value, y: Value) -> Value:
    """Add the largest scores, their indices, or both; with fewer visible keys than k the remainder
    is masked out.
    """
    largest = builder.rng.random() < 0.8
    scores, _ = add_masked_scores(
        builder, x, y, choose_fill_value(builder, -inf if largest else inf)
    )
    k = Dim.from_value(builder.rng.choice([1, 2, 3]))
    best, numbers = builder.all(ops.TopK(KEY, k, largest), scores)
    level = builder.one(ops.Pointwise("tanh"), best)
    rows = builder.one(ops.Reduce("sum", KEY), level)
    if builder.rng.random() < 0.6:
        largest_id = builder.one(ops.Cast("f64"), builder.one(ops.Reduce("max", KEY), numbers))
        rows = builder.one(ops.Arith("add"), rows, largest_id)
    return builder.one(ops.Arith("mul"), x, bound_values(builder, rows))


REDUCTIONS: tuple[Callable[[GridBuilder, Value, Value], Value], ...] = (
    add_reduction,
    add_reduction,
    add_softmax,
    add_argmax,
    add_sparsemax,
    add_sort,
    add_topk,
)


def add_key_reduction(builder: GridBuilder, x: Value, y: Value) -> Value:
    """Return one more stream: a random reduction over the keys."""
    return builder.rng.choice(REDUCTIONS)(builder, x, y)
