"""`specc verify`: a compiled model against the float64 reference, on random inputs of several sizes.

Two outputs agree when `max|a - b| <= 1e-5 · max|b|`, b from the reference, over valid positions.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specc import backend
from specc.ir.graph import Graph
from specc.running import Loaded
from specc.text.diagnostic import fail

TOLERANCE = 1e-5
SIZES = (1, 2, 3, 5, 7, 11, 13)
ANY_INT = 10
"""Numbers that look nothing up are drawn below this."""


def verify(model: Loaded, *, seed: int = 0, rounds: int = 3) -> Iterator[str]:
    """A line a round. Fails with E0930 at the first output that differs by more than it may."""
    if model.manifest.decodes is not None:
        yield "not compared, because it decodes by itself; a package of `--for step` can be"
        return
    numpy = backend.load("numpy")
    graph = model.manifest.graph
    weights = model.weights()
    rng = np.random.default_rng(seed)
    for turn in range(rounds):
        sizes = sizes_for(graph, turn)
        inputs = random_inputs(graph, sizes, rng)
        want = numpy.run(graph, inputs, weights)
        got = model.session.run(inputs)
        worst = 0.0
        for name, reference in want.items():
            worst = max(worst, _compare(name, np.asarray(got[name]), np.asarray(reference), sizes))
        shown = ", ".join(f"{k}={v}" for k, v in sizes.items()) or "fixed sizes"
        agree = "1 result agrees" if len(want) == 1 else f"{len(want)} results agree"
        yield f"{shown}: {agree}, worst difference {worst:.1e} of the largest value"


def sizes_for(graph: Graph, turn: int) -> dict[str, int]:
    """A length for every symbol: 1 first, then distinct primes, so that exchanged axes cannot cancel."""
    symbols = sorted({s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()})
    facts = set(graph.facts)
    free = [s for s in symbols if s not in facts]
    if turn == 0:
        return {s: max(1, graph.least.get(s, 1)) for s in free}
    return {s: max(SIZES[(n + turn) % len(SIZES)], graph.least.get(s, 1)) for n, s in enumerate(free)}


def random_inputs(graph: Graph, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """Inputs a caller could give: ids inside their tables, padding on the declared side, numbers around zero."""
    env = dict(sizes)
    for name, dim in graph.facts.items():
        env[name] = dim.at(env)
    made: dict[str, Any] = {}
    for name, value in graph.inputs.items():
        shape = tuple(d.at(env) for d in value.type.shape)
        facts = graph.input_facts[name]
        if facts.keep:
            made[name] = _keep(shape, facts.keep, rng)
        elif value.type.dtype == "bool":
            made[name] = rng.random(shape) < 0.7
        elif value.type.dtype in ("i64", "i32"):
            below = facts.below.number if facts.below is not None and facts.below.number else ANY_INT
            made[name] = rng.integers(0, below, shape).astype("i8" if value.type.dtype == "i64" else "i4")
        else:
            made[name] = rng.normal(size=shape).astype("f4")
    return made


def _keep(shape: tuple[int, ...], side: str, rng: np.random.Generator) -> Any:
    """True where a row exists: everything in the first batch row, some padding in the others."""
    length = shape[-1]
    lengths = rng.integers(max(1, length // 2), length + 1, shape[:-1]) if length else np.zeros(shape[:-1], int)
    lengths.reshape(-1)[:1] = length
    row = np.arange(length)
    return row >= (length - lengths[..., None]) if side == "left" else row < lengths[..., None]


def _compare(name: str, got: Any, want: Any, sizes: Mapping[str, int]) -> float:
    shown = ", ".join(f"{k}={v}" for k, v in sizes.items())
    if got.shape != want.shape:
        fail("E0930", f"`{name}` has the shape {list(got.shape)}, the reference {list(want.shape)}", notes=[shown])
    if not want.size:
        return 0.0
    if want.dtype.kind in "ib":
        if not np.array_equal(got, want):
            fail("E0930", f"`{name}` differs from the reference in {int((got != want).sum())} places", notes=[shown])
        return 0.0
    largest = float(np.abs(want).max()) or 1.0
    worst = float(np.abs(got - want).max()) / largest
    if not worst <= TOLERANCE:
        at = np.unravel_index(int(np.argmax(np.abs(got - want))), want.shape)
        where = ", ".join(map(str, at))
        fail(
            "E0930",
            f"`{name}` differs from the reference by {worst:.1e} of its largest value, more than {TOLERANCE:g}",
            notes=[f"largest at [{where}]: {float(got[at]):.7g} where the reference has {float(want[at]):.7g}", shown],
        )
    return worst
