"""A small model for rows: a classifier of texts with a row that is padded."""

from pathlib import Path

import pytest

import specc

SPEC = """specc 1
model small "Scores and vectors of texts"

config { classes: int = 3 }

dims batch, n

graph scores(ids: int[batch, n], keep: keep[batch, n]) -> (classes_of: float[batch, classes], vectors: float[batch, n, 4]) {
  x = embedding(ids, size=256, dim=4) @ table
  y = attention(x, heads=2, mask=visible(keep)) @ look
  return linear(masked_mean(y, keep), out=classes) @ head, y
}

reading {
  ids = text(bytes())
  show classes_of = choice(["low", "middle", "high"])
}
"""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.specc").write_text(SPEC)
    specc.compile(folder / "small.specc", folder / "small.onnx", init=0)
    return folder / "small.onnx"
