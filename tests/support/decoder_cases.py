"""Causal LMs of transformers in small configurations, and other heads on their decoders."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase, check_model_outputs
from support.published_models import open_weighted_spec

SMALL_DECODER: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
SLIDING_LAYERS = ["sliding_attention", "full_attention"]


def make_decoder_case(family: str, *, eager: bool = False, **more: Any) -> ModelCase:
    """Return the case of a causal LM class in one configuration."""
    return ModelCase(
        eager=eager,
        config=f"{family}Config",
        model=f"{family.removesuffix('Text')}ForCausalLM",
        tiny={**SMALL_DECODER, **more},
        sides=("left", "right"),
        position_ids=True,
    )


def check_decoder_head(base: ModelCase, head: str, directory: Path) -> None:
    """Check a head on the tokens of `base`: `Model`, `ForTokenClassification` or
    `ForQuestionAnswering`.
    """
    results = {
        "Model": {"last_hidden_state": "seq"},
        "ForTokenClassification": {"logits": "seq"},
        "ForQuestionAnswering": {"start_logits": "seq", "end_logits": "seq"},
    }
    check_model_outputs(make_head_case(base, head, results[head]), directory)


def make_head_case(base: ModelCase, head: str, results: Mapping[str, str]) -> ModelCase:
    """Return the case of another head, with three labels."""
    family = base.config.removesuffix("Config")
    if not hasattr(transformers, f"{family}{head}"):
        family = family.removesuffix("Text")
    # a span has a start and an end, independent of the number of labels in the config
    tiny = {**base.tiny, "num_labels": 2 if len(results) > 1 else 3}
    return replace(base, model=f"{family}{head}", results=results, tiny=tiny)


def check_sequence_classification(base: ModelCase, directory: Path) -> None:
    """Check the sequence classification head with right and left padding.

    The transformers class finds the last token by its padding token id, so padding positions
    contain it.
    """
    hf_model = make_head_case(base, "ForSequenceClassification", {}).save_checkpoint(directory)
    ours = open_weighted_spec(str(directory), directory)
    rng = np.random.default_rng(0)
    lengths = np.array([[7], [1], [4]])
    for keep in (np.arange(7) < lengths, np.arange(7) >= 7 - lengths):
        ids = np.where(keep, rng.integers(0, 30, (3, 7)), 30)
        inputs = {"input_ids": ids, "attention_mask": keep}
        x = {n: torch.tensor(v).long() for n, v in inputs.items()}
        if base.position_ids:
            x["position_ids"] = (x["attention_mask"].cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            expected = hf_model(**x).logits
        assert_arrays_close(ours.compiled.run(**inputs)["logits"], expected.numpy(), "logits", 1e-5)
