"""`x[:, -n:]` selects the last `n` positions, for numeric and symbolic `n`."""

from pathlib import Path

import numpy as np
import pytest

import specc
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec

SPEC = """specc 1
model m
config { k: int = 2 }
dims batch, seq, n

graph g(x: float[batch, seq + n, 4], y: float[batch, n, 4], z: float[batch, seq, 4])
    -> (last: float[batch, n, 4], before: float[batch, seq, 4], few: float[batch, k, 4], both: float[...]) {
  return x[:, -n:] + y, x[:, :-n] + z, x[:, -k:], x[:, -(n + k):-k]
}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "m.specc"
    path.write_text(SPEC, encoding="utf-8")
    return path


def test_lengths_with_symbolic_sizes(spec: Path) -> None:
    found = check_spec(open_spec(str(spec)))
    for each in found.trials:
        shape = each.model.graph.outputs["both"].type.shape
        assert str(shape[1]) == "n"


@pytest.mark.parametrize("k", [0, 1, 2])
def test_slice_selects_the_last_positions(spec: Path, tmp_path: Path, k: int) -> None:
    specc.compile(spec, tmp_path / "m.onnx", init=0, set={"k": k})
    x = np.arange(2 * 8 * 4, dtype=np.float32).reshape(2, 8, 4)
    y, z = np.zeros((2, 3, 4), np.float32), np.zeros((2, 5, 4), np.float32)
    made = specc.load(tmp_path / "m.onnx").run(x=x, y=y, z=z)
    np.testing.assert_array_equal(made["last"], x[:, 5:])
    np.testing.assert_array_equal(made["before"], x[:, :5])
    np.testing.assert_array_equal(made["few"], x[:, 8 - k :])
    np.testing.assert_array_equal(made["both"], x[:, 5 - k : 8 - k])
