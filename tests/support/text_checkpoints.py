"""Tiny random text models with tokenizer files, saved as checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from support.published_models import randomize_weights
from support.tokenizer_files import LINES

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ENCODER_SIZES: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 130,
}  # fmt: skip


def list_input_names(*, segments: bool) -> list[str]:
    """Return the `model_input_names` of a tokenizer."""
    more = ["token_type_ids"] if segments else []
    return ["input_ids", *more, "attention_mask"]


def make_wordpiece_tokenizer(*, segments: bool) -> Any:
    """Return a BERT tokenizer with a mask token."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.train_from_iterator(
        LINES[:3],
        trainers.WordPieceTrainer(vocab_size=180, special_tokens=BERT_TOKENS, show_progress=False),
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=list_input_names(segments=segments),
    )


def make_byte_bpe_tokenizer(*, segments: bool) -> Any:
    """Return a RoBERTa tokenizer: byte-level BPE, two separators between a pair."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=alphabet,
        special_tokens=ROBERTA_TOKENS,
        show_progress=False,
    )
    made.train_from_iterator(LINES, trainer)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        sep_token="</s>",
        cls_token="<s>",
        pad_token="<pad>",
        mask_token="<mask>",
        model_input_names=list_input_names(segments=segments),
    )


def make_unigram_tokenizer(*, segments: bool) -> Any:
    """Return a DeBERTa tokenizer: unigram pieces without prefix inside words."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=BERT_TOKENS, unk_token="[UNK]", show_progress=False
    )
    made.train_from_iterator(LINES[:3], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=list_input_names(segments=segments),
    )


TOKENIZERS = {
    "wordpiece": make_wordpiece_tokenizer,
    "byte_bpe": make_byte_bpe_tokenizer,
    "unigram": make_unigram_tokenizer,
}


@dataclass(frozen=True)
class TextCheckpoint:
    """The prefix of a family's class names, its config values and its kind of tokenizer."""

    name: str
    tokenizer: str
    more: Mapping[str, Any]
    segments: bool = False
    """Whether the tokenizer returns token types."""

    def save(self, head: str, directory: Path, **config: Any) -> tuple[Any, Any]:
        """Save a random model of a head with its tokenizer, and return both."""
        tokenizer = TOKENIZERS[self.tokenizer](segments=self.segments)
        values = {**ENCODER_SIZES, **self.more, **config}
        values = {k: v for k, v in values.items() if v is not None}
        kind = getattr(transformers, f"{self.name}Config")
        made = kind(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **values)
        torch.manual_seed(0)
        model = randomize_weights(getattr(transformers, f"{self.name}{head}")(made))
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        # read back: a sinusoidal table is not in the file
        model = type(model).from_pretrained(directory)
        return model.eval(), tokenizer


SEGMENT_SIZES = {"type_vocab_size": 2}
FAMILIES = [
    TextCheckpoint("Bert", "wordpiece", SEGMENT_SIZES, segments=True),
    TextCheckpoint("Albert", "unigram", {**SEGMENT_SIZES, "embedding_size": 24}),
    TextCheckpoint(
        "DebertaV2",
        "unigram",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], **SEGMENT_SIZES},
        segments=True,
    ),
    TextCheckpoint(
        "DistilBert",
        "wordpiece",
        {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40},
    ),
    TextCheckpoint("Electra", "wordpiece", {**SEGMENT_SIZES, "embedding_size": 24}, segments=True),
    TextCheckpoint(
        "Longformer", "byte_bpe", {"attention_window": [8, 8], "sep_token_id": 2}
    ),
    TextCheckpoint("ModernBert", "unigram", {"local_attention": 8, **{
        f"{role}_token_id": number for role, number in
        (("bos", 2), ("eos", 3), ("cls", 2), ("sep", 3))
    }}),
    TextCheckpoint("MPNet", "wordpiece", {}),
    TextCheckpoint("Roberta", "byte_bpe", {}),
    TextCheckpoint("RoFormer", "wordpiece", {**SEGMENT_SIZES, "embedding_size": 24}),
]  # fmt: skip
