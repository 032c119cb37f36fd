"""The Ray engine computes the same results as the others; run by `make scale`, which installs
Ray."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.batch_inference.job import run_job
from specc.batch_inference.job_planner import JobRequest
from specc.diagnostics.diagnostic import SpeccError

pytest.importorskip("ray", reason="make scale installs Ray")
pytestmark = [
    pytest.mark.scale,
    pytest.mark.filterwarnings("default"),  # Ray's own
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"id": n, "text": "x" * (n % 29) if n != 7 else None} for n in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_and_hash(small: Path, data: Path, out: Path, **more: object) -> dict[str, str]:
    """Return the hash of every part."""
    words = {
        "rows_per_block": 16,
        "input_columns": {"ids": "text"},
        "raw_outputs": ["vectors"],
        **more,
    }
    run_job(JobRequest(model=str(small), data=[str(data)], out=str(out), **words))  # type: ignore[arg-type]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.glob("part-*"))}


def test_same_bytes_as_one_process(small: Path, data: Path, tmp_path: Path) -> None:
    alone = run_and_hash(small, data, tmp_path / "alone", engine="serial")
    assert run_and_hash(small, data, tmp_path / "ray", engine="ray", workers=2) == alone


def test_resume_a_job_of_another_engine(small: Path, data: Path, tmp_path: Path) -> None:
    alone = run_and_hash(small, data, tmp_path, engine="serial")
    (tmp_path / "part-000001.jsonl").unlink()
    assert run_and_hash(small, data, tmp_path, engine="ray", workers=1) == alone


def test_unreachable_cluster(small: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="E0888"):
        run_and_hash(small, data, tmp_path, engine="ray", address="127.0.0.1:1")


def start_driver(small: Path, data: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start the command in a new process."""
    words = ["map", str(small), str(data), "--column", "text=ids", "-o", str(out)]
    more = ["--rows-per-part", "2", "--raw", "vectors", "--engine", "ray", "--workers", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", "specc", *words, *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def find_actors() -> list[int]:
    """Return the process ids of Ray's actors, from /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if words.startswith(b"ray::") and b"Actor" in words:
                found.append(int(entry.name))
    return found


def wait_until(holds: Callable[[], object], seconds: float = 120) -> bool:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(holds())


@pytest.mark.parametrize("whom", ["an actor", "the driver"])
def test_killed_job_loses_and_repeats_no_row(small: Path, tmp_path: Path, whom: str) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"id": n, "text": "x" * (n % 900)} for n in range(1200)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    alone = run_and_hash(small, data, tmp_path / "alone", engine="serial", rows_per_block=2)
    out = tmp_path / "ray"
    process = start_driver(small, data, out)
    assert wait_until(lambda: len(list(out.glob("part-*"))) >= 5)
    if whom == "an actor":
        os.kill(find_actors()[0], signal.SIGKILL)
        assert process.wait(240) == 0
    else:
        process.kill()
        process.wait()
        assert wait_until(lambda: not find_actors(), 60)
        begun = len(list(out.glob("part-*")))
        assert 5 <= begun < len(alone)
        assert start_driver(small, data, out).wait(240) == 0
    made = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.glob("part-*")}
    assert made == alone
    assert not list(out.glob("_specc/*.now"))


def test_generated_tokens_are_the_same(tmp_path: Path) -> None:
    """Continuous batching depends on the block only."""
    specc.compile("gpt2", tmp_path / "gpt2", init=3, set=SMALL_CONFIGS["gpt2"], graphs="step")
    data = tmp_path / "rows.jsonl"
    rows = [{"input_ids": [5 + n % 11] * (1 + n % 6)} for n in range(60)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = {
        "input_columns": {"input_ids": "input_ids"},
        "raw_outputs": [],
        "settings": {"max_tokens": 12, "stop": [2, 3, 4], "strategy": "sample"},
    }
    model = tmp_path / "gpt2"
    alone = run_and_hash(model, data, tmp_path / "alone", engine="serial", **words)
    made = run_and_hash(model, data, tmp_path / "ray", engine="ray", workers=2, **words)
    assert made == alone
