"""Several images per text: assignment of images to texts in Python, on the command line and in data
sets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.api import Model
from specc.batch_inference.row_batches_and_cost_model import RowConverter
from specc.cli.run_inputs import parse_input_arguments
from specc.diagnostics.diagnostic import SpeccError

SPEC = """specc 1
model s

dims batch, n, pictures >= 1

reading {
  ids = text(bytes())
  pixels = image(size=[2, 2], channels=1)
}

graph g(ids: int[batch, n], pixels: float[batch, pictures, 1, 2, 2], keep: keep[batch, n] = ids >=
0THERE) -> (y: float[batch, pictures], z: float[batch, n]) { return GIVEN, where(keep, 1.0, 0.0) }
"""
THERE = ",\n there: bool[batch, pictures] = max(merge(pixels, axis=2, count=3), axis=2) > 0.0"
GIVEN = "where(there, pixels[:, :, 0, 0, 0], -1.0)"


def compile_model(directory: Path, there: str = THERE, given: str = GIVEN) -> Model:
    path = directory / "s.specc"
    path.write_text(SPEC.replace("THERE", there).replace("GIVEN", given))
    specc.compile(path, directory / "s.onnx")
    return specc.load(directory / "s.onnx")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return compile_model(tmp_path_factory.mktemp("several"))


@pytest.fixture(autouse=True)
def write_gray_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write uniformly gray images: `51.png` has 0.2 of white."""
    image = pytest.importorskip("PIL.Image")
    for value in (51, 102, 255):
        image.new("L", (2, 2), value).save(tmp_path / f"{value}.png")
    monkeypatch.chdir(tmp_path)


A, B, C = (np.full((1, 2, 2), value, np.float32) for value in (0.2, 0.4, 1.0))
PATHS = [Path("51.png"), Path("102.png"), Path("255.png")]
IN_PYTHON: dict[str, tuple[Any, Any, list[list[float]]]] = {
    "one": ("x", PATHS[0], [[0.2]]),
    "all of one text": ("x", PATHS, [[0.2, 0.4, 1.0]]),
    "one of each text": (["x", "y"], PATHS[:2], [[0.2], [0.4]]),
    "lists": (["x", "yy"], [PATHS[:2], PATHS[2:]], [[0.2, 0.4], [1.0, -1.0]]),
    "a list": ("x", [PATHS[:2]], [[0.2, 0.4]]),
    "an array in a row": ("x", np.stack([A, B]), [[0.2, 0.4]]),
    "an array for each": (["x", "y"], np.stack([A, B]), [[0.2], [0.4]]),
    "arrays": (["x", "y"], [np.stack([A, B]), np.stack([C])], [[0.2, 0.4], [1.0, -1.0]]),
    "a whole array": (["x", "y"], np.stack([[A, B], [C, A]]), [[0.2, 0.4], [1, 0.2]]),
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_in_python(name: str, model: Model) -> None:
    texts, pictures, wanted = IN_PYTHON[name]
    np.testing.assert_allclose(model.run(ids=texts, pixels=pictures)["y"], wanted)


WORDS: list[tuple[list[str], list[list[float]]]] = [
    (["x", "51.png"], [[0.2]]),
    (["x", "pixels=51.png", "pixels=102.png"], [[0.2, 0.4]]),
    (["ids=x", "ids=y", "51.png", "102.png"], [[0.2], [0.4]]),
    (["x", '["51.png", "102.png"]'], [[0.2, 0.4]]),
    (['["x", "yy"]', 'pixels=["51.png", "102.png"]', "pixels=255.png"], [[0.2, 0.4], [1, -1]]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "wanted"), WORDS)
def test_on_the_command_line(words: list[str], wanted: list[list[float]], model: Model) -> None:
    given = parse_input_arguments(model.input_signature, words)
    assert {w for w in given.files if w.endswith("png")} == set(given.files)
    np.testing.assert_allclose(model.run(**given.inputs)["y"], wanted)


def test_in_a_table(model: Model) -> None:
    taking = RowConverter(model.input_signature, {"ids": "text", "pixels": "image"})
    table = {"text": ["x", "y", "z"], "image": [["51.png", "102.png"], "255.png", []]}
    one, other, none = taking.convert_rows(table, 3)
    assert one.arrays["pixels"].shape == (2, 1, 2, 2)
    assert other.arrays["pixels"].shape == (1, 1, 2, 2)
    assert none.code == "E0903"


@pytest.mark.parametrize(
    ("texts", "pictures", "code"),
    [
        (["x", "y"], PATHS, "E0912"),
        (["x", "y"], np.stack([A, B, C]), "E0912"),
        (["x", "y"], [PATHS[:2]], "E0912"),
    ],
)
def test_ambiguous_image_lists(texts: list[str], pictures: Any, code: str, model: Model) -> None:
    with pytest.raises(SpeccError) as failed:
        model.run(ids=texts, pixels=pictures)
    assert failed.value.diagnostics[0].code == code


@pytest.mark.parametrize("word", ["[]", "[1]", '["51.png", 2]'])
def test_list_without_paths(word: str, model: Model) -> None:
    with pytest.raises(SpeccError) as failed:
        parse_input_arguments(model.input_signature, ["x", word])
    assert failed.value.diagnostics[0].code == "E0906"


def test_model_without_an_image_mask(tmp_path: Path) -> None:
    blind = compile_model(tmp_path, "", "pixels[:, :, 0, 0, 0]")
    assert blind.run(ids=["x", "y"], pixels=[PATHS[:1], PATHS[1:2]])["y"].shape == (2, 1)
    with pytest.raises(SpeccError) as failed:
        blind.run(ids=["x", "y"], pixels=[PATHS[:2], PATHS[2:]])
    assert failed.value.diagnostics[0].code == "E0912"
