"""Ray does the same work as any other: `make scale`, which installs it."""

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
from specc.diagnostics.diagnostic import Failed

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


def done(small: Path, data: Path, out: Path, **more: object) -> dict[str, str]:
    """The bytes of every part."""
    words = {"rows": 16, "columns": {"ids": "text"}, "raw": ["vectors"], **more}
    run_job(JobRequest(model=str(small), data=[str(data)], out=str(out), **words))  # type: ignore[arg-type]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.glob("part-*"))}


def test_the_bytes_are_those_of_one_process(small: Path, data: Path, tmp_path: Path) -> None:
    alone = done(small, data, tmp_path / "alone", engine="serial")
    assert done(small, data, tmp_path / "ray", engine="ray", workers=2) == alone


def test_it_goes_on_with_what_others_began(small: Path, data: Path, tmp_path: Path) -> None:
    alone = done(small, data, tmp_path, engine="serial")
    (tmp_path / "part-000001.jsonl").unlink()
    assert done(small, data, tmp_path, engine="ray", workers=1) == alone


def test_a_cluster_that_is_not_there(small: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="E0888"):
        done(small, data, tmp_path, engine="ray", address="127.0.0.1:1")


def driver(small: Path, data: Path, out: Path) -> subprocess.Popen[bytes]:
    """The command, as a process of its own."""
    words = ["map", str(small), str(data), "--column", "text=ids", "-o", str(out)]
    more = ["--rows-per-part", "2", "--raw", "vectors", "--engine", "ray", "--workers", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", "specc", *words, *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def actors() -> list[int]:
    """The processes in which Ray's actors hold the model, where the system tells."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if words.startswith(b"ray::") and b"Actor" in words:
                found.append(int(entry.name))
    return found


def until(holds: Callable[[], object], seconds: float = 120) -> bool:
    """Waits for something to hold."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(holds())


@pytest.mark.parametrize("whom", ["an actor", "the driver"])
def test_killed_by_signal_nothing_is_lost_or_doubled(
    small: Path, tmp_path: Path, whom: str
) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"id": n, "text": "x" * (n % 900)} for n in range(1200)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    alone = done(small, data, tmp_path / "alone", engine="serial", rows=2)
    out = tmp_path / "ray"
    process = driver(small, data, out)
    assert until(lambda: len(list(out.glob("part-*"))) >= 5)
    if whom == "an actor":
        os.kill(actors()[0], signal.SIGKILL)
        assert process.wait(240) == 0
    else:
        process.kill()
        process.wait()
        assert until(lambda: not actors(), 60)
        begun = len(list(out.glob("part-*")))
        assert 5 <= begun < len(alone)
        assert driver(small, data, out).wait(240) == 0
    made = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.glob("part-*")}
    assert made == alone
    assert not list(out.glob("_specc/*.now"))


def test_texts_that_are_written_are_the_same(tmp_path: Path) -> None:
    """Places that are filled as texts end: who begins when hangs on the block alone."""
    specc.compile("gpt2", tmp_path / "gpt2", init=3, set=SMALL_CONFIGS["gpt2"], graphs="step")
    data = tmp_path / "rows.jsonl"
    rows = [{"input_ids": [5 + n % 11] * (1 + n % 6)} for n in range(60)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = {
        "columns": {"input_ids": "input_ids"},
        "raw": [],
        "settings": {"max_tokens": 12, "stop": [2, 3, 4], "strategy": "sample"},
    }
    model = tmp_path / "gpt2"
    alone = done(model, data, tmp_path / "alone", engine="serial", **words)
    made = done(model, data, tmp_path / "ray", engine="ray", workers=2, **words)
    assert made == alone
