"""The rows of a weight, one for each result, some of them at a time: they come as f32, of
a stack of matrices never of two at once.
"""

from collections.abc import Iterator
from math import prod

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.dtypes import NUMPY
from specc.weights.values import Values, array_of

NARROWER = ("f16", "bf16")
"""Types whose every number float32 has."""


def turned_over(values: Values, name: str, out: int, many: int) -> Iterator[Array]:
    """The rows `[some, in]` of a weight that lies as `[in, out]`, `many` together; it is
    in memory whole.
    """
    lying = array_of(values, name, "f32")
    for matrix in lying.reshape(-1, lying.shape[-2], out):
        for start in range(0, out, many):
            yield np.ascontiguousarray(matrix[:, start : start + many].T)


def as_they_lie(values: Values, name: str, out: int, many: int) -> Iterator[Array]:
    """The rows `[some, in]` of a weight that lies as `[out, in]`, `many` together, each
    piece an array of its own: chunks of a file are written over.
    """
    *stack, _, wide = values.wanted[name].shape
    whole = prod(stack) * out * wide
    stored = values.stored_dtype(name)
    # what is narrower is widened here, where it is copied in any case
    kind = stored if stored in NARROWER else "f32"
    rows, at, done = np.empty(0, np.float32), 0, 0
    for chunk in values.chunks(name, kind):
        numbers = np.frombuffer(chunk, NUMPY[kind])
        # chunks end anywhere: a piece waits for the next, or one gives several
        while numbers.size:
            if at == rows.size:
                left = out - done // wide % out
                rows, at = np.empty(min(many, left) * wide, np.float32), 0
            here = numbers[: rows.size - at]
            rows[at : at + here.size] = here
            at, done = at + here.size, done + here.size
            numbers = numbers[here.size :]
            if at == rows.size:
                yield rows.reshape(-1, wide)
    assert done == whole, f"{name} ends within a row"
