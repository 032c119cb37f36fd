"""A model run on batches that come one after another."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from specc.ir.array import Array
from specc.run.loaded import Loaded
from specc.text.diagnostic import Failed, fail


def run_each(
    model: Loaded, given: tuple[object, ...], inputs: Mapping[str, object]
) -> Iterator[dict[str, Array]]:
    """The results of each batch, when it is asked for: no two batches are held at once.
    E0910 where what is given is no iterable of mappings; a fault names its batch.
    """
    batches: Any = given[0]
    alone = len(given) == 1 and not inputs
    if not alone or isinstance(batches, Mapping | str) or not _iterable(batches):
        _not_batches()
    return _each(model, batches)


def _iterable(value: object) -> bool:
    # an array can be iterated as well, and its rows are no batches
    return isinstance(value, Iterable) and "__array__" not in dir(type(value))


def _each(
    model: Loaded, batches: Iterable[Mapping[str, object]]
) -> Iterator[dict[str, Array]]:
    for number, batch in enumerate(batches, start=1):
        if not isinstance(batch, Mapping):
            _not_batches()
        try:
            made = model.run(**batch)
        except Failed as failed:
            first, *others = failed.diagnostics
            where = f"it is in batch {number}"
            raise Failed(replace(first, notes=(*first.notes, where)), *others) from None
        yield made


def _not_batches() -> NoReturn:
    fail(
        "E0910",
        "inputs are given by name; without a name stand batches",
        helps=["model.run(x=array)", 'model.run({"x": array} for array in arrays)'],
    )
