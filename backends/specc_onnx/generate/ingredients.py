"""What follows from what a model that decodes itself is made from: which weights it
has, what the caller gives, what is computed inside.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from specc.ir.defaults import closed, reads
from specc.ir.derived import Generating
from specc.ir.graph import Graph, Value
from specc.ir.types import Type


@dataclass(frozen=True)
class Ingredients(Generating):
    """The same, looked at by the writer of the model."""

    @classmethod
    def of(cls, source: Generating) -> "Ingredients":
        """What `source` has, under these eyes."""
        return cls(source.graph, source.derived, source.decoding, source.defaults)

    @property
    def parameters(self) -> dict[str, Value]:
        """Every weight that is used, in the spec's order."""
        encode = self.derived.encode.parameters if self.derived.encode else {}
        used = {**encode, **self.derived.step.parameters}
        return {n: used[n] for n in (*self.graph.parameters, *used) if n in used}

    @property
    def stored(self) -> Graph:
        """A graph that has all of these weights, for the decision where they go."""
        return replace(self.graph, parameters=self.parameters)

    @property
    def parts(self) -> list[Graph]:
        """The graphs whose weights it needs."""
        return [g for g in (self.derived.encode, self.derived.step) if g]

    @property
    def computed(self) -> list[Graph]:
        """The defaults of inputs that are read; first of those that say which rows
        exist, which others may read.
        """
        keeps = [n for n in self.keeps if n in self._defaulted]
        others = [n for n in self._defaulted if n not in keeps]
        return [
            closed(self.defaults, names)
            for names in (keeps, others)
            if names and self.defaults
        ]

    @property
    def started(self) -> bool:
        """Whether a text is begun inside if no prompt is given, by its first row or by
        what stands before it; another input must show the number of rows.
        """
        graph, growing = self.graph, self.derived.growing
        batch = graph.inputs[growing].type.shape[0]
        others = [t for n, t in self.inputs.items() if n not in (growing, *self.keeps)]
        return (bool(self.decoding.start) or self.begins) and any(
            d == batch for t in others for d in t.shape
        )

    @property
    def begins(self) -> bool:
        """Whether the first token of a text without a prompt is drawn from rows before it."""
        return not self.decoding.start and bool(self.derived.first)

    @property
    def inputs(self) -> dict[str, Type]:
        """The inputs of the spec that are inputs of the model, in the spec's order."""
        return {
            n: v.type
            for n, v in self.graph.inputs.items()
            if n in self._read and n not in self._defaulted
        }

    @property
    def optional(self) -> tuple[str, ...]:
        """Those of the inputs that may be left out: the prompt where the first row is
        made inside.
        """
        begun = (self.derived.growing, *self.keeps) if self.started else ()
        return tuple(n for n in self.inputs if n in begun)

    @property
    def keeps(self) -> tuple[str, ...]:
        """The inputs that say of every row of the growing one whether it exists."""
        graph, shape = self.graph, self.graph.inputs[self.derived.growing].type.shape
        return tuple(
            n
            for n, v in graph.inputs.items()
            if graph.input_facts[n].keep and v.type.shape == shape
        )

    @cached_property
    def _read(self) -> set[str]:
        """The inputs of the spec that are read, by the graphs or by the default of
        another that is.
        """
        found = {
            n for part in self.parts for n in part.inputs if n in self.graph.inputs
        } | {self.derived.growing}
        todo = list(found)
        while todo:
            name = todo.pop()
            if (
                self.defaults
                and name in self.defaults.outputs
                and name != self.derived.growing
            ):
                new = reads(self.defaults, name) - found
                found |= new
                todo += new
        return found

    @property
    def _defaulted(self) -> list[str]:
        """The inputs that are computed inside."""
        outputs = self.defaults.outputs if self.defaults else ()
        return [n for n in outputs if n in self._read and n != self.derived.growing]
