"""Jobs of `specc map` over a few rows, and what they leave."""

import hashlib
import json
from pathlib import Path

from specc.map.plan import Limits
from specc.map.planning import Job

ROWS = 60


def job_of(small: Path, data: Path, out: Path, **more: object) -> Job:
    usual = {
        "rows": 16,
        "limits": Limits(cap=4),
        "raw": ["vectors"],
        "engine": "serial",
    }
    return Job(
        model=str(small),
        data=[str(data)],
        out=str(out),
        columns={"ids": "text"},
        **{**usual, **more},  # type: ignore[arg-type]
    )


def parts(out: Path) -> dict[str, str]:
    """The bytes of every part."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(out.glob("part-*"))
    }


def rows_in(out: Path) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for part in sorted(out.glob("part-*"))
        for line in part.read_text().splitlines()
    ]
