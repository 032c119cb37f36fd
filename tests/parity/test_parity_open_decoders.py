"""Falcon, MPT, GPT-Neo, OLMo, Command R7B, GLM-4, ERNIE 4.5 and Gemma 3: each folder
that transformers saves is compiled by itself, scores as published under every head,
padded on either side, and writes as published.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from support.decoders import LINEAR, SLIDING, check_classes, check_head, decoder
from support.families import Case, check_scores, check_writing
from transformers.models.mpt import modeling_mpt

pytestmark = pytest.mark.parity

IDS = {"vocab_size": 31, "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2}
NEO = {
    **IDS,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "max_position_embeddings": 64,
}
MPT = {**IDS, "d_model": 32, "n_layers": 2, "n_heads": 4}


NEO_CASE = Case(
    config="GPTNeoConfig", model="GPTNeoForCausalLM", sides=("left", "right"), places=True,
    tiny={**NEO, "attention_types": [[["global", "local"], 1]], "window_size": 3},
)  # fmt: skip
MPT_CASE = Case(
    config="MptConfig",
    model="MptForCausalLM",
    sides=("left", "right"),
    eager=True,
    tiny=MPT,
)


CASES = {
    "gpt_neo": NEO_CASE,
    "mpt": MPT_CASE,
    "olmo": decoder("Olmo"),
    "cohere2": decoder("Cohere2", sliding_window=3, num_hidden_layers=4),
    "glm4": decoder("Glm4", head_dim=16),
    "ernie4_5": decoder("Ernie4_5", head_dim=12),
}  # fmt: skip
MORE = {
    "gpt_neo, runs": replace(NEO_CASE, tiny={
        **NEO, "num_layers": 3, "attention_types": [[["local"], 2], [["global"], 1]], "window_size": 2,
        "intermediate_size": 24, "tie_word_embeddings": False, "activation_function": "relu",
    }),
    "mpt, bounds": replace(MPT_CASE, tiny={
        **MPT, "tie_word_embeddings": False, "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.4},
    }),
    "olmo, bounds": decoder("Olmo", clip_qkv=0.5, attention_bias=True, tie_word_embeddings=True),
    "cohere2, layers": decoder(
        "Cohere2", sliding_window=2, layer_types=SLIDING, attention_bias=True, logit_scale=0.5,
        tie_word_embeddings=False, rope_parameters=LINEAR,
    ),
    "glm4, parts": decoder(
        "Glm4", head_dim=8, attention_bias=False, tie_word_embeddings=True, num_key_value_heads=4,
        rope_parameters=LINEAR | {"partial_rotary_factor": 0.75},
    ),
    "ernie4_5, biases": decoder(
        "Ernie4_5", use_bias=True, head_dim=None, num_key_value_heads=None, tie_word_embeddings=False,
        rope_parameters=LINEAR,
    ),
}  # fmt: skip
FAMILIES = {case.config.removesuffix("Config"): case for case in CASES.values()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_scores(case: Case, tmp_path: Path) -> None:
    check_scores(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE.values(), ids=MORE)
def test_scores_of_further_configurations(case: Case, tmp_path: Path) -> None:
    check_scores(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("steepest", [8, 5])
def test_slopes_of_mpt_as_in_training(
    steepest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six heads, which are no power of two. The class takes `alibi_bias_max` for 8
    whatever the file says, so it is told.
    """
    made = modeling_mpt.build_mpt_alibi_tensor
    monkeypatch.setattr(
        modeling_mpt.MptModel,
        "build_mpt_alibi_tensor",
        lambda _, heads, rows, **how: made(heads, rows, steepest, **how),
    )
    settings = {"alibi_bias_max": steepest}
    tiny = {**MPT, "d_model": 24, "n_heads": 6, "attn_config": settings}
    check_scores(replace(MPT_CASE, tiny=tiny), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_writing(family: str, tmp_path: Path) -> None:
    check_writing(replace(FAMILIES[family], louder=1.5, seed=1), tmp_path)


HEADS = [
    *((f, "Model") for f in FAMILIES),
    *((f, "ForTokenClassification") for f in ("GPTNeo", "Mpt", "Glm4")),
    *((f, "ForQuestionAnswering") for f in ("GPTNeo", "Mpt")),
]


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_heads(family: str, head: str, tmp_path: Path) -> None:
    check_head(FAMILIES[family], head, tmp_path)


@pytest.mark.parametrize("family", ["GPTNeo", "Mpt", "Olmo", "Glm4"])
def test_classes(family: str, tmp_path: Path) -> None:
    check_classes(FAMILIES[family], tmp_path)
