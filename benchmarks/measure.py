"""Timing that survives a noisy machine, the page of results, and its table of goals.

Functions to compare take turns in one run. Each time is taken after 80 ms of rest, in which the
spinning threads of a runtime go to sleep, and one untimed call. "No worse" means that the
bootstrap 95 % interval of the ratio reaches 1.0 or below.
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
"""Runs a command and says how it ended, its wall and processor seconds, and the most
memory it held in KiB.
"""


@dataclass(frozen=True)
class Ratio:
    """How the median of one thing compares with that of another, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def no_worse(self) -> bool:
        """Whether the interval reaches 1.0 or below."""
        return self.low <= 1.0


def in_turn(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each of `rounds` rounds; every other round goes through
    them backwards.
    """
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


def ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Ratio:
    """Median of ours over median of theirs. The interval draws whole rounds: both sides
    of one met the same noise.
    """
    rng = random.Random(seed)
    rounds = range(len(ours))

    def drawn() -> float:
        some = rng.choices(rounds, k=len(rounds))
        return statistics.median(ours[n] for n in some) / statistics.median(theirs[n] for n in some)

    found = sorted(drawn() for _ in range(DRAWS))
    value = statistics.median(ours) / statistics.median(theirs)
    return Ratio(value, found[int(0.025 * DRAWS)], found[int(0.975 * DRAWS)])


@dataclass(frozen=True)
class Cost:
    """What a process took: wall seconds, processor seconds, and the most memory it held, in MB."""

    seconds: float
    processor: float
    megabytes: float


def of_process(command: Sequence[str], compiled: Path | None = None) -> Cost:
    """Run a command to its end and measure it from outside.

    `compiled` is where Python keeps what it made of source files: an installed package
    has that at hand.
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
    return Cost(seconds, processor, kibibytes * 1024 / 1e6)


def memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def machine() -> str:
    """Cores, memory and versions, in a line."""
    packages = ("onnx", "onnxruntime", "torch", "transformers", "onnxscript")
    # not every part of the benchmarks needs all of them
    there = [name for name in packages if find_spec(name)]
    versions = ", ".join(f"{name} {version(name)}" for name in there)
    return (
        f"{len(os.sched_getaffinity(0))} cores, {memory() / 1e9:.0f} GB; Python "
        f"{python_version()}, {versions}"
    )


MARK = re.compile(r"^<!-- (\w+) -->\n", re.MULTILINE)
"""Stands before a section and says its part; readers of the page do not see it."""


def replaced(page: str, sections: Mapping[str, str], order: Iterable[str]) -> str:
    """The page with some sections in place of those of former runs. Parts that `order`
    does not have, and what stands before the first mark, are gone.
    """
    pieces = MARK.split(page)[1:]
    known = dict(zip(pieces[::2], pieces[1::2], strict=True)) | dict(sections)
    found = [f"<!-- {n} -->\n{known[n].strip()}\n" for n in order if n in known]
    return "# Results\n\n" + "\n".join(found)


@dataclass(frozen=True)
class Goal:
    """What was promised of a number, and what it is."""

    title: str
    wanted: float
    found: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the number is as it should be."""
        if self.at_most:
            return self.found <= self.wanted
        return self.found >= self.wanted

    def __str__(self) -> str:
        side = "at most" if self.at_most else "at least"
        word = "reached" if self.reached else "not reached"
        return f"| {self.title} | {side} {self.wanted:.3g} | {self.found:.3g} | {word} |"


def goals(given: Iterable[Goal]) -> Iterator[str]:
    """A table of them, if there are any."""
    lines = [str(goal) for goal in given]
    if lines:
        yield from ("| goal | | measured | |", "|---|---|---|---|", *lines, "")


def yes_or_no(value: bool) -> str:
    """Format a boolean for a table."""
    return "yes" if value else "no"


def size_of(directory: Path) -> int:
    """Return the bytes of the files in a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
