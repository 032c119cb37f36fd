"""The examples of docs/training.md run unchanged."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in SHOWN:
        exec(block, names)
    assert (tmp_path / "out" / "mine.onnx").exists()
    loss = names["loss"]
    assert isinstance(loss, torch.Tensor)
    assert loss.item() < 0.01  # the trained dates model knows the answer
