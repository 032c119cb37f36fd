"""The program that writes docs/gpu-report.md, tested on the CPU."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

pytestmark = pytest.mark.parity
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "benchmarks" / "gpu_check.py"


def test_it_fills_the_page(tmp_path: Path) -> None:
    """A model with attention and one with a recurrent cell, in the dtypes that the CPU supports."""
    page = tmp_path / "report.md"
    options = ["--provider", "cpu", "--quick", "--no-rates", "--at-once", "1"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *options, "--specs", "gpt2,elman", "--out", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = page.read_text(encoding="utf-8")
    assert "2 specs, 0 errors." in told
    (row,) = (line for line in told.splitlines() if line.startswith("| `gpt2`"))
    assert "| equal |" in row


def test_results_of_an_earlier_run_are_reported(tmp_path: Path) -> None:
    """Also of a model that could not be loaded, whose placement is unknown."""
    results, page = tmp_path / "results.jsonl", tmp_path / "report.md"
    failed = {"spec": "elman", "f32": {"error": "error[E0923]"}, "placement": {"error": "Fail"}}
    loaded = {"spec": "gpt2", "placement": [["CPUExecutionProvider", "Shape", "s"]]}
    results.write_text("".join(json.dumps(row) + "\n" for row in (failed, loaded)), "utf-8")
    options = ["--provider", "cpu", "--no-specs", "--no-rates", "--results", str(results)]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *options, "--out", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = page.read_text(encoding="utf-8")
    assert "* `elman`, f32: error[E0923]" in told
    assert "2 specs, 2 errors." in told
    assert "| Shape | 1 |" in told


def test_without_a_card_nothing_is_run(tmp_path: Path) -> None:
    page = tmp_path / "report.md"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--out", str(page)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == 0
    assert "no check was run" in done.stdout
    assert not page.exists()


def test_make_runs_nothing_without_a_card() -> None:
    """Skipped if a GPU is present, which the command would use."""
    if which("nvidia-smi"):
        pytest.skip("a GPU is present")
    done = subprocess.run(
        ["make", "gpu-check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "no check was run" in done.stdout
    assert not (ROOT / ".gpu").exists()
