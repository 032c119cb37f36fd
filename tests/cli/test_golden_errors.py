"""Golden tests of error messages: the whole output of the command line and the exit code."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.golden_cases import run_golden_case


@pytest.mark.golden("errors")
def test_message(
    case: Path,
    golden: Callable[[Callable[[str], str]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "spec.yaml" if case.stem.endswith("yaml") else "spec.specc"
    golden(lambda text: run_golden_case(text, tmp_path, monkeypatch, capsys, name))
