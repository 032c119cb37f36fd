"""Measure the scales of int8 KV caches on calibration samples."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from specc.calibration.gram_matrices import Sample
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.runtime.decoder_sessions import KVCacheSession
from specc.runtime.inference_model import open_compiled_model
from specc.weights.int_quantization import MIN_SCALE

RANGE_MARGIN = 1.25
"""Ratio of the largest representable value to the largest observed value, which leaves headroom;
values beyond it saturate."""


MAX_CODE = 127


def measure_kv_cache_scales(package: Path, samples: Iterable[Sample]) -> dict[str, Array]:
    """Return the scales float32 [heads, 1, head_dim] of each KV buffer of a package, by state name.
    Raise E0859 if a cached value is not finite.
    """
    maximum: dict[str, Array] = {}
    writer = open_compiled_model(str(package)).generator
    assert writer is not None, "only a package that writes is given"
    for sample in samples:
        decoder_session = writer.create_decoder_session(sample)
        assert isinstance(decoder_session, KVCacheSession), "the package has a step"
        decoder_session.step(sample[writer.input_signature.sequence_input])
        for state in decoder_session.buffers:
            rows = decoder_session.states[state.name].numpy()[:, :, : decoder_session.past_length]
            here = np.abs(rows).max((0, 2), initial=0.0)
            if not np.isfinite(here).all():
                raise_error(
                    "E0859",
                    f"the state `{escape_text(state.name)}` contains NaN or infinity on the "
                    "calibration data",
                    notes=["its int8 scales are calibrated on these values"],
                    helps=[
                        "use other calibration inputs: `--calibration-data FILE`",
                        "or remove `--kv-cache`",
                    ],
                )
            maximum[state.name] = np.maximum(maximum.get(state.name, 0.0), here)
    factor = np.float32(RANGE_MARGIN / MAX_CODE)
    return {
        name: np.maximum(most * factor, MIN_SCALE).astype(np.float32)[:, None, :]
        for name, most in maximum.items()
    }
