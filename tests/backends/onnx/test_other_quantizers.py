"""What other programs make of our models: ONNX Runtime's dynamic quantizer and its
converter to float16 read them, and what comes out is the same but for the bits.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.ir.array import Array
from specc.runtime.random_inputs import random_inputs, sizes_for

WRITTEN_FOR = ("bert", "gpt2", "vit", "llama", "t5", "rnnsearch")
SOME = [
    pytest.param(name, marks=() if name == "gpt2" else pytest.mark.slow) for name in WRITTEN_FOR
]
EIGHT_BITS, SIXTEEN_BITS = 0.08, 0.005
"""What such bits may lose of the largest value, of models of random weights this small; a
model that is misread is off by about 1.
"""


def compiled(spec: str, path: Path, *given: str) -> Path:
    # a score is no text in quotes
    words = {n: v if isinstance(v, str) else json.dumps(v) for n, v in SMALL_CONFIGS[spec].items()}
    values = [f"--set={n}={v}" for n, v in words.items()]
    args = ["compile", spec, *values, "--init=0", "--target", "onnx", *given]
    assert main([*args, "--weights-as", "inline", "-o", str(path)]) == 0
    return path


def results(path: Path, inputs: dict[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def lost(path: Path, full: Path) -> float:
    """The largest difference of any result, of its largest value, in rows that exist: in
    padding before a text nothing is seen, and a norm makes much of what is almost zero.
    """
    graph = specc.load(full).manifest.graph
    inputs = random_inputs(graph, sizes_for(graph, 2), np.random.default_rng(0))
    keeps = [inputs[n] for n, facts in graph.input_facts.items() if facts.keep]
    got, want = results(path, inputs), results(full, inputs)
    return max(
        float(np.abs(rows_of(got[n] - value, keeps)).max() / np.abs(value).max())
        for n, value in want.items()
        if value.dtype.kind == "f"
    )


def rows_of(result: Array, keeps: list[Array]) -> Array:
    """The rows of a result that are no padding."""
    for keep in keeps:
        if result.ndim > 2 and result.shape[:2] == keep.shape:
            found: Array = result[keep]
            return found
    return result


@pytest.mark.parametrize("spec", SOME)
def test_a_dynamic_quantizer_reads_them(spec: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    full = compiled(spec, tmp_path / "full.onnx", "--for-quantizers")
    for kind in (quantization.QuantType.QInt8, quantization.QuantType.QUInt8):
        low = tmp_path / f"{kind}.onnx"
        quantization.quantize_dynamic(full, low, weight_type=kind)
        held = {t.data_type for t in onnx.load(low).graph.initializer}
        assert held & {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
        assert 0 < lost(low, full) < EIGHT_BITS


@pytest.mark.parity
@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("olmo2", {}),
        ("wav2vec2", {"nodes_to_exclude": ["wav2vec2/encoder/pos_conv_embed/Conv"]}),
        ("luong_location", {"op_types_to_quantize": ["MatMul", "Gemm"]}),
    ],
)
def test_what_it_has_to_be_told(spec: str, given: dict[str, list[str]], tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    full = compiled(spec, tmp_path / "full.onnx", "--for-quantizers")
    low = tmp_path / "low.onnx"
    quantization.quantize_dynamic(full, low, **given)
    assert 0 < lost(low, full) < EIGHT_BITS


@pytest.mark.parametrize("spec", SOME)
def test_a_converter_to_float16_reads_them(spec: str, tmp_path: Path) -> None:
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    full = compiled(spec, tmp_path / "full.onnx")
    half = float16.convert_float_to_float16(onnx.load(full), keep_io_types=True)
    onnx.save(half, tmp_path / "half.onnx")
    assert 0 < lost(tmp_path / "half.onnx", full) < SIXTEEN_BITS


def test_only_what_is_misread_is_left_out(tmp_path: Path) -> None:
    kinds = {}
    for name, given in {"usual": [], "ours": ["--for-quantizers"]}.items():
        path = compiled("gpt2", tmp_path / f"{name}.onnx", *given)
        assert main(["verify", str(path), "--rounds", "1"]) == 0
        kinds[name] = {node.op_type for node in onnx.load(path).graph.node}
    assert "Attention" in kinds["usual"]
    assert "Attention" not in kinds["ours"]
    assert {"Gelu", "LayerNormalization", "Gemm"} <= kinds["ours"]


@pytest.mark.parametrize(
    "given", [["--target", "ort-cpu"], ["--quantize", "int8"], ["--target", "ort-cuda"]]
)
def test_options_that_do_not_go_with_it(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["compile", "xor", "--target", "onnx", "--for-quantizers", *given]
    assert main([*args, "-o", str(tmp_path / "m.onnx")]) == 1
    assert "E0753" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
