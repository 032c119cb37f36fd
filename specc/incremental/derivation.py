"""Derive encoder graph, decode step and states from a graph over whole sequences
(docs/derivation.md).

    h = tanh(linear(memory))         encode: h      step: q = linear(y)      new rows only
    q, k = linear(y), linear(y)   →                       k = concat(past.k, linear(y))
    z = attend(q, k, k, causal)                           z = attend(q, k, k, …)
                                                          next.k = k

`position_demand` says how many rows of each value a step needs, `state_selection` which of them it
keeps, `step_graph` builds it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from specc.analysis.causality import find_time_symbol
from specc.incremental.encoder_graph import InitialValue, build_encoder_graph, has_first_result
from specc.incremental.graph_boundary import add_length_inputs, remove_unused_inputs
from specc.incremental.step_graph import StepGraphBuilder
from specc.incremental.step_plan import OutputPositions, StepPlan
from specc.ir.graph import Graph, Value
from specc.ir.model import DecodeState, DerivedGraphs

__all__ = ["DecodeState", "DerivedGraphs", "derive_encoder_and_step"]


@dataclass(frozen=True, kw_only=True)
class DerivedStep:
    """A decode step whose inputs are not computed by an encoder graph yet.

    `static_inputs` maps inputs of the step to values of the full graph that are the same at every
    step; `starts` are the initial values of states. `source` names the output from which the first
    token of an empty sequence can be sampled; empty if there is none.
    """

    plan: StepPlan
    graph: Graph
    states: tuple[DecodeState, ...]
    static_inputs: Mapping[str, Value]
    starts: Mapping[str, InitialValue]
    source: str = ""


def derive_encoder_and_step(
    graph: Graph,
    growing: str,
    outputs: Mapping[str, OutputPositions],
    *,
    bounded: bool = True,
    begins: str = "",
    chunk: int = 1,
) -> DerivedGraphs:
    """Derive `encode` and `step` of `graph` for these outputs; `growing` is the generated input.

    Of each output a step returns all new positions or the newest one. Unless `bounded`,
    sliding-window attention keeps positions outside of the window. For the output named by
    `begins`, `encode` returns the last position before the first token, if there is one. The step
    takes `chunk` positions at a time. `graph` must have been proved causal for the outputs
    (`specc.analysis.causality.check_causality`).
    """
    half = derive_step_graph(graph, growing, outputs, bounded=bounded, begins=begins, chunk=chunk)
    return add_encoder_graph(half)


def derive_step_graph(
    graph: Graph,
    growing: str,
    outputs: Mapping[str, OutputPositions],
    *,
    bounded: bool = True,
    begins: str = "",
    chunk: int = 1,
) -> DerivedStep:
    """Derive the decode step of `graph`: the first half of `derive_encoder_and_step`."""
    symbol = find_time_symbol(graph, growing, chunk)
    assert symbol is not None, f"{growing} has no axis to grow along"
    plan = StepPlan.of(graph, symbol, growing, outputs, bounded, chunk)
    built = StepGraphBuilder(plan)
    # A state stays an input even if no node reads it: the runtime passes it anyway.
    step = remove_unused_inputs(built.build(), frozenset(s.name for s in built.states.declared))
    fixed = {n: v for n, v in graph.inputs.items() if not plan.depends_on_time(v)}
    step = add_length_inputs(step, graph, fixed)
    return DerivedStep(
        plan=plan,
        graph=step,
        states=tuple(built.states.declared),
        static_inputs={
            n: v for n, v in {**fixed, **built.static_inputs}.items() if n in step.inputs
        },
        starts=built.states.starts,
        source=begins if begins and has_first_result(graph, plan.setting.flow, begins) else "",
    )


def add_encoder_graph(half: DerivedStep) -> DerivedGraphs:
    """Add the encoder graph to a decode step: the second half of `derive_encoder_and_step`."""
    inputs = set(half.plan.graph.inputs.values())
    # An unchanging input of the spec is an input of the step; any other unchanging value is a
    # result of `encode`.
    once = {n: InitialValue(v) for n, v in half.static_inputs.items() if v not in inputs}
    first = _make_first_result(half, {*once, *half.starts})
    return DerivedGraphs(
        encode=build_encoder_graph(half.plan, {**once, **half.starts, **first}),
        step=half.graph,
        states=half.states,
        static_inputs=tuple(half.static_inputs),
        full_length_inputs=tuple(n for n in half.plan.whole if n in half.graph.inputs),
        growing=half.plan.growing,
        initial_logits_output=next(iter(first), ""),
    )


def _make_first_result(half: DerivedStep, taken: Collection[str]) -> dict[str, InitialValue]:
    """Return the position that the first token of an empty sequence is chosen from, by name."""
    if not half.source:
        return {}
    name = f"first.{half.source}"
    while name in taken:
        name += "_"
    value = half.plan.graph.outputs[half.source]
    axis = next(iter(half.plan.setting.find_time_axes(value)), None)
    return {name: InitialValue(value, axis, newest=axis is not None)}
