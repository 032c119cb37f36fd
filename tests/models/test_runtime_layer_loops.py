"""Layers in a run-time loop with causal attention: steps, packages and standalone generators give
the results of full passes.
"""

from pathlib import Path

import numpy as np
import pytest
from support.decode_steps import measure_step_difference

import specc

SPEC = """specc 1
model looped
config { vocab: int = 11  d: int = 8 }
dims batch, src, n
graph g(memory: float[batch, src, d], ids: int[batch, n], keep: keep[batch, n] = ids >= 0)
    -> (logits: float[batch, n, vocab]) {
  x = embedding(ids, size=vocab, dim=d) @ table
  %s
  seen = 0.0 * x
  scan row in memory along src carry x, seen {
    %s
  }
  return 9.0 * linear((x + seen)%s, out=vocab) @ out
}
generate text of ids from logits { start = 2  stop = 1 }
"""
ROW = "insert(row, axis=1)"
BODIES = {
    "attention": f"x = tanh(x + (attention(x + {ROW}, heads=2, mask=causal & visible(keep)) @ a)); seen = seen + x",
    "window": f"x = tanh(x + {ROW} + (attention(x, heads=2, mask=window(3) & visible(keep)) @ a)); seen = seen * x",
    "delay": f"x = tanh(x + delay(x * insert(cast(keep, to=float), axis=2), by=2) * {ROW}); seen = 0.5 * seen + x",
    "layers": f"h, _ = gru(x + {ROW}, hidden=d, reset=after, keep=keep) @ rnn; x = x + h; seen = seen + cumsum(insert(cast(keep, to=float), axis=2) * x, axis=1)",
    "nested": f"scan step in 3 carry x {{ x = 0.9 * x + float(step) * {ROW} * delay(x * insert(cast(keep, to=float), axis=2)) }}; seen = seen + x",
}

BODIES["begun"] = (
    f"h, _ = gru(x, hidden=d, reset=after, keep=keep, start={ROW}) @ rnn; x = x + h; seen = seen + x"
)
BODIES["prompt"] = (
    f"x = tanh(x + (attention(x + {ROW}, heads=2, mask=causal) @ a)); h, _ = gru(x, hidden=d, reset=after) @ rnn"
    "; seen = cumsum(h, axis=1) + delay(x, by=4)"
)
PROMPT = (
    "x = prepend(x * insert(cast(keep, to=float), axis=2), parameter(shape=[1, 3, d]) @ prompt)",
    "[:, 3:]",
)


@pytest.fixture(scope="module", params=BODIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp(str(request.param))
    spec, body = where / "looped.specc", BODIES[str(request.param)]
    lines = body.replace("{ ", "{\n").replace(" }", "\n}").replace("; ", "\n    ")
    before, behind = PROMPT if request.param == "prompt" else ("", "")
    spec.write_text(SPEC % (before, lines, behind), encoding="utf-8")
    target = "onnx" if len(request.param) % 2 else "ort-cpu"
    parts = ["score", "encode", "step"]
    specc.compile(str(spec), where / "package", init=3, graphs=parts, target=target)
    specc.compile(str(spec), where / "one.onnx", init=3, graphs=["generate"])
    specc.compile(str(spec), where / "whole.onnx", init=3)
    return where


def test_any_steps_give_the_logits_of_full_passes(directory: Path) -> None:
    """In chunks, with a reordered batch, and after left padding."""
    prompts = [[2, 3, 5], [7, 7, 8], [4, 6, 2]]
    if "prompt" not in directory.name:  # without a padding mask
        prompts = [[2, 3, 5], [7], [4, 6]]
    assert measure_step_difference(directory / "package", prompts) <= 1e-5


def test_generated_tokens_equal_those_of_full_passes(directory: Path) -> None:
    memory = np.random.default_rng(1).normal(size=(2, 3, 8)).astype("f")
    whole, package, one = (
        specc.load(directory / name) for name in ("whole.onnx", "package", "one.onnx")
    )
    want = whole.generate(memory=memory, max_tokens=6).results()
    for model in (package, one):
        got = model.generate(memory=memory, max_tokens=6).results()
        assert [r.tokens for row in got for r in row] == [r.tokens for row in want for r in row]
