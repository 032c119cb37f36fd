"""At the limits of valid inputs the compiled model gives the results of the reference, or both
reject the input.

Negative ids and ids beyond a table, axes shorter than a slice, lengths that are not divisible,
integer division with either sign, powers, empty axes. Every case runs at every limit; if the
reference rejects an input, no runtime may return a value. (ONNX Runtime itself rejects empty images
and the maximum of an empty axis.)
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import assert_outputs_match, open_silent_session

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph
from specc_onnx import build_model, get_target

X = "x: float[batch, n, 4]"
IDS = "ids: int[batch, n]"
CASES = {
    "embedding": (IDS, "float[batch, n, 2]", "embedding(ids - 1, size=5, dim=2) @ t"),
    "embedding of ids as they are": (
        IDS,
        "float[batch, n, 2]",
        "embedding(ids, size=5, dim=2) @ t",
    ),
    "embedding of halves": (IDS, "float[batch, n, 2]", "embedding(ids // 2, size=5, dim=2) @ t"),
    "gather along an axis": (f"{X}, {IDS}", "float[batch, n, 4]", "gather(x, ids, axis=1)"),
    "gather of a table": ("t: float[n, 4], ids: int[k]", "float[k, 4]", "gather(t, ids, axis=0)"),
    "gather one row": (f"{X}, one: int[batch]", "float[batch, 4]", "gather(x, one - 1, axis=1)"),
    "one of": (IDS, "float[batch, n, 3]", "one_hot(ids, size=3)"),
    "the first rows": (X, "float[batch, 3, 4]", "x[:, 0:3]"),
    "from the third row on": (X, "float[batch, _, 4]", "x[:, 2:]"),
    "all but two rows": (X, "float[batch, _, 4]", "x[:, :-2]"),
    "between": (X, "float[batch, _, 4]", "x[:, 1:-1]"),
    "more than half": (X, "float[batch, _, 4]", "x[:, 0:n - n // 2 + 1]"),
    "a part of a longer axis": ("x: float[n + 2, 4]", "float[_, 4]", "x[1:n]"),
    "row 1": (X, "float[batch, 4]", "x[:, 1]"),
    "the last row but one": (X, "float[batch, 4]", "x[:, -2]"),
    "the middle row": (X, "float[batch, 4]", "x[:, n // 2]"),
    "the newest row": (X, "float[batch, 4]", "last(x)"),
    "rows before": (X, "float[batch, n, 4]", "delay(x, by=3, first=7.0)"),
    "halves of an axis": (X, "float[batch, 2, n / 2, 4]", "split(x, into=[2, n / 2], axis=1)"),
    "the first half": (X, "float[batch, n / 2, 4]", "x[:, 0:n / 2]"),
    "two chunks": (
        X,
        "float[batch, 4]",
        "u, v = chunk(x, 2, axis=1)\n  return sum(u, axis=1) - sum(v, axis=1)",
    ),
    "as many as halves": (X, "float[batch, n, 4]", "x + float(insert(range(n), axis=1) * (n / 2))"),
    "patches": ("p: float[batch, 1, n, 4]", "float[batch, _, 2]", "patches(p, size=2, out=2) @ t"),
    "greatest": (X, "int[batch, 4]", "argmax(x, axis=1)"),
    "order": (X, "int[batch, n, 4]", "argsort(x, axis=1)"),
    "every third row": (X, "float[batch, _, 4]", "x[:, ::3]"),
    "every other row between": (X, "float[batch, _, 4]", "x[:, 1:-1:2]"),
    "the three greatest": (
        X,
        "float[batch, 3, 4]",
        "v, ids = topk(x, 3, axis=1)\n  return v + float(ids)",
    ),
    "the least of as many as there are": (
        "x: int[batch, n]",
        "int[batch, _]",
        "v, ids = topk(x, min(3, n), largest=false)\n  return v * 8 + ids",
    ),
    "rolled": (X, "float[batch, n, 4]", "roll(roll(x, 2), -3, axis=2)"),
    "rolled by half": ("x: int[n]", "int[n]", "roll(x, n // 2, axis=0)"),
    "padded": (
        X,
        "float[batch, _, _]",
        "pad(pad(x, before=2, after=n, value=1.5), axis=2, before=2, mode=reflect)",
    ),
    "the ends again": (X, "float[batch, _, 4]", "pad(x, before=3, mode=edge)"),
    "in a mirror": (X, "float[batch, _, 4]", "pad(x, after=2, mode=reflect)"),
    "as often as there are": (X, "float[batch, n, n]", "resize(x, size=[n], mode=nearest)"),
    "between rows": (X, "float[batch, 5, 4]", "resize(x, size=[5], axis=1, mode=bilinear)"),
    "half as many": (
        X,
        "float[batch, n // 2, 4]",
        "resize(x, size=[n // 2], axis=1, mode=bicubic)",
    ),
    "one and a half times": (
        "p: float[batch, 4, n, n]",
        "float[batch, 4, _, _]",
        "resize(p, factor=1.5, mode=bilinear)",
    ),
    "in groups": (X, "float[batch, n, 4]", "group_norm(x, groups=2, eps=1e-5, axis=-1) @ t"),
    "in batches": (X, "float[batch, n, 4]", "batch_norm(x, eps=1e-5, axis=-1) @ t"),
    "sums of nothing": (X, "float[batch, 4]", "sum(x, axis=1) + max(x, axis=1) * 0.0"),
    "turned about": (X, "float[batch, n, 4]", "flip(x)"),
    "as whole numbers": (X, "int[batch, n, 4]", "cast(x * 3.0, to=int)"),
    "rounded": (X, "float[batch, n, 4]", "round(x * 2.0) + floor(-x * 2.0) + ceil(x * 1.5)"),
    "remainders of fractions": (
        X,
        "float[batch, n, 4]",
        "x % 0.75 + x // 0.75 + x % -0.75 + x // -0.75",
    ),
}
"""Inputs, output and value of one graph each."""


def build_graph(inputs: str, result: str, value: str, directory: Path) -> Graph:
    body = value if "return" in value else f"return {value}"
    path = directory / "spec.specc"
    path.write_text(
        f"specc 1\nmodel m\ndims batch, n, k\ngraph g({inputs}) -> (y: {result}) {{\n{body}\n}}\n"
    )
    return elaborate_spec(open_spec(str(path))).graph


def make_inputs(graph: Graph, rows: int, low: int, high: int, rng: Any) -> dict[str, NDArray[Any]]:
    """Return inputs of length `rows` along `n`, with integers from `low` to `high`."""
    sizes = {"batch": 2, "n": rows, "k": 3}
    made: dict[str, NDArray[Any]] = {}
    for name, value in graph.inputs.items():
        shape = [d.evaluate(sizes) for d in value.type.shape]
        if value.type.dtype == "i64":
            made[name] = rng.integers(low, high + 1, shape)
        else:
            made[name] = rng.normal(size=shape).astype(np.float32)
    return made


def runnable(graph: Graph, weights: dict[str, NDArray[Any]]) -> Any:
    model = build_model(graph, get_target("onnx")).model
    for initializer in model.graph.initializer:
        if initializer.name in weights:
            initializer.CopyFrom(
                onnx.numpy_helper.from_array(weights[initializer.name], initializer.name)
            )
    return open_silent_session(model)


def list_differences(
    graph: Graph, edges: list[tuple[int, int, int]], seed: int = 0
) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    sizes = {n: [d.evaluate({}) for d in p.type.shape] for n, p in graph.parameters.items()}
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in sizes.items()}
    session = runnable(graph, weights)
    for rows, low, high in edges:
        inputs = make_inputs(graph, rows, low, high, rng)
        try:
            want = specc_numpy.evaluate_graph(graph, inputs, weights)
        except SpeccError:
            want = None
        try:
            got = session.run(None, inputs)
        except Exception:  # ONNX Runtime's exceptions have no common base class
            got = None
        if want is None or got is None:
            empty = got is not None and not any(a.size for a in got)
            if want is not got and not empty and not (got is None and rows == 0):
                yield (
                    f"rows={rows} ids {low} to {high}: only "
                    f"{'the reference' if want is None else 'ONNX'} refuses"
                )
            continue
        try:
            assert_outputs_match(want, got)
        except AssertionError as error:
            yield f"rows={rows} ids {low} to {high}: {error}"


EDGES = [(r, 0, 0) for r in range(7)] + [
    (4, 0, 3),
    (4, -1, 3),
    (4, -4, -1),
    (4, 1, 4),
    (4, 1, 5),
    (4, 5, 9),
    (4, -9, 9),
]


@pytest.mark.parametrize("case", CASES)
def test_reference_and_runtime_agree_at_input_limits(case: str, tmp_path: Path) -> None:
    assert not list(list_differences(build_graph(*CASES[case], tmp_path), EDGES))


def make_integer_expression(rng: random.Random, depth: int = 0) -> str:
    """Return an integer expression per position of two inputs `a` and `b`, the position ids and the
    length.
    """
    if depth > 2 or rng.random() < 0.25:
        return rng.choice(["a", "b", "positions(a, axis=0)", "n", "3", "-2", "1"])
    x, y = make_integer_expression(rng, depth + 1), make_integer_expression(rng, depth + 1)
    forms = [
        "({x} + {y})",
        "({x} - {y})",
        "({x} * {y})",
        "({x} // {y})",
        "({x} % {y})",
        "min({x}, {y})",
        "max({x}, {y})",
    ]
    return rng.choice([*forms, "where(a > b, a + {x}, b - {y})", "abs(a - {x})"]).format(x=x, y=y)


def list_integer_differences(seed: int, directory: Path) -> list[str]:
    rng = random.Random(seed)
    text = f"a * 0 + {make_integer_expression(rng)}"
    try:
        graph = build_graph("a: int[n], b: int[n]", "int[n]", text, directory)
    except SpeccError:  # division by 0
        return [] if "//" in text or "%" in text else [f"{text}: refused"]
    return [f"{text}: {d}" for d in list_differences(graph, [(n, -4, 4) for n in (0, 1, 6)], seed)]


@pytest.mark.parametrize("start", [0, 10, 20])
def test_integer_expressions_agree_for_either_sign(start: int, tmp_path: Path) -> None:
    assert not [
        d for seed in range(start, start + 10) for d in list_integer_differences(seed, tmp_path)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(30, 1030, 100))
def test_many_integer_expressions_agree_for_either_sign(start: int, tmp_path: Path) -> None:
    assert not [
        d for seed in range(start, start + 100) for d in list_integer_differences(seed, tmp_path)
    ]
