"""Run the benchmarks: `make bench`, or `python benchmarks/run.py --only check,families --quick`.

The output is Markdown. Each benchmark replaces its section of benchmarks/results.md, which states
the date and the machine. With `--quick`, no file is written. `make other-runtimes` installs the other
programs. SPECC_BYTE_LM is the directory of a model trained by `byte_lm.py`.
"""

import argparse
import importlib
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import measure

HERE = Path(__file__).parent
SPECC = [sys.executable, "-m", "specc"]


def measure_check_command(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield the time of `specc check gpt2` in a new process (goal: 0.35 s)."""
    command = [*SPECC, "check", "gpt2"]
    measure.measure_process(command, directory)
    costs = [measure.measure_process(command, directory) for _ in range(rounds)]
    seconds = [c.seconds for c in costs]
    yield f"### `specc check gpt2` in a new process ({rounds} runs)\n"
    yield "| fastest, s | median, s | goal, s | goal reached | CPU time, s |\n|---|---|---|---|---|"
    median = statistics.median(seconds)
    used = min(c.processor for c in costs)
    yield f"| {min(seconds):.2f} | {median:.2f} | 0.35 | {measure.format_yes_or_no(median <= 0.35)} | {used:.2f} |\n"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: the function that yields the lines of its section, the number of rounds, and the
    number of rounds with `--quick` (`few`).
    """

    lines: Callable[[Path, int, bool], Iterator[str]]
    rounds: int
    few: int = 2

    def get_rounds(self, quick: bool) -> int:
        """Return the number of rounds of the benchmark."""
        return self.few if quick else self.rounds


def _make_section_runner(name: str) -> Callable[[Path, int, bool], Iterator[str]]:
    """Return `iterate_report_lines` of a benchmark module, which is imported on demand."""

    def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
        yield from importlib.import_module(name).iterate_report_lines(directory, rounds, quick)

    return iterate_report_lines


BENCHMARKS = {
    "check": Benchmark(measure_check_command, 20, 5),
    "families": Benchmark(_make_section_runner("families"), 5),
    "generation": Benchmark(_make_section_runner("generation"), 6),
    "loading": Benchmark(_make_section_runner("loading"), 3, 1),
    "lowbits": Benchmark(_make_section_runner("lowbits"), 8),
    "recipes": Benchmark(_make_section_runner("recipes"), 1),
    "seven": Benchmark(_make_section_runner("large_models"), 3, 1),
    "local": Benchmark(_make_section_runner("local"), 10, 3),
    "experts": Benchmark(_make_section_runner("experts"), 10, 3),
    "map": Benchmark(_make_section_runner("map"), 4000, 400),
    "recurrence": Benchmark(_make_section_runner("recurrence"), 10, 5),
}
"""Benchmarks in the order of the results page. The meaning of a round depends on the benchmark; in
`map`, a round is a data row.
"""


def run_section(name: str, quick: bool) -> str:
    """Run a benchmark. Print and return its section of the results."""
    part, lines = BENCHMARKS[name], []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        for line in part.lines(Path(temporary), part.get_rounds(quick), quick):
            print(line, flush=True)
            lines.append(line)
    took = f"{name}: {time.monotonic() - start:.0f} s"
    print(f"{took}\n", file=sys.stderr, flush=True)
    measured_line = (
        f"Measured on {date.today()} by `make bench ONLY={name}`, {measure.describe_machine()}.\n"
    )
    # the section title precedes the description of the machine
    return "\n".join([lines[0], measured_line, *lines[1:]]).rstrip()


def _try_section(name: str, quick: bool) -> str:
    """Run a benchmark. Return "" if the benchmark fails, so that the other benchmarks still run."""
    try:
        return run_section(name, quick)
    except SystemExit as error:  # a program failed or a directory is missing
        print(f"{name}: {error}", file=sys.stderr, flush=True)
    except Exception:  # any error of a benchmark must not stop the other benchmarks
        traceback.print_exc()
    return ""


def main() -> None:
    """Run the requested benchmarks, and report the failed benchmarks at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = ",".join(BENCHMARKS)
    parser.add_argument(
        "--only", default=every, help=f"benchmarks to run, comma-separated: {every} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to test the benchmarks")  # fmt: skip
    parser.add_argument("--out", type=Path, default=HERE / "results.md", help="results page to update (not with --quick)")  # fmt: skip
    given = parser.parse_args()
    wanted = given.only.split(",")
    if unknown := set(wanted) - set(BENCHMARKS):
        parser.error(f"unknown benchmark in --only: {', '.join(sorted(unknown))}; expected {every}")
    failed = []
    for name in wanted:
        section = _try_section(name, given.quick)
        if not section:
            failed.append(name)
            continue
        if not given.quick:
            before = given.out.read_text("utf-8") if given.out.exists() else ""
            given.out.write_text(
                measure.replace_sections(before, {name: section}, BENCHMARKS), "utf-8"
            )
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
