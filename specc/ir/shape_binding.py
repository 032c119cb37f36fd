"""Infer the sizes of symbolic dimensions from the shapes of inputs, and find the input axis that
determines each of them at run time.

Every axis of every input is an equation `dim = size`. An equation that is linear in its only
unknown symbol is solved; all equations are checked at the end.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.ir.dim import Dim, DimError
from specc.ir.types import Type


@dataclass(frozen=True, slots=True)
class _ShapeEquation:
    """The equation `dim = size` of the 0-based axis `axis` of the array `name`."""

    name: str
    axis: int
    dim: Dim
    size: int

    def __str__(self) -> str:
        return f"`{self.name}` has length {self.size} along axis {self.axis + 1}"


def bind_symbols(
    arrays: Iterable[tuple[str, Type, tuple[int, ...]]],
    length_equations: Mapping[str, Dim] | None = None,
    min_lengths: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the size of each symbolic dimension. `arrays` contains the name, declared type and
    actual shape of each array. Raise E0911 if a rank is wrong, and E0912 if sizes are invalid or
    contradictory.
    """
    equations = [e for name, type, shape in arrays for e in _build_equations(name, type, shape)]
    env: dict[str, int] = {}
    source: dict[str, _ShapeEquation] = {}
    length_equations = length_equations or {}
    # repeat, because an equation may determine a symbol of another equation
    while _apply_length_equations(length_equations, env) or _apply_equations(
        equations, env, source
    ):
        pass
    for equation in equations:
        _check_equation(equation, env, source)
    _check_length_equations(length_equations, env)
    _check_lower_bounds(min_lengths or {}, env, source)
    return env


def _check_lower_bounds(
    min_lengths: Mapping[str, int], env: Mapping[str, int], source: Mapping[str, "_ShapeEquation"]
) -> None:
    for symbol, bound in min_lengths.items():
        if env.get(symbol, bound) < bound:
            title = f"`{symbol}` is {env[symbol]}, expected at least {bound}"
            reason = [str(source[symbol])] if symbol in source else []
            raise_error("E0912", title, notes=reason)


def _apply_length_equations(length_equations: Mapping[str, Dim], env: dict[str, int]) -> bool:
    """Solve for symbols by the length equations of the graph. Return True if one was solved."""
    before = len(env)
    for symbol, dim in length_equations.items():
        if symbol not in env and (number := _evaluate_dim(dim, env)) is not None:
            env[symbol] = number
    return len(env) > before


def _apply_equations(
    equations: Iterable[_ShapeEquation], env: dict[str, int], source: dict[str, _ShapeEquation]
) -> bool:
    """Solve for symbols by the shapes of the arrays. Return True if one was solved. `source`
    records the equation of each symbol.
    """
    before = len(env)
    for equation in equations:
        if (solved := _solve_equation(equation, env)) is not None:
            symbol, number = solved
            env[symbol], source[symbol] = number, equation
    return len(env) > before


def _check_length_equations(length_equations: Mapping[str, Dim], env: Mapping[str, int]) -> None:
    for symbol, dim in length_equations.items():
        number = _evaluate_dim(dim, env)
        if number is not None and env.get(symbol, number) != number:
            raise_error(
                "E0912", f"`{symbol}` is {env[symbol]}, but must equal `{dim}`, which is {number}"
            )


def _build_equations(name: str, type: Type, shape: tuple[int, ...]) -> list[_ShapeEquation]:
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


def _evaluate_dim(dim: Dim, env: Mapping[str, int]) -> int | None:
    """Return the value of a dimension, or None if it is unknown. Raise E0912 for a division with a
    remainder.
    """
    try:
        return dim.substitute(env).number
    except DimError as error:
        raise_error(
            "E0912",
            f"these lengths are invalid for the model: {error}",
            notes=[f"the length is `{dim}`"],
        )


