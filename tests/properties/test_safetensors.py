"""Properties of the safetensors reader and writer, on generated and on damaged files."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import SpeccError
from specc.io.file_type_detection import PRODUCER_NAME
from specc.weights.formats.safetensors import open_safetensors, write_safetensors

DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    np.int64,
    np.uint8,
    np.bool_,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e5m2,
]

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda n: n != "__metadata__"
)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    dtype, shape = np.dtype(draw(st.sampled_from(DTYPES))), draw(shapes)
    count = int(np.prod(shape, dtype=np.int64))
    return (np.arange(count) % 2).astype(dtype).reshape(shape)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laws") / "a.safetensors"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tensors=st.dictionaries(names, arrays(), max_size=5),
    metadata=st.dictionaries(names, st.text("ab"), max_size=2),
)
def test_reading_is_the_inverse_of_writing(
    place: Path, tensors: dict[str, NDArray[Any]], metadata: dict[str, str]
) -> None:
    write_safetensors(place, tensors, metadata)
    with open_safetensors(place) as file:
        assert dict(file.metadata) == {PRODUCER_NAME: "weights", **metadata}
        assert file.size == place.stat().st_size
        assert set(file.tensors) == set(tensors)
        for name, array in tensors.items():
            found = file.get_array(name)
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert (
                found.tobytes()
                == array.tobytes()
                == b"".join(map(bytes, file.iterate_chunks(name)))
            )
            assert file.tensors[name].offset % array.dtype.itemsize == 0


SEED = json.dumps(
    {
        "__metadata__": {"format": "pt"},
        "h.0.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "h.0.bias": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
).encode()
WHOLE = len(SEED).to_bytes(8, "little") + SEED + bytes(32)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, len(WHOLE)) | st.none(),
)
def test_a_damaged_file_is_read_or_refused_but_never_crashes(
    place: Path, edits: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(WHOLE)
    for at, value in edits:
        data[at] = value
    place.write_bytes(data[:cut])
    try:
        file = open_safetensors(place)
    except SpeccError as failed:
        codes = [d.code for d in failed.diagnostics]
    else:
        codes = ["E0506"]
        with file:
            for name, entry in file.tensors.items():
                assert entry.offset + entry.nbytes <= file.size
                if entry.dtype[:2] not in ("f4", "f6"):
                    assert file.read_tensor(name).shape == entry.shape
    assert codes in (["E0502"], ["E0506"])


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(place: Path, data: bytes) -> None:
    place.write_bytes(data)
    with pytest.raises(SpeccError):
        open_safetensors(place)
