"""Parameter sweeps: every test run covers a subset; the remainder is marked `slow` or `parity`."""

from collections.abc import Callable, Collection, Sequence
from itertools import product
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def cover_axes(chosen: Callable[..., bool], *axes: Sequence[Any]) -> list[Any]:
    """Return the product of the axes as parameters; those that are not `chosen` are marked `slow`.

    `chosen` gets the index of each value in its axis. The chosen parameters must contain every
    value at least once.
    """
    numbers = list(product(*(range(len(axis)) for axis in axes)))
    kept = {n for n in numbers if chosen(*n)}
    for at, axis in enumerate(axes):
        assert {n[at] for n in kept} == set(range(len(axis))), "a value is never tried"
    return [
        pytest.param(
            *(axis[i] for axis, i in zip(axes, n, strict=True)),
            marks=() if n in kept else pytest.mark.slow,
        )
        for n in numbers
    ]


def sample_sweep(
    values: Sequence[object], costly: Collection[object] = (), stride: int = 3
) -> list[Any]:
    """Return every third parameter unmarked (every n-th with a `stride` of n), and the others
    marked `parity`. CI runs both.

    `costly` parameters are marked `parity` too.
    """
    return [
        _mark_parameters(value) if n % stride or value in costly else value
        for n, value in enumerate(values)
    ]


def _mark_parameters(value: object) -> ParameterSet:
    """Return the parameters of one test with the mark `parity`, unless they have another mark."""
    if isinstance(value, ParameterSet):
        marks = value.marks or (pytest.mark.parity,)
        return pytest.param(*value.values, marks=marks, id=value.id)
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=(pytest.mark.parity,))
