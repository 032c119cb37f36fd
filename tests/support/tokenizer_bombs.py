"""Small tokenizer.json files with exponential cost: normalizers that grow a text, patterns that
backtrack.
"""

import json
from collections.abc import Iterator
from functools import reduce
from typing import Any

A: dict[str, Any] = {"Sequence": {"id": "A", "type_id": 0}}
PAIR = [A, {"Sequence": {"id": "B", "type_id": 0}}]
SPACE_TO = {"type": "Replace", "pattern": {"String": " "}}
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
}
PATTERNS = (r"(a+)+$", r"(.*)*x", r"(.|\s)*y", r"(?:(?:(?:a?){60}){60}){60}", r"(a|aa)+$", r"\w{0,100000}x",
            "(" * 5000 + "a" + ")" * 5000, r"(((a{100}){100}){100}){100}", r"(?<=a)*", r"\p{L}{1,99999}")  # fmt: skip


def chain_normalizers(*steps: dict[str, Any]) -> dict[str, Any]:
    """Return a sequence of normalizers."""
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


def list_growing_texts() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return normalizers that repeatedly make a text longer."""
    yield "bytes of bytes", chain_normalizers(*[{"type": "ByteLevel"}] * 40)
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    yield (
        "bytes before tokens",
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [level] * 40}},
    )
    yield (
        "ligatures",
        chain_normalizers(*[{**SPACE_TO, "content": "\ufdfa"}, {"type": "NFKC"}] * 20),
    )
    yield (
        "decomposed ligatures",
        chain_normalizers(*[{**SPACE_TO, "content": "\ufdfa"}, {"type": "NFKD"}] * 20),
    )
    yield (
        "characters set apart",
        chain_normalizers(*[{**SPACE_TO, "content": "中"}, {**BERT, "lowercase": True}] * 40),
    )
    yield "prepended", chain_normalizers(*[{"type": "Prepend", "prepend": "a" * 1000}] * 1000)
    yield "nested", {"normalizer": reduce(lambda a, _: {"type": "Sequence", "normalizers": [a, a]}, range(12),
                                          {**SPACE_TO, "content": "  "})}  # fmt: skip
    template = {"type": "TemplateProcessing", "single": [A] * 2, "pair": PAIR, "special_tokens": {}}
    yield "template", {"post_processor": {**template, "single": [A] * 100_000}}
    yield ("templates", {"post_processor": {"type": "Sequence", "processors": [template] * 40}})
    many = {"x": {"id": "x", "ids": [0] * 100_000, "tokens": ["x"] * 100_000}}
    single = [{"SpecialToken": {"id": "x", "type_id": 0}}] * 2000 + [A]
    yield ("specials", {"post_processor": {**template, "single": single, "special_tokens": many}})
    yield (
        "replaced after",
        {"decoder": {"type": "Sequence", "decoders": [{**SPACE_TO, "content": "  "}] * 40}},
    )


def list_pattern_bombs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return regular expressions that are slow, large or deep."""
    for pattern in PATTERNS:
        said = {"Regex": pattern}
        split = {"type": "Split", "pattern": said, "behavior": "Isolated", "invert": False}
        yield f"split {pattern[:20]}", {"pre_tokenizer": split}
        yield (
            f"replace {pattern[:20]}",
            chain_normalizers({"type": "Replace", "pattern": said, "content": "z"}),
        )


def list_odd_values() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return deep, long and empty values."""
    yield "deep", {"normalizer": reduce(lambda a, _: {"type": "Sequence", "normalizers": [a]}, range(300),
                                        {"type": "NFC"})}  # fmt: skip
    yield "no length", {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
    yield "digits", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits",
                                       "individual_digits": True}] * 5000}}  # fmt: skip
    yield (
        "no map",
        chain_normalizers({"type": "Precompiled", "precompiled_charsmap": "AAAA" * 1000}),
    )
    yield "long truncation", {"truncation": {"max_length": 2**63, "strategy": "LongestFirst", "stride": 2**62,
                                             "direction": "Right"}}  # fmt: skip
    yield "long padding", {"padding": {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": 2**40,
                                       "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}}  # fmt: skip


def list_model_bombs(model: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return vocabularies."""
    for part in ("continuing_subword_prefix", "end_of_word_suffix"):
        yield f"long {part}", {"model": {**model, part: "#" * 10**6}}
    yield "merges", {"model": {**model, "merges": [["a", "a"]] * 50_000}}
    yield ("largest id", {"model": {**model, "vocab": {**model["vocab"], "zzz": 2**32 - 1}}})
    yield "id beyond", {"model": {**model, "vocab": {**model["vocab"], "zzz": 2**40}}}


def list_tokenizer_bombs(base: str) -> Iterator[tuple[str, bytes]]:
    """Return all of them, each as a change of a valid tokenizer."""
    sound = json.loads(base)
    for name, change in (
        *list_growing_texts(),
        *list_pattern_bombs(),
        *list_odd_values(),
        *list_model_bombs(sound["model"]),
    ):
        yield name, json.dumps({**sound, **change}).encode()
