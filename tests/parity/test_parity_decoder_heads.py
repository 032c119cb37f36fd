"""Heads of decoders besides causal LM: question answering, sequence and token classification, and
base models, from directories saved by transformers.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.decoder_cases import (
    check_decoder_head,
    check_sequence_classification,
    make_decoder_case,
)
from support.hf_cases import ModelCase, check_model_outputs

pytestmark = pytest.mark.parity

IDS = {"vocab_size": 31, "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2}
GPT = {**IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def own(family: str, model: str, tiny: dict[str, Any], *, position_ids: bool) -> ModelCase:
    """Return a family whose config has its own key names."""
    return ModelCase(
        config=f"{family}Config", model=model, tiny=tiny, sides=("left", "right"), position_ids=position_ids
    )  # fmt: skip


BLOOM = {**IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}
FAMILIES = {
    "GPT2": own("GPT2", "GPT2LMHeadModel", GPT, position_ids=True),
    "Bloom": replace(own("Bloom", "BloomForCausalLM", BLOOM, position_ids=False), eager=True),
    "Mistral": make_decoder_case("Mistral", sliding_window=3),
    "GPTJ": own("GPTJ", "GPTJForCausalLM", {**GPT, "rotary_dim": 4}, position_ids=True),
    **{f: make_decoder_case(f) for f in ("Llama", "Qwen2", "SmolLM3", "Nemotron", "GPTNeoX")},
    # of the first seed, the end of a text of one token is near 0
    "Qwen3": replace(make_decoder_case("Qwen3"), seed=1),
    "OPT": make_decoder_case("OPT", ffn_dim=40, word_embed_proj_dim=16, do_layer_norm_before=False),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_question_answering(family: str, tmp_path: Path) -> None:
    check_decoder_head(FAMILIES[family], "ForQuestionAnswering", tmp_path)


@pytest.mark.parametrize("family", ["GPT2", "Bloom", "Mistral", "Llama", "SmolLM3"])
def test_token_classification(family: str, tmp_path: Path) -> None:
    check_decoder_head(FAMILIES[family], "ForTokenClassification", tmp_path)


@pytest.mark.parametrize("family", ["GPT2", "Bloom", "Mistral", "Llama"])
def test_base_models(family: str, tmp_path: Path) -> None:
    check_decoder_head(FAMILIES[family], "Model", tmp_path)


@pytest.mark.parametrize("family", ["GPT2", "Bloom", "Mistral", "Llama", "SmolLM3"])
def test_sequence_classification(family: str, tmp_path: Path) -> None:
    check_sequence_classification(FAMILIES[family], tmp_path)


UNTIED = {
    "gpt2": replace(FAMILIES["GPT2"], tiny=GPT | {"tie_word_embeddings": False}),
    "bloom": replace(FAMILIES["Bloom"], tiny=BLOOM | {"tie_word_embeddings": False}),
    "mistral": make_decoder_case("Mistral", sliding_window=None, tie_word_embeddings=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNTIED.values(), ids=UNTIED)
def test_untied_embeddings(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)
