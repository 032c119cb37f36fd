"""One graph over whole sequences taken apart into what is computed once and one step (docs/derivation.md).

    h = tanh(linear(memory))          encode: h              step: q = linear(y)         new rows only
    q, k = linear(y), linear(y)   →                                k = concat(past.k, linear(y))
    z = attend(q, k, k, causal)                                    z = attend(q, k, k, …)   next.k = k

`demand` says how many rows of each value a step needs, `keeping` which of them it keeps, `step` builds it.
"""

from collections.abc import Mapping

from specc.ir.derived import Derived, State
from specc.ir.graph import Graph
from specc.passes.causality import growing_symbol
from specc.passes.encode import encode_graph, without_unread
from specc.passes.plan import Plan, Rows
from specc.passes.step import Step

__all__ = ["Derived", "State", "derive"]


def derive(graph: Graph, growing: str, outputs: Mapping[str, Rows], *, bounded: bool = True) -> Derived:
    """`encode` and `step` of `graph`, which generates along the input `growing`, for these outputs.

    Of an output the rows that are `new` are given, or the `newest` alone. Unless `bounded`, attention through a window
    keeps rows that it no longer sees. The graph must have been
    proved causal for them (`specc.passes.causality.prove`).
    """
    symbol = growing_symbol(graph, growing)
    assert symbol is not None, f"{growing} has no axis to grow along"
    plan = Plan.of(graph, symbol, growing, outputs, bounded)
    made = Step(plan)
    step = without_unread(made.build(), frozenset(s.name for s in made.states))
    inputs = set(graph.inputs.values())
    once = {n: v for n, v in made.handed.items() if v not in inputs and n in step.inputs}
    return Derived(
        encode_graph(plan, {**once, **made.starts}),
        step,
        tuple(made.states),
        tuple(n for n in made.handed if n in step.inputs),
        tuple(n for n in plan.whole if n in step.inputs),
        growing,
    )
