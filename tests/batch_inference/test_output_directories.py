"""Folders that take no files: said before anything is computed, and nothing is written."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specc.batch_inference.job import run_job
from specc.batch_inference.job_planner import JobRequest

POWERS = "-dac_override,-dac_read_search"
"""What lets the administrator write where nobody may."""


def without_powers() -> list[str]:
    """What a command begins with that is to be refused as anybody is."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("the administrator may write anywhere, and there is no `setpriv`")
    return ["setpriv", f"--bounding-set={POWERS}", f"--inh-caps={POWERS}"]


@pytest.mark.parametrize("which", ["new", "part", "journal"])
def test_a_folder_that_takes_no_files(small: Path, tmp_path: Path, which: str) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in range(6)))
    out = tmp_path / "closed"
    out.mkdir()
    closed = out / "_specc" if which == "journal" else out
    if which != "new":  # a job that was begun when the folder was open
        job = JobRequest(
            model=str(small),
            data=[str(data)],
            out=str(out),
            columns={"ids": "text"},
            rows=2,
            engine="serial",
        )
        run_job(job)
        (out / "part-000001.jsonl").unlink()
    before = sorted(p.name for p in out.rglob("*"))
    closed.chmod(0o555)
    words = ["map", str(small), str(data), "--column", "text=ids", "-o", str(out)]
    command = [sys.executable, "-m", "specc", *words, "--rows-per-part", "2"]
    made = subprocess.run(
        [*without_powers(), *command, "--engine", "serial"],
        capture_output=True,
        text=True,
        check=False,
    )
    closed.chmod(0o755)
    assert (made.returncode, made.stdout) == (3, "")
    assert made.stderr.startswith("error[E0812]: the output")
    assert "permission denied" in made.stderr
    assert sorted(p.name for p in out.rglob("*")) == before


@pytest.mark.parametrize("engine", ["serial", "local"])
def test_a_full_disk_is_no_reason_to_say_that_nothing_was_written(
    small: Path, tmp_path: Path, engine: str
) -> None:
    data = tmp_path / "rows.jsonl"
    # the third part is larger than a file may be
    sizes = (3, 3, 3, 3, 9_000, 9_000)
    data.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in sizes))
    out = tmp_path / "out"
    words = ["map", str(small), str(data), "--column", "text=ids", "-o", str(out)]
    command = [sys.executable, "-m", "specc", *words, "--rows-per-part", "2", "--engine", engine]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))

    made = subprocess.run(
        [*command, "--workers", "1"], capture_output=True, text=True, check=False, preexec_fn=limit
    )
    parts = len(list(out.glob("part-*")))
    assert (made.returncode, parts) == (3, 2), made.stderr
    assert f"{parts} of 3 parts are complete" in made.stderr
    assert "nothing was written" not in made.stderr
