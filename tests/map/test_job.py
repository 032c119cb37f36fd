"""A job: every row once and in order, whoever does it, however often it is broken off."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specc
import specc.map.journal
import specc.map.part
from specc.data.json_arrays import nested_array
from specc.map.block import Blocks
from specc.map.engines.local import Local
from specc.map.inputs import Row
from specc.map.job import Report, run_job
from specc.map.model import Mapped
from specc.map.plan import Limits, file_of, read_plan
from specc.map.planning import Job, plan_of
from specc.text.diagnostic import Failed

ROWS = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of unequal length; the one of row 7 is nothing."""
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"id": n, "text": "x" * int(rng.integers(1, 30))} for n in range(ROWS)]
    rows[7]["text"] = None  # type: ignore[assignment]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def job_of(small: Path, data: Path, out: Path, **more: object) -> Job:
    usual = {
        "rows": 16,
        "limits": Limits(cap=4),
        "raw": ["vectors"],
        "engine": "serial",
    }
    return Job(
        model=str(small),
        data=[str(data)],
        out=str(out),
        columns={"ids": "text"},
        **{**usual, **more},  # type: ignore[arg-type]
    )


def parts(out: Path) -> dict[str, str]:
    """The bytes of every part."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(out.glob("part-*"))
    }


@pytest.fixture(scope="module")
def undisturbed(
    small: Path, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed")
    run_job(job_of(small, data, out))
    return parts(out)


def rows_in(out: Path) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for part in sorted(out.glob("part-*"))
        for line in part.read_text().splitlines()
    ]


def test_every_row_is_what_it_is_alone(small: Path, data: Path, tmp_path: Path) -> None:
    report = run_job(job_of(small, data, tmp_path))
    assert (report.rows, report.errors, report.blocks) == (ROWS, 1, 4)
    rows = rows_in(tmp_path)
    texts = [json.loads(line) for line in data.read_text().splitlines()]
    assert [row["id"] for row in rows] == [*range(ROWS)]
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
        assert row["classes_of.share"] == pytest.approx(scores[best] / scores.sum())
        np.testing.assert_allclose(
            row["vectors"], alone["vectors"][0], rtol=1e-4, atol=1e-6
        )
    fault = json.loads((tmp_path / "_specc/errors.jsonl").read_text())
    assert (fault["row"], fault["code"]) == (7, "E0878")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_processes_write_the_same_bytes(
    small: Path, data: Path, tmp_path: Path, undisturbed: dict[str, str], workers: int
) -> None:
    run_job(job_of(small, data, tmp_path, engine="local", workers=workers))
    assert parts(tmp_path) == undisturbed


class Died(BaseException):
    """What stands for the end of a process."""


def dying(monkeypatch: pytest.MonkeyPatch, when: int) -> Callable[..., None]:
    """Ends the process at the `when`th thing that is written, before or behind it."""
    count = 0
    real = specc.map.part.atomic_write

    def write(path: Path, chunks: list[bytes]) -> None:
        nonlocal count
        count += 1
        if count == when:
            if when % 2:
                real(path, chunks)
            raise Died
        real(path, chunks)

    def append(path: Path, line: str) -> None:
        nonlocal count
        count += 1
        if count == when and when % 2:
            added(path, line)
        if count == when:
            raise Died
        added(path, line)

    added = specc.map.journal.append
    monkeypatch.setattr(specc.map.part, "atomic_write", write)
    monkeypatch.setattr(specc.map.journal, "append", append)
    return write


@given(when=st.integers(1, 40), again=st.integers(1, 40))
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_killed_anywhere_nothing_is_lost_or_doubled(
    small: Path,
    data: Path,
    tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[str, str],
    when: int,
    again: int,
) -> None:
    """Between journal, batch, summary and part; and once more while it is gone on with."""
    out = tmp_path_factory.mktemp("killed")
    for at in (when, again):
        with pytest.MonkeyPatch.context() as patched:
            dying(patched, at)
            with suppress(Died):
                run_job(job_of(small, data, out))
    twice = any(
        count >= specc.map.journal.TWICE
        for path in out.glob("_specc/*.now")
        for count in specc.map.journal.Journal.open(path).died.values()
    )
    report = run_job(job_of(small, data, out))
    # a batch that was begun twice is done row by row, which moves last digits
    assert twice or parts(out) == undisturbed
    assert (report.rows, report.errors) == (ROWS, 1)
    assert not list(out.glob("_specc/*.now"))


def poison(monkeypatch: pytest.MonkeyPatch, numbers: set[int]) -> None:
    """Every process that computes one of these rows of a block ends."""
    real = Mapped.compute

    def compute(
        self: Mapped, rows: list[Row], first: int = 0
    ) -> list[dict[str, object]]:
        if numbers & {row.number for row in rows}:
            raise Died
        return real(self, rows, first)

    monkeypatch.setattr(Mapped, "compute", compute)


@pytest.mark.parametrize(
    "numbers",
    [{3, 4}, *(pytest.param(n, marks=pytest.mark.slow) for n in ({3}, {0, 15}))],
)
def test_only_rows_that_processes_die_of_are_given_up(
    small: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    numbers: set[int],
) -> None:
    poison(monkeypatch, numbers)
    for _ in range(40):
        try:
            run_job(job_of(small, data, tmp_path))
            break
        except Died:
            continue
    blamed = {n for n, r in enumerate(rows_in(tmp_path)) if r["error"]}
    begun = {
        block + n for block in (0, 16, 32, 48) for n in numbers if block + n < ROWS
    }
    assert blamed == begun | {7}
    codes = {str(r["error"])[:5] for r in rows_in(tmp_path) if r["error"]}
    assert codes == {"E0878", "E0882"}


def test_workers_that_are_killed(
    small: Path, data: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    job = job_of(small, data, tmp_path)
    plan_of(job).write(tmp_path)
    engine = Local(tmp_path, 2)
    killed = 0
    for progress in engine.run(range(4)):
        if progress.rows > 0 and killed < 2:
            killed += 1
            engine.alive[0].process.send_signal(signal.SIGKILL)
    assert killed == 2
    assert parts(tmp_path) == undisturbed


def test_nobody_outlives_the_one_who_asked(
    small: Path, data: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    words = ["map", str(small), str(data), "--column", "text=ids", "-o", str(tmp_path)]
    more = ["--rows", "16", "--cap", "4", "--raw", "vectors", "--workers", "2"]
    driver = subprocess.Popen([sys.executable, "-m", "specc", *words, *more])
    while not list(tmp_path.glob("_specc/*.now")) and driver.poll() is None:
        time.sleep(0.002)
    driver.kill()
    driver.wait()
    until = time.monotonic() + 3
    while (left := list(workers_on(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    run_job(job_of(small, data, tmp_path, engine="local", workers=1))
    assert parts(tmp_path) == undisturbed


def workers_on(out: Path) -> Iterator[int]:
    """The processes that work for this folder, where the system tells."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if "specc.map.worker" in words and str(out) in words:
            yield int(entry.name)


