"""Arrays from files are validated, and converted only if no value changes."""

import contextlib
import io
import json
import zipfile

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.array_files import (
    cast_input_array,
    convert_lists_to_array,
    parse_json_arrays,
    parse_npy,
    read_arrays,
)


def get_error_code(action) -> str:
    with pytest.raises(SpeccError) as caught:
        action()
    return caught.value.diagnostics[0].code


def read_array(path: str) -> np.ndarray:
    (array,) = read_arrays(path).values()
    return array


def encode_npy(array: np.ndarray, **options: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">i8", "<i4", "|b1", "<f2", ">u2"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_npy_is_read_in_native_byte_order(tmp_path, dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    result = read_array(str(tmp_path / "a.npy"))
    np.testing.assert_array_equal(result, array)
    assert result.shape == shape
    assert result.dtype.isnative
    assert result.flags.c_contiguous


def test_fortran_order():
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    result = parse_npy(encode_npy(array), "x")
    np.testing.assert_array_equal(result, array)
    assert result.flags.c_contiguous


def test_named_arrays_of_npz_and_json(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", ids=[1, 2], keep=[True, False])
    assert {k: v.tolist() for k, v in read_arrays(str(tmp_path / "a.npz")).items()} == {
        "ids": [1, 2],
        "keep": [True, False],
    }
    (tmp_path / "a.json").write_text('{"ids": [[1, 2]], "x": [0.5]}')
    found = read_arrays(str(tmp_path / "a.json"))
    assert found["ids"].dtype == np.int64
    assert found["x"].dtype == np.float64


def test_python_objects_are_never_unpickled(tmp_path):
    class UnpickleTrap:
        def __reduce__(self):
            return (print, ("executed",))

    np.save(tmp_path / "t.npy", np.array([UnpickleTrap()], object), allow_pickle=True)
    assert get_error_code(lambda: read_array(str(tmp_path / "t.npy"))) == "E0905"


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([1j]), np.array([(1, 2)], "i4,i4"), np.zeros(2, "M8[s]")]
)
def test_unsupported_dtypes(array):
    assert get_error_code(lambda: parse_npy(encode_npy(array), "x")) == "E0905"


def test_wrong_shape_is_rejected_before_allocation():
    data = encode_npy(np.zeros(3))
    for shape in (b"(4,)", b"(2,)"):
        assert get_error_code(lambda s=shape: parse_npy(data.replace(b"(3,)", s), "x")) == "E0905"
    huge = data.replace(b"(3,), }            ", b"(3000000000000,), }")
    assert huge != data
    assert get_error_code(lambda: parse_npy(huge, "x")) == "E0905"


def test_damaged_files_raise_only_failed(tmp_path):
    rng = np.random.default_rng(0)
    stream = io.BytesIO()
    np.savez(stream, a=np.arange(5), b=np.ones((2, 2)))
    for data in (encode_npy(np.arange(12.0)), stream.getvalue()):
        path = tmp_path / "x.npz"
        for _ in range(300):
            hurt = bytearray(data)
            for place in rng.integers(0, len(hurt), 3):
                hurt[place] = rng.integers(0, 256)
            path.write_bytes(bytes(hurt[: rng.integers(1, len(hurt) + 1)]))
            with contextlib.suppress(SpeccError):
                read_arrays(str(path))


def test_zip_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr("specc.preprocessing.array_files.MAX_ARRAY_BYTES", 100_000)
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(1_000_000))
    assert get_error_code(lambda: read_arrays(str(tmp_path / "b.npz"))) == "E0904"


def test_file_size_limit(tmp_path, monkeypatch):
    data = encode_npy(np.zeros(4))
    (tmp_path / "a.npy").write_bytes(data)
    monkeypatch.setattr("specc.preprocessing.array_files.MAX_ARRAY_BYTES", len(data))
    assert read_array(str(tmp_path / "a.npy")).shape == (4,)
    monkeypatch.setattr("specc.preprocessing.array_files.MAX_ARRAY_BYTES", len(data) - 1)
    assert get_error_code(lambda: read_array(str(tmp_path / "a.npy"))) == "E0904"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1, 2", "line 1"),
        ("", "line 1"),
        ("[[1], [2, 3]]", "[1] is a list of 2"),
        ("[[1], 2]", "[1] is no list"),
        ("[1, [2]]", "[1] is a list"),
        ('["1"]', "[0] is not a number"),
        ("[null]", "[0] is null"),
        ("[1, true]", "mixed"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "Infinity"),
        ("[1e400]", "[0] is too large"),
        ("[9223372036854775808]", "64-bit range"),
        ("[" + "9" * 5000 + "]", "too many digits"),
        ("[" * 100_000, "too deep"),
        ("[" * 17 + "]" * 17, "nested more than 16 levels deep"),
        ('{"a": [1], "a": [2]}', "duplicate key"),
        ('{"a": {"b": 1}}', "not a number"),
    ],
)
def test_json_errors_name_the_position(text, why):
    with pytest.raises(SpeccError) as caught:
        parse_json_arrays(text.encode(), "x.json")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0906"
    assert why in diagnostic.title


def test_json_encoding():
    assert parse_json_arrays("[1]".encode("utf-8-sig"), "x")[""].tolist() == [1]
    assert get_error_code(lambda: parse_json_arrays(b"\xff\xfe[\x00", "x")) == "E0906"


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([1, 2], np.int32), "i64"),
        (np.array([1, 2**31 - 1], np.int64), "i32"),
        (np.array([0, 2**63 - 1], np.uint64), "i64"),
        (np.array([0.1, 1e38]), "f32"),
        (np.array([0.5], np.float16), "f64"),
        (np.array([2**24, -(2**24)]), "f32"),
        (np.array([2**53]), "f64"),
        (np.array([0, 1]), "bool"),
        (np.array([True]), "bool"),
        (np.array([1, 2], ">i4"), "i64"),
        (np.array([1.5], ">f4"), "f32"),
        (np.array([np.inf]), "f32"),
        (np.zeros((0, 3)), "f32"),
    ],
)
def test_exact_conversions(array, dtype):
    result = cast_input_array(array, dtype, "x")
    np.testing.assert_allclose(result.astype(float), array.astype(float), rtol=1e-7)
    assert result.dtype.isnative


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([2**31]), "i32"),
        (np.array([2**63], np.uint64), "i64"),
        (np.array([1e39]), "f32"),
        (np.array([70000.0]), "f16"),
        (np.array([2**24 + 1]), "f32"),
        (np.array([1.0]), "i64"),
        (np.array([1.0]), "bool"),
        (np.array([2]), "bool"),
        (np.array([True]), "f32"),
        (np.array([True]), "i64"),
        (np.array(["a"]), "f32"),
        (np.array([None]), "f32"),
    ],
)
def test_inexact_conversions(array, dtype):
    assert get_error_code(lambda: cast_input_array(array, dtype, "x")) == "E0907"


def test_json_round_trip_keeps_values():
    array = np.random.default_rng(0).normal(size=(3, 4))
    np.testing.assert_array_equal(
        parse_json_arrays(json.dumps(array.tolist()).encode(), "x")[""], array
    )


def test_tuples_and_error_names() -> None:
    assert convert_lists_to_array([(1, 2), (3, 4)], "ids").tolist() == [[1, 2], [3, 4]]
    with pytest.raises(
        SpeccError, match=r"cannot read numbers from what is given: \[0\] is not a number"
    ):
        convert_lists_to_array(["a"], "what is given")
