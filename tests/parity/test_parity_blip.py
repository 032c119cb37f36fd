"""BLIP as transformers computes it: captioning, visual question answering, retrieval and
contrastive embeddings.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.hf_cases import MAX_NEW_TOKENS, ModelCase, check_model_outputs, cut_at_stop
from support.padded_batches import Field, FixedValues, PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights

import specc

pytestmark = pytest.mark.parity

START, STOP = 30, 2
CONFIG: dict[str, Any] = {
    "text_config": {
        "vocab_size": 31, "hidden_size": 16, "encoder_hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 40, "bos_token_id": START, "sep_token_id": STOP,
    },
    "vision_config": {
        "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8,
        "patch_size": 4,
    },
    "projection_dim": 12, "image_text_hidden_size": 10,
}  # fmt: skip
IMAGES: dict[str, Field] = {"pixel_values": FixedValues((3, 8, 8))}
TEXT: dict[str, Field] = {"input_ids": TokenIds("seq", START), "attention_mask": PaddingMask("seq")}
TARGET: dict[str, Field] = {
    "decoder_input_ids": TokenIds("tgt", START),
    "decoder_attention_mask": PaddingMask("tgt"),
}
Inputs = Mapping[str, torch.Tensor]


def saved(head: str, directory: Path, seed: int = 0) -> Any:
    """Return a model with random weights, saved in `directory`."""
    kind = getattr(transformers, f"Blip{head}")
    theirs = randomize_weights(kind(transformers.BlipConfig(**CONFIG)), seed)
    theirs.tie_weights()
    theirs.save_pretrained(directory)
    return kind.from_pretrained(directory).eval().double()


def caption(theirs: Any, x: Inputs) -> Any:
    mask = x["decoder_attention_mask"].long()
    return theirs(x["pixel_values"], x["decoder_input_ids"], mask).logits


def answer(theirs: Any, x: Inputs) -> Any:
    """Return the logits of answers, which the class computes for its loss alone.

    Questions are given one by one: the class attends to their padding.
    """
    made = []
    for row, keep in enumerate(x["attention_mask"]):
        image = theirs.vision_model(x["pixel_values"][row, None])[0]
        ids = x["input_ids"][row, None, keep]
        question = theirs.text_encoder(ids, encoder_hidden_states=image)[0]
        made.append(
            theirs.text_decoder(
                x["decoder_input_ids"][row, None],
                x["decoder_attention_mask"][row, None].long(),
                encoder_hidden_states=question,
            ).logits
        )
    return torch.cat(made)


def match(use_itm_head: bool) -> Callable[[Any, Inputs], Any]:
    def run(theirs: Any, x: Inputs) -> Any:
        mask = x["attention_mask"].long()
        return theirs(x["input_ids"], x["pixel_values"], use_itm_head, mask).itm_score

    return run


def contrast(name: str) -> Callable[[Any, Inputs], Any]:
    def run(theirs: Any, x: Inputs) -> Any:
        mask = x["attention_mask"].long()
        return theirs(x["input_ids"], x["pixel_values"], mask)[name]

    return run


HEADS: dict[str, tuple[str, str, dict[str, Field], dict[str, str], Callable[[Any, Inputs], Any]]]
HEADS = {
    "captioning": ("ForConditionalGeneration", "", TARGET, {"logits": "tgt"}, caption),
    "answering": ("ForQuestionAnswering", "", TEXT | TARGET, {"logits": "tgt"}, answer),
    "matching": ("ForImageTextRetrieval", "", TEXT, {"itm_score": ""}, match(True)),
    "similarity": ("ForImageTextRetrieval", "similarity", TEXT, {"itm_score": ""}, match(False)),
    "contrastive": ("Model", "", TEXT, {"logits_per_text": ""}, contrast("logits_per_text")),
}


@pytest.mark.parametrize("name", HEADS)
def test_outputs(name: str, tmp_path: Path) -> None:
    head, graph, fields, results, run = HEADS[name]
    theirs = saved(head, tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path, graph=graph)
    given = make_samples(IMAGES | fields, {"seq": (7, 2, 4), "tgt": (5, 1, 3)})
    result = next(iter(results))
    assert_matches_float32(ours, given, lambda x: {result: run(theirs, x)}, results)


@pytest.mark.parametrize("tied", [(True, False), (False, True), (False, False)])
def test_tied_output_projection(tied: tuple[bool, bool], tmp_path: Path) -> None:
    """Tied if the model or its text encoder says so."""
    text = CONFIG["text_config"] | {"tie_word_embeddings": tied[1]}
    config = transformers.BlipConfig(
        **CONFIG | {"tie_word_embeddings": tied[0], "text_config": text}
    )
    kind = transformers.BlipForConditionalGeneration
    theirs = randomize_weights(kind(config))
    theirs.tie_weights()
    theirs.save_pretrained(tmp_path)
    theirs = kind.from_pretrained(tmp_path).eval().double()
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    given = make_samples(IMAGES | TARGET, {"tgt": (5, 1, 3)})
    assert_matches_float32(ours, given, lambda x: {"logits": caption(theirs, x)}, {"logits": "tgt"})


@pytest.mark.parametrize("part", ["Vision", "Text"])
def test_encoders(part: str, tmp_path: Path) -> None:
    """Encoders by themselves."""
    texts = make_samples(TEXT, {"seq": (7, 2, 4)})
    case = ModelCase(
        config=f"Blip{part}Config",
        model=f"Blip{part}Model",
        tiny=CONFIG[f"{part.lower()}_config"],
        results={"last_hidden_state": "seq" if part == "Text" else "", "pooler_output": ""},
        samples=texts if part == "Text" else make_samples(IMAGES, {}),
    )
    check_model_outputs(case, tmp_path)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    ("head", "seed"), [("ForConditionalGeneration", 4), ("ForQuestionAnswering", 5)]
)
def test_generation(head: str, seed: int, beams: int, tmp_path: Path) -> None:
    """Captions and answers are those of the class, whose questions have no padding."""
    theirs = saved(head, tmp_path, seed)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    rng = np.random.default_rng(0)
    pixels = rng.standard_normal((3, 3, 8, 8)).astype(np.float32)
    given: dict[str, Any] = {"pixel_values": pixels}
    if "Answering" in head:
        given["input_ids"] = rng.integers(3, START, (3, 5))
    how: dict[str, Any] = {"do_sample": False, "num_beams": beams, "max_new_tokens": MAX_NEW_TOKENS}
    with torch.no_grad():
        made = theirs.generate(
            **{n: torch.tensor(a).double() if n == "pixel_values" else torch.tensor(a) for n, a in given.items()}, **how
        )  # fmt: skip
    wanted = [cut_at_stop(row[1:].tolist(), STOP) for row in made]
    settings: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    if beams > 1:
        settings |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    assert [list(r[0].tokens) for r in ours.generate(**given, **settings).results()] == wanted
    assert len({token for text in wanted for token in text}) > 3, "too few different tokens"


BLIP2: dict[str, Any] = {
    "text_config": {
        "model_type": "opt", "vocab_size": 31, "hidden_size": 16, "ffn_dim": 20, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 40, "word_embed_proj_dim": 16, "bos_token_id": 1,
        "eos_token_id": STOP, "pad_token_id": 1,
    },
    "vision_config": CONFIG["vision_config"],
    "qformer_config": {
        "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 20,
    },
    "num_query_tokens": 4, "image_token_index": 30,
}  # fmt: skip


def saved_blip2(head: str, folder: Path, seed: int = 0) -> Any:
    """Return BLIP-2 with OPT and random weights, saved in `folder`."""
    kind = getattr(transformers, f"Blip2{head}")
    theirs = randomize_weights(kind(transformers.Blip2Config(**BLIP2)), seed)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    return kind.from_pretrained(folder).eval().double()


@pytest.mark.parametrize("head", ["ForConditionalGeneration", "Model"])
def test_blip2(head: str, tmp_path: Path) -> None:
    """Logits of BLIP-2, and generation for prompts that are padded on the left."""
    theirs = saved_blip2(head, tmp_path, seed=1)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    given = make_samples(IMAGES | TEXT, {"seq": (9, 5, 6)})
    for row in given.rows:
        row["input_ids"] = np.maximum(row["input_ids"], 3)
        row["input_ids"][:4] = 30

    def run(x: Inputs) -> dict[str, Any]:
        keep = x["attention_mask"]
        ids = torch.where(keep, x["input_ids"], 1)
        given = {"input_ids": ids, "attention_mask": keep.long()}
        return {"logits": theirs(pixel_values=x["pixel_values"], **given).logits}

    assert_matches_float32(ours, given, run, {"logits": "seq"}, ("left", "right"))
    if head == "Model":
        return
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    x = given.make_batch("left", extra=0)
    ids = np.where(x["attention_mask"], x["input_ids"], 1)
    with torch.no_grad():
        made = theirs.generate(
            torch.tensor(x["pixel_values"]).double(),
            torch.tensor(ids),
            torch.tensor(x["attention_mask"]).long(),
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
        )
    wanted = [cut_at_stop(row[-MAX_NEW_TOKENS:].tolist(), STOP) for row in made]
    answers = specc.load(tmp_path / "package", threads=1).generate(**x, max_tokens=MAX_NEW_TOKENS)
    assert [list(row[0].tokens) for row in answers.results()] == wanted
