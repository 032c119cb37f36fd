"""Generation with continuous batching: every row equals the row alone, for any blocks, neighbors
and engine; a crash loses only the row that causes it."""

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.small_configs import SMALL_CONFIGS

import specc
import specc.batch_inference.block_runner_and_crash_journal
from specc.batch_inference.batch_inference_model import GenerativeBatchModel
from specc.batch_inference.job import run_job
from specc.batch_inference.job_planner import JobRequest, plan_job
from specc.cli.main import main

ROWS, BAD = 60, 7
SETTINGS: dict[str, Any] = {
    "max_tokens": 12,
    "stop": [2, 3, 4],
    "strategy": "sample",
    "temperature": 1.3,
    "seed": 5,
}


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generator") / "gpt2"
    specc.compile("gpt2", directory, init=3, set=SMALL_CONFIGS["gpt2"], graphs="step")
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of 1 to 8 token ids; one has an id outside the vocabulary."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    prompts = [[rng.randrange(5, 17) for _ in range(rng.randint(1, 8))] for _ in range(ROWS)]
    prompts[BAD] = [99]
    path.write_text("".join(json.dumps({"ids": p}) + "\n" for p in prompts))
    return path


def make_job_request(generator: Path, data: Path, out: Path, **more: Any) -> JobRequest:
    asked: dict[str, Any] = {"rows_per_block": 25, "engine": "serial", "settings": SETTINGS}
    columns = {"input_ids": "ids"}
    given = asked | more
    return JobRequest(
        model=str(generator), data=[str(data)], out=str(out), input_columns=columns, **given
    )


def read_rows(out: Path) -> list[dict[str, Any]]:
    lines = [p.read_text().splitlines() for p in sorted(out.glob("part-*"))]
    return [json.loads(line) for part in lines for line in part]


def read_parts(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in out.glob("part-*")}


@pytest.fixture(scope="module")
def undisturbed(
    generator: Path, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed")
    run_job(make_job_request(generator, data, out))
    return read_parts(out)


def test_rows_equal_generate_each(generator: Path, data: Path, tmp_path: Path) -> None:
    """The seed of a row depends on its index in the whole data set, not on the blocks."""
    made = []
    for size in (25, 1000):
        out = tmp_path / str(size)
        report = run_job(make_job_request(generator, data, out, rows_per_block=size))
        assert (report.rows, report.errors) == (ROWS, 1)
        made.append(read_rows(out))
    assert made[0] == made[1]
    prompts = [row["ids"] for row in made[0]]
    each = specc.load(generator).generate_each(prompts, batch_size=3, **SETTINGS)
    for row, alone in zip(made[0], each, strict=True):
        assert (row["error"] is None) == isinstance(alone, specc.GenerationResult)
        if isinstance(alone, specc.GenerationResult):
            assert row["tokens"] == list(alone.tokens)
            assert row["complete"] == alone.complete
    assert [n for n, row in enumerate(made[0]) if row["error"]] == [BAD]


@pytest.mark.parity
def test_worker_processes_write_the_same_bytes(
    generator: Path, data: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    run_job(make_job_request(generator, data, tmp_path, engine="local", workers=2))
    assert read_parts(tmp_path) == undisturbed


class SimulatedCrash(BaseException):
    """Stands for the death of the process."""


SLOW = pytest.mark.slow


@pytest.mark.parametrize("when", [3, *(pytest.param(n, marks=SLOW) for n in (1, 4))])
def test_killed_job_resumes_with_the_same_output(
    generator: Path,
    data: Path,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    when: int,
) -> None:
    real, count = specc.batch_inference.block_runner_and_crash_journal.append_journal_line, 0

    def append_and_crash(path: Path, line: str) -> None:
        nonlocal count
        count += 1
        if count == when:
            # a torn line, as left by a killed process
            with path.open("a") as journal:
                journal.write(line[: len(line) // 2])
            raise SimulatedCrash
        real(path, line)

    monkeypatch.setattr(
        specc.batch_inference.block_runner_and_crash_journal,
        "append_journal_line",
        append_and_crash,
    )
    with suppress(SimulatedCrash):
        run_job(make_job_request(generator, data, tmp_path))
    report = run_job(make_job_request(generator, data, tmp_path))
    assert read_parts(tmp_path) == undisturbed
    assert not list(tmp_path.glob("_specc/*.now"))
    assert report.rows == ROWS


@pytest.mark.parametrize("poison", [{11, 12}, pytest.param({10}, marks=SLOW)])
def test_only_crashing_rows_are_lost(
    generator: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: set[int]
) -> None:
    real = GenerativeBatchModel.start_generation

    def begin_or_crash(self: GenerativeBatchModel, rows: Sequence[Any], first: int = 0) -> Any:
        if poison & {first + row.row_number for row in rows}:
            raise SimulatedCrash
        return real(self, rows, first)

    monkeypatch.setattr(GenerativeBatchModel, "start_generation", begin_or_crash)
    for _ in range(30):
        try:
            run_job(make_job_request(generator, data, tmp_path, rows_per_block=1000))
            break
        except SimulatedCrash:
            continue
    lost = {n: r["error"][:5] for n, r in enumerate(read_rows(tmp_path)) if r["error"]}
    assert lost == {BAD: "E0913", **dict.fromkeys(poison, "E0882")}


def test_static_batching(data: Path, tmp_path: Path) -> None:
    """A model without proved continuous batching; tokens equal those of each row alone."""
    directory = tmp_path / "conv"
    specc.compile("conv_lm", directory, init=3, set=SMALL_CONFIGS["conv_lm"], graphs="step")
    settings = SETTINGS | {"max_tokens": 5}
    job = make_job_request(directory, data, tmp_path / "out", settings=settings)
    made = run_job(JobRequest(**{**vars(job), "input_columns": {"ids": "ids"}}))
    rows = read_rows(tmp_path / "out")
    each = specc.load(directory).generate_each([r["ids"] for r in rows], **settings)
    assert made.errors == 1
    for row, alone in zip(rows, each, strict=True):
        if isinstance(alone, specc.GenerationResult):
            assert row["tokens"] == list(alone.tokens)


def test_report_times(generator: Path, data: Path, tmp_path: Path) -> None:
    """Startup time, separate from computing time, next to the expected time."""
    begun: list[float] = []
    job = make_job_request(generator, data, tmp_path, rows_per_block=20)
    report = run_job(job, lambda seen: begun.append(seen.startup_seconds))
    assert begun[0] == 0
    assert 0 < begun[-1] == report.startup_seconds < report.elapsed_seconds
    assert 0 < report.compute_seconds <= report.elapsed_seconds - report.startup_seconds
    assert 0 < report.padding_ratio < 1
    assert report.elapsed_seconds == report.elapsed_seconds


def test_reason_for_static_batching(
    generator: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beam search and single-file models use static batches; a package with slots does not."""
    job = make_job_request(generator, data, tmp_path / "out")
    assert not plan_job(job).static_batching_reason
    beams = {"max_tokens": 3, "strategy": "beam", "num_beams": 2}
    assert (
        "beam search"
        in plan_job(
            make_job_request(generator, data, tmp_path, settings=beams)
        ).static_batching_reason
    )
    one, rows = tmp_path / "dates.onnx", tmp_path / "rows.jsonl"
    specc.compile("dates", one, graphs="generate")
    rows.write_text('{"source": "3.5.79"}\n')
    out = tmp_path / "one"
    words = ["map", str(one), str(rows), "-o", str(out), "--engine", "serial"]
    assert main(words) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("note: a batch takes as long as its longest sequence: a standalone")
    assert sum(line.startswith("note") for line in told) == 1
