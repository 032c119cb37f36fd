"""LLaVA matches transformers: image tokens within text, from directories saved by transformers,
with several vision encoders and language models.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from support.hf_cases import MAX_NEW_TOKENS, cut_at_stop, pad_left
from support.padded_batches import PaddingMask, PositionValues, Samples, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights
from tokenizers import Tokenizer, models, pre_tokenizers

import specc

pytestmark = pytest.mark.parity

PICTURE, ROWS = 30, 4
"""The id that stands for a row of a picture, and how many a picture of 2 by 2 has."""
VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 31, "max_position_embeddings": 64, "eos_token_id": 2,
    "pad_token_id": 0, "bos_token_id": 1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {
        "text": ("MistralConfig", {"sliding_window": 5}),
        "vision": ("SiglipVisionConfig", {"vision_use_head": False}),
        "vision_feature_select_strategy": "full",
        "vision_feature_layer": -1,
    },
    "qwen2": {
        "text": ("Qwen2Config", {"tie_word_embeddings": True}),
        "vision_feature_layer": [-2, 1, 0],
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu_pytorch_tanh",
    },
}


def saved(name: str, directory: Path, model: str = "ForConditionalGeneration") -> Any:
    """Save a published model with random weights in `directory`."""
    more = dict(CASES[name])
    text, settings = more.pop("text", ("LlamaConfig", {}))
    vision, seen = more.pop("vision", ("CLIPVisionConfig", {}))
    config = transformers.LlavaConfig(
        text_config=getattr(transformers, text)(**TEXT | settings),
        vision_config=getattr(transformers, vision)(**VISION | seen),
        image_token_index=PICTURE,
        **more,
    )
    kind = getattr(transformers, f"Llava{model}")
    theirs = randomize_weights(kind(config), seed=2)
    theirs.tie_weights()
    theirs.save_pretrained(directory)
    return kind.from_pretrained(directory).eval()


FIELDS = {
    "input_ids": TokenIds("seq", PICTURE),
    "attention_mask": PaddingMask("seq"),
    "pixel_values": PositionValues("images", (3, 8, 8)),
    "image_mask": PaddingMask("images"),
}
ONE = [3, 4, 5, 6], [1, 2, 3, 4], [0, 2, 3, 6]
"""Where a picture's rows stand: in the middle, behind the first word, and in pieces."""
SEVERAL = ([1, 2, 3, 4, 6, 7, 8, 9], [1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12])


