"""Quantized checkpoints give the logits of transformers with the weights dequantized in float64.

transformers 5.24 cannot run most formats without a GPU, so `support.quantized_checkpoints`
dequantizes. transformers reads MXFP4 itself.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights
from support.quantized_checkpoints import PACKERS, quantize_checkpoint
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, Mxfp4Config

import specc

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)


@pytest.mark.parametrize("name", PACKERS)
def test_llama(name: str, tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    theirs = randomize_weights(LlamaForCausalLM(config))
    theirs.save_pretrained(tmp_path)
    values = quantize_checkpoint(tmp_path, name)
    assert len(values) == 14
    theirs.double()
    with torch.no_grad():
        for weight, value in values.items():
            theirs.get_parameter(weight).copy_(value)
    ours = open_weighted_spec("llama", tmp_path)

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        ids = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {"logits": theirs(**x, position_ids=ids).logits}

    assert_matches_float32(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))


def test_a_package_generates_with_the_codes_of_the_checkpoint(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=30,
    )  # fmt: skip
    theirs = randomize_weights(LlamaForCausalLM(config))
    theirs.save_pretrained(tmp_path)
    values = quantize_checkpoint(tmp_path, "gptq")
    theirs.double()
    with torch.no_grad():
        for weight, value in values.items():
            theirs.get_parameter(weight).copy_(value)
    ids = torch.tensor([[3, 7, 1, 9, 11]])
    wanted = theirs.generate(ids, max_new_tokens=8, do_sample=False)[0, 5:].tolist()
    made = specc.compile(tmp_path, tmp_path / "out", graphs="all")
    assert "int4 weights: codes and scales are those of the checkpoint" in made.remarks
    steps = specc.load(tmp_path / "out").generate(input_ids=ids.numpy(), max_tokens=8)
    assert [int(step.tokens[0]) for step in steps] == wanted


def test_gpt_oss(tmp_path: Path) -> None:
    config = GptOssConfig(
        vocab_size=31, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=3,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 50.0},
    )  # fmt: skip
    randomize_weights(GptOssForCausalLM(config)).save_pretrained(tmp_path)
    draw = torch.Generator().manual_seed(0)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    for name in [n for n in stored if n.endswith("experts.gate_up_proj")]:
        for stem in (name, name.replace("gate_up_proj", "down_proj")):
            experts, wide, out = stored.pop(stem).shape
            blocks = torch.randint(256, (experts, out, wide // 32, 16), generator=draw)
            scales = torch.randint(122, 126, (experts, out, wide // 32), generator=draw)
            stored[f"{stem}_blocks"] = blocks.to(torch.uint8)
            stored[f"{stem}_scales"] = scales.to(torch.uint8)
    save_file(stored, file, {"format": "pt"})
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["lm_head"],
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    theirs = GptOssForCausalLM.from_pretrained(
        tmp_path,
        dtype=torch.float32,
        quantization_config=Mxfp4Config(dequantize=True),
        attn_implementation="eager",
        experts_implementation="eager",
    )
    assert theirs.model.layers[0].mlp.experts.gate_up_proj.shape == (4, 32, 128)
    ours = open_weighted_spec("gpt_oss", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        ids = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {"logits": theirs(**x, position_ids=ids).logits}

    assert_matches_float32(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
