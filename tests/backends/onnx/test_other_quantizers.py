"""ONNX Runtime's dynamic quantizer and its float16 converter read compiled models; results agree up
to precision.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.onnx_sessions import open_silent_session
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.ir.array import Array
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs

WRITTEN_FOR = ("bert", "gpt2", "vit", "llama", "t5", "rnnsearch")
SOME = [
    pytest.param(name, marks=() if name == "gpt2" else pytest.mark.slow) for name in WRITTEN_FOR
]
EIGHT_BITS, SIXTEEN_BITS = 0.08, 0.005
"""What such bits may lose of the largest value, of models of random weights this small; a
model that is misread is off by about 1.
"""


def compile_spec(spec: str, path: Path, *given: str) -> Path:
    # a score is no text in quotes
    words = {n: v if isinstance(v, str) else json.dumps(v) for n, v in SMALL_CONFIGS[spec].items()}
    values = [f"--set={n}={v}" for n, v in words.items()]
    args = ["compile", spec, *values, "--init=0", "--target", "onnx", *given]
    assert main([*args, "--weights-as", "inline", "-o", str(path)]) == 0
    return path


def run_file(path: Path, inputs: dict[str, Array]) -> dict[str, Array]:
    session = open_silent_session(onnx.load(path))
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def measure_relative_error(path: Path, full: Path) -> float:
    """Return the largest difference of any result relative to its largest value at valid positions:
    a position in left padding has no visible keys, and a norm amplifies values near zero.
    """
    graph = specc.load(full).manifest.graph
    inputs = make_random_inputs(graph, choose_dim_sizes(graph, 2), np.random.default_rng(0))
    keeps = [inputs[n] for n, facts in graph.input_facts.items() if facts.padding_side]
    got, want = run_file(path, inputs), run_file(full, inputs)
    return max(
        float(np.abs(select_valid_positions(got[n] - value, keeps)).max() / np.abs(value).max())
        for n, value in want.items()
        if value.dtype.kind == "f"
    )


def select_valid_positions(result: Array, keeps: list[Array]) -> Array:
    """Return the positions of a result that are not padding."""
    for keep in keeps:
        if result.ndim > 2 and result.shape[:2] == keep.shape:
            found: Array = result[keep]
            return found
    return result


@pytest.mark.parametrize("spec", SOME)
def test_dynamic_quantizer(spec: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    full = compile_spec(spec, tmp_path / "full.onnx", "--for-external-quantization")
    for kind in (quantization.QuantType.QInt8, quantization.QuantType.QUInt8):
        low = tmp_path / f"{kind}.onnx"
        quantization.quantize_dynamic(full, low, weight_type=kind)
        held = {t.data_type for t in onnx.load(low).graph.initializer}
        assert held & {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
        assert 0 < measure_relative_error(low, full) < EIGHT_BITS


@pytest.mark.parity
@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("olmo2", {}),
        ("wav2vec2", {"nodes_to_exclude": ["wav2vec2/encoder/pos_conv_embed/Conv"]}),
        ("luong_location", {"op_types_to_quantize": ["MatMul", "Gemm"]}),
    ],
)
def test_options_for_the_quantizer(spec: str, given: dict[str, list[str]], tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    full = compile_spec(spec, tmp_path / "full.onnx", "--for-external-quantization")
    low = tmp_path / "low.onnx"
    quantization.quantize_dynamic(full, low, **given)
    assert 0 < measure_relative_error(low, full) < EIGHT_BITS


@pytest.mark.parametrize("spec", SOME)
def test_float16_converter(spec: str, tmp_path: Path) -> None:
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    full = compile_spec(spec, tmp_path / "full.onnx")
    half = float16.convert_float_to_float16(onnx.load(full), keep_io_types=True)
    onnx.save(half, tmp_path / "half.onnx")
    assert 0 < measure_relative_error(tmp_path / "half.onnx", full) < SIXTEEN_BITS


def test_only_misread_operators_are_excluded(tmp_path: Path) -> None:
    kinds = {}
    for name, given in {"usual": [], "ours": ["--for-external-quantization"]}.items():
        path = compile_spec("gpt2", tmp_path / f"{name}.onnx", *given)
        assert main(["verify", str(path), "--rounds", "1"]) == 0
        kinds[name] = {node.op_type for node in onnx.load(path).graph.node}
    assert "Attention" in kinds["usual"]
    assert "Attention" not in kinds["ours"]
    assert {"Gelu", "LayerNormalization", "Gemm"} <= kinds["ours"]


@pytest.mark.parametrize(
    "given", [["--target", "ort-cpu"], ["--quantize", "int8"], ["--target", "ort-cuda"]]
)
def test_conflicting_options_are_errors(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["compile", "xor", "--target", "onnx", "--for-external-quantization", *given]
    assert main([*args, "-o", str(tmp_path / "m.onnx")]) == 1
    assert "E0753" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
