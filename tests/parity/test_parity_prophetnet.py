"""ProphetNet, from directories saved by transformers.

For more than one target token at once, the class adds the position bias of other positions and heads
to the scores of the predicting streams. The tests of scores repair this; `generate`, which passes one
token at a time, is compared as it is.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.hf_cases import ModelCase, check_model_outputs, check_translation
from support.hf_encoder_decoder_cases import TRANSLATION_SAMPLES, make_translation_case
from support.padded_batches import PaddingMask, TokenIds, make_samples
from transformers.models.prophetnet.modeling_prophetnet import ProphetNetNgramSelfAttention

import specc

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 24, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32,
    "max_position_embeddings": 32, "num_buckets": 8, "relative_max_distance": 12, "pad_token_id": 0,
    "decoder_start_token_id": 29, "eos_token_id": 2,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "prophetnet": {},
    "three streams, untied": {"ngram": 3, "tie_word_embeddings": False, "activation_function": "relu"},
    "one stream, few buckets": {"ngram": 1, "num_buckets": 4, "relative_max_distance": 3},
}  # fmt: skip
PADDED = {"padding 5": {"pad_token_id": 5}}


def case(model: str = "ForConditionalGeneration", **more: Any) -> ModelCase:
    # a mask in float32 times the smallest float64 is NaN
    made = make_translation_case("ProphetNet", model, **{**SMALL, **more}).case
    return replace(made, samples=TRANSLATION_SAMPLES, seed=1, weight_scale=1.5, float32_only=True)


def compute_predict_bias(
    attention: Any, hidden: torch.Tensor, weights: torch.Tensor, _: Any, buckets: torch.Tensor
) -> torch.Tensor:
    """Return the position bias [batch, stream, head, query, key] of the predicting streams."""
    if buckets is None:
        return PUBLISHED(attention, hidden, weights, _, buckets)
    bias = attention.relative_pos_embeddings(hidden)
    bias = bias.unflatten(-1, (attention.num_buckets, attention.num_attn_heads))
    index = buckets[:, None, None].long().expand(weights.shape)
    return bias.permute(0, 2, 4, 1, 3).gather(4, index)


PUBLISHED = ProphetNetNgramSelfAttention.get_predict_relative_pos_embeddings


@pytest.fixture
def repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "get_predict_relative_pos_embeddings"
    monkeypatch.setattr(ProphetNetNgramSelfAttention, name, compute_predict_bias)


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("name", VARIANTS | PADDED)
def test_scores(name: str, tmp_path: Path) -> None:
    check_model_outputs(case(**(VARIANTS | PADDED)[name]), tmp_path)


@pytest.mark.parametrize("name", VARIANTS)
def test_generation(name: str, tmp_path: Path) -> None:
    check_translation(case(**VARIANTS[name]), tmp_path)


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("name", VARIANTS)
def test_base_model(name: str, tmp_path: Path) -> None:
    """The model without a head, whose files have no prefix."""
    results = {"last_hidden_state": "tgt", "encoder_last_hidden_state": "src"}
    check_model_outputs(replace(case("Model", **VARIANTS[name]), results=results), tmp_path)


@pytest.mark.usefixtures("repaired")
def test_all_streams(tmp_path: Path) -> None:
    """The hidden states of all predicting streams, which are concatenated along one axis."""
    made = replace(case("Model", ngram=3), results={"last_hidden_state_ngram": ""})
    hf_model = made.save_checkpoint(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "m.onnx")
    given = made.samples.get_sample(0)
    with torch.no_grad():
        expected = made.run_published(hf_model, {n: torch.tensor(x) for n, x in given.items()})
    ours = specc.load(tmp_path / "m.onnx").run(**given)
    for name, theirs in expected.items():
        wanted = theirs.numpy()
        assert np.abs(ours[name] - wanted).max() < 1e-5 * np.abs(wanted).max(), name


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize(
    "more", [{}, {"tie_word_embeddings": False}, {"add_cross_attention": False}]
)
def test_standalone_decoder(more: dict[str, Any], tmp_path: Path) -> None:
    fields = {"target": TokenIds("tgt", 29), "target_keep": PaddingMask("tgt")}
    check_model_outputs(
        replace(
            case("ForCausalLM", **more),
            samples=make_samples(fields, {"tgt": (6, 2, 3)}),
            renamed={"target": "input_ids", "target_keep": "attention_mask"},
        ),
        tmp_path,
    )
