"""Checkpoints as one file, as shards with an index, or as directories; and errors for other
files."""

import json
from pathlib import Path

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.weights.checkpoint_files import open_checkpoint
from specc.weights.formats.safetensors import write_safetensors

ONE, TWO = np.ones(2, np.float32), np.zeros(3, np.float32)


def write_shards(directory: Path) -> dict[str, str]:
    write_safetensors(directory / "model-1.safetensors", {"a": ONE})
    write_safetensors(directory / "model-2.safetensors", {"b": TWO})
    return {"a": "model-1.safetensors", "b": "model-2.safetensors"}


def write_index(directory: Path, weight_map: object) -> Path:
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def get_open_error(path: Path) -> str:
    with pytest.raises(SpeccError) as failed:
        open_checkpoint(path)
    (d,) = failed.value.diagnostics
    return " ".join((d.code, d.title, *d.notes, *d.helps))


def test_file_or_directory(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "other.safetensors", {"a": ONE})
    for path in (tmp_path, tmp_path / "other.safetensors"):
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.read_tensor("a").tolist() == [1, 1]
    write_safetensors(tmp_path / "model.safetensors", {"b": TWO})
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint.tensors) == {"b"}


def test_sharded_checkpoint(tmp_path: Path) -> None:
    path = write_index(tmp_path, write_shards(tmp_path))
    for given in (tmp_path, path):
        with open_checkpoint(given) as checkpoint:
            assert set(checkpoint.tensors) == {"a", "b"}
            assert checkpoint.get_file("b").path.name == "model-2.safetensors"
            assert checkpoint.read_tensor("b").tolist() == [0, 0, 0]


def test_single_file_takes_precedence_over_shards(tmp_path: Path) -> None:
    """As in transformers, which leaves an old index next to a smaller model."""
    write_index(tmp_path, write_shards(tmp_path))
    write_safetensors(tmp_path / "model.safetensors", {"c": ONE})
    (tmp_path / "model-1.safetensors").unlink()
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint.tensors) == {"c"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": "../model-1.safetensors"}, "not a .safetensors file in its directory"),
        ({"a": "/etc/model.safetensors"}, "not a .safetensors file in its directory"),
        ({"a": ".safetensors"}, "not a .safetensors file in its directory"),
        ({"a": "model-3.safetensors"}, "which does not exist"),
        ({"a": "model-2.safetensors"}, "is missing in model-2.safetensors"),
        ({"c": "model-1.safetensors"}, "is missing in model-1.safetensors"),
        ({"b": None}, "weight_map"),
    ],
)
def test_wrong_index(tmp_path: Path, change: dict[str, str], words: str) -> None:
    write_index(tmp_path, {**write_shards(tmp_path), **change})
    found = get_open_error(tmp_path)
    assert found.startswith("E0509")
    assert words in found


def test_duplicate_and_unlisted_tensors(tmp_path: Path) -> None:
    files = write_shards(tmp_path)
    write_safetensors(tmp_path / "model-2.safetensors", {"b": TWO, "a": ONE})
    write_index(tmp_path, files)
    assert "is in model-1.safetensors and in model-2.safetensors" in get_open_error(tmp_path)
    write_safetensors(tmp_path / "model-2.safetensors", {"b": TWO, "c": ONE})
    assert "`c` in model-2.safetensors is not listed" in get_open_error(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": {"a": "x", "a": "y"}}',
        "[" * 100_000,
        "<html>",
    ],
)
def test_malformed_index(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    assert get_open_error(path).startswith("E0509")


def test_pickle_is_rejected_with_a_conversion_command(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        found = get_open_error(path)
        assert found.startswith("E0514")
        assert "python -c" in found
        assert "pytorch_model.safetensors" in found


def test_ambiguous_directories(tmp_path: Path) -> None:
    assert get_open_error(tmp_path).startswith("E0518")
    write_safetensors(tmp_path / "a.safetensors", {"a": ONE})
    write_safetensors(tmp_path / "b.safetensors", {"a": ONE})
    assert "several sets of weights" in get_open_error(tmp_path)
    (tmp_path / "b.safetensors").rename(tmp_path / "b-00001-of-00002.safetensors")
    assert "several sets of weights" in get_open_error(tmp_path)
    assert get_open_error(tmp_path / "absent").startswith("E0802")


def test_shards_without_index(tmp_path: Path) -> None:
    for n in (1, 2):
        write_safetensors(tmp_path / f"m-0000{n}-of-00002.safetensors", {"a": ONE})
    found = get_open_error(tmp_path)
    assert found.startswith("E0518")
    assert "download `m.safetensors.index.json`" in found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tf_model.h5", "is a TensorFlow checkpoint"),
        ("flax_model.msgpack", "is a Flax checkpoint"),
        ("model.safetensors.incomplete", "is an incomplete download"),
    ],
)
def test_unsupported_weight_formats(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    found = get_open_error(tmp_path)
    assert found.startswith("E0518")
    assert f"`{name}` {said}" in found


def test_dangling_symlink(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("blobs/1")
    found = get_open_error(tmp_path)
    assert found.startswith("E0802")
    assert "it is a link to `blobs/1`, which does not exist" in found
    assert "download the file again" in found
