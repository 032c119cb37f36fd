"""Measure batch inference: rows per second of `specc map`, of one call per row and of fixed batch
sizes; padding; and the accuracy of the cost model.

`python benchmarks/map.py --rows 20000` runs `dates` on texts, BERT base on token ids of log-normal
lengths, BERT base on lengths up to its maximum, and a small GPT that generates sequences of
log-normal lengths. The startup time of processes is listed separately, because startup does not
depend on the number of rows. `--only dates` runs one of the benchmarks.

CPU time is more reliable than wall time on a shared machine: a line below each table states the
share of CPU time that is not spent in the model.
"""

import argparse
import importlib.util
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import specc
from specc.batch_inference.block_runner_and_crash_journal import BlockRunner, RowBlockProcessor
from specc.batch_inference.job import JobReport, run_job
from specc.batch_inference.job_plan_and_part_files import BatchLimits
from specc.batch_inference.job_planner import JobRequest, plan_job
from specc.batch_inference.row_batches_and_cost_model import CostModel
from specc.runtime.batched_generation import (
    generate_in_batches,
    make_continuous_batch,
    make_prompt_inputs,
)

FIXED_BATCH_SIZE = 64
"""The fixed batch size that `specc map` is compared with."""

SINGLE_ROWS = 300
"""Number of rows for measuring the rate of one call per row."""

BLOCKS, MIN_ROWS_PER_BLOCK = 8, 512
"""The number of blocks, a multiple of the number of processes, and the minimum number of rows per
block. A small block with log-normal lengths contains too few rows of similar length.
"""

MONTHS = "January février März April mai Juni Juli août September octobre November décembre"

GPT_SPEC = """specc 1
model planned "A GPT that generates a sequence of the requested length"

dims batch >= 1, n >= 1

  graph write(ids: int[batch, n], want: int[batch], keep: keep[batch, n] = ids >= 0) -> (logits:
  float[batch, n, 1000]) { x = (embedding(ids, size=1000, dim=256) @ wte) +
  (embedding(positions(keep), size=1024, dim=256) @ wpe) repeat i in 4 under "h.{i}" { x = x +
  (attention(layer_norm(x, eps=1e-5) @ ln_1, heads=4, mask=causal & visible(keep)) @ attn) x = x +
  (linear(gelu(linear(layer_norm(x, eps=1e-5) @ ln_2, out=1024) @ fc), out=256) @ proj) } over =
  positions(keep) + 1 >= insert(want, axis=1) words = linear(layer_norm(x, eps=1e-5) @ ln_f,
  out=999, bias=false) @ head return concat([insert(where(over, 1e4, -1e4), axis=2), words], axis=2)
  }

generate text of ids from logits { stop = 0 }
"""
PROMPT = 4


@dataclass(frozen=True)
class MapBenchmark:
    """A model and its data set. `column` is the data column of the model input `name`."""

    title: str
    model: Path
    data: Path
    name: str
    column: str
    rows: Sequence[Any]
    call: Callable[[Any, Sequence[Any]], object]


