"""`t5` matches transformers' T5, MT5, UMT5 and LongT5 classes, in the original form and with the gated MLPs
of version 1.1, `switch_transformers` the SwitchTransformers classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hf_cases import (
    ModelCase,
    check_model_outputs,
    check_translation,
    make_source_head_case,
)
from support.padded_batches import PaddingMask, TokenIds, make_samples

pytestmark = pytest.mark.parity

SOURCE = {"source": TokenIds("src", 31), "source_keep": PaddingMask("src")}
TARGET = {"target": TokenIds("tgt", 31), "target_keep": PaddingMask("tgt")}
GIVEN = make_samples({**SOURCE, **TARGET}, {"src": (15, 1, 4), "tgt": (13, 2, 3)})
"""Texts are longer than the farthest distance that has a bucket of its own."""
RENAMED = {
    "source": "input_ids",
    "source_keep": "attention_mask",
    "target": "decoder_input_ids",
    "target_keep": "decoder_attention_mask",
}
PAD, END = 0, 1
SMALL: dict[str, Any] = {
    "vocab_size": 31, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": PAD,
}  # fmt: skip
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "as it was": ("T5", {}),
    "version 1.1": ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "silu": ("T5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": None}),
    "of many languages": ("MT5", {}),
    "a bias in every layer": ("UMT5", {}),
    "a bias in every layer, version 1.1": ("UMT5", {"tie_word_embeddings": False}),
    "local": ("LongT5", {"local_radius": 2}),
    "transient-global": (
        "LongT5",
        {
            "encoder_attention_type": "transient-global",
            "local_radius": 2,
            "global_block_size": 3,
            "tie_word_embeddings": False,
            "feed_forward_proj": "gated-gelu",
        },
    ),
    "switch": (
        "SwitchTransformers",
        {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 2},
    ),
}
LONG = ["local", "transient-global", "switch"]
"""Forms without classifiers."""


def case(
    form: str,
    model: str = "ForConditionalGeneration",
    results: Mapping[str, str] | None = None,
    **more: Any,
) -> ModelCase:
    """Queries are small, as at the start of training: the published softmax is in float32, and
    scores are not scaled.
    """
    family, settings = FORMS[form]
    return ModelCase(
        config=f"{family}Config",
        model=f"{family}{model}",
        tiny={**SMALL, **settings},
        results=results or {"logits": "tgt"},
        samples=GIVEN,
        renamed=RENAMED,
        sides=("right",) if family == "LongT5" else ("left", "right"),
        suffix_scales={"Attention.q.weight": SMALL["d_kv"] ** -0.5},
        **more,
    )


@pytest.mark.parametrize("form", FORMS)
def test_scores(form: str, tmp_path: Path) -> None:
    check_model_outputs(case(form), tmp_path)


def test_tokens_beyond_the_capacity_of_experts(tmp_path: Path) -> None:
    told = case("switch")
    more = {"expert_capacity": 2, "router_bias": True, "tie_word_embeddings": False}
    check_model_outputs(replace(told, tiny={**told.tiny, **more}, sides=("right",)), tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_generation(form: str, tmp_path: Path) -> None:
    """Encoder and decoder have equally many layers, since the published cache counts the encoder's."""
    told = case(form, seed=3, weight_scale=1.3)
    check_translation(replace(told, tiny={**told.tiny, "num_decoder_layers": 2}), tmp_path)


@pytest.mark.parametrize("form", ["as it was", "switch"])
def test_several_stop_tokens(form: str, tmp_path: Path) -> None:
    """Half of the vocabulary ends a sequence."""
    told = case(form, seed=3, weight_scale=1.3)
    tiny = {**told.tiny, "num_decoder_layers": 2, "eos_token_id": [*range(1, 29, 2)]}
    check_translation(replace(told, tiny=tiny), tmp_path)


@pytest.mark.parametrize("form", ["as it was", "of many languages", "a bias in every layer"])
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForQuestionAnswering"])
def test_heads_with_shifted_inputs(head: str, form: str, tmp_path: Path) -> None:
    family, settings = FORMS[form]
    tiny = {**SMALL, **settings}
    soft = {"Attention.q.weight": SMALL["d_kv"] ** -0.5}
    case = make_source_head_case(
        f"{family}Config", f"{family}{head}", tiny, END, suffix_scales=soft
    )
    check_model_outputs(case, tmp_path)


ENCODERS = {
    "EncoderModel": {"last_hidden_state": "src"},
    "ForTokenClassification": {"logits": "src"},
}
ALONE = make_samples(SOURCE, {"src": (15, 1, 4)})


@pytest.mark.parametrize(
    ("form", "model"),
    [
        (form, model)
        for form in ["as it was", "of many languages", "a bias in every layer", *LONG]
        for model in ENCODERS
        if form not in LONG or model == "EncoderModel"
    ],
)
def test_encoders(model: str, form: str, tmp_path: Path) -> None:
    plain = case(form, model, ENCODERS[model])
    check_model_outputs(replace(plain, samples=ALONE), tmp_path)


@pytest.mark.parametrize("form", ["as it was", "of many languages", "a bias in every layer", *LONG])
def test_base_models(form: str, tmp_path: Path) -> None:
    results = {"last_hidden_state": "tgt", "encoder_last_hidden_state": "src"}
    check_model_outputs(case(form, "Model", results), tmp_path)
