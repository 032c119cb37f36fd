"""The server answers any editor content without an exception; built-in specs have no errors."""

import random
from pathlib import Path

import pytest

from specc.library.spec_file_lookup import find_builtin_specs, read_spec_file
from specc.lsp import dsl_completion, yaml_completion
from specc.lsp.document_analysis import analyze_incrementally
from specc.lsp.hover import find_hover_info, format_fenced_code, format_hover
from specc.lsp.quick_fixes import find_quick_fixes
from specc.syntax.dsl.lalr import load_lalr_table
from specc.syntax.yaml.yaml_printer import format_yaml

documents = pytest.importorskip("specc.lsp.documents", reason="needs the extra lsp")
protocol = pytest.importorskip("specc.lsp.protocol_and_inlay_hints", reason="needs the extra lsp")
SMALL = (
    "elman",
    "jordan",
    "kv_lookup",
    "luong",
    "rnnsearch",
    "seq2seq",
    "gru_lm",
    "xor",
    "luong_dot",
)
PIECES = [
    *"(){}[]=,.:@\"'#&*|-> \n\t0aé𝔁\x00\x0c\u2028",
    *load_lalr_table().keywords,
    "  - ",
    "do:",
    "specc: 1\n",
]


def edit_randomly(text: str, chance: random.Random) -> str:
    """Insert, delete and truncate a text at random, as during typing."""
    for _ in range(chance.randint(0, 3)):
        start = chance.randrange(len(text) + 1)
        end = start + chance.choice([0, 1, 3, 20, 200])
        put = "".join(chance.choices(PIECES, k=chance.randint(0, 3)))
        text = text[:start] + put + text[end:]
    cut = chance.random() < 0.3
    return text[: chance.randrange(len(text) + 1)] if cut else text


def check_all_features(seed: int, names: tuple[str, ...]) -> None:
    """Call every feature at some positions of a randomly edited spec."""
    chance = random.Random(seed)
    name = chance.choice(names)
    path = find_builtin_specs()[name]
    yaml = path.suffix == ".yaml"
    text = path.read_text(encoding="utf-8")
    if not yaml and chance.random() < 0.4:
        text, yaml = format_yaml(read_spec_file(path, path.name)), True
    text = edit_randomly(text, chance)
    known = next(analyze_incrementally(Path("/nowhere") / ("a.yaml" if yaml else "a.specc"), text))
    for _ in range(8):
        offset = chance.randrange(len(text) + 1)
        found = find_hover_info(known, offset)
        if found is not None:
            assert 0 <= found.start_offset <= found.end_offset <= len(text)
            format_hover(found)
        give = yaml_completion.complete_yaml if yaml else dsl_completion.complete_dsl
        labels = [offer.text for offer in give(known, text, offset)]
        assert "" not in labels
    lines = documents.DocumentLines(text)
    list(protocol.to_lsp_inlay_hints(known, lines, protocol.to_lsp_range(lines, 0, len(text))))
    list(protocol.to_lsp_document_symbols(known, lines))
    for fault in known.diagnostics[:1]:
        for edit in find_quick_fixes(known, fault):
            assert edit.apply_to_text(text) != text


@pytest.mark.parametrize("seed", range(16))
def test_randomly_edited_small_specs(seed: int) -> None:
    check_all_features(seed, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_randomly_edited_specs(seed: int) -> None:
    check_all_features(seed, tuple(find_builtin_specs()))


@pytest.mark.parametrize("name", ["rnnsearch", "small_translator", "xor"])
def test_built_in_sample_has_no_errors(name: str) -> None:
    _check_no_errors(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", find_builtin_specs())
def test_built_in_specs_have_no_errors(name: str) -> None:
    _check_no_errors(name)


def _check_no_errors(name: str) -> None:
    path = find_builtin_specs()[name]
    *_, known = analyze_incrementally(path, path.read_text(encoding="utf-8"))
    assert [d.title for d in known.diagnostics if d.severity == "error"] == []


YAML = """specc: 1
model: m
dims: [b, n]
items:
  - graph: g
    in: {x: 'float[b, n, 8]'}
    out: {y: 'float[b, n, 8]'}
    do:
      - h: {linear: {in: x, out: 8, weights: w}}
      - 'p, q': split_two(h)
      - return: h
"""


def test_yaml_inlay_hints_at_line_ends() -> None:
    *_, known = analyze_incrementally(Path("/nowhere/a.yaml"), YAML)
    lines = documents.DocumentLines(YAML)
    whole = protocol.to_lsp_range(lines, 0, len(YAML))
    (hint,) = protocol.to_lsp_inlay_hints(known, lines, whole)
    offset = lines.get_offset(hint.position.line, hint.position.character)
    assert YAML[:offset].endswith("weights: w}}")
    assert hint.label.strip() == "float[b, n, 8]"


HOSTILE = """specc 1
model m
config {
  d: int = 8 "``` [x](http://y) <img src=x> \\u{1b}[31m ![z](z)"
}
dims b
graph g(x: float[b, d]) -> (y: float[b, d]) { return x * 1.0 / d }
"""


def test_hover_escapes_markup() -> None:
    *_, known = analyze_incrementally(Path("/nowhere/a.specc"), HOSTILE)
    found = find_hover_info(known, HOSTILE.index("/ d }") + 2)
    assert found is not None
    text = format_hover(found)
    assert text.isprintable() or all(c.isprintable() or c == "\n" for c in text)
    assert "<img" not in text.replace("\\<img", "")
    assert "](http" not in text.replace("\\](http", "")


def test_fence_is_longer_than_fences_in_the_code() -> None:
    text = format_fenced_code("a ```` b\n```\nc")
    fence = text.split("specc\n")[0]
    assert fence == "`" * 5
    assert text.count(fence) == 2
