"""The page about streams: its example in both syntaxes is one spec, and `check` says of
it what the page shows.
"""

import re
from pathlib import Path

import pytest

from specc.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "streaming-inference.md").read_text("utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_is_one_spec_and_is_what_check_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = dict(reversed(FENCE.findall(PAGE)))
    spec = tmp_path / "listener.specc"
    spec.write_text(texts["specc"], encoding="utf-8")
    assert main(["convert", str(spec)]) == 0
    assert capsys.readouterr().out == texts["yaml"]
    assert main(["check", str(spec)]) == 0
    assert capsys.readouterr().out == texts["text"].split("\n", 1)[1]
