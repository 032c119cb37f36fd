"""Matrices are quantized for every function that multiplies by them: results equal integer
arithmetic, computed here in float64.
"""

from pathlib import Path

import numpy as np
import pytest
from support.verification_lines import list_model_lines

import specc
from specc.ir.array import Array

LATER = pytest.mark.parity
WIDE, OUT = 24, 40
HEAD = """\
specc 1
model m
dims batch, n

graph g(x: float[batch, n, {wide}]) -> (y: float[batch, n, {out}]) {{
  {body}
}}
"""
LIES = {"in": f"parameter(shape=[{WIDE}, {OUT}]) @ w"}
LIES["out"] = f"parameter(shape=[{OUT}, {WIDE}]) @ w"
FORMS = {
    "matmul": f"return matmul(x, {LIES['in']})",
    "matmul of a turned one": f"return matmul(x, transpose({LIES['out']}))",
    "einsum, in first": f'return einsum("b n i, i o -> b n o", x, {LIES["in"]})',
    "einsum, out first": f'return einsum("b n i, o i -> b n o", x, {LIES["out"]})',
    "einsum, matrix first": f'return einsum("o i, b n i -> b n o", {LIES["out"]}, x)',
    "two parts": f"w = {LIES['in']}\n"
    f"  return concat([matmul(x, w[:, :16]), matmul(x, w[:, 16:])], axis=-1)",
    "parts of a linear map": f"w = {LIES['out']}\n"
    "  return concat([affine(x, w[:8], none), affine(x, w[8:], none)], axis=-1)",
    "in a loop": f"w = {LIES['in']}\n"
    f"  h = zeros(shape=[batch, {OUT}])\n"
    "  scan row in x along n carry h collect rows {\n"
    "    h = 0.5 * h + matmul(row, w)\n    rows = matmul(row, w)\n  }\n  return rows",
}
MORE = f"{LIES['in'].replace('@ w', '@ other')}"
OTHERS = {
    "results are no last axis": FORMS["matmul"]
    + f' + transpose(einsum("b n i, i o -> b o n", x, {MORE}))',
    "cut along what is summed": FORMS["matmul"] + f" + matmul(x[:, :, :8], ({MORE})[:8])",
    "a matrix on the left": FORMS["matmul"]
    + f' + einsum("b n i, i o, b n i -> b n o", x, {MORE}, x)',
}


def compiled(directory: Path, body: str, **options: object) -> specc.Model:
    text = HEAD.format(wide=WIDE, out=OUT, body=body)
    (directory / "m.specc").write_text(text)
    specc.compile(directory / "m.specc", directory / "m.onnx", init=0, **options)
    return specc.load(directory / "m.onnx")


def compute_product(x: Array, w: Array, *, rounds: bool) -> Array:
    """Return the product with the dequantized matrix [in, out], in float64."""
    if rounds:
        scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        x = np.rint(x / scale).astype(np.float64) * scale
    return np.asarray(x.astype(np.float64) @ w.astype(np.float64))


@pytest.mark.parametrize(
    ("form", "kind", "target"),
    [
        pytest.param(f, k, t, marks=[] if few else LATER)
        for f in FORMS
        for k in ("int8", "int8-weights", "int4")
        for t in ("ort-cpu", "onnx")
        for few in [(f, k, t) == ("matmul", "int8", "ort-cpu")]
    ],
)
def test_quantized_products_equal_integer_arithmetic(
    form: str, kind: str, target: str, tmp_path: Path
) -> None:
    given = {"int8": {}, "int8-weights": {"group_size": 16}}
    given["int4"] = {"group_size": 16, "quantize_all": True}
    options = {"quantize": kind, "target": target, **given[kind]}
    model = compiled(tmp_path, FORMS[form], **options)
    one = model.manifest.quantized["w"]
    # standard ONNX supports no groups in a loop, and no slices of int4 values
    cut = kind == "int4" and "part" in form
    whole = kind == "int8" or (target == "onnx" and (cut or form == "in a loop"))
    assert (one.format.group_size == 0) == whole
    assert one.format.bits == (4 if kind == "int4" and not whole else 8)
    w = model.weights()["w"]
    w = w if w.shape == (WIDE, OUT) else w.T
    x = np.random.default_rng(1).normal(size=(2, 5, WIDE)).astype(np.float32)
    assert all("agree" in line for line in list_model_lines(model.selected_model, rounds=1))
    if one.format.rounding == "row":
        want = compute_product(x, w, rounds=True)
        got = model.run(x=x)["y"]
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_other_products_are_not_quantized(body: str, tmp_path: Path) -> None:
    model = compiled(tmp_path, body, quantize="int8")
    assert set(model.manifest.quantized) == {"w"}
    assert list(model.manifest.precision["kept"]) == ["other"]
    assert all("agree" in line for line in list_model_lines(model.selected_model, rounds=1))


@LATER
@pytest.mark.parametrize("form", FORMS)
def test_int4_calibration_reads_the_activations(form: str, tmp_path: Path) -> None:
    """Calibration finds the activations of the matrix for every function, also in loops."""
    x = np.random.default_rng(2).normal(size=(4, 6, WIDE)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    given = {"quantize": "int4", "quantize_all": True, "group_size": 16}
    model = compiled(tmp_path, FORMS[form], **given, calibration_data=tmp_path / "x.npz")
    assert model.manifest.quantized["w"].recipe == "gptq"
