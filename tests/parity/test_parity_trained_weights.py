"""Trained weights saved by transformers, whose magnitudes differ from random ones.
docs/demos/learned/train.py trained them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.hf_cases import MIN_LOGIT_GAP
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec

import specc

pytestmark = pytest.mark.parity
FOLDER = Path(__file__).parents[2] / "docs" / "demos" / "learned" / "llama"
PROMPT = 'The "while" statement is used for'


def theirs() -> Any:
    return transformers.LlamaForCausalLM.from_pretrained(FOLDER).eval().double()


def copied(directory: Path) -> Path:
    """Copy the checkpoint next to the compiled model."""
    for path in FOLDER.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    return directory


def test_weights_are_trained() -> None:
    """Otherwise this file would test no more than random weights do: norm weights are far from 1,
    and embeddings of frequent tokens are longer than those of unused ones.
    """
    weights = {n: p.detach() for n, p in theirs().named_parameters()}
    assert max(float((w - 1).abs().max()) for w in weights.values() if w.dim() == 1) > 0.5
    rows = weights["model.embed_tokens.weight"].norm(dim=1)
    assert float(rows.max() / rows.min()) > 2


def test_logits(tmp_path: Path) -> None:
    """For sequences of different lengths, padded on either side."""
    directory = copied(tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"))
    model = theirs()
    given = make_samples(
        {"input_ids": TokenIds("seq", 1024), "attention_mask": PaddingMask("seq")}, {"seq": (24, 3, 11)}
    )  # fmt: skip
    texts = [PROMPT + " repeated execution as long as an expression is true", "An", PROMPT]
    for row, text in zip(given.rows, texts, strict=True):
        ids = np.array(tokenizer(text)["input_ids"])
        row["input_ids"][: len(ids)] = ids[: len(row["input_ids"])]

    def published(x: Any) -> dict[str, torch.Tensor]:
        keep = x["attention_mask"].long()
        places = (keep.cumsum(1) - 1).clamp(min=0)
        made = model(input_ids=x["input_ids"], attention_mask=keep, position_ids=places)
        return {"logits": made.logits}

    assert_matches_float32(
        open_weighted_spec(str(directory), directory), given, published, {"logits": "seq"}, ("right", "left")
    )  # fmt: skip


def test_generation(tmp_path: Path) -> None:
    """Greedy decoding: the same text from the same prompt."""
    directory = copied(tmp_path)
    specc.compile(directory, tmp_path / "package", graphs="step")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"))
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    with torch.no_grad():
        made = theirs().generate(
            ids, do_sample=False, max_new_tokens=40, output_logits=True,
            return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
    best = np.sort(torch.stack(made.logits).numpy()[:, 0], axis=-1)
    gaps = (best[:, -1] - best[:, -2]) / (best[:, -1] - best[:, 0])
    assert gaps.min() > MIN_LOGIT_GAP, "two tokens are too close: take another prompt"
    wanted = made.sequences[0, ids.shape[1] :].tolist()
    ours = specc.load(tmp_path / "package", threads=1)
    (written,) = ours.generate(PROMPT, max_tokens=40, strategy="greedy").results()
    assert list(written[0].tokens) == wanted
