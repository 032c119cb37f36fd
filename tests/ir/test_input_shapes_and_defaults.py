"""Default inputs must not change for existing positions when later positions arrive."""

from pathlib import Path

import numpy as np
import pytest

import specc_numpy
from specc.analysis.check_report import analyze_graph
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph
from specc.ir.model_definition import ModelDefinition

SPEC = """specc 1
model m
dims batch, seq
graph lm(ids: int[batch, seq], {inputs}) -> (logits: float[batch, seq, 7]) {{
  x = embedding(ids, size=7, dim=4) @ table
  return linear(x{more}, out=7) @ head
}}
generate text of ids from logits {{ stop = 0 }}
"""
ROWS, ONCE = (
    " * insert(sin(float({})), axis=2)",
    " * insert(insert(sin(float({})), axis=1), axis=2)",
)


def elaborate_with_input(directory: Path, inputs: str, more: str) -> ModelDefinition:
    (directory / "m.specc").write_text(SPEC.format(inputs=inputs, more=more), encoding="utf-8")
    return elaborate_spec(open_spec(str(directory / "m.specc")))


CASES = [
    ("a: int[batch, seq] = cumsum(ids, axis=1)", ROWS.format("a"), True),
    ("a: keep[batch, seq] = ids != 0", ROWS.format("cast(a, to=int)"), True),
    ("a: int[batch, seq] = b + 1, b: int[batch, seq] = 2 * ids", ROWS.format("a"), True),
    ("a: int[batch, seq] = flip(ids, axis=1)", "", True),  # unused
    ("a: int[batch, seq] = flip(ids, axis=1)", ROWS.format("a"), False),
    ("a: int[batch, seq] = b + 1, b: int[batch, seq] = flip(ids, axis=1)", ROWS.format("a"), False),
    ("a: int[batch] = sum(ids, axis=1)", ONCE.format("a"), False),
    ("a: int[batch] = last(ids)", ONCE.format("a"), False),
    ("a: int[batch] = 2 * b, b: int[batch] = last(ids)", ONCE.format("a"), False),
    ("a: int[batch] = argmax(float(ids), axis=1)", ONCE.format("a"), False),
    ("b: int[batch], a: int[batch] = 2 * b", ONCE.format("a"), True),
]


@pytest.mark.parametrize(("inputs", "more", "holds"), CASES)
def test_unstable_defaults_are_errors(inputs: str, more: str, holds: bool, tmp_path: Path) -> None:
    model = elaborate_with_input(tmp_path, inputs, more)
    found = analyze_graph(model.graph, "ids", "logits", model.defaults)
    assert [d.code for d in found.errors] == ([] if holds else ["E0718"])
    assert all(d.primary for d in found.errors)
    if (
        more
        and model.defaults
        and "ids" in build_input_defaults_graph(model.defaults, ["a", "b"]).inputs
    ):
        assert is_default_stable(model) == holds


def is_default_stable(model: ModelDefinition) -> bool:
    """Return True if the default of `a` for 3 and 4 positions is a prefix of that for 5."""
    assert model.defaults
    ids = np.array([[3, 1, 4, 1, 5]])
    alone = build_input_defaults_graph(model.defaults, tuple(model.defaults.outputs))
    whole = specc_numpy.evaluate_graph(alone, {"ids": ids}, {})["a"]
    parts = [specc_numpy.evaluate_graph(alone, {"ids": ids[:, :n]}, {})["a"] for n in (3, 4)]
    return all(
        np.array_equal(p, whole[:, : p.shape[1]] if whole.ndim == 2 else whole) for p in parts
    )
