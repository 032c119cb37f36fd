"""`encodec` matches transformers' EncodecModel: codes, the waveform of codes, and both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.hf_cases import ModelCase
from support.padded_batches import FixedValues, Samples
from support.published_models import assert_matches_float32, open_weighted_spec

pytestmark = pytest.mark.parity

TINY: dict[str, Any] = {
    "num_filters": 4, "hidden_size": 8, "upsampling_ratios": [4, 3, 2], "codebook_size": 16, "kernel_size": 5,
    "last_kernel_size": 3, "sampling_rate": 2400, "target_bandwidths": [1.2, 4.8],
}  # fmt: skip
CENTERED = {
    "use_causal_conv": False, "use_conv_shortcut": False, "num_residual_layers": 2, "num_lstm_layers": 1,
    "upsampling_ratios": [5, 3], "target_bandwidths": [1.3],
}  # fmt: skip
"""As in the checkpoint for 32 kHz; odd strides need asymmetric padding."""


def saved(more: Mapping[str, Any], directory: Path) -> Any:
    """The model with random weights and codebooks, also as files."""
    theirs = ModelCase(
        config="EncodecConfig", model="EncodecModel", tiny={**TINY, **more}
    ).save_checkpoint(directory)
    source = torch.Generator().manual_seed(1)
    for layer in theirs.quantizer.layers:
        layer.codebook.embed.normal_(0, 0.5, generator=source)
    theirs.save_pretrained(directory)
    return theirs.double()


def recordings(samples: int, lengths: tuple[int, ...]) -> Samples:
    """Recordings with noise after their end."""
    rng = np.random.default_rng(0)
    rows = tuple(
        {
            "input_values": rng.standard_normal((1, samples)).astype(np.float32),
            "padding_mask": np.arange(samples) < length,
        }
        for length in lengths
    )
    shapes = {"input_values": FixedValues((1, samples)), "padding_mask": FixedValues((samples,))}
    return Samples(shapes, rows, tuple({} for _ in rows), seed=0)


@pytest.mark.parametrize("more", [{}, CENTERED], ids=["causal", "centered"])
def test_encodec(more: Mapping[str, Any], tmp_path: Path) -> None:
    """Also where a recording is shorter than its padding."""
    theirs = saved(more, tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs(x["input_values"], x["padding_mask"])
        return {"audio_codes": made.audio_codes[0], "audio_values": made.audio_values}

    for lengths in ((77, 73, 30), (3, 2, 1)):
        given = recordings(lengths[0], lengths)
        assert_matches_float32(ours, given, published, {"audio_codes": "", "audio_values": ""})


def test_each_direction_alone_at_another_bandwidth(tmp_path: Path) -> None:
    theirs = saved({}, tmp_path)
    encode = open_weighted_spec(str(tmp_path), tmp_path, graph="encode", bandwidth=4.8)
    decode = open_weighted_spec(str(tmp_path), tmp_path, graph="decode", bandwidth=4.8)

    def codes(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs.encode(x["input_values"], x["padding_mask"], bandwidth=4.8)
        return {"audio_codes": made.audio_codes[0]}

    def values(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return theirs.decode(x["audio_codes"][None], [None])

    assert_matches_float32(encode, recordings(100, (100, 60, 31)), codes, {"audio_codes": ""})
    rows = theirs.config.num_quantizers
    drawn = np.random.default_rng(0).integers(0, 16, (3, rows, 7))
    given = Samples(
        {"audio_codes": FixedValues((rows, 7))},
        tuple({"audio_codes": c} for c in drawn),
        ({},) * 3,
        0,
    )
    assert_matches_float32(decode, given, values, {"audio_values": ""})
