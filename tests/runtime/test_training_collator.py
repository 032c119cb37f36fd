"""Convert rows of training data to model inputs and labels."""

from pathlib import Path

import numpy as np
import pytest
from support.image_files import read_image

import specc
from specc.driver.spec_loader import open_spec_argument
from specc.driver.weight_sources import WeightSources, load_training_model
from specc.preprocessing.preprocessing_records import ImageConfig
from specc.runtime.training_collator import IGNORE_INDEX, TrainingCollator

DIGITS = Path(__file__).parents[2] / "docs" / "demos" / "digits"
WORDS = """specc 1
model words
dims batch, n
graph g(ids: int[batch, n], keep: keep[batch, n] = ids >= 0) -> (logits: float[batch, n, 9]) {
  x = embedding(ids, size=9, dim=4) @ e
  h, _ = attend(x, x, x, mask=causal & visible(keep))
  return linear(x + h, out=9) @ w
}
generate text of ids from logits { SAID stop = 8 }
reading { ids = text(characters(["<pad>", "a", "b", "c", "d", "e", "f", "g", "<end>"])) }
"""


def lessons(spec: str) -> TrainingCollator:
    found = load_training_model(open_spec_argument(spec), WeightSources(init=0))
    return TrainingCollator(
        graph=found.graph,
        preprocessing=found.preprocessing,
        defaults=found.defaults,
        generation=found.generation,
    )


@pytest.fixture(scope="module")
def digits() -> TrainingCollator:
    return lessons("digits")


@pytest.fixture(scope="module")
def dates() -> TrainingCollator:
    return lessons("dates")


def test_images_are_preprocessed_as_in_run(digits: TrainingCollator) -> None:
    paths = [str(DIGITS / f"{name}.png") for name in ("seven", "three")]
    record = digits.preprocessing.get_input_config("pixel_values")
    assert isinstance(record, ImageConfig)
    pixels = np.concatenate([read_image(path, record) for path in paths])
    labels = ["7", "3"]
    made = digits.make_batch(
        [{"pixel_values": p, "logits": n} for p, n in zip(paths, labels, strict=True)]
    )
    assert made.targets["logits"].tolist() == [7, 3]
    assert made.targets["logits"].dtype == np.int64
    np.testing.assert_array_equal(made.inputs["pixel_values"], pixels)
    # preprocessed pixels and class indices are accepted too
    again = digits.make_batch(
        [{"pixel_values": pixels[:1], "logits": 7}, {"pixel_values": pixels[1], "logits": 3}]
    )
    np.testing.assert_array_equal(again.inputs["pixel_values"], pixels)
    assert again.targets["logits"].tolist() == [7, 3]


def test_labels_follow_the_start_token_and_include_the_stop_token(dates: TrainingCollator) -> None:
    rows = [
        {"source": "3 mai 1979", "target": "1979-05-03"},
        {"source": "25/12/79", "target": "1979-12-25"},
    ]
    given, wanted = dates.make_batch(rows)
    assert given["source_keep"].sum(-1).tolist() == [11, 9]  # with their stop tokens
    # start = 1, stop = 2 (rnnsearch's config): the sequence is shifted by one token
    assert given["target"][:, 0].tolist() == [1, 1]
    assert wanted["logits"][:, -1].tolist() == [2, 2]
    np.testing.assert_array_equal(given["target"][:, 1:], wanted["logits"][:, :-1])


