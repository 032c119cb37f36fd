"""What `specc run --format json` says of results: arrays and texts as plain values."""

from specc.ir.array import Array
from specc.run.generation import Result

MOST_NUMBERS = 100_000
"""Numbers of an array that are printed; larger ones are written with `-o`."""


def told_array(array: Array) -> dict[str, object]:
    """An array with its type and shape; `values` is null where it is too large to print."""
    few = array.size <= MOST_NUMBERS
    # what has few bits has no JSON of its own
    plain = array.astype("float64") if array.dtype.kind not in "biufU" else array
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "values": plain.tolist() if few else None,
    }


def told_text(result: Result) -> dict[str, object]:
    """A text that was written, or its tokens where the model has none."""
    return {
        "text": result.text,
        "tokens": [int(token) for token in result.tokens],
        "score": None if result.score is None else float(result.score),
        "complete": result.complete,
    }
