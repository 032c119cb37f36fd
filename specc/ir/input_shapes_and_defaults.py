"""The inputs of a graph: infer the sizes of symbolic dimensions from input shapes, and inline the
defaults of missing inputs.

Every axis of every input yields an equation `dim = size`. An equation that is linear in its only
unknown symbol is solved. All equations are checked at the end. At run time, a symbolic dimension is
computed from the input axis that determines it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir import ops
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph, GraphBuilder, Value, collect_required_nodes
from specc.ir.types import Type


@immutable_dataclass
class _ShapeEquation:
    """The equation `dim = size` for axis `axis` (0-based) of array `name`."""

    name: str
    axis: int
    dim: Dim
    size: int

    def __str__(self) -> str:
        return f"`{self.name}` has length {self.size} along axis {self.axis}"


def infer_symbol_sizes(
    arrays: Iterable[tuple[str, Type, tuple[int, ...]]],
    length_equations: Mapping[str, Dim] | None = None,
    min_lengths: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the size of each symbolic dimension. `arrays` contains the name, declared type and
    actual shape of each array. Raise E0911 if a rank is wrong, and E0912 if sizes are invalid or
    contradictory.
    """
    equations = [e for name, type, shape in arrays for e in _build_equations(name, type, shape)]
    sizes: dict[str, int] = {}
    sources: dict[str, _ShapeEquation] = {}
    length_equations = length_equations or {}
    # repeat, because an equation may determine a symbol that another equation depends on
    while _apply_length_equations(length_equations, sizes) or _apply_equations(
        equations, sizes, sources
    ):
        pass
    for equation in equations:
        _check_equation(equation, sizes, sources)
    _check_length_equations(length_equations, sizes)
    _check_lower_bounds(min_lengths or {}, sizes, sources)
    return sizes


def _check_lower_bounds(
    min_lengths: Mapping[str, int],
    sizes: Mapping[str, int],
    sources: Mapping[str, "_ShapeEquation"],
) -> None:
    """Raise E0912 if the size of a symbolic dimension is below its lower bound."""
    for symbol, min_length in min_lengths.items():
        if sizes.get(symbol, min_length) < min_length:
            title = f"`{symbol}` is {sizes[symbol]}, expected at least {min_length}"
            notes = [str(sources[symbol])] if symbol in sources else []
            raise_error("E0912", title, notes=notes)


def _apply_length_equations(length_equations: Mapping[str, Dim], sizes: dict[str, int]) -> bool:
    """Add to `sizes` the symbols that the length equations determine. Return True if symbols were
    added.
    """
    previous_count = len(sizes)
    for symbol, dim in length_equations.items():
        if symbol not in sizes and (size := _evaluate_dim(dim, sizes)) is not None:
            sizes[symbol] = size
    return len(sizes) > previous_count


def _apply_equations(
    equations: Iterable[_ShapeEquation], sizes: dict[str, int], sources: dict[str, _ShapeEquation]
) -> bool:
    """Add to `sizes` the symbols that the array shapes determine, and add their equations to
    `sources`. Return True if symbols were added.
    """
    previous_count = len(sizes)
    for equation in equations:
        if (solution := _solve_equation(equation, sizes)) is not None:
            symbol, size = solution
            sizes[symbol], sources[symbol] = size, equation
    return len(sizes) > previous_count


def _check_length_equations(length_equations: Mapping[str, Dim], sizes: Mapping[str, int]) -> None:
    """Raise E0912 if the sizes contradict a length equation of the graph."""
    for symbol, dim in length_equations.items():
        size = _evaluate_dim(dim, sizes)
        if size is not None and sizes.get(symbol, size) != size:
            raise_error(
                "E0912", f"`{symbol}` is {sizes[symbol]}, but must equal `{dim}`, which is {size}"
            )


def _build_equations(name: str, type: Type, shape: tuple[int, ...]) -> list[_ShapeEquation]:
    """Return the shape equations of array `name`, one per axis. Raise E0911 for a wrong rank."""
    if len(shape) != type.rank:
        raise_error(
            "E0911",
            f"`{name}` has {len(shape)} axes, expected {type.rank}",
            notes=[f"declared as {type}, got shape {list(shape)}"],
        )
    return [
        _ShapeEquation(name, n, d, s)
        for n, (d, s) in enumerate(zip(type.shape, shape, strict=True))
    ]


