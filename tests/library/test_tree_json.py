"""Syntax trees as JSON: lossless, and a table of another tree version is rejected."""

import json

import pytest

from specc.diagnostics.diagnostic import Source
from specc.library.std_library import deserialize_syntax_tree, serialize_syntax_tree
from specc.syntax.ast import walk_tree
from specc.syntax.dsl.dsl_parser import parse_dsl

TEXT = """# above
specc 1
model m "doc"
config { a: int from "x" | "y" = 3 }
block f(x: float[n]) -> float[n] { return g(x)[..., 1:] ** 2 }
"""


def test_spans_and_comments_round_trip() -> None:
    source = Source("a.specc", TEXT)
    file = parse_dsl(source)
    again = deserialize_syntax_tree(json.loads(json.dumps(serialize_syntax_tree(file))), source)
    assert again == file
    ours = [n.span for n in walk_tree(file) if type(n).__name__ != "Comments"]
    theirs = [n.span for n in walk_tree(again) if type(n).__name__ != "Comments"]
    assert ours == theirs


def test_long_chains() -> None:
    source = Source("a", "specc 1 model m mask a = i" + " + i" * 4_000)
    again = deserialize_syntax_tree(
        json.loads(json.dumps(serialize_syntax_tree(parse_dsl(source)))), source
    )
    assert sum(1 for _ in walk_tree(again)) > 8_000


def test_other_tree_version_is_rejected() -> None:
    source = Source("a", "specc 1 model m")
    data = serialize_syntax_tree(parse_dsl(source))
    data["fields"]["File"] = ["version"]
    with pytest.raises(AssertionError, match="File has different fields in this version"):
        deserialize_syntax_tree(data, source)
