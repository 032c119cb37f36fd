"""Tokenizer files that would use too much time or memory: text growth is bounded before any text is
tokenized."""

import json
import subprocess
import sys
from functools import partial
from threading import Event, Thread
from typing import Any, NoReturn

import pytest
from support.tokenizer_files import train_tokenizer

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing import tokenizer_library
from specc.preprocessing.tokenizer_files import HfTokenizer
from specc.preprocessing.tokenizer_library import (
    MAX_GROWTH,
    MAX_OVERDUE_CALLS,
    call_with_timeout,
    compute_max_text_growth,
    count_trie_nodes,
    decode_token_ids,
    parse_tokenizer_file,
    tokenize_text,
)


def make_replacements(count: int, content: str, pattern: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "normalizers": [
            {"type": "Replace", "pattern": pattern, "content": content} for _ in range(count)
        ],
    }


def make_tokenizer_file(**parts: Any) -> bytes:
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
def test_exponential_replacements(pattern: dict[str, str], where: str) -> None:
    step = make_replacements(40, "aa", pattern)
    if where == "decoder":
        step = {"type": "Sequence", "decoders": step["normalizers"]}
    with pytest.raises(SpeccError) as failed:
        parse_tokenizer_file(make_tokenizer_file(**{where: step}), "tokenizer.json")
    assert failed.value.diagnostics[0].code == "E0941"


def test_growth_limit() -> None:
    assert (
        compute_max_text_growth({"normalizer": make_replacements(10, "aa", {"String": "a"})})
        == MAX_GROWTH
    )
    assert (
        compute_max_text_growth({"normalizer": make_replacements(11, "aa", {"String": "a"})})
        == 2 * MAX_GROWTH
    )
    assert parse_tokenizer_file(
        make_tokenizer_file(normalizer=make_replacements(10, "aa", {"String": "a"})),
        "tokenizer.json",
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
def test_published_replacements_do_not_grow(content: str, pattern: dict[str, str]) -> None:
    assert compute_max_text_growth({"normalizer": make_replacements(30, content, pattern)}) == 1


@pytest.mark.parametrize(
    "broken", [None, [], {"type": "Replace"}, {"type": "Sequence", "normalizers": [None, 3]}, "a"]
)
def test_malformed_normalizers(broken: Any) -> None:
    assert compute_max_text_growth({"normalizer": broken, "decoder": broken}) >= 1


def make_added_tokens(content: str, count: int) -> list[dict[str, Any]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [{"id": i + 2, "content": f"{i}{content}", **flags} for i in range(count)]


@pytest.mark.parametrize(
    "parts",
    [
        {"added_tokens": make_added_tokens("x" * 5000, 1000)},
        {
            "added_tokens": make_added_tokens("a" * 50, 100),
            "normalizer": make_replacements(1, "b" * 1000, {"String": "a"}),
        },
        {"model": {"type": "Unigram", "vocab": [[f"{i}" + "x" * 5000, 0] for i in range(1000)]}},
    ],
)
def test_oversized_vocabularies(parts: dict[str, Any]) -> None:
    with pytest.raises(SpeccError) as failed:
        parse_tokenizer_file(make_tokenizer_file(**parts), "tokenizer.json")
    assert failed.value.diagnostics[0].code == "E0941"


def test_shared_prefixes_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_library, "MAX_TRIE_NODES", 0)
    texts = ["x" * length for length in range(1, 400)]
    assert count_trie_nodes(texts) == len(texts)
    texts = [f"{i}" + "x" * 500 for i in range(100)]
    assert count_trie_nodes(texts) == len({t[:n] for t in texts for n in range(1, len(t) + 1)})


QUADRATIC = {
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"Regex": "[a-z]+[0-9]"},
        "behavior": "Isolated",
        "invert": False,
    }
}


@pytest.mark.parametrize(
    ("parts", "text", "why"),
    [
        (QUADRATIC, "a" * 30_000, "takes more than"),
        (
            {"normalizer": make_replacements(1, "b" * 1000, {"String": "a"})},
            "a" * 100_000,
            "a factor of 1000",
        ),
    ],
)
def test_tokenization_time_limit(
    parts: dict[str, Any], text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="requires the package tokenizers")
    monkeypatch.setattr(tokenizer_library, "TIMEOUT_SECONDS", 0)
    record = HfTokenizer(file=parse_tokenizer_file(make_tokenizer_file(**parts), "tokenizer.json"))
    with pytest.raises(SpeccError) as failed:
        tokenize_text(text, record)
    assert failed.value.diagnostics[0].code == "E0941"
    assert why in failed.value.diagnostics[0].title


def test_calls_that_exceed_the_time_limit_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of running threads is bounded however many texts take too long; later texts are
    tokenized."""
    monkeypatch.setattr(tokenizer_library, "TIMEOUT_SECONDS", 0.01)
    overdue: list[Thread] = []
    monkeypatch.setattr(tokenizer_library, "_overdue_calls", overdue)
    ends, started, whys = Event(), list[int](), list[str]()

    def record_failure(why: str) -> NoReturn:
        whys.append(why)
        raise ValueError

    def wait(number: int) -> bool:
        started.append(number)
        return ends.wait(60)

    for number in range(20):
        with pytest.raises(ValueError):
            call_with_timeout(partial(wait, number), 1, record_failure)
    assert started == [*range(MAX_OVERDUE_CALLS)]
    assert [("takes more than" in why) for why in whys] == [
        n < MAX_OVERDUE_CALLS for n in range(20)
    ]
    ends.set()
    for thread in overdue:
        thread.join()
    monkeypatch.setattr(tokenizer_library, "TIMEOUT_SECONDS", 20)
    assert call_with_timeout(lambda: 7, 1, record_failure) == 7


def test_long_texts_equal_the_library() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="requires the package tokenizers")
    content = train_tokenizer("byte_bpe")
    record = HfTokenizer(file=parse_tokenizer_file(content.encode(), "tokenizer.json"))
    text = "a word, and another " * 40
    ids = tokenizers.Tokenizer.from_str(content).encode(text).ids
    assert tokenize_text(text, record) == ids
    assert decode_token_ids(ids, record) == text


PANIC = """
import os, sys
from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.tokenizer_files import HfTokenizer
from specc.preprocessing.tokenizer_library import parse_tokenizer_file, tokenize_text
record = HfTokenizer(file=parse_tokenizer_file(sys.stdin.buffer.read(), "tokenizer.json"))
for text in ("a", "a" * 1000):
    try:
        tokenize_text(text, record)
    except SpeccError as failed:
        print(failed.diagnostics[0].code, flush=True)
    os.write(2, b"later\\n")
"""


def test_panic_of_the_library_is_an_error_without_a_trace() -> None:
    file = make_tokenizer_file(pre_tokenizer={"type": "FixedLength", "length": 0})
    done = subprocess.run([sys.executable, "-c", PANIC], input=file, capture_output=True)
    assert done.stdout.split() == [b"E0908", b"E0908"]
    assert done.stderr.split() == [b"later", b"later"]
