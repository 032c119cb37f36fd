"""PaliGemma as transformers computes it: image tokens and a prompt as a bidirectional prefix."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
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
from tokenizers import Tokenizer, models, pre_tokenizers

import specc

pytestmark = pytest.mark.parity

IMAGE, ROWS = 40, 4
"""The placeholder, which is not in the embedding table, and how many an image of 2 by 2 patches has."""
VISION: dict[str, Any] = {
    "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 2, "image_size": 8, "patch_size": 4, "vision_use_head": False,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "vocab_size": 31, "max_position_embeddings": 64, "eos_token_id": 2, "pad_token_id": 0,
    "bos_token_id": 1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "gemma": {"model_type": "gemma"},
    "gemma2": {"model_type": "gemma2", "sliding_window": 4, "query_pre_attn_scalar": 8},
}
FIELDS = {
    "input_ids": TokenIds("src", 30),
    "attention_mask": PaddingMask("src"),
    "pixel_values": PositionValues("images", (3, 8, 8)),
    "image_mask": PaddingMask("images"),
    "suffix_ids": TokenIds("seq", 30),
    "suffix_mask": PaddingMask("seq"),
}
PLACES = ([0, 1, 2, 3], [0, 1, 2, 3, 4, 6, 7, 8], [1, 2, 3, 4])
"""Where image tokens are: before the prompt, two images, after the first token."""


def saved(name: str, directory: Path, model: str = "ForConditionalGeneration") -> Any:
    """Return a model with random weights, saved in `directory`."""
    config = transformers.PaliGemmaConfig(
        text_config=TEXT | CASES[name],
        vision_config=VISION,
        image_token_index=IMAGE,
        projection_dim=24,
    )
    kind = getattr(transformers, f"PaliGemma{model}")
    theirs = randomize_weights(kind(config), seed=6)
    theirs.tie_weights()
    theirs.save_pretrained(directory)
    return kind.from_pretrained(directory).eval()


class PromptedSamples(Samples):
    """Samples with padding before prompts and after suffixes."""

    def make_batch(self, side: Side = "left", extra: int = 1) -> Arrays:
        assert side == "left", "prompts are padded on the left"
        left, right = super().make_batch("left", extra), super().make_batch("right", extra)
        return {name: (right if name.startswith("suffix") else left)[name] for name in left}

    def get_positions(self, row: int, dim: str, width: int, side: Side) -> slice:
        if dim in self.lengths[row]:
            return super().get_positions(row, dim, width, side)
        own, most = self.lengths[row], max(each["src"] for each in self.lengths) + 1
        return slice(
            0 if dim == "suffix" else most - own["src"],
            most * (dim == "both") + own["seq"] + (dim == "suffix"),
        )


def given() -> Samples:
    """Return three prompts with images, and suffixes."""
    made = make_samples(FIELDS, {"src": (7, 10, 6), "images": (1, 2, 1), "seq": (4, 3, 5)})
    for row, at in zip(made.rows, PLACES, strict=True):
        row["input_ids"][[*at]] = IMAGE
    return PromptedSamples(made.fields, made.rows, made.lengths, made.seed)


def run(theirs: Any, x: Mapping[str, torch.Tensor], result: str) -> Mapping[str, torch.Tensor]:
    keep = torch.cat([x["attention_mask"], x["suffix_mask"]], 1).long()
    first = x["input_ids"].shape[1]
    made = theirs(
        input_ids=torch.cat([x["input_ids"], x["suffix_ids"]], 1),
        pixel_values=x["pixel_values"][x["image_mask"]],
        attention_mask=keep,
        token_type_ids=(torch.arange(keep.shape[1]).expand(*keep.shape) >= first).long(),
        position_ids=keep.cumsum(1),
    )[result]
    return {result: made[:, first - 1 :] if result == "logits" else made}


@pytest.mark.parametrize(
    ("name", "model", "results"),
    [
        ("gemma", "ForConditionalGeneration", {"logits": "suffix"}),
        ("gemma2", "ForConditionalGeneration", {"logits": "suffix"}),
        ("gemma", "Model", {"last_hidden_state": "both"}),
    ],
)
def test_outputs(name: str, model: str, results: Mapping[str, str], tmp_path: Path) -> None:
    theirs = saved(name, tmp_path, model)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    assert_matches_float32(
        ours, given(), lambda x: run(theirs, x, next(iter(results))), results, ("left",)
    )


def processor(directory: Path) -> Any:
    """Return a processor for texts and images, saved in `directory`."""
    words = {word: n for n, word in enumerate(["<pad>", "<s>", "</s>", *"abcdefgh", "\n"])}
    tokens = Tokenizer(models.WordLevel(words | {"<unk>": 12}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokens.add_special_tokens(["<pad>", "<s>", "</s>", *(f"<{n}>" for n in range(13, IMAGE))])
    tokens.add_special_tokens(["<image>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token="<pad>",
        bos_token="<s>",
        extra_special_tokens={"image_token": "<image>"},
    )
    images = transformers.SiglipImageProcessor(size={"height": 8, "width": 8})
    images.image_seq_length = ROWS
    whole = transformers.PaliGemmaProcessor(images, tokenizer)
    whole.save_pretrained(directory)
    return whole


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_generation(name: str, beams: int, tmp_path: Path) -> None:
    """The package generates the tokens of the class from the ids and pixels of its processor."""
    theirs = saved(name, tmp_path).double()
    whole = processor(tmp_path)
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{n}.png" for n in range(3)]
    for path in paths:
        Image.fromarray(rng.integers(0, 255, (13, 11, 3), np.uint8)).save(path)
    texts, images = ["<image> a b c", "<image> <image> d"], [paths[:1], paths[1:]]
    opened = [[Image.open(path) for path in some] for some in images]
    wanted = whole(
        text=texts, images=opened, padding=True, padding_side="left", return_tensors="pt"
    )
    how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    if beams > 1:
        how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    formatted = ["<image><s> a b c\n", "<image> <image><s> d\n"]
    each = [
        ours.generate(input_ids=given, pixel_values=images, **how) for given in (texts, formatted)
    ]
    with torch.no_grad():
        written = theirs.generate(
            **{k: v.double() if v.is_floating_point() else v for k, v in wanted.items() if k != "labels"},
            do_sample=False, num_beams=beams, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0, eos_token_id=2,
        )  # fmt: skip
    long = wanted["input_ids"].shape[1]
    due = [cut_at_stop(row[long:].tolist(), 2) for row in written]
    for made in each:
        assert np.array_equal(made.prepared_inputs["input_ids"], wanted["input_ids"])
        assert [list(row[0].tokens) for row in made.results()] == due
    assert len({token for text in due for token in text}) > 3, "too few different tokens"
