"""Local worker processes."""

import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from specc.batch_inference.part_files import BlockStatistics
from specc.batch_inference.plan import FOLDER
from specc.batch_inference.worker import ENDED
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error

MOST_DEATHS = 3
"""So often a process may die without a row that it has begun with; then it is no row's
fault.
"""


@dataclass(frozen=True, slots=True)
class BlockProgress:
    """So many rows more, or a block that is done, or someone who is `ready` to begin."""

    rows: int = 0
    done: BlockStatistics | None = None
    ready: bool = False


@dataclass(kw_only=True)
class _Worker:
    """A process, and the block that it does."""

    process: subprocess.Popen[bytes]
    block: int | None = None
    ready: bool = False
    rest: bytes = b""
    reported: int = 0
    journal: bytes = b""
    """What the journal of the block was when it was given."""

    @property
    def answers(self) -> IO[bytes]:
        """What it says."""
        assert self.process.stdout is not None
        return self.process.stdout

    def end(self) -> int:
        """Waits for its end, and gives its status."""
        status = self.process.wait()
        self.answers.close()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        return status

    def ask(self, number: int) -> None:
        """Has it do a block, or end."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead, which its answers will tell
            self.process.stdin.write(f"{number}\n".encode())
            self.process.stdin.flush()


@dataclass
class LocalEngine:
    """Some processes at work on the blocks of a plan."""

    out: Path
    workers: int
    waiting: deque[int] = field(default_factory=deque)
    alive: list[_Worker] = field(default_factory=list)
    deaths: int = 0

    def run(self, numbers: Iterable[int]) -> Iterator[BlockProgress]:
        """Does blocks, in any order. Fails with what a process could not do."""
        self.waiting.extend(numbers)
        with selectors.DefaultSelector() as answers:
            try:
                for _ in range(min(self.workers, len(self.waiting))):
                    self._start(answers)
                while self.alive:
                    for key, _ in answers.select():
                        worker: _Worker = key.data
                        yield from self._hear(worker, answers)
            finally:
                self._stop()

    def _start(self, answers: selectors.BaseSelector) -> None:
        # found where we were, even by someone who only changed `sys.path`
        paths = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        process = subprocess.Popen(
            [sys.executable, "-m", "specc.batch_inference.worker", str(self.out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        worker = _Worker(process=process)
        self.alive.append(worker)
        answers.register(worker.answers, selectors.EVENT_READ, worker)
        self._next(worker)

    def _next(self, worker: _Worker) -> None:
        """Gives a process its next block, or lets it end."""
        worker.block = self.waiting.popleft() if self.waiting else None
        worker.reported, worker.journal = 0, self._journal(worker.block)
        worker.ask(ENDED if worker.block is None else worker.block)

    def _journal(self, block: int | None) -> bytes:
        """What is written down of a block that is being done."""
        with suppress(OSError):
            return (self.out / FOLDER / f"{block or 0:06}.now").read_bytes()
        return b""

    def _hear(self, worker: _Worker, answers: selectors.BaseSelector) -> Iterator[BlockProgress]:
        """What a process says; nothing more is its end."""
        data = os.read(worker.answers.fileno(), 1 << 16)
        *lines, worker.rest = (worker.rest + data).split(b"\n")
        for line in lines:
            yield from self._take(worker, json.loads(line))
        if not data:
            answers.unregister(worker.answers)
            yield from self._ended(worker, answers)

    def _take(self, worker: _Worker, said: dict[str, object]) -> Iterator[BlockProgress]:
        match said:
            case {"ready": True}:
                worker.ready = True
                yield BlockProgress(ready=True)
            case {"rows": int() as rows}:
                worker.reported += rows
                yield BlockProgress(rows=rows)
            case {"done": dict() as done}:
                self.deaths = 0
                yield BlockProgress(done=BlockStatistics.read(done))
                self._next(worker)
            case {"failed": [str() as code, str() as title, list() as n, list() as h]}:
                fault = Diagnostic(code, title, notes=tuple(n), helps=tuple(h))
                raise Failed(fault)

    def _ended(self, worker: _Worker, answers: selectors.BaseSelector) -> Iterator[BlockProgress]:
        """A process is gone. What it had not done, another one does."""
        status = worker.end()
        self.alive.remove(worker)
        if worker.block is None:
            return
        yield BlockProgress(rows=-worker.reported)
        self.waiting.appendleft(worker.block)
        blamed = worker.ready and self._journal(worker.block) != worker.journal
        self.deaths = 0 if blamed else self.deaths + 1
        if self.deaths >= MOST_DEATHS:
            _hopeless(worker, status)
        self._start(answers)

    def _stop(self) -> None:
        """Nobody is left behind, whatever happened."""
        for worker in self.alive:
            worker.process.kill()
            worker.end()
        self.alive.clear()


def _hopeless(worker: _Worker, status: int) -> NoReturn:
    """E0883: another process would die as well."""
    work, see = "the work end before they begin", "with one row: specc run MODEL …"
    if worker.ready:
        work, see = f"block {worker.block} end, of none of its rows", "--engine serial"
    raise_error(
        "E0883",
        f"the processes that should do {work}",
        notes=[f"the last one ended with status {status}"],
        helps=[f"try it {see}"],
    )
