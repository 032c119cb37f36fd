"""XLM, FlauBERT and XLNet match transformers with each head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import VOCAB, ModelCase, check_model_outputs
from support.padded_batches import PaddingMask, Samples, Side, TokenIds, make_samples
from support.published_models import open_weighted_spec

pytestmark = pytest.mark.parity

TEXTS = {"input_ids": TokenIds("seq", VOCAB), "attention_mask": PaddingMask("seq")}
XLM: dict[str, Any] = {
    "vocab_size": VOCAB, "emb_dim": 24, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 20, "num_labels": 3,
}  # fmt: skip
XLNET: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 24, "n_layer": 2, "n_head": 4, "d_inner": 40, "num_labels": 3, "use_mems_eval": False,
}  # fmt: skip
HEADS: dict[str, dict[str, str]] = {
    "WithLMHeadModel": {"logits": "seq"},
    "LMHeadModel": {"logits": "seq"},
    "ForSequenceClassification": {"logits": ""},
    "ForTokenClassification": {"logits": "seq"},
    "ForQuestionAnsweringSimple": {"start_logits": "seq", "end_logits": "seq"},
    "Model": {"last_hidden_state": "seq"},
}


class OptionalInputs(ModelCase):
    """A class without the inputs that are -1 on our side."""

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        given = {name: value for name, value in x.items() if (value >= 0).all()}
        with pytest.MonkeyPatch.context() as patch:
            # pre-norm FlauBERT reads the cache of each layer by index, which the cache does not support
            cache = transformers.cache_utils.EncoderDecoderCache
            patch.setattr(cache, "__getitem__", lambda *_: None, raising=False)
            return super().run_published(hf_model, given)


def make_inputs(names: tuple[str, ...], absent: tuple[str, ...] = ()) -> Samples:
    """Return three sequences; absent inputs are -1."""
    fields = {name: TokenIds("seq", 2) for name in (*names, *absent)}
    samples = make_samples({**TEXTS, **fields}, {"seq": (7, 1, 4)})
    for row in samples.rows:
        for name in absent:
            row[name][:] = -1
    return samples


def make_case(family: str, head: str, tiny: Mapping[str, Any], samples: Samples) -> ModelCase:
    """Return the case of one head."""
    sides: tuple[Side, ...] = ("right",)
    if family == "XLNet":
        # its summary reads the first or the last position, padded or not
        summary: tuple[Side, ...] = ("right",) if tiny.get("summary_type") == "first" else ("left",)
        sides = summary if "Sequence" in head else ("left", "right")
    return OptionalInputs(
        config=f"{family}Config",
        model=f"{family}{head}",
        samples=samples,
        results=HEADS.get(head, {}),
        tiny={**tiny, "num_labels": 2 if "Question" in head else 3},
        sides=sides,
        # with a padding mask the causal class supports a batch of one
        eager=tiny.get("attn_type") == "uni",
    )


PLAIN = make_inputs((), ("token_type_ids", "langs"))
TYPED = make_inputs(("token_type_ids",), ("langs",))
LANGUAGES = make_inputs(("token_type_ids", "langs"))
SEGMENTS = make_inputs(("token_type_ids",))
CASES = {
    "xlm": ("XLM", XLM, PLAIN),
    "xlm, languages": ("XLM", {**XLM, "n_langs": 3, "gelu_activation": False, "sinusoidal_embeddings": True}, LANGUAGES),
    "xlm, causal": ("XLM", {**XLM, "causal": True, "summary_activation": "tanh", "tie_word_embeddings": False}, PLAIN),
    "xlm, wide summary": (
        "XLM", {**XLM, "n_langs": 3, "use_lang_emb": False, "summary_proj_to_labels": False, "layer_norm_eps": 0.01}, TYPED,
    ),
    "flaubert": ("Flaubert", {**XLM, "n_langs": 3}, LANGUAGES),
    "flaubert, pre-norm": ("Flaubert", {**XLM, "pre_norm": True}, PLAIN),
    "xlnet": ("XLNet", XLNET, SEGMENTS),
    "xlnet, causal": ("XLNet", {**XLNET, "attn_type": "uni", "ff_activation": "relu", "tie_word_embeddings": False}, SEGMENTS),
    "xlnet, first token": (
        "XLNet", {**XLNET, "summary_type": "first", "summary_activation": "relu", "summary_use_proj": False}, SEGMENTS,
    ),
}  # fmt: skip
EVERY = [
    pytest.param(*case, head, id=f"{name}-{head}", marks=[pytest.mark.slow] * ("," in name))
    for name, case in CASES.items()
    for head in HEADS
    if hasattr(transformers, case[0] + head)
]


@pytest.mark.parametrize(("family", "tiny", "samples", "head"), EVERY)
def test_heads(
    family: str, tiny: Mapping[str, Any], samples: Any, head: str, tmp_path: Path
) -> None:
    check_model_outputs(make_case(family, head, tiny, samples), tmp_path)


@pytest.mark.parametrize("family", ["XLM", "Flaubert", "XLNet"])
def test_multiple_choice(family: str, tmp_path: Path) -> None:
    """Four choices per question, of different lengths; XLNet is padded on the left."""
    tiny = XLNET if family == "XLNet" else XLM
    theirs = make_case(family, "ForMultipleChoice", tiny, PLAIN).save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    rng = np.random.default_rng(0)
    keep = np.arange(7) < rng.integers(1, 8, (3, 4, 1))
    given = {
        "input_ids": rng.integers(6, VOCAB, (3, 4, 7)),
        "attention_mask": keep[..., ::-1].copy() if family == "XLNet" else keep,
        "token_type_ids": rng.integers(0, 2, (3, 4, 7)),
    }
    with torch.no_grad():
        wanted = theirs(**{n: torch.tensor(v).long() for n, v in given.items()}).logits
    assert_arrays_close(ours.compiled.run(**given)["logits"], wanted.numpy(), "logits", 1e-5)
