"""Run the benchmarks: `make bench`, or
`python benchmarks/run.py --only check,families --quick`.

Prints Markdown. Each benchmark replaces its section of benchmarks/results.md, which states the
date and the machine; with `--quick` nothing is written. `make readers` installs the other programs;
SPECC_BYTE_LM is the directory of a model trained by `byte_lm.py`.
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


def check(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield the time of `specc check gpt2` in a new process (goal: 0.35 s)."""
    command = [*SPECC, "check", "gpt2"]
    measure.of_process(command, directory)
    costs = [measure.of_process(command, directory) for _ in range(rounds)]
    seconds = [c.seconds for c in costs]
    yield f"### `specc check gpt2` in a new process ({rounds} runs)\n"
    yield "| fastest, s | median, s | goal, s | goal reached | CPU time, s |\n|---|---|---|---|---|"
    median = statistics.median(seconds)
    used = min(c.processor for c in costs)
    yield f"| {min(seconds):.2f} | {median:.2f} | 0.35 | {measure.yes_or_no(median <= 0.35)} | {used:.2f} |\n"


@dataclass(frozen=True)
class Part:
    """A benchmark: the function that yields the lines of its section, the number of rounds, and
    the number of rounds with `--quick` (`few`).
    """

    lines: Callable[[Path, int, bool], Iterator[str]]
    rounds: int
    few: int = 2

    def given(self, quick: bool) -> int:
        """Return the number of rounds."""
        return self.few if quick else self.rounds


def _module(name: str) -> Callable[[Path, int, bool], Iterator[str]]:
    """Return the `rows` function of a module, which is imported on demand."""

    def rows(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
        yield from importlib.import_module(name).rows(directory, rounds, quick)

    return rows


PARTS = {
    "check": Part(check, 20, 5),
    "families": Part(_module("families"), 5),
    "generation": Part(_module("generation"), 6),
    "loading": Part(_module("loading"), 3, 1),
    "lowbits": Part(_module("lowbits"), 8),
    "recipes": Part(_module("recipes"), 1),
    "seven": Part(_module("large_models"), 3, 1),
    "local": Part(_module("local"), 10, 3),
    "experts": Part(_module("experts"), 10, 3),
    "map": Part(_module("map"), 4000, 400),
    "recurrence": Part(_module("recurrence"), 10, 5),
}
"""Benchmarks in the order of the results. The meaning of a round depends on the benchmark; for
`map` it is a data row.
"""


def made(name: str, quick: bool) -> str:
    """Run a benchmark; print and return its section."""
    part, lines = PARTS[name], []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        for line in part.lines(Path(temporary), part.given(quick), quick):
            print(line, flush=True)
            lines.append(line)
    took = f"{name}: {time.monotonic() - start:.0f} s"
    print(f"{took}\n", file=sys.stderr, flush=True)
    told = f"Measured on {date.today()} by `make bench ONLY={name}`, {measure.machine()}.\n"
    # the title of a section comes before what it was measured on
    return "\n".join([lines[0], told, *lines[1:]]).rstrip()


def _tried(name: str, quick: bool) -> str:
    """Run a benchmark; return "" if it fails, so that the other benchmarks still run."""
    try:
        return made(name, quick)
    except SystemExit as error:  # a program that failed, a folder that is not there
        print(f"{name}: {error}", file=sys.stderr, flush=True)
    except Exception:  # whatever it is
        traceback.print_exc()
    return ""


def main() -> None:
    """Run the requested benchmarks; report the failed ones and continue."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = ",".join(PARTS)
    parser.add_argument("--only", default=every, help=f"comma-separated, of {every} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to test the benchmarks")  # fmt: skip
    parser.add_argument("--out", type=Path, default=HERE / "results.md", help="where sections are replaced; not with --quick")  # fmt: skip
    given = parser.parse_args()
    wanted = given.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--only takes {every}, not {', '.join(sorted(unknown))}")
    failed = []
    for name in wanted:
        section = _tried(name, given.quick)
        if not section:
            failed.append(name)
            continue
        if not given.quick:
            before = given.out.read_text("utf-8") if given.out.exists() else ""
            given.out.write_text(measure.replaced(before, {name: section}, PARTS), "utf-8")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
