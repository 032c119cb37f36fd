"""Advice rewritten for YAML files: code that both syntaxes share is unchanged, other code becomes
YAML."""

import re
from pathlib import Path

import pytest
import yaml

from specc.diagnostics.diagnostic import Diagnostic, Label, Source, Span
from specc.syntax.dsl.dsl_parser import parse_dsl
from specc.syntax.parse import convert_help_snippets_to_yaml
from specc.syntax.yaml.yaml_parser import parse_yaml
from specc.syntax.yaml.yaml_printer import rewrite_dsl_as_yaml

GOLDEN = Path(__file__).parents[2] / "golden"

AS_YAML = {
    "image: int = …": "image: {type: int, default: …}",
    "where batch = n": "where: {batch: n}",
    "repeat i in 3 { … }": "{repeat: i in 3, do: […]}",
    "when c { … } else { … }": "{when: c, do: […], else: […]}",
    "scan x in xs along n carry h { … }": "{scan: x in xs, along: n, carry: [h], do: […]}",
    'repeat i in … under "layers.{i}" { … }': "{repeat: i in …, under: 'layers.{i}', do: […]}",
    "mask some = j % 2 == 0": "- {mask: some, is: j % 2 == 0}",
    "name = relu(…)": "name: relu(…)",
    'use "file.specc" as f': "use: [{file: file.specc, as: f}]",
    "dims batch, n": "dims: [batch, n]",
    "weights { share layer.proj }": "weights: [{share: layer.proj}]",
    "extends vit": "extends: vit",
    "require a == b": "require: [a == b]",
    "return y": "return: y",
    "show logits = text(…)": "show logits: text(…)",
    "generate NAME of INPUT from RESULT { … }": "generate: {NAME: {of: INPUT, from: RESULT, …}}",
    "mask=causal": "mask: causal",
    "… @ name": "weights: name",
}
ALIKE = [
    "relu(x)", "x", "a if c else b", "where(c, a, b)", "insert(len, axis=1)", "out: …", "&", "specc list",
    "--set a=3", "weights", "split_heads(x, heads)", "x ** 2.0", '"layers.{i}"', "def f(x)", "{", "i <",
]  # fmt: skip


@pytest.mark.parametrize("piece", AS_YAML)
def test_rewritten_advice(piece: str) -> None:
    assert rewrite_dsl_as_yaml(piece) == AS_YAML[piece]


@pytest.mark.parametrize("piece", ALIKE)
def test_unchanged_advice(piece: str) -> None:
    assert rewrite_dsl_as_yaml(piece) == piece


def test_options_inside_expressions() -> None:
    assert rewrite_dsl_as_yaml("mask=causal", is_in_map=False) == "mask=causal"
    assert rewrite_dsl_as_yaml("@ name", is_in_map=False) == "@ name"


@pytest.mark.parametrize(
    ("item", "key"),
    [
        ("dims batch, n >= 1", None),
        ("require a == b", None),
        ('weights { tie a.weight = b.weight  ignore "c.*" }', None),
        ("config { d: int = 8  eps: float = 1e-5 }", None),
        ("mask near(n: int) = i - j < n", "items"),
        ("score s = dot(q, k) / 2.0", "items"),
        ("block f(x: float[...]) -> float[...] { return relu(x) }", "items"),
    ],
)
def test_rewritten_items_parse_to_the_same_tree(item: str, key: str | None) -> None:
    text = rewrite_dsl_as_yaml(item)
    if key:
        text = f"{key}:\n  {text}"
    read = parse_yaml(Source("m.yaml", f"specc: 1\nmodel: m\n{text}\n"))
    assert read == parse_dsl(Source("m.specc", f"specc 1\nmodel m\n{item}\n"))


def test_all_advice_is_valid_yaml() -> None:
    said = "".join(p.read_text() for p in GOLDEN.glob("errors*/*.txt"))
    pieces = {p for h in re.findall(r"= help: (.*)", said) for p in re.findall(r"`([^`]+)`", h)}
    changed = {p: made for p in pieces if (made := rewrite_dsl_as_yaml(p)) != p}
    assert len(changed) > 20
    for made in changed.values():
        yaml.safe_load(made.replace("…", "x"))


def test_advice_uses_the_syntax_of_the_file() -> None:
    for name, help_ in (("m.specc", "`x = 3`"), ("m.yaml", "`x: 3`")):
        span = Span(Source(name, "x"), 0, 1)
        (said,) = convert_help_snippets_to_yaml(
            [Diagnostic("E0000", "t", Label(span), helps=("`x = 3`",))]
        )
        assert said.helps == (help_,)
    (placeless,) = convert_help_snippets_to_yaml([Diagnostic("E0000", "t", helps=("`x = 3`",))])
    assert placeless.helps == ("`x = 3`",)
