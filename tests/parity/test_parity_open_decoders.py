"""Falcon, MPT, GPT-Neo, OLMo, Command R7B, GLM-4, ERNIE 4.5 and Gemma 3: directories saved by
transformers give the published logits with each head, padded on either side, and the published
generated tokens.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from support.decoder_cases import (
    LINEAR_ROPE,
    SLIDING_LAYERS,
    check_decoder_head,
    check_sequence_classification,
    make_decoder_case,
)
from support.hf_cases import ModelCase, check_generation, check_model_outputs
from support.padded_batches import PaddingMask, TokenIds, make_samples
from transformers.models.mpt import modeling_mpt

pytestmark = pytest.mark.parity

LONG = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (330, 1, 290)}
)
"""Texts whose positions a bfloat16 does not hold."""
IDS = {"vocab_size": 31, "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2}
NEO = {**IDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64}
MPT = {**IDS, "d_model": 32, "n_layers": 2, "n_heads": 4}


NEO_CASE = ModelCase(
    config="GPTNeoConfig", model="GPTNeoForCausalLM", sides=("left", "right"), position_ids=True,
    tiny={**NEO, "attention_types": [[["global", "local"], 1]], "window_size": 3},
)  # fmt: skip
MPT_CASE = ModelCase(
    config="MptConfig", model="MptForCausalLM", sides=("left", "right"), eager=True, tiny=MPT
)


FALCON = {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FALCON_CASE = ModelCase(
    config="FalconConfig", model="FalconForCausalLM", sides=("left", "right"), position_ids=True, tiny=FALCON
)  # fmt: skip
RW = {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True}
GROUPS = {"new_decoder_architecture": True, "num_kv_heads": 2}

TEMPERATURE = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 3,
    "beta_fast": 8.0,
    "beta_slow": 0.5,
    "llama_4_scaling_beta": 0.3,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
CASES = {
    "falcon": FALCON_CASE,
    "gemma3_text": make_decoder_case("Gemma3Text", head_dim=16, sliding_window=3, num_hidden_layers=6),
    "gpt_neo": NEO_CASE,
    "mpt": MPT_CASE,
    "olmo": make_decoder_case("Olmo"),
    "cohere2": make_decoder_case("Cohere2", sliding_window=3, num_hidden_layers=4),
    "glm4": make_decoder_case("Glm4", head_dim=16),
    "ernie4_5": make_decoder_case("Ernie4_5", head_dim=12),
    "arcee": make_decoder_case("Arcee"),
    "seed_oss": make_decoder_case("SeedOss", head_dim=8),
    "helium": make_decoder_case("Helium", head_dim=8),
    "glm": make_decoder_case("Glm", head_dim=16),
    "olmo3": make_decoder_case("Olmo3", sliding_window=3, num_hidden_layers=4),
    "exaone4": make_decoder_case("Exaone4", sliding_window=3, num_hidden_layers=4),
    "ministral": make_decoder_case("Ministral", sliding_window=3, head_dim=8),
    "ministral3": make_decoder_case("Ministral3", head_dim=8, rope_parameters=TEMPERATURE),
    "cwm": make_decoder_case("Cwm", sliding_window=3, num_hidden_layers=4, head_dim=8),
    "hyperclovax": make_decoder_case("HyperCLOVAX", residual_multiplier=0.4, embedding_multiplier=3.0, logits_scaling=0.5),
    "jais2": make_decoder_case("Jais2", head_dim=8),
}  # fmt: skip
MORE = {
    "falcon, groups": replace(FALCON_CASE, tiny=FALCON | GROUPS),
    "falcon, groups behind one norm": replace(FALCON_CASE, tiny={
        **FALCON, **GROUPS, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False, "ffn_hidden_size": 24,
        "rope_parameters": LINEAR_ROPE,
    }),
    "falcon, in turn": replace(FALCON_CASE, tiny=FALCON | {"parallel_attn": False, "multi_query": False}),
    "falcon, bias": replace(FALCON_CASE, tiny=FALCON | RW),
    "falcon, bias of six heads": replace(
        FALCON_CASE, tiny={**FALCON, **RW, "hidden_size": 24, "num_attention_heads": 6}, samples=LONG
    ),
    "falcon, bias and groups": replace(FALCON_CASE, tiny=FALCON | GROUPS | {"alibi": True}),
    "gemma3_text, layers": make_decoder_case(
        "Gemma3Text", head_dim=8, layer_types=SLIDING_LAYERS[::-1], sliding_window=2, attention_bias=True,
        tie_word_embeddings=False, query_pre_attn_scalar=100,
        final_logit_softcapping=3.0, rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 77.0},
        },
    ),
    "gemma3_text, both ways": replace(
        make_decoder_case("Gemma3Text", head_dim=8, layer_types=SLIDING_LAYERS, sliding_window=4, use_bidirectional_attention=True),
        model="Gemma3TextModel", results={"last_hidden_state": "seq"},
    ),
    "gpt_neo, runs": replace(NEO_CASE, tiny={
        **NEO, "num_layers": 3, "attention_types": [[["local"], 2], [["global"], 1]], "window_size": 2,
        "intermediate_size": 24, "tie_word_embeddings": False, "activation_function": "relu",
    }),
    "mpt, bounds": replace(MPT_CASE, tiny={
        **MPT, "tie_word_embeddings": False, "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.4},
    }),
    "olmo, bounds": make_decoder_case("Olmo", clip_qkv=0.5, attention_bias=True, tie_word_embeddings=True),
    "cohere2, layers": make_decoder_case(
        "Cohere2", sliding_window=2, layer_types=SLIDING_LAYERS, attention_bias=True, logit_scale=0.5,
        tie_word_embeddings=False, rope_parameters=LINEAR_ROPE,
    ),
    "glm4, parts": make_decoder_case(
        "Glm4", head_dim=8, attention_bias=False, tie_word_embeddings=True, num_key_value_heads=4,
        rope_parameters=LINEAR_ROPE | {"partial_rotary_factor": 0.75},
    ),
    "arcee, biases": make_decoder_case("Arcee", attention_bias=True, mlp_bias=True, head_dim=12, tie_word_embeddings=True),
    "seed_oss, biases": make_decoder_case("SeedOss", head_dim=12, attention_out_bias=True, mlp_bias=True, rope_parameters=LINEAR_ROPE),
    "helium, biases": make_decoder_case("Helium", head_dim=8, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "glm, parts": make_decoder_case(
        "Glm", head_dim=8, attention_bias=False, tie_word_embeddings=True, num_key_value_heads=4,
        rope_parameters=LINEAR_ROPE | {"partial_rotary_factor": 0.75},
    ),
    "olmo3, rope scaling of full layers": make_decoder_case(
        "Olmo3", layer_types=SLIDING_LAYERS, sliding_window=2, attention_bias=True, tie_word_embeddings=True,
        rope_parameters={"full_attention": LINEAR_ROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 77.0}},
    ),
    "exaone4, full attention alone": make_decoder_case("Exaone4", sliding_window=None, layer_types=["full_attention"] * 2),
    "ministral, layers": make_decoder_case("Ministral", head_dim=12, sliding_window=2, layer_types=SLIDING_LAYERS[::-1], tie_word_embeddings=True),
    "ministral3, window": make_decoder_case("Ministral3", head_dim=12, sliding_window=3, rope_parameters=TEMPERATURE),
    "cwm, layers": make_decoder_case("Cwm", sliding_window=2, layer_types=SLIDING_LAYERS, head_dim=12, mlp_bias=True),
    "hyperclovax, no post-norm": make_decoder_case("HyperCLOVAX", use_post_norm=False, attention_bias=True, mlp_bias=True,
                                         attention_multiplier=0.2, head_dim=12, tie_word_embeddings=True),
    "jais2, no biases": make_decoder_case("Jais2", head_dim=12, attention_bias=False, mlp_bias=False),
    "exaone4, layers": make_decoder_case("Exaone4", sliding_window=2, layer_types=SLIDING_LAYERS[::-1], tie_word_embeddings=True),
    "ernie4_5, biases": make_decoder_case(
        "Ernie4_5", use_bias=True, head_dim=None, num_key_value_heads=None, tie_word_embeddings=False,
        rope_parameters=LINEAR_ROPE,
    ),
}  # fmt: skip
FAMILIES = {case.config.removesuffix("Config"): case for case in CASES.values()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_scores(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE.values(), ids=MORE)
def test_scores_of_further_configurations(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("steepest", [8, 5])
def test_mpt_alibi_slopes(steepest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six heads, not a power of two. The class uses 8 for `alibi_bias_max` whatever the file says,
    so it is set.
    """
    made = modeling_mpt.build_mpt_alibi_tensor
    monkeypatch.setattr(
        modeling_mpt.MptModel,
        "build_mpt_alibi_tensor",
        lambda _, heads, rows, **how: made(heads, rows, steepest, **how),
    )
    settings = {"alibi_bias_max": steepest}
    tiny = {**MPT, "d_model": 24, "n_heads": 6, "attn_config": settings}
    check_model_outputs(replace(MPT_CASE, tiny=tiny), tmp_path)


