"""Recurrent layers of the standard library equal PyTorch's, with the same weight names and layouts."""

from pathlib import Path

import numpy as np
import pytest

from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

SPEC = """
specc 1
model cells
dims batch, n
graph f(x: float[batch, n, 3], keep: keep[batch, n]) -> (out: float[batch, n, _], last: float[batch, _, 4]{more}) {{
  return {call} @ layers
}}
"""


def build_layer_graph(directory: Path, call: str, more: str = "") -> Graph:
    path = directory / "cells.specc"
    path.write_text(SPEC.format(call=call, more=more))
    return elaborate_spec(open_spec(str(path))).graph


def run_layer(graph: Graph, theirs: object, x: object, keep: object) -> dict[str, object]:
    """Return the results of the graph with the weights of a PyTorch module."""
    module = specc_torch.SpecModule(graph).double()
    module.load_state_dict({f"layers.{k}": v for k, v in theirs.state_dict().items()})
    return module(x=x, keep=keep)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_layers_equal_pytorch_on_padded_sequences(
    tmp_path: Path, cell: str, both: bool, layers: int
) -> None:
    torch.manual_seed(0)
    make = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    theirs = make(3, 4, layers, batch_first=True, bidirectional=both).double()
    options = f"hidden=4, layers={layers}, keep=keep, direction={'both' if both else 'forward'}"
    options += ", reset=after" if cell == "gru" else ""
    graph = build_layer_graph(
        tmp_path, f"{cell}(x, {options})", ", cell: float[batch, _, 4]" if cell == "lstm" else ""
    )
    x, lengths = torch.randn(3, 6, 3, dtype=torch.float64), torch.tensor([6, 2, 4])
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x, lengths, batch_first=True, enforce_sorted=False
    )
    out, ends = theirs(packed)
    expected = [torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]]
    expected += [e.transpose(0, 1) for e in (ends if cell == "lstm" else (ends,))]
    found = run_layer(graph, theirs, x, torch.arange(6) < lengths[:, None])
    for mine, reference in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(mine.detach(), reference.detach(), rtol=1e-10, atol=1e-12)


def test_gru_with_reset_before_the_product(tmp_path: Path) -> None:
    graph = build_layer_graph(tmp_path, "gru(x, hidden=4, keep=keep, reset=before, update=new)")
    module = specc_torch.SpecModule(graph, seed=3).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    w, u, b, c = (
        module.state_dict()[f"layers.{n}_l0"]
        for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h = torch.zeros(2, 4, dtype=torch.float64)
    for t in range(5):  # arXiv:1409.0473, app. A.1.1
        r, z, n = (x[:, t] @ w.T + b).chunk(3, dim=1)
        u_r, u_z, u_n = u.chunk(3)
        c_r, c_z, c_n = c.chunk(3)
        r, z = torch.sigmoid(r + h @ u_r.T + c_r), torch.sigmoid(z + h @ u_z.T + c_z)
        h = (1 - z) * h + z * torch.tanh(n + (r * h) @ u_n.T + c_n)
    found = module(x=x, keep=torch.ones(2, 5, dtype=torch.bool))
    np.testing.assert_allclose(found["last"][:, 0].detach(), h, rtol=1e-10)


def test_gradients_reach_the_first_position(tmp_path: Path) -> None:
    theirs = torch.nn.GRU(3, 4, batch_first=True).double()
    graph = build_layer_graph(tmp_path, "gru(x, hidden=4, reset=after)")
    module = specc_torch.SpecModule(graph).double()
    module.load_state_dict({f"layers.{k}": v for k, v in theirs.state_dict().items()})
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    module(x=x, keep=torch.ones(2, 5, dtype=torch.bool))["out"].square().sum().backward()
    theirs(x)[0].square().sum().backward()
    for name, parameter in theirs.named_parameters():
        mine = dict(module.named_parameters())[f"layers.{name}"].grad
        np.testing.assert_allclose(mine, parameter.grad, rtol=1e-9, atol=1e-12)
