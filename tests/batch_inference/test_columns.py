"""Columns are converted in bulk exactly like single rows: token ids, JSON lines, Arrow lists;
errors belong to one row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.batch_inference import columns_and_parquet
from specc.batch_inference.batch_inference_model import BatchInferenceModel
from specc.batch_inference.columns_and_parquet import ColumnType, TableColumn
from specc.batch_inference.job_plan_and_part_files import encode_part_file
from specc.batch_inference.row_batches_and_cost_model import InputRow
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.array import Array
from specc.preprocessing.preprocessing_records import ByteTokenizer, CharTokenizer
from specc.preprocessing.text_codec import encode_text_to_ids, encode_texts_to_ids

VALUES = st.one_of(
    st.text(max_size=4),
    st.none(),
    st.integers(-9, 300),
    st.lists(st.integers(-9, 2**64) | st.booleans() | st.floats(), max_size=3),
    st.lists(st.integers(0, 255), max_size=3),
)


@pytest.mark.parity
@given(columns=st.lists(st.lists(VALUES, max_size=5), min_size=1, max_size=3))
@settings(max_examples=12, deadline=None)
def test_rows_do_not_depend_on_their_neighbors(small: Path, columns: list[list[object]]) -> None:
    """Compare each row of a table with the same row alone."""
    taking = BatchInferenceModel.open(small, {"ids": "text"}).row_converter
    for values in columns:
        together = taking.convert_rows({"text": values}, len(values))
        for number, value in enumerate(values):
            [alone] = taking.convert_rows({"text": [value]}, 1)
            other = together[number]
            if isinstance(alone, InputRow):
                assert isinstance(other, InputRow)
                assert other.row_number == number
                assert alone.arrays["ids"].dtype == other.arrays["ids"].dtype
                np.testing.assert_array_equal(alone.arrays["ids"], other.arrays["ids"])
            else:
                assert other == alone


@given(texts=st.lists(st.text("abcé", max_size=5)))
@settings(max_examples=60, deadline=None)
def test_text_batches_equal_single_texts(texts: list[str]) -> None:
    for record in (
        CharTokenizer(("<e>", "a", "b", "?"), end_token_id=0, unknown_token_id=3),
        ByteTokenizer(offset=3, start_token_id=1),
        CharTokenizer(("a", "b", "c")),  # has no é
    ):
        knows = isinstance(record, ByteTokenizer) or record.unknown_token_id is not None
        if not knows and "é" in "".join(texts):
            with pytest.raises(SpeccError, match="U\\+00E9"):
                encode_texts_to_ids(texts, record)
            continue
        alone = [encode_text_to_ids(text, record) for text in texts]
        for one, made in zip(alone, encode_texts_to_ids(texts, record), strict=True):
            assert one.dtype == made.dtype
            np.testing.assert_array_equal(one, made)


def sample_arrays(kind: ColumnType, rng: np.random.Generator, holes: bool) -> list[Array | None]:
    found: list[Array | None] = []
    for _ in range(9):
        shape = [int(rng.integers(0, 4)) if s is None else s for s in kind.list_sizes]
        found.append(
            rng.integers(0, 2, shape).astype(
                columns_and_parquet._make_arrow_type(
                    ColumnType(kind.element_type)
                ).to_pandas_dtype()
            )
        )
    if holes:
        found[2] = found[8] = None
    return found


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(
    "kind", ["f32[3]", "f32[n]", "i64[n, 2]", "f64[2, n]", "bool[n]", "f32[2, n, n]"]
)
def test_arrow_lists(monkeypatch: pytest.MonkeyPatch, kind: str, holes: bool) -> None:
    """The file equals one written from Python lists by pyarrow."""
    column = TableColumn("x", ColumnType.parse(kind))
    arrays = sample_arrays(column.type, np.random.default_rng(0), holes)
    made = columns_and_parquet.encode_parquet([column], {"x": arrays})
    lists: list[Any] = [None if a is None else a.tolist() for a in arrays]
    assert made == columns_and_parquet.encode_parquet([column], {"x": lists})
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
def test_json_lines(value: object) -> None:
    """Numbers that JSON cannot represent become null."""

    def replace_nonfinite(item: object) -> object:
        if isinstance(item, list):
            return [replace_nonfinite(x) for x in item]
        if isinstance(item, dict):
            return {k: replace_nonfinite(v) for k, v in item.items()}
        gone = isinstance(item, float) and not np.isfinite(item)
        return None if gone else item

    line, _ = encode_part_file("jsonl", [TableColumn("x", ColumnType("json"))], {"x": [value]})
    assert json.loads(line.decode("utf-8", "surrogatepass")) == {"x": replace_nonfinite(value)}


def test_json_of_bytes_and_arrays() -> None:
    values = [b"ab", np.array([1.5, np.nan], np.float32), np.float32(2.5), {"a": b"c"}]
    columns = [TableColumn(f"c{n}", ColumnType("json")) for n in range(len(values))]
    line, _ = encode_part_file(
        "jsonl", columns, {c.name: [v] for c, v in zip(columns, values, strict=True)}
    )
    assert line == b'{"c0": "YWI=", "c1": [1.5, null], "c2": 2.5, "c3": {"a": "Yw=="}}\n'
