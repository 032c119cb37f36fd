"""A divided length leaves no remainder, or an input check reports it: accepted lengths have a
value, and rejected lengths have none.
"""

from pathlib import Path

import numpy as np
import pytest

import specc_numpy
from specc.artifact import generation_metadata
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.dim import DimError
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.runtime.model_inputs import build_model_inputs

SPEC = """specc 1
model parts
dims batch, n, m

graph g(x: float[batch, n, 4], more: float[batch, m, 4]) -> (y: float[...]) {
  return %s
}
"""
FORMS = {
    "pairs": "split(x, into=[n / 2, 2], axis=1)",
    "six": "split(x, into=[n / 6, 6], axis=1)",
    "behind one": "split(concat([x, x[:, 0:1]], axis=1), into=[(n + 1) / 3, 3], axis=1)",
    "both": "split(concat([x, more], axis=1), into=[(n + m) / 3, 3], axis=1)",
    "all": "split(concat([x, x, more], axis=1), into=[2, (2 * n + m) / 2], axis=1)",
    "strided": "split(conv(x, out=4, kernel=2, stride=2) @ c, into=[((n - 2) // 2 + 1) / 2, 2], axis=1)",
}


def list_disagreeing_lengths(directory: Path, form: str) -> list[tuple[int, int]]:
    """Return lengths that are accepted without a value, or rejected with one."""
    path = directory / "m.specc"
    path.write_text(SPEC % FORMS[form], encoding="utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    input_signature = build_model_inputs(graph, PreprocessingConfig(), None, "")
    weights = {
        n: np.ones([d.number or 0 for d in f.type.shape]) for n, f in graph.parameter_facts.items()
    }
    found = []
    for n in range(2, 10):
        for m in (1, 2, 3):
            given = {"x": np.ones((1, n, 4), "f"), "more": np.ones((1, m, 4), "f")}
            has = said = True
            try:
                specc_numpy.evaluate_graph(graph, given, weights)
            except (SpeccError, DimError, ValueError):
                has = False
            try:
                input_signature.prepare(given)
            except SpeccError as fault:
                said = "E0935" not in str(fault)
            if has != said:
                found.append((n, m))
    return found


@pytest.mark.parametrize("form", FORMS)
def test_input_check_rejects_exactly_the_undefined_lengths(tmp_path: Path, form: str) -> None:
    assert not list_disagreeing_lengths(tmp_path, form)


def test_an_unchecked_remainder_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted mistake: quotients are not checked."""
    monkeypatch.setattr(generation_metadata, "find_divisibility_constraints", lambda graph: {})
    assert list_disagreeing_lengths(tmp_path, "pairs")
