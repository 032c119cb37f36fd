"""What is asked of encoders with a decoder, for `support.keep_answers`: the smallest
checkpoint of each.
"""

from dataclasses import replace
from typing import Any

from support.families import VOCAB, Case
from support.kept_texts import Asked
from support.padded import Ids, Keep, samples

TOLD = samples(
    {
        "source": Ids("src", 29),
        "source_keep": Keep("src"),
        "target": Ids("tgt", 29),
        "target_keep": Keep("tgt"),
    },
    {"src": (7, 1, 4), "tgt": (6, 2, 3)},
)
BOTH_SIDES: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 12, "max_position_embeddings": 40,
    "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 29,
    "src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "pad_token_id": 30,
    "decoder_start_token_id": 30,
}  # fmt: skip
LED: dict[str, Any] = {
    "attention_window": 4, "max_encoder_position_embeddings": 20, "max_decoder_position_embeddings": 20,
}  # fmt: skip
MARKED = samples(
    {**TOLD.fields, "global_attention_mask": Ids("src", 2)}, {"src": (9, 1, 5), "tgt": (4, 2, 3)}
)


def translator(family: str, head: str = "ForConditionalGeneration", **more: Any) -> Asked:
    """An encoder with a decoder."""
    case = Case(
        config=f"{family}Config",
        model=f"{family}{head}",
        tiny=more or BOTH_SIDES,
        results={"logits": "tgt"},
        given=TOLD,
        renamed={
            "source": "input_ids",
            "source_keep": "attention_mask",
            "target": "decoder_input_ids",
            "target_keep": "decoder_attention_mask",
        },
        softer={"Attention.q.weight": T5["d_kv"] ** -0.5},
        single=family == "FSMT",
    )
    return Asked(case=case)


TRANSLATORS = {
    "bart": translator("Bart"),
    "mbart": translator("MBart"),
    "marian": replace(translator("Marian", "MTModel"), computed="embed_positions"),
    "pegasus": translator("Pegasus"),
    "blenderbot": translator("Blenderbot"),
    "m2m_100": translator("M2M100"),
    "fsmt": replace(
        translator("FSMT", **BOTH_SIDES, use_cache=False, num_beams=1), computed="embed_positions"
    ),
    "led": replace(
        translator("LED", **BOTH_SIDES, **LED),
        case=replace(translator("LED", **BOTH_SIDES, **LED).case, given=MARKED),
    ),
    "t5": translator("T5", **T5),
    "mt5": translator("MT5", **T5, feed_forward_proj="gated-gelu"),
    "umt5": translator("UMT5", **T5),
    "switch": translator(
        "SwitchTransformers",
        **T5,
        num_experts=3,
        expert_capacity=2,
        num_sparse_encoder_layers=1,
        num_decoder_layers=2,
        num_sparse_decoder_layers=1,
    ),
    "longt5": translator(
        "LongT5",
        **T5,
        encoder_attention_type="transient-global",
        local_radius=2,
        global_block_size=3,
    ),
}
