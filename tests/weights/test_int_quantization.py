"""Integer quantization of weights: dequantized values are close, for any weights."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.quantized_linear import pack_int4, quantize_matrix

from specc.ir.ops.quantized import QuantizationFormat, WeightLayout
from specc.weights import int_quantization
from specc.weights.int_quantization import QuantizationErrorStats
from specc.weights.parameter_sources import RandomInitWeights
from specc.weights.quantized_weights import QuantizedWeights
from specc.weights.weight_rules_and_initializers import ModelParameter

FORMS = [
    QuantizationFormat(
        bits=bits, group_size=block, layout=layout, rounding="none", is_transposed=turned
    )
    for bits, block in ((8, 0), (8, 16), (4, 16), (4, 32))
    for layout in ("rows", "columns")
    for turned in (False, True)
]
RNG = np.random.default_rng(3)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("out", "wide"), [(3, 40), (1, 1), (5, 16)])
def test_dequantization_error_is_bounded(form: QuantizationFormat, out: int, wide: int) -> None:
    weight = RNG.normal(size=(out, wide)).astype(np.float32)
    numbers, scales = quantize_matrix(weight, form)
    shape = (wide, out) if form.is_transposed else (out, wide)
    assert numbers.shape == form.compute_tensor_shape(shape, "codes")
    assert scales.shape == form.compute_tensor_shape(shape, "scales")
    again = int_quantization.dequantize_weight(numbers, scales, wide, form)
    again = again.T if form.is_transposed else again
    step = np.abs(
        int_quantization.compute_group_scales(
            int_quantization.split_weight_groups(weight, form.group_size), form.bits
        )
    )
    each = np.repeat(step, form.group_size or wide, 1)[:, :wide]
    # int4: the most positive value may be a whole step away
    most = each * (0.5 if form.bits == 8 else 1.0)
    assert (np.abs(again - weight) <= most * (1 + 1e-6)).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_constant_rows(bits: int) -> None:
    form = QuantizationFormat(bits=bits, group_size=16, layout="rows", rounding="none")
    weight = np.zeros((4, 20), np.float32)
    weight[1], weight[2], weight[3] = 3.0, -0.25, 1e-42
    again = int_quantization.dequantize_weight(*quantize_matrix(weight, form), 20, form)
    assert np.allclose(again[:3], weight[:3], rtol=1e-6)
    assert np.isfinite(again).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.filterwarnings("error")
@given(
    size=st.sampled_from([0.0, 1e-45, 1e-40, 2e-38, 1e-22, 1.0, 1e19, 1e38]),
    places=st.lists(st.floats(-3.4, 3.4), min_size=20, max_size=20),
    most=st.booleans(),
)
def test_extreme_weights_stay_finite(
    bits: int, size: float, places: list[float], most: bool
) -> None:
    """This includes values near the limits of float32, whose squares overflow."""
    form = QuantizationFormat(bits=bits, group_size=16, layout="rows", rounding="none")
    weight = np.array([places], np.float64) * size
    weight = weight.astype(np.float32)
    if most:
        weight[0, 0] = np.finfo(np.float32).max
    again = int_quantization.dequantize_weight(*quantize_matrix(weight, form), 20, form)
    assert np.isfinite(again).all()
    wide, gone = weight.astype(np.float64), weight.astype(np.float64) - again
    loss = QuantizationErrorStats()
    loss.add_rows(weight, again)
    whole = np.linalg.norm(wide)
    lost = np.linalg.norm(gone) / whole if whole else 0.0
    assert loss.relative_error == pytest.approx(float(lost), rel=1e-3, abs=1e-7)
    assert loss.max_error == pytest.approx(float(np.abs(gone).max()), rel=1e-3)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_streamed_quantization(form: QuantizationFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (37, 11)
    base = RandomInitWeights(1, {"w": ModelParameter(name="w", shape=shape)}, {"w": "normal(1.0)"})
    values = QuantizedWeights(base, {"w": form})
    whole = np.frombuffer(b"".join(base.iterate_chunks("w", "f32")), np.float32).reshape(shape)
    numbers, scales = quantize_matrix(whole.T if form.is_transposed else whole, form)
    monkeypatch.setattr("specc.weights.quantized_weights.CHUNK_VALUES", 30)
    got = b"".join(values.iterate_chunks(form.format_tensor_name("w", "codes"), form.dtype))
    assert got == (pack_int4(numbers) if form.dtype == "i4" else numbers.tobytes())
    assert (
        b"".join(values.iterate_chunks(form.format_tensor_name("w", "scales"), "f32"))
        == scales.tobytes()
    )
    count = math.prod(values.parameters[form.format_tensor_name("w", "codes")].shape)
    assert len(got) == -(-count // 2) if form.dtype == "i4" else count
    again = int_quantization.dequantize_weight(
        numbers, scales, shape[0] if form.is_transposed else shape[1], form
    )
    lost = np.linalg.norm(again - whole) / np.linalg.norm(whole)
    assert values.states["w"].error.relative_error == pytest.approx(float(lost), rel=1e-4)


def test_scales_before_codes() -> None:
    form = FORMS[0]
    values = QuantizedWeights(
        RandomInitWeights(1, {"w": ModelParameter(name="w", shape=(3, 4))}, {"w": "normal(1.0)"}),
        {"w": form},
    )
    first = b"".join(values.iterate_chunks("w:scale", "f32"))
    b"".join(values.iterate_chunks("w:int8", "i8"))
    assert b"".join(values.iterate_chunks("w:scale", "f32")) == first


def test_layout_dtypes() -> None:
    layouts: tuple[WeightLayout, ...] = ("rows", "columns")
    found = [
        QuantizationFormat(bits=4, group_size=32, layout=x, rounding="none").dtype for x in layouts
    ]
    assert found == ["u8", "i4"]


def test_packing_column_major_codes() -> None:
    """GPTQ returns codes in column-major order."""
    form = QuantizationFormat(bits=4, group_size=16, layout="rows", rounding="none")
    whole = RNG.integers(-8, 8, (3, 2, 16)).astype(np.int8)
    want = int_quantization.pack_weight_codes(whole, 32, form)
    assert np.array_equal(
        int_quantization.pack_weight_codes(np.asfortranarray(whole), 32, form), want
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_groups_below_the_minimum_scale_are_zero(bits: int) -> None:
    """Subnormal weights and zeros quantize to zero, so no sign changes."""
    rows = np.zeros((3, 32), np.float32)
    rows[0], rows[1, :7], rows[2] = 3e-40, -1e-39, 1e-3
    blocks = int_quantization.split_weight_groups(rows, 16)
    scales = int_quantization.compute_group_scales(blocks, bits)
    whole = int_quantization.round_to_integers(blocks, scales, bits)
    assert not whole[:2].any()
    assert not scales[:2].any()
    assert np.allclose(whole[2] * scales[2][..., None], 1e-3, rtol=0.01)
