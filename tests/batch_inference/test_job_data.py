"""Data of a job: every type of column and file, one schema for all parts, and error codes for
invalid jobs."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.map_jobs import ROW_COUNT, hash_parts, make_job, read_rows

import specc
import specc.batch_inference.block_runner_and_crash_journal
import specc.batch_inference.job_plan_and_part_files
from specc.batch_inference.block_runner_and_crash_journal import BlockRunner
from specc.batch_inference.job import JobReport, run_job
from specc.batch_inference.job_plan_and_part_files import (
    BatchLimits,
    get_file_fingerprint,
    read_plan,
)
from specc.batch_inference.job_planner import JobRequest, plan_job
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.array_files import convert_lists_to_array


def test_all_parts_have_one_schema(small: Path, tmp_path: Path) -> None:
    """A block of invalid rows only, of one row, and of none."""
    bad, one = tmp_path / "bad.jsonl", tmp_path / "one.jsonl"
    bad.write_text('{"text": null}\n{"text": \n' + '{"text": "a"}\n' * 2)
    one.write_text('{"text": "b"}\n')
    job = make_job(
        small,
        bad,
        tmp_path / "out",
        rows_per_block=2,
        output_format="parquet",
        copied_columns=["text"],
    )
    run_job(JobRequest(**{**vars(job), "data": [str(bad), str(one)]}))
    schemas = [pq.read_schema(p) for p in sorted((tmp_path / "out").glob("part-*"))]
    assert len(schemas) == 3
    assert all(s == schemas[0] for s in schemas)
    table = pq.read_table(tmp_path / "out")
    assert [c is None for c in table.column("error").to_pylist()] == [False] * 2 + [True] * 3
    assert str(table.schema.field("vectors").type).startswith("list<")
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("")
    report = run_job(make_job(small, nothing, tmp_path / "none", raw_outputs=[]))
    assert (report.rows, len(hash_parts(tmp_path / "none"))) == (0, 0)


def test_errors_of_a_job(small: Path, data: Path, tmp_path: Path) -> None:
    def check_fails(code: str, **more: object) -> None:
        job = vars(make_job(small, data, tmp_path / "out")) | more
        with pytest.raises(SpeccError, match=code):
            run_job(JobRequest(**job))  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()

    check_fails("E0885", input_columns={"ids": "words"})
    check_fails("E0885", copied_columns=["words"])
    check_fails("E0880", input_columns={"idz": "text"})
    check_fails("E0880", input_columns={"keep": "text"})
    check_fails("E0879", raw_outputs=["nothing"])
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"text": "a", "error": "b"}\n')
    check_fails("E0886", data=[str(twice)], copied_columns=["error"])
    check_fails("E0802", data=["nowhere.csv"])
    check_fails("E0873", output_format="xlsx")
    file = tmp_path / "file"
    file.write_text("")
    check_fails("E0811", out=str(file))


def test_maximum_number_of_errors(small: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="E0887"):
        run_job(make_job(small, data, tmp_path, max_errors=0))
    assert run_job(make_job(small, data, tmp_path, max_errors=1)).errors == 1


def test_unreadable_rows_are_kept(small: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n{"text"\n{"text": "b"}\n')
    assert run_job(make_job(small, rows, tmp_path / "out")).errors == 1
    found = [r["error"] for r in read_rows(tmp_path / "out")]
    assert [e is None for e in found] == [True, False, True]
    assert str(found[1]).startswith("E0877 the row cannot be read: the line is not JSON")


def test_python_api(small: Path, data: Path, tmp_path: Path) -> None:
    model = specc.load(small)
    report: JobReport = model.map(data, out=tmp_path, columns={"ids": "text"}, engine="serial")
    assert report.rows == ROW_COUNT
    assert [r["id"] for r in read_rows(tmp_path)] == [*range(ROW_COUNT)]


def test_every_column_type_is_copied(small: Path, tmp_path: Path) -> None:
    """From Parquet and JSON lines to Parquet."""
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
    run_job(make_job(small, table, tmp_path / "out"))
    [row] = pq.read_table(tmp_path / "out" / "part-000000.parquet").to_pylist()
    assert (row["large"], row["bytes"], row["view"]) == (2**64 - 1, b"ab", "b")
    assert row["image"] == "no picture here"
    assert json.loads(row["lists"]) == [{"x": 1}]
    assert json.loads(row["times"]) == "1970-01-01 00:00:01.234567891"
    lines = tmp_path / "rows.jsonl"
    lines.write_text(
        f'{{"text": "a", "n": 1.5, "k\\ud800": "\\ud800"}}\n{{"text": "b", "n": {2**60 + 1}}}\n'
    )
    run_job(make_job(small, lines, tmp_path / "two", output_format="parquet"))
    one, other = pq.read_table(tmp_path / "two" / "part-000000.parquet").to_pylist()
    assert (one["k\\ud800"], other["n"]) == ("\\ud800", float(2**60))


def test_json_files_with_different_columns(small: Path, tmp_path: Path) -> None:
    for name, text in {"a": "", "b": '{"text": "a"}\n', "c": '{"text": "b", "k": 1}\n'}.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    for order in ("abc", "cba"):
        files = [str(tmp_path / f"{name}.jsonl") for name in order]
        job = make_job(small, tmp_path, tmp_path / order)
        run_job(JobRequest(**{**vars(job), "data": files}))
        rows = read_rows(tmp_path / order)
        assert {r["text"]: r["k"] for r in rows} == {"a": None, "b": 1}
    (tmp_path / "d.csv").write_text("text\nc\n")
    job = make_job(small, tmp_path, tmp_path / "csv")
    with pytest.raises(SpeccError, match="E0884"):
        run_job(JobRequest(**{**vars(job), "data": [*files, str(tmp_path / "d.csv")]}))


def test_output_inside_the_data_directory(small: Path, tmp_path: Path) -> None:
    """Parts are not input rows when the job is resumed."""
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    assert run_job(make_job(small, tmp_path, tmp_path)).resumed_rows == 0
    again = run_job(make_job(small, tmp_path, tmp_path))
    assert (again.resumed_rows, again.rows) == (1, 1)
    for name in ("a.png", "out/b.json"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pictures" / name).write_bytes(b"no")
    before = get_file_fingerprint(tmp_path / "pictures")
    (tmp_path / "pictures/out/b.json").write_bytes(b"more")
    assert get_file_fingerprint(tmp_path / "pictures") == before


def test_number_types_do_not_depend_on_other_rows(small: Path, tmp_path: Path) -> None:
    """Integers in other rows do not make a float an integer."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": [{x}]}}\n' for x in ("1", "1.5", "true", "2")))
    report = run_job(make_job(small, rows, tmp_path / "out", limits=BatchLimits()))
    with pytest.raises(SpeccError, match="is NaN"):
        convert_lists_to_array([1.0, float("nan")], "a row")
    found = [str(row["error"])[:5] for row in read_rows(tmp_path / "out")]
    assert (report.errors, found) == (2, ["None", "E0907", "E0907", "None"])


