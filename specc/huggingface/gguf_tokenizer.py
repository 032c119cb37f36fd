"""The tokenizer in the metadata of GGUF files, as tokenizer.json and tokenizer_config.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from specc.huggingface.tokenizer_settings import ADDED_TOKEN_KEYS, apply_tokenizer_settings
from specc.weights.formats.gguf import open_gguf
from specc.weights.formats.gguf_header import GGUFHeader, Metadata

CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that are matched as a whole."""
MAX_TOKEN = 512
"""Maximum length of a token that is built from others."""
SPACE = "▁"
SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDINGS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class _ByteLevelSplit:
    """A byte-level pre-tokenizer: its expression (empty: GPT-2's), whether digits are split first,
    words that are tokens are not built from merges, and texts are normalized by NFC.
    """

    regex: str = ""
    digits: bool = False
    whole: bool = False
    nfc: bool = False


_GPT2 = _ByteLevelSplit()
_LLAMA3 = _ByteLevelSplit(
    regex=rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_ENDINGS}", whole=True
)
_QWEN2 = _ByteLevelSplit(regex=rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_ENDINGS}", nfc=True)
PRE_TOKENIZERS: Mapping[str, _ByteLevelSplit] = {
    "gpt-2": _GPT2,
    "smollm": _ByteLevelSplit(digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _ByteLevelSplit(regex=_TEKKEN, whole=True),
}
"""By `tokenizer.ggml.pre`."""


@dataclass(frozen=True)
class GGUFTokenizer:
    """A tokenizer.json, and the fields of the tokenizer_config.json that goes with it."""

    text: str
    settings: Mapping[str, object]


def read_gguf_tokenizer(path: str | Path) -> GGUFTokenizer | None:
    """Return the tokenizer of a file; None if it has none, or one of an unknown kind."""
    with open_gguf(path) as file:
        return _convert_tokenizer(file.header)


@lru_cache(maxsize=1)
def _convert_tokenizer(header: GGUFHeader) -> GGUFTokenizer | None:
    metadata = header.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return None
    content = _build_tokenizer(metadata, tokens)
    if content is None:
        return None
    settings = _read_settings(metadata, tokens)
    text = json.dumps(content, ensure_ascii=False)
    return GGUFTokenizer(apply_tokenizer_settings(text, settings).text, settings)


def _build_tokenizer(metadata: Metadata, tokens: list[str]) -> dict[str, Any] | None:
    """Return the content of a tokenizer.json: byte-level BPE, or BPE of SentencePiece."""
    kind, split = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if kind == "gpt2" and split in PRE_TOKENIZERS:
        parts = _build_byte_level(metadata, tokens, PRE_TOKENIZERS[str(split)])
    elif kind == "llama":
        parts = _build_sentencepiece(metadata, tokens)
    else:
        return None
    types = metadata.get("tokenizer.ggml.token_type")
    added = _list_added_tokens(tokens, types if isinstance(types, list) else [])
    return {"version": "1.0", "added_tokens": added, "post_processor": None, **parts}


def _list_added_tokens(tokens: Sequence[str], types: Sequence[object]) -> list[dict[str, Any]]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": number, "content": token, **plain, "special": kind == CONTROL}
        for number, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _read_settings(metadata: Metadata, tokens: list[str]) -> dict[str, object]:
    """Return special tokens by name, whether texts begin and end with them, the chat template."""
    found: dict[str, object] = {}
    for name, key in SPECIAL_TOKENS.items():
        if (token := _token(tokens, metadata.get(f"tokenizer.ggml.{key}"))) is not None:
            found[name] = token
    # as in llama.cpp, texts in SentencePiece vocabularies begin with BOS unless the file denies it
    usual = {"add_bos_token": metadata.get("tokenizer.ggml.model") == "llama"}
    for key in ADDED_TOKEN_KEYS:
        found[key] = metadata.get(f"tokenizer.ggml.{key}", usual.get(key, False))
    template = metadata.get("tokenizer.chat_template")
    return {**found, "chat_template": template} if template is not None else found


def _token(tokens: list[str], number: object) -> str | None:
    """Return the token of an id, if it is one."""
    return tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else None


def _build_byte_level(
    metadata: Metadata, tokens: list[str], split: _ByteLevelSplit
) -> dict[str, Any]:
    """Return byte-level BPE."""
    listed = metadata.get("tokenizer.ggml.merges")
    merges = [str(merge).split(" ", 1) for merge in listed] if isinstance(listed, list) else []
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[dict[str, Any]] = [{**byte_level, "use_regex": not split.regex}]
    if split.regex:
        pattern = {"Regex": split.regex}
        first = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        steps.insert(0, first)
    if split.digits:
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    return {
        "normalizer": {"type": "NFC"} if split.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {**byte_level, "use_regex": True},
        "model": _make_bpe(tokens, merges, ignore_merges=split.whole),
    }


def _make_bpe(tokens: list[str], merges: list[list[str]], **options: object) -> dict[str, Any]:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {"type": "BPE", "vocab": vocabulary, "merges": merges, **options}


def _build_sentencepiece(metadata: Metadata, tokens: list[str]) -> dict[str, Any]:
    """Return BPE of SentencePiece, whose merges follow from the scores of tokens."""
    gemma = str(metadata.get("general.architecture")).startswith("gemma")
    if gemma:  # runs of spaces are kept
        tokens = [SPACE * len(t) if " " in t and not t.strip() else t for t in tokens]
    merges = _derive_merges(tokens, [] if gemma else _read_scores(metadata))
    prefix = not gemma and metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = _token(tokens, metadata.get("tokenizer.ggml.unknown_token_id", 0))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*steps, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _make_bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }


def _read_scores(metadata: Metadata) -> list[float]:
    """Return the scores of tokens; none if the file has no list of numbers."""
    scores = metadata.get("tokenizer.ggml.scores")
    listed = scores if isinstance(scores, list) else []
    return [float(score) for score in listed if isinstance(score, int | float)]


def _derive_merges(tokens: list[str], scores: list[float]) -> list[list[str]]:
    """Return all pairs of tokens that make a token: those of the best one first, by score, or by id
    without scores.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    ranks = [-score for score in scores] if len(scores) == len(tokens) else range(len(tokens))
    found = []
    for rank, token in zip(ranks, tokens, strict=True):
        for at in range(1, min(len(token), MAX_TOKEN)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                found.append((rank, ids[token], ids[left], ids[right], [left, right]))
    return [merge for *_, merge in sorted(found, key=lambda m: m[:4])]
