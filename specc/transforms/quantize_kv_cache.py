"""Quantize the KV cache of a decode step to int8.

    k = concat(past, new)    →    kept = concat(past:i8, quantize(new, scale))
                                  k = dequantize(kept, scale)

Each number of a head has a scale, which becomes a parameter of the step. What attention
reads of the new rows is what later steps will read of them.
"""

from collections.abc import Sequence
from dataclasses import replace

from specc.ir import ops
from specc.ir.derived_graphs import KVCache
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Parameter, Value
from specc.ir.types import Type

STATE_SCALE_SUFFIX = ":scale"
"""What the scales of a state are called behind its name."""


def quantize_kv_states(step: Graph, caches: Sequence[KVCache]) -> Graph:
    """`step` with these states in 8 bits."""
    keys = {c.key: c.next_key for c in caches}
    after = keys | {c.value: c.next_value for c in caches}
    joined = {step.outputs[result]: name for name, result in after.items()}
    made, now = Builder(), dict[Value, Value]()
    for name, facts in step.input_facts.items():
        small = Type("i8", facts.type.shape) if name in after else facts.type
        now[step.inputs[name]] = made.input(name, replace(facts, type=small))
    for name, value in step.parameters.items():
        now[value] = made.parameter(step.parameter_facts[name])
    scales = {name: made.parameter(_make_state_scale(step, name)) for name in after}
    kept: dict[Value, Value] = {}
    for node, results in step.nodes:
        whole = results[0]
        if whole not in joined:
            now.update(zip(results, made.copy_node(step, node, now), strict=True))
            continue
        # old rows with new ones behind them, as they are kept and as they are read
        past, fresh = (now[a] for a in node.args if a is not None)
        scale = scales[joined[whole]]
        kept[whole] = made.one(node.op, past, made.one(ops.Quantize(), fresh, scale))
        now[whole] = made.one(ops.Dequantize(), kept[whole], scale)
    return made.finish_copy(step, now, {n: kept.get(v, now[v]) for n, v in step.outputs.items()})


def _make_state_scale(step: Graph, name: str) -> Parameter:
    """Return the scales of a state: one per head and feature."""
    _, heads, _, width = step.inputs[name].type.shape
    shape = Type("f32", (heads, Dim.of(1), width))
    return Parameter(name=name + STATE_SCALE_SUFFIX, type=shape, initial="ones")
