"""Engines that compute blocks of rows in local worker processes or Ray Data actors (extra
[ray]).
"""

import json
import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NoReturn, TextIO

from specc.batch_inference.block_runner_and_crash_journal import BlockRunner
from specc.batch_inference.job_plan_and_part_files import PLAN_DIRECTORY, BlockStatistics, read_plan
from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.io.json_io import JsonReader
from specc.io.safe_read import escape_text
from specc.version import __version__

END_MARKER = -1

PROGRESS_INTERVAL = 0.1
"""Minimum number of seconds between two progress messages of a worker."""


def run_worker(directory: str) -> None:
    """Run the main loop of a worker process: compute the requested blocks of a job."""
    # Output of libraries goes to stderr, because stdout contains protocol messages.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    out = Path(directory)
    plan = read_plan(out)
    assert plan is not None, "the parent process has written the plan"
    try:
        runner = BlockRunner.open(plan, out)
        _send_report(output, ready=True)
        for number in _iterate_requests():
            reporter = _ProgressReporter(output)
            statistics = runner.run_block(number, reporter.count_rows)
            reporter.report_counted_rows()
            _send_report(output, done=statistics.to_json())
    except SpeccError as failed:
        _send_report(output, failed=_encode_failure(failed))
    except BrokenPipeError:
        os._exit(1)  # the parent process has terminated
    except Exception:
        traceback.print_exc()
        os._exit(1)  # skip the cleanup at exit, because it would wait for the listening thread


@dataclass
class _ProgressReporter:
    """A counter of completed rows that reports at intervals, because one report per row is slow."""

    output: TextIO
    unreported_rows: int = 0
    last_report_time: float = field(default_factory=time.monotonic)

    def count_rows(self, rows: int) -> None:
        """Count completed rows, and report the count if the interval has elapsed."""
        self.unreported_rows += rows
        if time.monotonic() - self.last_report_time >= PROGRESS_INTERVAL:
            self.report_counted_rows()

    def report_counted_rows(self) -> None:
        """Report the number of rows counted since the last report."""
        if self.unreported_rows:
            _send_report(self.output, rows=self.unreported_rows)
        self.unreported_rows, self.last_report_time = 0, time.monotonic()


def _iterate_requests() -> Iterator[int]:
    """Yield the block numbers that the parent process requests. Exit when stdin closes."""
    block_numbers: SimpleQueue[int] = SimpleQueue()

    def read_requests() -> None:
        for line in sys.stdin:
            block_numbers.put(int(line))
            if int(line) == END_MARKER:
                return
        os._exit(1)

    threading.Thread(target=read_requests, daemon=True).start()
    while (number := block_numbers.get()) != END_MARKER:
        yield number


def _encode_failure(error: SpeccError) -> list[object]:
    """Return the first diagnostic of a failure as JSON data."""
    diagnostic = error.diagnostics[0]
    return [diagnostic.code, diagnostic.title, list(diagnostic.notes), list(diagnostic.helps)]


def _decode_failure(data: Any) -> SpeccError:
    code, title, notes, helps = data
    return SpeccError(Diagnostic(code, title, notes=tuple(notes), helps=tuple(helps)))


def _send_report(output: TextIO, **report: object) -> None:
    output.write(json.dumps(report) + "\n")
    output.flush()


MAX_CRASHES = 3
"""The job fails after this number of consecutive worker crashes while no row was in progress."""


@dataclass(frozen=True, slots=True)
class BlockProgress:
    """A progress message of a worker: ready to compute, completed rows, or a completed block."""

    row_count: int = 0
    statistics: BlockStatistics | None = None
    is_worker_ready: bool = False


