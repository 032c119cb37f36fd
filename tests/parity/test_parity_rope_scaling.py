"""RoPE scaling of published files, in both forms, for sequences beyond the original context length,
compared with the published class.

Dynamic and longrope scaling depend on the longest sequence of a batch in transformers. specc fixes
the length at compile time, so cases are compared in which both choose the same frequencies.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.decoder_cases import make_decoder_case
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase, check_model_outputs
from support.padded_batches import PaddingMask, Side, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec

import specc
from specc.diagnostics.diagnostic import SpeccError

pytestmark = pytest.mark.parity

FEW = 16
"""Tokens of a text before the scaling."""
FIELDS = {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}
BEYOND = make_samples(FIELDS, {"seq": (41, 1, 24)})
WITHIN = make_samples(FIELDS, {"seq": (FEW - 1, 1, 5)})
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 3.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": FEW,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": FEW,
}  # fmt: skip
DIVISORS = {"short_factor": [1.0, 1.1, 1.5, 2.0], "long_factor": [1.2, 3.0, 6.0, 9.0]}
LONG = {"rope_type": "longrope", "rope_theta": 100.0, **DIVISORS}


def case(family: str, rope: dict[str, Any], **more: Any) -> ModelCase:
    """Return a small model that reads sequences beyond its original context length."""
    made = make_decoder_case(
        family, rope_parameters=rope, **{"max_position_embeddings": FEW, **more}
    )
    return replace(made, samples=BEYOND)


def phi3(rope: dict[str, Any], **more: Any) -> ModelCase:
    """Return Phi-3, whose files have the original length next to the scaling."""
    lengths = {"original_max_position_embeddings": FEW, "max_position_embeddings": 64}
    return case("Phi3", rope, **{**lengths, **more})


SAME = {
    "linear": case("Llama", {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}),
    "yarn": case("Llama", YARN),
    "llama3": case("Llama", LLAMA3),
    "part": case("GPTNeoX", {**YARN, "partial_rotary_factor": 0.5}),
}
MORE = {
    "yarn, no length": case("Qwen2", {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"}),
    "yarn, scales": case("Qwen3", YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}),
    "yarn, one scale": case("Mistral", YARN | {"mscale_all_dim": 0.4}),
    "yarn, between pairs": case("Llama", YARN | {"truncate": False, "beta_fast": 8.0, "beta_slow": 0.3}),
    "yarn, factor of attention": case("Llama", YARN | {"attention_factor": 1.3}),
    "yarn, ratio": case("Llama", YARN | {"factor": None}, max_position_embeddings=64),
    "llama3, no length": case("Llama", {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"}),
    "part of glm4": case("Glm4", LLAMA3 | {"partial_rotary_factor": 0.5}, head_dim=16),
    "part of stablelm": case("StableLm", {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0, "partial_rotary_factor": 0.5}),
    "interleaved": case("Ernie4_5", YARN, head_dim=12),
    "of layers": case("Gemma3Text", {
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
    }, head_dim=8, layer_types=["full_attention", "sliding_attention"], sliding_window=9),
    "one of two layers": case(
        "Gemma3Text", {"sliding_attention": LLAMA3}, head_dim=8,
        layer_types=["full_attention", "sliding_attention"], sliding_window=9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME.values(), ids=SAME)
def test_scaling(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE.values(), ids=MORE)
def test_further_scaling(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


SWITCHED = {
    "longrope": phi3(LONG),
    "longrope, of itself": phi3(LONG | {"factor": 4.0, "attention_factor": 1.2}),
    "longrope, part": phi3(
        LONG | {"partial_rotary_factor": 0.5, "short_factor": [1.0, 2.0], "long_factor": [2.0, 7.0]}
    ),
    "longrope of llama": case("Llama", LONG | {"original_max_position_embeddings": FEW}, max_position_embeddings=64),
}  # fmt: skip


@pytest.mark.parametrize("longest", [0, 64])
@pytest.mark.parametrize("case", SWITCHED.values(), ids=SWITCHED)
def test_short_and_long_factors(case: ModelCase, longest: int, tmp_path: Path) -> None:
    """Short sequences use the short factors, long ones the long factors; longer ones are refused."""
    given = BEYOND if longest else WITHIN
    check_model_outputs(replace(case, samples=given, context=longest), tmp_path)
    model = specc.load(tmp_path / "model.onnx", threads=1)
    rows = (longest or FEW) + 1
    ids, keep = np.ones((1, rows), int), np.ones((1, rows), bool)
    with pytest.raises(SpeccError, match="E0912") as refused:
        model.run(input_ids=ids, attention_mask=keep)
    assert any("--context-length" in note for d in refused.value.diagnostics for note in d.notes)


@pytest.mark.parametrize("longest", [0, 40])
def test_dynamic_ntk_scaling(longest: int, tmp_path: Path) -> None:
    """Dynamic scaling by the longest sequence of a batch, as compiled."""
    made = case("Llama", DYNAMIC)
    theirs = made.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path, longest)
    theirs.double()
    given = make_samples(FIELDS, {"seq": (longest or FEW, 1, 9)})
    sides: tuple[Side, ...] = ("left", "right")
    for side in sides:
        x = given.make_batch(side, extra=0)
        wanted = made.run_published(theirs, {n: torch.tensor(v) for n, v in x.items()})
        found = ours.compiled.run(**x)["logits"]
        for row in range(3):
            kept = given.get_positions(row, "seq", found.shape[1], side)
            assert_arrays_close(
                found[row][kept], wanted["logits"][row][kept].detach().numpy(), side
            )
    x = given.get_sample(0)
    wanted = made.run_published(theirs, {n: torch.tensor(v) for n, v in x.items()})
    assert_arrays_close(
        ours.compiled.run(**x)["logits"], wanted["logits"].detach().numpy(), "alone"
    )


OLD: dict[str, tuple[ModelCase, dict[str, Any]]] = {
    "linear": (SAME["linear"], {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 3.0}}),
    "yarn": (
        SAME["yarn"], {"rope_theta": 77.0, "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.3}}
    ),
    "llama3": (SAME["llama3"], {"rope_theta": 500.0, "rope_scaling": LLAMA3 | {"factor": 2.0}}),
    "longrope": (
        replace(SWITCHED["longrope"], context=64),
        {"rope_theta": 1e3, "rope_scaling": {"type": "longrope", **DIVISORS}},
    ),
    "su": (replace(SWITCHED["longrope"], context=64), {"rope_scaling": {"type": "su", **DIVISORS, "original_max_position_embeddings": 999}}),
    "layers": (MORE["of layers"], {
        "rope_theta": 3e5, "rope_local_base_freq": 60.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }),
    "layers without scaling": (MORE["of layers"], {"rope_scaling": None}),
    "part": (SAME["part"], {"rotary_emb_base": 55, "rotary_pct": 0.5}),
    "nothing": (SAME["linear"], {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("made", "old"), OLD.values(), ids=OLD)
def test_older_checkpoints(made: ModelCase, old: dict[str, Any], tmp_path: Path) -> None:
    made.save_checkpoint(tmp_path)
    config = tmp_path / "config.json"
    data = json.loads(config.read_text())
    del data["rope_parameters"]
    config.write_text(json.dumps({**data, **old}))
    theirs = getattr(transformers, made.model).from_pretrained(tmp_path).eval().double()
    ours = open_weighted_spec(str(tmp_path), tmp_path, made.context)
    assert_matches_float32(
        ours, made.samples, lambda x: made.run_published(theirs, x), made.results, made.sides
    )
