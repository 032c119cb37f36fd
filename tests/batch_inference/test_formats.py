"""Data formats: every row is read once for any block size, with the values that other readers
return."""

import csv
import io
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.batch_inference import data_files
from specc.batch_inference.columns_and_parquet import UnreadableRow
from specc.batch_inference.data_files import find_data_files, open_data_file
from specc.diagnostics.diagnostic import SpeccError

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=9)
ENDS = st.sampled_from(["\n", "\r\n"])


def read_all(path: Path, names: list[str], rows: int) -> list[tuple[object, ...]]:
    """Return all rows, block by block."""
    reader, found, start = open_data_file(path), [], 0
    for block in reader.split_into_blocks(0, rows):
        assert 0 < block.row_count <= rows
        assert block.first_row == start
        start += block.row_count
        table = reader.read_block(block, names)
        assert all(len(column) == block.row_count for column in table.values())
        found += list(zip(*(table[n] for n in names), strict=True))
    return found


@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=12), size=st.integers(1, 5), end=ENDS)
@settings(max_examples=120, deadline=None)
def test_csv_round_trip(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], size: int, end: str
) -> None:
    """Values contain commas, quotes and line ends."""
    path = tmp_path_factory.getbasetemp() / "t.csv"
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    path.write_bytes(text.getvalue().encode("utf-8"))
    assert read_all(path, ["a", "b"], size) == rows


@given(
    rows=st.lists(st.dictionaries(st.sampled_from("ab"), TEXT | st.integers(-9, 9))),
    size=st.integers(1, 5),
    end=ENDS,
)
@settings(max_examples=80, deadline=None)
def test_json_lines(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]], size: int, end: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "t.jsonl"
    lines = [json.dumps(row) + end + ("" if n % 3 else end) for n, row in enumerate(rows)]
    path.write_bytes("".join(lines).encode())
    want = [(row.get("a"), row.get("b")) for row in rows]
    assert read_all(path, ["a", "b"], size) == want


def test_text_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\ntw\xff\nlast")
    found = [text for (text,) in read_all(path, ["text"], 2)]
    assert found == ["one", "", UnreadableRow("the line is not UTF-8 at byte 2"), "last"]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    rows = [(n, f"text {n}", None if n == 4 else [n, n + 1]) for n in range(23)]
    names = ["id", "text", "ids"]
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    pq.write_table(table, path, row_group_size=10)
    assert read_all(path, names, 4) == rows
    kinds = {c.name: str(c.type) for c in open_data_file(path).read_schema()}
    assert kinds == {"id": "i64", "text": "text", "ids": "i64[n]"}


def test_image_directory(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", "deep/c.PNG", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert read_all(tmp_path, ["path"], 2) == [("a.jpg",), ("b.png",), ("deep/c.PNG",)]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("t.parquet", b"no", "E0870"),
        ("t.csv", b"a,,b\n", "E0872"),
        ("t.csv", b"", "E0872"),
        ("t.csv", b"a,a\n1,2\n", "E0872"),
        ("t.xlsx", b"", "E0873"),
    ],
)
def test_invalid_files(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SpeccError) as failed:
        open_data_file(path).read_schema()
    assert failed.value.diagnostics[0].code == code


def test_oversized_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "MAX_ROW_BYTES", 1000)
    path = tmp_path / "t.txt"
    path.write_bytes(b"a" * 2000)
    with pytest.raises(SpeccError, match="E0871"):
        open_data_file(path).split_into_blocks(0, 9)


def test_damaged_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a"\n[2]\n\xff\n{"a": NaN}\n{"a": 6}\n')
    found = [value for (value,) in read_all(path, ["a"], 9)]
    assert [found[0], found[5]] == [1, 6]
    assert all(isinstance(v, UnreadableRow) for v in found[1:5])
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\n1,2\n3\n"x,4\n')
    found = [value for (value,) in read_all(path, ["a"], 9)]
    assert found[0] == "1"
    assert all(isinstance(v, UnreadableRow) for v in found[1:])


def test_table_directories(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "_c.csv"):
        (tmp_path / name).write_text("x\n1\n")
    assert [p.name for p in find_data_files([str(tmp_path)])] == ["a.csv", "b.csv"]
    (tmp_path / "none").mkdir()
    with pytest.raises(SpeccError, match="E0873"):
        find_data_files([str(tmp_path / "none")])
    with pytest.raises(SpeccError, match="E0802"):
        find_data_files([str(tmp_path / "absent.csv")])


def test_csv_quotes_inside_values(tmp_path: Path) -> None:
    """A quote is only special at the start of a value; blank lines are skipped; an unclosed quote
    ends with the row."""
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\n5" disk,1\n\nx,"2\n"\ny,3\n\n')
    rows = [('5" disk', "1"), ("x", "2\n"), ("y", "3")]
    assert all(read_all(path, ["a", "b"], size) == rows for size in (1, 2, 9))
    path.write_bytes(b"a,b\rx,1\ry,2\r")
    with pytest.raises(SpeccError, match="E0872"):
        open_data_file(path).read_schema()


def test_unclosed_quote_is_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'a\nx\n"y\n' + b"z\n" * 30_000)
    assert [block.row_count for block in open_data_file(path).split_into_blocks(0, 9)] == [2]


def test_parquet_values_without_a_python_type(tmp_path: Path) -> None:
    """A damaged Parquet value invalidates only its row; nanosecond timestamps are not truncated."""
    text = pa.array([b"\xff", b"a"]).view(pa.string())
    times = pa.array([1_234_567_891, 2**62 // 10**6 * 10**3], pa.timestamp("ns"))
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": text, "at": times}), path)
    (bad, at), (good, _) = read_all(path, ["text", "at"], 9)
    assert isinstance(bad, UnreadableRow)
    assert (good, at) == ("a", "1970-01-01 00:00:01.234567891")
    pq.write_table(pa.table([text[1:], text[1:]], names=["a", "a"]), path)
    with pytest.raises(SpeccError, match="E0870"):
        open_data_file(path).read_schema()


def test_deeply_nested_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": ' + "[" * 900 + "]" * 900 + "}\n")
    [(value,)] = read_all(path, ["a"], 9)
    assert isinstance(value, UnreadableRow)


def test_many_columns_take_linear_time(tmp_path: Path) -> None:
    """50 000 columns and 40 rows; columns are found by index."""
    names = [f"c{n}" for n in range(50_000)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([",".join(names)] + [",".join("1" * len(names))] * 40))
    began = time.monotonic()
    assert len(read_all(path, names, 100)) == 40
    assert time.monotonic() - began < 20
