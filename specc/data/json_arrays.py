"""Arrays in JSON: lists of lists of numbers, all equally long."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import numpy as np

from specc.data.files import MAX_RANK
from specc.files.json import ANY, Json, NoNumber, NotJson, TooDeep, parse
from specc.files.read import shown
from specc.ir.array import Array
from specc.text.diagnostic import Failed, fail


def parse_json(data: bytes, name: str) -> dict[str, Array]:
    """The arrays of a JSON text: a list (of lists …) of numbers, a number, or an object
    of those by name.
    """
    value = load_json(data, name)
    if isinstance(value, dict):
        return {
            key: nested_array(item, f"the JSON text in {shown(name)}, `{shown(key)}`")
            for key, item in value.items()
        }
    return {"": nested_array(value, f"the JSON text in {shown(name)}")}


def nested_array(value: object, where: str, *, left: bool = False) -> Array:
    """Nested lists as an array: bool, i64 if all are whole, or f64. `where` is what a
    message calls them; what is too short is padded on the `left`, says a message. E0906.
    """
    if isinstance(value, list) and {*map(type, value)} == {int}:  # ids, as a rule
        with suppress(OverflowError):  # told below, with the place
            return np.array(value, np.int64)
    shape = _shape(value)
    if len(shape) > MAX_RANK:
        _bad_json(
            where,
            f"lists are nested more than {MAX_RANK} deep; that is the most axes an array has",
        )
    flat: list[bool | int | float] = []
    try:
        _flatten(value, shape, (), flat, where)
    except Failed as failed:
        raise _with_filled(failed, _filled(value, left)) from None
    kinds = {type(item) for item in flat}
    if bool in kinds and len(kinds) > 1:
        _bad_json(where, "true and false are mixed with numbers")
    if kinds == {bool}:
        return np.array(flat, np.bool_).reshape(shape)
    dtype = np.float64 if float in kinds else np.int64
    return np.array(flat, dtype).reshape(shape)


MOST_FILLED = 24
"""Numbers of lists that a message shows filled up."""


def _filled(value: object, left: bool) -> list[list[object]]:
    """Lists of numbers made one length, by zeros behind or on the `left`; empty where they
    are, or where it is not that which is wrong.
    """
    rows = [x for x in value if isinstance(x, list)] if isinstance(value, list) else []
    if not rows or len(rows) != len(value if isinstance(value, list) else ()):
        return []
    if any(not isinstance(x, int | float) for row in rows for x in row):
        return []
    longest = max(map(len, rows))
    if all(len(row) == longest for row in rows):
        return []
    lacking = [[0] * (longest - len(row)) for row in rows]
    pairs = zip(rows, lacking, strict=True)
    return [[*zeros, *row] if left else [*row, *zeros] for row, zeros in pairs]


def load_json(data: bytes, name: str) -> Json:
    """What a JSON text says, with no name twice and no NaN. Fails with E0906."""
    where = f"the JSON text in {shown(name)}"
    try:
        return parse(data.decode("utf-8-sig"), ANY)
    except UnicodeDecodeError as fault:
        _bad_json(where, f"it is not UTF-8 text (byte {fault.start})")
    except NoNumber as fault:
        _bad_json(where, f"{fault} that a model can be given")
    except TooDeep:
        _bad_json(where, "lists are nested too deep")
    except NotJson as fault:
        _bad_json(where, str(fault))
    except json.JSONDecodeError as fault:
        place = f"line {fault.lineno}, column {fault.colno}"
        _bad_json(where, f"{place}: {fault.msg.lower()}")
    except ValueError:  # an integer of thousands of digits
        _bad_json(where, "it holds a number with too many digits")


def _shape(value: object) -> tuple[int, ...]:
    """The shape that the first elements suggest."""
    shape: list[int] = []
    # a list may hold itself
    while isinstance(value, list | tuple) and len(shape) <= MAX_RANK:
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _flatten(
    value: object,
    shape: tuple[int, ...],
    at: tuple[int, ...],
    out: list[bool | int | float],
    where: str,
) -> None:
    """Append the numbers in `value`, which must have `shape`, to `out`."""
    if not shape:
        out.append(_number(value, at, where))
        return
    if not isinstance(value, list | tuple) or len(value) != shape[0]:
        is_ = (
            f"a list of {len(value)}" if isinstance(value, list | tuple) else "no list"
        )
        due = f"the ones before are lists of {shape[0]}"
        _bad_json(where, f"{_place(at)} is {is_} where {due}")
    for i, item in enumerate(value):
        _flatten(item, shape[1:], (*at, i), out, where)


def _number(value: object, at: tuple[int, ...], where: str) -> bool | int | float:
    """A number that an array can hold, or a truth value."""
    if isinstance(value, list | tuple):
        why = "is a list where the ones before are numbers"
    elif not isinstance(value, bool | int | float):
        why = "is null" if value is None else "is no number"
    elif isinstance(value, float) and not math.isfinite(value):
        why = "is NaN" if math.isnan(value) else "is too large for a number"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        why = "is a whole number beyond 64 bits"
    else:
        return value
    _bad_json(where, f"{_place(at)} {why}")


def _place(at: tuple[int, ...]) -> str:
    return "".join(f"[{i}]" for i in at) or "the value"


def _with_filled(failed: Failed, filled: list[list[object]]) -> Failed:
    """The fault of lists of different lengths, with what they would be filled up."""
    if not filled:
        return failed
    shown = f", as {filled}" if len(filled[0]) * len(filled) <= MOST_FILLED else ""
    mend = (
        f"fill up the shorter ones{shown}, and say which rows exist by the input that "
        "the spec has for that, of type `keep`"
    )
    return Failed(replace(failed.diagnostics[0], helps=(mend,)))


def _bad_json(where: str, why: str) -> NoReturn:
    fail(
        "E0906",
        f"cannot read numbers from {where}: {why}",
        helps=["give nested lists of equal lengths, such as [[1, 2, 3], [4, 5, 6]]"],
    )
