"""`int8-tensor`: activations of a recurrent layer or a loop share one per-tensor scale.

Results equal those of the reference for any padding; values that share a scale with a larger value
are rounded by it, except padding.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.verification.quantized_matmul_check import compare_quantized_matmuls

LATER = pytest.mark.parity
RECURRENT = [
    ("lstm_lm", "ort-cpu"),
    pytest.param("gru_lm", "onnx", marks=LATER),
    pytest.param("bilstm_tagger", "ort-cpu", marks=LATER),
    pytest.param("lstm_lm", "onnx", marks=LATER),
    pytest.param("rnnsearch", "ort-cpu", marks=LATER),
    pytest.param("seq2seq", "onnx", marks=LATER),
]


def compiled(spec: str, path: Path, *given: str) -> int:
    values = [f"--set={n}={json.dumps(v)}" for n, v in SMALL_CONFIGS[spec].items()]
    args = ["compile", spec, *values, "--init=0", "--quantize", "int8-tensor", *given]
    return main([*args, "-o", str(path)])


@pytest.mark.parametrize(("spec", "target"), RECURRENT)
def test_int8_tensor_agrees_with_the_reference(
    spec: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compiled(spec, tmp_path / "m.onnx", "--target", target) == 0
    assert "depends on the other sequences of its batch" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "m.onnx"), "--rounds", "3"]) == 0
    assert "quantized products agree" in capsys.readouterr().out


@LATER
def test_steps_use_per_tensor_scales(tmp_path: Path) -> None:
    assert compiled("lstm_lm", tmp_path / "m", "--graphs", "score,step") == 0
    assert main(["verify", str(tmp_path / "m"), "--rounds", "2"]) == 0
    kinds = {
        node.op_type
        for path in tmp_path.glob("m/*.onnx")
        for node in onnx.load(path, load_external_data=False).graph.node
    }
    assert "DynamicQuantizeLSTM" in kinds
    assert "LSTM" not in kinds


@pytest.mark.parametrize(
    ("keep", "kinds"),
    [
        ("nothing_of.*", {"layer"}),
        ("rnn.weight_ih_l1", {"layer", "tensor"}),
        ("rnn.weight_hh_l0", {"layer", "row"}),
    ],
)
def test_a_partly_quantized_layer_becomes_a_loop(
    keep: str, kinds: set[str], tmp_path: Path
) -> None:
    given = [] if keep.startswith("nothing") else ["--quantize-exclude", keep]
    assert compiled("lstm_lm", tmp_path / "m.onnx", *given, "--no-load") == 0
    rounded = specc.load(tmp_path / "m.onnx").manifest.quantized
    found = {n: one.format.rounding for n, one in rounded.items() if n.startswith("rnn")}
    assert set(found.values()) == kinds
    assert keep not in found


def test_padding_does_not_change_scales(tmp_path: Path) -> None:
    assert compiled("lstm_lm", tmp_path / "m.onnx") == 0
    model = specc.load(tmp_path / "m.onnx", threads=1)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, SMALL_CONFIGS["lstm_lm"]["vocab"], (1, 6))
    keep = np.ones((1, 6), bool)
    alone = model.run(ids=ids, keep=keep)["logits"]
    for side in (0, 1):
        rows = np.roll(np.concatenate([ids, ids[:, :3]], 1), 3 * side, 1)
        there = np.roll(np.concatenate([keep, ~keep[:, :3]], 1), 3 * side, 1)
        padded = model.run(ids=rows, keep=there)["logits"]
        assert (padded[there] == alone[0]).all()


@pytest.mark.parametrize("role", ["y", "u", "w scales"])
def test_a_wrong_product_is_detected(role: str, tmp_path: Path) -> None:
    """One changed value of its inputs or outputs is detected."""
    assert compiled("lstm_lm", tmp_path / "m.onnx") == 0
    model = specc.load(tmp_path / "m.onnx").selected_model
    session, products = model.open_with_quantized_matmul_outputs()
    ids = np.arange(6).reshape(2, 3)
    results = dict(session.run({"ids": ids, "keep": np.ones((2, 3), bool)}))
    layers = [p for p in products if p.operator == "DynamicQuantizeLSTM"]
    assert len(layers) == SMALL_CONFIGS["lstm_lm"].get("layers", 2)
    assert compare_quantized_matmuls(layers, results, "") < 1e-6
    name = layers[0].value_names[role]
    results[name] = results[name].copy()
    results[name].flat[0] += 9 if role == "u" else 1e-2
    with pytest.raises(SpeccError, match="E0855"):
        compare_quantized_matmuls(layers, results, "")
