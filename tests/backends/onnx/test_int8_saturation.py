"""On CPUs whose int8 products saturate, weights are converted to uint8, and products equal integer
arithmetic; results are the same on every CPU.
"""

from pathlib import Path

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper
from support.small_configs import SMALL_CONFIGS
from support.verification_lines import list_model_lines

import specc
from specc_onnx import int8_saturation
from specc_onnx.int8_saturation import convert_weights_to_uint8
from specc_onnx.ort_session import open_serialized_ort_model

RNG = np.random.default_rng(11)
COLUMNS = 24


def build_products(depth: int, shares_weights: bool) -> tuple[ModelProto, np.ndarray, np.ndarray]:
    """Build two products of the same activations with extreme weights: `MatMulInteger` with
    transposed weights in a branch, and `QGemm`.
    """
    weights = RNG.choice(np.array([-128, -127, 0, 126, 127], np.int8), (COLUMNS, depth))
    others = weights if shares_weights else -np.maximum(weights, -127)
    info, node = helper.make_tensor_value_info, helper.make_node
    branches = [
        GraphProto(
            name=name,
            node=[
                node("Transpose", ["w"], [f"{name} columns"], perm=[1, 0]),
                node("MatMulInteger", ["x", f"{name} columns", "zero"], [name]),
            ],
            output=[info(name, TensorProto.INT32, None)],
        )
        for name in ("then", "else")
    ]
    operands = ["x", "one", "zero", "w" if shares_weights else "w2", "one", "signed_zero"]
    constants = {"w": weights, "zero": np.uint8(128), "one": np.float32(1)}
    constants |= {"signed_zero": np.int8(0)} | ({} if shares_weights else {"w2": others})
    graph = GraphProto(
        name="products",
        node=[
            node("If", ["condition"], ["y"], then_branch=branches[0], else_branch=branches[1]),
            node("QGemm", operands, ["z"], domain="com.microsoft", transB=1),
        ],
        input=[
            info("x", TensorProto.UINT8, ["tokens", depth]),
            info("condition", TensorProto.BOOL, []),
        ],
        output=[info("y", TensorProto.INT32, None), info("z", TensorProto.FLOAT, None)],
        initializer=[numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return ModelProto(ir_version=8, graph=graph, opset_import=imports), weights, others


@pytest.mark.parametrize("is_converted", [False, True])
@pytest.mark.parametrize("shares_weights", [False, True])
@pytest.mark.parametrize("depth", [1, 31, 64, 200])
def test_products_equal_integer_arithmetic(
    depth: int, shares_weights: bool, is_converted: bool
) -> None:
    """Without a conversion by the caller, sessions of this CPU convert weights if they saturate."""
    model, weights, others = build_products(depth, shares_weights)
    if is_converted:
        assert convert_weights_to_uint8(model) == {}
    codes = RNG.choice(np.array([0, 1, 128, 254, 255], np.uint8), (7, depth))
    session = open_serialized_ort_model(model.SerializeToString()).session
    y, z = session.run(None, {"x": codes, "condition": np.array(True)})
    centered = codes.astype(np.int64) - 128
    np.testing.assert_array_equal(y, centered @ weights.astype(np.int64).T)
    np.testing.assert_array_equal(z, centered @ others.astype(np.int64).T)


@pytest.mark.parametrize(
    ("spec", "target", "kind"),
    [
        ("albert", "ort-cpu", "int8"),  # several products read a weight
        ("rnnsearch", "ort-cpu", "int8"),  # loops read weights and their slices
        ("lstm_lm", "ort-cpu", "int8-tensor"),
        ("mixtral", "onnx", "int8"),
        ("bert", "onnx", "int8-weights"),  # block-wise DequantizeLinear
    ],
)
def test_converted_specs_agree_with_the_reference(
    spec: str, target: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_saturation, "has_saturating_int8_products", lambda: True)
    path = tmp_path / "m.onnx"
    specc.compile(spec, path, set=SMALL_CONFIGS[spec], init=0, target=target, quantize=kind)
    lines = list(list_model_lines(specc.load(path).selected_model, rounds=2))
    assert any("products" in line for line in lines)
    assert all("agree" in line for line in lines)


def test_models_without_integer_products_are_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    specc.compile("gpt2", path, set=SMALL_CONFIGS["gpt2"], init=0)
    model = ModelProto.FromString(path.read_bytes())
    before = model.SerializeToString(deterministic=True)
    assert convert_weights_to_uint8(model) is None
    assert model.SerializeToString(deterministic=True) == before
