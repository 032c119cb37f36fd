"""Ray Data actors (extra [ray])."""

import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specc.batch_inference.block import BlockRunner
from specc.batch_inference.engines.local import BlockProgress
from specc.batch_inference.part_files import BlockStatistics
from specc.batch_inference.plan import read_plan
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.io.safe_read import escape_text
from specc.version import __version__

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What Ray reads when it is imported: it tells nobody of us, and draws no bars."""

STORE = 80 * 2**20
"""Bytes of its object store, through which numbers of blocks go and no rows."""

PATIENCE = 5
"""Seconds until an address that does not answer is taken for none."""


class RayActor:
    """Does blocks in a process of Ray's."""

    def __init__(self, folder: str, version: str) -> None:
        assert version == __version__, f"this node has specc {__version__}"
        out = Path(folder)
        plan = read_plan(out)
        assert plan is not None, f"this node sees no plan in {folder}"
        self.plan, self.out = plan, out
        self.blocks: BlockRunner | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """The blocks of these numbers."""
        told = []
        for number in batch["id"]:
            try:
                self.blocks = self.blocks or BlockRunner.open(self.plan, self.out)
                told.append(json.dumps(self.blocks.do(int(number)).as_json()))
            except Failed as failed:
                first = failed.diagnostics[0]
                fault = [first.code, first.title, *first.notes[:1]]
                told.append(json.dumps({"failed": fault}))
        return {"told": told}


@dataclass
class RayEngine:
    """Actors on this machine, or on the cluster at `address`; `gpus` of each."""

    out: Path
    workers: int
    address: str
    gpus: float

    def run(self, numbers: Sequence[int]) -> Iterator[BlockProgress]:
        """Does blocks, in any order. E0888 without Ray or without its cluster."""
        ray = self._started()
        yield BlockProgress(ready=True)
        try:
            data = ray.data.from_items([{"id": n} for n in numbers])
            done = data.repartition(len(numbers)).map_batches(
                RayActor,
                batch_size=1,
                concurrency=self.workers or (1, max(len(numbers), 1)),
                fn_constructor_args=(str(self.out.absolute()), __version__),
                num_cpus=1,
                num_gpus=self.gpus or None,
            )
            for row in done.iter_rows():
                told = json.loads(row["told"])
                if "failed" in told:
                    code, title, *notes = told["failed"]
                    raise Failed(Diagnostic(code, title, notes=tuple(notes)))
                finished = BlockStatistics.read(told)
                yield BlockProgress(rows=finished.rows, done=finished)
        finally:
            ray.shutdown()

    def _started(self) -> Any:
        """Ray, at work."""
        ray = self.check()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if not self.address:
            options |= {"include_dashboard": False, "object_store_memory": STORE}
            options |= {"num_cpus": max(self.workers, 1) + 1}
        try:
            ray.init(address=self.address or "local", **options)
        except (ConnectionError, RuntimeError, ValueError) as fault:
            self._unreached(str(fault).strip().splitlines()[0])
        return ray

    def check(self) -> Any:
        """Ray, which is installed, and whose cluster answers. E0888 otherwise."""
        os.environ.update({k: os.environ.get(k, v) for k, v in QUIET.items()})
        try:
            import ray
            import ray.data
        except ImportError:
            raise_error(
                "E0888",
                "this engine needs the package `ray`, which is not installed",
                helps=[
                    'pip install "specc-onnx[ray]"',
                    "or leave out --engine: processes of this machine do the same",
                ],
            )
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        self._check_reached()
        return ray

    def _check_reached(self) -> None:
        """E0888 for an address at which nobody listens, for which Ray would wait for
        minutes.
        """
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdigit():
            return  # a name that Ray knows, as `auto`
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
        except (OSError, OverflowError) as fault:
            self._unreached(str(fault))

    def _unreached(self, why: str) -> NoReturn:
        raise_error(
            "E0888",
            f"the Ray cluster `{escape_text(self.address) or 'local'}` cannot be reached",
            notes=[escape_text(why)[:200]],
            helps=["check the address, and that the cluster runs"],
        )
