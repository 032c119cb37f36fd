"""Each field of a published decoder config that changes results is followed or refused: the long
sweep over all decoder families.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.config_fields import (
    DECODER_SIZES,
    ROTARY,
    FieldCase,
    check_every_field,
    make_text_inputs,
    run_decoder,
)

pytestmark = [pytest.mark.parity, pytest.mark.slow]

PADDED = DECODER_SIZES | {"pad_token_id": 0}
GROUPED = PADDED | {"num_key_value_heads": 2}
PLAIN = {k: v for k, v in PADDED.items() if k != "intermediate_size"}
NAMED = {"vocab_size": 31, "n_positions": 20, "n_embd": 32, "n_layer": 2, "n_head": 4}
NEO = {
    "vocab_size": 31,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "max_position_embeddings": 20,
}
KINDS: dict[str, tuple[Any, ...]] = {
    "window_size": (3,),
    "attention_types": ([[["local"], 2]],),
    "attention_layers": (["local", "global"],),
}
LAYERS: dict[str, tuple[Any, ...]] = {
    "sliding_window_pattern": (2, 1),
    "rope_local_base_freq": (33.0,),
}


def family(
    spec: str, name: str, tiny: dict[str, Any], rotary: bool = True, **others: tuple[Any, ...]
) -> FieldCase:
    """Return a generative family, with fields besides those that its class lists."""
    tried = {**(ROTARY if rotary else {}), **others}
    model = f"{name.removesuffix('Text')}ForCausalLM"
    return FieldCase(spec, f"{name}Config", model, tiny, make_text_inputs, run_decoder, tried)


FAMILIES = [
    # the class adds alibi twice where it is not fused
    replace(family("falcon", "Falcon", PLAIN, num_kv_heads=(2,), new_decoder_architecture=(True,),
                   num_ln_in_parallel_attn=(1, 2)), excluded_fields=("alibi",)),
    family("mpt", "Mpt", {"vocab_size": 31, "d_model": 32, "n_layers": 2, "n_heads": 4}, False, attn_config=(
        {"clip_qkv": 0.5}, {"softmax_scale": 0.3}, {"qk_ln": True}, {"alibi": False}, {"prefix_lm": True})),
    family("gpt_neo", "GPTNeo", {**NEO, "attention_types": [[["global", "local"], 1]]}, False, **KINDS),
    family("olmo", "Olmo", PADDED),
    family("cohere2", "Cohere2", PADDED | {"sliding_window": 5}, sliding_window_pattern=(2, 1)),
    family("glm4", "Glm4", GROUPED | {"head_dim": 16}),
    family("ernie4_5", "Ernie4_5", PADDED | {"head_dim": 8}),
    family("gemma3_text", "Gemma3Text", GROUPED | {"head_dim": 8, "sliding_window": 5}, **LAYERS, _sliding_window_pattern=(2,)),
    family("gpt_neox", "GPTNeoX", PADDED, rotary_pct=(0.5,), rotary_emb_base=(33.0,)),
    family("phi3", "Phi3", PADDED),
    family("qwen2", "Qwen2", GROUPED),
    family("qwen3", "Qwen3", GROUPED | {"head_dim": 8}),
    family("gptj", "GPTJ", NAMED | {"rotary_dim": 4}, False),
    family("opt", "OPT", PLAIN | {"ffn_dim": 40, "word_embed_proj_dim": 32}, False),
    family("phi", "Phi", PADDED),
    family("stablelm", "StableLm", GROUPED),
    family("starcoder2", "Starcoder2", GROUPED),
    family("nemotron", "Nemotron", GROUPED),
    family("granite", "Granite", PADDED),
    family("smollm3", "SmolLM3", GROUPED),
    family("gemma", "Gemma", GROUPED | {"head_dim": 8}),
    family("gemma2", "Gemma2", GROUPED | {"head_dim": 8, "sliding_window": 5}),
    family("cohere", "Cohere", PADDED),
    family("olmo2", "Olmo2", PADDED),
    family("arcee", "Arcee", GROUPED),
    family("ministral", "Ministral", GROUPED | {"sliding_window": 5, "head_dim": 8}),
    family("cwm", "Cwm", GROUPED | {"sliding_window": 5, "head_dim": 8}),
    family("hyperclovax", "HyperCLOVAX", GROUPED),
    family("jais2", "Jais2", GROUPED),
    family("seed_oss", "SeedOss", GROUPED | {"head_dim": 8}),
    family("helium", "Helium", GROUPED | {"head_dim": 8}),
    family("glm", "Glm", GROUPED | {"head_dim": 16}),
    family("olmo3", "Olmo3", PADDED | {"sliding_window": 5}),
    family("exaone4", "Exaone4", GROUPED | {"sliding_window": 5}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Use one thread, since the models are tiny, and no progress bars or messages."""
    threads, level = torch.get_num_threads(), transformers.logging.get_verbosity()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(level)
    transformers.logging.enable_progress_bar()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.spec)
def test_every_field_is_followed_or_refused(family: FieldCase, tmp_path: Path) -> None:
    """Phi-3 supports only the scaling of its own files, so most values are refused."""
    check_every_field(family, tmp_path, max_share=0.5)
