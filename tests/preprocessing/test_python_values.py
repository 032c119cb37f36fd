"""Values of other libraries as inputs: types by inputs, without any of these libraries
where a fake shows the same protocol.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specc.diagnostics.diagnostic import Failed
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.python_values import convert_input, convert_to_array
from specc.preprocessing.records import ImageRecord, TextCharacters

VOCAB = TextCharacters(tuple("abcdefgh"))
READING = PreprocessingConfig(
    inputs=(("text", VOCAB), ("pixels", ImageRecord(size=(2, 2), channels=1)))
)
NUMBERS = [[0.0, 1.0], [2.0, 3.0]]
TEXTS = ["ab", "c"]


class Fake:
    """A tensor of a library that is not here, seen by the protocols that it is given."""


def seen(array: Any, device: int = 1, **methods: Any) -> Fake:
    def dlpack(self: Fake, **options: Any) -> Any:
        return array.__dlpack__(**options)

    known = {"__dlpack__": dlpack, "__dlpack_device__": lambda self: (device, 0), **methods}
    return type("Tensor", (Fake,), known)()


def by_array(array: Any, **methods: Any) -> Fake:
    def method(self: Fake, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(array, dtype)

    return type("Column", (Fake,), {"__array__": method, **methods})()


class Tracked(Fake):
    """Follows gradients: nothing but `detach` gives an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("requires grad")

    def detach(self) -> Any:
        return by_array(NUMBERS)


def pandas(make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(pytest.importorskip("pandas"))


def arrow(make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(pytest.importorskip("pyarrow"))


F32 = np.array(NUMBERS, np.float32)
AS_NUMBERS = {
    "list": lambda: NUMBERS,
    "tuple": lambda: tuple(map(tuple, NUMBERS)),
    "f64": lambda: np.array(NUMBERS),
    "f16": lambda: np.array(NUMBERS, np.float16),
    "i32": lambda: np.array(NUMBERS, np.int32),
    "big-endian": lambda: np.array(NUMBERS, ">f4"),
    "a view": lambda: np.array(NUMBERS).T.T[::1],
    "__array__": lambda: by_array(NUMBERS),
    "DLPack": lambda: seen(F32),
    "DLPack, pinned": lambda: seen(F32, device=3),
    "gradients": Tracked,
    "rows of arrays": lambda: [F32[0], F32[1]],
    "rows of columns": lambda: [by_array(NUMBERS[0]), by_array(NUMBERS[1])],
    "arrow": arrow(lambda pa: [pa.array(row) for row in NUMBERS]),
    "arrow table": arrow(lambda pa: pa.table({"a": [0.0, 2.0], "b": [1.0, 3.0]})),
    "frame": pandas(lambda pd: pd.DataFrame(NUMBERS)),
}
AS_TEXTS = {
    "list": lambda: TEXTS,
    "tuple": lambda: tuple(TEXTS),
    "U": lambda: np.array(TEXTS),
    "objects": lambda: np.array(TEXTS, object),
    "__array__": lambda: by_array(np.array(TEXTS, object)),
    "list of NumPy texts": lambda: list(np.array(TEXTS)),
    "arrow": arrow(lambda pa: pa.array(TEXTS)),
    "arrow in chunks": arrow(lambda pa: pa.chunked_array([TEXTS[:1], TEXTS[1:]])),
    "series": pandas(lambda pd: pd.Series(TEXTS)),
    "strings of pandas": pandas(lambda pd: pd.Series(TEXTS, dtype="string")),
}


@pytest.mark.parametrize("kind", AS_NUMBERS)
def test_numbers_of_every_type_are_the_same_array(kind: str) -> None:
    array = convert_to_array(convert_input(READING, "x", AS_NUMBERS[kind]()), "x")
    np.testing.assert_array_equal(array, F32)


@pytest.mark.parametrize("kind", AS_TEXTS)
def test_texts_of_every_type_are_the_same_texts(kind: str) -> None:
    made = convert_input(READING, "text", AS_TEXTS[kind]())
    assert isinstance(made, list | tuple)
    assert [str(text) for text in made] == TEXTS
    assert all(isinstance(text, str) for text in made)


def test_one_text_of_numpy_is_one_text() -> None:
    made = convert_input(READING, "text", np.str_("ab"))
    assert made == "ab"
    assert type(made) is str


def test_a_picture_is_open_or_a_path(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    page = np.arange(16, dtype=np.uint8).reshape(4, 4) * 10
    pillow.fromarray(page).save(tmp_path / "a.png")
    with pillow.open(tmp_path / "a.png") as picture:
        opened = convert_input(READING, "pixels", picture)
    read = convert_input(READING, "pixels", tmp_path / "a.png")
    both = convert_input(READING, "pixels", [tmp_path / "a.png", pillow.fromarray(page)])
    assert np.shape(both) == (2, 1, 2, 2)
    np.testing.assert_array_equal(opened, read)
    np.testing.assert_array_equal(np.asarray(both)[1:], read)


REFUSED = {
    "on a GPU": (lambda: seen(F32, device=2), r"E0907.*device[\s\S]*\.cpu\(\)"),
    "ROCm": (lambda: seen(F32, device=10), "E0907.*device"),
    "masked": (lambda: np.ma.array([1.0], mask=[True]), "E0907.*masked"),
    "null in Arrow": (arrow(lambda pa: pa.array([1, None, 3])), "E0907.*row 1"),
    "null in a row": (arrow(lambda pa: [pa.array([1, None])]), "E0907.*row 1"),
    "a column that lies": (lambda: by_array([[1], [2, 3]]), "E0907.*cannot be converted"),
    "a generator": (lambda: (x for x in NUMBERS), r"E0906.*generator[\s\S]*list\("),
    "a set": (lambda: {1.0}, "E0906.*type set"),
    "a mapping": (lambda: {"a": 1.0}, "E0906.*type dict"),
    "bytes": (lambda: b"ab", r"E0906.*type bytes[\s\S]*decode"),
    "an object": (object, "E0906"),
    "a text among numbers": (lambda: [1.0, "b"], "E0906"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_lose_something_is_refused_by_name(kind: str) -> None:
    make, said = REFUSED[kind]
    value = make()
    with pytest.raises(Failed, match=said):
        convert_to_array(convert_input(READING, "x", value), "x")


def test_a_stranger_that_raises_is_no_exception() -> None:
    class Broken:
        def __dlpack_device__(self) -> Any:
            raise OSError("\x1b[31mthe driver is gone")

        __dlpack__ = __dlpack_device__

    with pytest.raises(Failed, match=r"E0907.*cannot be converted") as failed:
        convert_input(READING, "x", Broken())
    assert "\x1b" not in str(failed.value)


def test_many_numbers_are_not_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def noted(value: object) -> bool:
        asked.append(value)
        return False

    monkeypatch.setattr("specc.preprocessing.python_values._seen", noted)
    many = [[1.0] * 100, [2] * 100]
    assert convert_input(READING, "x", many) is many
    assert len(asked) == 2
