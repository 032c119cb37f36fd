"""Weight placement: linked where every ONNX reader can follow, otherwise aligned in an own file."""

import os
from pathlib import Path

import pytest

from specc.weights.external_data import (
    PAGE_ALIGNED_BYTES,
    ExternalDataLocation,
    ExternalTensor,
    can_store_tensors_inline,
    count_tensor_bytes,
    iterate_external_data,
    plan_external_data,
    resolve_external_path,
)
from specc.weights.parameter_sources import ByteRange


def make_piece(name: str, nbytes: int, path: Path | None = None, offset: int = 0) -> ExternalTensor:
    return ExternalTensor(name, "f32", nbytes, ByteRange(path, offset, nbytes) if path else None)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "ck").mkdir()
    path = tmp_path / "ck" / "model.safetensors"
    path.write_bytes(bytes(1000))
    return path


def test_copied_tensors_are_aligned(tmp_path: Path) -> None:
    found = plan_external_data(
        [
            make_piece("a", 10),
            make_piece("b", 4),
            make_piece("big", PAGE_ALIGNED_BYTES),
            make_piece("empty", 0),
        ],
        tmp_path,
        link=True,
    )
    assert found.copied_tensors == {
        "a": (0, 10),
        "b": (64, 4),
        "big": (4096, PAGE_ALIGNED_BYTES),
        "empty": (4096 + PAGE_ALIGNED_BYTES, 0),
    }
    assert found.get_tensor_locations("w.bin")["b"] == ExternalDataLocation("w.bin", 64, 4)
    data = b"".join(
        map(
            bytes,
            iterate_external_data(
                found, lambda n: [memoryview(n[0].encode() * found.copied_tensors[n][1])]
            ),
        )
    )
    assert len(data) == found.copied_bytes
    assert data[:10] == b"a" * 10
    assert data[10:64] == bytes(54)
    assert data[64:68] == b"bbbb"


def test_weights_below_the_output_directory_are_linked(tmp_path: Path, weights: Path) -> None:
    found = plan_external_data(
        [make_piece("a", 16, weights, 72), make_piece("b", 8)], tmp_path, link=True
    )
    assert found.linked_tensors == {"a": ExternalDataLocation("ck/model.safetensors", 72, 16)}
    assert set(found.copied_tensors) == {"b"}
    assert (
        plan_external_data([make_piece("a", 16, weights)], tmp_path, link=False).linked_tensors
        == {}
    )


def test_misaligned_weights_are_copied(tmp_path: Path, weights: Path) -> None:
    found = plan_external_data(
        [make_piece("a", 16, weights, 72), make_piece("b", 16, weights, 128)],
        tmp_path,
        link=True,
        alignment=64,
    )
    assert set(found.linked_tensors) == {"b"}
    assert set(found.copied_tensors) == {"a"}
    assert not found.copy_reasons


def test_reasons_against_linking(tmp_path: Path, weights: Path) -> None:
    inside = tmp_path / "ck" / "out"
    inside.mkdir()
    assert "is outside the output directory" in str(resolve_external_path(weights, inside))
    os.link(weights, tmp_path / "second")
    assert "2 hard links" in str(resolve_external_path(weights, tmp_path))
    assert "cannot be read" in str(resolve_external_path(tmp_path / "absent", tmp_path))
    found = plan_external_data(
        [make_piece("a", 16, weights), make_piece("b", 16, weights, 16)], tmp_path, link=True
    )
    assert list(found.copy_reasons) == [weights]


def test_symlinks_are_resolved(tmp_path: Path, weights: Path) -> None:
    (tmp_path / "alias.safetensors").symlink_to(weights)
    assert resolve_external_path(tmp_path / "alias.safetensors", tmp_path) == (
        "ck/model.safetensors",
    )
    outside = tmp_path / "out"
    outside.mkdir()
    (outside / "alias.safetensors").symlink_to(weights)
    assert "is outside the output directory" in str(
        resolve_external_path(outside / "alias.safetensors", outside)
    )


def test_sizes() -> None:
    assert count_tensor_bytes((3, 5), "bf16") == 30
    assert count_tensor_bytes((), "f32") == 4
    assert can_store_tensors_inline([make_piece("a", 1 << 30)])
    assert not can_store_tensors_inline([make_piece("a", 1 << 30), make_piece("b", 1 << 30)])
