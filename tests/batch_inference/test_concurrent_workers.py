"""Several at work on one plan, and files that cannot be read: nobody is taken for dead who
lives, and whatever the system says has a code.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specc.batch_inference.block_runner import BlockRunner, CrashJournal
from specc.batch_inference.data_files import find_files
from specc.batch_inference.job import run_job
from specc.batch_inference.job_files import read_plan
from specc.batch_inference.job_planner import JobRequest, make_plan
from specc.diagnostics.diagnostic import Failed

HOLDS = """
import sys
from pathlib import Path
from specc.batch_inference.block_runner import CrashJournal
with CrashJournal.open(Path(sys.argv[1])) as journal:
    journal.begin([3, 4])
    print("begun", flush=True)
    sys.stdin.read()
"""


def job_of(small: Path, data: Path, out: Path) -> JobRequest:
    columns = {"ids": "text"}
    words = {"data": [str(data)], "out": str(out), "columns": columns}
    return JobRequest(model=str(small), rows=2, engine="serial", **words)  # type: ignore[arg-type]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in range(6)))
    return path


def test_who_lives_is_not_taken_for_dead(tmp_path: Path) -> None:
    """A process at work on the same rows, then its death, then another one."""
    path = tmp_path / "000000.now"
    words = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        before = path.read_bytes()
        for _ in range(3):
            with CrashJournal.open(path) as mine:
                assert not mine.died
                mine.begin([5])
                mine.close()
        assert path.read_bytes() == before
        other.kill()
    for count in (1, 2):
        with CrashJournal.open(path) as mine:
            assert mine.died == {"3 4": count}
            mine.begin([3, 4])
    with CrashJournal.open(path) as mine:
        assert mine.fatal([3, 4])
        mine.close()
    assert not path.exists()


def test_a_journal_that_is_removed_while_it_is_waited_for(tmp_path: Path) -> None:
    """The lock is that of the file which has the name."""
    path = tmp_path / "000000.now"
    with CrashJournal.open(path) as first:
        first.close()
        with CrashJournal.open(path) as second:
            second.begin([1])
            assert CrashJournal.open(path).shared


def test_what_another_has_done_meanwhile_is_not_done_again(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run_job(job_of(small, data, out))
    plan = read_plan(out)
    assert plan is not None
    blocks, told = BlockRunner.open(plan, out), list[int]()
    monkeypatch.setattr("specc.batch_inference.block_runner.write_part", None)
    assert blocks.do(1, told.append).rows == 2
    assert told == [2]


@pytest.mark.parametrize("name", ["pipe.txt", "loop.csv", "gone.jsonl", "", "a\0b.txt"])
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    """A pipe would be waited for, and empty after the first time."""
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    with pytest.raises(Failed, match="E0802"):
        find_files([str(tmp_path / name) if name else ""])


@pytest.mark.parametrize("where", ["plan", "block"])
def test_a_file_that_the_system_refuses(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A disk that fails in the midst, for whoever reads."""
    out, plan = tmp_path / "out", make_plan(job_of(small, data, tmp_path / "out"))

    def refused(*_: object) -> None:
        raise OSError(5, "Input/output error", str(data))

    blocks = BlockRunner.open(plan, out)
    (out / "_specc").mkdir(parents=True)
    monkeypatch.setattr("specc.batch_inference.data_files.read_lines", refused)
    monkeypatch.setattr("specc.batch_inference.data_files.read_block_bytes", refused)
    with pytest.raises(Failed, match=r"E0802.*input/output error"):
        make_plan(job_of(small, data, out)) if where == "plan" else blocks.do(0)


def test_a_plan_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "_specc" / "plan.json").mkdir(parents=True)
    with pytest.raises(Failed, match="E0802"):
        read_plan(tmp_path)