def iterate_report_lines(directory: Path, count: int, quick: bool, only: str = "") -> Iterator[str]:
    """Yield all tables, with `count` rows or with fewer rows for slower models."""
    if only in ("", "dates"):
        yield from _run_table(_prepare_dates(directory, count))
    if only in ("", "bert"):
        yield from _run_table(_prepare_bert(directory, max(count // 10, 8), quick, USUAL_LENGTHS))
    if only in ("", "long"):
        table = _prepare_bert(directory, max(count // 50, 8), quick, LONG_LENGTHS)
        yield from _run_table(table)
        yield from _measure_memory(table)
    if only in ("", "texts"):
        yield from _measure_continuous_batching(directory, max(count // 20, 8))


def _run_table(table: MapBenchmark) -> Iterator[str]:
    """Yield the table of one model, with a row for each way of processing the data."""
    count = len(table.rows)
    yield f"### {table.title}: {count} rows\n"
    yield "| | rows/s | startup, s | run time, s | padding | overhead | compute time, s | predicted, s |"
    yield "|---|---|---|---|---|---|---|---|"
    model = specc.load(table.model, threads=1)
    some = table.rows[: min(SINGLE_ROWS, count)]
    one = _measure_rate(len(some), lambda: [table.call(model, [row]) for row in some])
    yield f"| one call per row | {one:.0f} | | | | | | |"
    fixed = _measure_rate(count, lambda: _run_batches(table, model))
    yield f"| batches of {FIXED_BATCH_SIZE}, in order | {fixed:.0f} | | | {_format_padding_waste(table)} | | | |"
    ways: dict[str, dict[str, Any]] = {
        "map, in this process": {"engine": "serial"},
        "map, 1 process": {"workers": 1},
        "map, 2 processes": {"workers": 2},
    }
    if importlib.util.find_spec("ray"):
        ways["map, Ray, 1 actor"] = {"engine": "ray", "workers": 1}
        ways["map, Ray, 2 actors"] = {"engine": "ray", "workers": 2}
    best = 0.0
    for name, more in ways.items():
        report = _run_job(table, name, more)
        best = max(best, report.rows_per_second)
        yield _format_row(name, report, int(more.get("workers", 1)))
    yield f"\n`map` is {best / one:.0f} times as fast as one call per row (goal for `dates`: 10 times)."
    if count > MIN_ROWS_PER_BLOCK:
        yield f"{_compute_overhead(table):.1%} of the CPU time is overhead beyond the model itself (goal: at most 5%)."
    yield ""


def _format_row(name: str, report: JobReport, workers: int) -> str:
    work = report.elapsed_seconds - report.startup_seconds
    beyond = work * workers / report.compute_seconds - 1
    expected = "" if report.predicted_seconds is None else f"{report.predicted_seconds:.1f}"
    return (
        f"| {name} | {report.rows_per_second:.0f} | {report.startup_seconds:.1f} | {work:.1f} | "
        f"{report.padding_ratio:.0%} | {beyond:.0%} | {report.compute_seconds:.1f} | {expected} |"
    )


def _run_job(table: MapBenchmark, name: str, more: Mapping[str, Any]) -> JobReport:
    return run_job(_make_job(table, name, more))


def _make_job(table: MapBenchmark, name: str, more: Mapping[str, Any]) -> JobRequest:
    out = table.data.parent / f"{table.data.stem} {name}"
    return JobRequest(
        model=str(table.model),
        data=[str(table.data)],
        out=str(out),
        input_columns={table.name: table.column},
        rows_per_block=max(len(table.rows) // BLOCKS, MIN_ROWS_PER_BLOCK),
        **more,
    )


MODEL_CPU_SECONDS = [0.0]
"""CPU seconds spent in the model, including sampling, as a single mutable item."""


def _add_cpu_time(work: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*given: Any) -> Any:
        began = time.process_time()
        made = work(*given)
        MODEL_CPU_SECONDS[0] += time.process_time() - began
        return made

    return timed


def _compute_overhead(table: MapBenchmark) -> float:
    """Return the CPU time outside the model (reading, encoding, batching, writing) divided by the
    CPU time in the model, excluding the first block.
    """
    job = _make_job(table, "timed", {})
    plan, out = plan_job(job), Path(job.out)
    shutil.rmtree(out, ignore_errors=True)
    plan.write_file(out)
    blocks = BlockRunner.open(plan, out)
    blocks.run_block(0)
    MODEL_CPU_SECONDS[0], began = 0.0, time.process_time()
    batch, generate = (
        _add_cpu_time(RowBlockProcessor._compute_batch),
        _add_cpu_time(RowBlockProcessor._generate_continuously),
    )
    with patch.multiple(RowBlockProcessor, _compute_batch=batch, _generate_continuously=generate):
        for number in range(1, len(plan.blocks)):
            blocks.run_block(number)
    return (time.process_time() - began) / max(MODEL_CPU_SECONDS[0], 1e-9) - 1


def _measure_memory(table: MapBenchmark) -> Iterator[str]:
    """Yield the memory that the cost model predicts for batches of the longest rows."""
    formulas = CostModel.from_graph(specc.load(table.model).manifest.graph)
    limit, longest = BatchLimits().max_bytes, max(map(len, table.rows))
    yield "| batch size | sequence length | peak memory of activations by the cost model, MB |"
    yield "|---|---|---|"
    for count in (1, 8, FIXED_BATCH_SIZE):
        yield f"| {count} | {longest} | {formulas.estimate_bytes(count, longest) / 2**20:.0f} |"
    most = next(n for n in range(4096, 0, -1) if formulas.estimate_bytes(n, longest) <= limit)
    yield f"\nWith the default limit of {limit >> 20} MB, a batch has at most {most} rows of length {longest}.\n"


def _measure_rate(count: int, call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return count / (time.perf_counter() - began)


def _run_batches(table: MapBenchmark, model: Any) -> None:
    for n in range(0, len(table.rows), FIXED_BATCH_SIZE):
        table.call(model, table.rows[n : n + FIXED_BATCH_SIZE])


def _format_padding_waste(table: MapBenchmark) -> str:
    lengths = [len(row) for row in table.rows]
    places = 0
    for n in range(0, len(lengths), FIXED_BATCH_SIZE):
        some = lengths[n : n + FIXED_BATCH_SIZE]
        places += len(some) * max(some)
    return f"{places / sum(lengths) - 1:.0%}"


def _prepare_dates(directory: Path, count: int) -> MapBenchmark:
    """Return the benchmark of date conversion."""
    rng, months = random.Random(0), MONTHS.split()
    texts = [
        f"{rng.randint(1, 28)} {rng.choice(months)} {rng.randint(1900, 2050)}" for _ in range(count)
    ]
    specc.compile("dates", directory / "dates", graphs=["score", "encode", "step"])
    return MapBenchmark(
        title="Converting dates with `dates` (a package)",
        model=directory / "dates",
        data=_write_column(directory / "dates.jsonl", "text", texts),
        name="source",
        column="text",
        rows=texts,
        call=lambda model, some: model.generate(list(some)).results(),
    )


@dataclass(frozen=True)
class LengthDistribution:
    """A log-normal distribution of lengths within bounds."""

    mean: float
    least: int
    most: int

    def sample(self, count: int) -> list[int]:
        """Return `count` lengths, sampled with a fixed seed."""
        drawn = np.random.default_rng(0).lognormal(self.mean, 0.8, count)
        return [*map(int, drawn.clip(self.least, self.most))]


USUAL_LENGTHS, LONG_LENGTHS = LengthDistribution(3.5, 3, 384), LengthDistribution(4.8, 16, 512)
"""Length distributions with means of about 45 and 150. BERT has 512 positions."""


def _prepare_bert(
    directory: Path, count: int, quick: bool, lengths: LengthDistribution
) -> MapBenchmark:
    """Return the benchmark of BERT on token ids of log-normal lengths."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 30000, size).tolist() for size in lengths.sample(count)]
    sizes = {"layers": 1, "d": 64, "heads": 2, "hidden": 128} if quick else {}
    specc.compile(
        "bert",
        directory / "bert.onnx",
        init=0,
        set=sizes,
        graph="sequence_classification",
        force=True,
    )
    return MapBenchmark(
        title=f"BERT base (random weights) on {lengths.least} to {lengths.most} token ids",
        model=directory / "bert.onnx",
        data=_write_column(directory / f"bert {lengths.most}.jsonl", "ids", ids),
        name="input_ids",
        column="ids",
        rows=ids,
        call=_compute_embeddings,
    )


def _compute_embeddings(model: Any, some: Sequence[list[int]]) -> object:
    longest = max(map(len, some))
    ids = [row + [0] * (longest - len(row)) for row in some]
    keep = [[True] * len(row) + [False] * (longest - len(row)) for row in some]
    return model.run(input_ids=ids, attention_mask=keep)


def _measure_continuous_batching(directory: Path, count: int) -> Iterator[str]:
    """Yield the table of generation with continuous batching and with fixed batches."""
    (directory / "planned.specc").write_text(GPT_SPEC)
    specc.compile(directory / "planned.specc", directory / "planned", init=0, graphs="step")
    generator = specc.load(directory / "planned", threads=1).generator
    assert generator is not None
    rng = np.random.default_rng(0)
    want = rng.lognormal(3.5, 0.8, count).astype(int).clip(2, 400)
    ids = rng.integers(1, 1000, (count, PROMPT)).tolist()
    settings = generator.resolve_settings({"max_tokens": 1000})
    texts = [
        generator.start_generation(
            make_prompt_inputs(generator, {"ids": row, "want": int(n) + PROMPT - 1}), settings
        )
        for row, n in zip(ids, want, strict=True)
    ]
    yield f"### Continuous batching: {count} generated sequences of log-normal lengths, a GPT with 4 layers of width 256, batch size 32\n"
    yield "| | sequences/s | processed positions | padding |\n|---|---|---|---|"
    fed = sum(
        len(some) * (int(some.max()) - 1 + PROMPT) for some in np.split(want, range(32, count, 32))
    )
    used = int(want.sum()) + count * (PROMPT - 1)
    fixed = _measure_rate(count, lambda: [*generate_in_batches(generator, enumerate(texts), 32)])
    yield f"| static batches of 32 | {fixed:.1f} | {fed} | {fed / used - 1:.0%} |"
    batch = make_continuous_batch(generator, 32)
    ours = _measure_rate(count, lambda: [*batch.generate(enumerate(texts))])
    share = batch.processed_tokens / batch.valid_tokens - 1
    yield f"| continuous batching | {ours:.1f} | {batch.processed_tokens} | {share:.0%} |"
    yield f"\n{ours / fixed:.1f} times as many sequences per second (goal: 1.5), {fed / batch.processed_tokens:.1f} times fewer positions.\n"


def _write_column(path: Path, column: str, values: Sequence[object]) -> Path:
    lines = (json.dumps({"id": n, column: v}) + "\n" for n, v in enumerate(values))
    path.write_text("".join(lines), encoding="utf-8")
    return path


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", choices=["dates", "bert", "long", "texts"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for line in iterate_report_lines(Path(directory), given.rows, given.quick, given.only):
            print(line, flush=True)


if __name__ == "__main__":
    main()
