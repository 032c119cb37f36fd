"""Parsing any text in either syntax raises only `SpeccError`, with spans inside the file."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parameter_sweeps import sample_sweep

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.diagnostics.machine_formats_and_exit_codes import format_json_lines, format_sarif
from specc.diagnostics.render import render_diagnostics
from specc.syntax.dsl.dsl_parser import parse_dsl
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.parse import decode_spec, parse_spec
from specc.syntax.yaml.yaml_printer import format_yaml

EXAMPLES = sorted((Path(__file__).parents[1] / "syntax" / "examples").glob("*.specc"))
SPLICES = [
    *"{}()[]\"'#:,@=.-+*|&!?%<>\\\t\n\r \0é\u2028",
    "\n\n", ": ", " #", "- ", "---\n", "...", "&a ", "*a", "!t ", "<<: ", "->", "**", "//", "specc 1\n", "block ",
    "repeat i in 3 { ", "no", "none", "1e999", "010", "{i}", '"""', "'''", "|\n", ">\n", "? ",
]  # fmt: skip


def assert_parses_or_fails(name: str, data: bytes) -> None:
    """Parse a text; if that fails, render every form of the message."""
    try:
        file = parse_spec(decode_spec(data, name))
    except SpeccError as failed:
        for diagnostic in failed.diagnostics:
            for label in (diagnostic.primary, *diagnostic.related_labels):
                assert label is None or 0 <= label.span.start <= label.span.end <= len(
                    label.span.source.text
                )
        shown = render_diagnostics(failed.diagnostics)
        assert all(c.isprintable() or c == "\n" for c in shown)
        format_json_lines(failed.diagnostics)
        format_sarif(failed.diagnostics, "0")
    else:
        format_dsl(file)
        format_yaml(file)


def mutate_text(text: str, seed: int) -> str:
    """Return a text with one to four changes."""
    choose = random.Random(seed)
    for _ in range(choose.randint(1, 4)):
        at, size = (choose.randrange(len(text) + 1), choose.choice((0, 0, 1, 1, 2, 5, 30)))
        kind = choose.randrange(4)
        new = ""
        if kind == 0:
            new = choose.choice(SPLICES)
        elif kind == 1:
            other = choose.randrange(len(text) + 1)
            new = text[other : other + choose.randint(1, 40)]
        elif kind == 2:
            size = choose.choice((1, 3, 80))
        text = text[:at] + new + text[at + size :]
    return text


@pytest.mark.parametrize("path", sample_sweep(EXAMPLES), ids=lambda p: p.stem)
def test_mutated_specs_are_parsed_or_refused(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    other = format_yaml(parse_dsl(Source(path.name, text)))
    for seed in range(60):
        assert_parses_or_fails("a.specc", mutate_text(text, seed).encode())
        assert_parses_or_fails("a.yaml", mutate_text(other, seed).encode())


@given(st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_arbitrary_bytes_are_parsed_or_refused(data: bytes) -> None:
    assert_parses_or_fails("a.specc", data)
    assert_parses_or_fails("a.yaml", data)
    assert_parses_or_fails("a", b"specc 1\nmodel m\n" + data)
    assert_parses_or_fails("a.yaml", b"specc: 1\nmodel: m\n" + data)


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_arbitrary_text_is_parsed_or_refused(text: str) -> None:
    for start in (
        "",
        "specc 1\nmodel m\nmask m = ",
        "specc: 1\nmodel: m\nitems:\n  - mask: m\n    is: ",
    ):
        for name in ("a.specc", "a.yaml"):
            try:
                parse_spec(Source(name, start + text))
            except SpeccError as failed:
                render_diagnostics(failed.diagnostics)


HEAD = "specc 1\nmodel m\n"
YAML = "specc: 1\nmodel: m\n"
FULL, SOME = 1, 6
"""Maximum text size, and its default divisor: still above every limit except that of characters."""


def make_large_specs(part: int) -> dict[str, str]:
    """Yield texts of every kind with the maximum size, or a part of it."""
    n, million = 100_000 // part, 1_000_000 // part
    return {
        "brackets": HEAD + "mask m = " + "(" * n,
        "braces": HEAD + "block f() -> float " + "{" * n,
        "closers": HEAD + "mask m = " + ")" * n,
        "signs": HEAD + "mask m = " + "-" * n + "i",
        "powers": HEAD + "mask m = i" + " ** i" * n,
        "choices": HEAD + "mask m = i" + " if i else i" * (n // 2),
        "indices": HEAD + "mask m = i" + "[0]" * n,
        "sum": HEAD + "mask m = i" + " + i" * n,
        "comparisons": HEAD + "mask m = i" + " < i" * 4_999,
        "one line": HEAD + "mask m = " + "a" * million,
        "one number": HEAD + "mask m = " + "9" * million,
        "open text": HEAD + 'mask m = "' + "a\\" * (million // 2),
        "comment": HEAD + "#" * million,
        "comments": HEAD + "#\n" * (million // 2),
        "too long": HEAD + " " * (1 << 20),
        "statements": HEAD + "block f() -> float {\n" + "a = b\n" * (n // 3) + "}\n",
        "broken items": HEAD + "mask )\n" * n,
        "strange characters": HEAD + "$" * million,
    }


def make_large_yaml(part: int) -> dict[str, str]:
    """Yield the same in YAML."""
    n = 100_000 // part
    keys = "".join(f"  k{i}: $\n" for i in range(n * 3 // 5))
    return {
        "lists": "[" * n,
        "maps": "{a: " * n,
        "block lists": YAML + "items:\n  " + "- " * n,
        "keys": YAML + "config:\n" + keys,
        "same keys": YAML + "config:\n" + "  k: 1\n" * n,
        "brackets in a text": YAML + "items:\n  - {mask: m, is: '" + "(" * n + "'}\n",
        "number": YAML + "config: {a: " + "1" * 5000 + "}\n",
        "comments": YAML + "#\n" * (4 * n),
        "one text": YAML + "doc: '" + "''" * (4 * n) + "'\n",
    }


def select_sizes(kinds: Iterable[str]) -> list[ParameterSet]:
    """Return every second kind by default, all of them with the maximum size under `slow`."""
    full = [pytest.param(kind, FULL, marks=pytest.mark.slow) for kind in kinds]
    return [*sample_sweep([(kind, SOME) for kind in kinds]), *full]


@pytest.mark.parametrize(("kind", "part"), select_sizes(make_large_specs(1000)))
def test_large_specs_are_parsed_or_refused(kind: str, part: int) -> None:
    assert_parses_or_fails("a.specc", make_large_specs(part)[kind].encode())


@pytest.mark.parametrize(("kind", "part"), select_sizes(make_large_yaml(1000)))
def test_large_yaml_is_parsed_or_refused(kind: str, part: int) -> None:
    assert_parses_or_fails("a.yaml", make_large_yaml(part)[kind].encode())
