"""LLaVA-NeXT and LLaVA-OneVision match transformers: tiled images whose number of tokens depends on
their size, alone and in padded batches, and generation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

IMAGE, VOCAB = 30, 31
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
    "image_token_index": IMAGE,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family with its settings, the number of tiles in `pixel_values`, and the heights and widths
    of the pictures of three texts.
    """

    name: str
    sizes: tuple[tuple[tuple[int, int], ...], ...]
    tiles: int
    settings: Mapping[str, Any]

    @property
    def pinpoints(self) -> list[list[int]]:
        return self.settings["image_grid_pinpoints"]

    @property
    def shares_batches(self) -> bool:
        """Return whether texts with several images have no tiles."""
        return self.name == "LlavaOnevision"

    def save(self, head: str, directory: Path, seed: int = 0) -> Any:
        """Return a model with random weights, saved in `directory`."""
        kind = getattr(transformers, f"{self.name}{head}")
        config = getattr(transformers, f"{self.name}Config")(**CONFIG | self.settings)
        theirs = randomize_weights(kind(config), seed)
        theirs.save_pretrained(directory)
        return kind.from_pretrained(directory).eval().double()

    def count_tokens(self, theirs: Any, sizes: Sequence[tuple[int, int]]) -> list[int]:
        """Return the number of tokens of the images of a text in the class."""
        pixels = torch.zeros(len(sizes), self.tiles, 3, 8, 8, dtype=torch.float64)
        body = getattr(theirs, "model", theirs)
        more = {"batch_num_images": torch.tensor([len(sizes)])} if self.shares_batches else {}
        made = body.get_image_features(pixels, torch.tensor(sizes), **more)
        return [len(tokens) for tokens in made.pooler_output]

    def give(self, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the inputs of the class: the images of all sequences, concatenated."""
        present = x["image_sizes"].prod(-1) > 0
        keep = x["attention_mask"]
        more = {"batch_num_images": present.sum(1)} if self.shares_batches else {}
        return {
            "input_ids": torch.where(keep, x["input_ids"], 0),
            "attention_mask": keep.long(),
            "pixel_values": x["pixel_values"][present],
            "image_sizes": x["image_sizes"][present],
            **more,
        }


SIGLIP = CONFIG["vision_config"] | {"model_type": "siglip_vision_model", "vision_use_head": False}
FAMILIES = {
    "llava_next": Family(
        "LlavaNext", (((11, 30),), ((50, 17), (9, 9)), ((16, 13),)), 5,
        {"image_grid_pinpoints": [[8, 16], [16, 8], [16, 16], [24, 8]]},
    ),
    # 20 x 20 tokens are shrunk to 11 x 11, as 20 // (20 / 12) is 11 in float64; 20 x 14 tokens are shrunk to 14 x 10
    "llava_onevision": Family(
        "LlavaOnevision", (((40, 39),), ((50, 17), (9, 9)), ((40, 30),)), 26,
        {"vision_config": SIGLIP, "image_grid_pinpoints": [[8, 8], [40, 40], [40, 16]]},
    ),
    "llava_onevision, CLIP and Qwen2": Family(
        "LlavaOnevision", (((20, 45),), ((31, 40),), ((24, 40), (8, 9))), 26,
        {
            "text_config": CONFIG["text_config"] | {"model_type": "qwen2", "tie_word_embeddings": True},
            "vision_feature_select_strategy": "default", "vision_feature_layer": [-2, -1], "multimodal_projector_bias": False,
            "image_grid_pinpoints": [[8, 16], [40, 40], [32, 40]],
        },
    ),
}  # fmt: skip


class TiledSamples(Samples):
    """Sequences with images of several sizes; a zero size is no image."""

    family: Family

    def get_sample(self, row: int) -> Arrays:
        sizes = np.array([self.family.sizes[row]])
        return with_grids(super().get_sample(row) | {"image_sizes": sizes}, self.family)

    def make_batch(self, side: Side = "right", extra: int = 1) -> Arrays:
        made = super().make_batch(side, extra)
        sizes = np.zeros((*made["pixel_values"].shape[:2], 2), np.int64)
        for row, each in enumerate(self.family.sizes):
            sizes[row, self.get_positions(row, "images", sizes.shape[1], side)] = each
        return with_grids(made | {"image_sizes": sizes}, self.family)


def with_grids(x: Arrays, family: Family) -> Arrays:
    """Return inputs with the rows and columns of tiles that the class chooses."""
    sizes = x["image_sizes"].tolist()
    grids = [
        [
            get_anyres_image_grid_shape(s, family.pinpoints, 8)
            if min(s) and not (family.shares_batches and np.count_nonzero(np.prod(row, 1)) > 1)
            else (0, 0)
            for s in row
        ]
        for row in sizes
    ]
    return x | {"grids": np.array(grids)}


def given(theirs: Any, family: Family) -> Samples:
    counts = [family.count_tokens(theirs, sizes) for sizes in family.sizes]
    assert len({n for each in counts for n in each}) == (3 if family.shares_batches else 4)
    fields = {
        "input_ids": TokenIds("seq", IMAGE),
        "attention_mask": PaddingMask("seq"),
        "pixel_values": PositionValues("images", (family.tiles, 3, 8, 8)),
    }
    lengths = tuple(4 + sum(n + 1 for n in each) for each in counts)
    made = make_samples(fields, {"seq": lengths, "images": tuple(map(len, counts))})
    for row, each in zip(made.rows, counts, strict=True):
        start = 2
        for count in each:
            row["input_ids"][start : start + count] = IMAGE
            start += count + 1
    tiled = TiledSamples(made.fields, made.rows, made.lengths, made.seed)
    object.__setattr__(tiled, "family", family)
    return tiled


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
@pytest.mark.parametrize(
    ("head", "result"), [("ForConditionalGeneration", "logits"), ("Model", "last_hidden_state")]
)
def test_outputs(head: str, result: str, family: Family, tmp_path: Path) -> None:
    theirs = family.save(head, tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)

    def run(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        places = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {result: theirs(**family.give(x), position_ids=places)[result]}

    assert_matches_float32(ours, given(theirs, family), run, {result: "seq"}, ("left",))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_generation(family: Family, tmp_path: Path) -> None:
    theirs = family.save("ForConditionalGeneration", tmp_path, seed=4)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    x = given(theirs, family).make_batch("left", extra=0)
    x.pop("grids")
    inputs = family.give({name: torch.tensor(a) for name, a in x.items()})
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
