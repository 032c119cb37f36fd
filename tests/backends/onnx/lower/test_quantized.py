"""Products with quantized weights in ONNX Runtime equal integer arithmetic for any tokens, and
avoid its known errors.
"""

import itertools

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import assert_outputs_match, open_silent_session, serialize_for_this_cpu
from support.quantized_linear import build_quantized_linear

import specc_numpy
from specc.ir.ops.quantized import ActivationRoundingMode, QuantizationFormat, WeightLayout

ROW = QuantizationFormat(bits=8, group_size=0, layout="rows", rounding="row")
COLUMN = QuantizationFormat(bits=8, group_size=0, layout="columns", rounding="row")
RNG = np.random.default_rng(5)
Rows = NDArray[np.float32]


def sample_normal(*shape: int) -> Rows:
    return RNG.standard_normal(shape).astype(np.float32)


def quantize_in_blocks(
    bits: int, block: int, rounding: ActivationRoundingMode = "block", layout: WeightLayout = "rows"
) -> QuantizationFormat:
    return QuantizationFormat(bits=bits, group_size=block, layout=layout, rounding=rounding)


def sample_extremes(*shape: int) -> Rows:
    """Tokens 1000 times larger and smaller than others, and one of zeros."""
    x = sample_normal(*shape)
    flat = x.reshape(-1, shape[-1])
    flat[0] *= 1e3
    if len(flat) > 2:
        flat[1] *= 1e-3
        flat[2] = 0
    return x


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("block", "wide"), [(16, 56), (32, 100), (128, 24), (64, 64)])
@pytest.mark.parametrize("rounding", ["block", "none"])
def test_blocks(bits: int, block: int, wide: int, rounding: ActivationRoundingMode) -> None:
    made = build_quantized_linear(
        sample_normal(7, wide), quantize_in_blocks(bits, block, rounding), bias=sample_normal(7)
    )
    session = open_silent_session(made.build_model("ort-cpu"))
    for rows in (1, 3, 17):
        given = {"x": sample_extremes(rows, wide)}
        assert_outputs_match(
            specc_numpy.evaluate_graph(made.graph, given, made.weights), session.run(None, given)
        )


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_blocks_add_nothing(bits: int) -> None:
    """The kernel subtracts the zero point of packed codes at the end. The remaining error has the
    size of a scale, which a scale of 1 next to small weights would reveal.
    """
    weight = sample_normal(5, 96) * np.float32(1e-6)
    weight[:, 32:64] = 0
    weight[4] = 0
    made = build_quantized_linear(weight, quantize_in_blocks(bits, 32))
    given = {"x": sample_extremes(3, 96)}
    (got,) = open_silent_session(made.build_model("ort-cpu")).run(None, given)
    assert_outputs_match(specc_numpy.evaluate_graph(made.graph, given, made.weights), [got])
    assert np.abs(got[:, 4]).max() < 1e-30


@pytest.mark.parametrize("form", [ROW, COLUMN], ids=["rows", "columns"])
@pytest.mark.parametrize("opset", [17, 21, 23, 26])
@pytest.mark.parametrize("name", ["onnx", "ort-cpu"])
def test_per_token_scales_with_a_bias(form: QuantizationFormat, opset: int, name: str) -> None:
    """The optimizer of ONNX Runtime fuses a product with both scales into a form that scales the
    bias too, unless the scales are applied one after the other.
    """
    made = build_quantized_linear(sample_normal(5, 21), form, ("b", "t"), sample_normal(5) * 50)
    model = made.build_model(name, opset)
    given = {"x": sample_extremes(2, 3, 21)}
    want = specc_numpy.evaluate_graph(made.graph, given, made.weights)
    assert_outputs_match(want, open_silent_session(model).run(None, given))
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(serialize_for_this_cpu(model), plain)
    assert_outputs_match(want, session.run(None, given))


@pytest.mark.parametrize(
    "form", [ROW, COLUMN, quantize_in_blocks(4, 32), quantize_in_blocks(8, 32)], ids=str
)
def test_tokens_are_independent(form: QuantizationFormat) -> None:
    made = build_quantized_linear(sample_normal(40, 96), form)
    session = open_silent_session(made.build_model("ort-cpu"))
    x = sample_extremes(9, 96)
    together = session.run(None, {"x": x})[0]
    for n in range(len(x)):
        alone = session.run(None, {"x": x[n : n + 1]})[0]
        if form.group_size:
            np.testing.assert_allclose(
                alone[0], together[n], rtol=1e-5, atol=1e-6 * abs(together[n]).max()
            )
        else:
            assert (alone[0] == together[n]).all()


def test_no_tokens_and_width_one() -> None:
    forms = (ROW, COLUMN, quantize_in_blocks(4, 16))
    for form, (out, wide) in itertools.product(forms, ((1, 1), (3, 5))):
        made = build_quantized_linear(sample_normal(out, wide), form, ("b", "t"))
        session = open_silent_session(made.build_model("ort-cpu"))
        for lead in ((0, 3), (2, 0), (1, 1), (2, 2)):
            given = {"x": sample_normal(*lead, wide)}
            want = specc_numpy.evaluate_graph(made.graph, given, made.weights)
            assert_outputs_match(want, session.run(None, given))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("wide", [64, 50])
def test_blocks_of_columns_use_standard_operators(bits: int, wide: int) -> None:
    """Without the optimizer of ONNX Runtime only weights are quantized."""
    made = build_quantized_linear(
        sample_normal(9, wide), quantize_in_blocks(bits, 32, "none", "columns")
    )
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(
        made.build_model("onnx", 21).SerializeToString(), options
    )
    given = {"x": sample_extremes(3, wide)}
    assert_outputs_match(
        specc_numpy.evaluate_graph(made.graph, given, made.weights), session.run(None, given)
    )
