"""Mixtures of experts of published models, written in specs: expert selection and weight layouts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.padded_batches import FixedValues, make_samples
from support.published_models import (
    assert_matches_float32,
    list_module_weights,
    open_weighted_spec,
    randomize_weights,
)
from transformers import DeepseekV3Config, GptOssConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from specc.weights.formats.safetensors import write_safetensors

pytestmark = pytest.mark.parity

GIVEN = make_samples({"x": FixedValues((7, 16))}, {"seq": (7, 7, 7)})
HEAD = """
specc 1
model m
config {{ d: int = 16  hidden: int = 12  experts: int = 8  k: int = 3 {more} }}
dims batch, seq
"""
STACKED = """
weights {
  load "experts.gate_proj.weight" = slice("experts.gate_up_proj", axis=1, start=0, stop=hidden)
  load "experts.up_proj.weight" = slice("experts.gate_up_proj", axis=1, start=hidden, stop=2 * hidden)
  load "experts.down_proj.weight" = "experts.down_proj"
}
"""

QWEN = (
    HEAD.format(more="norm: bool = true")
    + """
graph mixture(x: float[batch, seq, d]) -> (y: float[batch, seq, d]) {
  gates, ids = topk(softmax(linear(x, out=experts, bias=false) @ gate), k)
  shares = gates / insert(sum(gates, axis=2), axis=2) if norm else gates
  return route(x, ids, shares, to=gated_mlp(hidden=hidden, act=silu), experts=experts) @ experts
}
"""
    + STACKED
)

# Each group is worth its two best scores; experts of other groups than the best are not
# asked (arXiv:2412.19437, sec. 2.1.2). The bias only chooses.
DEEPSEEK = (
    HEAD.format(more="groups: int = 4  open: int = 2  shared: int = 2  scale: float = 2.5")
    + """
graph mixture(x: float[batch, seq, d]) -> (y: float[batch, seq, d]) {
  scores = sigmoid(linear(x, out=experts, bias=false) @ gate)
  biased = scores + (parameter(shape=[experts], init="zeros") @ gate.e_score_correction_bias)
  grouped = split(biased, into=[groups, experts / groups])
  best, _ = topk(grouped, 2)
  _, kept = topk(sum(best, axis=3), open)
  allowed = any(insert(kept, axis=3) == range(groups), axis=2)
  _, ids = topk(merge(where(insert(allowed, axis=3), grouped, -inf)), k)
  gates = gather(scores, ids, axis=2)
  shares = gates / (insert(sum(gates, axis=2), axis=2) + 1e-20) * scale
  mixed = route(x, ids, shares, to=gated_mlp(hidden=hidden, act=silu), experts=experts) @ experts
  return mixed + (gated_mlp(x, hidden=shared * hidden, act=silu) @ shared_experts)
}
"""
    + STACKED
)

# Columns of gate and up lie side by side, and matrices [in, out].
GPT_OSS = (
    HEAD.format(more="limit: float = 7.0")
    + """
block expert(x: float[batch, seq, d]) -> float[batch, seq, d] {
  both = split(linear(x, out=2 * hidden) @ gate_up_proj, into=[hidden, 2])
  gate = min(both[:, :, :, 0], limit)
  up = clip(both[:, :, :, 1], low=-limit, high=limit)
  return linear((up + 1.0) * gate * sigmoid(1.702 * gate), out=d) @ down_proj
}

graph mixture(x: float[batch, seq, d]) -> (y: float[batch, seq, d]) {
  best, ids = topk(linear(x, out=experts) @ router, k)
  return route(x, ids, softmax(best), to=expert, experts=experts) @ experts
}

weights {
  load "experts.*.weight" = transpose("experts.*")
  load "experts.*.bias" = "experts.*_bias"
}
"""
)

COMMON: dict[str, Any] = {
    "hidden_size": 16,
    "num_experts_per_tok": 3,
    "experts_implementation": "eager",
}


def compare_module(spec: str, theirs: Any, directory: Path, **sets: object) -> None:
    """Compare the module with the spec that loads its weights from a file, for three sequences."""
    path = directory / "mixture.specc"
    path.write_text(spec)
    randomize_weights(theirs)
    with torch.no_grad():
        for name, weight in (*theirs.named_parameters(), *theirs.named_buffers()):
            if weight.dim() == 3:  # all experts in one: as large as each alone would be
                weight *= weight.shape[1] ** 0.5
            if name.endswith("correction_bias"):
                weight += torch.linspace(-0.3, 0.3, 8)[[3, 1, 0, 2, 7, 4, 6, 5]]
    write_safetensors(directory / "model.safetensors", list_module_weights(theirs))
    ours = open_weighted_spec(str(path), directory, **sets)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs(x["x"].double())
        return {"y": made[0] if isinstance(made, tuple) else made}

    assert_matches_float32(ours, GIVEN, published, {"y": ""})


@pytest.mark.parametrize("norm", [True, False])
def test_qwen3_moe(norm: bool, tmp_path: Path) -> None:
    config = Qwen3MoeConfig(**COMMON, moe_intermediate_size=12, num_experts=8, norm_topk_prob=norm)
    compare_module(QWEN, Qwen3MoeSparseMoeBlock(config), tmp_path, norm=norm)


def test_deepseek_v3_group_limited_routing_with_shared_experts(tmp_path: Path) -> None:
    config = DeepseekV3Config(
        **COMMON, moe_intermediate_size=12, n_routed_experts=8, n_group=4, topk_group=2,
        n_shared_experts=2, norm_topk_prob=True, routed_scaling_factor=2.5,
    )  # fmt: skip
    compare_module(DEEPSEEK, DeepseekV3MoE(config), tmp_path)


def test_gpt_oss_with_biases_and_stacked_experts(tmp_path: Path) -> None:
    config = GptOssConfig(**COMMON, intermediate_size=12, num_local_experts=8)
    compare_module(GPT_OSS, GptOssMLP(config), tmp_path)
