"""Whether this machine could run what is made."""

from math import prod

from specc.files.memory import free_memory, gigabytes, in_words, would_fit
from specc.weights.external import bytes_of
from specc.weights.formats.dtypes import FLOATS
from specc.weights.values import Binding, Seeded, Values


def too_large_here(stored: Values, numbers: int) -> tuple[str, ...]:
    """That this machine cannot run the model of so many numbers, which another may."""
    held, taken, free = 0, 0, free_memory()
    for name, wanted in stored.wanted.items():
        if stored.tied_to(name) is None:
            dtype = stored.stored_dtype(name)
            taken += bytes_of(wanted.shape, dtype)
            # floats are computed with 32 bits, whatever is stored; whole numbers stay
            held += bytes_of(wanted.shape, "f32" if dtype in FLOATS else dtype)
    if free is None or held <= free:
        return ()
    return (
        f"{in_words(held, taken, numbers)}; {gigabytes(free)} of memory are "
        f"free here: {would_fit(numbers, free)}",
    )


def count_of(values: Binding | Seeded) -> int:
    """How many numbers there are, those that are shared once."""
    return sum(
        prod(wanted.shape)
        for name, wanted in values.wanted.items()
        if values.tied_to(name) is None
    )
