"""Texts that are written behind rows, as room becomes free: every row as alone, whatever
its block, its neighbors and the engine; and what a process dies of is one row.
"""

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.small_configs import SMALL_CONFIGS

import specc
import specc.batch_inference.block_runner
from specc.batch_inference.job import run_job
from specc.batch_inference.job_planner import JobRequest, make_plan
from specc.batch_inference.row_model import RowGenerator
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
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("writer") / "gpt2"
    specc.compile("gpt2", directory, init=3, set=SMALL_CONFIGS["gpt2"], graphs="step")
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of 1 to 8 ids; one that there is not."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    prompts = [[rng.randrange(5, 17) for _ in range(rng.randint(1, 8))] for _ in range(ROWS)]
    prompts[BAD] = [99]
    path.write_text("".join(json.dumps({"ids": p}) + "\n" for p in prompts))
    return path


def job_of(writer: Path, data: Path, out: Path, **more: Any) -> JobRequest:
    asked: dict[str, Any] = {"rows": 25, "engine": "serial", "settings": SETTINGS}
    columns = {"input_ids": "ids"}
    given = asked | more
    return JobRequest(model=str(writer), data=[str(data)], out=str(out), columns=columns, **given)


def rows_in(out: Path) -> list[dict[str, Any]]:
    lines = [p.read_text().splitlines() for p in sorted(out.glob("part-*"))]
    return [json.loads(line) for part in lines for line in part]


def parts(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in out.glob("part-*")}


@pytest.fixture(scope="module")
def undisturbed(
    writer: Path, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed")
    run_job(job_of(writer, data, out))
    return parts(out)


def test_every_text_is_what_generate_each_writes(writer: Path, data: Path, tmp_path: Path) -> None:
    """Whatever the blocks: the seed draws a row by its number in all data."""
    made = []
    for size in (25, 1000):
        out = tmp_path / str(size)
        report = run_job(job_of(writer, data, out, rows=size))
        assert (report.rows, report.errors) == (ROWS, 1)
        made.append(rows_in(out))
    assert made[0] == made[1]
    prompts = [row["ids"] for row in made[0]]
    each = specc.load(writer).generate_each(prompts, batch_size=3, **SETTINGS)
    for row, alone in zip(made[0], each, strict=True):
        assert (row["error"] is None) == isinstance(alone, specc.GenerationResult)
        if isinstance(alone, specc.GenerationResult):
            assert row["tokens"] == list(alone.tokens)
            assert row["complete"] == alone.complete
    assert [n for n, row in enumerate(made[0]) if row["error"]] == [BAD]


def test_processes_write_the_same_bytes(
    writer: Path, data: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    run_job(job_of(writer, data, tmp_path, engine="local", workers=2))
    assert parts(tmp_path) == undisturbed


class Died(BaseException):
    """What stands for the end of a process."""


SLOW = pytest.mark.slow


@pytest.mark.parametrize("when", [3, *(pytest.param(n, marks=SLOW) for n in (1, 4))])
def test_killed_in_the_midst_nothing_is_otherwise(
    writer: Path,
    data: Path,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    when: int,
) -> None:
    real, count = specc.batch_inference.block_runner.append_journal_line, 0

    def append(path: Path, line: str) -> None:
        nonlocal count
        count += 1
        if count == when:
            # torn, as a line is that a process was killed over
            with path.open("a") as journal:
                journal.write(line[: len(line) // 2])
            raise Died
        real(path, line)

    monkeypatch.setattr(specc.batch_inference.block_runner, "append_journal_line", append)
    with suppress(Died):
        run_job(job_of(writer, data, tmp_path))
    report = run_job(job_of(writer, data, tmp_path))
    assert parts(tmp_path) == undisturbed
    assert not list(tmp_path.glob("_specc/*.now"))
    assert report.rows == ROWS


@pytest.mark.parametrize("poison", [{11, 12}, pytest.param({10}, marks=SLOW)])
def test_only_a_row_that_a_process_dies_of_is_lost(
    writer: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: set[int]
) -> None:
    real = RowGenerator.begun

    def begun(self: RowGenerator, rows: Sequence[Any], first: int = 0) -> Any:
        if poison & {first + row.number for row in rows}:
            raise Died
        return real(self, rows, first)

    monkeypatch.setattr(RowGenerator, "begun", begun)
    for _ in range(30):
        try:
            run_job(job_of(writer, data, tmp_path, rows=1000))
            break
        except Died:
            continue
    lost = {n: r["error"][:5] for n, r in enumerate(rows_in(tmp_path)) if r["error"]}
    assert lost == {BAD: "E0913", **dict.fromkeys(poison, "E0882")}


def test_texts_that_cannot_be_joined_wait_for_each_other(data: Path, tmp_path: Path) -> None:
    """A model of which it is not proved; tokens are those of each alone."""
    directory = tmp_path / "conv"
    specc.compile("conv_lm", directory, init=3, set=SMALL_CONFIGS["conv_lm"], graphs="step")
    settings = SETTINGS | {"max_tokens": 5}
    job = job_of(directory, data, tmp_path / "out", settings=settings)
    made = run_job(JobRequest(**{**vars(job), "columns": {"ids": "ids"}}))
    rows = rows_in(tmp_path / "out")
    each = specc.load(directory).generate_each([r["ids"] for r in rows], **settings)
    assert made.errors == 1
    for row, alone in zip(rows, each, strict=True):
        if isinstance(alone, specc.GenerationResult):
            assert row["tokens"] == list(alone.tokens)


def test_what_it_took_is_told(writer: Path, data: Path, tmp_path: Path) -> None:
    """Seconds to begin apart from those of work; what the formulas expect beside them."""
    begun: list[float] = []
    job = job_of(writer, data, tmp_path, rows=20)
    report = run_job(job, lambda seen: begun.append(seen.start_up))
    assert begun[0] == 0
    assert 0 < begun[-1] == report.start_up < report.seconds
    assert 0 < report.computing <= report.seconds - report.start_up
    assert 0 < report.waste < 1
    assert report.seconds == report.seconds


def test_it_is_told_before_the_work_why_texts_wait(
    writer: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For beams, and for a model of one file; a package whose places are filled says none."""
    job = job_of(writer, data, tmp_path / "out")
    assert not make_plan(job).waits
    beams = {"max_tokens": 3, "strategy": "beam", "num_beams": 2}
    assert "beams" in make_plan(job_of(writer, data, tmp_path, settings=beams)).waits
    one, rows = tmp_path / "dates.onnx", tmp_path / "rows.jsonl"
    specc.compile("dates", one, graphs="generate")
    rows.write_text('{"source": "3.5.79"}\n')
    out = tmp_path / "one"
    words = ["map", str(one), str(rows), "-o", str(out), "--engine", "serial"]
    assert main(words) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(
        "note: every batch takes as long as its longest sequence: a standalone"
    )
    assert sum(line.startswith("note") for line in told) == 1
