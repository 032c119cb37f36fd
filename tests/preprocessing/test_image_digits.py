"""The sample images of the demo equal the held-out digits that the model expects."""

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from support.image_files import read_image

from specc.preprocessing.images import decode_image, resize_and_normalize_image
from specc.preprocessing.preprocessing_records import ImageConfig

FOLDER = Path(__file__).parents[2] / "docs" / "demos" / "digits"
DIGIT = ImageConfig(size=(8, 8), channels=1, resample="box", scale=1 / 255, invert="auto")
HALF_LEVEL = 0.5 / 255 + 1e-6


@pytest.fixture(scope="module")
def digits():
    """Load the data set in the first test that uses it, because the import takes a second."""
    return pytest.importorskip("sklearn.datasets").load_digits()


@pytest.fixture(scope="module")
def script(digits):
    spec = importlib.util.spec_from_file_location("make_samples", FOLDER / "make_samples.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parity
def test_samples_equal_held_out_digits(script, digits):
    assert len(list(FOLDER.glob("*.png"))) >= len(script.SAMPLES)
    for name in script.SAMPLES:
        values = read_image(str(FOLDER / f"{name}.png"), DIGIT)
        assert values.shape == (1, 1, 8, 8)
        distance = np.abs(digits.images / 16 - values[0]).max(axis=(1, 2))
        index = int(distance.argmin())
        assert distance[index] <= HALF_LEVEL
        assert index % 5 == 0
        assert digits.target[index] == script.NAMES.index(name)


@pytest.mark.parity
def test_script_reproduces_the_files(script):
    for name, values in script.choose_samples().items():
        on_disk = np.asarray(Pillow.open(FOLDER / f"{name}.png"))
        np.testing.assert_array_equal(on_disk, script.render_digit(values))


def test_image_round_trip(script, digits):
    for values in digits.images[5:60:11]:
        stream = io.BytesIO()
        Pillow.fromarray(script.render_digit(values)).save(stream, "PNG")
        result = resize_and_normalize_image(decode_image(stream.getvalue(), "x"), DIGIT)[0, 0]
        assert np.abs(result - values / 16).max() <= HALF_LEVEL
