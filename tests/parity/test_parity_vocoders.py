"""`speecht5_hifigan` matches transformers' SpeechT5HifiGan."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hf_audio_cases import HIFIGAN, HIFIGAN_SIZES, VocoderCase
from support.hf_cases import check_model_outputs
from support.padded_batches import make_samples

pytestmark = pytest.mark.parity

OTHER_SIZES: dict[str, Any] = {
    **HIFIGAN_SIZES, "upsample_rates": [2, 1, 4], "upsample_kernel_sizes": [2, 3, 8], "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3, 5]], "upsample_initial_channel": 17, "leaky_relu_slope": 0.3,
    "normalize_before": False,
}  # fmt: skip
OTHER = replace(
    HIFIGAN,
    tiny=OTHER_SIZES,
    samples=make_samples(HIFIGAN.samples.fields, {"frames": (9, 4, 7), "samples": (72, 32, 56)}),
)


@pytest.mark.parametrize("case", [HIFIGAN, OTHER], ids=["published", "other sizes"])
def test_waveforms(case: VocoderCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)
