"""`patchtst`, `patchtsmixer` and `timesfm` match transformers' classes."""

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
    "num_input_channels": 3, "context_length": 13, "patch_length": 4, "patch_stride": 3, "num_hidden_layers": 2,
    "d_model": 8, "num_attention_heads": 2, "ffn_dim": 12, "prediction_length": 5, "num_targets": 4,
}  # fmt: skip


def time_series(mask: str = "past_observed_mask") -> Samples:
    """Three series of three channels; some values are not observed, where the class has a mask."""
    rng = np.random.default_rng(0)
    rows = tuple(
        {
            "past_values": (rng.standard_normal((13, 3)) * 3 + 5).astype(np.float32),
            mask: rng.random((13, 3)) > 0.2,
        }
        for _ in range(3)
    )
    shapes = {"past_values": FixedValues((13, 3)), mask: FixedValues((13, 3))}
    if not mask:
        del shapes[""]
        rows = tuple({"past_values": row["past_values"]} for row in rows)
    return Samples(shapes, rows, ({}, {}, {}), seed=0)


CASES = [
    ("PatchTSTModel", "last_hidden_state", {}),
    ("PatchTSTModel", "last_hidden_state", {"use_cls_token": True, "norm_type": "layernorm"}),
    ("PatchTSTForPrediction", "prediction_outputs", {"pre_norm": False}),
    ("PatchTSTForPrediction", "prediction_outputs", {"pooling_type": None, "scaling": None}),
    ("PatchTSTForPrediction", "prediction_outputs", {"use_cls_token": True, "bias": False}),
    ("PatchTSTForClassification", "prediction_logits", {"pooling_type": "max"}),
    ("PatchTSTForRegression", "regression_outputs", {"output_range": [-1.0, 3.0]}),
    ("PatchTSTForRegression", "regression_outputs", {"activation_function": "relu"}),
]


def randomize_statistics(theirs: Any) -> None:
    """Set the running statistics of batch norms as training would."""
    source = torch.Generator().manual_seed(9)
    for name, buffer in theirs.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(torch.randn(buffer.shape, generator=source))
        if name.endswith("running_var"):
            buffer.copy_(torch.rand(buffer.shape, generator=source) + 0.5)


@pytest.mark.parametrize(("model", "result", "more"), CASES)
def test_patchtst(model: str, result: str, more: Mapping[str, Any], tmp_path: Path) -> None:
    # weights as small as in training: float32 loses 1e-5 where a softmax of drawn scores is sharp
    case = ModelCase(config="PatchTSTConfig", model=model, tiny={**TINY, **more}, weight_scale=0.5)
    theirs = case.save_checkpoint(tmp_path)
    randomize_statistics(theirs)
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return theirs(x["past_values"], past_observed_mask=x["past_observed_mask"])

    assert_matches_float32(ours, time_series(), published, {result: ""})


MIXER: dict[str, Any] = {
    "num_input_channels": 3, "context_length": 13, "patch_length": 4, "patch_stride": 3, "num_layers": 2, "d_model": 8,
    "prediction_length": 5, "num_targets": 4,
}  # fmt: skip
MIXED = {
    "mode": "mix_channel", "norm_mlp": "BatchNorm", "self_attn": True, "self_attn_heads": 2, "gated_attn": False,
    "use_positional_encoding": True, "scaling": None,
}  # fmt: skip
MIXER_CASES = [
    ("Model", "last_hidden_state", {}),
    ("Model", "last_hidden_state", {**MIXED, "gated_attn": True}),
    ("ForPrediction", "prediction_outputs", {}),
    ("ForPrediction", "prediction_outputs", MIXED),
    ("ForTimeSeriesClassification", "prediction_outputs", {"head_aggregation": None}),
    (
        "ForTimeSeriesClassification",
        "prediction_outputs",
        {**MIXED, "head_aggregation": "use_last"},
    ),
    ("ForRegression", "regression_outputs", {"output_range": [-1.0, 3.0]}),
    ("ForRegression", "regression_outputs", {"head_aggregation": "avg_pool"}),
]


@pytest.mark.parametrize(("head", "result", "more"), MIXER_CASES)
def test_patchtsmixer(head: str, result: str, more: Mapping[str, Any], tmp_path: Path) -> None:
    case = ModelCase(
        config="PatchTSMixerConfig", model=f"PatchTSMixer{head}", tiny={**MIXER, **more}
    )
    theirs = case.save_checkpoint(tmp_path)
    randomize_statistics(theirs)
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return theirs(**x)

    # heads over all channels do not pass the mask on
    mask = "observed_mask" if head in ("Model", "ForPrediction") else ""
    assert_matches_float32(ours, time_series(mask), published, {result: ""})


TIMES: dict[str, Any] = {
    "patch_length": 4, "context_length": 20, "horizon_length": 6, "num_hidden_layers": 2, "hidden_size": 16,
    "intermediate_size": 24, "head_dim": 6, "num_attention_heads": 2, "quantiles": [0.2, 0.8],
}  # fmt: skip
LENGTHS = (20, 9, 2)
"""Of the series: no padding, a first patch with one value, and a patch with fewer than three."""


def padded_series(lengths: tuple[int, ...] = LENGTHS) -> Samples:
    """Series with padding on the left, and a frequency each."""
    rng = np.random.default_rng(0)
    rows = tuple(
        {
            "past_values": np.pad(rng.standard_normal(n) * 3 + 5, (20 - n, 0)).astype(np.float32),
            "past_values_padding": np.arange(20) < 20 - n,
            "freq": np.array((n + number) % 3),
        }
        for number, n in enumerate(lengths)
    )
    shapes = {
        "past_values": FixedValues((20,)),
        "past_values_padding": FixedValues((20,)),
        "freq": FixedValues(()),
    }
    return Samples(shapes, rows, ({}, {}, {}), seed=0)


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("head", ["Model", "ModelForPrediction"])
def test_timesfm(head: str, positions: bool, tmp_path: Path) -> None:
    tiny = {**TIMES, "use_positional_embedding": positions}
    theirs = ModelCase(config="TimesFmConfig", model=f"TimesFm{head}", tiny=tiny).save_checkpoint(
        tmp_path
    )
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        values, padding, freq = x.values()
        if head == "Model":
            return theirs(values, padding.double(), freq[:, None])
        series = [row[~absent] for row, absent in zip(values, padding, strict=True)]
        return theirs(series, freq.tolist())

    if head == "Model":
        # nothing reads the states of padded patches
        assert_matches_float32(ours, padded_series((20,) * 3), published, {"last_hidden_state": ""})
    else:
        results = {"mean_predictions": "", "full_predictions": ""}
        assert_matches_float32(ours, padded_series(), published, results)
