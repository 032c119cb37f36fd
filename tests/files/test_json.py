"""JSON from outside is refused wherever two readers could disagree about it."""

import json
from dataclasses import dataclass

import pytest

from specc.files.json import (
    ANY,
    GivenTwice,
    Limits,
    NoNumber,
    NotJson,
    TooDeep,
    parse,
    plain,
    whole,
)


@dataclass(frozen=True, slots=True)
class Pair:
    first: tuple[int, ...]
    second: str | None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": 1, "a": 1}', GivenTwice),
        ('[{"b": {"a": 1, "a": 2}}]', GivenTwice),
        ("NaN", NoNumber),
        ("[-Infinity]", NoNumber),
        (f"[{2**64}]", NotJson),
        ('{"a": [-18446744073709551616]}', NotJson),
        ("[" * 101 + "1" + "]" * 101, TooDeep),
        ("[" * 100_000, TooDeep),
        ("[1,]", json.JSONDecodeError),
        ("9" * 5_000, ValueError),
    ],
)
def test_refused(text: str, kind: type[ValueError]) -> None:
    with pytest.raises(kind):
        parse(text)


def test_up_to_the_limits() -> None:
    assert parse(f"[{2**64 - 1}, {1 - 2**64}, true, 1e400]") is not None
    assert parse("[" * 100 + "1" + "]" * 100) is not None
    with pytest.raises(TooDeep):
        parse("[[1]]", Limits(depth=1))
    assert parse(f"[{2**70}]", ANY) == [2**70]


def test_records_as_json() -> None:
    assert plain({"x": Pair((1, 2), None)}) == {"x": {"first": [1, 2], "second": None}}


def test_what_is_whole() -> None:
    assert [whole(v) for v in (3, True, 3.0, "3", None)] == [3, None, None, None, None]
