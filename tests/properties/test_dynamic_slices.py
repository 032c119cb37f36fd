"""Slices and splits at positions that depend on input lengths.

Specs that `check_spec` accepts compile; `list_model_lines` finds lengths with a value; and at any
length the model gives the result of Python's slices, or rejects the input if those are fractional
or empty.
"""

import operator as op
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from support.verification_lines import list_model_lines

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.runtime.inference_model import open_compiled_model

SIZES = ((1, 1), (2, 5), (30, 4), (33, 11), (64, 2))
KINDS = ("row", "first", "behind", "split", "number")


Number: TypeAlias = Callable[[int, int], int]
"""A scalar expression of the lengths n and m. ArithmeticError if it is undefined."""


def make_quotient(left: int, right: int) -> int:
    """Return an exact quotient."""
    if left % right:
        raise ArithmeticError
    return left // right


WORDS = {"min": min, "max": max}
SIGNS = {"+": op.add, "-": op.sub, "*": op.mul, "/": make_quotient, "//": op.floordiv, "%": op.mod}


def make_length(rng: random.Random, deep: int = 2) -> tuple[str, Number]:
    """Return an integer expression of lengths, often out of range for an axis, with its value."""
    if deep == 0 or rng.random() < 0.3:
        constant = rng.randint(1, 35)
        return rng.choice(
            [("n", lambda n, m: n), ("m", lambda n, m: m), (str(constant), lambda n, m: constant)]
        )
    word = rng.choice([*SIGNS, *WORDS])
    text, left = make_length(rng, deep - 1)
    divisor = rng.randint(1, 32)
    other, right = (
        (str(divisor), lambda n, m: divisor)
        if word in ("/", "//", "%")
        else make_length(rng, deep - 1)
    )
    if word in WORDS:
        return f"{word}({text}, {other})", lambda n, m: WORDS[word](left(n, m), right(n, m))
    return f"({text} {word} {other})", lambda n, m: SIGNS[word](left(n, m), right(n, m))


def compute_value(number: Number, n: int, m: int) -> int | None:
    """Return the value for these lengths; None if a quotient leaves a remainder."""
    try:
        return number(n, m)
    except ArithmeticError:
        return None


def make_expression(kind: str, number: str) -> tuple[str, str]:
    """Return an expression that slices `x`, and its type."""
    return {
        "row": (f"x[:, {number}]", "[batch, 2]"),
        "first": (f"x[:, 0:{number}]", f"[batch, {number}, 2]"),
        "behind": (f"x[:, {number}:n]", f"[batch, n - {number}, 2]"),
        "split": ("split(x, into=[n / 4, 4], axis=1)", "[batch, n / 4, 4, 2]"),
        "number": (f"x * insert(float(positions(x) * {number}), axis=-1)", "[batch, n, 2]"),
    }[kind]


