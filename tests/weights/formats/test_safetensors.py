"""The safetensors reader validates everything in a file; each kind of broken file has its own
message."""

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import SpeccError
from specc.weights.formats.safetensors import TensorFile, open_safetensors, write_safetensors

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write_raw_file(
    path: Path, header: object, data: bytes = bytes(8), *, length: int | None = None
) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def get_open_error(path: Path) -> str:
    """Return the code, title, notes and helps of the error of opening a file."""
    with pytest.raises(SpeccError) as failed:
        open_safetensors(path)
    (diagnostic,) = failed.value.diagnostics
    return " ".join((diagnostic.code, diagnostic.title, *diagnostic.notes, *diagnostic.helps))


def test_dtypes_round_trip(tmp_path: Path) -> None:
    tensors: dict[str, NDArray[Any]] = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "big": np.arange(3, dtype=">f8"),
        "bf16": np.array([1.5, -2], ml_dtypes.bfloat16),
        "f8": np.array([1, 2, 4], ml_dtypes.float8_e4m3fn),
        "flags": np.array([True, False]),
        "ids": np.array([[1], [2]], np.int64),
        "scalar": np.array(2.5, np.float16),
        "none": np.zeros((0, 4), np.float32),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }
    write_safetensors(tmp_path / "a.safetensors", tensors, {"format": "pt"})
    with open_safetensors(tmp_path / "a.safetensors") as file:
        assert dict(file.metadata) == {"format": "pt", "specc": "weights"}
        assert set(file.tensors) == set(tensors)
        for name, array in tensors.items():
            for found in (file.get_array(name), file.read_tensor(name)):
                assert found.shape == array.shape
                assert np.array_equal(found.astype(np.float64), array.astype(np.float64)), name
        assert not file.get_array("f32").flags.owndata
        assert str(file.tensors["bf16"]) == "bf16[2]"


def test_writing_is_deterministic(tmp_path: Path) -> None:
    a, b = np.ones(3, np.float32), np.ones(2, np.int8)
    write_safetensors(tmp_path / "1.safetensors", {"a": a, "b": b}, {"y": "1", "x": "2"})
    write_safetensors(tmp_path / "2.safetensors", {"b": b, "a": a}, {"x": "2", "y": "1"})
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()


