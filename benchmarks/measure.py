"""Timing on a noisy machine, and the results page with its table of goals.

The compared functions alternate in one run. Each timed call follows 80 ms of rest, in which the
spinning threads of a runtime go to sleep, and one untimed call. "No worse" means that the bootstrap
95 % interval of the ratio of times contains 1.0 or smaller values.
"""

import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from platform import python_version

REST = 0.08
DRAWS = 2000

WATCH = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
taken = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
if done.returncode:
    sys.stderr.buffer.write(done.stderr[-2000:])
print(json.dumps([done.returncode, taken, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
"""A script that runs a command and prints exit status, wall time, CPU time, peak memory in KiB."""


@dataclass(frozen=True)
class MedianRatio:
    """The ratio of two medians with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def is_no_worse(self) -> bool:
        """Return True if the lower bound of the interval is at most 1.0."""
        return self.low <= 1.0


def time_in_turn(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call in `rounds` rounds, which alternate the order of calls."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for n in range(rounds):
        for name in list(calls)[:: 1 if n % 2 == 0 else -1]:
            call = calls[name]
            time.sleep(REST)
            call()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def estimate_ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> MedianRatio:
    """Return the median of `ours` divided by the median of `theirs`. The bootstrap resamples
    rounds, because both times of a round have the same noise.
    """
    rng = random.Random(seed)
    rounds = range(len(ours))

    def resample_ratio() -> float:
        some = rng.choices(rounds, k=len(rounds))
        return statistics.median(ours[n] for n in some) / statistics.median(theirs[n] for n in some)

    found = sorted(resample_ratio() for _ in range(DRAWS))
    value = statistics.median(ours) / statistics.median(theirs)
    return MedianRatio(value, found[int(0.025 * DRAWS)], found[int(0.975 * DRAWS)])


@dataclass(frozen=True)
class ProcessCost:
    """The cost of a process: wall time and CPU time in seconds, and peak memory in MB."""

    seconds: float
    processor: float
    megabytes: float


def measure_process(command: Sequence[str], compiled: Path | None = None) -> ProcessCost:
    """Run a command and measure the cost of its process.

    `compiled` is the directory for Python bytecode, because installed packages also have bytecode.
    """
    environment = dict(os.environ)
    if compiled is not None:
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(compiled)
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *command],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    status, seconds, processor, kibibytes = json.loads(done.stdout)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return ProcessCost(seconds, processor, kibibytes * 1024 / 1e6)


def get_total_memory() -> int:
    """Return the memory of the machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def describe_machine() -> str:
    """Describe the machine on one line: CPU cores, memory and package versions."""
    packages = ("onnx", "onnxruntime", "torch", "transformers", "onnxscript")
    # some benchmarks do not need all packages
    there = [name for name in packages if find_spec(name)]
    versions = ", ".join(f"{name} {version(name)}" for name in there)
    return (
        f"{len(os.sched_getaffinity(0))} cores, {get_total_memory() / 1e9:.0f} GB; Python "
        f"{python_version()}, {versions}"
    )


MARK = re.compile(r"^<!-- (\w+) -->\n", re.MULTILINE)
"""Pattern of the HTML comment that names the benchmark at the beginning of each results section."""


def replace_sections(page: str, sections: Mapping[str, str], order: Iterable[str]) -> str:
    """Replace sections of the results page. Sections that are not in `order`, and the text before
    the first section, are removed.
    """
    pieces = MARK.split(page)[1:]
    known = dict(zip(pieces[::2], pieces[1::2], strict=True)) | dict(sections)
    found = [f"<!-- {n} -->\n{known[n].strip()}\n" for n in order if n in known]
    return "# Results\n\n" + "\n".join(found)


@dataclass(frozen=True)
class Goal:
    """A goal of a benchmark and the measured value."""

    title: str
    wanted: float
    found: float
    at_most: bool = False

    @property
    def is_reached(self) -> bool:
        """Return True if the measured value reaches the goal."""
        if self.at_most:
            return self.found <= self.wanted
        return self.found >= self.wanted

    def __str__(self) -> str:
        side = "at most" if self.at_most else "at least"
        word = "reached" if self.is_reached else "not reached"
        return f"| {self.title} | {side} {self.wanted:.3g} | {self.found:.3g} | {word} |"


def format_goals(given: Iterable[Goal]) -> Iterator[str]:
    """Yield the lines of a table of goals, or no lines without goals."""
    lines = [str(goal) for goal in given]
    if lines:
        yield from ("| goal | | measured | |", "|---|---|---|---|", *lines, "")


def format_yes_or_no(value: bool) -> str:
    """Format a boolean as `yes` or `no` for a table."""
    return "yes" if value else "no"


def measure_directory_size(directory: Path) -> int:
    """Return the total size of the files in a directory in bytes."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
