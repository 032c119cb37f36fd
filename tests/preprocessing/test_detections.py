"""Object detection results: scores, labels and boxes, computed by hand."""

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import DetectionOutput
from specc.preprocessing.result_formatting import decode_detections, format_results

BOXES = np.array([[0.5, 0.5, 0.5, 1.0], [0.25, 0.5, 0.5, 0.5]], np.float32)
SIZE = (10, 20)
"""Rows and columns."""


def test_softmax_drops_no_object_and_low_scores() -> None:
    logits = np.log(np.array([[0.1, 0.7, 0.2], [0.2, 0.2, 0.6]], np.float32))
    (one,) = decode_detections(DetectionOutput(), logits, BOXES, SIZE)
    assert one.class_id == 1
    assert one.score == pytest.approx(0.7)
    assert one.box == pytest.approx((5, 0, 15, 10))


def test_sigmoid_returns_every_class_above_the_threshold() -> None:
    odds = np.array([[3.0, 1 / 3], [9.0, 4.0]], np.float32)
    record = DetectionOutput(score_function="sigmoid")
    found = decode_detections(record, np.log(odds), BOXES, SIZE)
    assert [(one.class_id, round(one.score, 6)) for one in found] == [(0, 0.9), (1, 0.8), (0, 0.75)]
    assert found[0].box == found[1].box == pytest.approx((0, 2.5, 10, 7.5))
    top = DetectionOutput(score_function="sigmoid", max_detections=1)
    assert len(decode_detections(top, np.log(odds), BOXES, SIZE)) == 1


def test_one_table_per_image() -> None:
    preprocessing = PreprocessingConfig(
        outputs=(("logits", DetectionOutput(labels=("cat", "[tag]"))),)
    )
    logits = np.array([[[0, 9, 0], [0, 0, 9]], [[0, 0, 9], [0, 0, 9]]], np.float32)
    outputs = {"logits": logits, "pred_boxes": np.stack([BOXES, BOXES])}
    assert format_results(preprocessing, outputs, [SIZE, SIZE]).lines == (
        "0:",
        "label  score  left  top  right  bottom",
        "[tag]  1.000   5.0  0.0   15.0    10.0",
        "1:",
        "no objects",
    )
    relative = format_results(preprocessing, outputs).lines
    assert relative[2].split()[2:] == ["0.2", "0.0", "0.8", "1.0"]


@pytest.mark.parametrize("labels", [("a",), ("a", "b", "c")])
def test_wrong_number_of_labels(labels: tuple[str, ...]) -> None:
    preprocessing = PreprocessingConfig(outputs=(("logits", DetectionOutput(labels=labels)),))
    outputs = {"logits": np.zeros((1, 2, 3), np.float32), "pred_boxes": BOXES[None]}
    with pytest.raises(SpeccError, match="E0916"):
        format_results(preprocessing, outputs, [SIZE])


def test_missing_boxes() -> None:
    preprocessing = PreprocessingConfig(outputs=(("logits", DetectionOutput()),))
    with pytest.raises(SpeccError, match="E0916"):
        format_results(preprocessing, {"logits": np.zeros((1, 2, 3), np.float32)}, [SIZE])
