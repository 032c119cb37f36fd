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


def add_constant(drawn: GridBuilder, value: float) -> Value:
    """Add a float constant."""
    return drawn.one(ops.Constant(value, "f64"))


def add_masked_scores(drawn: GridBuilder, x: Value, y: Value, fill: float) -> tuple[Value, Value]:
    """Add scores [batch q k] with a fill value at masked positions; return scores and mask."""
    seen, scores = drawn.mask(1), drawn.scores(x, y)
    scores = drawn.one(ops.Where(), seen, scores, add_constant(drawn, fill))
    return transform_scores(drawn, scores, x, y) if drawn.rng.random() < 0.2 else scores, seen


def transform_scores(drawn: GridBuilder, scores: Value, x: Value, y: Value) -> Value:
    """Combine scores with other scores, or with one value per query."""
    other = drawn.scores(y, x)
    if drawn.rng.random() < 0.4:
        other = drawn.one(ops.Insert(KEY), drawn.one(ops.Reduce("sum", KEY), x))
    if drawn.rng.random() < 0.4:
        other = drawn.one(ops.Pointwise("exp"), drawn.one(ops.Pointwise("tanh"), other))
    fn = drawn.rng.choice(["add", "sub", "mul", "max", "min"])
    sides = [scores, other]
    if drawn.rng.random() < 0.3:
        sides.reverse()
    return drawn.one(ops.Arith(fn), *sides)


def choose_fill_value(drawn: GridBuilder, usual: float) -> float:
    """Return mostly the neutral fill value, else another."""
    return drawn.rng.choice([usual] * 5 + [0.0, -inf, inf, -1e4])


def bound_values(drawn: GridBuilder, rows: Value) -> Value:
    """Return values [batch q] bounded by tanh, as a factor of a stream [batch q d]."""
    return drawn.one(ops.Insert(2), drawn.one(ops.Pointwise("tanh"), rows))


def add_reduction(drawn: GridBuilder, x: Value, y: Value) -> Value:
    """Scale a stream by a sum, mean, maximum, minimum, any or all over the keys."""
    fn = drawn.rng.choice(["sum", "max", "min", "any", "all", "mean"])
    neutral = {"max": -inf, "min": inf}.get(fn, 0.0)
    scores, seen = add_masked_scores(drawn, x, y, choose_fill_value(drawn, neutral))
    if fn in ("any", "all"):
        high = drawn.one(ops.Compare("gt"), scores, add_constant(drawn, 0.25))
        pair = ops.And() if fn == "any" else ops.Or()
        seen = seen if fn == "any" else drawn.one(ops.Not(), seen)
        scores = high if drawn.rng.random() < 0.5 else drawn.one(pair, high, seen)
        rows = drawn.one(ops.Cast("f64"), drawn.one(ops.Reduce(fn, KEY), scores))
    else:
        if drawn.rng.random() < 0.3:
            scores = drawn.one(ops.Pointwise("relu"), scores)
        rows = drawn.one(ops.Reduce(fn, KEY), scores)
    return drawn.one(ops.Arith("mul"), x, bound_values(drawn, rows))


def add_softmax(drawn: GridBuilder, x: Value, y: Value) -> Value:
    """Add a softmax op or its decomposition over filled scores."""
    scores, seen = add_masked_scores(drawn, x, y, choose_fill_value(drawn, -inf))
    if drawn.rng.random() < 0.5:
        weights = drawn.one(ops.Softmax(KEY), scores)
    else:
        most = drawn.one(ops.Insert(KEY), drawn.one(ops.Reduce("max", KEY), scores))
        high = drawn.one(ops.Arith("sub"), scores, most)
        share = drawn.one(ops.Pointwise("exp"), high)
        total = drawn.one(ops.Insert(KEY), drawn.one(ops.Reduce("sum", KEY), share))
        weights = drawn.one(ops.Arith("div"), share, total)
    if drawn.rng.random() < 0.8:  # fully masked rows have no finite values
        weights = drawn.one(ops.Where(), seen, weights, add_constant(drawn, 0.0))
    else:
        weights = drawn.one(
            ops.Where(),
            drawn.one(ops.Compare("ge"), weights, add_constant(drawn, 0.0)),
            weights,
            add_constant(drawn, 0.0),
        )
    return drawn.one(ops.Weigh(), weights, y)


def add_argmax(drawn: GridBuilder, x: Value, y: Value) -> Value:
    """Return the value at the key with the highest score."""
    scores, _ = add_masked_scores(drawn, x, y, choose_fill_value(drawn, -inf))
    return drawn.one(ops.Gather(1), y, drawn.one(ops.ArgMax(KEY), scores))


