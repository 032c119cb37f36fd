"""Whatever text is read, in either syntax, the only exception is `Failed`, with spans inside the file."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.lang.parse import parse_dsl
from specc.lang.read import decode, read
from specc.lang.write import write
from specc.lang.write_yaml import write_yaml
from specc.text.diagnostic import Failed
from specc.text.render import as_json, as_sarif, render
from specc.text.source import Source

EXAMPLES = sorted((Path(__file__).parents[1] / "unit" / "lang" / "examples").glob("*.specc"))
SPLICES = [
    *"{}()[]\"'#:,@=.-+*|&!?%<>\\\t\n\r \0é\u2028",
    "\n\n", ": ", " #", "- ", "---\n", "...", "&a ", "*a", "!t ", "<<: ", "->", "**", "//", "specc 1\n", "block ",
    "repeat i in 3 { ", "no", "none", "1e999", "010", "{i}", '"""', "'''", "|\n", ">\n", "? ",
]  # fmt: skip


def reads_cleanly(name: str, data: bytes) -> None:
    """Read, and if that fails, render every form of the message."""
    try:
        file = read(decode(data, name))
    except Failed as failed:
        for diagnostic in failed.diagnostics:
            for label in (diagnostic.primary, *diagnostic.others):
                assert label is None or 0 <= label.span.start <= label.span.end <= len(label.span.source.text)
        shown = render(failed.diagnostics)
        assert all(c.isprintable() or c == "\n" for c in shown)
        as_json(failed.diagnostics)
        as_sarif(failed.diagnostics, "0")
    else:
        write(file)
        write_yaml(file)


def mutated(text: str, seed: int) -> str:
    """A text with one to four places changed."""
    choose = random.Random(seed)
    for _ in range(choose.randint(1, 4)):
        at, size = choose.randrange(len(text) + 1), choose.choice((0, 0, 1, 1, 2, 5, 30))
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_mutants_of_the_specs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    other = write_yaml(parse_dsl(Source(path.name, text)))
    for seed in range(60):
        reads_cleanly("a.specc", mutated(text, seed).encode())
        reads_cleanly("a.yaml", mutated(other, seed).encode())


@given(st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_bytes(data: bytes) -> None:
    reads_cleanly("a.specc", data)
    reads_cleanly("a.yaml", data)
    reads_cleanly("a", b"specc 1\nmodel m\n" + data)
    reads_cleanly("a.yaml", b"specc: 1\nmodel: m\n" + data)


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text(text: str) -> None:
    for start in ("", "specc 1\nmodel m\nmask m = ", "specc: 1\nmodel: m\nitems:\n  - mask: m\n    is: "):
        for name in ("a.specc", "a.yaml"):
            try:
                read(Source(name, start + text))
            except Failed as failed:
                render(failed.diagnostics)


HEAD = "specc 1\nmodel m\n"
YAML = "specc: 1\nmodel: m\n"
LARGE = {
    "brackets": HEAD + "mask m = " + "(" * 100_000,
    "braces": HEAD + "block f() -> float " + "{" * 100_000,
    "closers": HEAD + "mask m = " + ")" * 100_000,
    "signs": HEAD + "mask m = " + "-" * 100_000 + "i",
    "powers": HEAD + "mask m = i" + " ** i" * 100_000,
    "choices": HEAD + "mask m = i" + " if i else i" * 50_000,
    "indices": HEAD + "mask m = i" + "[0]" * 100_000,
    "sum": HEAD + "mask m = i" + " + i" * 100_000,
    "comparisons": HEAD + "mask m = i" + " < i" * 4_999,
    "one line": HEAD + "mask m = " + "a" * 1_000_000,
    "one number": HEAD + "mask m = " + "9" * 1_000_000,
    "open text": HEAD + 'mask m = "' + "a\\" * 500_000,
    "comment": HEAD + "#" * 1_000_000,
    "comments": HEAD + "#\n" * 500_000,
    "too long": HEAD + " " * (1 << 20),
    "statements": HEAD + "block f() -> float {\n" + "a = b\n" * 40_000 + "}\n",
    "broken items": HEAD + "mask )\n" * 100_000,
    "strange characters": HEAD + "$" * 1_000_000,
}
LARGE_YAML = {
    "lists": "[" * 100_000,
    "maps": "{a: " * 100_000,
    "block lists": YAML + "items:\n  " + "- " * 100_000,
    "keys": YAML + "config:\n" + "".join(f"  k{n}: $\n" for n in range(60_000)),
    "same keys": YAML + "config:\n" + "  k: 1\n" * 100_000,
    "brackets in a text": YAML + "items:\n  - {mask: m, is: '" + "(" * 100_000 + "'}\n",
    "number": YAML + "config: {a: " + "1" * 5000 + "}\n",
    "comments": YAML + "#\n" * 400_000,
    "one text": YAML + "doc: '" + "''" * 400_000 + "'\n",
}


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_large_specs(text: str) -> None:
    reads_cleanly("a.specc", text.encode())


@pytest.mark.parametrize("text", LARGE_YAML.values(), ids=LARGE_YAML)
def test_large_yaml(text: str) -> None:
    reads_cleanly("a.yaml", text.encode())
