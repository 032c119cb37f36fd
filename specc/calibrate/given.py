"""Inputs that a user gives to round weights by: arrays by name in an `.npz` file, or a
JSON object a line, each one run of the model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np

from specc.calibrate.products import Sample
from specc.data.arrays import read_arrays
from specc.data.files import MAX_ARRAY_BYTES, read_bytes
from specc.data.json_arrays import load_json
from specc.files.read import shown
from specc.ir.array import Array
from specc.run.inputs import Entrance, entrance_of
from specc.text.diagnostic import Failed, fail

__all__ = ["Entrance", "entrance_of", "given_samples"]

ONE_ARRAY = b"\x93NUMPY"
"""How an `.npy` file begins."""
TOGETHER = 8
"""Rows of a batch that are run at once."""


def given_samples(path: str, entrance: Entrance) -> Iterator[Sample]:
    """Checked inputs for each run. E0802 and E0904 for a file that cannot be read, E0854
    for one that holds no inputs of the model.
    """
    count = 0
    for place, record in _records(path):
        for sample in _batches(_prepared(record, place, entrance), entrance):
            count += 1
            yield sample
    if not count:
        _misfit(path, "it is empty", entrance)


def _records(path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """What is given for each run, and where it stands."""
    if path.lower().endswith(".npz"):
        yield shown(path), dict(read_arrays(path))
        return
    content = read_bytes(path, MAX_ARRAY_BYTES)
    if content.startswith(ONE_ARRAY):
        fail(
            "E0854",
            f"{shown(path)} holds one array, and does not say of which input",
            helps=["save arrays under the inputs' names: numpy.savez"],
        )
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{shown(path)}, line {number}"
        yield place, _object(line, place)


def _object(line: bytes, place: str) -> Mapping[str, object]:
    """The inputs of one line, by name. E0854, E0906 for what is no JSON."""
    helps = ('a line is `{"input_ids": [1, 2, 3]}`',)
    try:
        value = load_json(line, place)
    except Failed as failed:
        # its own advice is about arrays, and a line is an object
        raise Failed(*(replace(d, helps=helps) for d in failed.diagnostics)) from None
    if not isinstance(value, dict):
        fail("E0854", f"{place} is no object of inputs by name", helps=helps)
    return value


def _prepared(
    record: Mapping[str, object], place: str, entrance: Entrance
) -> dict[str, Array]:
    """Arrays for every input of one run. E0854."""
    inputs = entrance.graph.inputs
    given = {
        name: _with_batch(value, inputs[name].type.rank if name in inputs else 0)
        for name, value in record.items()
    }
    for name, value in record.items():
        if isinstance(value, list) and not value:
            _misfit(place, f"`{shown(name)}` is empty", entrance)
    try:
        made = entrance.prepared(given)
    except Failed as failed:
        _misfit(place, failed.diagnostics[0].title, entrance)
    for name, array in made.items():
        if why := _useless(name, array, entrance.graph.input_facts[name].keep):
            _misfit(place, why, entrance)
    return made


def _useless(name: str, array: Array, keep: str) -> str:
    """Why nothing can be learned of what an input holds; empty where it can."""
    if not array.size:
        return f"`{name}` is empty"
    holes = np.argwhere(~np.isfinite(array))
    if len(holes):
        first = holes[0].tolist()
        return f"`{name}` holds numbers that are not finite, the first at {first}"
    # a text of padding alone: what a model makes of it is nobody's answer
    hidden = np.argwhere(~np.any(array, -1)) if keep else holes
    if len(hidden):
        return f"`{name}` keeps nothing in row {hidden[0].tolist()}"
    return ""


def _with_batch(value: object, rank: int) -> object:
    """A line of a file is one text, or one picture: the axis of the batch is not asked
    for.
    """
    depth, inner = 0, value
    while isinstance(inner, list) and inner:
        depth, inner = depth + 1, inner[0]
    numbers = isinstance(inner, int | float)
    return [value] if numbers and depth == rank - 1 else value


def _batches(inputs: dict[str, Array], entrance: Entrance) -> Iterator[Sample]:
    """The same in pieces of a few rows, where all inputs have one first axis."""
    shapes = [v.type.shape for v in entrance.graph.inputs.values()]
    leading = {shape[0].name if shape else None for shape in shapes}
    lengths = {len(a) for a in inputs.values() if a.ndim}
    # Without one batch for all there is no telling which rows belong together.
    if len(leading) != 1 or None in leading or len(lengths) != 1:
        yield inputs
        return
    (rows,) = lengths
    for start in range(0, rows, TOGETHER):
        yield {n: a[start : start + TOGETHER] for n, a in inputs.items()}


def _misfit(place: str, why: str, entrance: Entrance) -> NoReturn:
    """E0854."""
    wanted = [
        f"`{name}`: {value.type}" for name, value in entrance.graph.inputs.items()
    ]
    fail(
        "E0854",
        f"{place} holds no inputs of this model: {why}",
        notes=[f"it takes {', '.join(wanted)}"],
        helps=["give arrays by these names in an .npz file, or a JSON object a line"],
    )
