"""Results formatted for terminals."""

import io

import numpy as np
import pytest
from PIL import Image as Pillow

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.predictions import compute_probabilities
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import (
    ArrayConfig,
    ByteTokenizer,
    CharTokenizer,
    ClassificationOutput,
    ImageConfig,
    ImageOutput,
    SegmentationOutput,
    TextOutput,
)
from specc.preprocessing.result_formatting import format_output, format_percent, format_results


def decode_png(data: bytes) -> np.ndarray:
    return np.asarray(Pillow.open(io.BytesIO(data)))


def make_logits(*shares: float) -> np.ndarray:
    return np.log(np.array([shares], np.float32))


def test_label_and_probability():
    preprocessing = PreprocessingConfig(
        outputs=(("logits", ClassificationOutput(tuple("0123456789"))),)
    )
    scores = np.zeros((1, 10), np.float32)
    scores[0, 7] = np.log(9 * 0.98 / 0.02)
    assert format_results(preprocessing, {"logits": scores, "hidden": scores}).lines == ("7  98 %",)


def test_labels_are_aligned():
    one = format_output(
        "logits",
        ClassificationOutput(("cat", "horse", "emu"), top_k=3),
        make_logits(0.2, 0.75, 0.05),
    )
    assert one.lines == ("horse  75 %", "cat    20 %", "emu     5 %")


def test_batch_elements_are_numbered():
    rows = np.concatenate([make_logits(0.9, 0.1), make_logits(0.3, 0.7)])
    assert format_output("l", ClassificationOutput(("a", "b")), rows).lines == (
        "0:  a  90 %",
        "1:  b  70 %",
    )


def test_class_indices_without_labels():
    assert format_output("l", ClassificationOutput(), make_logits(0.2, 0.8)).lines == ("1  80 %",)


def test_top_exceeds_the_number_of_labels():
    assert (
        len(
            format_output(
                "l", ClassificationOutput(("a", "b"), top_k=5), make_logits(0.2, 0.8)
            ).lines
        )
        == 2
    )


def test_control_characters_are_escaped():
    assert format_output("l", ClassificationOutput(("\x1b[31m",)), make_logits(1.0)).lines == (
        "\\x1b[31m  100 %",
    )


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.004, "< 1 %"), (0.984, "98 %"), (0.997, "99.7 %"), (1.0, "100 %")],
)
def test_percent_format(share, text):
    assert format_percent(share) == text


def test_softmax_is_stable():
    rows = compute_probabilities(
        np.array([[1e30, 1e30, -1e30], [-np.inf, 0, -np.inf], [-np.inf] * 3], np.float32)
    )
    np.testing.assert_allclose(rows, [[0.5, 0.5, 0], [0, 1, 0], [1 / 3] * 3])


def test_number_format():
    lines = format_output(
        "out", ArrayConfig(digits=3), np.array([[0.123456, 2], [1e-9, -4]], np.float32)
    ).lines
    assert lines == ("out  float32[2, 2]", "[[0.123  2]", " [1e-09  -4]]")
    assert format_output("n", ArrayConfig(), np.array(7)).lines == ("n  7",)
    assert len(format_output("big", ArrayConfig(), np.zeros((1000, 1000))).lines) < 20


def test_all_outputs_are_shown_by_default():
    assert format_results(PreprocessingConfig(), {"a": np.array(1), "b": np.array(True)}).lines == (
        "a  1",
        "b  true",
    )


def test_text_of_ids_and_logits():
    record = TextOutput(CharTokenizer(("<end>", "a", "b"), end_token_id=0))
    assert format_output("t", record, np.array([[2, 1, 0, 1]])).lines == ("ba",)
    scores = np.eye(3, dtype=np.float32)[[1, 2, 0]][None]
    assert format_output("t", record, scores).lines == ("ab",)
    assert format_output("t", TextOutput(ByteTokenizer()), np.array([[104, 10]])).lines == ("h\\n",)


def test_image_output():
    original = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
    record = ImageOutput(ImageConfig(size=(2, 4), mean=(0.5,), std=(0.5,)))
    values = ((original / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None].astype(np.float32)
    ((name, data),) = format_output("rebuilt", record, values).images
    assert name == "rebuilt.png"
    np.testing.assert_array_equal(decode_png(data), original)


def test_class_map():
    record = SegmentationOutput(("sky", "sea"), ((0, 0, 255), (0, 255, 255)))
    ids = np.array([[[0, 0], [1, 0]]])
    shown = format_output("mask", record, ids)
    assert shown.lines == ("sky   75 %  #0000ff", "sea   25 %  #00ffff")
    assert decode_png(shown.images[0][1])[1, 0].tolist() == [0, 255, 255]
    scores = np.stack([ids == 0, ids == 1], axis=1).astype(np.float32)
    assert format_output("mask", record, scores) == shown
    assert [
        name
        for name, _ in format_output(
            "../m", SegmentationOutput(), np.array([ids[0], ids[0]])
        ).images
    ] == ["___m-0.png", "___m-1.png"]


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (ClassificationOutput(("a", "b")), np.zeros((1, 3), np.float32)),
        (ClassificationOutput(), np.zeros((1, 3), np.int64)),
        (TextOutput(ByteTokenizer()), np.zeros((1, 3), np.float32)),
        (TextOutput(ByteTokenizer()), np.array(3)),
        (ImageOutput(ImageConfig(size=(2, 2))), np.zeros((1, 1, 2, 2), np.float32)),
        (SegmentationOutput(("a",)), np.array([[[1]]])),
        (SegmentationOutput(("a",)), np.zeros((1, 2, 3, 3), np.float32)),
        (SegmentationOutput(), np.array([[[-1]]])),
        (SegmentationOutput(), np.zeros(3, np.float32)),
    ],
)
def test_outputs_that_do_not_match_their_record(record, value):
    with pytest.raises(SpeccError) as caught:
        format_output("x", record, value)
    assert caught.value.diagnostics[0].code == "E0916"


def test_missing_output():
    with pytest.raises(SpeccError) as caught:
        format_results(PreprocessingConfig(outputs=(("y", ArrayConfig()),)), {"x": np.array(1)})
    assert caught.value.diagnostics[0].code == "E0916"
