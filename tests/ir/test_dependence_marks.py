"""Declared dependences against perturbation: changing one operand position changes only results in
the declared interval, and both of its ends. A wrong mark would invalidate the causality proof,
so the test runs for every op."""

from collections import defaultdict
from math import isfinite

import numpy as np
import pytest
from support.op_examples import EXAMPLES, Array, OpExample, build_example_graph
from support.parameter_sweeps import sample_sweep

import specc_numpy
from specc.ir.dependence_marks import Dependence, DependenceMask
from specc.ir.loop_dependence import find_dependences


def evaluate(example: OpExample, operands: list[Array | None]) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        made = specc_numpy.evaluate[example.op](example.op, {}, *operands)
    return made if isinstance(made, tuple) else (np.asarray(made),)


def perturb(example: OpExample, x: Array, axis: int, row: int, rng: np.random.Generator) -> Array:
    """Return `x` with position `row` of `axis` changed everywhere."""
    y = np.moveaxis(x.copy(), axis, 0)
    if x.dtype.kind == "b":
        y[row] = ~y[row]
    elif x.dtype.kind == "i":
        y[row] = (y[row] + rng.integers(1, example.below, y[row].shape)) % example.below
    else:
        y[row] = y[row] + rng.uniform(0.5, 3, y[row].shape) * (
            1 if example.positive else rng.choice([-1, 1])
        )
    return np.moveaxis(y, 0, axis)


def find_gated_queries(
    gate: DependenceMask, operands: list[Array | None], others: list[Array | None], key: int
) -> set[int]:
    """Return the queries that attend to key `key` before or after the perturbation."""
    seen: set[int] = set()
    for given in (operands, others):
        grid = given[gate.operand]
        assert grid is not None
        grid = np.moveaxis(grid, (gate.query_axis, gate.key_axis), (0, 1))
        column = grid[:, key if grid.shape[1] > 1 else 0]
        seen |= {q for q in range(column.shape[0]) if column[q].any()}
    return seen


def allows(
    link: Dependence,
    row: int,
    rows: int,
    index: tuple[int, ...],
    seen: dict[DependenceMask, set[int]],
    one: bool,
) -> bool:
    match link.kind:
        case "all":
            return True
        case "extent":
            return False
        case "newest":
            return row == rows - 1 or link.max_offset > 0
        case "band":
            return all(one or index[g.result_axis] in seen[g] for g in link.masks)
    assert link.result_axis is not None
    return link.stride * index[link.result_axis] - row in link.offsets


@pytest.mark.parametrize(
    "example", sample_sweep([e for e in EXAMPLES if e.operands], stride=4), ids=str
)
def test_perturbation_equals_the_declared_dependence(example: OpExample) -> None:
    rng = np.random.default_rng(7)
    graph, _ = build_example_graph(example)
    ((node, results),) = graph.nodes
    declared = find_dependences(node, results)
    observed: dict[Dependence, set[int]] = defaultdict(set)
    for _ in range(4):
        operands = example.sample_operands(rng)
        before = evaluate(example, operands)
        for n, x in enumerate(operands):
            for axis in range(0 if x is None else x.ndim):
                assert x is not None
                for row in range(x.shape[axis]):
                    others = [
                        *operands[:n],
                        perturb(example, x, axis, row, rng),
                        *operands[n + 1 :],
                    ]
                    after = evaluate(example, others)
                    for r, (old, new) in enumerate(zip(before, after, strict=True)):
                        here = [
                            k
                            for k in declared
                            if (k.operand, k.operand_axis, k.result) == (n, axis, r)
                        ]
                        seen = {
                            g: find_gated_queries(g, operands, others, row)
                            for k in here
                            for g in k.masks
                        }
                        for index in zip(
                            *np.nonzero(~np.isclose(old, new, rtol=1e-12, atol=0)), strict=True
                        ):
                            fits = [
                                k
                                for k in here
                                if allows(
                                    k, row, x.shape[axis], index, seen, is_gate_shared(k, operands)
                                )
                            ]
                            assert fits, (
                                f"operand {n} axis {axis} row {row} moved {index} of result {r}"
                            )
                            for k in fits:
                                if (
                                    k.kind in ("same", "window", "strided")
                                    and k.result_axis is not None
                                ):
                                    at = k.stride * int(index[k.result_axis])
                                    observed[k].add(at - row)
    for link in declared:
        if link.kind in ("same", "window", "strided") and example.op.name not in COARSE:
            ends = {int(end) for end in (link.min_offset, link.max_offset) if isfinite(end)}
            assert ends <= observed[link], f"{link} was seen to read {sorted(observed[link])} only"


COARSE = {"constant"}


def is_gate_shared(link: Dependence, operands: list[Array | None]) -> bool:
    """Return True if the gate is broadcast over the queries."""
    return any(operands[g.operand].shape[g.query_axis] == 1 for g in link.masks)  # type: ignore[union-attr]
