"""Trees as JSON: nothing is lost, and a table that does not fit is refused."""

import json

import pytest

from specc.lang.dsl.parse import parse_dsl
from specc.lang.store import dump, load
from specc.lang.walk import walk
from specc.text.source import Source

TEXT = """# above
specc 1
model m "doc"
config { a: int from "x" | "y" = 3 }
block f(x: float[n]) -> float[n] { return g(x)[..., 1:] ** 2 }
"""


def test_spans_and_comments_survive_json() -> None:
    source = Source("a.specc", TEXT)
    file = parse_dsl(source)
    again = load(json.loads(json.dumps(dump(file))), source)
    assert again == file
    ours = [n.span for n in walk(file) if type(n).__name__ != "Remarks"]
    theirs = [n.span for n in walk(again) if type(n).__name__ != "Remarks"]
    assert ours == theirs


def test_long_chains() -> None:
    source = Source("a", "specc 1 model m mask a = i" + " + i" * 4_000)
    again = load(json.loads(json.dumps(dump(parse_dsl(source)))), source)
    assert sum(1 for _ in walk(again)) > 8_000


def test_a_table_of_another_tree_is_refused() -> None:
    source = Source("a", "specc 1 model m")
    data = dump(parse_dsl(source))
    data["fields"]["File"] = ["version"]
    with pytest.raises(AssertionError, match="File has other fields"):
        load(data, source)
