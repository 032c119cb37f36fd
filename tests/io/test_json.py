"""Untrusted JSON is rejected wherever two parsers could disagree."""

import json
from dataclasses import dataclass

import pytest

from specc.io.json_io import (
    NO_LIMITS,
    DuplicateKeyError,
    InvalidJsonError,
    JsonLimits,
    NestingTooDeepError,
    NonFiniteNumberError,
    get_exact_integer,
    parse_strict_json,
    to_json_value,
)


@dataclass(frozen=True, slots=True)
class Pair:
    first: tuple[int, ...]
    second: str | None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": 1, "a": 1}', DuplicateKeyError),
        ('[{"b": {"a": 1, "a": 2}}]', DuplicateKeyError),
        ("NaN", NonFiniteNumberError),
        ("[-Infinity]", NonFiniteNumberError),
        (f"[{2**64}]", InvalidJsonError),
        ('{"a": [-18446744073709551616]}', InvalidJsonError),
        ("[" * 101 + "1" + "]" * 101, NestingTooDeepError),
        ("[" * 100_000, NestingTooDeepError),
        ("[1,]", json.JSONDecodeError),
        ("9" * 5_000, ValueError),
    ],
)
def test_ambiguous_json_is_rejected(text: str, kind: type[ValueError]) -> None:
    with pytest.raises(kind):
        parse_strict_json(text)


def test_limits() -> None:
    assert parse_strict_json(f"[{2**64 - 1}, {1 - 2**64}, true, 1e400]") is not None
    assert parse_strict_json("[" * 100 + "1" + "]" * 100) is not None
    with pytest.raises(NestingTooDeepError):
        parse_strict_json("[[1]]", JsonLimits(max_depth=1))
    assert parse_strict_json(f"[{2**70}]", NO_LIMITS) == [2**70]


def test_dataclasses_to_json() -> None:
    assert to_json_value({"x": Pair((1, 2), None)}) == {"x": {"first": [1, 2], "second": None}}


def test_exact_integers() -> None:
    assert [get_exact_integer(v) for v in (3, True, 3.0, "3", None)] == [3, None, None, None, None]
