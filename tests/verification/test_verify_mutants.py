"""`specc verify` detects every mutant of a compiled model that changes a result for valid inputs;
surviving mutants change none."""

from pathlib import Path

import pytest
from support.model_mutants import find_survivors
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc

LOCAL = """specc 1
model m
dims batch >= 1, n >= 1
mask near(f) = abs(i - j) < 8 | f[j]
graph g(x: float[batch, n, 8], f: bool[batch, n]) -> (y: float[batch, n, 8], z: float[batch, n, 8]) {
  y = attention(x, heads=2, mask=near(f)) @ a
  z, _ = attend_by(additive(4), x, x, x, mask=window(8)) @ b
  return y, z
}
"""
STRIDED = """specc 1
model m
dims batch >= 1, n >= 4
graph g(x: float[batch, n, 8]) -> (y: float[batch, _, 8]) {
  x = conv(x, out=8, kernel=4, stride=4) @ c
  return attention(x, heads=2, mask=window(6)) @ a
}
"""
COUNTED = """specc 1
model m
dims batch >= 1, n >= 1
graph g(ids: int[batch, n], keep: keep[batch, n] right) -> (y: float[batch, n, 8], z: float[batch, _, 8]) {
  x = embedding(where(ids == 17, 0, ids), size=20, dim=8) @ e
  x = where(insert(ids == 17, axis=2), 1.0, x)
  x = x + (embedding(min(positions(keep), 11), size=12, dim=8) @ p)
  x = where(insert(float(positions(keep)) < inf, axis=2), x, 0.0)
  blocks = (n + 3) // 4
  z = split(pad(x, after=4 * blocks - n), into=[blocks, 4], axis=1)
  return x, sum(z, axis=2)
}
"""
DECISIONS = {
    "more special ids than there are values for": """specc 1
model m
dims batch >= 1, n >= 1
graph g(ids: int[batch, n]) -> (y: float[batch, n, 4]) {
  is_image = ids == 7
  index = cumsum(is_image) - 1
  x = embedding(ids, size=9, dim=4) @ e
  return where(insert(is_image & index < 12, axis=2), 2.0 * x, x)
}
""",
    "a series of which nothing is observed": """specc 1
model m
dims batch >= 1, n >= 1
graph g(x: float[batch, n], observed: bool[batch, n]) -> (y: float[batch]) {
  return sum(where(observed, x, 0.0), axis=1) / max(sum(float(observed), axis=1), 1.0)
}
""",
    "positions of padding on the left": """specc 1
model m
dims batch >= 1, n >= 1
graph g(ids: int[batch, n], keep: keep[batch, n]) -> (y: float[batch, n, 4]) {
  x = embedding(ids, size=9, dim=4) @ e
  return x * insert(cos(float(max(positions(keep) - 0, 0))), axis=2)
}
""",
    "rows and columns of an image": """specc 1
model m
dims batch >= 1, n >= 1
graph g(x: float[batch, n, 4], shapes: int[batch, 2]) -> (y: float[batch, n, 4]) {
  columns = shapes[:, 1:2]
  row = where(positions(x) < shapes[:, 0:1] * columns, positions(x) // max(columns, 1), 0)
  return x * insert(float(shapes[:, 0:1] - row) / (1.0 + float(row)), axis=2)
}
""",
    "a table indexed by the padding of an image": """specc 1
model m
dims batch >= 1
graph g(sizes: int[batch, 2]) -> (y: float[batch, 1, 4]) {
  height = sizes[:, 0:1]
  width = sizes[:, 1:2]
  scaled = where(width > height, height * 6 // max(width, 1), 6)
  return embedding(min(max((8 - scaled) // 2, 0), 8), size=9, dim=4) @ e
}
""",
    "a table indexed by row and column": """specc 1
model m
dims batch >= 1
graph g(index: int[batch], columns: int[batch]) -> (y: float[batch, 4]) {
  row = index // max(columns, 1)
  place = where(row < 3, 3 * row + min(index % max(columns, 1), 2), 9)
  return embedding(min(place, 9), size=10, dim=4) @ e
}
""",
    "a table indexed by a product": """specc 1
model m
dims batch >= 1
graph g(rows: int[batch], columns: int[batch]) -> (y: float[batch, 4]) {
  return embedding(min(max(rows * columns - where(columns >= 7, 1, 0), 0), 30), size=31, dim=4) @ e
}
""",
    "values beyond a bound": """specc 1
model m
dims batch >= 1
graph g(x: float[batch, 6]) -> (y: float[batch, 6], z: bool[batch, 6]) {
  return min(linear(x, out=6) @ a, 12.0), x < -20.0
}
""",
    "valid pixels of an image": """specc 1
model m
dims batch >= 1
graph g(valid: bool[batch, 9, 9]) -> (y: float[batch, 2]) {
  whole = concat([every(valid[:, 0])[:, none], every(valid[:, :, 0])[:, none]], axis=1)
  return float(whole)
}
""",
    "the nearest of several vectors": """specc 1
model m
dims batch >= 1, n >= 1
graph g(x: float[batch, n, 4]) -> (y: int[batch, n]) {
  x = x + 0.0015 * (sin(x) - cos(x))
  return argmax(linear(x, out=3) @ a, axis=2)
}
""",
}
SAMPLE, MANY = 8, 60
"""Mutants of a spec, chosen at random."""


@pytest.mark.parity
def test_mutants_of_blocked_attention_are_killed(tmp_path: Path) -> None:
    """Masks with global tokens, arbitrary scores in a window: every constant, comparison and
    branch."""
    (tmp_path / "m.specc").write_text(LOCAL)
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, init=0, weights_as="inline")
    judged, equivalent, missed = find_survivors(path, 200)
    assert not missed
    assert judged - len(equivalent) >= 40


@pytest.mark.parity
def test_mutants_of_a_mask_after_a_stride_are_killed(tmp_path: Path) -> None:
    """Four input positions are one mask position, so the constants need longer inputs."""
    (tmp_path / "m.specc").write_text(STRIDED)
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, init=0, weights_as="inline")
    assert not find_survivors(path, 200)[2]


def test_mutants_of_special_ids_counts_and_divisible_lengths_are_killed(tmp_path: Path) -> None:
    """An id that the model replaces, a maximum of counted positions, a length divisibility
    check."""
    (tmp_path / "m.specc").write_text(COUNTED)
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, init=0, weights_as="inline")
    assert not find_survivors(path, 200)[2]


@pytest.mark.parametrize("case", sample_sweep([*DECISIONS]))
def test_mutants_of_rare_decisions_are_killed(case: str, tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(DECISIONS[case])
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, init=0, weights_as="inline")
    judged, equivalent, missed = find_survivors(path, 200)
    assert not missed
    assert judged > len(equivalent)


@pytest.mark.parametrize("spec", sample_sweep(["llama", "t5", "luong_local_p"]))
def test_some_mutants_are_killed(spec: str, tmp_path: Path) -> None:
    _check_mutants(spec, tmp_path, SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted(SMALL_CONFIGS))
def test_mutants_of_every_spec_are_killed(spec: str, tmp_path: Path) -> None:
    _check_mutants(spec, tmp_path, MANY)


def _check_mutants(spec: str, directory: Path, most: int) -> None:
    path = directory / "m.onnx"
    specc.compile(spec, path, init=0, set=SMALL_CONFIGS[spec], weights_as="inline")
    assert find_survivors(path, most)[2] == []
