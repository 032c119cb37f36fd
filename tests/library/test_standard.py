"""The precompiled table of the standard library equals its files, and only requested items are
built."""

import json
import shutil
from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import Span
from specc.library import std_library as tables
from specc.library.spec_file_lookup import SpecLibrary, get_specs_directory
from specc.library.std_library import StdLibrary, read_std_sources
from specc.syntax.dsl.dsl_parser import parse_dsl
from specc.syntax.parse import parse_spec

STD = get_specs_directory() / "std"


def test_table_is_current() -> None:
    assert (get_specs_directory() / "std.json").read_text(
        encoding="utf-8"
    ) == tables.serialize_std_library(STD), "run `make tables`"


@pytest.mark.parity
def test_table_equals_parsing() -> None:
    by_table, parsed = (
        StdLibrary(STD, get_specs_directory() / "std.json"),
        StdLibrary(STD, Path("no such file")),
    )
    assert list(by_table) == list(parsed)
    for name in parsed:
        assert by_table[name][0] == parsed[name][0]
        assert by_table[name][1].path == parsed[name][1].path
        assert _span_position(by_table[name][0].span) == _span_position(parsed[name][0].span)


def _span_position(span: Span | None) -> tuple[str, int, int]:
    assert span is not None
    return span.source.name, span.start, span.end


def test_items_are_built_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specc.library.std_library.parse_spec",
        lambda source: pytest.fail(f"{source.name} was parsed"),
    )
    std = StdLibrary(STD, get_specs_directory() / "std.json")
    assert "causal" in std
    assert not std.modules
    item, module = std["causal"]
    assert module.items["causal"] is item
    assert list(std.modules) == ["masks.specc"]


def test_an_edited_file_is_parsed(tmp_path: Path) -> None:
    directory = tmp_path / "std"
    shutil.copytree(STD, directory)
    masks = directory / "masks.specc"
    masks.write_text(masks.read_text(encoding="utf-8") + "\nmask mine = i == j\n", encoding="utf-8")
    table = tmp_path / "std.json"
    table.write_text(tables.serialize_std_library(STD), encoding="utf-8")
    std = StdLibrary(directory, table)
    assert "mine" in std
    assert std["mine"][0] == parse_spec(read_std_sources(directory)["masks.specc"]).items[-1]
    assert list(std.modules) == ["masks.specc"]


def test_unknown_name_builds_nothing() -> None:
    std = StdLibrary(STD, get_specs_directory() / "std.json")
    assert std.get("no_such_block") is None
    assert not std.modules
    assert SpecLibrary().find_std_item("no_such_block") is None


def test_table_format() -> None:
    data = json.loads(tables.serialize_std_library(STD))
    assert all(set(row) == {"digest", "names", "tree"} for row in data.values())
    assert data["masks.specc"]["names"] == [
        i.name for i in parse_dsl(read_std_sources(STD)["masks.specc"]).items
    ]
