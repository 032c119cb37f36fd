"""Conditional `load` and `ignore` rules in both syntaxes."""

from pathlib import Path

import numpy as np
import pytest

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.weights.formats.safetensors import write_safetensors

DSL = """\
specc 1
model m
config { old: bool = false }
dims batch
graph g(x: float[batch, 2]) -> (y: float[batch, 3]) {
  return linear(x, out=3, bias=false) @ w
}
weights {
  load w.weight = transpose("former") when old
  ignore extra when old
}
"""
YAML = """\
specc: 1
model: m
config: {old: {type: bool, default: false}}
dims: [batch]
items:
  - graph: g
    in: {x: 'float[batch, 2]'}
    out: {y: 'float[batch, 3]'}
    do: [{return: 'linear(x, out=3, bias=false) @ w'}]
weights:
  - {load: w.weight, as: transpose("former"), when: old}
  - {ignore: extra, when: old}
"""


@pytest.mark.parametrize(("name", "text"), [("m.specc", DSL), ("m.yaml", YAML)])
def test_conditional_rules(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    spec = str(tmp_path / name)
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    x = np.array([[1.0, -2.0]], np.float32)
    files = {"true": {"former": weight.T.copy(), "extra": weight}, "false": {"w.weight": weight}}
    for old, tensors in files.items():
        path = tmp_path / f"{old}.safetensors"
        write_safetensors(path, tensors)
        made = tmp_path / f"{old}.onnx"
        specc.compile(spec, made, weights=path, set={"old": old})
        assert np.allclose(specc.load(made).run(x=x)["y"], x @ weight.T)
    with pytest.raises(SpeccError, match="E0501"):
        specc.compile(spec, tmp_path / "n.onnx", weights=tmp_path / "true.safetensors")
