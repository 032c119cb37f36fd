"""A job processes every row once and in order, for any engine and number of interruptions."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.map_jobs import ROW_COUNT, hash_parts, make_job, read_rows

import specc
import specc.batch_inference.block_runner_and_crash_journal
import specc.batch_inference.job_plan_and_part_files
from specc.batch_inference.batch_inference_model import BatchInferenceModel
from specc.batch_inference.block_runner_and_crash_journal import BlockRunner
from specc.batch_inference.job import run_job
from specc.batch_inference.job_plan_and_part_files import BatchLimits
from specc.batch_inference.job_planner import plan_job
from specc.batch_inference.row_batches_and_cost_model import InputRow
from specc.batch_inference.worker_processes_and_ray import LocalJobEngine
from specc.diagnostics.diagnostic import SpeccError


def test_rows_equal_single_runs(small: Path, data: Path, tmp_path: Path) -> None:
    report = run_job(make_job(small, data, tmp_path))
    assert (report.rows, report.errors, report.blocks) == (ROW_COUNT, 1, 4)
    rows = read_rows(tmp_path)
    texts = [json.loads(line) for line in data.read_text().splitlines()]
    assert [row["id"] for row in rows] == [*range(ROW_COUNT)]
    model = specc.load(small)
    for row, text in zip(rows, texts, strict=True):
        if row["id"] == 7:
            assert str(row["error"]).startswith("E0878")
            assert row["vectors"] is None
            assert row["classes_of.label"] is None
            continue
        alone = model.run(ids=[text["text"]])
        scores = np.exp(alone["classes_of"][0].astype(np.float64))
        best = int(scores.argmax())
        assert row["error"] is None
        assert row["classes_of.label"] == ("low", "middle", "high")[best]
        assert row["classes_of.score"] == pytest.approx(scores[best] / scores.sum())
        np.testing.assert_allclose(row["vectors"], alone["vectors"][0], rtol=1e-4, atol=1e-6)
    fault = json.loads((tmp_path / "_specc/errors.jsonl").read_text())
    assert (fault["row"], fault["code"]) == (7, "E0878")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_worker_processes_write_the_same_bytes(
    small: Path, data: Path, tmp_path: Path, undisturbed: dict[str, str], workers: int
) -> None:
    run_job(make_job(small, data, tmp_path, engine="local", workers=workers))
    assert hash_parts(tmp_path) == undisturbed


class SimulatedCrash(BaseException):
    """Stands for the death of the process."""


def crash_at_write(monkeypatch: pytest.MonkeyPatch, when: int) -> Callable[..., None]:
    """Crash at the n-th write, before or after writing."""
    count = 0
    real = specc.batch_inference.job_plan_and_part_files.write_file_atomically

    def write_and_crash(path: Path, chunks: list[bytes]) -> None:
        nonlocal count
        count += 1
        if count == when:
            if when % 2:
                real(path, chunks)
            raise SimulatedCrash
        real(path, chunks)

    def append_and_crash(path: Path, line: str) -> None:
        nonlocal count
        count += 1
        if count == when and when % 2:
            added(path, line)
        if count == when:
            raise SimulatedCrash
        added(path, line)

    added = specc.batch_inference.block_runner_and_crash_journal.append_journal_line
    monkeypatch.setattr(
        specc.batch_inference.job_plan_and_part_files, "write_file_atomically", write_and_crash
    )
    monkeypatch.setattr(
        specc.batch_inference.block_runner_and_crash_journal,
        "append_journal_line",
        append_and_crash,
    )
    return write_and_crash


@given(when=st.integers(1, 40), again=st.integers(1, 40))
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_killed_job_loses_and_repeats_no_row(
    small: Path,
    data: Path,
    tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[str, str],
    when: int,
    again: int,
) -> None:
    """Crash between journal, batch, summary and part, and once more after resuming."""
    out = tmp_path_factory.mktemp("killed")
    for at in (when, again):
        with pytest.MonkeyPatch.context() as patched:
            crash_at_write(patched, at)
            with suppress(SimulatedCrash):
                run_job(make_job(small, data, out))
    twice = any(
        count >= specc.batch_inference.block_runner_and_crash_journal.MAX_ATTEMPTS
        for path in out.glob("_specc/*.now")
        for count in specc.batch_inference.block_runner_and_crash_journal.CrashJournal.open(
            path
        ).crash_counts.values()
    )
    report = run_job(make_job(small, data, out))
    # a batch that began twice is computed row by row, which changes the last digits
    assert twice or hash_parts(out) == undisturbed
    assert (report.rows, report.errors) == (ROW_COUNT, 1)
    assert not list(out.glob("_specc/*.now"))


def crash_at_rows(monkeypatch: pytest.MonkeyPatch, numbers: set[int]) -> None:
    """Crash every process that computes one of these rows."""
    real = BatchInferenceModel.run_batch

    def compute_or_crash(
        self: BatchInferenceModel, rows: list[InputRow], first: int = 0
    ) -> list[dict[str, object]]:
        if numbers & {row.row_number for row in rows}:
            raise SimulatedCrash
        return real(self, rows, first)

    monkeypatch.setattr(BatchInferenceModel, "run_batch", compute_or_crash)


@pytest.mark.parametrize(
    "numbers", [{3, 4}, *(pytest.param(n, marks=pytest.mark.slow) for n in ({3}, {0, 15}))]
)
def test_only_crashing_rows_are_lost(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: set[int]
) -> None:
    crash_at_rows(monkeypatch, numbers)
    for _ in range(40):
        try:
            run_job(make_job(small, data, tmp_path))
            break
        except SimulatedCrash:
            continue
    blamed = {n for n, r in enumerate(read_rows(tmp_path)) if r["error"]}
    begun = {block + n for block in (0, 16, 32, 48) for n in numbers if block + n < ROW_COUNT}
    assert blamed == begun | {7}
    codes = {str(r["error"])[:5] for r in read_rows(tmp_path) if r["error"]}
    assert codes == {"E0878", "E0882"}


@pytest.mark.parity
def test_killed_workers_are_replaced(
    small: Path, data: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    job = make_job(small, data, tmp_path)
    plan_job(job).write_file(tmp_path)
    engine = LocalJobEngine(out=tmp_path, worker_count=2)
    killed = 0
    for progress in engine.run_blocks(range(4)):
        if progress.row_count > 0 and killed < 2:
            killed += 1
            engine.live_workers[0].process.send_signal(signal.SIGKILL)
    assert killed == 2
    assert hash_parts(tmp_path) == undisturbed


@pytest.mark.parity
def test_workers_exit_with_the_parent_process(
    small: Path, data: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    words = ["map", str(small), str(data), "--column", "text=ids", "-o", str(tmp_path)]
    more = ["--rows-per-part", "16", "--batch-size", "4", "--raw", "vectors", "--workers", "2"]
    driver = subprocess.Popen([sys.executable, "-m", "specc", *words, *more])
    while not list(tmp_path.glob("_specc/*.now")) and driver.poll() is None:
        time.sleep(0.002)
    driver.kill()
    driver.wait()
    until = time.monotonic() + 3
    while (left := list(find_workers(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    run_job(make_job(small, data, tmp_path, engine="local", workers=1))
    assert hash_parts(tmp_path) == undisturbed


def find_workers(out: Path) -> Iterator[int]:
    """Yield the process ids of workers on this directory, from /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if "specc.batch_inference.worker_processes_and_ray" in words and str(out) in words:
            yield int(entry.name)