def test_what_is_done_is_not_done_again(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_job(job_of(small, data, tmp_path))
    assert first.before == 0
    monkeypatch.setattr(Blocks, "do", None)
    again = run_job(job_of(small, data, tmp_path, workers=7, engine="local"))
    assert (again.before, again.rows, again.errors) == (ROWS, ROWS, 1)
    assert again.waste == first.waste


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"limits": Limits(cap=5)}, "limits"),
        ({"raw": []}, "results"),
        ({"rows": 17}, "blocks"),
        ({"keep": ["id"]}, "kept"),
        ({"to": "parquet"}, "to"),
    ],
)
def test_another_job_in_the_folder(
    small: Path, data: Path, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    run_job(job_of(small, data, tmp_path))
    before = parts(tmp_path)
    with pytest.raises(Failed, match="E0875") as failed:
        run_job(job_of(small, data, tmp_path, **change))
    assert named in "".join(failed.value.diagnostics[0].notes)
    assert parts(tmp_path) == before


def test_another_model_or_other_data(small: Path, data: Path, tmp_path: Path) -> None:
    mine, model = tmp_path / "rows.jsonl", tmp_path / "other.onnx"
    mine.write_bytes(data.read_bytes())
    run_job(job_of(small, mine, tmp_path / "out"))
    specc.compile(small.parent / "small.specc", model, init=1)
    with pytest.raises(Failed, match="E0875"):
        run_job(job_of(model, mine, tmp_path / "out"))
    os.utime(mine, (1, 1))
    with pytest.raises(Failed, match="E0875"):
        run_job(job_of(small, mine, tmp_path / "out"))


def test_a_file_that_changes_while_it_is_read(
    small: Path, data: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "rows.jsonl"
    mine.write_bytes(data.read_bytes())
    job = job_of(small, mine, tmp_path / "out")
    plan_of(job).write(tmp_path / "out")
    mine.write_bytes(data.read_bytes()[:-5])
    plan = read_plan(tmp_path / "out")
    assert plan is not None
    with pytest.raises(Failed, match="E0881"):
        Blocks.open(plan, tmp_path / "out").do(0)


def test_tables_of_one_schema_whatever_the_rows(small: Path, tmp_path: Path) -> None:
    """A block in which every row is bad, one row, none at all."""
    bad, one = tmp_path / "bad.jsonl", tmp_path / "one.jsonl"
    bad.write_text('{"text": null}\n{"text": \n' + '{"text": "a"}\n' * 2)
    one.write_text('{"text": "b"}\n')
    job = job_of(small, bad, tmp_path / "out", rows=2, to="parquet", keep=["text"])
    run_job(Job(**{**vars(job), "data": [str(bad), str(one)]}))
    schemas = [pq.read_schema(p) for p in sorted((tmp_path / "out").glob("part-*"))]
    assert len(schemas) == 3
    assert all(s == schemas[0] for s in schemas)
    table = pq.read_table(tmp_path / "out")
    assert [c is None for c in table.column("error").to_pylist()] == [False] * 2 + [
        True
    ] * 3
    assert str(table.schema.field("vectors").type).startswith("list<")
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("")
    report = run_job(job_of(small, nothing, tmp_path / "none", raw=[]))
    assert (report.rows, len(parts(tmp_path / "none"))) == (0, 0)


def test_faults_that_are_no_rows(small: Path, data: Path, tmp_path: Path) -> None:
    def fails(code: str, **more: object) -> None:
        job = vars(job_of(small, data, tmp_path / "out")) | more
        with pytest.raises(Failed, match=code):
            run_job(Job(**job))  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()

    fails("E0885", columns={"ids": "words"})
    fails("E0885", keep=["words"])
    fails("E0880", columns={"idz": "text"})
    fails("E0880", columns={"keep": "text"})
    fails("E0879", raw=["nothing"])
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"text": "a", "error": "b"}\n')
    fails("E0886", data=[str(twice)], keep=["error"])
    fails("E0802", data=["nowhere.csv"])
    fails("E0873", to="xlsx")
    file = tmp_path / "file"
    file.write_text("")
    fails("E0811", out=str(file))


def test_as_many_bad_rows_as_are_granted(
    small: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(Failed, match="E0887"):
        run_job(job_of(small, data, tmp_path, most_errors=0))
    assert run_job(job_of(small, data, tmp_path, most_errors=1)).errors == 1


def test_rows_that_cannot_be_read_stay(small: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n{"text"\n{"text": "b"}\n')
    assert run_job(job_of(small, rows, tmp_path / "out")).errors == 1
    found = [r["error"] for r in rows_in(tmp_path / "out")]
    assert [e is None for e in found] == [True, False, True]
    assert str(found[1]).startswith("E0877 the row cannot be read: the line is no JSON")


def test_workers_that_never_begin(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_of(job_of(small, data, tmp_path)).write(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Failed, match="E0883"):
        list(Local(tmp_path, 2).run(range(4)))


def test_an_engine_that_is_not_there(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Failed, match="E0888"):
        run_job(job_of(small, data, tmp_path, engine="ray"))


def test_from_python(small: Path, data: Path, tmp_path: Path) -> None:
    model = specc.load(small)
    report: Report = model.map(
        data, out=tmp_path, columns={"ids": "text"}, engine="serial"
    )
    assert report.rows == ROWS
    assert [r["id"] for r in rows_in(tmp_path)] == [*range(ROWS)]


def test_nothing_of_it_is_imported_unasked() -> None:
    code = (
        "import sys, specc; from specc.cli.main import main\n"
        "try: main(['map', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'pyarrow', 'ray'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_kind_of_column_is_carried_over(small: Path, tmp_path: Path) -> None:
    """Of Parquet and of JSON lines, into Parquet."""
    table = tmp_path / "rows.parquet"
    kinds = {
        "text": ["a"],
        "large": pa.array([2**64 - 1], pa.uint64()),
        "lists": [[{"x": 1}]],
        "times": pa.array([1_234_567_891], pa.timestamp("ns")),
        "bytes": pa.array([b"ab"], pa.binary(2)),
        "view": pa.array(["b"], pa.string_view()),
        "image": ["no picture here"],
    }
    pq.write_table(pa.table(kinds), table)
    run_job(job_of(small, table, tmp_path / "out"))
    [row] = pq.read_table(tmp_path / "out" / "part-000000.parquet").to_pylist()
    assert (row["large"], row["bytes"], row["view"]) == (2**64 - 1, b"ab", "b")
    assert row["image"] == "no picture here"
    assert json.loads(row["lists"]) == [{"x": 1}]
    assert json.loads(row["times"]) == "1970-01-01 00:00:01.234567891"
    lines = tmp_path / "rows.jsonl"
    lines.write_text(
        '{"text": "a", "n": 1.5, "k\\ud800": "\\ud800"}\n'
        f'{{"text": "b", "n": {2**60 + 1}}}\n'
    )
    run_job(job_of(small, lines, tmp_path / "two", to="parquet"))
    one, other = pq.read_table(tmp_path / "two" / "part-000000.parquet").to_pylist()
    assert (one["k\\ud800"], other["n"]) == ("\\ud800", float(2**60))


def test_files_of_json_lack_what_they_like(small: Path, tmp_path: Path) -> None:
    for name, text in {
        "a": "",
        "b": '{"text": "a"}\n',
        "c": '{"text": "b", "k": 1}\n',
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    for order in ("abc", "cba"):
        files = [str(tmp_path / f"{name}.jsonl") for name in order]
        job = job_of(small, tmp_path, tmp_path / order)
        run_job(Job(**{**vars(job), "data": files}))
        rows = rows_in(tmp_path / order)
        assert {r["text"]: r["k"] for r in rows} == {"a": None, "b": 1}
    (tmp_path / "d.csv").write_text("text\nc\n")
    job = job_of(small, tmp_path, tmp_path / "csv")
    with pytest.raises(Failed, match="E0884"):
        run_job(Job(**{**vars(job), "data": [*files, str(tmp_path / "d.csv")]}))


def test_parts_in_the_folder_that_is_read(small: Path, tmp_path: Path) -> None:
    """They are no rows when the job is gone on with."""
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    assert run_job(job_of(small, tmp_path, tmp_path)).before == 0
    again = run_job(job_of(small, tmp_path, tmp_path))
    assert (again.before, again.rows) == (1, 1)
    for name in ("a.png", "out/b.json"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pictures" / name).write_bytes(b"no")
    before = file_of(tmp_path / "pictures")
    (tmp_path / "pictures/out/b.json").write_bytes(b"more")
    assert file_of(tmp_path / "pictures") == before


def test_processes_that_end_without_a_row_to_blame(
    small: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not begun again for ever."""
    plan_of(job_of(small, data, tmp_path)).write(tmp_path)
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\necho '{\"ready\": true}'\n")
    dies.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(dies))
    with pytest.raises(Failed, match="block 0"):
        list(Local(tmp_path, 1).run([0]))


def test_numbers_are_taken_as_alone(small: Path, tmp_path: Path) -> None:
    """Whole numbers beside them make no whole numbers of others."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": [{x}]}}\n' for x in ("1", "1.5", "true", "2")))
    report = run_job(job_of(small, rows, tmp_path / "out", limits=Limits()))
    with pytest.raises(Failed, match="is NaN"):
        nested_array([1.0, float("nan")], "a row")
    found = [str(row["error"])[:5] for row in rows_in(tmp_path / "out")]
    assert (report.errors, found) == (2, ["None", "E0907", "E0907", "None"])


def test_settings_are_checked_before_rows(tmp_path: Path) -> None:
    """Of writing; what it gives follows from what is meant, not from what is said."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"source": "3.5.79"}\n')
    dates = tmp_path / "dates.onnx"
    specc.compile("dates", dates)
    job = Job(model=str(dates), data=[str(rows)], out=str(tmp_path / "out"))
    for more, code in [
        ({"settings": {"max": 3}}, "E0731"),
        ({"settings": {"n_best": 3, "beams": 2}}, "E0733"),
        ({"raw": ["logits"]}, "E0879"),
    ]:
        with pytest.raises(Failed, match=code):
            plan_of(Job(**{**vars(job), **more}))  # type: ignore[arg-type]
    plan = plan_of(Job(**{**vars(job), "settings": {"n_best": 2}}))
    assert "score" in [column.name for column in plan.results]
