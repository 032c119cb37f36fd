"""How much longer the replacements of a `tokenizer.json` can make a text: forty that double it leave no memory."""

import re
from math import prod
from typing import Any

MOST_GROWTH = 1024
"""Times longer that all replacements together may make a text, at worst (E0941)."""
NESTED = ("normalizers", "decoders")


def growth(content: dict[str, Any]) -> int:
    """The larger of what the normalizer does to a text and the decoder to each token, at worst."""
    return max(_growth(content.get("normalizer")), _growth(content.get("decoder")))


def _growth(step: Any) -> int:
    if not isinstance(step, dict):
        return 1
    for name in NESTED:
        if isinstance(step.get(name), list):
            return prod(_growth(inner) for inner in step[name])
    return _replacement(step) if step.get("type") == "Replace" else 1


def _replacement(step: dict[str, Any]) -> int:
    """Characters that stand for the fewest that a replacement takes away."""
    content, pattern = step.get("content"), step.get("pattern")
    length = len(content) if isinstance(content, str) else 0
    if isinstance(pattern, dict) and isinstance(pattern.get("String"), str) and pattern["String"]:
        return max(1, -(-length // len(pattern["String"])))
    return 1 + length if _takes_nothing(pattern) and length > 1 else max(1, length)


def _takes_nothing(pattern: Any) -> bool:
    """Whether a pattern may match between two characters; so it is assumed of one that Python cannot read."""
    try:
        return bool(re.compile(str(pattern["Regex"])).fullmatch(""))
    except (re.error, KeyError, TypeError, OverflowError, RecursionError):
        return True
