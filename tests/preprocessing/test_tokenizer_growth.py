"""Replacements of a tokenizer.json that multiply: what they can do to a text is bounded
before any text is read.
"""

import json
from typing import Any

import pytest

from specc.diagnostics.diagnostic import Failed
from specc.preprocessing.tokenizer_library import MAX_GROWTH, check_tokenizer_file, max_text_growth


def replaced(count: int, content: str, pattern: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "normalizers": [
            {"type": "Replace", "pattern": pattern, "content": content} for _ in range(count)
        ],
    }


def file(**parts: Any) -> bytes:
    model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    empty = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "pre_tokenizer": None,
    }
    return json.dumps(
        {
            **empty,
            "normalizer": None,
            "post_processor": None,
            "decoder": None,
            "model": model,
            **parts,
        }
    ).encode()


@pytest.mark.parametrize(
    "pattern", [{"String": "a"}, {"Regex": "a"}, {"Regex": "a*"}, {"Regex": "."}, {"Regex": "(?<x"}]
)
@pytest.mark.parametrize("where", ["normalizer", "decoder"])
def test_replacements_that_multiply(pattern: dict[str, str], where: str) -> None:
    step = replaced(40, "aa", pattern)
    if where == "decoder":
        step = {"type": "Sequence", "decoders": step["normalizers"]}
    with pytest.raises(Failed) as failed:
        check_tokenizer_file(file(**{where: step}), "tokenizer.json")
    assert failed.value.diagnostics[0].code == "E0941"


def test_the_limit_itself() -> None:
    assert max_text_growth({"normalizer": replaced(10, "aa", {"String": "a"})}) == MAX_GROWTH
    assert max_text_growth({"normalizer": replaced(11, "aa", {"String": "a"})}) == 2 * MAX_GROWTH
    assert check_tokenizer_file(
        file(normalizer=replaced(10, "aa", {"String": "a"})), "tokenizer.json"
    )


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        ("\u2581", {"String": " "}),
        ('"', {"String": "``"}),
        (" ", {"Regex": " {2,}"}),
        ("", {"Regex": "\\p{Mn}*"}),
        ("\u2581", {"Regex": "\\s*"}),
    ],
)
def test_what_published_files_do_is_no_growth(content: str, pattern: dict[str, str]) -> None:
    assert max_text_growth({"normalizer": replaced(30, content, pattern)}) == 1


@pytest.mark.parametrize(
    "broken", [None, [], {"type": "Replace"}, {"type": "Sequence", "normalizers": [None, 3]}, "a"]
)
def test_broken_parts_are_left_to_the_library(broken: Any) -> None:
    assert max_text_growth({"normalizer": broken, "decoder": broken}) >= 1
