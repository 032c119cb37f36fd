"""Vision-language models whose image tokens replace placeholder tokens, as transformers computes
them: outputs of every head, alone and in padded batches, and generation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
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
from tokenizers import Tokenizer, models, pre_tokenizers

import specc

pytestmark = pytest.mark.parity

IMAGE, VOCAB = 30, 31
Inputs = Mapping[str, torch.Tensor]
VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 64, "eos_token_id": 2, "pad_token_id": 0,
    "bos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
ONE = ([3, 4, 5, 6], [1, 2, 3, 4], [0, 1, 2, 3])
SEVERAL = ([1, 2, 3, 4, 6, 7, 8, 9], [1, 2, 3, 4], [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13])
"""Where images of four tokens are in three texts."""


SIZES = np.array([(35, 12), (16, 19), (8, 32)])
"""Heights and widths of images with four tokens of 8 by 8 pixels."""


def give_sizes(x: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a model that takes sizes of images; zeros are absent images."""
    mask = np.asarray(x["image_mask"])
    sizes = np.where(mask[:, :, None], SIZES[(mask.cumsum(1) - 1) % len(SIZES)], 0)
    return {name: a for name, a in x.items() if name != "image_mask"} | {"image_sizes": sizes}


BUFFERS = {"put_max": 1.5, "put_min": -1.2, "std_bias": 0.3, "std_scale": 0.7, "layer_scalar": 0.8}
GRIDS = [(4, 4), (8, 2), (2, 8)]
"""Columns and rows of images with four tokens of 2 by 2 patches."""


