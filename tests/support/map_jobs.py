"""Small `specc map` jobs and their output files."""

import hashlib
import json
from pathlib import Path

from specc.batch_inference.job_plan_and_part_files import BatchLimits
from specc.batch_inference.job_planner import JobRequest

ROW_COUNT = 60


def make_job(model: Path, data: Path, out: Path, **more: object) -> JobRequest:
    """Return the request of a job; `more` overrides fields."""
    defaults = {
        "rows_per_block": 16,
        "limits": BatchLimits(max_rows=4),
        "raw_outputs": ["vectors"],
        "engine": "serial",
    }
    return JobRequest(
        model=str(model),
        data=[str(data)],
        out=str(out),
        input_columns={"ids": "text"},
        **{**defaults, **more},  # type: ignore[arg-type]
    )


def hash_parts(out: Path) -> dict[str, str]:
    """Return the SHA-256 of each part file."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.glob("part-*"))}


def read_rows(out: Path) -> list[dict[str, object]]:
    """Return the rows of all part files."""
    return [
        json.loads(line)
        for part in sorted(out.glob("part-*"))
        for line in part.read_text().splitlines()
    ]
