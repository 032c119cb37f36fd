"""Unwritable output directories are reported before anything is computed or written."""

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


def drop_privileges() -> list[str]:
    """Return a command prefix that removes root's permission to write anywhere."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("the administrator may write anywhere, and there is no `setpriv`")
    return ["setpriv", f"--bounding-set={POWERS}", f"--inh-caps={POWERS}"]


@pytest.mark.parametrize(
    "which", ["new", pytest.param("part", marks=pytest.mark.parity), "journal"]
)
def test_unwritable_directory(small: Path, tmp_path: Path, which: str) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in range(6)))
    out = tmp_path / "closed"
    out.mkdir()
    closed = out / "_specc" if which == "journal" else out
    if which != "new":  # the job began when the directory was writable
        job = JobRequest(
            model=str(small),
            data=[str(data)],
            out=str(out),
            input_columns={"ids": "text"},
            rows_per_block=2,
            engine="serial",
        )
        run_job(job)
        (out / "part-000001.jsonl").unlink()
    before = sorted(p.name for p in out.rglob("*"))
    closed.chmod(0o555)
    words = ["map", str(small), str(data), "--column", "text=ids", "-o", str(out)]
    command = [sys.executable, "-m", "specc", *words, "--rows-per-part", "2"]
    made = subprocess.run(
        [*drop_privileges(), *command, "--engine", "serial"],
        capture_output=True,
        text=True,
        check=False,
    )
    closed.chmod(0o755)
    assert (made.returncode, made.stdout) == (3, "")
    assert made.stderr.startswith("error[E0812]: the output")
    assert "permission denied" in made.stderr
    assert sorted(p.name for p in out.rglob("*")) == before


@pytest.mark.parity
@pytest.mark.parametrize("engine", ["serial", "local"])
def test_full_disk_message_counts_written_parts(small: Path, tmp_path: Path, engine: str) -> None:
    data = tmp_path / "rows.jsonl"
    # the third part exceeds the file size limit
    sizes = (3, 3, 3, 3, 9_000, 9_000)
    data.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in sizes))
    out = tmp_path / "out"
    words = ["map", str(small), str(data), "--column", "text=ids", "-o", str(out)]
    command = [sys.executable, "-m", "specc", *words, "--rows-per-part", "2", "--engine", engine]

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))

    made = subprocess.run(
        [*command, "--workers", "1"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_file_size,
    )
    parts = len(list(out.glob("part-*")))
    assert (made.returncode, parts) == (3, 2), made.stderr
    assert f"{parts} of 3 parts are complete" in made.stderr
    assert "nothing was written" not in made.stderr
