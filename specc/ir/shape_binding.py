"""Infer the sizes of symbolic dimensions from the shapes of inputs, and find the input axis that
determines each symbolic dimension at run time.

Every axis of every input yields an equation `dim = size`. An equation that is linear in its only
unknown symbol is solved. All equations are checked at the end.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import Dim, DimError
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
    # the loop repeats, because an equation may determine a symbol that another equation needs
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
    """Add symbols that the length equations determine to `sizes`. Return True if any is added."""
    previous_count = len(sizes)
    for symbol, dim in length_equations.items():
        if symbol not in sizes and (size := _evaluate_dim(dim, sizes)) is not None:
            sizes[symbol] = size
    return len(sizes) > previous_count


def _apply_equations(
    equations: Iterable[_ShapeEquation], sizes: dict[str, int], sources: dict[str, _ShapeEquation]
) -> bool:
    """Add symbols that the shapes of the arrays determine to `sizes`, and their equations to
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
    """Solve `c · symbol + rest = size` for the only unknown symbol, or return None."""
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


def find_symbol_sources(
    inputs: Mapping[str, Type],
    length_equations: Mapping[str, Dim] | None = None,
    known_symbols: Collection[str] = (),
) -> dict[str, LengthSource]:
    """Return the source of each symbolic dimension that has one. If a symbolic dimension is the
    size of an input axis, its source is the first such axis. Other symbolic dimensions are computed
    from `length_equations`, or from an axis such as `past + new` whose other terms are known.
    `known_symbols` need no source.
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
    """Return a symbolic dimension that known dimensions determine, and its source, or None."""
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