def test_without_a_start_token_the_first_token_is_input_only() -> None:
    made = lessons(WORDS.replace("SAID", ""))
    given, wanted = made.make_batch([{"ids": "abc"}, {"ids": "d"}])
    assert given["ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert given["keep"].tolist() == [[True, True, True], [True, False, False]]
    assert wanted["logits"].tolist() == [[2, 3, 8], [8, IGNORE_INDEX, IGNORE_INDEX]]


def test_several_start_tokens_are_not_labels() -> None:
    made = lessons(WORDS.replace("SAID", "start = [7, 6]"))
    given, wanted = made.make_batch([{"ids": "ab"}])
    assert given["ids"].tolist() == [[7, 6, 1, 2]]
    assert wanted["logits"].tolist() == [[IGNORE_INDEX, 1, 2, 8]]


def test_explicit_labels_need_tokenized_text() -> None:
    made = lessons(WORDS.replace("SAID", ""))
    ids = np.array([1, 2, 3])
    given, wanted = made.make_batch([{"ids": ids, "logits": ids + 1}])
    assert given["ids"].tolist() == [[1, 2, 3]]
    assert wanted["logits"].tolist() == [[2, 3, 4]]


def test_rows_of_different_lengths_are_padded_if_the_model_has_a_mask() -> None:
    made = lessons(WORDS.replace("SAID", ""))
    rows = [
        {"ids": np.array([1, 2]), "logits": np.array([2, 3])},
        {"ids": np.array([4]), "logits": np.array([8])},
    ]
    given, wanted = made.make_batch(rows)
    assert given["keep"].tolist() in ([[True, True], [True, False]], [[True, True], [False, True]])
    assert wanted["logits"].tolist() == [[2, 3], [8, IGNORE_INDEX]]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], "E0946"),
        ([3], "E0946.*type int"),
        ({"pixel_values": "x.png", "logits": 1}, r"E0946.*type dict[\s\S]*\[example\]"),
        ("x.png", "E0946.*type str"),
        (5, "E0946.*type int"),
        (None, "E0946.*NoneType"),
        ((row for row in [{"pixel_values": "x.png"}]), "E0946.*no targets"),
        ([{"pixel_values": "x.png"}], "E0946.*no targets"),
        ([{"pixls": "x.png", "logits": 1}], "E0946.*`pixls`"),
        ([{"\x1b[31m": 1}], r"E0946.*\\x1b"),
        ([{"pixel_values": "x.png", "logits": 1}, {"pixel_values": "x.png"}], "E0946.: example 1"),
        ([{"pixel_values": "x.png", "logits": "seven"}], "E0947.*`seven`"),
        ([{"pixel_values": "no such.png", "logits": 1}], "E0802"),
        ([{"pixel_values": np.zeros((1, 9, 8)), "logits": 1}], "E0912"),
        ([{"pixel_values": np.zeros((1, 8, 8)), "logits": [1]}, {"pixel_values": np.zeros((1, 8, 8)), "logits": 1}], "E0947"),
    ],
)  # fmt: skip
def test_rows_with_invalid_shapes_are_refused(
    digits: TrainingCollator, rows: list[object], code: str
) -> None:
    with pytest.raises(specc.SpeccError, match=code):
        digits.make_batch(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"ids": ""}, "E0947.*fewer than two tokens"),
        ({"ids": "xyz"}, "E0908"),
        ({"ids": "ab", "logits": "ab"}, "E0947.*expects numbers"),
    ],
)
def test_texts_without_labels_are_refused(row: dict[str, object], code: str) -> None:
    with pytest.raises(specc.SpeccError, match=code):
        lessons(WORDS.replace("SAID", "")).make_batch([row])


@pytest.mark.parametrize(
    "wrong",
    [
        {"pixel_values": np.zeros((1, 8, 8)), "logits": "seven"},
        {"pixel_values": "none.png", "logits": "7"},
    ],
)
def test_an_error_names_the_row(digits: TrainingCollator, wrong: dict[str, object]) -> None:
    right = {"pixel_values": np.zeros((1, 8, 8)), "logits": "7"}
    with pytest.raises(specc.SpeccError, match="in row 2 of the batch"):
        digits.make_batch([right, right, wrong])


def test_an_error_names_the_row_of_a_text() -> None:
    with pytest.raises(specc.SpeccError, match="in row 1 of the batch"):
        lessons(WORDS.replace("SAID", "")).make_batch([{"ids": "ab"}, {"ids": "xyz"}])
