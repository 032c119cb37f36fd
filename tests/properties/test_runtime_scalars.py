"""Run-time arithmetic: Python, the reference and ONNX Runtime agree, at all limits.

Overflow, division by zero and by -1, powers, negative remainders, casts of values out of range and
of NaN. The compiled model does not crash the process. docs/language.md documents the results.
"""

import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import open_silent_session
from support.runtime_scalars import CASTS, FLOAT_OPS, FLOATS, INTEGER_OPS, INTEGERS, wrap_int64

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph
from specc_onnx import build_model, get_target

Arrays = dict[str, NDArray[Any]]
Table = Mapping[str, Callable[[Any, Any], Any]]


def build_graph(texts: Sequence[str], inputs: str, result: str, directory: Path) -> Graph:
    """Return a graph with one output per expression."""
    results = ", ".join(f"r{n}: {result}[n]" for n in range(len(texts)))
    path = directory / "spec.specc"
    path.write_text(
        f"specc 1\nmodel m\ndims n\ngraph g(a: {inputs}[n], b: {inputs}[n]) -> ({results}) "
        f"{{\n  return {', '.join(texts)}\n}}\n"
    )
    return elaborate_spec(open_spec(str(path))).graph


def is_different(got: NDArray[Any], want: Sequence[Any]) -> NDArray[np.bool_]:
    """Return where values differ: integers exactly, floats by more than 1e-5."""
    if got.dtype.kind in "ib":
        return np.array([int(g) != w for g, w in zip(got, want, strict=True)])
    # values out of float32 range are infinite
    with np.errstate(all="ignore"):
        wanted = np.array(want, np.float64).astype(np.float32)
        near = np.isclose(got.astype(np.float32), wanted, rtol=1e-5, atol=1e-37, equal_nan=True)
    return ~near


