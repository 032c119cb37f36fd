"""Timing that survives a noisy machine: things to compare take turns in one run (the method of R18).

Each time is taken after 80 ms of rest, in which a runtime's spinning threads go to sleep, and one untimed call
of the same function. "No worse" means that the bootstrap 95 % interval of the ratio reaches 1.0 or below.
"""

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

REST = 0.08
DRAWS = 2000


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
    """Seconds of each call, `rounds` times, one after the other in every round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(REST)
            call()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Ratio:
    """Median of ours over median of theirs, and the bootstrap interval of that."""
    rng = random.Random(seed)
    drawn = sorted(
        statistics.median(rng.choices(ours, k=len(ours))) / statistics.median(rng.choices(theirs, k=len(theirs)))
        for _ in range(DRAWS)
    )
    value = statistics.median(ours) / statistics.median(theirs)
    return Ratio(value, drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)])


@dataclass(frozen=True)
class Cost:
    """What a process took: wall seconds, and the most memory it held, in MB."""

    seconds: float
    megabytes: float


def of_process(command: Sequence[str]) -> Cost:
    """Run a command to its end and measure it from outside."""
    code = (
        "import json,resource,subprocess,sys,time\n"
        "s=time.perf_counter()\n"
        "r=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL,stderr=subprocess.PIPE)\n"
        "t=time.perf_counter()-s\n"
        "m=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "sys.stderr.buffer.write(r.stderr[-2000:]) if r.returncode else None\n"
        "print(json.dumps([r.returncode,t,m]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    status, seconds, kilobytes = json.loads(done.stdout)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return Cost(seconds, kilobytes / 1000)


def machine() -> str:
    """Cores and memory, in a line."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{len(os.sched_getaffinity(0))} cores, {pages / 1e9:.0f} GB"


def own_peak() -> float:
    """The most memory this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
