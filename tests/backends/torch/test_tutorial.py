"""The commands of docs/tutorial.md run as written, with fewer training epochs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.parity

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EPOCHS = 5


def test_tutorial_runs(tmp_path: Path) -> None:
    binaries = str(Path(sys.executable).parent)
    places = {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    scripts = iter(re.findall(r"[Ss]ave the following program as `(\w+\.py)`:", PAGE))
    said = []
    for kind, text in BLOCKS:
        if kind == "yaml":
            (tmp_path / "roman.yaml").write_text(text, encoding="utf-8")
        elif kind == "python":
            assert ("range(15)" in text) == (not said[2:])
            short = text.replace("range(15)", f"range({EPOCHS})")
            (tmp_path / next(scripts)).write_text(short, encoding="utf-8")
        elif kind == "sh":
            done = subprocess.run(
                ["sh", "-ec", text],
                cwd=tmp_path,
                env={**os.environ, **places},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            said.append(done.stdout)
    assert not next(scripts, "")
    begun, checked, trained, run, verified, held, _ = said
    assert "a spec derived from rnnsearch" in begun
    assert "roman: ok" in checked
    assert float(trained.split()[-1]) < 0.2
    assert run.split()[-3:] == ["1994", "2026", "42"]
    assert "agree" in verified
    right = int(held.split()[0])
    assert right >= 450, held
    assert (tmp_path / "roman.html").stat().st_size > 1000
