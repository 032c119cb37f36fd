"""The trees of the standard library that ship as a table are those of its files, and
only what is asked for is made.
"""

import json
import shutil
from pathlib import Path

import pytest

from specc.lang.dsl.parse import parse_dsl
from specc.lang.read import read
from specc.library import write_table as tables
from specc.library.files import Files, root
from specc.library.standard import Standard, sources
from specc.text.source import Span

STD = root() / "std"


def test_the_shipped_table_is_that_of_the_files() -> None:
    assert (root() / "std.json").read_text(encoding="utf-8") == tables.text(STD), (
        "run `make tables`"
    )


def test_a_table_gives_what_parsing_gives() -> None:
    by_table, parsed = (
        Standard(STD, root() / "std.json"),
        Standard(STD, Path("no such file")),
    )
    assert list(by_table) == list(parsed)
    for name in parsed:
        assert by_table[name][0] == parsed[name][0]
        assert by_table[name][1].path == parsed[name][1].path
        assert _place(by_table[name][0].span) == _place(parsed[name][0].span)


def _place(span: Span | None) -> tuple[str, int, int]:
    assert span is not None
    return span.source.name, span.start, span.end


def test_only_what_is_asked_for_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specc.library.standard.read",
        lambda source: pytest.fail(f"{source.name} was parsed"),
    )
    std = Standard(STD, root() / "std.json")
    assert "causal" in std
    assert not std.modules
    item, module = std["causal"]
    assert module.items["causal"] is item
    assert list(std.modules) == ["masks.specc"]


def test_an_edited_file_is_parsed(tmp_path: Path) -> None:
    folder = tmp_path / "std"
    shutil.copytree(STD, folder)
    masks = folder / "masks.specc"
    masks.write_text(
        masks.read_text(encoding="utf-8") + "\nmask mine = i == j\n", encoding="utf-8"
    )
    table = tmp_path / "std.json"
    table.write_text(tables.text(STD), encoding="utf-8")
    std = Standard(folder, table)
    assert "mine" in std
    assert std["mine"][0] == read(sources(folder)["masks.specc"]).items[-1]
    assert list(std.modules) == ["masks.specc"]


def test_a_name_of_no_block_reads_nothing() -> None:
    std = Standard(STD, root() / "std.json")
    assert std.get("no_such_block") is None
    assert not std.modules
    assert Files().standard("no_such_block") is None


def test_the_table_is_json_of_known_form() -> None:
    data = json.loads(tables.text(STD))
    assert all(set(row) == {"of", "names", "tree"} for row in data.values())
    assert data["masks.specc"]["names"] == [
        i.name for i in parse_dsl(sources(STD)["masks.specc"]).items
    ]
