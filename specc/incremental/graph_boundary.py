"""Adapt the inputs and outputs of derived graphs. Add or remove inputs that are used only for their
shape, and split axes in which heads or windows are merged with the batch axis.

The sizes of input axes determine symbolic dimensions: an axis of size `past + m` determines `m` if
`past` is known.

If heads or windows are merged with the batch axis, the merged axis has size `batch * k`, and index
`r` belongs to batch element `r // k`. States and encoder outputs are passed as `[batch, k]`,
because beam search reorders batch elements and needs a separate batch axis.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.dim import Dim, DimError, divide_dims_exactly
from specc.ir.graph import Graph, GraphBuilder, Input, Value, collect_shape_symbols, select_entries
from specc.ir.types import Type


def find_inferable_symbols(
    values: Iterable[Value], length_equations: Mapping[str, Dim] | None = None
) -> set[str]:
    """Return the symbols determined by the shapes of `values` and by `length_equations`."""
    dims = {d for v in values for d in v.shape if d.symbols()}
    known_symbols = set[str]()
    # A known symbol may determine another symbol: `m` and `past + m` determine `past`.
    while True:
        next_symbols = _find_next_symbols(dims, length_equations or {}, known_symbols)
        if next_symbols <= known_symbols:
            return known_symbols
        known_symbols |= next_symbols


def _find_next_symbols(
    dims: Iterable[Dim], length_equations: Mapping[str, Dim], known_symbols: set[str]
) -> set[str]:
    """Return the symbols that `known_symbols` and one of `dims` or one equation determine."""
    solved = {s for d in dims if (s := _find_solved_symbol(d, known_symbols))}
    return solved | {
        name for name, dim in length_equations.items() if dim.symbols() <= known_symbols
    }


def _find_solved_symbol(length: Dim, known_symbols: set[str]) -> str | None:
    """Return the symbol that an axis size and `known_symbols` determine, if any."""
    unknown = length.symbols() - known_symbols
    if len(unknown) != 1:
        return None
    (name,) = unknown
    # An equation can be solved for a term of a sum, but not for a factor of a product or an
    # argument of a minimum.
    other_monomials = [m for m, _ in length.terms if m != ((name, 1),)]
    other_symbols = Dim(dict.fromkeys(other_monomials, 1)).symbols()
    return name if len(other_monomials) < len(length.terms) and name not in other_symbols else None


def remove_unused_inputs(graph: Graph, kept_inputs: frozenset[str] = frozenset()) -> Graph:
    """Remove inputs that no node reads and no symbol depends on, except `kept_inputs`."""
    read_values = {a for node, _ in graph.nodes for a in node.operands}
    read_values |= set(graph.outputs.values())
    kept_names = {n for n, v in graph.inputs.items() if v in read_values or n in kept_inputs}
    kept_names |= {
        *_find_length_inputs(
            select_entries(graph.inputs, graph.inputs.keys() - kept_names),
            [graph.inputs[n] for n in kept_names],
            collect_shape_symbols(read_values) | collect_node_symbols(graph),
            graph.length_equations,
        )
    }
    return replace(
        graph,
        inputs=select_entries(graph.inputs, kept_names),
        input_facts=select_entries(graph.input_facts, kept_names),
    )


def add_shape_only_inputs(graph: Graph, full_graph: Graph, input_names: Iterable[str]) -> Graph:
    """Add inputs of `full_graph` whose shapes determine axis sizes that `graph` uses in a
    computation, as in `x / float(length(memory))`. The shape may also determine a term of an axis
    size, as in `past + m`. Only inputs in `input_names` are added.
    """
    needed_symbols = collect_node_symbols(graph) | collect_shape_symbols(graph.inputs.values())
    candidates = {
        n: Value(full_graph.input_facts[n].type) for n in input_names if n not in graph.inputs
    }
    present_inputs = [*graph.inputs.values()]
    for name in _find_length_inputs(
        candidates, present_inputs, needed_symbols, graph.length_equations
    ):
        graph = add_shape_only_input(graph, name, full_graph.input_facts[name])
    return graph


def _find_length_inputs(
    candidates: Mapping[str, Value],
    present_inputs: list[Value],
    needed_symbols: set[str],
    length_equations: Mapping[str, Dim],
) -> list[str]:
    """Return the candidates that determine further `needed_symbols` besides `present_inputs`."""
    length_inputs: list[str] = []
    known_symbols = find_inferable_symbols(present_inputs, length_equations)
    for name, value in candidates.items():
        determined = find_inferable_symbols([*present_inputs, value], length_equations)
        # inputs that determine no further symbolic dimension are not added
        if (determined - known_symbols) & needed_symbols:
            present_inputs, known_symbols = [*present_inputs, value], determined
            length_inputs.append(name)
    return length_inputs


def collect_node_symbols(graph: Graph) -> set[str]:
    """Return the symbols in result shapes and attributes of all nodes, including loop bodies."""
    symbols = set[str]()
    for node, results in graph.nodes:
        symbols |= collect_shape_symbols(results)
        symbols.update(*(length.symbols() for length in node.op.iterate_attribute_dims()))
        for value in node.op.get_attributes().values():
            symbols |= collect_node_symbols(value) if isinstance(value, Graph) else set()
    return symbols


def add_shape_only_input(graph: Graph, name: str, input_facts: Input) -> Graph:
    """Add an input that is used only for its shape."""
    return replace(
        graph,
        inputs={**graph.inputs, name: Value(input_facts.type)},
        input_facts={**graph.input_facts, name: input_facts},
    )


@dataclass(frozen=True, slots=True)
class FoldedBatchAxis:
    """An axis of size `batch * elements_per_sequence`, into which the batch axis is folded."""

    axis: int
    batch: Dim
    elements_per_sequence: Dim

    def unfold_type(self, type: Type) -> Type:
        """Split the folded axis of a type into the batch axis and the element axis."""
        leading_shape, trailing_shape = type.shape[: self.axis], type.shape[self.axis + 1 :]
        return Type(
            type.dtype, (*leading_shape, self.batch, self.elements_per_sequence, *trailing_shape)
        )

    def shift_axis(self, axis: int) -> int:
        """Return the index of any other axis after the folded axis has been split in two."""
        return axis + (axis > self.axis)

    def fold_value(self, builder: GraphBuilder, value: Value) -> Value:
        """Fold the batch axis and the element axis of a graph input into one axis."""
        return builder.add_op(ops.Merge(self.axis, 2), value)


def find_folded_batch_axis(type: Type, batch_size: Dim | None) -> FoldedBatchAxis | None:
    """Return the axis into which the batch axis of a type is folded, or None if not folded."""
    if batch_size is None or batch_size.name is None:
        return None
    for axis, length in enumerate(type.shape):
        if length != batch_size and batch_size.name in length.symbols():
            try:
                size = divide_dims_exactly(length, batch_size)
            except DimError:
                return None
            # The batch independence analysis reports axes that do not have a fixed number of
            # positions per batch element.
            if batch_size.name not in size.symbols():
                return FoldedBatchAxis(axis, batch_size, size)
            return None
    return None


def split_folded_batch_axis(builder: GraphBuilder, value: Value, batch_size: Dim | None) -> Value:
    """Split the folded axis of a value into the batch axis and the element axis."""
    folded = find_folded_batch_axis(value.type, batch_size)
    if folded is None:
        return value
    return builder.add_op(
        ops.Split(folded.axis, (folded.batch, folded.elements_per_sequence)), value
    )


def uniquify_name(name: str, used_names: Collection[str]) -> str:
    """Return a name that is not in `used_names`: `name`, followed by underscores if necessary."""
    while name in used_names:
        name += "_"
    return name
