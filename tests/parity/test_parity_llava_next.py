"""LLaVA-NeXT matches transformers: tiled images whose number of tokens depends on their size, alone
and in padded batches, and generation.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.hf_cases import MAX_NEW_TOKENS, cut_at_stop
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
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

import specc

pytestmark = pytest.mark.parity

IMAGE, VOCAB, TILES = 30, 31, 5
PINPOINTS = [[8, 16], [16, 8], [16, 16], [24, 8]]
SIZES = [[(11, 30)], [(50, 17), (9, 9)], [(16, 13)]]
"""Heights and widths of the pictures of three texts."""
CONFIG: dict[str, Any] = {
    "text_config": {
        "model_type": "llama", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 128,
        "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": 1,
    },
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 8, "patch_size": 2,
    },
    "image_token_index": IMAGE, "image_grid_pinpoints": PINPOINTS,
}  # fmt: skip


def saved(head: str, directory: Path, seed: int = 0) -> Any:
    """Return a model with random weights, saved in `directory`."""
    kind = getattr(transformers, f"LlavaNext{head}")
    theirs = randomize_weights(kind(transformers.LlavaNextConfig(**CONFIG)), seed)
    theirs.save_pretrained(directory)
    return kind.from_pretrained(directory).eval().double()


class TiledSamples(Samples):
    """Sequences with images of several sizes; a zero size is no image."""

    def get_sample(self, row: int) -> Arrays:
        return with_grids(super().get_sample(row) | {"image_sizes": np.array([SIZES[row]])})

    def make_batch(self, side: Side = "right", extra: int = 1) -> Arrays:
        made = super().make_batch(side, extra)
        sizes = np.zeros((*made["pixel_values"].shape[:2], 2), np.int64)
        for row, each in enumerate(SIZES):
            sizes[row, self.get_positions(row, "images", sizes.shape[1], side)] = each
        return with_grids(made | {"image_sizes": sizes})


def with_grids(x: Arrays) -> Arrays:
    """Return inputs with the rows and columns of tiles that the class chooses."""
    sizes = x["image_sizes"].tolist()
    grids = [
        [get_anyres_image_grid_shape(s, PINPOINTS, 8) if min(s) else (0, 0) for s in row]
        for row in sizes
    ]
    return x | {"grids": np.array(grids)}


def count_tokens(theirs: Any, size: tuple[int, int]) -> int:
    """Return the number of tokens of an image in the class."""
    pixels = torch.zeros(1, TILES, 3, 8, 8, dtype=torch.float64)
    body = getattr(theirs, "model", theirs)
    return len(body.get_image_features(pixels, torch.tensor([size])).pooler_output[0])


def given(theirs: Any) -> Samples:
    counts = [[count_tokens(theirs, size) for size in sizes] for sizes in SIZES]
    assert len({n for each in counts for n in each}) == 4
    fields = {
        "input_ids": TokenIds("seq", IMAGE),
        "attention_mask": PaddingMask("seq"),
        "pixel_values": PositionValues("images", (TILES, 3, 8, 8)),
    }
    lengths = tuple(4 + sum(n + 1 for n in each) for each in counts)
    made = make_samples(fields, {"seq": lengths, "images": tuple(map(len, counts))})
    for row, each in zip(made.rows, counts, strict=True):
        start = 2
        for count in each:
            row["input_ids"][start : start + count] = IMAGE
            start += count + 1
    return TiledSamples(made.fields, made.rows, made.lengths, made.seed)


def as_published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs of the class: the images of all sequences, concatenated."""
    present = x["image_sizes"].prod(-1) > 0
    keep = x["attention_mask"]
    return {
        "input_ids": torch.where(keep, x["input_ids"], 0),
        "attention_mask": keep.long(),
        "pixel_values": x["pixel_values"][present],
        "image_sizes": x["image_sizes"][present],
    }


@pytest.mark.parametrize(
    ("head", "result"), [("ForConditionalGeneration", "logits"), ("Model", "last_hidden_state")]
)
def test_outputs(head: str, result: str, tmp_path: Path) -> None:
    theirs = saved(head, tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)

    def run(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        places = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {result: theirs(**as_published(x), position_ids=places)[result]}

    assert_matches_float32(ours, given(theirs), run, {result: "seq"}, ("left",))


def test_generation(tmp_path: Path) -> None:
    theirs = saved("ForConditionalGeneration", tmp_path, seed=4)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    x = given(theirs).make_batch("left", extra=0)
    x.pop("grids")
    inputs = as_published({name: torch.tensor(a) for name, a in x.items()})
    inputs["pixel_values"] = inputs["pixel_values"].double()
    with torch.no_grad():
        made = theirs.generate(
            **inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0, eos_token_id=2
        )
    wanted = [cut_at_stop(row[x["input_ids"].shape[1] :].tolist(), 2) for row in made]
    answer = ours.generate(**x, max_tokens=MAX_NEW_TOKENS)
    assert [list(row[0].tokens) for row in answer.results()] == wanted
    assert len({token for text in wanted for token in text}) > 3, "too few different tokens"


def test_grids_of_tiles(tmp_path: Path) -> None:
    """Image sizes select the same grid as the function of the class."""
    text = (
        "specc 1\nmodel grids\nconfig { p: list[pair[int]] = [[336, 672], [672, 336], [672, 672], "
        "[1008, 336], [336, 1008]] }\ndims b, n\ngraph main(s: int[b, n, 2]) -> (g: int[b, n, 2]) {\n"
        "  return anyres_grids(s, pinpoints=p, tile=336)\n}\n"
    )
    (tmp_path / "grids.specc").write_text(text)
    specc.compile(tmp_path / "grids.specc", tmp_path / "grids.onnx", init=0)
    sizes = np.random.default_rng(0).integers(30, 2000, (400, 2))
    pinpoints = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    wanted = [get_anyres_image_grid_shape(tuple(map(int, s)), pinpoints, 336) for s in sizes]
    made = specc.load(tmp_path / "grids.onnx").run(s=sizes[None])["g"][0]
    assert made.tolist() == [list(grid) for grid in wanted]
