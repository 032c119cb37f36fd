"""LLaVA: a picture's rows among a text's, from the folders that transformers saves, over
several picture sides and language models.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from support.families import TOKENS, ended, padded
from support.padded import Ids, Keep, Numbers, Samples, samples
from support.published import assert_published, loaded, randomized

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


def saved(name: str, folder: Path, model: str = "ForConditionalGeneration") -> Any:
    """A published model, random, as files in `folder`."""
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
    theirs = randomized(kind(config), seed=2)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    return kind.from_pretrained(folder).eval()


def given() -> Samples:
    """Three texts, a picture in the middle, behind the first word, and in pieces."""
    made = samples(
        {
            "input_ids": Ids("seq", PICTURE),
            "attention_mask": Keep("seq"),
            "pixel_values": Numbers((3, 8, 8)),
        },
        {"seq": (9, 5, 7)},
    )
    for row, places in zip(
        made.rows, ([3, 4, 5, 6], [1, 2, 3, 4], [0, 2, 3, 6]), strict=True
    ):
        row["input_ids"][places] = PICTURE
    return made


def run(
    theirs: Any, x: Mapping[str, torch.Tensor], result: str
) -> Mapping[str, torch.Tensor]:
    keep = x["attention_mask"].long()
    made = theirs(
        input_ids=x["input_ids"],
        pixel_values=x["pixel_values"],
        attention_mask=keep,
        position_ids=(keep.cumsum(1) - 1).clamp(min=0),
    )
    return {result: made[result]}


@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path)
    ours = loaded(str(tmp_path), tmp_path)
    theirs.double()
    assert_published(
        ours,
        given(),
        lambda x: run(theirs, x, "logits"),
        {"logits": "seq"},
        ("left", "right"),
    )


def test_without_a_head(tmp_path: Path) -> None:
    theirs = saved("llama", tmp_path, "Model")
    ours = loaded(str(tmp_path), tmp_path)
    theirs.double()
    results = {"last_hidden_state": "seq"}
    assert_published(
        ours, given(), lambda x: run(theirs, x, "last_hidden_state"), results, ("left",)
    )


def prompts() -> tuple[list[list[int]], NDArray[np.float32]]:
    made = given()
    texts = [[int(i) for i in row["input_ids"]] for row in made.rows]
    return texts, np.stack([row["pixel_values"] for row in made.rows])


def written_by(
    theirs: Any, texts: Sequence[Sequence[int]], pixels: NDArray[np.float32], beams: int
) -> list[list[int]]:
    """What transformers' `generate` writes behind each prompt."""
    ids, keep = padded(texts)
    with torch.no_grad():
        made = theirs.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(keep).long(),
            pixel_values=torch.tensor(pixels).double(),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=TOKENS,
            pad_token_id=0,
            eos_token_id=2,
        )
    return [ended(row[ids.shape[1] :].tolist(), 2) for row in made]


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_it_writes_the_same(name: str, beams: int, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path).double()
    how: dict[str, Any] = {"max_tokens": TOKENS}
    if beams > 1:
        how |= {"strategy": "beam", "beams": beams, "early_stopping": False}
    package, one = tmp_path / "package", tmp_path / "one.onnx"
    specc.compile(str(tmp_path), package, parts="step")
    specc.compile(str(tmp_path), one, parts="generate", settings=how)
    every, pixels = prompts()
    for count in (1, len(every)):
        texts, seen = every[:count], pixels[:count]
        wanted = written_by(theirs, texts, seen, beams)
        ids, keep = padded(texts)
        whole = {"input_ids": ids, "pixel_values": seen}
        told = [(package, whole | {"attention_mask": keep})]
        # One file is not told which tokens exist where the spec has ids alone.
        told += [(one, whole)] if count == 1 else []
        for path, inputs in told:
            made = specc.load(path, threads=1).generate(**inputs, **how)
            got = [list(row[0].tokens) for row in made.results()]
            assert got == wanted, f"{path.name}, {count} texts"
    assert len({token for text in wanted for token in text}) > 3, "too dull to tell"
