"""A loop may carry a list, one state a layer, and lists of lists; it comes out in the
form it went in.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from support.verification_lines import list_model_lines

import specc
import specc_numpy
from specc.driver.spec_loader import elaborate_spec, open_spec

STACK = """specc 1
model stack
config { d: int = 4  layers: int = 3 }
dims batch, n
graph g(x: float[batch, n, d]) -> (y: float[batch, n, d], top: float[batch, d]) {
  states = [zeros(shape=[batch, d]) for k in layers]
  scan row in x along n carry states collect y {
    y = row
    repeat k in layers collect after {
      y = rnn_cell(y, states[k], names=["w{k}", "u{k}", "b{k}", "c{k}"]) @ cell
      after = y
    }
    states = after
  }
  return y, states[layers - 1]
}
"""


def test_layers_of_one_loop(tmp_path: Path) -> None:
    path = tmp_path / "stack.specc"
    path.write_text(STACK, encoding="utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    rng = np.random.default_rng(0)
    w = {
        k: rng.normal(size=[d.number or 0 for d in v.type.shape])
        for k, v in graph.parameters.items()
    }
    x = rng.normal(size=(2, 5, 4))
    states = [np.zeros((2, 4))] * 3
    want = []
    for t in range(5):
        y = x[:, t]
        for k in range(3):
            made = (
                y @ w[f"cell.w{k}"].T
                + w[f"cell.b{k}"]
                + states[k] @ w[f"cell.u{k}"].T
                + w[f"cell.c{k}"]
            )
            y = states[k] = np.tanh(made)
        want.append(y)
    found = specc_numpy.evaluate_graph(graph, {"x": x}, w)
    np.testing.assert_allclose(found["y"], np.stack(want, axis=1), atol=1e-12)
    np.testing.assert_allclose(found["top"], want[-1], atol=1e-12)
    specc.compile(path, tmp_path / "stack.onnx", init=0)
    assert list(list_model_lines(specc.load(tmp_path / "stack.onnx").whole))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("states = [row]", "a list of 1"),
        ("states = row", "float"),
        ("states = [row, row[:, 0:2]]", r"states\[1\].*changes"),
        ("y = row", r"states\[0\].*does not set"),
    ],
)
def test_a_list_keeps_its_form(body: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.specc"
    path.write_text(
        "specc 1 model bad dims batch, n graph g(x: float[batch, n, 4]) -> (y: "
        "float[batch, n, 4]) {"
        " states = [zeros(shape=[batch, 4]) for k in 2]"
        f" scan row in x along n carry states collect y {{ y = row {body} }} return y }}",
        encoding="utf-8",
    )
    with pytest.raises(specc.Failed, match="E0305") as failed:
        specc.check(path)
    assert re.search(said, failed.value.diagnostics[0].title)
