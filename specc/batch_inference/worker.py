"""Worker process of a job."""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from specc.batch_inference.block import BlockRunner
from specc.batch_inference.plan import read_plan
from specc.diagnostics.diagnostic import Failed

ENDED = -1

PAUSE = 0.1
"""Seconds between two messages of how many rows are done."""


def run_worker(folder: str) -> None:
    """Does the blocks it is told."""
    # What libraries print must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    out = Path(folder)
    plan = read_plan(out)
    assert plan is not None, "the one who starts a worker has written the plan"
    try:
        blocks = BlockRunner.open(plan, out)
        _say(answers, ready=True)
        for number in _asked():
            counted = _Told(answers)
            done = blocks.do(number, counted.count)
            counted.now()
            _say(answers, done=done.as_json())
    except Failed as failed:
        first = failed.diagnostics[0]
        told = [first.code, first.title, list(first.notes), list(first.helps)]
        _say(answers, failed=told)
    except Exception:
        traceback.print_exc()
        os._exit(1)  # the thread that listens would hold up an orderly end


@dataclass
class _Told:
    """Counts rows, and says now and then how many: to be told of each costs more than many
    a row does.
    """

    answers: TextIO
    rows: int = 0
    last: float = field(default_factory=time.monotonic)

    def count(self, rows: int) -> None:
        """So many rows more are done."""
        self.rows += rows
        if time.monotonic() - self.last >= PAUSE:
            self.now()

    def now(self) -> None:
        """Says what was not said yet."""
        if self.rows:
            _say(self.answers, rows=self.rows)
        self.rows, self.last = 0, time.monotonic()


def _asked() -> Iterator[int]:
    """The numbers that are asked for. The process ends at once when nobody asks any
    more: what it was doing will be done again.
    """
    numbers: SimpleQueue[int] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            if int(line) == ENDED:
                return numbers.put(ENDED)
            numbers.put(int(line))
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    while (number := numbers.get()) != ENDED:
        yield number


def _say(answers: TextIO, **what: object) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    run_worker(sys.argv[1])
