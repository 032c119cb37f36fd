"""A command that is given something hostile: how it ends, what it says, what it costs."""

import io
import resource
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.cli.main import main

SECONDS, MEGABYTES = 2.0, 300
"""What one command may cost, its file as hostile as it may be."""
DOCUMENTED = {0, 1, 2, 3, 4, 5}


@dataclass(frozen=True)
class Outcome:
    """Exit status, what was said on stderr, processor seconds, megabytes that the process grew by."""

    status: Any
    said: str
    seconds: float
    megabytes: float

    def fault(self) -> str:
        """What is wrong with it; empty where nothing is."""
        if self.status not in DOCUMENTED or "Traceback" in self.said:
            return f"ended with {self.status}: {self.said[-400:]}"
        if self.status and "error[" not in self.said:
            return f"ended with {self.status} without a code: {self.said[-400:]}"
        if any(ord(c) < 32 and c != "\n" for c in self.said):
            return "control characters reached the terminal"
        if self.seconds > SECONDS or self.megabytes > MEGABYTES:
            return f"took {self.seconds:.1f} s and {self.megabytes:.0f} MB"
        return ""


def outcome(*words: str) -> Outcome:
    """Run one command in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, start = _grown(), time.process_time()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status: Any = main(list(words))
        except SystemExit as end:
            status = end.code
    return Outcome(status, err.getvalue(), time.process_time() - start, _grown() - before)


def _grown() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def faults(path: Path, cases: Sequence[tuple[str, bytes]], *words: str) -> list[str]:
    """What is wrong when a command meets each of these contents of a file."""
    found = []
    for name, data in cases:
        path.write_bytes(data)
        if why := outcome(*words).fault():
            found.append(f"{name}: {why}")
    return found
