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
) -> list[ParameterSet]:
    """Return every third parameter unmarked (every n-th with a `stride` of n), and the others
    marked `parity`. CI runs both.

    `costly` parameters are marked `parity` too.
    """
    return [
        _wrap_parameters(value, is_sampled=not (n % stride or value in costly))
        for n, value in enumerate(values)
    ]


def _wrap_parameters(value: object, *, is_sampled: bool) -> ParameterSet:
    """Return the parameters of one test; unless it is sampled or has another mark, with the mark
    `parity`.
    """
    if not isinstance(value, ParameterSet):
        value = pytest.param(*(value if isinstance(value, tuple) else (value,)))
    if is_sampled or value.marks:
        return value
    return pytest.param(*value.values, marks=pytest.mark.parity, id=value.id)
