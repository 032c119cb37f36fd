"""`conformer` is transformers' Wav2Vec2Conformer classes, from the files that they save,
each recording by itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.families import Case
from support.padded import Keep, Sound, samples
from support.published import assert_published, loaded

from specc.text.diagnostic import Failed

pytestmark = pytest.mark.parity

TINY = {
    "vocab_size": 13,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "hidden_act": "swish",
    "conv_depthwise_kernel_size": 5,
    "feat_extract_norm": "layer",
    "conv_dim": [6, 7, 8],
    "conv_kernel": [5, 3, 2],
    "conv_stride": [3, 2, 2],
    "conv_bias": True,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "layer_norm_eps": 1e-3,
}
LENGTHS = (151, 29, 80)


def frames(samples: int) -> int:
    """How many rows come of a recording."""
    for kernel, stride in zip(TINY["conv_kernel"], TINY["conv_stride"], strict=True):
        samples = (samples - kernel) // stride + 1
    return samples


GIVEN = samples(
    {"input_values": Sound("samples"), "attention_mask": Keep("samples")},
    {"samples": LENGTHS, "frames": tuple(map(frames, LENGTHS))},
)
CASES = [
    ("Wav2Vec2ConformerForCTC", "logits", {}),
    ("Wav2Vec2ConformerForCTC", "logits", {"position_embeddings_type": "rotary"}),
    ("Wav2Vec2ConformerModel", "last_hidden_state", {"conv_bias": False}),
]


def one_by_one(theirs: Any, x: Mapping[str, torch.Tensor], result: str) -> torch.Tensor:
    """What the published model gives for each recording alone, zeros behind it."""
    made = []
    for sound, there in zip(x["input_values"], x["attention_mask"], strict=True):
        made.append(theirs(sound[there][None])[result][0])
    return torch.nn.utils.rnn.pad_sequence(made, batch_first=True)


@pytest.mark.parametrize(("name", "result", "more"), CASES)
def test_conformer(
    name: str, result: str, more: Mapping[str, object], tmp_path: Path
) -> None:
    case = Case(config="Wav2Vec2ConformerConfig", model=name, tiny={**TINY, **more})
    theirs = case.saved(tmp_path)
    statistics(theirs)
    theirs.save_pretrained(tmp_path)
    ours = loaded(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {result: one_by_one(theirs, x, result)}

    assert_published(ours, GIVEN, published, {result: "frames"})


def statistics(theirs: Any) -> None:
    """Means and variances as training would have gathered them."""
    source = torch.Generator().manual_seed(9)
    for name, gathered in theirs.named_buffers():
        if name.endswith("running_mean"):
            gathered.copy_(torch.randn(gathered.shape, generator=source))
        if name.endswith("running_var"):
            gathered.copy_(torch.rand(gathered.shape, generator=source) + 0.5)


@pytest.mark.parametrize(
    "more",
    [{"feat_extract_norm": "group"}, {"position_embeddings_type": None}],
    ids=str,
)
def test_what_the_spec_does_not_follow_is_refused(
    more: Mapping[str, object], tmp_path: Path
) -> None:
    settings = {**TINY, **more}
    case = Case(
        config="Wav2Vec2ConformerConfig", model="Wav2Vec2ConformerForCTC", tiny=settings
    )
    case.saved(tmp_path)
    with pytest.raises(Failed, match="E0405"):
        loaded(str(tmp_path), tmp_path)
