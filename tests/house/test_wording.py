"""Documentation, messages, help and comments use the vocabulary of PyTorch, transformers, ONNX and LLVM.

The tables map phrases of a private vocabulary to the field's term. Phrases in EVERYWHERE occur neither in pages
and specs nor in Python sources (docstrings, comments, messages, help). Phrases in PAGES_ONLY do not occur in pages
and specs; move a phrase to EVERYWHERE when the last source is free of it.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from specc.cli.main import build_command_parsers, build_parser

ROOT = Path(__file__).parents[2]

EVERYWHERE = {
    "a hundredth": "0.01",
    "as they lie": "in place, zero-copy",
    "bounded softly": "logit soft-capping",
    "few bits": "quantized, low precision",
    "gives way": "is replaced",
    "growing axis": "time axis",
    "halves turn": "half-split RoPE",
    "in the midst": "within",
    "kept apart": "separate",
    "kinds of words": "token types",
    "knows no positions": "NoPE",
    "makes room": "is evicted, is freed",
    "neighbors turn": "interleaved RoPE",
    "neighbours turn": "interleaved RoPE",
    "nobody's": "no one's: name the agent",
    "one's own": "your own",
    "reckon": "compute",
    "reckoned": "computed",
    "row number": "position, index",
    "rows of batch": "batch elements",
    "scale a result": "per-channel scale",
    "scale a row": "per-token scale",
    "scale every": "group size n",
    "shipped spec": "built-in spec",
    "shipped specs": "built-in specs",
    "slips": "mistakes",
    "stands apart": "is independent",
    "stay apart": "are independent",
    "stays apart": "is independent",
    "takes weight and gives nothing": "attention sink",
    "text so far": "generated sequence",
    "texts of unequal age": "continuous batching",
    "turn in pairs": "rotate",
    "unequal length": "different lengths",
    "unequal lengths": "different lengths",
    "what meets": "activation",
    "worked out": "computed, inferred",
}

PAGES_ONLY = {
    "as far as": "up to, if",
    "behind": "after",
    "beside": "next to, with",
    "folder": "directory",
    "folders": "directories",
    "goes on from": "resumes from",
    "greatest": "maximum, largest",
    "hangs on": "depends on",
    "in front of": "before",
    "is asked": "is called, is read",
    "laws": "property tests",
    "look at": "attend to, see",
    "looked at": "attended to",
    "looks at": "attends to",
    "made again": "recomputed",
    "mends": "quick fixes",
    "model that writes": "generative model",
    "no number": "NaN",
    "nobody": "no one: name the agent",
    "put together": "concatenated, merged",
    "rounded weights": "quantized weights",
    "row numbers": "positions, indices",
    "rows of a batch": "batch elements",
    "shipped": "built-in",
    "slip": "mistake",
    "somebody": "name the agent",
    "stand apart": "are global tokens, are independent",
    "stands alone": "is self-contained",
    "taken apart": "split, partitioned",
    "texts of its own": "self-generated calibration data",
    "that grows": "generated sequence, time axis",
    "turns of": "iterations of",
    "unequal": "different",
    "weights alone": "weight-only",
    "weights are rounded": "weights are quantized",
    "what grows": "the generated sequence, the time axis",
    "who reads": "consumers, users",
    "whoever": "name the agent",
    "whole number": "integer",
    "whole numbers": "integers",
}

EXEMPT = {
    # (file, phrase): why this file may use it
    ("specs/models/yolos.specc", "look at"): "the title of the paper"
}

OUTPUT = re.compile(r"^```(?:text|console)\n.*?^```$", re.MULTILINE | re.DOTALL)
"""Output of commands: its wording is that of the messages, which are checked in the sources."""
SEPARATORS = re.compile(r"[\s#*\"'`]+")


def find_phrases(text: str, phrases: Mapping[str, str]) -> list[str]:
    """Return the phrases that occur in a text as whole words, across line breaks and in any case."""
    flat = f" {SEPARATORS.sub(' ', text)} ".lower()
    return [
        phrase
        for phrase in phrases
        if phrase in flat and re.search(rf"(?<![\w-]){re.escape(phrase)}(?![\w-])", flat)
    ]


def describe_occurrences(path: Path, text: str, phrases: Mapping[str, str]) -> Iterator[str]:
    """Yield "file:line: phrase: term" for every phrase that the file is not exempt from."""
    name = path.relative_to(ROOT).as_posix()
    for phrase in find_phrases(text, phrases):
        if (name, phrase) in EXEMPT:
            continue
        pattern = SEPARATORS.pattern.join(map(re.escape, phrase.split()))
        for match in re.finditer(rf"(?<![\w-]){pattern}(?![\w-])", text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {phrase!r}: write {phrases[phrase]!r}"


def list_pages() -> list[Path]:
    """Return the README, the pages of docs/ and the specs."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    specs = [p for p in (ROOT / "specs").rglob("*") if p.suffix in (".specc", ".yaml")]
    return sorted(pages + specs)


def list_sources() -> list[Path]:
    """Return the Python sources of the product."""
    return sorted([*(ROOT / "specc").rglob("*.py"), *(ROOT / "backends").rglob("*.py")])


def test_pages_and_specs_use_the_terms_of_the_field() -> None:
    found = [
        line
        for path in list_pages()
        for line in describe_occurrences(
            path,
            # output keeps its line numbers
            OUTPUT.sub(lambda m: "\n" * m[0].count("\n"), path.read_text("utf-8")),
            EVERYWHERE | PAGES_ONLY,
        )
    ]
    assert not found, "\n".join(found)


def test_sources_use_the_terms_of_the_field() -> None:
    found = [
        line
        for path in list_sources()
        for line in describe_occurrences(path, path.read_text("utf-8"), EVERYWHERE)
    ]
    assert not found, "\n".join(found)


def test_help_of_the_commands_uses_the_terms_of_the_field() -> None:
    phrases = EVERYWHERE | PAGES_ONLY
    texts = {"specc": build_parser(), **build_command_parsers()}
    found = {name: find_phrases(parser.format_help(), phrases) for name, parser in texts.items()}
    assert not {name: hits for name, hits in found.items() if hits}


def test_exemptions_are_needed() -> None:
    for (name, phrase), reason in EXEMPT.items():
        assert reason
        assert find_phrases((ROOT / name).read_text("utf-8"), {phrase: ""}), (name, phrase)


@pytest.mark.parametrize(
    "text", ["Stay\n    # apart.", "rows stay apart", 'f"they stay " "apart"', "**stay** apart"]
)
def test_a_phrase_is_found_across_lines_and_quotes(text: str) -> None:
    assert find_phrases(text, {"stay apart": ""})


@pytest.mark.parametrize("text", ["stay aparted", "to-stay apart", "stay_apart", "stay, apart"])
def test_other_words_are_not_found(text: str) -> None:
    assert not find_phrases(text, {"stay apart": ""})
