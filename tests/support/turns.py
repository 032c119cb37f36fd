"""Long sweeps in two halves: one runs with every test, the other where there is time.

Both run in CI, which calls `make test` and `make parity`.
"""

from collections.abc import Sequence

import pytest
from _pytest.mark.structures import ParameterSet


def in_two(names: Sequence[object]) -> list[ParameterSet]:
    """Every other name, or tuple of what a test takes, as it is; the others marked `parity`."""
    return [
        pytest.param(
            *(name if isinstance(name, tuple) else (name,)),
            marks=(pytest.mark.parity,) if n % 2 else (),
        )
        for n, name in enumerate(names)
    ]
