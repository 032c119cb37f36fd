"""A step graph that keeps keys and values in 8 bits.

    k = concat(past, new)    →    kept = concat(past:i8, quantize(new, scale))
                                  k = dequantize(kept, scale)

Each number of a head has a scale, which becomes a parameter of the step. What attention
reads of the new rows is what later steps will read of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specc.ir import ops
from specc.ir.derived import Cache
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Parameter, Value
from specc.ir.types import Type

SCALE = ":scale"
"""What the scales of a state are called behind its name."""


def kept_small(step: Graph, caches: Sequence[Cache]) -> Graph:
    """`step` with these states in 8 bits."""
    made = Builder()
    after = {c.key: c.next_key for c in caches} | {
        c.value: c.next_value for c in caches
    }
    # by what is kept, the state that it comes from
    joined = {step.outputs[result]: name for name, result in after.items()}
    now: dict[Value, Value] = {}
    for name, facts in step.input_facts.items():
        if name in after:
            facts = replace(facts, type=Type("i8", facts.type.shape))
        now[step.inputs[name]] = made.input(name, facts)
    for name, value in step.parameters.items():
        now[value] = made.parameter(step.parameter_facts[name])
    scales = {name: made.parameter(_scale(step, name)) for name in after}
    kept: dict[Value, Value] = {}
    for node, results in step.nodes:
        if results and results[0] in joined:
            (whole,) = results
            scale = scales[joined[whole]]
            kept[whole], now[whole] = _kept(made, whole, now, scale)
            continue
        new = made.add(node.op, *(a and now[a] for a in node.args))
        now.update(zip(results, new, strict=True))
        known = step.made.get(node)
        if known and new and new[0].node:
            made.made[new[0].node] = known
    made.names = {n: now[v] for n, v in step.names.items() if v in now}
    outputs = {n: kept.get(v, now[v]) for n, v in step.outputs.items()}
    return made.finish(step.name, outputs, least=step.least, facts=step.facts)


def _kept(
    made: Builder, whole: Value, now: Mapping[Value, Value], scale: Value
) -> tuple[Value, Value]:
    """Old rows with new ones behind them, as they are kept and as they are read."""
    node = whole.node
    assert node is not None, "what is kept is put together of old rows and new ones"
    past, fresh = (now[a] for a in node.args if a is not None)
    both = made.one(node.op, past, made.one(ops.Quantize(), fresh, scale))
    return both, made.one(ops.Dequantize(), both, scale)


def _scale(step: Graph, name: str) -> Parameter:
    """The scales of a state: of each head as many as it is wide."""
    _, heads, _, width = step.inputs[name].type.shape
    shape = Type("f32", (heads, Dim.of(1), width))
    return Parameter(name=name + SCALE, type=shape, initial="ones")
