"""One way in which padded positions reach a result."""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.analysis.padding_facts import NO_PADDING_FACTS, PaddingFacts, PaddingSource
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value


@dataclass(frozen=True, kw_only=True)
class PaddingLeak:
    """Padded positions of the mask `keep` reach `output` of `graph` through `dirt`; `states`
    are the facts of its values. `not_finite`: only because they hold NaN or infinity.
    """

    graph: Graph
    keep: str
    output: str
    dirt: PaddingSource
    states: Mapping[Value, PaddingFacts]
    not_finite: bool

    @property
    def node(self) -> Node:
        """The op that reads padded positions."""
        return self.dirt.node

    def origin(self) -> Node:
        """The op that first makes NaN or infinity at padded positions."""
        node = self.node
        while True:
            made = [a for a in node.args if a and not self._finite(a)]
            if not made:
                return node
            first = made[0].node
            assert first is not None, "an input is finite"
            node = first

    def _finite(self, value: Value) -> bool:
        """Return True if a value introduces no NaN or infinity."""
        constant = value.node is None or isinstance(value.node.op, ops.Constant)
        return constant or self.states.get(value, NO_PADDING_FACTS).finite

    def is_moved(self) -> bool:
        """True if padding separates always-valid positions from the others."""
        reading = self.dirt.reading
        return reading is not None and (reading.apart or reading.into_apart)

    def is_padded(self, value: Value) -> bool:
        """Return True if the shape of a value contains the symbol of the padded axis."""
        symbols = self.graph.inputs[self.keep].type.shape[-1].symbols()
        return any(symbols & d.symbols() for d in value.type.shape)

    def joining(self) -> Node | None:
        """The `pad` or `concat` that added positions next to those that are read, or None."""
        node: Node | None = self.node
        while node is not None and not isinstance(node.op, ops.Pad | ops.Concat):
            node = next((a.node for a in node.args if a and self.is_padded(a)), None)
        return node

    def mask(self, node: Node) -> str:
        """Return the mask with axes put in for those of the node's operand."""
        first = next((a for a in node.args if a and self.is_padded(a)), None)
        own = self.graph.inputs[self.keep].type.shape[-1]
        shape = first.type.shape if first else (own, own)
        axes = [n for n, d in enumerate(shape) if d == own]
        # Behind windows and slices the mask is another: that of `conv_keep`.
        mask = self.keep if axes else "mask"
        for n in range(1, len(shape)):
            if n != (axes or [1])[-1]:
                mask = f"insert({mask}, axis={n})"
        return mask

    def declared(self, side: str) -> str:
        """Return the help that declares the side of padding."""
        lengths = ", ".join(map(str, self.graph.inputs[self.keep].type.shape))
        return f"declare `{self.keep}: keep[{lengths}] {side}`"
