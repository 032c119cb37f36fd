"""Florence-2 as transformers computes it: outputs of every head, and generation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.hf_cases import MAX_NEW_TOKENS, cut_at_stop
from support.padded_batches import FixedValues, PaddingMask, Samples, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights

import specc

pytestmark = pytest.mark.parity

IMAGE, STOP, SIDE = 30, 2, 20
CONFIG: dict[str, Any] = {
    "text_config": {
        "vocab_size": 31, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 40,
        "scale_embedding": True, "forced_eos_token_id": None,
    },
    "vision_config": {
        "depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1],
        "patch_prenorm": [False, True], "embed_dim": [8, 12], "num_heads": [2, 3], "num_groups": [4, 2],
        "window_size": 3, "projection_dim": 16, "max_position_embeddings": 5, "max_temporal_embeddings": 2,
    },
    "image_token_id": IMAGE,
}  # fmt: skip
ROWS = 10
"""Image tokens: the mean and those of three rows and columns."""


def saved(head: str, directory: Path, seed: int = 0, *, tied: bool = True) -> Any:
    """Return a model with random weights, saved in `directory`."""
    config = transformers.Florence2Config(**CONFIG, tie_word_embeddings=tied)
    kind = getattr(transformers, f"Florence2{head}")
    theirs = randomize_weights(kind(config), seed)
    theirs.tie_weights()
    theirs.save_pretrained(directory)
    return kind.from_pretrained(directory).eval().double()


def given() -> Samples:
    """Return three images with prompts and answers."""
    fields = {
        "pixel_values": FixedValues((3, SIDE, SIDE)),
        "source": TokenIds("src", IMAGE),
        "source_keep": PaddingMask("src"),
        "target": TokenIds("tgt", IMAGE),
        "target_keep": PaddingMask("tgt"),
    }
    made = make_samples(fields, {"src": (ROWS + 4, ROWS, ROWS + 2), "tgt": (5, 1, 3)})
    for row in made.rows:
        row["source"][:ROWS] = IMAGE
    return made


def run(theirs: Any, x: Mapping[str, torch.Tensor], result: str) -> dict[str, torch.Tensor]:
    made = theirs(
        input_ids=torch.where(x["source_keep"], x["source"], 1),
        pixel_values=x["pixel_values"],
        attention_mask=x["source_keep"].long(),
        decoder_input_ids=x["target"],
        decoder_attention_mask=x["target_keep"].long(),
    )
    return {result: made[result]}


@pytest.mark.parametrize(
    ("head", "result", "tied"),
    [("ForConditionalGeneration", "logits", False), ("Model", "last_hidden_state", True)],
)
def test_outputs(head: str, result: str, tied: bool, tmp_path: Path) -> None:
    theirs = saved(head, tmp_path, tied=tied)
    ours = open_weighted_spec(str(tmp_path), tmp_path, vision__image=SIDE)
    assert_matches_float32(ours, given(), lambda x: run(theirs, x, result), {result: "tgt"})


@pytest.mark.parametrize("beams", [1, 3])
def test_generation(beams: int, tmp_path: Path) -> None:
    theirs = saved("ForConditionalGeneration", tmp_path, seed=2)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step", set={"vision.image": SIDE})
    ours = specc.load(tmp_path / "package", threads=1)
    x = given().make_batch("right")
    how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    if beams > 1:
        how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    with torch.no_grad():
        made = theirs.generate(
            input_ids=torch.tensor(np.where(x["source_keep"], x["source"], 1)),
            pixel_values=torch.tensor(x["pixel_values"]).double(),
            attention_mask=torch.tensor(x["source_keep"]).long(),
            do_sample=False,
            num_beams=beams,
            early_stopping=False,
            max_new_tokens=MAX_NEW_TOKENS,
        )
    wanted = [cut_at_stop(row[1:].tolist(), STOP) for row in made]
    prompt = {name: x[name] for name in ("pixel_values", "source", "source_keep")}
    answers = ours.generate(**prompt, **how).results()
    assert [list(row[0].tokens) for row in answers] == wanted
    assert len({token for text in wanted for token in text}) > 3, "too few different tokens"
