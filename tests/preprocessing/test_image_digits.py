"""The demo's sample pictures are the held-out digits: what is read is what the model
was made for.
"""

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from specc.preprocessing.images import decode_image, normalize_image, read_image
from specc.preprocessing.records import ImageRecord

FOLDER = Path(__file__).parents[2] / "docs" / "demos" / "digits"
DIGIT = ImageRecord(size=(8, 8), channels=1, resize="box", scale=1 / 255, invert="auto")
HALF_LEVEL = 0.5 / 255 + 1e-6


@pytest.fixture(scope="module")
def digits():
    """Imported by the test that runs, as it takes a second."""
    return pytest.importorskip("sklearn.datasets").load_digits()


@pytest.fixture(scope="module")
def script(digits):
    spec = importlib.util.spec_from_file_location("make_samples", FOLDER / "make_samples.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_sample_reads_as_a_held_out_digit_of_its_name(script, digits):
    assert len(list(FOLDER.glob("*.png"))) >= len(script.SAMPLES)
    for name in script.SAMPLES:
        values = read_image(str(FOLDER / f"{name}.png"), DIGIT)
        assert values.shape == (1, 1, 8, 8)
        distance = np.abs(digits.images / 16 - values[0]).max(axis=(1, 2))
        index = int(distance.argmin())
        assert distance[index] <= HALF_LEVEL
        assert index % 5 == 0
        assert digits.target[index] == script.NAMES.index(name)


def test_the_files_are_what_the_script_makes(script):
    for name, values in script.samples().items():
        on_disk = np.asarray(Pillow.open(FOLDER / f"{name}.png"))
        np.testing.assert_array_equal(on_disk, script.picture(values))


def test_the_way_there_and_back_is_exact_for_other_digits_too(script, digits):
    for values in digits.images[5:60:11]:
        stream = io.BytesIO()
        Pillow.fromarray(script.picture(values)).save(stream, "PNG")
        result = normalize_image(decode_image(stream.getvalue(), "x"), DIGIT)[0, 0]
        assert np.abs(result - values / 16).max() <= HALF_LEVEL
