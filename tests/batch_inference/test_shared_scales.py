"""Batch elements that share scales (`int8-tensor`): a part has the same bytes for every engine, and
the command reports the dependence first."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.map_jobs import hash_parts, make_job, read_rows

import specc
from specc.batch_inference.job import run_job
from specc.batch_inference.job_plan_and_part_files import BatchLimits
from specc.cli.main import main

SPEC = """specc 1
model small

dims batch, n

graph scores(ids: int[batch, n], keep: keep[batch, n] right) -> (classes_of: float[batch, 3],
vectors: float[batch, n, 16]) { h = lstm(embedding(ids, size=256, dim=16) @ table, hidden=16,
keep=keep) @ rnn return linear(masked_mean_pool(h, keep), out=3) @ head, h }

reading { ids = text(bytes()) }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    (directory / "small.specc").write_text(SPEC)
    found = {kind: directory / f"{kind}.onnx" for kind in ("int8", "int8-tensor")}
    for kind, path in found.items():
        specc.compile(directory / "small.specc", path, init=0, quantize=kind)
    return found


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of random letters, so that rows have different magnitudes."""
    rng = np.random.default_rng(4)
    texts = [bytes(rng.integers(97, 123, rng.integers(1, 20))) for _ in range(24)]
    path = tmp_path_factory.mktemp("letters") / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": t.decode()}) + "\n" for t in texts))
    return path


@pytest.mark.parametrize("kind", ["int8", "int8-tensor"])
def test_shared_scales_are_reported_first(
    kind: str,
    models: dict[str, Path],
    letters: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = str(tmp_path / "out")
    given = [str(letters), "--column=text=ids", "--engine=serial", "-o", out]
    assert main(["map", str(models[kind]), *given]) == 0
    told = "share one quantization scale" in capsys.readouterr().err
    assert told == (kind == "int8-tensor")


@pytest.mark.parity
def test_same_bytes_for_every_engine(
    models: dict[str, Path], letters: Path, tmp_path: Path
) -> None:
    """Other batch limits give other values, beyond the last digits."""
    model = models["int8-tensor"]
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    run_job(make_job(model, letters, one))
    run_job(make_job(model, letters, two, engine="local", workers=2))
    assert hash_parts(one)
    assert hash_parts(one) == hash_parts(two)
    run_job(make_job(model, letters, other, limits=BatchLimits(max_rows=1)))
    a, b = (np.concatenate([r["vectors"] for r in read_rows(p)]) for p in (one, other))
    assert np.abs(a - b).max() > 1e-4 * np.abs(a).max()