def test_byte_range_is_streamed(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"a": np.arange(10, dtype=np.uint8)})
    with open_safetensors(tmp_path / "a.safetensors") as file:
        assert b"".join(map(bytes, file.iterate_chunks("a", 3, 4))) == bytes([3, 4, 5, 6])


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "Git LFS pointer"),
        (b"<!DOCTYPE html>\n<html>", "web page"),
        (b"\n<html>  {", "web page"),
        (b"PK\x03\x04\x00\x00\x00\x00\x08\x08rest", "zip archive"),
        (b"\x80\x02}q\x00(X\x03\x00", "Python pickle"),
        (b"GGUF\x03\x00\x00\x00\x01\x00\x00\x00", "GGUF"),
    ],
)
def test_other_file_formats_are_recognized(tmp_path: Path, head: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(head)
    assert get_open_error(path).startswith("E0502")
    assert words in get_open_error(path)


def make_header(**changes: object) -> dict[str, object]:
    return {"a": {**A, **changes}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"[]", "not a JSON object"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a"}', "not JSON"),
        (b"\xff{}", "not UTF-8"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":1}', "duplicate key 'a'"),
        (
            b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            "duplicate key 'dtype'",
        ),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":{"dtype":"F32","shape":[' + b"1" * 5000 + b'],"data_offsets":[0,8]}}', "not JSON"),
        ({"": A}, "no name"),
        ({"a": 1}, "exactly the fields"),
        (make_header(extra=1), "exactly the fields"),
        (make_header(dtype="F31"), "unknown dtype"),
        (make_header(dtype=3), "unknown dtype"),
        (make_header(shape=[2.0]), "not a list of at most 64 axis sizes"),
        (make_header(shape=[True, 2]), "not a list of at most 64 axis sizes"),
        (make_header(shape=[-2]), "not a list of at most 64 axis sizes"),
        (make_header(shape=[1 << 53]), "not a list of at most 64 axis sizes"),
        (make_header(shape=[1 << 30, 1 << 30, 0]), "more elements"),
        (make_header(shape=[3]), "takes 12 bytes, but its data_offsets span 8"),
        (make_header(dtype="F4", shape=[15]), "whole bytes"),
        (make_header(data_offsets=[8, 0]), "two increasing numbers"),
        (make_header(data_offsets=[0]), "two increasing numbers"),
        (make_header(data_offsets=[4, 12]), "unused bytes before it"),
        ({"a": A, "b": A}, "overlaps"),
        ({"a": A, "b": {**A, "data_offsets": [8, 16]}}, "truncated"),
        ({}, "8 bytes follow"),
        ({"__metadata__": {"a": 1}, "a": A}, "map of strings"),
    ],
)
def test_broken_headers(tmp_path: Path, header: object, words: str) -> None:
    found = get_open_error(write_raw_file(tmp_path / "a.safetensors", header))
    assert found.startswith("E0506")
    assert words in found


def test_header_lengths(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1234567")
    assert "7 bytes" in get_open_error(tmp_path / "short")
    assert "maximum 100000000" in get_open_error(
        write_raw_file(tmp_path / "c", {"a": A}, length=100_000_001)
    )
    assert "truncated" in get_open_error(write_raw_file(tmp_path / "d", {"a": A}, length=1000))


def test_header_padding(tmp_path: Path) -> None:
    path = write_raw_file(
        tmp_path / "a.safetensors", b"  " + json.dumps({"a": A}).encode() + b"   "
    )
    with open_safetensors(path) as file:
        assert file.get_array("a").tolist() == [0, 0]


def test_names_are_escaped_in_messages(tmp_path: Path) -> None:
    assert "\x1b" not in get_open_error(
        write_raw_file(tmp_path / "a.safetensors", {"\x1b[31m\n": 1})
    )


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, words in {
        "absent": "no such file",
        "pipe": "a pipe or a device",
        ".": "a directory",
        "loop": "symbolic links",
        "a\0b": "NUL",
    }.items():
        found = get_open_error(tmp_path / name)
        assert found.startswith("E0802")
        assert words in found
    assert "a pipe or a device" in get_open_error(Path("/dev/zero"))


def test_symlink_is_followed(tmp_path: Path) -> None:
    write_raw_file(tmp_path / "blob", {"a": A})
    (tmp_path / "model.safetensors").symlink_to("blob")
    with open_safetensors(tmp_path / "model.safetensors") as file:
        assert file.read_tensor("a").tolist() == [0, 0]


def test_dtypes_without_numpy_equivalent(tmp_path: Path) -> None:
    path = write_raw_file(tmp_path / "a.safetensors", make_header(dtype="F4", shape=[16]))
    with open_safetensors(path) as file, pytest.raises(SpeccError, match="E0508"):
        file.get_array("a")


def read_tensor(file: TensorFile, reading: str) -> None:
    if reading == "array":
        file.get_array("a")
    elif reading == "read":
        file.read_tensor("a")
    else:
        list(file.iterate_chunks("a"))


@pytest.mark.parametrize("how", ["truncated", "replaced", "removed", "grown"])
@pytest.mark.parametrize("reading", ["array", "read", "chunks"])
def test_concurrent_change_is_detected(tmp_path: Path, how: str, reading: str) -> None:
    path = write_raw_file(tmp_path / "a.safetensors", {"a": A})
    with open_safetensors(path) as file:
        if how == "truncated":
            os.truncate(path, 60)
        elif how == "grown":
            with path.open("ab") as more:
                more.write(b"x")
        elif how == "removed":
            path.unlink()
        else:
            write_raw_file(tmp_path / "b", {"a": A}).replace(path)
        with pytest.raises(SpeccError, match="E0512"):
            read_tensor(file, reading)


def test_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    path, one = tmp_path / "w.safetensors", {"a": np.ones(3, np.float32)}
    for name, code in (("w.onnx", "E0816"), ("w.safetensors", "E0833")):
        (tmp_path / name).write_bytes(b"precious")
        with pytest.raises(SpeccError, match=code):
            write_safetensors(tmp_path / name, one)
        assert (tmp_path / name).read_bytes() == b"precious"
    write_safetensors(path, one, force=True)
    write_safetensors(path, {"a": np.zeros(3, np.float32)})  # specc wrote the file by now
    with open_safetensors(path) as file:
        assert not file.get_array("a").any()