def give_positions(x: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a model that takes positions of patches; -1 is padding."""
    mask = np.asarray(x["image_mask"])
    at = np.full((*mask.shape, x["pixel_values"].shape[2], 2), -1)
    for row, image in np.argwhere(mask):
        columns, rows = GRIDS[image % len(GRIDS)]
        index = np.arange(columns * rows)
        at[row, image, : len(index)] = np.stack([index % columns, index // columns], axis=1)
    return {name: a for name, a in x.items() if name != "image_mask"} | {"image_position_ids": at}


def give_shapes(x: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a model that takes rows and columns of patches; zeros are absent."""
    mask = np.asarray(x["image_mask"])
    grids = np.array(GRIDS)[:, ::-1]
    shapes = np.where(mask[:, :, None], grids[(mask.cumsum(1) - 1) % len(grids)], 0)
    return {name: a for name, a in x.items() if name != "image_mask"} | {"spatial_shapes": shapes}


class SizedSamples(Samples):
    """Samples with sizes of images in place of a mask."""

    add = staticmethod(give_sizes)

    def get_sample(self, row: int) -> Arrays:
        return self.add(super().get_sample(row))

    def make_batch(self, side: Side = "right", extra: int = 1) -> Arrays:
        plain = Samples(self.fields, self.rows, self.lengths, self.seed)
        return self.add(plain.make_batch(side, extra))


class PlacedSamples(SizedSamples):
    """Samples with positions of patches in place of a mask of images."""

    add = staticmethod(give_positions)


class ShapedSamples(SizedSamples):
    """Samples with rows and columns of patches in place of a mask of images."""

    add = staticmethod(give_shapes)


def flatten_shaped_images(x: Inputs) -> dict[str, torch.Tensor]:
    """Return the patches of the images of all texts, with their rows and columns."""
    shapes = torch.as_tensor(x["spatial_shapes"])
    present = shapes.prod(-1) > 0
    pixels, shapes = x["pixel_values"][present], shapes[present]
    mask = torch.arange(pixels.shape[1]) < shapes.prod(-1)[:, None]
    return {"pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": mask.long()}


def flatten_placed_images(x: Inputs) -> dict[str, torch.Tensor]:
    """Return the patches of the images of all texts, and their positions."""
    at = torch.as_tensor(x["image_position_ids"])
    present = (at >= 0).any(-1).any(-1)
    keep = x.get("attention_mask", torch.tensor(True)).bool()
    types = ((x["input_ids"] == IMAGE) & keep).long()
    return {
        "pixel_values": x["pixel_values"][present],
        "image_position_ids": at[present],
        "mm_token_type_ids": types,
    }


def flatten_sized_images(x: Inputs) -> dict[str, torch.Tensor]:
    """Return the images of all texts and their sizes."""
    sizes = torch.as_tensor(x["image_sizes"])
    present = sizes.prod(-1) > 0
    return {"pixel_values": x["pixel_values"][present], "image_sizes": sizes[present]}


def flatten_images(x: Inputs) -> dict[str, torch.Tensor]:
    """Return the images of all texts, one after the other."""
    return {"pixel_values": x["pixel_values"][x["image_mask"]]}


@dataclass(frozen=True)
class Family:
    """A family at small sizes whose images have four tokens."""

    name: str
    settings: Mapping[str, Any]
    image: tuple[int, ...] = (3, 8, 8)
    give: Callable[[Inputs], dict[str, torch.Tensor]] = flatten_images
    heads: Mapping[str, str] = field(
        default_factory=lambda: {"ForConditionalGeneration": "logits", "Model": "last_hidden_state"}
    )
    seed: int = 2
    sized: type[SizedSamples] | None = None

    def save(self, directory: Path, head: str = "ForConditionalGeneration") -> Any:
        """Return a model with random weights, saved in `directory`."""
        config = getattr(transformers, f"{self.name}Config")(**self.settings)
        kind = getattr(transformers, f"{self.name}{head}")
        theirs = randomize_weights(kind(config), seed=self.seed)
        for name, x in theirs.named_buffers():  # infinite or empty in a new model
            for end, value in BUFFERS.items():
                x.fill_(value) if name.endswith(end) else None
        theirs.tie_weights()
        theirs.save_pretrained(directory)
        return kind.from_pretrained(directory).eval()

    def samples(self, places: Sequence[Sequence[int]]) -> Samples:
        """Return three texts with image tokens at these places."""
        fields = {
            "input_ids": TokenIds("seq", IMAGE),
            "attention_mask": PaddingMask("seq"),
            "pixel_values": PositionValues("images", self.image),
            "image_mask": PaddingMask("images"),
        }
        lengths = {"seq": (11, 6, 15), "images": tuple(len(at) // 4 for at in places)}
        made = make_samples(fields, lengths)
        for row, at in zip(made.rows, places, strict=True):
            row["input_ids"][[*at]] = IMAGE
        kind = self.sized or Samples
        return kind(made.fields, made.rows, made.lengths, made.seed)

    def run(self, theirs: Any, x: Inputs, result: str) -> dict[str, torch.Tensor]:
        """Return what the class gives for our inputs."""
        keep = x["attention_mask"].long()
        made = theirs(
            input_ids=torch.where(x["attention_mask"], x["input_ids"], 0),
            attention_mask=keep,
            position_ids=(keep.cumsum(1) - 1).clamp(min=0),
            **self.give(x),
        )
        return {result: made[result]}


def give_all_images(x: Inputs) -> dict[str, torch.Tensor]:
    """Return the images of each text, zeros where it has no more."""
    present = x["image_mask"][:, :, None, None, None]
    return {"pixel_values": torch.where(present, x["pixel_values"], 0.0)}


def give_token_types(x: Inputs) -> dict[str, torch.Tensor]:
    """Return images, and which tokens are theirs."""
    types = ((x["input_ids"] == IMAGE) & x.get("attention_mask", torch.tensor(True)).bool()).long()
    return flatten_images(x) | {"token_type_ids": types}


GEMMA3_TEXT = TEXT | {
    "model_type": "gemma3_text", "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 8, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA4_TEXT = {key: value for key, value in GEMMA3_TEXT.items() if key not in ("model_type", "query_pre_attn_scalar")} | {
    "global_head_dim": 12, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 5,
}  # fmt: skip
GEMMA4_VISION = {key: value for key, value in VISION.items() if key != "image_size"} | {
    "patch_size": 2, "num_key_value_heads": 2, "head_dim": 8, "pooling_kernel_size": 2, "position_embedding_size": 9,
}  # fmt: skip
LFM2 = {key: value for key, value in TEXT.items() if key != "head_dim"} | {
    "model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_multiple_of": 8, "tie_word_embeddings": True,
}  # fmt: skip
NAFLEX = {key: value for key, value in VISION.items() if key != "image_size"} | {
    "model_type": "siglip2_vision_model", "patch_size": 2, "num_patches": 9,
}  # fmt: skip
SIGLIP = VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}
LLAMA = TEXT | {"model_type": "llama"}
FAMILIES = {
    "idefics3": Family(
        "Idefics3",
        {
            "text_config": LLAMA,
            "vision_config": VISION | {"model_type": "idefics3_vision", "image_size": 16},
            "image_token_id": IMAGE,
        },
        image=(3, 16, 16),
        give=give_all_images,
    ),
    "smolvlm": Family(
        "SmolVLM",
        {
            "text_config": LLAMA | {"tie_word_embeddings": True},
            "vision_config": VISION | {"model_type": "smolvlm_vision", "patch_size": 2, "image_size": 12},
            "image_token_id": IMAGE,
            "scale_factor": 3,
            "tie_word_embeddings": True,
        },
        image=(3, 12, 12),
        give=give_all_images,
    ),
    "internvl": Family(
        "InternVL",
        {
            "text_config": TEXT | {"model_type": "qwen2", "tie_word_embeddings": True},
            "vision_config": VISION | {"image_size": [16, 16], "patch_size": [4, 4], "attention_bias": True},
            "image_token_id": IMAGE,
            "tie_word_embeddings": True,
        },
        image=(3, 16, 16),
    ),
    "internvl, RMS norms, an inner layer": Family(
        "InternVL",
        {
            "text_config": TEXT | {"model_type": "qwen3"},
            "vision_config": VISION | {
                "image_size": 8, "norm_type": "rms_norm", "use_qk_norm": True, "use_mean_pooling": False,
                "use_absolute_position_embeddings": False,
            },
            "image_token_id": IMAGE,
            "downsample_ratio": 1.0,
            "vision_feature_layer": -2,
            "tie_word_embeddings": False,
        },
        heads={"ForConditionalGeneration": "logits"},
    ),
    "aya_vision": Family(
        "AyaVision",
        {
            "text_config": TEXT | {
                "model_type": "cohere2", "sliding_window": 4, "layer_norm_eps": 1e-5, "tie_word_embeddings": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            "vision_config": SIGLIP | {"image_size": 16},
            "image_token_index": IMAGE,
        },
        image=(3, 16, 16),
    ),
    "cohere2_vision": Family(
        "Cohere2Vision",
        {
            "text_config": TEXT | {"model_type": "cohere2", "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
            "vision_config": SIGLIP | {"image_size": 16},
            "image_token_id": IMAGE,
            "alignment_intermediate_size": 20,
        },
        image=(3, 16, 16),
    ),
    "cohere2_vision, untied, larger blocks, pooling head": Family(
        "Cohere2Vision",
        {
            "text_config": TEXT | {"model_type": "cohere2", "sliding_window": 64, "logit_scale": 0.5},
            "vision_config": SIGLIP | {"image_size": 12, "patch_size": 2, "vision_use_head": True},
            "image_token_id": IMAGE,
            "alignment_intermediate_size": 12,
            "downsample_factor": 3,
            "tie_word_embeddings": False,
        },
        image=(3, 12, 12),
        heads={"ForConditionalGeneration": "logits"},
    ),
    "got_ocr2": Family(
        "GotOcr2",
        {
            "text_config": TEXT | {"model_type": "qwen2", "tie_word_embeddings": True},
            "vision_config": {
                "hidden_size": 16, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": 28, "patch_size": 4, "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 20,
            },
            "image_token_index": IMAGE,
        },
        image=(3, 28, 28),
    ),
    "mistral3": Family(
        "Mistral3",
        {
            "text_config": TEXT | {"model_type": "mistral", "sliding_window": None},
            "vision_config": VISION | {"model_type": "pixtral"},
            "image_token_index": IMAGE,
            "tie_word_embeddings": False,
        },
        image=(3, 35, 33),
        give=flatten_sized_images,
        sized=SizedSamples,
    ),
    "gemma4": Family(
        "Gemma4",
        {
            "text_config": GEMMA4_TEXT | {"use_bidirectional_attention": "vision"},
            "vision_config": GEMMA4_VISION | {"use_clipped_linears": True, "standardize": True},
            "image_token_id": IMAGE, "video_token_id": 29, "audio_token_id": 28,
        },
        image=(20, 12),
        give=flatten_placed_images,
        sized=PlacedSamples,
        seed=3,
    ),
    "gemma4, causal, no layer inputs, grouped heads": Family(
        "Gemma4",
        {
            "text_config": GEMMA4_TEXT | {"hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0, "pad_token_id": 4,
                                          "tie_word_embeddings": False},
            "vision_config": GEMMA4_VISION | {"num_key_value_heads": 1, "head_dim": 12, "rope_parameters": {"rope_type": "axial", "rope_theta": 10.0}},
            "image_token_id": IMAGE, "video_token_id": 29, "audio_token_id": 28, "tie_word_embeddings": False,
        },
        image=(24, 12),
        give=flatten_placed_images,
        sized=PlacedSamples,
    ),
    "lfm2_vl": Family(
        "Lfm2Vl",
        {"text_config": LFM2, "vision_config": NAFLEX, "image_token_id": IMAGE, "projector_hidden_size": 20},
        image=(20, 12),
        give=flatten_shaped_images,
        sized=ShapedSamples,
    ),
    "lfm2_vl, untied, no projector norm": Family(
        "Lfm2Vl",
        {
            "text_config": LFM2 | {"tie_word_embeddings": False},
            "vision_config": NAFLEX | {"vision_use_head": False, "num_patches": 16},
            "image_token_id": IMAGE, "projector_hidden_size": 12, "projector_use_layernorm": False, "projector_bias": False,
            "projector_hidden_act": "silu", "tie_word_embeddings": False,
        },
        image=(16, 12),
        give=flatten_shaped_images,
        sized=ShapedSamples,
    ),
    "gemma3": Family(
        "Gemma3",
        {
            "text_config": GEMMA3_TEXT,
            "vision_config": SIGLIP | {"image_size": 20},
            "image_token_index": IMAGE,
            "mm_tokens_per_image": 4,
        },
        image=(3, 20, 20),
        give=give_token_types,
        heads={
            "ForConditionalGeneration": "logits",
            "Model": "last_hidden_state",
            "ForSequenceClassification": "logits",
        },
        seed=3,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "head", "places"),
    [
        (name, head, places)
        for name, family in FAMILIES.items()
        for head in family.heads
        for places in ([SEVERAL] if head == "Model" else [ONE, SEVERAL])
    ],
)
def test_outputs(name: str, head: str, places: Sequence[Sequence[int]], tmp_path: Path) -> None:
    family = FAMILIES[name]
    theirs = family.save(tmp_path, head)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    result = family.heads[head]
    dim = "" if "Classification" in head else "seq"
    assert_matches_float32(
        ours,
        family.samples(places),
        lambda x: family.run(theirs, x, result),
        {result: dim},
        ("left", "right"),
    )


@pytest.mark.parametrize(
    ("name", "beams"), [*((name, 1) for name in FAMILIES), (next(iter(FAMILIES)), 3)]
)
def test_generation(name: str, beams: int, tmp_path: Path) -> None:
    """Beam search, which does not depend on the family, for the first only."""
    family = FAMILIES[name]
    theirs = family.save(tmp_path).double()
    how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    if beams > 1:
        how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    given = family.samples(SEVERAL)
    for count in (1, 3):
        texts = [row["input_ids"].tolist() for row in given.rows[:count]]
        images = [row["pixel_values"] for row in given.rows[:count]]
        ids, keep = pad_left(texts)
        most = max(map(len, images))
        pixels = np.stack(
            [np.pad(p, [(0, most - len(p)), *[(0, 0)] * (p.ndim - 1)]) for p in images]
        )
        whole = {
            "input_ids": ids,
            "attention_mask": keep,
            "pixel_values": pixels,
            "image_mask": np.array([[n < len(p) for n in range(most)] for p in images]),
        }
        whole = family.sized.add(whole) if family.sized else whole
        x = {name: torch.tensor(a) for name, a in whole.items()}
        x["pixel_values"] = x["pixel_values"].double()
        with torch.no_grad():
            made = theirs.generate(
                input_ids=x["input_ids"], attention_mask=x["attention_mask"].long(), **family.give(x), do_sample=False,
                num_beams=beams, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0, eos_token_id=2,
            )  # fmt: skip
        wanted = [cut_at_stop(row[ids.shape[1] :].tolist(), 2) for row in made]
        answer = ours.generate(**whole, **how)
        assert [list(row[0].tokens) for row in answer.results()] == wanted, f"{count} texts"
    assert len({token for text in wanted for token in text}) > 3, "too few different tokens"


def test_image_encoder_of_any_size(tmp_path: Path) -> None:
    """Patches of padded images are those of the class, which concatenates images."""
    config = transformers.PixtralVisionConfig(**VISION, head_dim=8)
    theirs = randomize_weights(transformers.PixtralVisionModel(config), seed=4)
    theirs.save_pretrained(tmp_path)
    theirs.double()
    ours = open_weighted_spec(str(tmp_path), tmp_path).compiled
    pixels = np.random.default_rng(0).standard_normal((3, 3, 35, 33)).astype(np.float32)
    with torch.no_grad():
        wanted = theirs(torch.tensor(pixels).double(), torch.tensor(SIZES)).last_hidden_state[0]
    made = ours.run(pixel_values=pixels, image_sizes=SIZES)["last_hidden_state"]
    grid = made.reshape(3, 8, 8, -1)
    parts = [
        one[: h // 4, : w // 4].reshape(-1, 16) for one, (h, w) in zip(grid, SIZES, strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(parts), wanted, atol=1e-5 * float(wanted.abs().max()))


def test_gemma4_without_image_encoder(tmp_path: Path) -> None:
    """docs/families.md has the spec for `"vision_config": null`."""
    config = transformers.Gemma4Config(
        text_config=GEMMA4_TEXT, vision_config=None, image_token_id=IMAGE
    )
    theirs = randomize_weights(transformers.Gemma4ForConditionalGeneration(config), seed=5)
    theirs.save_pretrained(tmp_path)
    theirs.double()
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    spec = tmp_path / "text_only.specc"
    spec.write_text(page.partition("```specc\n")[2].partition("```")[0], encoding="utf-8")
    ours = open_weighted_spec(str(spec), tmp_path).compiled
    ids, keep = pad_left([[5, 6, 7, 8, 9], [10, 11, 12]])
    with torch.no_grad():
        wanted = theirs(input_ids=torch.tensor(ids), attention_mask=torch.tensor(keep)).logits
    made = ours.run(input_ids=ids, attention_mask=keep)["logits"]
    np.testing.assert_allclose(made[keep], wanted[keep], atol=1e-5 * float(wanted.abs().max()))


def test_image_encoder_of_gemma4(tmp_path: Path) -> None:
    """Image tokens of padded images are those of the class, which concatenates images."""
    config = transformers.Gemma4VisionConfig(**GEMMA4_VISION)
    theirs = randomize_weights(transformers.Gemma4VisionModel(config), seed=4)
    theirs.save_pretrained(tmp_path)
    theirs.double()
    ours = open_weighted_spec(str(tmp_path), tmp_path).compiled
    pixels = np.random.default_rng(0).standard_normal((1, 3, 24, 12)).astype(np.float32)
    given = give_positions({"pixel_values": pixels, "image_mask": np.ones((1, 3), bool)})
    at = given["image_position_ids"][0]
    with torch.no_grad():
        wanted = theirs(torch.tensor(pixels[0]).double(), torch.tensor(at)).last_hidden_state
    made = ours.run(pixel_values=pixels[0], pixel_position_ids=at)
    tokens = made["last_hidden_state"][made["is_token"]]
    np.testing.assert_allclose(tokens, wanted, atol=1e-5 * float(wanted.abs().max()))


@dataclass(frozen=True)
class Prompts:
    """How the processor of a family writes images into texts; `tokens` are its special tokens."""

    placeholder: str
    image_token: str
    tokens: Mapping[str, str]
    images: str
    size: Mapping[str, Any]
    settings: Mapping[str, Any]


PROMPTS = {
    "gemma3": Prompts(
        "<start_of_image>",
        "<image_soft_token>",
        {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        "Gemma3ImageProcessorPil",
        {"size": {"height": 20, "width": 20}},
        {"image_seq_length": 4},
    ),
    "idefics3": Prompts(
        "<image>",
        "<image>",
        {"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"},
        "Idefics3ImageProcessorPil",
        {"size": {"longest_edge": 16}, "max_image_size": {"longest_edge": 16}, "do_image_splitting": False},
        {"image_seq_len": 4},
    ),
    "aya_vision": Prompts(
        "<image>",
        "<|IMG_PATCH|>",
        {"start": "<|START_OF_IMG|>", "end": "<|END_OF_IMG|>", "global": "TILE_GLOBAL", "tile": "TILE"},
        "GotOcr2ImageProcessorPil",
        {"size": {"height": 16, "width": 16}},
        {"patch_size": 8, "img_size": 16},
    ),
}  # fmt: skip


def make_processor(name: str, folder: Path) -> Any:
    """Return the processor of a family with a tokenizer of letters, saved in `folder`."""
    how = PROMPTS[name]
    special = ["<pad>", "<s>", "</s>", *how.tokens.values()]
    words = [*special, *"abcdefgh", "\n\n"]
    words += [f"<{n}>" for n in range(len(words), IMAGE)]
    vocab = {word: n for n, word in enumerate([*words, how.image_token])}
    tokens = Tokenizer(models.WordLevel(vocab, unk_token="<29>"))
    tokens.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokens.add_special_tokens([*special, how.image_token])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token="<pad>",
        bos_token="<s>",
        extra_special_tokens={**how.tokens, "image_token": how.image_token},
    )
    images = getattr(transformers, how.images)(**how.size)
    tokenizer.save_pretrained(folder)
    images.save_pretrained(folder)
    processor = getattr(transformers, f"{FAMILIES[name].name}Processor")
    return processor(images, tokenizer, **how.settings)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_with_image_files(name: str, tmp_path: Path) -> None:
    """The package generates from a text and image files what the class does from its processor."""
    theirs = FAMILIES[name].save(tmp_path).double()
    processor = make_processor(name, tmp_path)
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{n}.png" for n in range(2)]
    for path in paths:
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(path)
    placeholder = PROMPTS[name].placeholder
    text = f"a b {placeholder} c {placeholder} d"
    given = processor(text=[text], images=[[Image.open(p) for p in paths]], return_tensors="pt")
    inputs = {
        k: v for k, v in given.items() if k in ("input_ids", "pixel_values", "token_type_ids")
    }
    inputs["pixel_values"] = inputs["pixel_values"].double()
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    with torch.no_grad():
        made = theirs.generate(
            **inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0, eos_token_id=2
        )
    wanted = cut_at_stop(made[0, inputs["input_ids"].shape[1] :].tolist(), 2)
    answer = ours.generate(input_ids=[text], pixel_values=[paths], max_tokens=MAX_NEW_TOKENS)
    assert list(answer.results()[0][0].tokens) == wanted