def test_finished_job_is_not_repeated(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_job(make_job(small, data, tmp_path))
    assert first.resumed_rows == 0
    monkeypatch.setattr(BlockRunner, "run_block", None)
    again = run_job(make_job(small, data, tmp_path, workers=7, engine="local"))
    assert (again.resumed_rows, again.rows, again.errors) == (ROW_COUNT, ROW_COUNT, 1)
    assert again.padding_ratio == first.padding_ratio


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"limits": BatchLimits(max_rows=5)}, "limits"),
        ({"raw_outputs": []}, "result_columns"),
        ({"rows_per_block": 17}, "blocks"),
        ({"copied_columns": ["id"]}, "copied_columns"),
        ({"output_format": "parquet"}, "output_format"),
    ],
)
def test_output_directory_of_another_job(
    small: Path, data: Path, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    run_job(make_job(small, data, tmp_path))
    before = hash_parts(tmp_path)
    with pytest.raises(SpeccError, match="E0875") as failed:
        run_job(make_job(small, data, tmp_path, **change))
    assert named in "".join(failed.value.diagnostics[0].notes)
    assert hash_parts(tmp_path) == before


def test_workers_that_fail_to_start(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_job(make_job(small, data, tmp_path)).write_file(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SpeccError, match="E0883"):
        list(LocalJobEngine(out=tmp_path, worker_count=2).run_blocks(range(4)))


def test_missing_ray(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpeccError, match="E0888"):
        run_job(make_job(small, data, tmp_path / "out", engine="ray"))
    assert not (tmp_path / "out").exists()


def test_optional_packages_are_not_imported() -> None:
    code = (
        "import sys, specc; from specc.cli.main import main\n"
        "try: main(['map', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'pyarrow', 'ray'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_workers_that_exit_early(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not restarted forever."""
    plan_job(make_job(small, data, tmp_path)).write_file(tmp_path)
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\necho '{\"ready\": true}'\n")
    dies.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(dies))
    with pytest.raises(SpeccError, match="block 0"):
        list(LocalJobEngine(out=tmp_path, worker_count=1).run_blocks([0]))
