"""The table that gives every op its meaning, and the few things all its rules share.

A rule is called as `rule(op, env, *operands)`: `env` says how long each symbol is, an
absent operand is None. Numbers with a fraction are float64 whatever their declared
type; whole numbers and booleans keep it.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.ir.dim import Dim, DimError
from specc.ir.rules import Rules
from specc.text.diagnostic import fail

Array: TypeAlias = NDArray[Any]
Env: TypeAlias = Mapping[str, int]
Evaluate: TypeAlias = Callable[..., "Array | tuple[Array, ...]"]

evaluate: Rules[Evaluate] = Rules("numpy")

STORED: Mapping[str, type[np.generic]] = {
    "i64": np.int64,
    "i32": np.int32,
    "bool": np.bool_,
    "i8": np.int8,
    "u8": np.uint8,
    "i4": np.int8,
}


def stored(dtype: str) -> type[np.generic]:
    """How values of an IR element type are held here: float64 for every float."""
    return STORED.get(dtype, np.float64)


def length(dim: Dim, env: Env) -> int:
    """A length as a number. Fails with E0912 where these inputs give it no value."""
    try:
        return dim.at(env)
    except DimError as error:
        known = ", ".join(f"{k} = {env[k]}" for k in sorted(dim.symbols()) if k in env)
        fail(
            "E0912",
            f"these inputs leave a length without a value: {error}",
            notes=[f"here {known}"] if known else [],
            helps=["give inputs whose lengths the model can divide"],
        )


def check_numbers(ids: Array, below: int, what: str) -> None:
    """Fails with E0913 unless every id is a row number of a table of `below` rows."""
    if ids.size and (ids.min() < 0 or ids.max() >= below):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        fail(
            "E0913",
            f"{what} has rows 0 to {below - 1}, row {wrong} is asked for",
            helps=[
                "check the ids that are given, and that they were made with this model's vocabulary"
            ],
        )
