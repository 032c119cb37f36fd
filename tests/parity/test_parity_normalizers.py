"""`sparsemax` and `entmax15` match the `entmax` package of their authors: weights, weighted sums,
masked positions, and gradients.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.elaborated_specs import (
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
)

from specc_torch import SpecModule

entmax = pytest.importorskip("entmax")
pytestmark = pytest.mark.parity

SPEC = """specc 1
model m
config { normalize: normalizer = sparsemax }
dims batch, q, k
graph g(z: float[batch, 2, q, k], seen: bool[batch, q, k], v: float[batch, 2, k, 3])
    -> (out: float[batch, 2, q, 3], weights: float[batch, 2, q, k]) {
  w = weights_by(normalize, z, mask=insert(seen, axis=1))
  return weigh(w, v), w
}
"""


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_weights_and_gradients(name: str, scale: float, tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(SPEC)
    spec = elaborate_with_config(str(tmp_path / "m.specc"), normalize=name)
    rng = np.random.default_rng(3)
    z = scale * rng.standard_normal((3, 2, 5, 9))
    z[0, 0, 0, :4] = z[0, 0, 0, 0]  # equal scores share what they get
    seen = rng.random((3, 5, 9)) < 0.7
    seen[..., 0] = True
    values = rng.standard_normal((3, 2, 9, 3))
    hidden = torch.from_numpy(np.where(seen[:, None], z, -np.inf)).requires_grad_()
    published = {"sparsemax": entmax.sparsemax, "entmax15": entmax.entmax15}[name]
    weights = published(hidden, dim=-1)
    want = {"weights": weights, "out": weights @ torch.from_numpy(values)}
    given = {"z": z, "seen": seen, "v": values}
    for output, value in want.items():
        exact = value.detach().numpy()
        assert_arrays_close(run_reference(spec, {}, given)[output], exact, output, 1e-9)
        single = {n: a.astype("f4") if a.dtype == "f8" else a for n, a in given.items()}
        made = OrtModel(spec, {}).run(single)[output]
        assert_arrays_close(made, exact, f"{output}, compiled", 1e-5)
    want["out"].square().sum().backward()
    scores = torch.from_numpy(z).requires_grad_()
    others = {n: torch.from_numpy(a) for n, a in given.items() if n != "z"}
    SpecModule(spec.model.graph)(z=scores, **others)["out"].square().sum().backward()
    assert hidden.grad is not None
    assert scores.grad is not None
    slope = np.where(seen[:, None], hidden.grad.numpy(), 0.0)
    assert_arrays_close(scores.grad.numpy(), slope, "gradient", 1e-5)
