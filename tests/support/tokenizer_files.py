"""Small tokenizers of the usual kinds, trained on a few lines. Needs the package `tokenizers`."""

import json
from functools import lru_cache

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LINES = [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "Attention is all you need; attention is what you get.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "naïve café, 日本語の文字 and emoji 🙂 too",
    "1 2 3, 10 20 30: numbers, too!",
]
KINDS = ("byte_bpe", "wordpiece", "unigram", "fallback_bpe")


@lru_cache
def train_tokenizer(kind: str) -> str:
    """Return the `tokenizer.json` of a kind."""
    made = {
        "byte_bpe": train_byte_bpe,
        "wordpiece": train_wordpiece,
        "unigram": train_unigram,
        "fallback_bpe": train_fallback_bpe,
    }[kind]()
    return str(made.to_str())


def train_byte_bpe() -> Tokenizer:
    """Train a tokenizer like GPT-2's: byte-level BPE, no special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>"]
    tokenizer.train_from_iterator(
        LINES,
        trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, special_tokens=special, show_progress=False
        ),
    )
    return tokenizer


def train_wordpiece() -> Tokenizer:
    """Train a tokenizer like BERT's: lower case, WordPiece, [CLS] and [SEP] around a text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        LINES[:3],
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def train_unigram() -> Tokenizer:
    """Train a tokenizer like T5's: pieces with a space marker before them, </s> after a text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(LINES[:3], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def train_fallback_bpe() -> Tokenizer:
    """Train a tokenizer like LLaMA's: BPE with byte fallback, <s> before a text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    tokenizer.train_from_iterator(
        LINES[:2], trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return unmark_byte_tokens(tokenizer)


def unmark_byte_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Mark byte tokens as not special: the trainer fixes the position of special tokens only."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))
