"""What every part of the writing of a model that decodes itself reads and adds to."""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.ir.derived import Decoding, Derived
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc_onnx.generate.ingredients import Ingredients
from specc_onnx.lower.emitter import Emitter, Site, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One model on its way.

    `types` are those of the inputs that come from the spec, `scalars` the names of the
    others. `outer` holds what the main graph knows by the names of the spec's inputs
    and of what `encode` hands over; it grows. `batch` is the number of texts, each of
    which is there `repeats` times in the rows of a step.

    In beam search the prompt is read once a text, and rows fan out behind it, unless
    something with a row for each text is handed over, which does not change its shape:
    then every row is there `repeats` times from the start.
    """

    whole: Ingredients
    g: Emitter
    types: Mapping[str, Type]
    scalars: Mapping[str, str]
    outer: dict[str, Tensor]
    batch: Dim
    repeats: int

    @property
    def derived(self) -> Derived:
        """The graphs that the spec's was taken apart into."""
        return self.whole.derived

    @property
    def decoding(self) -> Decoding:
        """How tokens are chosen."""
        return self.whole.decoding

    @property
    def rows(self) -> Dim:
        """The rows of a step."""
        return self.batch * self.repeats

    @property
    def sides(self) -> list[str]:
        """The step's inputs along the growing axis, the growing one apart."""
        own = {
            self.derived.growing,
            *self.derived.handed,
            *(s.name for s in self.derived.states),
        }
        return [n for n in self.derived.step.inputs if n not in own]

    def batch_axis(self, type: Type) -> int | None:
        """Where a value has a row for each text, if it has."""
        return next((n for n, d in enumerate(type.shape) if d == self.batch), None)

    def enter(self, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
        """Give the inputs and weights of a graph that is lowered next their tensors."""
        g = self.g
        read = {a for node, _ in graph.nodes for a in node.args if a}
        read |= set(graph.outputs.values())
        for name, value in graph.inputs.items():
            # An input that nothing reads need not be known: `encode` lists those of the
            # whole spec, of which the caller gives only some.
            if name in tensors or value in read:
                g.tensors[value] = Tensor(tensors[name].name, value.type, value)
                g.padded[value] = graph.input_facts[name].keep
        for name, value in graph.parameters.items():
            g.tensors[value] = g.parameters[name]

    def spread(self, x: Tensor, axis: int | None = None) -> str:
        """`x` with each row of the batch as often as steps have it."""
        if axis is None:
            axis = self.batch_axis(x.type)
        if axis is None or self.repeats == 1:
            return x.name
        g = self.g
        g.site = Site(("beams",))
        numbers = g.node(
            "Range", g.constant(0, "i64"), g.dim(self.rows), g.constant(1, "i64")
        )
        # Beams of one text stand side by side, 0 0 0 1 1 1: that is how a step's
        # results are read back as `[s, n]`. `Tile` would give 0 1 0 1 0 1.
        texts = g.node("Div", numbers, g.constant(self.repeats, "i64"))
        return g.node("Gather", x.name, texts, axis=axis)
