"""Outputs of object detectors as boxes in pixels, each with a label and a score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specc.ir.array import Array
from specc.preprocessing.records import BoxesOutput

Floats = NDArray[np.float64]
ImageSize = tuple[int, int]
"""Rows and columns of an image."""


@dataclass(frozen=True, slots=True)
class DetectedObject:
    """A class id, its score, and the corners (left, top, right, bottom) of the box."""

    label: int
    score: float
    box: tuple[float, ...]


def detect_objects(
    record: BoxesOutput, logits: Array, boxes: Array, size: ImageSize
) -> list[DetectedObject]:
    """Return the objects in an image of `size` above the threshold, the highest score first.

    `logits` are [queries, classes], `boxes` [queries, 4] as (center_x, center_y, width, height)
    from 0 to 1. With `softmax` the last class is no-object, and a query gives its best class; with
    `sigmoid` a query gives every class that scores among the `top`.
    """
    scores, queries, labels = _candidates(record, logits.astype(np.float64))
    order = np.argsort(-scores, kind="stable")[: record.top]
    corners = _corners(boxes.astype(np.float64), size)
    return [
        DetectedObject(int(labels[i]), float(scores[i]), tuple(map(float, corners[queries[i]])))
        for i in order
        if scores[i] > record.threshold
    ]


def _candidates(record: BoxesOutput, logits: Floats) -> tuple[Floats, Array, Array]:
    """Return scores with their queries and labels."""
    count, classes = logits.shape
    if record.score == "softmax":
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares = (powers / powers.sum(axis=-1, keepdims=True))[:, :-1]
        return shares.max(axis=-1), np.arange(count), shares.argmax(axis=-1)
    index = np.arange(logits.size)
    # tanh does not overflow
    return 0.5 * (1 + np.tanh(logits.ravel() / 2)), index // classes, index % classes


def _corners(boxes: Floats, size: ImageSize) -> Floats:
    """Return boxes (center_x, center_y, width, height) as corners in pixels."""
    rows, columns = size
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    corners = np.concatenate([low, high], axis=1)
    return np.asarray(corners * np.array([columns, rows, columns, rows]))


def format_objects(found: Sequence[DetectedObject], labels: Sequence[str]) -> Iterator[str]:
    """Yield a table: label, score, and the corners of each box."""
    cells = [["label", "score", "left", "top", "right", "bottom"]]
    for one in found:
        name = labels[one.label] if labels else f"class {one.label}"
        cells.append([name, f"{one.score:.3f}", *(f"{n:.1f}" for n in one.box)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, *numbers in cells:
        rest = (f"{text:>{width}}" for text, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join([f"{name:<{widths[0]}}", *rest])
