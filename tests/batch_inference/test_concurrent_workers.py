"""Several workers on one plan, and unreadable files: running workers are not considered dead, and
system errors have codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specc.batch_inference.block_runner_and_crash_journal import BlockRunner, CrashJournal
from specc.batch_inference.data_files import find_data_files
from specc.batch_inference.job import run_job
from specc.batch_inference.job_plan_and_part_files import read_plan
from specc.batch_inference.job_planner import JobRequest, plan_job
from specc.diagnostics.diagnostic import SpeccError

HOLDS = """
import sys
from pathlib import Path
from specc.batch_inference.block_runner_and_crash_journal import CrashJournal
with CrashJournal.open(Path(sys.argv[1])) as journal:
    journal.record_started_rows([3, 4])
    print("begun", flush=True)
    sys.stdin.read()
"""


def make_job_request(small: Path, data: Path, out: Path) -> JobRequest:
    columns = {"ids": "text"}
    words = {"data": [str(data)], "out": str(out), "input_columns": columns}
    return JobRequest(model=str(small), rows_per_block=2, engine="serial", **words)  # type: ignore[arg-type]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in range(6)))
    return path


def test_running_worker_is_not_considered_dead(tmp_path: Path) -> None:
    """A process works on the same rows and exits; then another one continues."""
    path = tmp_path / "000000.now"
    words = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        before = path.read_bytes()
        for _ in range(3):
            with CrashJournal.open(path) as mine:
                assert not mine.crash_counts
                mine.record_started_rows([5])
                mine.close()
        assert path.read_bytes() == before
        other.kill()
    for count in (1, 2):
        with CrashJournal.open(path) as mine:
            assert mine.crash_counts == {"3 4": count}
            mine.record_started_rows([3, 4])
    with CrashJournal.open(path) as mine:
        assert mine.has_repeated_crashes([3, 4])
        mine.close()
    assert not path.exists()


def test_journal_removed_while_waiting(tmp_path: Path) -> None:
    """The lock belongs to the file that has the name now."""
    path = tmp_path / "000000.now"
    with CrashJournal.open(path) as first:
        first.close()
        with CrashJournal.open(path) as second:
            second.record_started_rows([1])
            assert CrashJournal.open(path).is_read_only


def test_finished_blocks_are_not_repeated(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run_job(make_job_request(small, data, out))
    plan = read_plan(out)
    assert plan is not None
    blocks, told = BlockRunner.open(plan, out), list[int]()
    monkeypatch.setattr(
        "specc.batch_inference.block_runner_and_crash_journal.write_part_file", None
    )
    assert blocks.run_block(1, told.append).row_count == 2
    assert told == [2]


@pytest.mark.parametrize("name", ["pipe.txt", "loop.csv", "gone.jsonl", "", "a\0b.txt"])
def test_data_that_is_not_a_regular_file(tmp_path: Path, name: str) -> None:
    """Reading a pipe would block, and would be empty the second time."""
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    with pytest.raises(SpeccError, match="E0802"):
        find_data_files([str(tmp_path / name) if name else ""])


@pytest.mark.parametrize("where", ["plan", "block"])
def test_io_errors_while_reading(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Raise an I/O error while the plan or a block is read."""
    out, plan = tmp_path / "out", plan_job(make_job_request(small, data, tmp_path / "out"))

    def raise_io_error(*_: object) -> None:
        raise OSError(5, "Input/output error", str(data))

    blocks = BlockRunner.open(plan, out)
    (out / "_specc").mkdir(parents=True)
    monkeypatch.setattr("specc.batch_inference.data_files.read_lines", raise_io_error)
    monkeypatch.setattr("specc.batch_inference.data_files.read_block_bytes", raise_io_error)
    with pytest.raises(SpeccError, match=r"E0802.*input/output error"):
        plan_job(make_job_request(small, data, out)) if where == "plan" else blocks.run_block(0)


def test_unreadable_plan(tmp_path: Path) -> None:
    (tmp_path / "_specc" / "plan.json").mkdir(parents=True)
    with pytest.raises(SpeccError, match="E0802"):
        read_plan(tmp_path)