def compute_expected(kind: str, number: int | None, x: Any) -> Any:
    """Return the NumPy result; None if there is none."""
    n = x.shape[1]
    if kind == "split":
        return x.reshape(len(x), n // 4, 4, 2) if n % 4 == 0 else None
    if number is None:
        return None
    if kind == "number":
        return x * (np.arange(n) * number)[:, None]
    if kind == "row":
        return x[:, number] if 0 <= number < n else None
    if not 0 <= number <= n:
        return None
    return x[:, :number] if kind == "first" else x[:, number:]


def check_specs(seed: int, directory: Path) -> None:
    """Check one spec of every kind."""
    rng = random.Random(f"taken {seed}")
    kind = KINDS[seed % len(KINDS)]
    text, number = make_length(rng)
    made, type = make_expression(kind, text)
    path = directory / "m.specc"
    path.write_text(
        "specc 1\nmodel m\ndims batch, n, m\ngraph g(x: float[batch, n, 2], z: "
        "float[batch, m, 1]) -> "
        f"(y: float{type}) {{\n  return {made}\n}}\n",
        encoding="utf-8",
    )
    target = ("onnx", "ort-cpu")[seed // len(KINDS) % 2]
    try:
        specc.compile(path, directory / "m.onnx", init=0, target=target, force=True)
    except SpeccError:  # an index out of range, or of unknown type
        return
    model = specc.load(directory / "m.onnx")
    for n, m in SIZES:
        x = np.random.default_rng(n).normal(size=(2, n, 2)).astype("f4")
        wanted = compute_expected(kind, compute_value(number, n, m), x)
        inputs = {"x": x, "z": np.zeros((2, m, 1), "f4")}
        if wanted is None:
            with pytest.raises(SpeccError):
                model.run(**inputs)
            continue
        given = model.run(**inputs)["y"]
        np.testing.assert_allclose(given, wanted, rtol=1e-5, err_msg=text)


@pytest.mark.parametrize("seed", range(20))
def test_slices_at_input_lengths_equal_python_slices(seed: int, tmp_path: Path) -> None:
    check_specs(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(20, 820, 50))
def test_hundreds_of_slices_at_input_lengths_equal_python_slices(
    start: int, tmp_path: Path
) -> None:
    for seed in range(start, start + 50):
        check_specs(seed, tmp_path)


@pytest.mark.parametrize(
    ("made", "type"),
    [
        ("x[:, 0:30]", "[batch, 30, 2]"),
        ("x[:, n - 30]", "[batch, 2]"),
        ("x[:, min(n, m) - 15]", "[batch, 2]"),
        ("x[:, n - m - 20]", "[batch, 2]"),
        ("x[:, 0:n / m]", "[batch, n / m, 2]"),
        ("x[:, 0:(n + 1) / 3]", "[batch, (n + 1) / 3, 2]"),
        ("split(x, into=[n / 14, 14], axis=1)", "[batch, n / 14, 14, 2]"),
        ("x * insert(where(positions(x) < n / 2, 1.0, 0.0), axis=-1)", "[batch, n, 2]"),
    ],
)
def test_accepted_slices_compile_and_can_be_verified(made: str, type: str, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(
        "specc 1\nmodel m\ndims batch, n, m\ngraph g(x: float[batch, n, 2], z: "
        "float[batch, m, 1]) -> "
        f"(y: float{type}) {{\n  return {made}\n}}\n",
        encoding="utf-8",
    )
    specc.compile(path, tmp_path / "m.onnx", init=0)
    lines = list(list_model_lines(open_compiled_model(str(tmp_path / "m.onnx")).selected_model))
    assert len(lines) == 3
    assert all("1 result agrees" in line for line in lines)


def test_slices_inside_loops_equal_python_slices(tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(
        "specc 1\nmodel m\ndims batch, n, k\ngraph g(x: float[batch, k, n, 4]) -> (y: "
        "float[batch, 4]) {\n"
        "  s = zeros(shape=[length(x, axis=0), 4])\n"
        "  scan r in x along k carry s {\n    s = s + sum(r[:, n - 25:n / 2 + 14], "
        "axis=1)\n  }\n  return s\n}\n",
        encoding="utf-8",
    )
    specc.compile(path, tmp_path / "m.onnx", init=0)
    lines = list(list_model_lines(open_compiled_model(str(tmp_path / "m.onnx")).selected_model))
    assert len(lines) >= 3
    assert all("1 result agrees" in line for line in lines)
    model = specc.load(tmp_path / "m.onnx")
    x = np.random.default_rng(0).normal(size=(2, 3, 30, 4)).astype("f4")
    np.testing.assert_allclose(model.run(x=x)["y"], x[:, :, 5:29].sum((1, 2)), rtol=1e-4, atol=1e-4)
    for n in (24, 26, 29):  # positions before the first, after the last, and fractions are invalid
        with pytest.raises(SpeccError):
            model.run(x=x[:, :, :1].repeat(n, 2))


@pytest.mark.parametrize(
    ("made", "type"),
    [
        ("x[:, 0:n + 20]", "[batch, n + 20, 2]"),
        ("x[:, n + 1:n]", "[batch, 0 - 1, 2]"),
        ("x[:, n]", "[batch, 2]"),
        ("x[:, (m + 20) + (n - m)]", "[batch, 2]"),
    ],
)
def test_check_reports_positions_that_never_exist(made: str, type: str, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(
        "specc 1\nmodel m\ndims batch, n, m\ngraph g(x: float[batch, n, 2], z: "
        "float[batch, m, 1]) -> "
        f"(y: float{type}) {{\n  return {made}\n}}\n",
        encoding="utf-8",
    )
    with pytest.raises(SpeccError) as caught:
        check_spec(open_spec(str(path)))
    assert [d.code for d in caught.value.diagnostics] == ["E0301"]
