"""Decoders that mix attention weights across heads: generation with a KV cache, beam search and
streaming equal the full forward pass.
"""

from pathlib import Path

import numpy as np
import pytest

import specc

DECODER = """specc 1
model m
dims batch, n

graph lm(ids: int[batch, n], keep: keep[batch, n]) -> (logits: float[batch, n, 12]) {{
  x = embedding(ids, size=12, dim=8) @ e
  {weights}
  return 4.0 * linear(merge(transpose(weigh(w, v), order=[0, 2, 1, 3]), axis=2), out=12) @ head
}}

generate text of ids from logits {{ stop = 0 }}
"""
QUERIES = """q = transpose(split(linear(x, out=8) @ q, into=[4, 2], axis=2), order=[0, 2, 1, 3])
  _, w = attend(q, q, q, mask=causal & visible(keep))
  {mix}
  v = transpose(split(x, into=[{heads}, 8 / {heads}], axis=2), order=[0, 2, 1, 3])"""
MIXED = {
    # Differential Transformer (arXiv:2410.05258, eq. 1)
    "difference of split heads": (
        "w = split(w, into=[2, 2], axis=1)\n"
        "  w = w[:, :, 0] - sigmoid(parameter(shape=[]) @ lam) * w[:, :, 1]",
        2,
    ),
    # Talking-Heads Attention (arXiv:2003.02436, sec. 3)
    "heads mixed by einsum": (
        'w = einsum("b h i j, h g -> b g i j", w, parameter(shape=[4, 2]) @ mix)',
        2,
    ),
    "heads mixed by a 1x1 convolution": ("w = conv(w, out=2, kernel=1, bias=false) @ mix", 2),
    "heads mixed by a linear layer": (
        "w = transpose(linear(transpose(w, order=[0, 2, 3, 1]), out=4, bias=false) @ mix,"
        " order=[0, 3, 1, 2])",
        4,
    ),
    "merged and sliced": ("w = merge(split(w, into=[2, 2], axis=1), axis=1)[:, 1:3]", 2),
}


def write_spec(name: str, directory: Path) -> Path:
    """Write the decoder for one way to mix heads."""
    mix, heads = MIXED[name]
    path = directory / "m.specc"
    text = DECODER.format(weights=QUERIES.format(mix=mix, heads=heads))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", MIXED)
def test_decoding_with_a_cache_equals_the_full_pass(name: str, tmp_path: Path) -> None:
    path = write_spec(name, tmp_path)
    specc.compile(path, tmp_path / "cached", init=3, graphs="all")
    specc.compile(path, tmp_path / "full.onnx", init=3)
    cached = specc.load(tmp_path / "cached")
    full = specc.load(tmp_path / "full.onnx")
    prompts = [[1, 5, 7], [2, 9], [3]]
    for settings in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        results = [
            model.generate(prompts, max_tokens=6, **settings).results() for model in (cached, full)
        ]
        tokens = [[list(text.tokens) for row in made for text in row] for made in results]
        assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", MIXED)
def test_streaming_equals_the_full_pass(name: str, tmp_path: Path) -> None:
    path = write_spec(name, tmp_path)
    text = path.read_text(encoding="utf-8")
    text = text.replace("generate text of ids from logits { stop = 0 }", "stream logits of ids")
    path.write_text(text, encoding="utf-8")
    specc.compile(path, tmp_path / "streamed", init=3, graphs="step")
    specc.compile(path, tmp_path / "full.onnx", init=3)
    ids = np.array([[1, 5, 7, 2, 9], [4, 4, 8, 1, 3]])
    keep = np.ones(ids.shape, bool)
    expected = specc.load(tmp_path / "full.onnx").run(ids=ids, keep=keep)["logits"]
    stream = specc.load(tmp_path / "streamed").stream()
    made = [
        stream.push(ids=ids[:, :2], keep=keep[:, :2]),
        stream.push(ids=ids[:, 2:], keep=keep[:, 2:], last=True),
    ]
    found = np.concatenate([piece["logits"] for piece in made], axis=1)
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)
