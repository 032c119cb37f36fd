"""`longformer` matches transformers' Longformer classes, with sliding windows and global
tokens.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase
from support.padded_batches import PaddingMask, Samples, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights
from transformers import LongformerConfig, LongformerModel

pytestmark = pytest.mark.parity

PAD, SEP = 31, 2
GIVEN = make_samples(
    {
        "input_ids": TokenIds("seq", 31),
        "attention_mask": PaddingMask("seq"),
        "global_attention_mask": TokenIds("seq", 2),
        "token_type_ids": TokenIds("seq", 2),
    },
    {"seq": (23, 1, 14)},
)
RESULTS = {"last_hidden_state": "seq", "pooler_output": ""}


TINY: dict[str, Any] = {
    "vocab_size": PAD + 1, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 200, "type_vocab_size": 2, "attention_window": [6, 10],
    "pad_token_id": PAD, "sep_token_id": SEP, "layer_norm_eps": 1e-6,
}  # fmt: skip


def model(windows: int | list[int]) -> LongformerModel:
    return randomize_weights(
        LongformerModel(LongformerConfig(**TINY | {"attention_window": windows}))
    )


@pytest.mark.parametrize("windows", [[6, 10], 4], ids=["each layer", "one for all"])
def test_longformer(windows: int | list[int], tmp_path: Path) -> None:
    theirs = model(windows)
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec("longformer", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = run(theirs, x)
        return {name: made[name] for name in RESULTS}

    assert_matches_float32(ours, GIVEN, published, RESULTS)


def run(theirs: LongformerModel, x: Mapping[str, torch.Tensor]) -> Any:
    """Return the results; the global attention mask has integers, and padding has its own token id."""
    keep = x["attention_mask"].bool()
    return theirs(
        input_ids=x["input_ids"].where(keep, torch.tensor(PAD)),
        attention_mask=keep.long(),
        global_attention_mask=x["global_attention_mask"].long() * keep,
        token_type_ids=x["token_type_ids"],
    )


@pytest.mark.parametrize("marked", [[], [0], [0, 70, 71, 149], range(60)])
def test_blocked_attention(marked: list[int], tmp_path: Path) -> None:
    """Windows of 6 and 10 positions: blocked attention is used above 128 positions if few tokens
    are global.
    """
    theirs = model([6, 10])
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec("longformer", tmp_path)
    theirs.double()
    inputs = long_texts(marked)
    with torch.no_grad():
        wanted = run(theirs, {n: torch.from_numpy(a) for n, a in inputs.items()})
    compiled = ours.compiled.run(**inputs)
    for row, length in enumerate((150, 90)):
        made = compiled["last_hidden_state"][row, :length]
        theirs_made = wanted["last_hidden_state"][row, :length].numpy()
        assert_arrays_close(made, theirs_made, f"text {row}", 1e-5)


def long_texts(marked: list[int]) -> dict[str, NDArray[Any]]:
    """Return two sequences of 150 and 90 tokens, some of which are global."""
    rng = np.random.default_rng(0)
    keep = np.arange(150) < np.array([[150], [90]])
    far = np.zeros((2, 150), np.int64)
    far[:, list(marked)] = 1
    return {
        "input_ids": rng.integers(0, PAD, (2, 150)),
        "attention_mask": keep,
        "global_attention_mask": far * keep,
        "token_type_ids": rng.integers(0, 2, (2, 150)),
    }


ANSWERS = {"start_logits": "seq", "end_logits": "seq"}
HEADS = {
    "ForMaskedLM": {"logits": "seq"},
    "ForSequenceClassification": {"logits": ""},
    "ForTokenClassification": {"logits": "seq"},
    "ForQuestionAnswering": ANSWERS,
}


def questions() -> Samples:
    """Return sequences with three `sep` each: a question, two of them, a context, and one."""
    given = make_samples(
        {"input_ids": TokenIds("seq", PAD), "attention_mask": PaddingMask("seq")},
        {"seq": (23, 5, 14)},
    )
    for row in given.rows:
        ids = row["input_ids"]
        ids[ids == SEP] = 9
        ids[[1, 2, -1]] = SEP
    return given


def told(head: str) -> ModelCase:
    return ModelCase(
        config="LongformerConfig",
        model=f"Longformer{head}",
        tiny={**TINY, "num_labels": 2 if "Question" in head else 3},
    )


@pytest.mark.parametrize("head", HEADS)
def test_heads(head: str, tmp_path: Path) -> None:
    """With a given global attention mask."""
    theirs = told(head).save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    assert_matches_float32(ours, GIVEN, lambda x: run(theirs, x), HEADS[head])


@pytest.mark.parametrize("head", HEADS)
def test_default_global_tokens(head: str, tmp_path: Path) -> None:
    """Without a global attention mask: no tokens, the first, or those of the question."""
    theirs = told(head).save_checkpoint(tmp_path)
    model = open_weighted_spec(str(tmp_path), tmp_path).compiled
    given = questions()
    for x in (given.get_sample(0), given.make_batch()):
        keep = x["attention_mask"]
        ids = torch.tensor(np.where(keep, x["input_ids"], PAD))
        with torch.no_grad():
            wanted = theirs(input_ids=ids, attention_mask=torch.tensor(keep).long())
        made = model.run(**x)
        for name, dim in HEADS[head].items():
            real = keep if dim else ...
            assert_arrays_close(made[name][real], wanted[name].numpy()[real], name, 1e-5)


def test_multiple_choice(tmp_path: Path) -> None:
    """The tokens of the choice, after two `sep`, are global."""
    theirs = told("ForMultipleChoice").save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    rng = np.random.default_rng(0)
    lengths = rng.integers(6, 24, (3, 4, 1))
    ids = rng.integers(SEP + 1, PAD, (3, 4, 23))
    ids[..., 1:3] = SEP
    np.put_along_axis(ids, lengths - 1, SEP, axis=-1)
    keep = np.arange(23) < lengths
    given = {"input_ids": np.where(keep, ids, PAD), "attention_mask": keep}
    with torch.no_grad():
        wanted = theirs(**{n: torch.tensor(v).long() for n, v in given.items()}).logits
    assert_arrays_close(ours.compiled.run(**given)["logits"], wanted.numpy(), "logits", 1e-5)
