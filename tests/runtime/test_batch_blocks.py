"""Models that merge heads or windows into the batch axis: states belong to batch elements, and beam
search reorders whole batch elements.
"""

from pathlib import Path

import numpy as np
import pytest

import specc
from specc.runtime.decoder_sessions import FullForwardSession, KVCacheSession
from specc.runtime.generator import make_generator

SPEC = """specc 1
model blocks
config { vocab: int = 11  d: int = 8  heads: int = 2 }
dims batch, src, n
block apart(x: float[b, t, w]) -> float[b * heads, t, w / heads] {
  return merge(transpose(split(x, into=[heads, w / heads]), order=[0, 2, 1, 3]), axis=0)
}
block seen(q: float[r, t, w], m: float[r, k, w], mask: mask) -> float[r, t, w] {
  z = attend(insert(q, axis=1), insert(linear(m, out=w) @ k, axis=1), insert(m, axis=1), mask=mask)
  return z[:, 0]
}
graph g(memory: float[batch, src, d], ids: int[batch, n]) -> (logits: float[batch, n, vocab]) {
  x = embedding(ids, size=vocab, dim=d) @ table
  y = apart(x)
  whole = mean(apart(memory), axis=1)
  h, _ = gru(y, hidden=d / heads, start=insert(whole, axis=1), reset=after) @ rnn
  z = (seen(y, y, causal) @ own) + (seen(h, apart(memory), all) @ cross)
  z = merge(transpose(split(z + h, into=[batch, heads], axis=0), order=[0, 2, 1, 3]))
  return 40.0 * linear(z, out=vocab) @ out
}
generate text of ids from logits { start = 2  stop = 1 }
"""
PARTS = ["score", "encode", "step"]


@pytest.fixture(scope="module", params=["onnx", "ort-cpu"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("blocks")
    spec = where / "blocks.specc"
    spec.write_text(SPEC, encoding="utf-8")
    target = str(request.param)
    specc.compile(str(spec), where / "package", init=3, graphs=PARTS, target=target)
    specc.compile(str(spec), where / "whole.onnx", init=3, target=target)
    settings = {"strategy": "beam", "num_beams": 3}
    specc.compile(
        str(spec),
        where / "one.onnx",
        init=3,
        graphs=["generate"],
        generation_config=settings,
        target=target,
    )
    return where


def test_reordered_steps_give_the_logits_of_full_passes(directory: Path) -> None:
    model = specc.load(directory / "package", threads=1)
    rng = np.random.default_rng(0)
    inputs = {"memory": rng.normal(size=(3, 4, 8)).astype("f"), "ids": [[2, 3]] * 3}
    prepared = dict(model.generate(**inputs).prepared_inputs)
    whole = make_generator(model.selected_model)
    assert model.generator
    assert whole
    steps, full = (
        model.generator.create_decoder_session(prepared),
        whole.create_decoder_session(prepared),
    )
    assert isinstance(steps, KVCacheSession)
    assert isinstance(full, FullForwardSession)
    tokens = prepared["ids"]
    for order in ([0, 1, 2], [2, 0, 0], [1, 1, 0, 2], [3]):
        steps.reorder(np.array(order))
        full.reorder(np.array(order))
        tokens = rng.integers(3, 11, (len(order), 2)) if order[0] else tokens
        got, want = steps.step(tokens), full.step(tokens)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max(), order


def test_beam_search_in_a_standalone_generator_equals_full_passes(directory: Path) -> None:
    memory = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("f")
    names = "package", "one.onnx", "whole.onnx"
    package, one, whole = (specc.load(directory / name) for name in names)
    said = {"strategy": "beam", "num_beams": 3}
    want = whole.generate(memory=memory, max_tokens=6, **said).results()
    for model, settings in ((package, said), (one, {})):
        got = model.generate(memory=memory, max_tokens=6, **settings).results()
        assert [r.tokens for row in got for r in row] == [r.tokens for row in want for r in row]
    assert len({tuple(r.tokens) for row in want for r in row}) > 1