@dataclass(kw_only=True)
class _Worker:
    """A worker process and the block that it computes."""

    process: subprocess.Popen[bytes]
    block_number: int | None = None
    is_ready: bool = False
    partial_line: bytes = b""
    reported_rows: int = 0
    initial_journal: bytes = b""
    """The content of the block's journal when the block was assigned to the worker."""

    @property
    def output(self) -> IO[bytes]:
        """The pipe with the messages of the worker."""
        assert self.process.stdout is not None
        return self.process.stdout

    def wait_for_exit(self) -> int:
        """Wait for the worker process to exit, and return the exit status."""
        status = self.process.wait()
        self.output.close()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        return status

    def send_block(self, block_number: int) -> None:
        """Send a block number, or `END_MARKER`, to the worker."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # if the worker has exited, `_handle_exit` handles the exit
            self.process.stdin.write(f"{block_number}\n".encode())
            self.process.stdin.flush()


@dataclass(kw_only=True)
class LocalJobEngine:
    """An engine that computes the blocks of a plan in worker processes on this machine."""

    out: Path
    worker_count: int
    pending_blocks: deque[int] = field(default_factory=deque)
    live_workers: list[_Worker] = field(default_factory=list)
    consecutive_crashes: int = 0
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def run_blocks(self, block_numbers: Iterable[int]) -> Iterator[BlockProgress]:
        """Compute blocks in any order, and yield progress. Raise the first error of a worker."""
        self.pending_blocks.extend(block_numbers)
        with self.selector:
            try:
                for _ in range(min(self.worker_count, len(self.pending_blocks))):
                    self._start_worker()
                while self.live_workers:
                    for key, _ in self.selector.select():
                        yield from self._handle_message(key.data)
            finally:
                self._stop_workers()

    def _start_worker(self) -> None:
        # the worker uses the current `sys.path`, including changes at run time
        paths = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        process = subprocess.Popen(
            [sys.executable, "-m", "specc.batch_inference.worker_processes_and_ray", str(self.out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        worker = _Worker(process=process)
        self.live_workers.append(worker)
        self.selector.register(worker.output, selectors.EVENT_READ, worker)
        self._assign_block(worker)

    def _assign_block(self, worker: _Worker) -> None:
        """Assign the next block to a worker, or send the end marker if no block is left."""
        worker.block_number = self.pending_blocks.popleft() if self.pending_blocks else None
        worker.reported_rows, worker.initial_journal = 0, self._read_journal(worker.block_number)
        worker.send_block(END_MARKER if worker.block_number is None else worker.block_number)

    def _read_journal(self, block_number: int | None) -> bytes:
        """Return the content of a block's journal, or b"" if the journal does not exist."""
        with suppress(OSError):
            return (self.out / PLAN_DIRECTORY / f"{block_number or 0:06}.now").read_bytes()
        return b""

    def _handle_message(self, worker: _Worker) -> Iterator[BlockProgress]:
        """Handle a message from a worker. An empty message means that the worker has exited."""
        data = os.read(worker.output.fileno(), 1 << 16)
        *lines, worker.partial_line = (worker.partial_line + data).split(b"\n")
        for line in lines:
            yield from self._handle_report(worker, json.loads(line))
        if not data:
            self.selector.unregister(worker.output)
            yield from self._handle_exit(worker)

    def _handle_report(self, worker: _Worker, message: object) -> Iterator[BlockProgress]:
        match message:
            case {"ready": True}:
                worker.is_ready = True
                yield BlockProgress(is_worker_ready=True)
            case {"rows": int() as rows}:
                worker.reported_rows += rows
                yield BlockProgress(row_count=rows)
            case {"done": dict() as statistics}:
                self.consecutive_crashes = 0
                yield BlockProgress(statistics=BlockStatistics.from_fields(JsonReader(statistics)))
                self._assign_block(worker)
            case {"failed": failure}:
                raise _decode_failure(failure)

    def _handle_exit(self, worker: _Worker) -> Iterator[BlockProgress]:
        """Handle the exit of a worker, and assign the worker's block to another worker."""
        status = worker.wait_for_exit()
        self.live_workers.remove(worker)
        if worker.block_number is None:
            return
        yield BlockProgress(row_count=-worker.reported_rows)
        self.pending_blocks.appendleft(worker.block_number)
        has_started_row = (
            worker.is_ready and self._read_journal(worker.block_number) != worker.initial_journal
        )
        self.consecutive_crashes = 0 if has_started_row else self.consecutive_crashes + 1
        if self.consecutive_crashes >= MAX_CRASHES:
            _raise_repeated_crashes(worker, status)
        self._start_worker()

    def _stop_workers(self) -> None:
        """Kill all worker processes."""
        for worker in self.live_workers:
            worker.process.kill()
            worker.wait_for_exit()
        self.live_workers.clear()


