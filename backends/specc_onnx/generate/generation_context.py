"""State shared by all parts of a standalone generator while it is built, and its scalar inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from specc.ir.dim import Dim
from specc.ir.graph import Graph, Value
from specc.ir.model import (
    DecodingConfig,
    DerivedGraphs,
    SelfDecodingGraph,
    find_default_sources,
    resolve_absent_inputs,
)
from specc.ir.types import Type
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import LoweringSite, Tensor

MAX_TOKENS_INPUT = "max_tokens"
"""i64[]: maximum number of generated tokens; an input of every generation model."""

SEED_INPUT = "seed"
"""i64[]: the seed of sampling; not negative."""

PENALTY_INPUT = "repetition_penalty"
"""f32[]: the repetition penalty; 1 has no effect."""

SAMPLING_INPUTS = {"temperature": "f32", "top_k": "i64", "top_p": "f32", "min_p": "f32"}
"""The scalar inputs of a sampling model. 0 (`top_k`, `min_p`) and 1 (`temperature`, `top_p`) have
no effect."""

NO_TOKEN = -1
"""The token that is returned if all logits are NaN: not a token of any model. Its log-probability
is NaN."""


def list_scalar_inputs(decoding: DecodingConfig) -> dict[str, str]:
    """Return the scalar inputs of the model with their element types, in order."""
    scalars = {MAX_TOKENS_INPUT: "i64"}
    if decoding.strategy == "sample":
        scalars |= {SEED_INPUT: "i64", **SAMPLING_INPUTS}
    if decoding.penalized:
        scalars[PENALTY_INPUT] = "f32"
    return scalars


@dataclass(frozen=True)
class GenerationParts(SelfDecodingGraph):
    """The parts of a generative model, for the model builder."""

    @classmethod
    def of(cls, source: SelfDecodingGraph) -> "GenerationParts":
        """Return the parts of `source`."""
        return cls(source.graph, source.derived, source.decoding, source.defaults)

    @property
    def parameters(self) -> dict[str, Value]:
        """Return all weights in use, in the spec's order."""
        encode = self.derived.encode.parameters if self.derived.encode else {}
        used = {**encode, **self.derived.step.parameters}
        return {n: used[n] for n in (*self.graph.parameters, *used) if n in used}

    @property
    def stored(self) -> Graph:
        """Return a graph with all of these weights, for the decision where they are stored."""
        return replace(self.graph, parameters=self.parameters)

    @property
    def parts(self) -> list[Graph]:
        """Return the graphs to lower: encoder (if any) and decode step."""
        return [g for g in (self.derived.encode, self.derived.step) if g]

    @property
    def computed(self) -> list[Graph]:
        """Return the graphs of input defaults in use, padding masks first."""
        keeps = [n for n in self.keeps if n in self._find_defaulted_inputs]
        others = [n for n in self._find_defaulted_inputs if n not in keeps]
        return [
            resolve_absent_inputs(self.defaults, names)
            for names in (keeps, others)
            if names and self.defaults
        ]

    @property
    def started(self) -> bool:
        """Return True if generation can start without a prompt."""
        graph, growing = self.graph, self.derived.growing
        batch = graph.inputs[growing].type.shape[0]
        others = [t for n, t in self.inputs.items() if n not in (growing, *self.keeps)]
        return (bool(self.decoding.start) or self.begins) and any(
            d == batch for t in others for d in t.shape
        )

    @property
    def begins(self) -> bool:
        """Return True if the first token of an empty sequence is chosen from prefix positions."""
        return not self.decoding.start and bool(self.derived.first)

    @property
    def inputs(self) -> dict[str, Type]:
        """Return the spec's inputs that are inputs of the model, in the spec's order."""
        return {
            n: v.type
            for n, v in self.graph.inputs.items()
            if n in self._find_read_inputs and n not in self._find_defaulted_inputs
        }

    @property
    def optional(self) -> tuple[str, ...]:
        """Return the optional inputs: the prompt, if a start token is built in."""
        begun = (self.derived.growing, *self.keeps) if self.started else ()
        return tuple(n for n in self.inputs if n in begun)

    @property
    def keeps(self) -> tuple[str, ...]:
        """Return the padding masks of the prompt."""
        graph, shape = self.graph, self.graph.inputs[self.derived.growing].type.shape
        return tuple(
            n
            for n, v in graph.inputs.items()
            if graph.input_facts[n].keep and v.type.shape == shape
        )

    @cached_property
    def _find_read_inputs(self) -> set[str]:
        """Return the spec's inputs that the graphs, or defaults in use, read."""
        found = {n for part in self.parts for n in part.inputs if n in self.graph.inputs} | {
            self.derived.growing
        }
        todo = list(found)
        while todo:
            name = todo.pop()
            if self.defaults and name in self.defaults.outputs and name != self.derived.growing:
                new = find_default_sources(self.defaults, name) - found
                found |= new
                todo += new
        return found

    @property
    def _find_defaulted_inputs(self) -> list[str]:
        """Return the inputs that are computed inside the model."""
        outputs = self.defaults.outputs if self.defaults else ()
        return [n for n in outputs if n in self._find_read_inputs and n != self.derived.growing]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationContext:
    """One model under construction. `types` are the spec's inputs, `scalars` names of the others;
    `outer` the tensors of the main graph by name, to which encoder outputs are added. Each of
    `batch` sequences is repeated `repeats` times in a step: by the beams if an encoder output has a
    batch axis, whose shape may not change; else once, and beams fan out behind the prompt.
    """

    whole: GenerationParts
    g: Emitter
    types: Mapping[str, Type]
    scalars: Mapping[str, str]
    outer: dict[str, Tensor]
    batch: Dim
    repeats: int

    @property
    def derived(self) -> DerivedGraphs:
        """Return the encoder and decode step."""
        return self.whole.derived

    @property
    def decoding(self) -> DecodingConfig:
        """Return the decoding settings."""
        return self.whole.decoding

    @property
    def rows(self) -> Dim:
        """Return the number of sequences in a step: batch size times beams."""
        return self.batch * self.repeats

    @property
    def per_token_inputs(self) -> list[str]:
        """Return the step's inputs along the time axis other than the tokens."""
        own = {
            self.derived.growing,
            *self.derived.static_inputs,
            *(s.name for s in self.derived.states),
        }
        return [n for n in self.derived.step.inputs if n not in own]

    def batch_axis(self, type: Type) -> int | None:
        """Return the batch axis of a type, or None."""
        return next((n for n, d in enumerate(type.shape) if d == self.batch), None)

    def bind_inputs(self, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
        """Bind the inputs and weights of the next graph to tensors."""
        g = self.g
        read = {a for node, _ in graph.nodes for a in node.args if a}
        read |= set(graph.outputs.values())
        for name, value in graph.inputs.items():
            # Unread inputs may be unknown: `encode` lists those of the whole spec, and the caller
            # gives only some.
            if name in tensors or value in read:
                g.values.tensors[value] = Tensor(tensors[name].name, value.type, value)
                g.facts.padding_sides[value] = graph.input_facts[name].keep
        for name, value in graph.parameters.items():
            g.values.tensors[value] = g.values.parameters[name]

    def repeat_for_beams(self, x: Tensor, axis: int | None = None) -> str:
        """`x` with each row of the batch as often as steps have it."""
        if axis is None:
            axis = self.batch_axis(x.type)
        if axis is None or self.repeats == 1:
            return x.name
        g = self.g
        g.site = LoweringSite(("beams",))
        numbers = g.node("Range", g.constant(0, "i64"), g.dim(self.rows), g.constant(1, "i64"))
        # Beams of one sequence are adjacent (0 0 0 1 1 1), since a step's results are reshaped to
        # `[s, n]`. `Tile` would give 0 1 0 1 0 1.
        texts = g.node("Div", numbers, g.constant(self.repeats, "i64"))
        return g.node("Gather", x.name, texts, axis=axis)
