"""Attention biases of the standard library equal those of published code."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

SPEC = """
specc 1
model biases
dims batch, q, k
graph f(x: float[batch, q, 2], y: float[batch, k, 2]) -> (grid: float[1, _, q, k]) {{
  return grid({bias}, x, y) @ table
}}
"""


def compute_bias(
    directory: Path, bias: str, q: int, k: int, table: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    path = directory / "biases.specc"
    path.write_text(SPEC.format(bias=bias))
    model = elaborate_spec(open_spec(str(path)))
    numbers = dict.fromkeys(model.graph.parameters, table)
    given = {"x": np.zeros((1, q, 2)), "y": np.zeros((1, k, 2))}
    return specc_numpy.evaluate_graph(model.graph, given, numbers)["grid"][0]


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 11, 12, 16])
def test_alibi_slopes_for_any_number_of_heads(tmp_path: Path, heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    published = build_alibi_tensor(torch.ones(1, 9), heads, torch.float64).reshape(heads, 9).numpy()
    found = compute_bias(tmp_path, f"alibi({heads})", 9, 9)
    # the published one counts from the first key; a softmax does not see it
    last = found[:, -1] - found[:, -1, :1]
    np.testing.assert_allclose(last, published, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("buckets", "longest"), [(32, 128), (16, 64), (32, 256), (8, 20), (64, 512)]
)
@pytest.mark.parametrize("both", [True, False])
def test_t5_relative_position_buckets(
    tmp_path: Path, both: bool, buckets: int, longest: int
) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(700)[None] - torch.arange(700)[:, None]
    published = T5Attention._relative_position_bucket(distance, both, buckets, longest).numpy()
    bias = f"t5_relative_position_bias(1, bidirectional={str(both).lower()}, buckets={buckets}, max_distance={longest})"
    found = compute_bias(tmp_path, bias, 700, 700, np.arange(buckets, dtype=np.float64)[:, None])
    np.testing.assert_array_equal(found[0], published)


@pytest.mark.parametrize("window", [(3, 4), (2, 2)])
def test_relative_position_bias_with_a_class_token(tmp_path: Path, window: tuple[int, int]) -> None:
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias

    published = BeitRelativePositionBias.generate_relative_position_index(window).numpy()
    size = (2 * window[0] - 1) * (2 * window[1] - 1) + 3
    rows = window[0] * window[1] + 1
    bias = f"relative_position_bias_2d(1, rows={window[0]}, columns={window[1]}, cls=true)"
    found = compute_bias(tmp_path, bias, rows, rows, np.arange(size, dtype=np.float64)[:, None])
    np.testing.assert_array_equal(found[0], published)
