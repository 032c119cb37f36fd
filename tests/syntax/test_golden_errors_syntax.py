"""Golden tests of syntax errors as rendered for terminals."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.diagnostics.render import render_diagnostics
from specc.syntax.parse import parse_spec

PAGES = Path(__file__).parents[2] / "docs" / "errors"


def render_error(name: str, text: str) -> str:
    with pytest.raises(SpeccError) as failed:
        parse_spec(Source(name, text))
    for diagnostic in failed.value.diagnostics:
        assert (PAGES / f"{diagnostic.code}.md").is_file(), f"no page for {diagnostic.code}"
    return render_diagnostics(failed.value.diagnostics)


@pytest.mark.golden("errors-syntax")
def test_message(case: Path, golden: Callable[[Callable[[str], str]], None]) -> None:
    yaml = case.stem.endswith("yaml")
    if case.stem.startswith("E0114"):
        yaml = case.stem == "E0114-specc-in-yaml"
    golden(lambda text: render_error("spec.yaml" if yaml else "spec.specc", text))
