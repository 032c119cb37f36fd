"""Run code and commands with limits on processor time and memory, and measure what they use."""

import io
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.cli.main import main

MAX_SECONDS, MAX_MEGABYTES = 2.0, 300
"""Limits of one command for any input file."""
EXIT_STATUSES = {0, 1, 2, 3, 4, 5}


@dataclass(frozen=True)
class CommandOutcome:
    """Exit status, stderr, processor seconds, and memory growth of the process in MB."""

    status: Any
    stderr: str
    seconds: float
    megabytes: float

    def find_violation(self) -> str:
        """Return a violated rule; "" if there is none."""
        if self.status not in EXIT_STATUSES or "Traceback" in self.stderr:
            return f"ended with {self.status}: {self.stderr[-400:]}"
        if self.status and "error[" not in self.stderr:
            return f"ended with {self.status} without a code: {self.stderr[-400:]}"
        if any(ord(c) < 32 and c != "\n" for c in self.stderr):
            return "control characters reached the terminal"
        if self.seconds > MAX_SECONDS or self.megabytes > MAX_MEGABYTES:
            return f"took {self.seconds:.1f} s and {self.megabytes:.0f} MB"
        return ""


def run_command(*arguments: str) -> CommandOutcome:
    """Run one command in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, start = _grown(), time.process_time()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status: Any = main(list(arguments))
        except SystemExit as end:
            status = end.code
    return CommandOutcome(status, err.getvalue(), time.process_time() - start, _grown() - before)


def _grown() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def list_violations(path: Path, cases: Sequence[tuple[str, bytes]], *arguments: str) -> list[str]:
    """Return the violated rules of a command for each of these contents of a file."""
    violations = []
    for name, data in cases:
        path.write_bytes(data)
        if violation := run_command(*arguments).find_violation():
            violations.append(f"{name}: {violation}")
    return violations


ROOT = Path(__file__).parents[2]


def run_with_limits(
    code: str, *, seconds: int = 20, megabytes: int = 2000, values: Any = None
) -> Any:
    """Return the result of `code`, which reads `given` and sets `result` (both JSON), in a process
    with limits on processor time and memory.
    """

    def bounds() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    program = (
        "import json, sys\ngiven = "
        f"json.load(sys.stdin)\n{code}\nsys.stdout.write('\\n' + json.dumps(result))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        cwd=ROOT,
        preexec_fn=bounds,
    )
    assert process.returncode == 0, f"ended with {process.returncode}: {process.stderr[-2000:]}"
    return json.loads(process.stdout.splitlines()[-1])


PEAK_MEMORY_PROGRAM = """
import sys
from resource import RUSAGE_SELF, getrusage
from specc.cli.main import main
code = main(sys.argv[1:])
print(getrusage(RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
"""A program that runs `specc` with its arguments and prints its peak memory in KB last."""
