"""One graph over whole sequences taken apart into what is computed once and one step
(docs/derivation.md).

    h = tanh(linear(memory))         encode: h      step: q = linear(y)      new rows only
    q, k = linear(y), linear(y)   →                       k = concat(past.k, linear(y))
    z = attend(q, k, k, causal)                           z = attend(q, k, k, …)
                                                          next.k = k

`demand` says how many rows of each value a step needs, `keeping` which of them it
keeps, `step` builds it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from specc.ir.derived import Derived, State
from specc.ir.graph import Graph, Value
from specc.passes.derive.encode import First, encode_graph
from specc.passes.derive.newest import has_first
from specc.passes.derive.plan import Plan, Rows
from specc.passes.derive.step import Step
from specc.passes.derive.tellers import with_lengths, without_unread
from specc.passes.prove.causality import growing_symbol

__all__ = ["Derived", "State", "derive"]


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A step, before what it is handed has been computed by anything.

    `handed` holds the values of the whole graph that go into every step, by the inputs
    of the step that take them; `starts` those that states begin as. `source` is the
    result off which the first token of an empty text can be drawn; empty, there is none.
    """

    plan: Plan
    graph: Graph
    states: tuple[State, ...]
    handed: Mapping[str, Value]
    starts: Mapping[str, First]
    source: str = ""


def derive(
    graph: Graph,
    growing: str,
    outputs: Mapping[str, Rows],
    *,
    bounded: bool = True,
    begins: str = "",
    chunk: int = 1,
) -> Derived:
    """`encode` and `step` of `graph`, which generates along the input `growing`, for
    these outputs.

    Of an output the rows that are `new` are given, or the `newest` alone. Unless
    `bounded`, attention through a window keeps rows that it no longer sees. Of the
    output that `begins` names, `encode` gives the row behind which nothing has grown,
    where there surely is one. A graph `in_chunks` has so many rows of what grows in a
    `chunk`. It must have been proved causal for the outputs
    (`specc.passes.prove.causality.prove`).
    """
    half = stepped(graph, growing, outputs, bounded=bounded, begins=begins, chunk=chunk)
    return encoded(half)


def stepped(
    graph: Graph,
    growing: str,
    outputs: Mapping[str, Rows],
    *,
    bounded: bool = True,
    begins: str = "",
    chunk: int = 1,
) -> Stepped:
    """The step of `graph`: the first half of `derive`."""
    symbol = growing_symbol(graph, growing, chunk)
    assert symbol is not None, f"{growing} has no axis to grow along"
    plan = Plan.of(graph, symbol, growing, outputs, bounded, chunk)
    built = Step(plan)
    # A state stays an input even where no node reads it: whoever runs the step hands
    # it over all the same.
    step = without_unread(built.build(), frozenset(s.name for s in built.states.met))
    fixed = {n: v for n, v in graph.inputs.items() if not plan.moves(v)}
    step = with_lengths(step, graph, fixed)
    return Stepped(
        plan=plan,
        graph=step,
        states=tuple(built.states.met),
        handed={n: v for n, v in {**fixed, **built.handed}.items() if n in step.inputs},
        starts=built.states.starts,
        source=begins if begins and has_first(graph, plan.setting.flow, begins) else "",
    )


def encoded(half: Stepped) -> Derived:
    """A step with the graph of what it is handed: the second half of `derive`."""
    inputs = set(half.plan.graph.inputs.values())
    # An input of the spec that stays the same goes into the step as it is; anything
    # else that does is a result of `encode`.
    once = {n: First(v) for n, v in half.handed.items() if v not in inputs}
    first = _first_row(half, {*once, *half.starts})
    return Derived(
        encode=encode_graph(half.plan, {**once, **half.starts, **first}),
        step=half.graph,
        states=half.states,
        handed=tuple(half.handed),
        whole=tuple(n for n in half.plan.whole if n in half.graph.inputs),
        growing=half.plan.growing,
        first=next(iter(first), ""),
    )


def _first_row(half: Stepped, taken: Collection[str]) -> dict[str, First]:
    """The row that the first token of an empty text is drawn from, by a name of its own."""
    if not half.source:
        return {}
    name = f"first.{half.source}"
    while name in taken:
        name += "_"
    value = half.plan.graph.outputs[half.source]
    axis = next(iter(half.plan.setting.times(value)), None)
    return {name: First(value, axis, newest=axis is not None)}
