"""Golden tests of the passes: small graphs before and after each pass. The examples in the
docstrings of passes are run too."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pass_examples import PASSES, find_examples, run_example

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "golden" / "passes"
EXPLAINED = (
    "incremental.demanded_positions",
    "incremental.state_selection",
    "incremental.step_plan",
    "incremental.step_graph",
    "analysis.mask_bands",
    "analysis.causality",
    "analysis.time_dataflow",
    "analysis.padding_zeros",
    "analysis.padding_check",
)
"""The modules whose docstring works an example through."""


@pytest.mark.golden("passes")
def test_pass(case: Path, golden: Callable[[Callable[[str], str]], None]) -> None:
    def run_case(text: str) -> str:
        first = next(n for n, line in enumerate(text.splitlines()) if line[:1] == "$")
        example = "\n".join(text.splitlines()[first:])
        assert example.split()[1] == case.parent.name
        return run_example(example)

    golden(run_case)


def test_every_pass_has_two_cases() -> None:
    for name in PASSES:
        assert len(list((FOLDER / name).glob("*.txt"))) >= 2, name


@pytest.mark.parametrize("module", EXPLAINED)
def test_docstring_examples(module: str) -> None:
    text = importlib.import_module(f"specc.{module}").__doc__
    found = find_examples(text or "")
    assert found, "no worked example"
    for example, said in found:
        assert run_example(example) == said
