"""Random integers are valid indices, if an index is computed from them."""

import numpy as np
import pytest
from support.random_padded_specs import elaborate_padded_spec

from specc.runtime.random_inputs import make_random_inputs

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n, 2], t: int[]) -> (y: float[batch, 2]) {{
  return x[:, {index}]
}}
"""


@pytest.mark.parametrize(
    "index", ["t", "-t", "n - t", "n - 1 - t", "t + 2", "3 - t", "-(t - 1)", "max(t, 0)"]
)
def test_computed_positions_are_valid(index: str) -> None:
    graph = elaborate_padded_spec(SPEC.format(index=index))
    drawn = set()
    for n in (4, 5, 9):
        for seed in range(8):
            inputs = make_random_inputs(graph, {"batch": 1, "n": n}, np.random.default_rng(seed))
            t = int(inputs["t"])
            drawn.add(t)
            assert 0 <= eval(index, {"t": t, "n": n, "max": max}) < n
    assert len(drawn) > 1
