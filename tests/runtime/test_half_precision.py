"""Models with 16-bit computation: compiled for CUDA and run on the CPU, which has kernels for
float16 and inserts casts elsewhere.
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS
from support.verification_lines import list_model_lines

import specc
from specc.cli import main as cli
from specc.diagnostics.diagnostic import SpeccError
from specc.runtime.single_model_file import load_model
from specc.verification.rounding_errors_and_overflow import HALF_FORMATS
from specc.weights.formats.safetensors import write_safetensors

SPECS = ("gpt2", "mixtral", "rnnsearch")
LATER = pytest.mark.parity
"""Slow tests run in the second half of CI."""
BROKEN = """specc 1
model broken
dims batch
graph g(x: float[batch, 3]) -> (y: float[batch, 4]) {
  return linear(relu(linear(x, out=4) @ up) * 1000.0 * 1000.0, out=4) @ down
}
"""


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_conversion_to_16_bits_rounds_like_numpy(name: str, dtype: type) -> None:
    """Compared with NumPy's conversions, including subnormal values."""
    rng = np.random.default_rng(0)
    least = -30 if name == "f16" else -130
    some = rng.standard_normal(4000) * 2.0 ** rng.integers(least, 16, 4000)
    edges = [0.0, -0.0, 65504.0, 65519.0, 2.0**-24, 1 / 3, np.inf, -np.inf]
    # values halfway between two others, which round to even
    middle = (1 + np.arange(64) / 64 + 2.0**-12) * 3
    x = np.concatenate([some, edges, middle]).astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = x.astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(HALF_FORMATS[name].round_array(x.astype(np.float64)), wanted)


def compiled(spec: str, out: Path, dtype: str, *more: str) -> int:
    sets = [f"--set={k}={_text(v)}" for k, v in SMALL_CONFIGS.get(spec, {}).items()]
    options = ("--target", "ort-cuda", "--dtype", dtype, "--init", "1", "-o", str(out))
    return cli.main(["compile", spec, *sets, *options, *more])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


@pytest.mark.parametrize("name", sample_sweep(SPECS))
def test_a_16_bit_package_agrees_with_the_reference(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "package"
    assert compiled(name, out, "f16", "--graphs", "score,encode,step") == 0
    capsys.readouterr()
    assert cli.main(["verify", str(out)]) == 0
    told = capsys.readouterr().out
    assert "of which f16 explains" in told


def test_verify_detects_a_wrong_16_bit_model(tmp_path: Path) -> None:
    """5 % of one row is more than float16 rounding."""
    out = tmp_path / "gpt2.onnx"
    assert compiled("gpt2", out, "f16") == 0
    model = load_model(str(out))
    assert len(list(list_model_lines(model))) == 3

    def off(inputs: dict[str, Any]) -> dict[str, Any]:
        made = model.raw_session.run(inputs)
        return {name: value * 1.05 for name, value in made.items()}

    wrong = SimpleNamespace(run=off, outputs=model.session.outputs)
    with pytest.raises(SpeccError, match="E0930"):
        list(list_model_lines(replace(model, session=wrong)))


def test_an_overflowing_value_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "broken.specc"
    spec.write_text(BROKEN)
    out = tmp_path / "broken.onnx"
    assert compiled(str(spec), out, "f16") == 0
    capsys.readouterr()
    assert cli.main(["verify", str(out)]) == 4
    told = capsys.readouterr().err
    assert "E0980" in told
    assert "65504" in told


LOOKED_UP = """specc 1
model small
dims batch, seq
graph g(ids: int[batch, seq]) -> (y: float[batch, seq, 3]) {
  x = relu(linear(embedding(ids, size=5, dim=16) @ table, out=8) @ up)
  return linear(x, out=3) @ down
}
"""
SHAPES = {
    "table.weight": (5, 16),
    "up.weight": (8, 16),
    "up.bias": (8,),
    "down.weight": (3, 8),
    "down.bias": (3,),
}


@pytest.mark.parametrize(
    ("large", "given"),
    [
        ("up.weight", ["--quantize", "int8"]),
        ("up.bias", []),
        *(
            pytest.param(name, given, marks=LATER)
            for name in SHAPES
            for given in (
                ["--quantize=int8"],
                ["--quantize=int8-weights"],
                ["--quantize=int4", "--quantize-all"],
            )
        ),
    ],
)
def test_compile_names_a_weight_out_of_float16_range(
    large: str, given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For any stored dtype: CUDA reads 16-bit values. Logits are computed in float32."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}
    weights[large].flat[1] = 1e5
    write_safetensors(tmp_path / "w.safetensors", weights)
    spec = tmp_path / "small.specc"
    spec.write_text(LOOKED_UP)
    args = ["compile", str(spec), "--weights", str(tmp_path / "w.safetensors")]
    out = tmp_path / "m.onnx"
    args += ["--target=ort-cuda", "--dtype=f16", *given, "-o", str(out)]
    fits = large.startswith("down")
    assert cli.main(args) == (0 if fits else 1)
    assert out.exists() == fits
    told = capsys.readouterr().err
    assert fits or ("E0517" in told and f"`{large}`" in told and "100000" in told)
    # for quantized matrices the scales are checked: per channel, or per group
    rows, *wide = SHAPES[large]
    rounded = bool(given) and bool(wide)
    many = rows if rounded else rows * math.prod(wide)
    counted = f" 1 of {many} {'scales' if rounded else 'values'} checked"
    assert fits or counted in told


def test_a_cpu_without_16_bit_support_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpt2.onnx"
    assert compiled("gpt2", out, "bf16") == 0
    capsys.readouterr()
    assert cli.main(["verify", str(out)]) == 1
    assert "bf16" in capsys.readouterr().err


def test_a_16_bit_model_generates(tmp_path: Path) -> None:
    """With steps whose KV cache is 16-bit, and as a standalone generator."""
    out = tmp_path / "package"
    assert compiled("gpt2", out, "f16", "--graphs", "all") == 0
    found = []
    for path in (out, out / "generate.onnx"):
        writing = specc.load(path).generate(input_ids=[[3, 5, 7], [4, 4, 9]], max_tokens=6)
        found.append([[int(t) for t in made.tokens] for made in writing])
    assert len(found[0]) == 6
    assert found[0] == found[1]
    beams = specc.load(out).generate(
        input_ids=[[3, 5, 7]], strategy="beam", num_beams=3, max_tokens=6
    )
    assert len(list(beams)) == 6
