"""Padded positions filled with infinity: masking by multiplication gives NaN, whatever function is
between."""

from itertools import product
from pathlib import Path

import pytest
from support.padding_specs import POOLED_SHAPE, elaborate_padding_spec, is_affected_by_padding
from support.parameter_sweeps import sample_sweep

from specc.analysis.padding_check import check_padding
from specc.ir.ops.tensor import POINTWISE_FUNCTIONS

INFINITIES = ("inf", "-inf")
FEW = ("neg", "abs", "exp", "silu", "sin", "sigmoid")
"""A function of each kind, for all forms but the first, which is tried with each."""
FORMS = (
    "sum({0} * float(k), axis=1)",
    "sum(neg({0}) * float(k), axis=1)",
    "sum(exp(neg({0})) * float(k), axis=1)",
    "sum(({0} - 2.0) * float(k), axis=1)",
    "sum(max({0}, 0.0) * float(k), axis=1)",
    "sum(min({0}, 0.0) * float(k), axis=1)",
    "sum((1.0 / (2.0 + abs({0}))) * float(k), axis=1)",
    "sum(where(k, {0}, 0.0), axis=1)",
)
OPERANDS = ("0.2 * x", "abs(0.2 * x) - 0.9", "float(cast(sigmoid(x) + 0.95, to=int))")
"""Inside of the domain of most functions at valid positions, outside at padded ones."""
CLEAN = (
    "sum(log1p(abs(x)) * float(k), axis=1)",
    "sum(x / float(cast(sigmoid(x) + 1.0, to=int)) * float(k), axis=1)",
    "sum(exp(where(k, x, -inf)) * float(k), axis=1)",
    "sum(exp(where(k, x, -inf)), axis=1)",
    "sum(sigmoid(where(k, x, -inf)) * float(k), axis=1)",
    "sum(tanh(where(k, x, inf)) * float(k), axis=1)",
    "sum(max(where(k, x, -inf), 0.0) * float(k), axis=1)",
    "sum(relu(where(k, x, -inf)) * float(k), axis=1)",
    "sum(where(k, abs(where(k, x, -inf)), 0.0), axis=1)",
)
"""What must not be warned of, since nothing is wrong with it."""


def compare_analysis(directory: Path, value: str) -> tuple[bool, bool]:
    """Return True if the analysis warns and whether padding affects the result."""
    graph = elaborate_padding_spec(
        directory, f"k = insert(keep, axis=2); return {value}", POOLED_SHAPE, ""
    )
    return bool(check_padding(graph)), is_affected_by_padding(graph, "")


@pytest.mark.parametrize(("form", "filled"), sample_sweep(list(product(FORMS, INFINITIES))))
def test_clean_values_ignore_infinite_padding(form: str, filled: str, tmp_path: Path) -> None:
    told = 0
    for word in POINTWISE_FUNCTIONS if form == FORMS[0] else FEW:
        value = form.format(f"{word}(where(k, x, {filled}))")
        said, moved = compare_analysis(tmp_path, value)
        assert said or not moved, value
        told += said
    # `where` removes the padded positions, so no warning is expected
    assert told == 0 or "where(k, {0}" not in form


@pytest.mark.parametrize("operand", OPERANDS)
def test_functions_outside_their_domain(operand: str, tmp_path: Path) -> None:
    for word in (*POINTWISE_FUNCTIONS, "1.0 / "):
        value = f"sum(float(k) * ({word}({operand})), axis=1)"
        said, moved = compare_analysis(tmp_path, value)
        assert said or not moved, value


@pytest.mark.parametrize("value", CLEAN)
def test_no_false_positives(value: str, tmp_path: Path) -> None:
    assert compare_analysis(tmp_path, value) == (False, False)