def test_generation_settings_are_checked_first(tmp_path: Path) -> None:
    """The output columns follow from the merged settings."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"source": "3.5.79"}\n')
    dates = tmp_path / "dates.onnx"
    specc.compile("dates", dates)
    job = JobRequest(model=str(dates), data=[str(rows)], out=str(tmp_path / "out"))
    for more, code in [
        ({"settings": {"max": 3}}, "E0731"),
        ({"settings": {"num_return_sequences": 3, "num_beams": 2}}, "E0733"),
        ({"raw_outputs": ["logits"]}, "E0879"),
    ]:
        with pytest.raises(SpeccError, match=code):
            plan_job(JobRequest(**{**vars(job), **more}))  # type: ignore[arg-type]
    plan = plan_job(JobRequest(**{**vars(job), "settings": {"num_return_sequences": 2}}))
    assert "score" in [column.name for column in plan.result_columns]


def test_changed_model_or_data(small: Path, data: Path, tmp_path: Path) -> None:
    mine, model = tmp_path / "rows.jsonl", tmp_path / "other.onnx"
    mine.write_bytes(data.read_bytes())
    run_job(make_job(small, mine, tmp_path / "out"))
    specc.compile(small.parent / "small.specc", model, init=1)
    with pytest.raises(SpeccError, match="E0875"):
        run_job(make_job(model, mine, tmp_path / "out"))
    os.utime(mine, (1, 1))
    with pytest.raises(SpeccError, match="E0875"):
        run_job(make_job(small, mine, tmp_path / "out"))


def test_data_changed_after_planning(small: Path, data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "rows.jsonl"
    mine.write_bytes(data.read_bytes())
    job = make_job(small, mine, tmp_path / "out")
    plan_job(job).write_file(tmp_path / "out")
    mine.write_bytes(data.read_bytes()[:-5])
    plan = read_plan(tmp_path / "out")
    assert plan is not None
    with pytest.raises(SpeccError, match="E0881"):
        BlockRunner.open(plan, tmp_path / "out").run_block(0)


@pytest.mark.parametrize(
    "asked",
    [
        {"engine": "threads"},
        {"engine": None},
        {"workers": -1},
        {"workers": True},
        {"max_errors": "3"},
        {"columns": ["text"]},
        {"columns": {"ids": 3}},
        {"keep_columns": "id"},
        {"raw": [3]},
        {"output_format": 3},
        {"out": 3},
        {"out": b"out"},
    ],
)
def test_invalid_arguments(
    small: Path, data: Path, tmp_path: Path, asked: dict[str, object]
) -> None:
    """The Python API validates every argument; nothing is written."""
    with specc.load(small) as model:
        given = {"out": tmp_path / "out", "engine": "serial", **asked}
        with pytest.raises(SpeccError, match=f"E0970.*{next(iter(asked))}"):
            model.map(data, **given)  # type: ignore[arg-type]
        with pytest.raises(SpeccError, match="E0970"):
            model.map(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


LOGARITHM = """specc 1
model logarithm
dims batch
graph g(x: float[batch, 2]) -> (y: float[batch, 2]) {
  return log(x)
}
"""


@pytest.mark.parametrize(("rows", "status", "nulls"), [("12", 1, 0), ("ab", 0, 2), ("a1", 0, 1)])
def test_exit_code_of_failed_jobs(
    rows: str, status: int, nulls: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 if every row failed; NaN and infinity that become null are counted."""
    known = {"1": "[1]", "2": "[1, 2, 3]", "a": "[1, 0]", "b": "[-1, 2]"}
    (tmp_path / "m.specc").write_text(LOGARITHM)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0)
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"x": {known[row]}}}\n' for row in rows))
    words = [str(tmp_path / "m.onnx"), str(data), "-o", str(tmp_path / "out")]
    assert main(["map", *words, "--engine", "serial"]) == status
    told = "NaN or infinity, stored as null in JSON Lines" in capsys.readouterr().err
    assert told == bool(nulls)


def test_numbers_in_a_csv_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The values of a CSV file are text: an input of numbers is an error before any row."""
    graph = "graph g(x: float[batch]) -> (y: float[batch]) { return x + 1.0 }"
    (tmp_path / "m.specc").write_text(f"specc 1\nmodel m\ndims batch\n{graph}\n")
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0)
    (tmp_path / "x.csv").write_text("x\n1.5\n")
    words = ["map", str(tmp_path / "m.onnx"), str(tmp_path / "x.csv"), "-o", str(tmp_path / "out")]
    assert main(words) == 1
    assert "E0906" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
