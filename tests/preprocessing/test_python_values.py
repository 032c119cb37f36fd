"""Values of other libraries as inputs; a fake implements the protocol where the library is not
needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input
from specc.ir.types import Type
from specc.preprocessing.image_prompts import prepare_images
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import CharTokenizer, ImageConfig
from specc.preprocessing.python_inputs import convert_input_value, convert_to_array

VOCAB = CharTokenizer(tuple("abcdefgh"))
READING = PreprocessingConfig(
    inputs=(("text", VOCAB), ("pixels", ImageConfig(size=(2, 2), channels=1)))
)
NUMBERS = [[0.0, 1.0], [2.0, 3.0]]
TEXTS = ["ab", "c"]


class FakeTensor:
    """A tensor of another library, with only the given protocols."""


def make_dlpack_tensor(array: Any, device: int = 1, **methods: Any) -> FakeTensor:
    def dlpack(self: FakeTensor, **options: Any) -> Any:
        return array.__dlpack__(**options)

    known = {"__dlpack__": dlpack, "__dlpack_device__": lambda self: (device, 0), **methods}
    return type("Tensor", (FakeTensor,), known)()


def make_array_column(array: Any, **methods: Any) -> FakeTensor:
    def method(self: FakeTensor, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(array, dtype)

    return type("Column", (FakeTensor,), {"__array__": method, **methods})()


class FakeGradientTensor(FakeTensor):
    """A tensor that requires grad: only `detach` returns an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("requires grad")

    def detach(self) -> Any:
        return make_array_column(NUMBERS)


def build_with_pandas(make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(pytest.importorskip("pandas"))


def build_with_arrow(make: Callable[[Any], Any]) -> Callable[[], Any]:
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
    "__array__": lambda: make_array_column(NUMBERS),
    "DLPack": lambda: make_dlpack_tensor(F32),
    "DLPack, pinned": lambda: make_dlpack_tensor(F32, device=3),
    "gradients": FakeGradientTensor,
    "rows of arrays": lambda: [F32[0], F32[1]],
    "rows of columns": lambda: [make_array_column(NUMBERS[0]), make_array_column(NUMBERS[1])],
    "arrow": build_with_arrow(lambda pa: [pa.array(row) for row in NUMBERS]),
    "arrow table": build_with_arrow(lambda pa: pa.table({"a": [0.0, 2.0], "b": [1.0, 3.0]})),
    "frame": build_with_pandas(lambda pd: pd.DataFrame(NUMBERS)),
}
AS_TEXTS = {
    "list": lambda: TEXTS,
    "tuple": lambda: tuple(TEXTS),
    "U": lambda: np.array(TEXTS),
    "objects": lambda: np.array(TEXTS, object),
    "__array__": lambda: make_array_column(np.array(TEXTS, object)),
    "list of NumPy texts": lambda: list(np.array(TEXTS)),
    "arrow": build_with_arrow(lambda pa: pa.array(TEXTS)),
    "arrow in chunks": build_with_arrow(lambda pa: pa.chunked_array([TEXTS[:1], TEXTS[1:]])),
    "series": build_with_pandas(lambda pd: pd.Series(TEXTS)),
    "strings of pandas": build_with_pandas(lambda pd: pd.Series(TEXTS, dtype="string")),
}


@pytest.mark.parametrize("kind", AS_NUMBERS)
def test_numeric_types(kind: str) -> None:
    array = convert_to_array(convert_input_value(AS_NUMBERS[kind](), "x"), "x")
    np.testing.assert_array_equal(array, F32)


@pytest.mark.parametrize("kind", AS_TEXTS)
def test_text_types(kind: str) -> None:
    made = convert_input_value(AS_TEXTS[kind](), "text")
    assert isinstance(made, list | tuple)
    assert [str(text) for text in made] == TEXTS
    assert all(isinstance(text, str) for text in made)


def test_numpy_string() -> None:
    made = convert_input_value(np.str_("ab"), "text")
    assert made == "ab"
    assert type(made) is str


@pytest.mark.parametrize("kind", ["path", "string", "image"])
def test_pil_images_and_paths(kind: str, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    page = np.arange(16, dtype=np.uint8).reshape(4, 4) * 10
    path = tmp_path / "a.png"
    pillow.fromarray(page).save(path)
    images = {"path": path, "string": str(path), "image": pillow.fromarray(page)}
    made = GraphBuilder()
    shape = Dim.symbol("batch"), *map(Dim.from_value, (1, 2, 2))
    made.add_input("pixels", Input(Type("f32", shape)))
    graph = made.build_graph("g", {})
    one = prepare_images(graph, READING, {"pixels": images[kind]})["pixels"]
    both = prepare_images(graph, READING, {"pixels": [path, images[kind]]})["pixels"]
    assert np.shape(both) == (2, 1, 2, 2)
    np.testing.assert_array_equal(np.asarray(both)[:1], one)
    np.testing.assert_array_equal(np.asarray(both)[1:], one)


REFUSED = {
    "on a GPU": (lambda: make_dlpack_tensor(F32, device=2), r"E0907.*accelerator[\s\S]*\.cpu\(\)"),
    "ROCm": (lambda: make_dlpack_tensor(F32, device=10), "E0907.*accelerator"),
    "masked": (lambda: np.ma.array([1.0], mask=[True]), "E0907.*masked"),
    "null in Arrow": (build_with_arrow(lambda pa: pa.array([1, None, 3])), "E0907.*row 1"),
    "null in a row": (build_with_arrow(lambda pa: [pa.array([1, None])]), "E0907.*row 1"),
    "a column that lies": (lambda: make_array_column([[1], [2, 3]]), "E0907.*cannot be converted"),
    "a generator": (lambda: (x for x in NUMBERS), r"E0906.*generator[\s\S]*list\("),
    "a set": (lambda: {1.0}, "E0906.*type set"),
    "a mapping": (lambda: {"a": 1.0}, "E0906.*type dict"),
    "bytes": (lambda: b"ab", r"E0906.*type bytes[\s\S]*decode"),
    "an object": (object, "E0906"),
    "a text among numbers": (lambda: [1.0, "b"], "E0906"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_lossy_conversions(kind: str) -> None:
    make, said = REFUSED[kind]
    value = make()
    with pytest.raises(SpeccError, match=said):
        convert_to_array(convert_input_value(value, "x"), "x")


def test_exception_in_a_protocol_method() -> None:
    class BrokenTensor:
        def __dlpack_device__(self) -> Any:
            raise OSError("\x1b[31mthe driver is gone")

        __dlpack__ = __dlpack_device__

    with pytest.raises(SpeccError, match=r"E0907.*cannot be converted") as failed:
        convert_input_value(BrokenTensor(), "x")
    assert "\x1b" not in str(failed.value)


def test_long_lists_are_converted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def record_call(value: object) -> bool:
        asked.append(value)
        return False

    monkeypatch.setattr("specc.preprocessing.python_inputs._is_array_like", record_call)
    many = [[1.0] * 100, [2] * 100]
    assert convert_input_value(many, "x") is many
    assert len(asked) == 2
