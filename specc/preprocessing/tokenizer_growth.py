"""Bound how much a tokenizer.json can expand a text."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

MOST_GROWTH = 1024
"""Times longer that all steps of one kind together may make a text, at worst (E0941)."""
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
NESTED = ("normalizers", "pretokenizers", "processors", "decoders")


def max_text_growth(content: dict[str, Any]) -> int:
    """The most that one part of a tokenizer does to a text, at worst."""
    return max(_growth(content.get(part)) for part in PARTS)


def _growth(step: Any) -> int:
    if not isinstance(step, dict):
        return 1
    for name in NESTED:
        if isinstance(step.get(name), list):
            return prod(_growth(inner) for inner in step[name])
    rule = RULES.get(str(step.get("type")))
    return rule(step) if rule else 1


def _replacement(step: Mapping[str, Any]) -> int:
    """Characters that stand for the fewest that a replacement takes away."""
    content, pattern = step.get("content"), step.get("pattern")
    length = len(content) if isinstance(content, str) else 0
    if isinstance(pattern, dict) and isinstance(pattern.get("String"), str) and pattern["String"]:
        return max(1, -(-length // len(pattern["String"])))
    return 1 + length if _takes_nothing(pattern) and length > 1 else max(1, length)


def _takes_nothing(pattern: Any) -> bool:
    """Whether a pattern may match between two characters.

    So it is assumed of one that Python cannot read.
    """
    try:
        return bool(re.compile(str(pattern["Regex"])).fullmatch(""))
    except (re.error, KeyError, TypeError, OverflowError, RecursionError):
        return True


def _prepended(step: Mapping[str, Any]) -> int:
    text = step.get("prepend")
    return 1 + len(text) if isinstance(text, str) else 1


def _template(step: Mapping[str, Any]) -> int:
    """The pieces of a template: a text is one, a special token as many as it has ids."""
    pieces, known = step.get("single"), step.get("special_tokens")
    if not isinstance(pieces, list):
        return 1
    sizes = {n: _count(t) for n, t in known.items()} if isinstance(known, dict) else {}
    return max(1, sum(_size_of_piece(piece, sizes) for piece in pieces))


def _count(token: Any) -> int:
    ids = token.get("ids") if isinstance(token, dict) else None
    return len(ids) if isinstance(ids, list) else 1


def _size_of_piece(piece: Any, sizes: Mapping[str, int]) -> int:
    special = piece.get("SpecialToken") if isinstance(piece, dict) else None
    return sizes.get(str(special.get("id")), 1) if isinstance(special, dict) else 1


def _mapped(step: Mapping[str, Any]) -> int:
    """The longest text in a map that sentencepiece made.

    It is a table with its size before it, and behind it texts that each end in a zero.
    """
    try:
        data = base64.b64decode(step["precompiled_charsmap"])
    except (KeyError, TypeError, ValueError, binascii.Error):
        return 1
    texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(1, *map(len, texts))


RULES: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "Replace": _replacement,
    "Prepend": _prepended,
    "Precompiled": _mapped,
    "TemplateProcessing": _template,
    # a byte that is no ASCII letter becomes a character of two
    "ByteLevel": lambda _: 2,
    "Metaspace": lambda _: 2,  # one more character a word
    "NFKC": lambda _: 18,  # U+FDFA
    "NFKD": lambda _: 18,
    "NFC": lambda _: 3,  # U+1D160
    "NFD": lambda _: 4,  # U+1F82
    "Lowercase": lambda _: 2,  # U+0130
    # a letter of four after decomposition, or a blank on either side
    "BertNormalizer": lambda _: 12,
}
"""Times longer that one step makes a text. A kind that is not here takes away, cuts, or
leaves the length.
"""
