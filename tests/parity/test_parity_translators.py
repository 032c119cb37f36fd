"""Families of encoders with decoders: BART and its kin, from the folders that
transformers saves.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.families import TOKENS, Case, check_scores
from support.padded import Ids, Keep, samples

import specc

pytestmark = pytest.mark.parity

PAD, START, STOP = 30, 29, 2
GIVEN = samples(
    {
        "source": Ids("src", 29),
        "source_keep": Keep("src"),
        "target": Ids("tgt", 29),
        "target_keep": Keep("tgt"),
    },
    {"src": (7, 1, 4), "tgt": (6, 2, 3)},
)
RENAMED = {
    "source": "input_ids",
    "source_keep": "attention_mask",
    "target": "decoder_input_ids",
    "target_keep": "decoder_attention_mask",
}
SMALL: dict[str, Any] = {
    "vocab_size": 31, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": STOP, "decoder_start_token_id": START,
    "forced_eos_token_id": None,
}  # fmt: skip


def case(family: str, model: str = "ForConditionalGeneration", **more: Any) -> Case:
    return Case(
        config=f"{family}Config",
        model=f"{family}{model}",
        tiny={**SMALL, **more},
        results={"logits": "tgt"},
        given=GIVEN,
        renamed=RENAMED,
        seed=1,
        louder=1.5,
    )


CASES = {
    "bart": case("Bart"),
    "bart, scaled": case("Bart", scale_embedding=True, activation_function="relu"),
    "mbart": case("MBart"),
    "marian": case("Marian", "MTModel", activation_function="silu"),
    "pegasus": case("Pegasus", scale_embedding=True),
    "blenderbot": case("Blenderbot"),
    "m2m_100": case("M2M100"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_scores(case: Case, tmp_path: Path) -> None:
    check_scores(case, tmp_path)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_writing(case: Case, tmp_path: Path) -> None:
    """Twenty tokens, greedily and by beams, for sources of different lengths."""
    theirs = case.saved(tmp_path).double()
    specc.compile(str(tmp_path), tmp_path / "package", parts="step")
    model = specc.load(tmp_path / "package", threads=1)
    given = GIVEN.together("right")
    for beams in (1, 4):
        with torch.no_grad():
            wanted = theirs.generate(
                torch.tensor(given["source"]),
                attention_mask=torch.tensor(given["source_keep"]).long(),
                do_sample=False,
                num_beams=beams,
                max_new_tokens=TOKENS,
                early_stopping=False,
            )
        how: dict[str, Any] = {"max_tokens": TOKENS}
        if beams > 1:
            how |= {"strategy": "beam", "beams": beams, "early_stopping": False}
        made = model.generate(
            source=given["source"], source_keep=given["source_keep"], **how
        )
        for row, texts in enumerate(made.results()):
            text = list(texts[0].tokens)
            theirs_too = wanted[row][1 : len(text) + 1].tolist()
            assert text == theirs_too, f"{beams} beams, text {row}"
            assert np.isin(wanted[row][len(text) + 1 :], [PAD, STOP]).all()
