"""Quantize the KV cache of a decode step to int8.

    k = concat(past, new)    →    kept = concat(past:i8, quantize(new, scale))
                                  k = dequantize(kept, scale)

Each number of a head has a scale, which becomes a parameter of the step. What attention
reads of the new rows is what later steps will read of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specc.ir import ops
from specc.ir.derived_graphs import KVCache
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Node, Parameter, Value
from specc.ir.types import Type

STATE_SCALE_SUFFIX = ":scale"
"""What the scales of a state are called behind its name."""


def quantize_kv_states(step: Graph, caches: Sequence[KVCache]) -> Graph:
    """`step` with these states in 8 bits."""
    keys = {c.key: c.next_key for c in caches}
    after = keys | {c.value: c.next_value for c in caches}
    walk = _KvCacheQuantizer(Builder(), {step.outputs[result]: n for n, result in after.items()})
    walk.enter(step, after)
    for node, results in step.nodes:
        walk.node(step, node, results)
    made, now = walk.made, walk.now
    made.names = {n: now[v] for n, v in step.names.items() if v in now}
    outputs = {n: walk.kept.get(v, now[v]) for n, v in step.outputs.items()}
    return made.finish(step.name, outputs, least=step.least, facts=step.facts)


@dataclass
class _KvCacheQuantizer:
    """Writes a step again. `joined` are the values that are kept, with the state that
    each comes from; `kept` holds what becomes of them, `now` what is read in their place.
    """

    made: Builder
    joined: Mapping[Value, str]
    now: dict[Value, Value] = field(default_factory=dict)
    kept: dict[Value, Value] = field(default_factory=dict)
    scales: dict[str, Value] = field(default_factory=dict)

    def enter(self, step: Graph, states: Collection[str]) -> None:
        """Inputs and parameters, and the scales of `states`."""
        for name, facts in step.input_facts.items():
            small = Type("i8", facts.type.shape) if name in states else facts.type
            given = replace(facts, type=small)
            self.now[step.inputs[name]] = self.made.input(name, given)
        for name, value in step.parameters.items():
            self.now[value] = self.made.parameter(step.parameter_facts[name])
        for name in states:
            self.scales[name] = self.made.parameter(_make_state_scale(step, name))

    def node(self, step: Graph, node: Node, results: tuple[Value, ...]) -> None:
        """Convert a node; concatenations of cached and new positions are quantized."""
        if results[0] in self.joined:
            self._keep(node, results[0])
            return
        new = self.made.add(node.op, *(a and self.now[a] for a in node.args))
        self.now.update(zip(results, new, strict=True))
        if (known := step.made.get(node)) and new[0].node:
            self.made.made[new[0].node] = known

    def _keep(self, node: Node, whole: Value) -> None:
        """Old rows with new ones behind them, as they are kept and as they are read."""
        past, fresh = (self.now[a] for a in node.args if a is not None)
        scale = self.scales[self.joined[whole]]
        rounded = self.made.one(ops.Quantize(), fresh, scale)
        both = self.kept[whole] = self.made.one(node.op, past, rounded)
        self.now[whole] = self.made.one(ops.Dequantize(), both, scale)


def _make_state_scale(step: Graph, name: str) -> Parameter:
    """Return the scales of a state: one per head and feature."""
    _, heads, _, width = step.inputs[name].type.shape
    shape = Type("f32", (heads, Dim.of(1), width))
    return Parameter(name=name + STATE_SCALE_SUFFIX, type=shape, initial="ones")
