"""Qwen2-Audio and Voxtral match transformers: audio tokens within text, outputs of both heads and
generation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.hf_cases import MAX_NEW_TOKENS, cut_at_stop, pad_left
from support.padded_batches import (
    Arrays,
    PaddingMask,
    PositionValues,
    Samples,
    Side,
    TokenIds,
    make_samples,
)
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights

import specc

pytestmark = pytest.mark.parity

AUDIO, VOCAB = 30, 31
TEXT: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCAB, "max_position_embeddings": 64, "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": 1,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "model_type": "qwen2_audio_encoder", "num_mel_bins": 5, "encoder_layers": 2, "encoder_attention_heads": 2,
    "encoder_ffn_dim": 20, "d_model": 16, "max_source_positions": 12,
}  # fmt: skip
VOXTRAL: dict[str, Any] = {
    "num_mel_bins": 5, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "hidden_size": 16,
    "max_source_positions": 12,
}  # fmt: skip
FRAMES = (24, 15, 9)
"""The number of frames of each audio of a sequence that are not padding."""


@dataclass(frozen=True)
class Family:
    """A family with its settings, and the number of tokens of each audio of a sequence."""

    name: str
    settings: Mapping[str, Any]
    tokens: tuple[int, ...]
    seed: int = 2

    def save(self, directory: Path, head: str = "ForConditionalGeneration") -> Any:
        """Return a model with random weights, saved in `directory`."""
        config = getattr(transformers, f"{self.name}Config")(**self.settings)
        kind = getattr(transformers, f"{self.name}{head}")
        theirs = randomize_weights(kind(config), seed=self.seed)
        theirs.tie_weights()
        theirs.save_pretrained(directory)
        return kind.from_pretrained(directory).eval()

    def give(self, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the audios of all sequences, one after the other."""
        mask = torch.as_tensor(x["feature_attention_mask"])
        present = mask.any(-1)
        given = {"input_features": x["input_features"][present]}
        if self.name == "Qwen2Audio":
            given["feature_attention_mask"] = mask[present].long()
        return given


FAMILIES = {
    "qwen2_audio": Family(
        "Qwen2Audio",
        {"audio_config": WHISPER, "text_config": TEXT | {"model_type": "qwen2"}, "audio_token_index": AUDIO},
        (6, 4, 2),
    ),
    "qwen2_audio, sliding windows, ReLU": Family(
        "Qwen2Audio",
        {
            "audio_config": WHISPER | {"activation_function": "relu", "encoder_attention_heads": 4},
            "text_config": TEXT | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            "audio_token_index": AUDIO,
        },
        (6, 4, 2),
    ),
    "voxtral": Family(
        "Voxtral",
        {"audio_config": VOXTRAL, "text_config": TEXT | {"model_type": "llama", "head_dim": 8}, "audio_token_id": AUDIO},
        (3, 3, 3),
    ),
    "voxtral, pairs of positions": Family(
        "Voxtral",
        {
            "audio_config": VOXTRAL | {"intermediate_size": 32, "num_attention_heads": 4},
            "text_config": TEXT | {"model_type": "llama", "head_dim": 6, "attention_bias": True},
            "audio_token_id": AUDIO,
            "projector_hidden_act": "silu",
        },
        (6, 6, 6),
    ),
}  # fmt: skip


def give_frames(x: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with a mask of frames in place of one of audios."""
    mask = np.asarray(x["audio_mask"])
    lengths = np.where(mask, np.array(FRAMES)[(mask.cumsum(1) - 1) % len(FRAMES)], 0)
    frames = np.arange(2 * WHISPER["max_source_positions"]) < lengths[:, :, None]
    return {n: a for n, a in x.items() if n != "audio_mask"} | {"feature_attention_mask": frames}


class AudioSamples(Samples):
    """Samples with a mask of frames in place of one of audios."""

    def get_sample(self, row: int) -> Arrays:
        return give_frames(super().get_sample(row))

    def make_batch(self, side: Side = "right", extra: int = 1) -> Arrays:
        plain = Samples(self.fields, self.rows, self.lengths, self.seed)
        return give_frames(plain.make_batch(side, extra))


def make_prompts(family: Family) -> Samples:
    """Return three texts with two audios, one audio and three audios."""
    counts = (2, 1, 3)
    fields = {
        "input_ids": TokenIds("seq", AUDIO),
        "attention_mask": PaddingMask("seq"),
        "input_features": PositionValues("audios", (5, 24)),
        "audio_mask": PaddingMask("audios"),
    }
    lengths = tuple(3 + sum(1 + n for n in family.tokens[:count]) for count in counts)
    made = make_samples(fields, {"seq": lengths, "audios": counts})
    for row, count in zip(made.rows, counts, strict=True):
        start = 1
        for tokens in family.tokens[:count]:
            row["input_ids"][start : start + tokens] = AUDIO
            start += tokens + 1
    return AudioSamples(made.fields, made.rows, made.lengths, made.seed)


@pytest.mark.parametrize("head", ["ForConditionalGeneration", "Model"])
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs(name: str, head: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    theirs = family.save(tmp_path, head)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    result = "last_hidden_state" if head == "Model" else "logits"

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        keep = x["attention_mask"].long()
        made = theirs(
            input_ids=torch.where(x["attention_mask"], x["input_ids"], 0),
            attention_mask=keep,
            position_ids=(keep.cumsum(1) - 1).clamp(min=0),
            **family.give(x),
        )
        return {result: made[result]}

    sides: tuple[Side, ...] = ("left", "right")
    assert_matches_float32(ours, make_prompts(family), published, {result: "seq"}, sides)


@pytest.mark.parametrize(("name", "beams"), [*((n, 1) for n in FAMILIES), ("qwen2_audio", 3)])
def test_generation(name: str, beams: int, tmp_path: Path) -> None:
    family = FAMILIES[name]
    theirs = family.save(tmp_path).double()
    how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    if beams > 1:
        how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    given = make_prompts(family)
    # with beams transformers repeats each audio, not the audios of a text: one audio per text
    for rows in [given.rows[1:2]] if beams > 1 else [given.rows[:1], given.rows]:
        ids, keep = pad_left([row["input_ids"].tolist() for row in rows])
        audios = [row["input_features"] for row in rows]
        most = max(map(len, audios))
        whole = give_frames({
            "input_ids": ids,
            "attention_mask": keep,
            "input_features": np.stack([np.pad(a, [(0, most - len(a)), (0, 0), (0, 0)]) for a in audios]),
            "audio_mask": np.array([[n < len(a) for n in range(most)] for a in audios]),
        })  # fmt: skip
        x = {n: torch.tensor(a) for n, a in whole.items()}
        x["input_features"] = x["input_features"].double()
        with torch.no_grad():
            made = theirs.generate(
                input_ids=x["input_ids"], attention_mask=x["attention_mask"].long(), **family.give(x), do_sample=False,
                num_beams=beams, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0, eos_token_id=2,
            )  # fmt: skip
        wanted = [cut_at_stop(row[ids.shape[1] :].tolist(), 2) for row in made]
        answer = ours.generate(**whole, **how)
        assert [list(row[0].tokens) for row in answer.results()] == wanted, f"{len(rows)} texts"
    assert len({token for text in wanted for token in text}) > 3, "too few different tokens"
