"""Ray does the same work as any other: `make scale`, which installs it."""

import hashlib
import json
from pathlib import Path

import pytest

from specc.map.job import run_job
from specc.map.planning import Job
from specc.text.diagnostic import Failed

pytest.importorskip("ray", reason="make scale installs Ray")
pytestmark = [
    pytest.mark.scale,
    pytest.mark.filterwarnings("default"),  # Ray's own
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"id": n, "text": "x" * (n % 29) if n != 7 else None} for n in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def done(small: Path, data: Path, out: Path, **more: object) -> dict[str, str]:
    """The bytes of every part."""
    words = {"rows": 16, "columns": {"ids": "text"}, "raw": ["vectors"], **more}
    run_job(Job(model=str(small), data=[str(data)], out=str(out), **words))  # type: ignore[arg-type]
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(out.glob("part-*"))
    }


def test_the_bytes_are_those_of_one_process(
    small: Path, data: Path, tmp_path: Path
) -> None:
    alone = done(small, data, tmp_path / "alone", engine="serial")
    assert done(small, data, tmp_path / "ray", engine="ray", workers=2) == alone


def test_it_goes_on_with_what_others_began(
    small: Path, data: Path, tmp_path: Path
) -> None:
    alone = done(small, data, tmp_path, engine="serial")
    (tmp_path / "part-000001.jsonl").unlink()
    assert done(small, data, tmp_path, engine="ray", workers=1) == alone


def test_a_cluster_that_is_not_there(small: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="E0888"):
        done(small, data, tmp_path, engine="ray", address="127.0.0.1:1")
