"""New axes, computed position ids, loops over a derived length and operands of batch size 1 agree
with PyTorch, for one sequence and for three.
"""

from pathlib import Path

import numpy as np
import pytest
from support.published_models import write_safetensors

import specc

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

SPEC = """specc 1
model m
dims batch, n >= 2

block pooled(queries: float[b, q, d], x: float[b, k, d]) -> float[b, q, d] {
  y, _ = attend(queries, x, x, mask=all)
  return y
}

graph g(x: float[batch, n, 8], scale: float[batch], t: int[]) -> (y: float[batch, 3, 8], h: float[batch, 8]) {
  latents = pooled(parameter(shape=[1, 3, 8]) @ latents, x) * scale[:, none, none]
  h = x[:, t]
  scan row in x[:, 1:] along n - 1 carry h {
    h = tanh(row + (linear(h, out=8) @ cell))
  }
  return latents + h[:, none], h
}
"""


@pytest.mark.parametrize("batch", [1, 3])
def test_forms_agree_with_pytorch(batch: int, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(SPEC, encoding="utf-8")
    torch.manual_seed(batch)
    latents, cell = torch.randn(1, 3, 8), torch.nn.Linear(8, 8)
    x, scale = torch.randn(batch, 6, 8), torch.randn(batch)
    weights = tmp_path / "w.safetensors"
    write_safetensors(
        weights,
        {
            "latents": latents.numpy(),
            "cell.weight": cell.weight.detach().numpy(),
            "cell.bias": cell.bias.detach().numpy(),
        },
    )
    specc.compile(path, tmp_path / "m.onnx", weights=weights)
    model = specc.load(tmp_path / "m.onnx")
    for t in (0, 4):
        made = model.run(x=x.numpy(), scale=scale.numpy(), t=np.array(t))
        found = made["y"], made["h"]
        with torch.no_grad():
            exact = cell.double()
            wide = x.double()
            y = torch.nn.functional.scaled_dot_product_attention(
                latents.double().expand(batch, -1, -1), wide, wide
            )
            h = wide[:, t]
            for row in wide[:, 1:].unbind(1):
                h = torch.tanh(row + exact(h))
            expected = y * scale.double()[:, None, None] + h[:, None], h
        for ours, theirs in zip(found, expected, strict=True):
            error = np.abs(ours - theirs.numpy()).max()
            assert error <= 1e-5 * np.abs(theirs.numpy()).max()
