"""int8 products on x86 CPUs without VNNI, on which ONNX Runtime's default kernel saturates."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support.small_configs import SMALL_CONFIGS
from support.verification_lines import list_model_lines

import specc
from specc_onnx.ort_session import EXACT_PRODUCTS_OPTION
from specc_onnx.write import model_file
from specc_onnx.write.exact_integer_products import isolate_int8_weights

RNG = np.random.default_rng(0)
CONTRIB = "com.microsoft"


@pytest.mark.parametrize(
    ("spec", "target", "kind"),
    [
        ("albert", "ort-cpu", "int8"),  # several products read a weight
        ("rnnsearch", "ort-cpu", "int8"),  # loops read weights and their slices
        ("lstm_lm", "ort-cpu", "int8-tensor"),
        ("bert", "onnx", "int8-weights"),  # block-wise DequantizeLinear
    ],
)
def test_quantized_specs_are_exact_on_every_cpu(
    spec: str, target: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "is_int8_saturating", lambda: True)
    specc.compile(spec, tmp_path / "m.onnx", set=SMALL_CONFIGS[spec], init=0, target=target, quantize=kind)  # fmt: skip
    lines = list(list_model_lines(specc.load(tmp_path / "m.onnx").default_model, rounds=2))
    assert any("products" in line for line in lines)
    assert all("agree" in line for line in lines)


def make_model(kinds: list[str], weights: np.ndarray) -> ModelProto:
    """Return a model in which each product reads the same weight and zero point."""
    constants = {"zero": np.uint8(128), "zero_w": np.int8(0), "one": np.float32(1), "w": weights}
    nodes = []
    for n, kind in enumerate(kinds):
        if kind == "QGemm":
            inputs = ["x", "one", "zero", "w", "one", "zero_w"]
            node = helper.make_node(kind, inputs, [f"y{n}"], domain=CONTRIB, transB=1)
        else:
            node = helper.make_node(kind, ["x", "w", "zero"], [f"y{n}"])
        nodes.append(node)
    types = {"QGemm": TensorProto.FLOAT, "MatMulInteger": TensorProto.INT32}
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["m", len(weights)])],
        [helper.make_tensor_value_info(f"y{n}", types[k], None) for n, k in enumerate(kinds)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("kinds", [["QGemm", "QGemm"], ["MatMulInteger", "QGemm", "MatMulInteger"]])
def test_products_of_a_shared_weight_do_not_saturate(kinds: list[str]) -> None:
    """Weights of 127 and activations of 255 exceed 16 bits in pairs."""
    weights = RNG.integers(-127, 128, (64, 64)).astype(np.int8)
    weights[:, 0], weights[0] = 127, 127
    x = RNG.integers(0, 256, (3, 64)).astype(np.uint8)
    x[0] = 255
    model = make_model(kinds, weights)
    isolate_int8_weights(model)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*EXACT_PRODUCTS_OPTION)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    centered = x.astype(np.int64) - 128
    for kind, y in zip(kinds, session.run(None, {"x": x}), strict=True):
        assert (y == centered @ (weights.T if kind == "QGemm" else weights)).all()
