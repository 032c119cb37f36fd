"""Columns at once are what they are one by one: ids, JSON lines, Arrow's lists, byte for
byte; and what is wrong with one row is told of that row.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.batch_inference import parquet
from specc.batch_inference.file_format import ColumnType, TableColumn
from specc.batch_inference.job_files import encode_part
from specc.batch_inference.row_batches import InputRow
from specc.batch_inference.row_model import RowModel
from specc.diagnostics.diagnostic import Failed
from specc.ir.array import Array
from specc.preprocessing.records import TextBytes, TextCharacters
from specc.preprocessing.text_codec import encode_text_ids, encode_texts

VALUES = st.one_of(
    st.text(max_size=4),
    st.none(),
    st.integers(-9, 300),
    st.lists(st.integers(-9, 2**64) | st.booleans() | st.floats(), max_size=3),
    st.lists(st.integers(0, 255), max_size=3),
)


@given(columns=st.lists(st.lists(VALUES, max_size=5), min_size=1, max_size=3))
@settings(max_examples=12, deadline=None)
def test_a_row_is_what_it_is_alone(small: Path, columns: list[list[object]]) -> None:
    """Whatever stands beside it."""
    taking = RowModel.open(small, {"ids": "text"}).taking
    for values in columns:
        together = taking.rows({"text": values}, len(values))
        for number, value in enumerate(values):
            [alone] = taking.rows({"text": [value]}, 1)
            other = together[number]
            if isinstance(alone, InputRow):
                assert isinstance(other, InputRow)
                assert other.number == number
                assert alone.arrays["ids"].dtype == other.arrays["ids"].dtype
                np.testing.assert_array_equal(alone.arrays["ids"], other.arrays["ids"])
            else:
                assert other == alone


@given(texts=st.lists(st.text("abcé", max_size=5)))
@settings(max_examples=60, deadline=None)
def test_texts_together(texts: list[str]) -> None:
    for record in (
        TextCharacters(("<e>", "a", "b", "?"), end=0, unknown=3),
        TextBytes(offset=3, start=1),
        TextCharacters(("a", "b", "c")),  # which knows no é
    ):
        knows = isinstance(record, TextBytes) or record.unknown is not None
        if not knows and "é" in "".join(texts):
            with pytest.raises(Failed, match="U\\+00E9"):
                encode_texts(texts, record)
            continue
        alone = [encode_text_ids(text, record) for text in texts]
        for one, made in zip(alone, encode_texts(texts, record), strict=True):
            assert one.dtype == made.dtype
            np.testing.assert_array_equal(one, made)


def arrays_of(kind: ColumnType, rng: np.random.Generator, holes: bool) -> list[Array | None]:
    found: list[Array | None] = []
    for _ in range(9):
        shape = [int(rng.integers(0, 4)) if s is None else s for s in kind.sizes]
        found.append(
            rng.integers(0, 2, shape).astype(parquet._type(ColumnType(kind.of)).to_pandas_dtype())
        )
    if holes:
        found[2] = found[8] = None
    return found


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(
    "kind", ["f32[3]", "f32[n]", "i64[n, 2]", "f64[2, n]", "bool[n]", "f32[2, n, n]"]
)
def test_lists_in_tables(monkeypatch: pytest.MonkeyPatch, kind: str, holes: bool) -> None:
    """The same file as by way of Python's lists; pyarrow itself makes those."""
    column = TableColumn("x", ColumnType.read(kind))
    arrays = arrays_of(column.kind, np.random.default_rng(0), holes)
    made = parquet.encode_parquet([column], {"x": arrays})
    lists: list[Any] = [None if a is None else a.tolist() for a in arrays]
    assert made == parquet.encode_parquet([column], {"x": lists})
    table = pa.parquet.read_table(pa.BufferReader(made))
    assert table.column("x").to_pylist() == lists


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=2), x, max_size=3),
        max_leaves=8,
    )
)
@settings(max_examples=80, deadline=None)
def test_lines_of_json(value: object) -> None:
    """What JSON has no number for is nothing; all else is what it was."""

    def plain(item: object) -> object:
        if isinstance(item, list):
            return [plain(x) for x in item]
        if isinstance(item, dict):
            return {k: plain(v) for k, v in item.items()}
        gone = isinstance(item, float) and not np.isfinite(item)
        return None if gone else item

    line, _ = encode_part("jsonl", [TableColumn("x", ColumnType("json"))], {"x": [value]})
    assert json.loads(line.decode("utf-8", "surrogatepass")) == {"x": plain(value)}


def test_what_json_has_no_word_for() -> None:
    values = [b"ab", np.array([1.5, np.nan], np.float32), np.float32(2.5), {"a": b"c"}]
    columns = [TableColumn(f"c{n}", ColumnType("json")) for n in range(len(values))]
    line, _ = encode_part(
        "jsonl", columns, {c.name: [v] for c, v in zip(columns, values, strict=True)}
    )
    assert line == b'{"c0": "YWI=", "c1": [1.5, null], "c2": 2.5, "c3": {"a": "Yw=="}}\n'
