"""Weights of attentions as columns, where they are asked for: each row's as alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.batch_inference.job import run_job
from specc.batch_inference.job_planner import JobRequest
from specc.diagnostics.diagnostic import Failed

TEXTS = ["a", "abcdef", "xyz", "ab", "abcabcabc"]


def mapped(small: Path, directory: Path, raw: str, to: str = "") -> Any:
    data = directory / "rows.jsonl"
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    job = JobRequest(
        model=str(small),
        data=[str(data)],
        out=str(directory / "out"),
        columns={"ids": "text"},
        raw=[raw],
        engine="serial",
        to=to,
    )
    return run_job(job)


def test_weights_are_those_of_a_row_alone(small: Path, tmp_path: Path) -> None:
    """Without the padding of the batch: as many queries and keys as the row has."""
    report = mapped(small, tmp_path, "attention.look")
    lines = (tmp_path / "out" / "part-000000.jsonl").read_text().splitlines()
    model = specc.load(small)
    for text, line in zip(TEXTS, lines, strict=True):
        row = json.loads(line)
        _, maps = model.attention(ids=text)
        got = np.array(row["attention.look"]).reshape(2, len(text), len(text))
        assert np.allclose(got, maps["look"][0], rtol=1e-5, atol=1e-6)
        assert row["classes_of.label"]
    assert report.errors == 0


def test_the_column_has_its_kind_in_the_plan(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    mapped(small, tmp_path, "attention.look", "parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out" / "part-000000.parquet")
    kind = table.schema.field("attention.look").type
    assert kind.list_size == 2
    assert [len(m) for m in table["attention.look"].to_pylist()[1]] == [6, 6]


def test_an_attention_that_there_is_not(small: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="E0879") as failed:
        mapped(small, tmp_path, "attention.lok")
    assert failed.value.diagnostics[0].notes == ("it has look",)
    assert not (tmp_path / "out").exists()
