"""The random generator in ONNX produces the same bits as `specc.weights.random_stream`."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from support.onnx_sessions import EmittedModel

from specc.diagnostics.diagnostic import SpeccError
from specc.weights.random_stream import (
    derive_random_stream_key,
    derive_random_substream_key,
    generate_uint64,
)
from specc_onnx.generate import generator_sampling
from specc_onnx.lower.onnx_values import OnnxValue

SEEDS = (0, 1, 2, 1234567890123, 2**63 - 1)
ROWS = np.array([0, 1, 2, 7, 1000, 2**40], np.int64)
STEPS = (0, 1, 2, 511, 100_000)


def emit_random_numbers(x: Mapping[str, OnnxValue]) -> Sequence[OnnxValue]:
    """Emit the keys of several streams, and one uniform number of each."""
    keys = generator_sampling.emit_random_substream_key(
        generator_sampling.emit_random_stream_key(x["seed"], "sample"), x["rows"].cast("u64")
    )
    at_step = generator_sampling.emit_random_substream_key(keys, x["step"].cast("u64"))
    return [keys, generator_sampling.emit_uniform_sample(at_step)]


def build_random_model() -> EmittedModel:
    return EmittedModel(
        emit_random_numbers, {"seed": ("i64", 0), "rows": ("i64", 1), "step": ("i64", 0)}
    )


def test_keys_and_uniforms_have_the_same_bits() -> None:
    model = build_random_model()
    for seed in SEEDS:
        wanted = [
            derive_random_substream_key(derive_random_stream_key(seed, "sample"), int(r))
            for r in ROWS
        ]
        for step in STEPS:
            keys, drawn = model.run(seed=np.int64(seed), rows=ROWS, step=np.int64(step))
            assert keys.tolist() == wanted
            units = np.array(
                [generate_uint64(derive_random_substream_key(k, step), 0) >> 40 for k in wanted],
                np.float32,
            ) * np.float32(2**-24)
            assert drawn.dtype == np.float32
            assert drawn.tobytes() == units.tobytes()


def test_uniform_numbers_are_evenly_distributed() -> None:
    rows = np.arange(20_000, dtype=np.int64)
    drawn = build_random_model().run(seed=np.int64(3), rows=rows, step=np.int64(0))[1]
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    chi_square = float(((counts - 200.0) ** 2 / 200.0).sum())
    assert chi_square < 150  # 99 expected; more than this once in 1400 tries
    assert abs(float(np.corrcoef(drawn[:-1], drawn[1:])[0, 1])) < 0.03


def test_opset_without_bitwise_xor_is_rejected() -> None:
    generator_sampling.check_sampling_opset(18)
    with pytest.raises(SpeccError) as caught:
        generator_sampling.check_sampling_opset(17)
    assert caught.value.diagnostics[0].code == "E0821"
