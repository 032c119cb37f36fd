"""Truncation equals the package tokenizers for every maximum length."""

from itertools import product

import pytest

from specc.preprocessing.text_batches_and_windows import TokenizedText, truncate_encoding

tokenizers = pytest.importorskip(
    "tokenizers", reason="requires the package tokenizers: pip install -e '.[text]'"
)
VOCABULARY = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5, "d": 6}


@pytest.mark.parametrize("text", ["", "a", "a b c d"])
@pytest.mark.parametrize("template", ["[CLS] $A [SEP]", "[CLS] [CLS] $A", "$A [SEP]", "$A"])
def test_truncation_equals_the_package(text: str, template: str) -> None:
    """If the maximum is below the number of special tokens, nothing is truncated."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    whole = made.encode(text)
    found = TokenizedText(
        ids=tuple(whole.ids),
        type_ids=tuple(whole.type_ids),
        offsets=tuple(whole.offsets),
        special_tokens_mask=tuple(map(bool, whole.special_tokens_mask)),
        sequence_ids=tuple(whole.sequence_ids),
        word_ids=tuple(whole.word_ids),
    )
    for most, side in product(range(1, 8), ["left", "right"]):
        made.enable_truncation(most, direction=side)
        truncated = list(truncate_encoding(found, most, side == "left").ids)
        assert truncated == made.encode(text).ids, (most, side)
