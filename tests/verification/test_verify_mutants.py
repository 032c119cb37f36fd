"""`specc verify` kills every mutant of a compiled model that changes a result for valid
inputs; those that survive change none.
"""

from pathlib import Path

import pytest
from support.model_mutants import find_survivors
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
SAMPLE, MANY = 8, 60
"""Mutants of a spec, chosen at random."""


def test_mutants_of_blocked_attention_are_killed(tmp_path: Path) -> None:
    """Masks with keys apart, any score in a window: every constant, comparison, branch."""
    (tmp_path / "m.specc").write_text(LOCAL)
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, init=0, weights_as="inline")
    judged, equivalent, missed = find_survivors(path, 200)
    assert not missed
    assert judged - len(equivalent) >= 40


def test_mutants_of_a_mask_after_a_stride_are_killed(tmp_path: Path) -> None:
    """Four positions of the input are one of the mask: its constants need longer inputs."""
    (tmp_path / "m.specc").write_text(STRIDED)
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, init=0, weights_as="inline")
    assert not find_survivors(path, 200)[2]


def test_mutants_of_special_ids_counts_and_divisible_lengths_are_killed(tmp_path: Path) -> None:
    """An id that the model replaces, a limit of counted positions, a length without rest."""
    (tmp_path / "m.specc").write_text(COUNTED)
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, init=0, weights_as="inline")
    assert not find_survivors(path, 200)[2]


@pytest.mark.parametrize("spec", ["llama", "t5", "luong_local_p"])
def test_some_mutants_are_killed(spec: str, tmp_path: Path) -> None:
    _check(spec, tmp_path, SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted(SMALL_CONFIGS))
def test_mutants_of_every_spec_are_killed(spec: str, tmp_path: Path) -> None:
    _check(spec, tmp_path, MANY)


def _check(spec: str, directory: Path, most: int) -> None:
    path = directory / "m.onnx"
    specc.compile(spec, path, init=0, set=SMALL_CONFIGS[spec], weights_as="inline")
    assert find_survivors(path, most)[2] == []
