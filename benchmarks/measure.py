"""Timing that survives a noisy machine: things to compare take turns in one run.

Each time is taken after 80 ms of rest, in which a runtime's spinning threads go to
sleep, and one untimed call of the same function. "No worse" means that the bootstrap 95
% interval of the ratio reaches 1.0 or below.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
