"""`t5` is transformers' T5ForConditionalGeneration, as it was and with the gated
network of version 1.1.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded import Ids, Keep, samples
from support.published import assert_published, loaded, randomized
from transformers import T5Config, T5ForConditionalGeneration

pytestmark = pytest.mark.parity

SOURCE = {"source": Ids("src", 31), "source_keep": Keep("src")}
TARGET = {"target": Ids("tgt", 31), "target_keep": Keep("tgt")}
GIVEN = samples({**SOURCE, **TARGET}, {"src": (15, 1, 4), "tgt": (13, 2, 3)})


@pytest.mark.parametrize("gated", [False, True], ids=["as it was", "version 1.1"])
def test_t5(gated: bool, tmp_path: Path) -> None:
    """Texts are longer than the farthest distance that has a bucket of its own.

    Queries are as small as training starts with: the published softmax is in float32,
    and scores are not scaled.
    """
    config = T5Config(
        vocab_size=31, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_decoder_layers=3, num_heads=4,
        feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated,
        relative_attention_num_buckets=8, relative_attention_max_distance=12, decoder_start_token_id=0,
    )  # fmt: skip
    theirs = randomized(T5ForConditionalGeneration(config))
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if name.endswith("Attention.q.weight"):
                weight *= config.d_kv**-0.5
    theirs.save_pretrained(tmp_path)
    ours = loaded("t5", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs(
            input_ids=x["source"], attention_mask=x["source_keep"].long(), decoder_input_ids=x["target"],
            decoder_attention_mask=x["target_keep"].long(),
        )  # fmt: skip
        return {"logits": made.logits}

    assert_published(ours, GIVEN, published, {"logits": "tgt"}, ("left", "right"))
