"""Determine the scales of int8 KV caches from the range of the cached keys and values on
calibration samples.
"""

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
"""Ratio of the largest representable value to the largest absolute value in the samples."""


MAX_CODE = 127
"""Largest absolute value of an int8 cache entry."""


def measure_kv_cache_scales(package: Path, samples: Iterable[Sample]) -> dict[str, Array]:
    """Run the step graph of a generative package on the samples, and return the scales float32
    [heads, 1, head_dim] of each KV cache by state name. Raise E0859 if a cache entry is not finite.
    """
    max_by_state: dict[str, Array] = {}
    generator = open_compiled_model(str(package)).generator
    assert generator is not None, "a generative package has a generator"
    for sample in samples:
        decoder_session = generator.create_decoder_session(sample)
        assert isinstance(decoder_session, KVCacheSession), "the package has a step"
        decoder_session.step(sample[generator.input_signature.sequence_input])
        for state in decoder_session.buffers:
            cache = decoder_session.states[state.name].numpy()
            entries = cache[:, :, : decoder_session.past_length]
            maxima = np.abs(entries).max((0, 2), initial=0.0)
            if not np.isfinite(maxima).all():
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
            max_by_state[state.name] = np.maximum(max_by_state.get(state.name, 0.0), maxima)
    factor = np.float32(RANGE_MARGIN / MAX_CODE)
    return {
        name: np.maximum(maximum * factor, MIN_SCALE).astype(np.float32)[:, None, :]
        for name, maximum in max_by_state.items()
    }
