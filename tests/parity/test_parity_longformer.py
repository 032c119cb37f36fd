"""`longformer` is transformers' LongformerModel, windows and global rows alike, from the
files that it saves.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.padded import Ids, Keep, samples
from support.published import assert_published, loaded, randomized
from support.spec_models import assert_agrees
from transformers import LongformerConfig, LongformerModel

pytestmark = pytest.mark.parity

GIVEN = samples(
    {
        "input_ids": Ids("seq", 31),
        "attention_mask": Keep("seq"),
        "global_attention_mask": Ids("seq", 2),
        "token_type_ids": Ids("seq", 2),
    },
    {"seq": (23, 1, 14)},
)
RESULTS = {"last_hidden_state": "seq", "pooler_output": ""}
PAD = 31


def model(windows: int | list[int]) -> LongformerModel:
    config = LongformerConfig(
        vocab_size=PAD + 1,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=200,
        type_vocab_size=2,
        attention_window=windows,
        pad_token_id=PAD,
        layer_norm_eps=1e-6,
    )
    return randomized(LongformerModel(config))


@pytest.mark.parametrize("windows", [[6, 10], 4], ids=["each layer", "one for all"])
def test_longformer(windows: int | list[int], tmp_path: Path) -> None:
    theirs = model(windows)
    theirs.save_pretrained(tmp_path)
    ours = loaded("longformer", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = run(theirs, x)
        return {name: made[name] for name in RESULTS}

    assert_published(ours, GIVEN, published, RESULTS)


def run(theirs: LongformerModel, x: Mapping[str, torch.Tensor]) -> Any:
    """Its results; global rows are numbers there, and padding has an id of its own."""
    keep = x["attention_mask"].bool()
    return theirs(
        input_ids=x["input_ids"].where(keep, torch.tensor(PAD)),
        attention_mask=keep.long(),
        global_attention_mask=x["global_attention_mask"].long() * keep,
        token_type_ids=x["token_type_ids"],
    )


@pytest.mark.parametrize("marked", [[], [0], [0, 70, 71, 149], range(60)])
def test_long_texts_are_done_in_blocks(marked: list[int], tmp_path: Path) -> None:
    """Windows of 6 and 10 rows: blocks begin above 128 rows, while few rows are global."""
    theirs = model([6, 10])
    theirs.save_pretrained(tmp_path)
    ours = loaded("longformer", tmp_path)
    theirs.double()
    inputs = long_texts(marked)
    with torch.no_grad():
        wanted = run(theirs, {n: torch.from_numpy(a) for n, a in inputs.items()})
    compiled = ours.compiled.run(**inputs)
    for row, length in enumerate((150, 90)):
        made = compiled["last_hidden_state"][row, :length]
        theirs_made = wanted["last_hidden_state"][row, :length].numpy()
        assert_agrees(made, theirs_made, f"text {row}", 1e-5)


def long_texts(marked: list[int]) -> dict[str, NDArray[Any]]:
    """Two texts of 150 and 90 rows, some of which are global."""
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
