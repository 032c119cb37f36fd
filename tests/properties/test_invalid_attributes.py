"""`check` rejects invalid attribute values of operations with a code.

Negative, zero, infinite, and out of float32 range; and options of another type.
"""

from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

ROPE = "attention(x, heads=2, mask=all, rope=rope({}), position_ids=positions(x), pairs=half) @ a"
BY = "attend_by({}, x, x, x, mask=all, normalize=kernel)"
CASES = {
    "layer_norm(x, eps=-1e-5) @ n": "E0417",
    "layer_norm(x, eps=inf) @ n": "E0417",
    "layer_norm(x, eps=0.0) @ n": "",
    "rms_norm(x, eps=-1e-5) @ n": "E0417",
    "rms_norm(x, eps=1e-5, offset=-inf) @ n": "E0417",
    "attention(x, heads=0, mask=all) @ a": "E0310",
    "attention(x, heads=-2, mask=all) @ a": "E0303",
    "attention(x, heads=2, kv_heads=0, mask=all) @ a": "E0308",
    "attention(x, heads=2, cap=-5.0, mask=all) @ a": "E0417",
    "attention(x, heads=2, scale=inf, mask=all) @ a": "E0417",
    "attention(x, heads=2, mask=window(0)) @ a": "E0417",
    "attention(x, heads=2, mask=chunked(0)) @ a": "E0417",
    "conv(x, out=8, kernel=0) @ c": "E0417",
    "conv(x, out=8, kernel=3, stride=0) @ c": "E0417",
    "conv(x, out=8, kernel=3, dilation=0, padding=same) @ c": "E0417",
    "conv(x, out=8, kernel=3, groups=0, padding=same) @ c": "E0417",
    "conv(x, out=8, kernel=3, padding=-1) @ c": "E0323",
    "conv(x, out=8, kernel=[3, 3], padding=same) @ c": "E0324",
    "conv(x, out=8, kernel=3, groups=3, padding=same) @ c": "E0321",
    "conv(x, out=8, kernel=3, padding=[0, 2]) @ c": "",
    "maxout(x, 0)": "E0310",
    "insert(sinusoid(positions(x), dim=8, layout=halves, base=0.0), axis=0) + x": "E0417",
    "clip(x, low=2.0, high=1.0)": "E0417",
    "clip(x, low=-inf, high=inf)": "",
    "delay(x, first=1e300)": "E0417",
    "x + float(delay(positions(x), first=0.5, axis=0))[0]": "E0206",
    BY.format("box(0.0)"): "E0417",
    BY.format("triangle(-1.0)"): "E0417",
    BY.format("epanechnikov(0.0)"): "E0417",
    "attend_by(cosine(eps=-1e-8), x, x, x, mask=all)": "E0417",
    ROPE.format("theta=-1.0"): "E0203",
    ROPE.format("theta=1e4, factor=2.0"): "E0201",
    ROPE.format("theta=1e4, kind=linear"): "E0201",
    ROPE.format("theta=1e4, kind=linear, factor=2.0, beta_fast=8.0"): "E0201",
    ROPE.format("theta=1e4, kind=proportional"): "E0201",
    ROPE.format("theta=1e4, kind=proportional, part=0.5"): "",
    ROPE.format("theta=1e4, kind=proportional, part=1.5"): "E0203",
    ROPE.format("theta=1e4, kind=proportional, part=0.0"): "E0203",
    ROPE.format("theta=1e4, kind=yarn, factor=2.0"): "E0201",
    ROPE.format("theta=1e4, kind=yarn, factor=2.0, original=8"): "",
    ROPE.format("theta=1e4, kind=yarn, factor=2.0, original=8, mscale=1.0"): "E0201",
    ROPE.format("theta=1e4, kind=llama3, factor=2.0, original=8, truncate=false"): "E0201",
    ROPE.format("theta=1e4, kind=longrope, factor=2.0, original=8"): "E0201",
}


@pytest.mark.parametrize("value", CASES)
def test_check_rejects_invalid_attribute_values(value: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.specc"
    path.write_text(
        "specc 1\nmodel m\ndims b, n\ngraph g(x: float[b, n, 8]) "
        f"-> (y: float[...]) {{\n  y = {value}\n  return y\n}}\n"
    )
    codes = {""}
    try:
        elaborate_spec(open_spec(str(path)))
    except SpeccError as failed:
        codes = {d.code for d in failed.diagnostics}
    assert codes == {CASES[value]}