SEEDS = {"Exaone4": 2}
"""Seeds of weights with which no two tokens of a step are nearly equally likely; 1 elsewhere."""


@pytest.mark.parametrize("family", FAMILIES)
def test_generation(family: str, tmp_path: Path) -> None:
    seed = SEEDS.get(family, 1)
    check_generation(replace(FAMILIES[family], weight_scale=1.5, seed=seed), tmp_path)


HEADS = [
    *((f, "Model") for f in FAMILIES),
    *(
        (f, "ForTokenClassification")
        for f in (
            "Falcon",
            "GPTNeo",
            "Mpt",
            "Glm4",
            "Arcee",
            "SeedOss",
            "Helium",
            "Glm",
            "Exaone4",
            "Ministral",
            "Ministral3",
        )
    ),
    *(
        (f, "ForQuestionAnswering")
        for f in (
            "Falcon",
            "GPTNeo",
            "Mpt",
            "Arcee",
            "SeedOss",
            "Exaone4",
            "Ministral",
            "Ministral3",
        )
    ),
]


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_heads(family: str, head: str, tmp_path: Path) -> None:
    check_decoder_head(FAMILIES[family], head, tmp_path)


CLASSIFIERS = [
    "Falcon",
    "GPTNeo",
    "Mpt",
    "Olmo",
    "Glm4",
    "Gemma3Text",
    "Arcee",
    "SeedOss",
    "Helium",
    "Glm",
    "Olmo3",
    "Exaone4",
    "Ministral",
    "Ministral3",
]


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_sequence_classification(family: str, tmp_path: Path) -> None:
    check_sequence_classification(FAMILIES[family], tmp_path)