def _evaluate_dim(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a dimension, or None if it is unknown. Raise E0912 if the value is
    undefined.
    """
    try:
        return dim.substitute(sizes).number
    except DimError as error:
        raise_error(
            "E0912",
            f"these lengths are invalid for the model: {error}",
            notes=[f"the length is `{dim}`"],
        )


def _solve_equation(equation: _ShapeEquation, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """Solve the equation for its only unknown symbol if it is linear, otherwise return None."""
    if equation.dim.symbols() <= sizes.keys():
        return None
    try:
        dim = equation.dim.substitute(sizes)
    except DimError:
        return None
    for name, factor, offset in _iterate_linear_terms(dim):
        if offset.number is not None:
            value, remainder = divmod(equation.size - offset.number, factor)
            if remainder or value < 0:
                raise_error("E0912", f"{equation}, which is not a valid length of `{equation.dim}`")
            return name, value
    return None


def _check_equation(
    equation: _ShapeEquation, sizes: Mapping[str, int], sources: Mapping[str, _ShapeEquation]
) -> None:
    """Raise E0912 if an axis size contradicts the sizes of other axes."""
    expected = _evaluate_dim(equation.dim, sizes)
    if expected is None or expected == equation.size:
        return
    origins = [str(sources[s]) for s in sorted(equation.dim.symbols()) if s in sources]
    name = equation.dim.name
    if name and name in sources:
        first = sources[name].name
        title = f"`{name}` is {expected} in `{first}` but {equation.size} in `{equation.name}`"
    else:
        title = f"{equation}, expected {expected}"
    raise_error(
        "E0912",
        title,
        notes=[*origins, f"axis {equation.axis + 1} of `{equation.name}` is `{equation.dim}`"],
    )


@immutable_dataclass
class AxisSource:
    """An input axis from which a symbolic dimension is computed at run time, as `(length - offset)
    / factor`. For an input `[batch, 2 * past + new]` with a known size `new`, the source of `past`
    is axis 1 of the input with the factor 2 and the offset `new`.
    """

    input: str
    axis: int
    factor: int
    offset: Dim


LengthSource: TypeAlias = AxisSource | Dim
"""The source of a symbol: an input axis, or an expression over symbols that have a source."""


def find_symbolic_dim_sources(
    inputs: Mapping[str, Type],
    length_equations: Mapping[str, Dim] | None = None,
    known_symbols: Collection[str] = (),
) -> dict[str, LengthSource]:
    """Return the source of each symbolic dimension that has one. If a symbolic dimension is the
    size of an input axis, its source is the first such axis. Other symbolic dimensions are computed
    from `length_equations`, or from an axis such as `past + new` whose other terms are known.
    `known_symbols` are omitted.
    """
    sources: dict[str, LengthSource] = {s: Dim.symbol(s) for s in known_symbols}
    axes = [(n, a, d) for n, t in inputs.items() for a, d in enumerate(t.shape)]
    for name, axis, length in axes:
        if length.name is not None:
            sources.setdefault(length.name, AxisSource(name, axis, 1, Dim.from_value(0)))
    while new_source := _find_next_source(axes, length_equations or {}, sources):
        sources |= [new_source]
    return sources


def _find_next_source(
    axes: list[tuple[str, int, Dim]],
    length_equations: Mapping[str, Dim],
    known_sources: Mapping[str, LengthSource],
) -> tuple[str, LengthSource] | None:
    """Return a symbolic dimension that known dimensions determine, and its source. Return None if
    there is none.
    """
    for symbol, length in length_equations.items():
        if symbol not in known_sources and length.symbols() <= known_sources.keys():
            return symbol, length
    for name, axis, length in axes:
        for symbol, factor, offset in _iterate_linear_terms(length):
            if symbol not in known_sources and offset.symbols() <= known_sources.keys():
                return symbol, AxisSource(name, axis, factor, offset)
    return None


def _iterate_linear_terms(length: Dim) -> Iterator[tuple[str, int, Dim]]:
    """Yield (symbol, factor, offset) for each symbol that satisfies `length = factor * symbol +
    offset`.
    """
    for monomial, factor in length.terms:
        match monomial:
            case ((str() as symbol, 1),):
                offset = length - Dim({monomial: factor})
                if symbol not in offset.symbols():
                    yield symbol, factor, offset


DEFAULTS_GRAPH_NAME = "input defaults"
"""The name of the graph that computes input defaults. No graph in a spec can have this name,
because the name contains a space.
"""


def build_input_defaults_graph(defaults: Graph, missing_names: Collection[str]) -> Graph:
    """Return a graph that computes the defaults of `missing_names` from the model's other inputs.
    If a default depends on another missing input, that input's default is inlined. An input with a
    circular default remains an input of the graph.
    """
    builder, new_values = GraphBuilder(), dict[Value, Value]()
    for name, facts in defaults.input_facts.items():
        if name not in missing_names:
            new_values[defaults.inputs[name]] = builder.add_input(name, facts)
    pending_names = [n for n in defaults.outputs if n in missing_names]
    outputs: dict[str, Value] = {}
    while pending_names:
        name = _choose_next_default(defaults, pending_names)
        pending_names.remove(name)
        for source_name in find_default_inputs(defaults, name) - {*builder.inputs} - {*outputs}:
            new_values[defaults.inputs[source_name]] = builder.add_input(
                source_name, defaults.input_facts[source_name]
            )
        value = defaults.outputs[name]
        builder.copy_nodes(defaults, new_values, collect_required_nodes([value]))
        outputs[name] = new_values[value]
        # later defaults that read the input `name` use this output, unless the builder has the
        # input
        if name in defaults.inputs:
            new_values.setdefault(defaults.inputs[name], outputs[name])
    ordered_outputs = {n: outputs[n] for n in defaults.outputs if n in outputs}
    return builder.build_graph(defaults.name, ordered_outputs, min_lengths=defaults.min_lengths)


def _choose_next_default(defaults: Graph, pending_names: Sequence[str]) -> str:
    """Return the name of an input whose default depends on no pending input. If the dependences are
    circular, return the first of `pending_names`.
    """
    ready_names = (
        n for n in pending_names if not find_default_inputs(defaults, n) & {*pending_names}
    )
    return next(ready_names, pending_names[0])


def find_default_inputs(defaults: Graph, name: str) -> set[str]:
    """Return the names of the inputs on which the default of `name` depends."""
    value = defaults.outputs[name]
    used_values = {value, *(a for node in collect_required_nodes([value]) for a in node.args)}
    return {n for n, v in defaults.inputs.items() if v in used_values}


def extract_per_token_default(defaults: Graph, name: str, sequence_input: str) -> Graph | None:
    """Return the graph that computes the default of `name`, or None if a position of the default
    depends on tokens at other positions.
    """
    value = defaults.outputs[name]
    if find_default_inputs(defaults, name) != {sequence_input}:
        return None
    if value.shape != defaults.inputs[sequence_input].shape:
        return None
    used_ops = [node.op for node in collect_required_nodes([value])]
    if not all(op.is_elementwise or isinstance(op, ops.Constant) for op in used_ops):
        return None
    return build_input_defaults_graph(defaults, (name,))


def find_circular_input_default(defaults: Graph) -> str:
    """Return the name of an input whose default depends on the input itself, or "" if none does."""
    pending_names = set(defaults.outputs)
    while ready_names := {
        n for n in pending_names if not find_default_inputs(defaults, n) & pending_names
    }:
        pending_names -= ready_names
    return next((n for n in defaults.outputs if n in pending_names), "")


def inline_defaults(graph: Graph, defaults: Graph) -> Graph:
    """Inline the defaults of all inputs of `graph` that have a default. Each output of `defaults`
    has the name of its input. If the default of a padding mask is inlined, negative token ids at
    padded positions become 0.
    """
    defaults = build_input_defaults_graph(defaults, defaults.outputs)
    builder = GraphBuilder()
    for name, facts in graph.input_facts.items():
        if name not in defaults.outputs:
            builder.add_input(name, facts)
    for parameter in graph.parameter_facts.values():
        builder.add_parameter(parameter)
    default_values = _copy_remaining_inputs(defaults, builder)
    builder.copy_nodes(defaults, default_values)
    new_values = _copy_remaining_inputs(graph, builder)
    new_values |= {
        graph.inputs[n]: default_values[v] for n, v in defaults.outputs.items() if n in graph.inputs
    }
    for name in defaults.outputs:
        if name in graph.inputs and graph.input_facts[name].padding_side:
            _zero_padding_ids(builder, graph, new_values, graph.inputs[name])
    new_values |= {v: builder.parameters[n] for n, v in graph.parameters.items()}
    builder.copy_nodes(graph, new_values)
    return builder.clone_graph(graph, new_values)


def _zero_padding_ids(
    builder: GraphBuilder, graph: Graph, new_values: dict[Value, Value], mask: Value
) -> None:
    """Replace negative token ids at padded positions with 0, a valid index for embedding lookups.
    `mask` is the padding mask. `new_values` is updated in place.
    """
    for name, facts in graph.input_facts.items():
        ids = graph.inputs[name]
        if facts.upper_bound is None or ids not in new_values or ids.shape != mask.shape:
            continue
        zero = builder.add_op(ops.Constant(0, ids.dtype))
        is_negative = builder.add_op(ops.Compare("lt"), new_values[ids], zero)
        is_padding = builder.add_op(
            ops.And(), builder.add_op(ops.Not(), new_values[mask]), is_negative
        )
        new_values[ids] = builder.add_op(ops.Where(), is_padding, zero, new_values[ids])


def _copy_remaining_inputs(graph: Graph, builder: GraphBuilder) -> dict[Value, Value]:
    """Map inputs of `graph` to inputs of `builder` with the same name. Other inputs are omitted."""
    return {v: builder.inputs[n] for n, v in graph.inputs.items() if n in builder.inputs}
