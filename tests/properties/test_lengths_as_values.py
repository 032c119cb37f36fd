"""A length used as a number has the value of the length; a placeholder never replaces it.

Random scalar expressions over lengths are compared at several lengths with Python's arithmetic; and
specs with dynamic lengths are compared with the same specs with static lengths. Both comparisons
detect a planted placeholder.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.elaborated_specs import elaborate_uncached, elaborate_with_config, sample_spec_weights
from support.length_expressions import ExpressionSampler, evaluate_expression, write_length_spec
from support.onnx_sessions import assert_outputs_match, open_silent_session
from support.small_configs import SMALL_CONFIGS

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend import runtime_scalars
from specc.frontend.elaboration_context import LexicalScope
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc.library.spec_file_lookup import find_builtin_specs
from specc.runtime.random_inputs import make_random_inputs
from specc_onnx import build_model, get_target

SIZES = ((1, 1), (2, 3), (5, 2), (7, 61), (67, 4))
EACH = 12


def build_graph(text: str, directory: Path) -> Graph:
    path = directory / "spec.specc"
    path.write_text(text)
    return elaborate_spec(open_spec(str(path))).graph


def list_wrong_expressions(seed: int, directory: Path, compiled: bool = True) -> list[str]:
    """Return the expressions of spec `seed` for which the reference or the compiled model has
    another value.
    """
    drawn = ExpressionSampler(random.Random(seed))
    texts = [drawn.number() for _ in range(EACH)]
    graph = build_graph(write_length_spec(texts), directory)
    session = (
        open_silent_session(build_model(graph, get_target("onnx")).model) if compiled else None
    )
    found = []
    for n, m in SIZES:
        given = {"x": np.zeros((n, m), np.float32), "one": np.ones(2, np.float32)}
        want = {
            f"{r}{k}": np.full(2, evaluate_expression(t, n, m) + (r == "b"))
            for k, t in enumerate(texts)
            for r in "ab"
        }
        exact = specc_numpy.evaluate_graph(graph, given, {})
        for name, array in want.items():
            if not np.allclose(exact[name], array, rtol=1e-9, atol=1e-9):
                found.append(
                    f"{texts[int(name[1:])]} at n={n}, m={m}: {exact[name][0]}, not {array[0]}"
                )
        if session is not None and not found:
            assert_outputs_match(
                {r: a.astype(np.float32) for r, a in want.items()}, session.run(list(want), given)
            )
    return found


@pytest.mark.parametrize("seed", range(6))
def test_length_expressions_have_the_python_values(seed: int, tmp_path: Path) -> None:
    assert not list_wrong_expressions(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(6, 206, 20))
def test_thousands_of_length_expressions_have_the_python_values(start: int, tmp_path: Path) -> None:
    assert not [
        w for seed in range(start, start + 20) for w in list_wrong_expressions(seed, tmp_path)
    ]


@pytest.mark.parametrize("stand_in", [2, 61, 67, 10_007])
def test_a_planted_placeholder_is_detected(
    stand_in: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows: Callable[[Any], float | None] = runtime_scalars.get_static_float

    def guess(value: Any) -> float | None:
        if not isinstance(value, Dim) or value.number is not None:
            return knows(value)
        try:
            return float(value.evaluate(dict.fromkeys(value.symbols(), stand_in)))
        except DimError:  # a quotient with a remainder for placeholder lengths
            return float(stand_in)

    monkeypatch.setattr(runtime_scalars, "get_static_float", guess)
    assert any(list_wrong_expressions(seed, tmp_path, compiled=False) for seed in range(6))


def test_the_evaluator_has_known_values() -> None:
    """Expected values computed by hand."""
    assert evaluate_expression("float(1 / n)", 4, 1) == 0.25
    assert evaluate_expression("max([sqrt(n), 1.5, m / n])", 4, 10) == 2.5
    assert evaluate_expression("size(x) * 0.5", 3, 5) == 7.5
    assert math.isclose(evaluate_expression("log(length(x, axis=-1) + 1)", 1, 6), math.log(7))


def compare_static_and_dynamic(spec: str, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Return True if a built-in spec gives equal results with dynamic and static lengths."""
    found = elaborate_with_config(spec, **SMALL_CONFIGS[spec])
    graph = found.model.graph
    symbols = sorted({s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()})
    sizes = {s: max(size + n, graph.min_lengths.get(s, 1)) for n, s in enumerate(symbols)}
    inputs = make_random_inputs(graph, sizes, np.random.default_rng(0))
    weights = sample_spec_weights(found)
    want = specc_numpy.evaluate_graph(graph, inputs, weights)
    with monkeypatch.context() as patch:
        look_up = LexicalScope.find_dynamic_length
        patch.setattr(
            LexicalScope, "find_dynamic_length", lambda env, name: known(look_up(env, name), sizes)
        )
        told = elaborate_uncached(spec, **SMALL_CONFIGS[spec]).model.graph
    assert not {
        s for _, results in told.nodes for r in results for d in r.type.shape for s in d.symbols()
    }
    for name, array in specc_numpy.evaluate_graph(told, inputs, weights).items():
        np.testing.assert_allclose(
            array, want[name], rtol=1e-9, atol=1e-9, err_msg=f"{spec}: {name}"
        )


def known(length: Dim | None, sizes: dict[str, int]) -> Dim | None:
    return length and length.substitute(sizes)


@pytest.mark.parametrize("spec", ["bert"])
def test_static_and_dynamic_lengths_give_equal_results(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_static_and_dynamic(spec, monkeypatch, 3)


LOOPS = {
    name
    for name, path in find_builtin_specs().items()
    if "scan " in path.read_text(encoding="utf-8")
}
"""Specs with a loop along a named length."""


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("spec", sorted(SMALL_CONFIGS.keys() - LOOPS))
def test_static_and_dynamic_lengths_give_equal_results_in_every_spec(
    spec: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_static_and_dynamic(spec, monkeypatch, size)