def _solve_equation(equation: _ShapeEquation, env: Mapping[str, int]) -> tuple[str, int] | None:
    """Solve an equation `c · symbol + rest = size` for its only unknown symbol. Return None unless
    it has exactly one unknown symbol.
    """
    if equation.dim.symbols() <= env.keys():
        return None
    try:
        dim = equation.dim.substitute(env)
    except DimError:
        return None
    for name, factor, rest in _iterate_linear_terms(dim):
        if rest.number is not None:
            value, left = divmod(equation.size - rest.number, factor)
            if left or value < 0:
                raise_error("E0912", f"{equation}, which is not a valid length of `{equation.dim}`")
            return name, value
    return None


def _check_equation(
    equation: _ShapeEquation, env: Mapping[str, int], source: Mapping[str, _ShapeEquation]
) -> None:
    expected = _evaluate_dim(equation.dim, env)
    if expected is None or expected == equation.size:
        return
    origins = [str(source[s]) for s in sorted(equation.dim.symbols()) if s in source]
    name = equation.dim.name
    if name and name in source:
        first = source[name]
        title = (
            f"`{name}` is {first.size} in `{first.name}` but {equation.size} in `{equation.name}`"
        )
        if first.dim.name != name:
            title = (
                f"`{name}` is {expected} by `{first.name}` but {equation.size} in `{equation.name}`"
            )
    else:
        title = f"{equation}, expected {expected}"
    raise_error(
        "E0912",
        title,
        notes=[*origins, f"axis {equation.axis + 1} of `{equation.name}` is `{equation.dim}`"],
    )


@dataclass(frozen=True, slots=True)
class AxisSource:
    """An input axis from which a symbolic dimension is computed at run time, as `(length - offset)
    / factor`. For an input `[batch, 2 * past + new]` and known `new`, the source of `past` is (that
    input, 1, 2, new).
    """

    input: str
    axis: int
    factor: int
    offset: Dim


LengthSource: TypeAlias = AxisSource | Dim
"""The source of a symbolic dimension: an axis of an input, or an expression over dimensions that
have sources.
"""


def find_length_sources(
    inputs: Mapping[str, Type],
    length_equations: Mapping[str, Dim] | None = None,
    known_symbols: Collection[str] = (),
) -> dict[str, LengthSource]:
    """Return the sources of all symbolic dimensions that have one. If a symbolic dimension is the
    size of an input axis, its source is the first such axis. Others are computed by
    `length_equations`, or from an axis such as `past + new` whose other terms are known.
    `known_symbols` need no source.
    """
    found: dict[str, LengthSource] = {s: Dim.symbol(s) for s in known_symbols}
    axes = [(n, a, d) for n, t in inputs.items() for a, d in enumerate(t.shape)]
    for name, axis, length in axes:
        if length.name is not None:
            found.setdefault(length.name, AxisSource(name, axis, 1, Dim.from_value(0)))
    while more := _find_next_source(axes, length_equations or {}, found):
        found |= [more]
    return found


def _find_next_source(
    axes: list[tuple[str, int, Dim]],
    length_equations: Mapping[str, Dim],
    known_sources: Mapping[str, LengthSource],
) -> tuple[str, LengthSource] | None:
    """Return a symbolic dimension that the known ones determine, and its source, or None."""
    for symbol, length in length_equations.items():
        if symbol not in known_sources and length.symbols() <= known_sources.keys():
            return symbol, length
    for name, axis, length in axes:
        for symbol, factor, rest in _iterate_linear_terms(length):
            if symbol not in known_sources and rest.symbols() <= known_sources.keys():
                return symbol, AxisSource(name, axis, factor, rest)
    return None


def _iterate_linear_terms(length: Dim) -> Iterator[tuple[str, int, Dim]]:
    """Yield (symbol, factor, offset) for each symbol for which `length` is `factor * symbol +
    offset`.
    """
    for monomial, factor in length.terms:
        match monomial:
            case ((str() as symbol, 1),):
                rest = length - Dim({monomial: factor})
                if symbol not in rest.symbols():
                    yield symbol, factor, rest
