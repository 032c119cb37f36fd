"""The GloVe text format: parsed values, and errors with their line."""

from pathlib import Path

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.weights.formats.glove import read_glove


def write_vectors(directory: Path, text: str | bytes) -> Path:
    path = directory / "vectors.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_one_vector_per_line(tmp_path: Path) -> None:
    found = read_glove(
        write_vectors(tmp_path, "the 0.418 -2.5e-1\r\n, 1 2\nnaïve .5 -3\n. . 4 5\n1.5 6 7")
    )
    assert found.words == ("the", ",", "naïve", ". .", "1.5")
    assert found.vectors.dtype == np.float32
    wanted = [[0.418, -0.25], [1, 2], [0.5, -3], [4, 5], [6, 7]]
    np.testing.assert_array_equal(found.vectors, np.array(wanted, np.float32))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "it is empty"),
        ("the\n", "line 1: expected 1 numbers after the word, got 0"),
        ("the 1 2\nof 1\n", "line 2: expected 2 numbers"),
        ("the 1 2\nof 1 2 3\n", "line 2: expected a word and 2 numbers, got 4 fields"),
        ("the 1 2\nof  2\n", "line 2: `` is not a number"),
        ("the 1 2\n\n", "line 2: expected 2 numbers"),
        (" 1 2\n", "line 1: expected a word"),
        ("the 1 2\nof 1 nan\n", "line 2: `nan` is not a number"),
        ("the 1 2\nof 1 1e999\n", "line 2: `1e999` is not a number"),
        ("the 1 2\nof 1 1e39\n", "line 2: a value is too large for float32"),
        ("the 1 2\nof 1 1_0\n", "line 2: `1_0` is not a number"),
        ("the 1 2\nof 1 2\nthe 3 4\n", "line 3: duplicate word `the`, first in line 1"),
        ("4 2\nthe 1 2\n", "word2vec"),
        (b"the 1 2\n\xff 1 2\n", "line 2: it is not UTF-8"),
        (b"x" * (1 << 20) + b" 1\n", "line 1: at most"),
    ],
)
def test_first_invalid_line_is_reported(text: str | bytes, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(SpeccError) as failed:
        read_glove(write_vectors(tmp_path, text))
    (d,) = failed.value.diagnostics
    assert d.code == "E0524"
    assert wanted in d.notes[0]


def test_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SpeccError) as failed:
        read_glove(tmp_path)
    assert failed.value.diagnostics[0].code == "E0802"
