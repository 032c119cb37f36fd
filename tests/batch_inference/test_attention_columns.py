"""Attention weights as output columns equal those of each row alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.batch_inference.job import run_job
from specc.batch_inference.job_planner import JobRequest
from specc.diagnostics.diagnostic import SpeccError

TEXTS = ["a", "abcdef", "xyz", "ab", "abcabcabc"]


def execute_map(small: Path, directory: Path, raw: str, to: str = "") -> Any:
    data = directory / "rows.jsonl"
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    job = JobRequest(
        model=str(small),
        data=[str(data)],
        out=str(directory / "out"),
        input_columns={"ids": "text"},
        raw_outputs=[raw],
        engine="serial",
        output_format=to,
    )
    return run_job(job)


def test_weights_equal_those_of_a_single_row(small: Path, tmp_path: Path) -> None:
    """Without the padding of the batch: the shape is that of the row's tokens."""
    report = execute_map(small, tmp_path, "attention.look")
    lines = (tmp_path / "out" / "part-000000.jsonl").read_text().splitlines()
    model = specc.load(small)
    for text, line in zip(TEXTS, lines, strict=True):
        row = json.loads(line)
        _, maps = model.attention(ids=text)
        got = np.array(row["attention.look"]).reshape(2, len(text), len(text))
        assert np.allclose(got, maps["look"][0], rtol=1e-5, atol=1e-6)
        assert row["classes_of.label"]
    assert report.errors == 0


def test_parquet_type_of_the_column(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    execute_map(small, tmp_path, "attention.look", "parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out" / "part-000000.parquet")
    kind = table.schema.field("attention.look").type
    assert kind.list_size == 2
    assert [len(m) for m in table["attention.look"].to_pylist()[1]] == [6, 6]


def test_unknown_attention(small: Path, tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="E0879") as failed:
        execute_map(small, tmp_path, "attention.lok")
    assert failed.value.diagnostics[0].notes == ("attention layers: look",)
    assert not (tmp_path / "out").exists()
