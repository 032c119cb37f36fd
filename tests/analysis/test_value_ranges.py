"""Value ranges and constants hold for every input, and are computed once per value."""

import random
from math import inf

import numpy as np
import pytest

import specc_numpy
from specc.analysis import value_ranges
from specc.analysis.value_ranges import (
    find_constant_value,
    find_rational_constant,
    find_splat_value,
    find_value_range,
    is_zero_everywhere,
)
from specc.ir import ops
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.types import Type

GRAPHS = 400
LENGTH = 3
NUMBERS = (0.9, -0.9, 0.0, 2.5, -1.0, 3.0, 1e-9, 1e30, -1e30, inf, -inf)
"""What constants are: integers, numbers that a cast truncates or rounds, and infinity."""


def test_shared_subexpressions_take_linear_time() -> None:
    """One hundred sums of a value with itself have 2^100 paths; the minimum is 0."""
    b = GraphBuilder()
    x = b.add_op(ops.Pointwise("abs"), b.add_input("x", Input(Type.of("f32", 3))))
    for _ in range(100):
        x = b.add_op(ops.Arith("add"), x, b.add_op(ops.Arith("mul"), x, x))
    assert find_value_range(x) == (0.0, inf)


def sample_operand(rng: random.Random, b: GraphBuilder, values: list[Value]) -> Value:
    """Return a constant, position ids, or a value drawn before."""
    match rng.choice(("constant", "constant", "extent", "integer", "old", "old", "old")):
        case "constant":
            return b.add_op(ops.Constant(rng.choice(NUMBERS), "f64"))
        case "integer":
            return b.add_op(ops.Constant(rng.choice((-2, 0, 1, 7)), "i64"))
        case "extent":
            return b.add_op(ops.Extent(0), values[0])
    return rng.choice(values[-4:])


def sample_value(rng: random.Random, b: GraphBuilder, values: list[Value]) -> Value:
    """Return a random function of values drawn before; casts and views are the most frequent."""
    x = sample_operand(rng, b, values)
    kind = rng.choice(("cast", "cast", "cast", "insert", "expand", "arith", "function", "where"))
    number = x.type.dtype not in ("bool", "i64", "i32")  # integers may overflow
    match kind:
        case "cast":
            whole = ("i64",) if x.type.dtype == "i64" else ("i64", "i32")
            return b.add_op(ops.Cast(rng.choice(("f32", "f64", "f16", "bf16", *whole))), x)
        case "insert" if x.type.rank < 2:
            return b.add_op(ops.Insert(0), x)
        case "expand" if x.type.rank and x.type.shape[0] == 1:
            return b.add_op(ops.Expand(0, values[0].type.shape[0]), x)
        case "arith" if number:
            y = sample_operand(rng, b, values)
            y = y if y.type.dtype == x.type.dtype else b.add_op(ops.Cast(x.type.dtype), y)
            if x.type.shape == y.type.shape or not (x.type.rank and y.type.rank):
                return b.add_op(ops.Arith(rng.choice(("add", "sub", "mul", "min", "max"))), x, y)
        case "function" if x.type.dtype == "f64":
            return b.add_op(ops.Pointwise(rng.choice((*value_ranges.FUNCTION_RANGES, "neg"))), x)
        case "where" if number:
            zero = b.add_op(
                ops.Cast(x.type.dtype), b.add_op(ops.Constant(rng.choice(NUMBERS), "f64"))
            )
            return b.add_op(ops.Where(), b.add_op(ops.Compare("gt"), x, zero), x, zero)
    return x


def sample_graph(seed: int) -> Graph:
    """Return a graph of random values, all of them outputs."""
    rng, b = random.Random(seed), GraphBuilder()
    values = [
        b.add_input("x", Input(Type.of("f64", LENGTH))),
        b.add_input("keep", Input(Type.of("bool", LENGTH))),
    ]
    for _ in range(10):
        values.append(sample_value(rng, b, values))
    return b.build_graph("g", {f"v{n}": v for n, v in enumerate(values) if v.node})


def find_wrong_facts(seed: int) -> list[str]:
    """Return the wrong ranges and constants of a random graph."""
    graph, rng = sample_graph(seed), np.random.default_rng(seed)
    given = {"x": rng.normal(size=LENGTH) * 3, "keep": rng.random(LENGTH) < 0.5}
    given = {n: v for n, v in given.items() if n in graph.inputs}
    with np.errstate(all="ignore"):
        found = specc_numpy.evaluate_graph(graph, given, {})
    wrong = []
    for name, value in graph.outputs.items():
        numbers = found[name].astype("f8")
        numbers = numbers[~np.isnan(numbers)]
        constants = (find_rational_constant, find_constant_value, find_splat_value)
        for claim in constants:
            number = claim(value)
            if number is not None and (numbers != float(number)).any():
                wrong.append(f"{claim.__name__} of {value.op} is {number}")
        low, high = find_value_range(value)
        if (numbers < low).any() or (numbers > high).any():
            wrong.append(f"{value.op} leaves [{low}, {high}]")
        if is_zero_everywhere(value) and numbers.any():
            wrong.append(f"{value.op} is not zero")
    return wrong


@pytest.mark.parametrize("many", [GRAPHS, pytest.param(20_000, marks=pytest.mark.slow)])
def test_ranges_and_constants_hold(many: int) -> None:
    assert [w for seed in range(many) for w in find_wrong_facts(seed)] == []


def test_constants_through_casts() -> None:
    graphs = [sample_graph(seed) for seed in range(40)]
    casts = [v for g in graphs for v in g.outputs.values() if v.node and isinstance(v.op, ops.Cast)]
    assert sum(find_constant_value(v) is not None for v in casts) > len(casts) // 8


def test_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_ranges, "cast_number", lambda number, dtype: number)
    assert any(find_wrong_facts(seed) for seed in range(40))
