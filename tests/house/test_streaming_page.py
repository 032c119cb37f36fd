"""docs/streaming-inference.md: the example is the same spec in both syntaxes, and `check` prints what the page shows."""

import re
from pathlib import Path

import pytest

from specc.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "streaming-inference.md").read_text("utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_example_is_one_spec_and_check_prints_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = FENCE.findall(PAGE)
    texts = dict(reversed(blocks))
    spec = tmp_path / "streaming_encoder.specc"
    spec.write_text(texts["specc"], encoding="utf-8")
    assert main(["convert", str(spec)]) == 0
    assert capsys.readouterr().out == texts["yaml"]
    shown = next(t.split("\n", 1)[1] for k, t in blocks if t.startswith("$ specc check"))
    assert main(["check", str(spec)]) == 0
    assert capsys.readouterr().out == shown