def add_sparsemax(drawn: GridBuilder, x: Value, y: Value) -> Value:
    """Add sparsemax weights, by sorting (arXiv:1602.02068, algorithm 1)."""
    down = drawn.rng.random() < 0.7
    scores, seen = add_masked_scores(drawn, x, y, choose_fill_value(drawn, -inf if down else inf))
    if not down:
        scores = drawn.one(ops.Pointwise("neg"), scores)
    order = drawn.one(ops.Sort(KEY, descending=True), scores)
    rank = drawn.one(ops.Cast("f64"), drawn.one(ops.Extent(KEY), scores))
    rank = drawn.one(ops.Arith("add"), rank, add_constant(drawn, 1.0))
    total = drawn.one(ops.CumSum(KEY), order)
    left = drawn.one(ops.Arith("mul"), rank, order)
    left = drawn.one(ops.Arith("add"), left, add_constant(drawn, 1.0))
    inside = drawn.one(ops.Compare("gt"), left, total)
    count = drawn.one(ops.Reduce("sum", KEY), drawn.one(ops.Cast("f64"), inside))
    taken = drawn.one(ops.Where(), inside, order, add_constant(drawn, 0.0))
    excess = drawn.one(ops.Reduce("sum", KEY), taken)
    tau = drawn.one(
        ops.Arith("div"),
        drawn.one(ops.Arith("sub"), excess, add_constant(drawn, 1.0)),
        drawn.one(ops.Arith("max"), count, add_constant(drawn, 1.0)),
    )
    low = drawn.one(ops.Arith("sub"), scores, drawn.one(ops.Insert(KEY), tau))
    weights = drawn.one(ops.Pointwise("relu"), low)
    if drawn.rng.random() < 0.8:
        weights = drawn.one(ops.Where(), seen, weights, add_constant(drawn, 0.0))
    weights = drawn.one(ops.Pointwise("tanh"), weights)
    return drawn.one(ops.Weigh(), weights, y)


def add_sort(drawn: GridBuilder, x: Value, y: Value) -> Value:
    """Combine sorted scores with ranks, or with unsorted values, and sum them."""
    scores, _ = add_masked_scores(drawn, x, y, choose_fill_value(drawn, -inf))
    down = drawn.one(ops.Sort(KEY, descending=True), scores)
    there = drawn.one(ops.Compare("gt"), down, add_constant(drawn, -inf))
    match drawn.rng.choice(["rank", "rank", "row", "keep", "scores", "sums", "picked"]):
        case "rank":
            other = drawn.one(ops.Cast("f64"), drawn.one(ops.Extent(KEY), down))
        case "row":
            other = drawn.one(ops.Cast("f64"), drawn.one(ops.Extent(KEY), scores))
        case "keep":
            other = drawn.one(ops.Cast("f64"), drawn.mask(3))
        case "scores":
            other = drawn.scores(x, y)
        case "sums":
            other = drawn.one(ops.CumSum(KEY), drawn.one(ops.Cast("f64"), there))
        case _:
            ids = drawn.all(ops.Sort(KEY, descending=True), scores)[1]
            weights = drawn.one(ops.MaskedSoftmax(), scores, drawn.mask(3))
            other = drawn.one(ops.Gather(KEY), weights, ids)
    level = drawn.one(ops.Where(), there, down, add_constant(drawn, 0.0))
    sums = drawn.one(ops.Reduce("sum", KEY), drawn.one(ops.Arith("mul"), level, other))
    return drawn.one(ops.Arith("mul"), x, bound_values(drawn, sums))


def add_topk(drawn: GridBuilder, x: Value, y: Value) -> Value:
    """Add the largest scores, their indices, or both; with fewer visible keys than k the remainder
    is masked out.
    """
    largest = drawn.rng.random() < 0.8
    scores, _ = add_masked_scores(drawn, x, y, choose_fill_value(drawn, -inf if largest else inf))
    k = Dim.of(drawn.rng.choice([1, 2, 3]))
    best, numbers = drawn.all(ops.TopK(KEY, k, largest), scores)
    level = drawn.one(ops.Pointwise("tanh"), best)
    rows = drawn.one(ops.Reduce("sum", KEY), level)
    if drawn.rng.random() < 0.6:
        told = drawn.one(ops.Cast("f64"), drawn.one(ops.Reduce("max", KEY), numbers))
        rows = drawn.one(ops.Arith("add"), rows, told)
    return drawn.one(ops.Arith("mul"), x, bound_values(drawn, rows))


REDUCTIONS: tuple[Callable[[GridBuilder, Value, Value], Value], ...] = (
    add_reduction,
    add_reduction,
    add_softmax,
    add_argmax,
    add_sparsemax,
    add_sort,
    add_topk,
)


def add_key_reduction(drawn: GridBuilder, x: Value, y: Value) -> Value:
    """Return one more stream: a random reduction over the keys."""
    return drawn.rng.choice(REDUCTIONS)(drawn, x, y)