def list_pairs(values: Sequence[Any], inputs: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all pairs of values."""
    dtype = np.int64 if inputs == "int" else np.float32
    a, b = zip(*itertools.product(values, values), strict=True)
    return np.array(a, dtype), np.array(b, dtype)


Runner = Callable[[Graph, Arrays], Arrays]


def evaluate_reference(graph: Graph, given: Arrays) -> Arrays:
    with np.errstate(all="ignore"):
        return specc_numpy.evaluate_graph(graph, given, {})


def evaluate_onnx(graph: Graph, given: Arrays) -> Arrays:
    session = open_silent_session(build_model(graph, get_target("ort-cpu")).model)
    made = session.run(list(graph.outputs), given)
    return dict(zip(graph.outputs, made, strict=True))


def evaluate_torch(graph: Graph, given: Arrays) -> Arrays:
    torch, ours = pytest.importorskip("torch"), pytest.importorskip("specc_torch")
    tensors = {n: torch.from_numpy(a) for n, a in given.items()}
    return {n: t.numpy() for n, t in ours.SpecModule(graph)(**tensors).items()}


def list_wrong_results(
    table: Table,
    values: Sequence[Any],
    kinds: tuple[str, str],
    directory: Path,
    runners: Sequence[Runner] = (evaluate_reference, evaluate_onnx),
) -> list[str]:
    """Return the expressions of the table with wrong results on pairs of values."""
    a, b = list_pairs(values, kinds[0])
    graph = build_graph(list(table), *kinds, directory)
    results = {run.__name__: run(graph, {"a": a, "b": b}) for run in runners}
    found = []
    for n, (text, oracle) in enumerate(table.items()):
        want = [oracle(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        for name, made in results.items():
            got = made[f"r{n}"]
            for k in np.flatnonzero(is_different(got, want))[:3]:
                found.append(f"{name}: {text} of {a[k]}, {b[k]}: {got[k]}, {want[k]}")
    return found


TABLES: Mapping[str, tuple[Table, Sequence[Any], tuple[str, str]]] = {
    "whole": (INTEGER_OPS, INTEGERS, ("int", "int")),
    "fractions": (FLOAT_OPS, FLOATS, ("float", "float")),
    "casts": (CASTS, FLOATS, ("float", "int")),
}


@pytest.mark.parametrize("name", TABLES)
def test_scalar_arithmetic_agrees_at_its_limits(name: str, tmp_path: Path) -> None:
    assert not list_wrong_results(*TABLES[name], tmp_path)


@pytest.mark.parity
@pytest.mark.parametrize("name", TABLES)
def test_scalar_arithmetic_agrees_at_its_limits_in_torch(name: str, tmp_path: Path) -> None:
    assert not list_wrong_results(*TABLES[name], tmp_path, runners=[evaluate_torch])


def test_a_sum_of_integers_is_exact(tmp_path: Path) -> None:
    """A runtime's own sum computes in float."""
    rows = np.array(list(itertools.product(INTEGERS, repeat=3)), np.int64)
    path = tmp_path / "spec.specc"
    path.write_text(
        "specc 1\nmodel m\ndims n, k\n"
        "graph g(x: int[n, k]) -> (y: int[n], z: int[k]) {\n"
        "  return sum(x, axis=1), sum(x, axis=0)\n}\n"
    )
    graph = elaborate_spec(open_spec(str(path))).graph
    for k in (3, 1, 0):
        x = rows[:, :k]
        want = {
            "y": [wrap_int64(sum(row)) for row in x.tolist()],
            "z": [wrap_int64(sum(column)) for column in x.T.tolist()],
        }
        for made in (evaluate_reference(graph, {"x": x}), evaluate_onnx(graph, {"x": x})):
            assert {n: a.tolist() for n, a in made.items()} == want


@dataclass
class IntegerExpressionSampler:
    """Samples an integer expression with its value."""

    rng: random.Random

    def whole(self, depth: int = 0) -> tuple[str, Callable[[int, int], int]]:
        if depth > 2 or self.rng.random() < 0.2:
            number = self.rng.choice(["a", "b", "2", "-3", "7", str(2**40)])
            return (
                number,
                lambda a, b: (
                    {"a": a, "b": b}.get(number) or int(number if number not in ("a", "b") else 0)
                ),
            )
        (x, of_x), (y, of_y) = self.whole(depth + 1), self.whole(depth + 1)
        names = ["a + b", "a - b", "a * b", "a // b", "a % b", "min(a, b)", "max(a, b)"]
        text = self.rng.choice([*names, "abs(a)", "sign(a)", "a ** 3", "-a"])
        made = re.sub(r"\b[ab]\b", lambda m: f"({x if m[0] == 'a' else y})", text)
        return made, lambda a, b: INTEGER_OPS[text](of_x(a, b), of_y(a, b))


def list_random_wrong_results(seed: int, directory: Path) -> list[str]:
    """Return errors of ten input-dependent expressions in one graph."""
    drawn, table = (
        IntegerExpressionSampler(random.Random(seed)),
        dict[str, Callable[[Any, Any], Any]](),
    )
    while len(table) < 10:
        text, oracle = drawn.whole()
        table[f"a * 0 + {text}"] = oracle
    try:
        return list_wrong_results(table, INTEGERS, ("int", "int"), directory)
    except SpeccError:  # constant expressions with division by 0 or beyond 2**53
        return []


@pytest.mark.parametrize("seed", range(3))
def test_integer_expressions_have_the_python_values(seed: int, tmp_path: Path) -> None:
    assert not list_random_wrong_results(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(3, 303, 50))
def test_many_integer_expressions_have_the_python_values(start: int, tmp_path: Path) -> None:
    assert not [f for s in range(start, start + 50) for f in list_random_wrong_results(s, tmp_path)]


REFUSED = {
    "a ** b": "E0206",
    "2 ** a": "E0206",
    "a ** -1": "E0206",
    "a ** n": "E0206",
    "x ** a": "E0206",
    "x * 1e39": "E0417",
    "where(x > 0.0, x, -1e39)": "E0417",
    "x + 1e-50": "E0417",
    "x + 1e-45": "",
    "x * 3.4e38": "",
    "where(x > 0.0, x, -inf)": "",
    "a ** 0 + a ** (3 - 1)": "",
}


@pytest.mark.parametrize("value", REFUSED)
def test_constants_out_of_range_are_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.specc"
    path.write_text(
        "specc 1\nmodel m\ndims n\ngraph g(a: int[n], b: int[n], x: float[n]) "
        f"-> (y: float[n]) {{\n  return x + float({value})\n}}\n"
    )
    codes = [""]
    try:
        elaborate_spec(open_spec(str(path)))
    except SpeccError as failed:
        codes = [d.code for d in failed.diagnostics]
    assert codes == [REFUSED[value]]
