"""An output of the last position only, with a loop over another axis: derived steps, verification
and generation.
"""

from pathlib import Path

import numpy as np
from support.verification_lines import list_model_lines

import specc
import specc.runtime.model_package

SPEC = """
specc 1
model newest "The newest row goes into a loop over the source"

dims batch, src, n

graph g(source: float[batch, src, 4], ids: int[batch, n]) -> (logits: float[batch, 5]) {
  s = last(cumsum(embedding(ids, size=5, dim=4) @ e))
  scan m in source along src carry s {
    s = tanh(linear(s + m, out=4) @ w)
  }
  return linear(s, out=5) @ o
}

generate text of ids from logits { start = 0 }
"""


def test_steps_generate_the_tokens_of_the_full_graph(tmp_path: Path) -> None:
    spec = tmp_path / "newest.specc"
    spec.write_text(SPEC, encoding="utf-8")
    specc.compile(spec, tmp_path / "whole.onnx", init=3)
    specc.compile(spec, tmp_path / "package", init=3, graphs=["step"])
    package = specc.runtime.model_package.open_package(tmp_path / "package")
    assert list(list_model_lines(package.load_graph("step"), rounds=3))
    specc.compile(spec, tmp_path / "one.onnx", init=3, graphs=["generate"])
    source = np.random.default_rng(0).normal(size=(3, 6, 4)).astype("f4")
    whole, step, one = (
        specc.load(tmp_path / name).generate(source=source, max_tokens=12).results()
        for name in ("whole.onnx", "package", "one.onnx")
    )
    assert [row[0].tokens for row in step] == [row[0].tokens for row in whole]
    assert [row[0].tokens for row in one] == [row[0].tokens for row in whole]
