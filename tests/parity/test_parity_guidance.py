"""Classifier-free guidance of models without an encoder equals that of transformers' `generate`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LogitsProcessor

import specc

pytestmark = pytest.mark.parity

SCALE, LENGTH, STEPS = 1.8, 5, 12
PROMPTS = [[5, 9, 3, 7, 8], [7, 2, 4], [11]]
PADDED = torch.tensor([[0] * (LENGTH - len(p)) + p for p in PROMPTS])
MASK = torch.tensor([[0] * (LENGTH - len(p)) + [1] * len(p) for p in PROMPTS])
MODELS: Mapping[str, Callable[[], Any]] = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=60, n_positions=64, n_embd=32, n_layer=2, n_head=4, pad_token_id=0)
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    ),
}


class FullForwardGuidance(LogitsProcessor):
    """Guidance by a full forward pass, because the KV cache of transformers' logits processor is
    not reordered in beam search.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        logits = self.model(input_ids[:, LENGTH - 1 :]).logits[:, -1]
        unconditional = torch.log_softmax(logits, -1)
        return unconditional + SCALE * (scores - unconditional)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (1, 1.4), (1, 0.8), (3, 1.0)])
@pytest.mark.parametrize("name", MODELS)
def test_generated_tokens(
    name: str, beams: int, penalty: float, batch_size: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    hf_model: Any = MODELS[name]().eval()
    hf_model.generation_config.eos_token_id = None
    for parameter in hf_model.parameters():
        parameter.data = 0.3 * torch.randn_like(parameter)
    hf_model.save_pretrained(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    hf_model = hf_model.double()
    guidance: dict[str, Any] = {"guidance_scale": SCALE}
    if beams > 1:
        processor = FullForwardGuidance(hf_model)
        guidance = {"logits_processor": [processor], "renormalize_logits": True}
    settings: dict[str, Any] = {"num_beams": beams} if beams > 1 else {}
    settings |= {"repetition_penalty": penalty} if penalty != 1 else {}
    expected = hf_model.generate(
        PADDED[:batch_size],
        attention_mask=MASK[:batch_size],
        do_sample=False,
        max_new_tokens=STEPS,
        pad_token_id=0,
        **settings,
        **guidance,
    )[:, LENGTH:]
    ours = specc.load(tmp_path / "package", threads=1).generate(
        PROMPTS[:batch_size], max_tokens=STEPS, guidance_scale=SCALE, stop=[], **settings
    )
    assert [list(row[0].tokens) for row in ours.results()] == expected.tolist()
