"""Find norms whose weights can be folded into the linear layers after them."""

from collections.abc import Container, Mapping

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.quantization_format import NormFold
from specc.transforms.quantize import find_viewed_weight


def find_norm_folds(
    graph: Graph, ties: Mapping[str, str], rounded: Container[str]
) -> tuple[NormFold, ...]:
    """Return the norms that only linear layers read, whose weights only these layers read and
    are all in `rounded`. `ties` are tied weights, none of which can be changed for one
    reader alone.
    """
    walk = _ValueUsers(graph, frozenset(ties) | frozenset(ties.values()), rounded)
    found = (walk.fold(node, made) for node, (made, *_) in graph.nodes)
    return tuple(fold for fold in found if fold)


class _ValueUsers:
    """The consumers of each value of a graph."""

    def __init__(self, graph: Graph, tied: frozenset[str], rounded: Container[str]) -> None:
        self.rounded = rounded
        self.of: dict[Value, list[Node]] = {}
        for node, _ in graph.nodes:
            for value in node.args:
                if value is not None:
                    self.of.setdefault(value, []).append(node)
        self.shown = set(graph.outputs.values())
        self.names = {v: n for n, v in graph.parameters.items() if n not in tied}
        self.results = {node: made for node, (made, *_) in graph.nodes}

    def fold(self, norm: Node, made: Value) -> NormFold | None:
        """Return what can be folded out of a norm, or None."""
        if not isinstance(norm.op, ops.LayerNorm | ops.RMSNorm) or made in self.shown:
            return None
        # without a gain there is nothing to fold, with or without a bias
        own = [a for a in norm.args[1:] if a is not None]
        if not own or norm.args[1] is None:
            return None
        # a gain shared with another norm would be folded out of that one as well
        if any(a not in self.names or self.of[a] != [norm] for a in own):
            return None
        maps = self._maps_of(made)
        if not maps:
            return None
        names = [self.names[a] for a in own]
        return NormFold(names[0], "".join(names[1:]), tuple(maps.items()))

    def _maps_of(self, made: Value) -> dict[str, bool] | None:
        """Return the weights that `made` is multiplied by, and whether each is transposed; None
        if something else reads it or a weight is used in both orientations.
        """
        maps: dict[str, bool] = {}
        for reader in self.of.get(made, ()):
            weight = self._get_weight(reader, made)
            if weight is None:
                return None
            name, is_transposed = weight
            if maps.setdefault(name, is_transposed) != is_transposed:
                return None
        return maps

    def _get_weight(self, reader: Node, made: Value) -> tuple[str, bool] | None:
        """Return the weight that a linear layer multiplies `made` by, and whether it is
        transposed; None for other readers, weights that are not quantized, or weights with
        other readers.
        """
        if not isinstance(reader.op, ops.Linear) or reader.args[0] is not made:
            return None
        value = find_viewed_weight(reader.args[1])
        # a product of the norm's result with itself is not a linear map of it
        if value is None or value not in self.names or made in reader.args[1:]:
            return None
        if self.names[value] not in self.rounded:
            return None
        is_transposed, shown = False, reader.args[1]
        while shown is not None and shown.node is not None:
            # a sliced weight is read in parts, which are not followed here
            if not isinstance(shown.node.op, ops.Transpose) or shown in self.shown:
                return None
            is_transposed, shown = not is_transposed, shown.node.args[0]
        return (self.names[value], is_transposed) if self._is_only_reader(value, made) else None

    def _is_only_reader(self, weight: Value, made: Value) -> bool:
        """Return True if only linear layers of `made` read a weight, transposed or not."""
        for reader in self.of.get(weight, ()):
            if isinstance(reader.op, ops.Transpose):
                if not self._is_only_reader(self.results[reader], made):
                    return False
            elif not isinstance(reader.op, ops.Linear) or reader.args[0] is not made:
                return False
        return weight not in self.shown
