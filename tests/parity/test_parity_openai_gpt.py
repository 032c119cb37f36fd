"""The first GPT with all heads, from directories saved by transformers."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.decoder_cases import check_sequence_classification
from support.hf_cases import ModelCase, check_generation, check_model_outputs

pytestmark = pytest.mark.parity

CASE = ModelCase(
    config="OpenAIGPTConfig", model="OpenAIGPTLMHeadModel", sides=("left", "right"), position_ids=True,
    tiny={"vocab_size": 31, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2},
)  # fmt: skip
CASES = {
    "lm": CASE,
    "untied": replace(CASE, tiny={**CASE.tiny, "tie_word_embeddings": False}),
    "body": replace(CASE, model="OpenAIGPTModel", results={"last_hidden_state": "seq"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    check_model_outputs(CASES[name], tmp_path)


def test_sequence_classification(tmp_path: Path) -> None:
    check_sequence_classification(CASE, tmp_path)


def test_generation(tmp_path: Path) -> None:
    check_generation(replace(CASE, weight_scale=3.0), tmp_path)
