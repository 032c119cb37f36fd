"""logsumexp, log_softmax, expm1 and log1p agree with PyTorch: values of the compiled model
and gradients of the training module. The formulas that messages suggest for functions of
other libraries agree with those functions, also at large values.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import open_silent_session

from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.foreign_names_and_options import FOREIGN_OPERATIONS
from specc.ir.graph import Graph
from specc_onnx import build_model, get_target

torch = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = pytest.mark.parity
Array = NDArray[Any]

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n]) -> (y: float[...]) {{
  return {formula}
}}
"""
NATIVE = {
    "logsumexp(x)": lambda x: torch.logsumexp(x, -1),
    "logsumexp(x, axis=0)": lambda x: torch.logsumexp(x, 0),
    "log_softmax(x)": lambda x: torch.log_softmax(x, -1),
    "log_softmax(x, axis=0)": lambda x: torch.log_softmax(x, 0),
    "expm1(x)": torch.expm1,
    "log1p(abs(x))": lambda x: torch.log1p(x.abs()),
}
SUGGESTED = {
    "celu": functional.celu,
    "selu": functional.selu,
    "leakyrelu": functional.leaky_relu,
    "hardsigmoid": functional.hardsigmoid,
    "logsoftmax": lambda x: torch.log_softmax(x, -1),
    "softmin": lambda x: torch.softmax(-x, -1),
    "swish": functional.silu,
}
VALUES = [[-1e4, -100.0, -5.0, -1e-4, -1e-8], [0.0, 1e-8, 1e-4, 5.0, 100.0]]


def graph_of(formula: str, directory: Path) -> Graph:
    """Return the graph of one formula over `x`."""
    path = directory / "m.specc"
    path.write_text(SPEC.format(formula=formula), encoding="utf-8")
    return elaborate_spec(open_spec(str(path))).graph


def compiled(formula: str, x: Array, directory: Path) -> Array:
    """Return what the compiled formula gives in float32."""
    model = build_model(graph_of(formula, directory), get_target("ort-cpu")).model
    found: Array = open_silent_session(model).run(None, {"x": x})[0]
    return found


def check_close(found: Array, expected: Array) -> None:
    """Assert 1e-5 relative to each value."""
    error = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-30)
    assert error.max() <= 1e-5, (found, expected)


@pytest.mark.parametrize("formula", NATIVE)
def test_values_agree_with_pytorch_in_float64(formula: str, tmp_path: Path) -> None:
    x = np.array(VALUES, np.float32)
    x[x == 100.0] = 80.0
    expected = NATIVE[formula](torch.tensor(x, dtype=torch.float64)).numpy()
    check_close(compiled(formula, x, tmp_path), expected)


@pytest.mark.parametrize("formula", NATIVE)
def test_gradients_agree_with_pytorch(formula: str, tmp_path: Path) -> None:
    from specc_torch.torch_interpreter import ForwardContext, run_graph_nodes

    graph = graph_of(formula, tmp_path)
    x = torch.tensor([[1e-8, 1e-3, 30.0], [-1e-6, -2.0, 0.5]], requires_grad=True)
    place = ForwardContext({"batch": 2, "n": 3}, torch.float32, torch.device("cpu"))
    result = graph.outputs["y"]
    y = run_graph_nodes(graph, {graph.inputs["x"]: x}, place, [result])[result]
    by = torch.arange(1.0, 1.0 + y.numel()).reshape(y.shape)
    (y * by).sum().backward()
    want = x.detach().double().requires_grad_()
    (NATIVE[formula](want) * by).sum().backward()
    check_close(x.grad.numpy(), want.grad.numpy())


@pytest.mark.parametrize("name", SUGGESTED)
def test_suggested_formulas_agree_with_what_they_replace(name: str, tmp_path: Path) -> None:
    (text,) = (text for names, text in FOREIGN_OPERATIONS.items() if name in names.split())
    (formula,) = re.findall(r"`([^`]*\(.*?)`", text)
    x = np.array(VALUES, np.float32)
    expected = SUGGESTED[name](torch.tensor(x, dtype=torch.float64)).numpy()
    check_close(compiled(formula, x, tmp_path), expected)
