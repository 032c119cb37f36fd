"""A small text classifier with a padding mask, rows for it, and the parts of an uninterrupted
job."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.map_jobs import ROW_COUNT, hash_parts, make_job

import specc
from specc.batch_inference.job import run_job

SPEC = """specc 1
model small "Scores and vectors of texts"

config { classes: int = 3 }

dims batch, n

graph scores(ids: int[batch, n], keep: keep[batch, n]) -> (classes_of: float[batch, classes], vectors: float[batch, n, 4]) {
  x = embedding(ids, size=256, dim=4) @ table
  y = attention(x, heads=2, mask=visible(keep)) @ look
  return linear(masked_mean_pool(y, keep), out=classes) @ head, y
}

reading {
  ids = text(bytes())
  show classes_of = choice(["low", "middle", "high"])
}
"""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    (directory / "small.specc").write_text(SPEC)
    specc.compile(directory / "small.specc", directory / "small.onnx", init=0)
    return directory / "small.onnx"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of different lengths; row 7 is null."""
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"id": n, "text": "x" * int(rng.integers(1, 30))} for n in range(ROW_COUNT)]
    rows[7]["text"] = None  # type: ignore[assignment]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def undisturbed(
    small: Path, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Hashes of the parts of an uninterrupted job."""
    out = tmp_path_factory.mktemp("undisturbed")
    run_job(make_job(small, data, out))
    return hash_parts(out)