def _raise_repeated_crashes(worker: _Worker, status: int) -> NoReturn:
    """Raise E0883 because workers crash repeatedly without completing a row."""
    problem, hint = "exit before they are ready", "to run one row: specc run MODEL …"
    if worker.is_ready:
        problem = f"exit before the first row of block {worker.block_number}"
        hint = "--engine serial"
    raise_error(
        "E0883",
        f"the worker processes {problem}",
        notes=[f"the last worker exited with status {status}"],
        helps=[f"try {hint}"],
    )


RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment variables that disable usage statistics and progress bars of Ray."""

OBJECT_STORE_BYTES = 80 * 2**20
"""Size of Ray's object store in bytes. The store contains block numbers, but no data rows."""

CONNECT_TIMEOUT = 5
"""Timeout in seconds for connecting to a Ray cluster."""


class RayActor:
    """A Ray actor that computes blocks."""

    def __init__(self, directory: str, version: str) -> None:
        assert version == __version__, f"this node has specc {__version__}"
        out = Path(directory)
        plan = read_plan(out)
        assert plan is not None, f"this node finds no plan in {directory}"
        self.plan, self.out = plan, out
        self.runner: BlockRunner | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Compute a batch of blocks. Return the statistics or the error of each block as JSON."""
        results = []
        for block_number in batch["id"]:
            try:
                self.runner = self.runner or BlockRunner.open(self.plan, self.out)
                results.append(json.dumps(self.runner.run_block(int(block_number)).to_json()))
            except SpeccError as failed:
                results.append(json.dumps({"failed": _encode_failure(failed)}))
        return {"results": results}


@dataclass
class RayJobEngine:
    """An engine that computes the blocks of a plan with Ray actors on this machine, or on the
    cluster at `address`. Each actor uses `gpus_per_worker` GPUs.
    """

    out: Path
    worker_count: int
    address: str
    gpus_per_worker: float

    def run_blocks(self, block_numbers: Sequence[int]) -> Iterator[BlockProgress]:
        """Compute blocks in any order. Raise E0888 if Ray or the Ray cluster is unavailable."""
        ray = self._start_ray()
        yield BlockProgress(is_worker_ready=True)
        try:
            data = ray.data.from_items([{"id": n} for n in block_numbers])
            result_rows = data.repartition(len(block_numbers)).map_batches(
                RayActor,
                batch_size=1,
                concurrency=self.worker_count or (1, max(len(block_numbers), 1)),
                fn_constructor_args=(str(self.out.absolute()), __version__),
                num_cpus=1,
                num_gpus=self.gpus_per_worker or None,
            )
            for row in result_rows.iter_rows():
                results = json.loads(row["results"])
                if "failed" in results:
                    raise _decode_failure(results["failed"])
                statistics = BlockStatistics.from_fields(JsonReader(results))
                yield BlockProgress(row_count=statistics.row_count, statistics=statistics)
        finally:
            ray.shutdown()

    def _start_ray(self) -> Any:
        """Start Ray, or connect to the Ray cluster. Return the `ray` module."""
        ray = self.import_ray()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if not self.address:
            options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
            options |= {"num_cpus": max(self.worker_count, 1) + 1}
        try:
            ray.init(address=self.address or "local", **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            self._raise_unreachable(str(error).strip().splitlines()[0])
        return ray

    def import_ray(self) -> Any:
        """Import `ray` and connect to a Ray cluster. Raise E0888 on failure."""
        os.environ.update({k: os.environ.get(k, v) for k, v in RAY_ENVIRONMENT.items()})
        try:
            import ray
            import ray.data
        except ImportError:
            raise_error(
                "E0888",
                "this engine requires the package `ray`, which is not installed",
                helps=[
                    "pip install -e '.[ray]'",
                    "or remove --engine to use processes on this machine",
                ],
            )
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        self._check_reachable()
        return ray

    def _check_reachable(self) -> None:
        """Raise E0888 if no process listens at the address, because Ray would wait for minutes."""
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdigit():
            return  # Ray itself resolves names such as `auto`
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
        except (OSError, OverflowError) as error:
            self._raise_unreachable(str(error))

    def _raise_unreachable(self, reason: str) -> NoReturn:
        raise_error(
            "E0888",
            f"the Ray cluster `{escape_text(self.address) or 'local'}` cannot be reached",
            notes=[escape_text(reason)[:200]],
            helps=["check the address, and that the cluster is running"],
        )


if __name__ == "__main__":
    run_worker(sys.argv[1])