def given(places: Sequence[Sequence[int]] = ONE) -> Samples:
    """Return three sequences with image tokens at these positions."""
    lengths = {
        "seq": (9, 5, 7) if places is ONE else (12, 6, 14),
        "images": tuple(len(row) // ROWS for row in places),
    }
    made = make_samples(FIELDS, lengths)
    for row, at in zip(made.rows, places, strict=True):
        row["input_ids"][[*at]] = PICTURE
    return made


def run(theirs: Any, x: Mapping[str, torch.Tensor], result: str) -> Mapping[str, torch.Tensor]:
    keep = x["attention_mask"].long()
    made = theirs(
        input_ids=x["input_ids"],
        # theirs are those of all texts, one after the other
        pixel_values=x["pixel_values"][x["image_mask"]],
        attention_mask=keep,
        position_ids=(keep.cumsum(1) - 1).clamp(min=0),
    )
    return {result: made[result]}


@pytest.mark.parametrize("places", [ONE, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, places: Sequence[Sequence[int]], tmp_path: Path) -> None:
    theirs = saved(name, tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    assert_matches_float32(
        ours,
        given(places),
        lambda x: run(theirs, x, "logits"),
        {"logits": "seq"},
        ("left", "right"),
    )


def test_without_a_head(tmp_path: Path) -> None:
    theirs = saved("llama", tmp_path, "Model")
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    results = {"last_hidden_state": "seq"}
    assert_matches_float32(
        ours, given(), lambda x: run(theirs, x, "last_hidden_state"), results, ("left",)
    )


def prompts(places: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[NDArray[np.float32]]]:
    """Return the token ids of each sequence, and its images."""
    made = given(places)
    texts = [[int(i) for i in row["input_ids"]] for row in made.rows]
    return texts, [row["pixel_values"] for row in made.rows]


def pad_images(pictures: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the images of several sequences, padded with zeros."""
    most = max(map(len, pictures))
    return np.stack([np.pad(p, [(0, most - len(p)), (0, 0), (0, 0), (0, 0)]) for p in pictures])


def generate_published(
    theirs: Any, texts: Sequence[Sequence[int]], pictures: Sequence[NDArray[np.float32]], beams: int
) -> list[list[int]]:
    """Return what transformers' `generate` produces for each prompt."""
    ids, keep = pad_left(texts)
    with torch.no_grad():
        made = theirs.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(keep).long(),
            pixel_values=torch.tensor(np.concatenate(pictures)).double(),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=0,
            eos_token_id=2,
        )
    return [cut_at_stop(row[ids.shape[1] :].tolist(), 2) for row in made]


@pytest.mark.parametrize("places", [ONE, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_generation(name: str, beams: int, places: Sequence[Sequence[int]], tmp_path: Path) -> None:
    theirs = saved(name, tmp_path).double()
    how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    if beams > 1:
        how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    package, one = tmp_path / "package", tmp_path / "one.onnx"
    specc.compile(str(tmp_path), package, graphs="step")
    specc.compile(str(tmp_path), one, graphs="generate", generation_config=how)
    every, seen = prompts(places)
    for count in (1, len(every)):
        texts, pictures = every[:count], seen[:count]
        wanted = generate_published(theirs, texts, pictures, beams)
        ids, keep = pad_left(texts)
        whole = {"input_ids": ids, "pixel_values": pad_images(pictures)}
        told = [(package, whole | {"attention_mask": keep})]
        # One file is not told which tokens exist where the spec has ids alone.
        told += [(one, whole)] if count == 1 else []
        for path, inputs in told:
            made = specc.load(path, threads=1).generate(**inputs, **how)
            got = [list(row[0].tokens) for row in made.results()]
            assert got == wanted, f"{path.name}, {count} texts"
    assert len({token for text in wanted for token in text}) > 3, "too dull to tell"


def processor(directory: Path, name: str) -> Any:
    """Save a published processor of text and images in `directory`."""
    words = {word: n for n, word in enumerate(["<pad>", "<s>", "</s>", *"abcdefgh"])}
    made = Tokenizer(models.WordLevel(words | {"<unk>": 11}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<pad>", "<s>", "</s>", *(f"<{n}>" for n in range(12, 30))])
    made.add_special_tokens(["<image>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", extra_special_tokens={"image_token": "<image>"}
    )
    clip = "vision" not in CASES[name]
    size = {"height": 8, "width": 8}
    pictures = (
        transformers.CLIPImageProcessor(size={"shortest_edge": 8}, crop_size=size)
        if clip
        else transformers.SiglipImageProcessor(size=size)
    )
    whole = transformers.LlavaProcessor(
        pictures,
        tokenizer,
        patch_size=4,
        vision_feature_select_strategy=CASES[name].get("vision_feature_select_strategy", "default"),
        num_additional_image_tokens=int(clip),
    )
    whole.save_pretrained(directory)
    return whole


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_processor(name: str, tmp_path: Path) -> None:
    """Texts with image placeholders and image files give the ids and pixels of the published
    processor.
    """
    theirs = saved(name, tmp_path).double()
    whole = processor(tmp_path, name)
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{n}.png" for n in range(3)]
    for path in paths:
        pixels = rng.integers(0, 255, (13, 11, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    texts = ["a <image> b <image> c", "d e <image>"]
    each = [paths[:2], paths[2:]]
    opened = [[Image.open(path) for path in some] for some in each]
    wanted = whole(
        text=texts, images=opened, padding=True, padding_side="left", return_tensors="pt"
    )
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    made = ours.generate(input_ids=texts, pixel_values=each, max_tokens=MAX_NEW_TOKENS)
    with torch.no_grad():
        written = theirs.generate(
            **{k: v.double() if v.is_floating_point() else v for k, v in wanted.items()},
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=0,
            eos_token_id=2,
        )
    long = wanted["input_ids"].shape[1]
    due = [cut_at_stop(row[long:].tolist(), 2) for row in written]
    assert [list(row[0].tokens) for row in made.results()] == due
    assert len({token for text in due for token in text}) > 3, "too dull to tell"
