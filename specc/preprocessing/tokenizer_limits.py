"""Bounds on what a tokenizer.json may cost: growth of a text, memory to load it, time."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from math import prod
from threading import Thread
from typing import NoReturn, TypeVar

Result = TypeVar("Result")
MAX_GROWTH = 1024
"""Maximum factor by which all steps of one kind together may lengthen a text (E0941)."""
NESTED_KEYS = ("normalizers", "pretokenizers", "processors", "decoders")
TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def max_text_growth(content: Mapping[str, object]) -> int:
    """Return the largest factor by which one part of a tokenizer may lengthen a text."""
    return max(_growth(content.get(part)) for part in TOKENIZER_PARTS)


def _growth(step: object) -> int:
    if not isinstance(step, dict):
        return 1
    nested = next((step[name] for name in NESTED_KEYS if isinstance(step.get(name), list)), None)
    if nested is not None:
        return prod(map(_growth, nested))
    rule = GROWTH_RULES.get(str(step.get("type")))
    return rule(step) if rule else 1


def _replacement(step: Mapping[str, object]) -> int:
    """Return how many characters replace the fewest that a pattern matches."""
    match step:
        case {"content": str(content), "pattern": {"String": str(text)}} if text:
            return max(1, -(-len(content) // len(text)))
        case {"content": str(content)} if len(content) > 1:
            return len(content) + _matches_nothing(step.get("pattern"))
    return 1


def _matches_nothing(pattern: object) -> bool:
    """Return whether a pattern may match between two characters; true if Python cannot read it."""
    match pattern:
        case {"Regex": str(text)}:
            with suppress(re.error, OverflowError, RecursionError):
                return bool(re.compile(text).fullmatch(""))
    return True


def _template(step: Mapping[str, object]) -> int:
    """Return the pieces of a template: 1 for a text, the count of its ids for a special token."""
    match step:
        case {"single": list(pieces), "special_tokens": dict(known)}:
            return max(1, sum(_piece_size(piece, known) for piece in pieces))
        case {"single": list(pieces)}:
            return max(1, len(pieces))
    return 1


def _piece_size(piece: object, known: Mapping[str, object]) -> int:
    match piece:
        case {"SpecialToken": {"id": name}}:
            match known.get(str(name)):
                case {"ids": list(ids)}:
                    return len(ids)
    return 1


def _mapped(step: Mapping[str, object]) -> int:
    """Return the longest text in a sentencepiece map: its size, a table, zero-terminated texts."""
    try:
        data = base64.b64decode(str(step["precompiled_charsmap"]))
    except (KeyError, ValueError):
        return 1
    texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(1, *map(len, texts))


GROWTH_RULES: Mapping[str, Callable[[Mapping[str, object]], int]] = {
    "Replace": _replacement,
    "Prepend": lambda step: 1 + len(str(step.get("prepend") or "")),
    "Precompiled": _mapped,
    "TemplateProcessing": _template,
    # a byte that is no ASCII letter becomes a two-byte character
    "ByteLevel": lambda _: 2,
    "Metaspace": lambda _: 2,  # adds one character per word
    "NFKC": lambda _: 18,  # U+FDFA
    "NFKD": lambda _: 18,
    "NFC": lambda _: 3,  # U+1D160
    "NFD": lambda _: 4,  # U+1F82
    "Lowercase": lambda _: 2,  # U+0130
    # one letter becomes four by decomposition, or gets a space on either side
    "BertNormalizer": lambda _: 12,
}
"""Factor by which a step may lengthen a text; steps of other kinds do not."""

MAX_TRIE_NODES = 1 << 22
"""Maximum number of trie nodes of a vocabulary (E0941). The `tokenizers` package takes up to 290
bytes for each; 900 000 pieces of natural language have about 3 million.
"""
MAX_NORMALIZED = 1 << 25
"""Maximum number of characters that a text may have after all steps of one kind (E0941). The
`tokenizers` package takes up to 32 bytes for each.
"""
UNWATCHED_LENGTH = 256
"""Number of characters or ids up to which the package is called without a time limit, because
starting a thread costs as much as the call.
"""
SECONDS = 20
"""Time limit of a call, to which 20 µs per character are added; usual tokenizers take 1 µs."""


def check_tokenizer_limits(
    content: Mapping[str, object], complain: Callable[[str], NoReturn]
) -> None:
    """Reject a tokenizer that would exhaust memory, loaded or with a short text."""
    if max_text_growth(content) > MAX_GROWTH:
        complain(f"it can make a text more than {MAX_GROWTH} times as long")
    texts = _added_texts(content.get("added_tokens"))
    if sum(map(len, texts)) * _growth(content.get("normalizer")) > MAX_TRIE_NODES:
        complain(f"its added tokens have more than {MAX_TRIE_NODES} characters")
    match content.get("model"):
        case {"vocab": list(pieces)}:
            if count_trie_nodes(_piece_texts(pieces)) > MAX_TRIE_NODES:
                complain(f"its vocabulary has more than {MAX_TRIE_NODES} different beginnings")


def _added_texts(tokens: object) -> list[str]:
    """Return the texts of added tokens."""
    entries = tokens if isinstance(tokens, list) else []
    return [str(entry.get("content")) for entry in entries if isinstance(entry, dict)]


def _piece_texts(pieces: Iterable[object]) -> list[str]:
    """Return the texts of a Unigram vocabulary, a list of texts with their scores."""
    return [str(piece[0]) for piece in pieces if isinstance(piece, list) and piece]


def count_trie_nodes(texts: list[str]) -> int:
    """Return how many different prefixes texts have, or an upper bound within MAX_TRIE_NODES."""
    total = sum(map(len, texts))
    if total <= MAX_TRIE_NODES:
        return total
    texts = sorted(texts)
    return total - sum(_common_length(a, b) for a, b in pairwise(texts))


def _common_length(first: str, second: str) -> int:
    """Return the length of the longest common prefix."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def call_with_time_limit(
    call: Callable[[], Result], size: int, complain: Callable[[str], NoReturn]
) -> Result:
    """Return the result of a call that releases the GIL, for a text of `size` characters or ids.

    Complain after the time limit: the thread ends with the call or with the process.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # a panic in Rust is no `Exception`
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    seconds = SECONDS + size * 20e-6
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        complain(f"it takes more than {seconds:.0f} seconds")
    return results[0]
