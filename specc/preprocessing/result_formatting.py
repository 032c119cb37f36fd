"""Format model outputs as lines and images: labels, numbers, decoded text, detected objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.drawing.drawing_elements import make_class_colors
from specc.drawing.png import encode_png
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.preprocessing.images import ImageSize, denormalize_image
from specc.preprocessing.predictions import compute_probabilities, decode_ctc_path
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import (
    ArrayConfig,
    ClassificationOutput,
    CtcOutput,
    DetectionOutput,
    ImageOutput,
    OutputFormat,
    SegmentationOutput,
    TextConfig,
    TextOutput,
)
from specc.preprocessing.text_codec import decode_text
from specc.preprocessing.tokenizer_files import HfTokenizer

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DetectedObject:
    """A detected object: class id, score, and corners (left, top, right, bottom) of its box."""

    class_id: int
    score: float
    box: tuple[float, ...]


def decode_detections(
    config: DetectionOutput, logits: Array, boxes: Array, size: ImageSize
) -> list[DetectedObject]:
    """Return the objects in an image of `size` with scores above the threshold, highest score
    first.

    `logits` are [queries, classes], `boxes` are [queries, 4] as (center_x, center_y, width, height)
    from 0 to 1. With `softmax`, the last class is "no object", and each query has at most one
    object. With `sigmoid`, the `max_detections` highest scores of all queries and classes are
    objects, so a query may have several objects.
    """
    scores, queries, class_ids = _list_candidates(config, logits.astype(np.float64))
    order = np.argsort(-scores, kind="stable")[: config.max_detections]
    # convert (center_x, center_y, width, height) to corners in pixels
    centers, halves = np.split(boxes.astype(np.float64), [2], axis=1)
    corners = np.concatenate([centers - halves / 2, centers + halves / 2], axis=1)
    corners *= np.array([size[1], size[0]] * 2)
    return [
        DetectedObject(int(class_ids[i]), float(scores[i]), tuple(map(float, corners[queries[i]])))
        for i in order
        if scores[i] > config.threshold
    ]


def _list_candidates(config: DetectionOutput, logits: Floats) -> tuple[Floats, Array, Array]:
    """Return the scores of candidate objects, with their query indices and class ids."""
    query_count, class_count = logits.shape
    if config.score_function == "softmax":
        probabilities = compute_probabilities(logits)[:, :-1]
        return probabilities.max(axis=-1), np.arange(query_count), probabilities.argmax(axis=-1)
    indices = np.arange(logits.size)
    # compute the sigmoid with tanh, which does not overflow
    return 0.5 * (1 + np.tanh(logits.ravel() / 2)), indices // class_count, indices % class_count


def format_detections(objects: Sequence[DetectedObject], labels: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table with the label, score and box corners of each object."""
    cells = [["label", "score", "left", "top", "right", "bottom"]]
    for detection in objects:
        name = labels[detection.class_id] if labels else f"class {detection.class_id}"
        cells.append([name, f"{detection.score:.3f}", *(f"{n:.1f}" for n in detection.box)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, *numbers in cells:
        row = [f"{text:>{width}}" for text, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([f"{name:<{widths[0]}}", *row])


MAX_ROWS = 1000  # maximum number of printed batch elements
MAX_CLASSES = 1 << 16  # maximum number of classes without declared labels
MAX_PRINTED_ELEMENTS = 200  # arrays with more elements are abbreviated


@dataclass(frozen=True, slots=True)
class FormattedResults:
    """The lines to print, and the images as PNG files with suggested file names."""

    lines: tuple[str, ...] = ()
    images: tuple[tuple[str, bytes], ...] = ()


def format_results(
    preprocessing: PreprocessingConfig,
    outputs: Mapping[str, Array],
    sizes: Sequence[ImageSize] = (),
) -> FormattedResults:
    """Format outputs with their postprocessing in `preprocessing`, or as arrays if they have none.
    Raise E0916 if an output does not match its postprocessing. `sizes` are the (height, width) of
    the input images, one per batch element.
    """
    formats = preprocessing.outputs or tuple((name, ArrayConfig()) for name in outputs)
    lines: list[str] = []
    images: list[tuple[str, bytes]] = []
    for name, config in formats:
        if name not in outputs:
            raise_error(
                "E0916",
                f"missing output `{escape_text(name)}`",
                notes=[f"the model returned {', '.join(outputs)}"],
            )
        formatted = format_output(name, config, outputs[name], outputs, sizes)
        if len(formats) > 1 and formatted.lines and not isinstance(config, ArrayConfig):
            lines.append(f"{escape_text(name)}:")
        lines.extend(formatted.lines)
        images.extend(formatted.images)
    return FormattedResults(tuple(lines), tuple(images))


NO_OUTPUTS: Mapping[str, Array] = {}


def format_output(
    name: str,
    config: OutputFormat,
    value: Array,
    outputs: Mapping[str, Array] = NO_OUTPUTS,
    sizes: Sequence[ImageSize] = (),
) -> FormattedResults:
    """Format a single output. `outputs` are all outputs of the model, including detection boxes and
    padding masks of transcripts. `sizes` are the sizes of the images.
    """
    match config:
        case ImageOutput():
            return FormattedResults((), tuple(_make_images(name, config, value)))
        case SegmentationOutput():
            return _format_class_maps(name, config, value)
        case CtcOutput():
            mask = outputs.get(config.mask_output)
            lines = _format_transcripts(name, config, value, mask)
        case ClassificationOutput():
            lines = _format_choices(name, config, value)
        case TextOutput():
            lines = _format_texts(name, config, value)
        case ArrayConfig():
            lines = _format_numbers(name, config, value)
        case DetectionOutput():
            boxes = outputs.get(config.boxes_output)
            lines = _format_boxes(name, config, value, boxes, sizes)
    return FormattedResults(tuple(lines))


def format_percent(fraction: float) -> str:
    """Format a fraction as a percentage such as `98 %`. Values between 0 and 1 are never rounded to
    0 % or 100 %.
    """
    if 0 < fraction < 0.005:
        return "< 1 %"
    decimals = 1 if 0.995 <= fraction < 0.9995 else 0
    return f"{fraction:.{decimals}%}".replace("%", " %")


def _format_choices(name: str, config: ClassificationOutput, value: Array) -> list[str]:
    if value.dtype.kind != "f" or value.ndim == 0 or not value.size:
        _raise_unexpected_output(name, value, "scores of classes along its last axis")
    classes = value.shape[-1]
    labels = [escape_text(label) for label in config.labels] or [str(i) for i in range(classes)]
    if len(labels) != classes:
        _raise_unexpected_output(name, value, f"{len(labels)} scores, one per label")
    rows = compute_probabilities(value).reshape(-1, classes)
    lines: list[str] = []
    for index, row in enumerate(rows[:MAX_ROWS]):
        prefix = f"{index:>{len(str(len(rows) - 1))}}:  " if len(rows) > 1 else ""
        lines += _format_top_labels(row, labels, config.top_k, prefix)
    return lines + _format_omitted_rows(len(rows))


def _format_boxes(
    name: str,
    config: DetectionOutput,
    logits: Array,
    boxes: Array | None,
    sizes: Sequence[ImageSize],
) -> list[str]:
    """Return a table of boxes per image, in pixels or, if image sizes are unknown, as fractions."""
    expected = logits.shape[-1] - (config.score_function == "softmax") if logits.ndim == 3 else 0
    if boxes is None or expected < 1 or boxes.shape != (*logits.shape[:2], 4):
        _raise_unexpected_output(
            name, logits, f"logits [batch, queries, classes] with boxes in `{config.boxes_output}`"
        )
    if len(config.labels) not in (0, expected):
        _raise_unexpected_output(name, logits, f"logits of {len(config.labels)} classes")
    labels = [escape_text(label) for label in config.labels]
    image_sizes = sizes if len(sizes) == len(logits) else [(1, 1)] * len(logits)
    lines: list[str] = []
    for index, size in enumerate(image_sizes[:MAX_ROWS]):
        lines += [f"{index}:"] if len(logits) > 1 else []
        detections = decode_detections(config, logits[index], boxes[index], size)
        lines += format_detections(detections, labels) if detections else ["no objects"]
    return lines + _format_omitted_rows(len(logits))


def _format_top_labels(row: Array, labels: Sequence[str], top: int, prefix: str) -> list[str]:
    """Format the most likely classes of one batch element, whose scores are [classes]."""
    best_ids = np.argsort(-row, kind="stable")[:top]
    percentages = [format_percent(float(row[i])) for i in best_ids]
    names = [labels[i] for i in best_ids]
    label_width, percentage_width = max(map(len, names)), max(map(len, percentages))
    lines = [
        f"{name:<{label_width}}  {percentage:>{percentage_width}}"
        for name, percentage in zip(names, percentages, strict=True)
    ]
    return [(" " * len(prefix) if n else prefix) + line for n, line in enumerate(lines)]


def _select_best_ids(name: str, vocabulary: TextConfig, value: Array) -> Array:
    """Return the ids with the highest scores along the last axis of [batch, …, vocab]."""
    # do not check the vocabulary size of a tokenizer file, because the file may have fewer ids than
    # the model
    vocabulary_size = None if isinstance(vocabulary, HfTokenizer) else vocabulary.vocab_size
    score_count = value.shape[-1] if value.ndim else 0
    if value.ndim < 2 or not score_count or vocabulary_size not in (None, score_count):
        expected = "scores" if vocabulary_size is None else f"{vocabulary_size} scores"
        _raise_unexpected_output(name, value, f"ids, or {expected} along its last axis")
    return np.asarray(value.argmax(axis=-1))


def _format_texts(name: str, config: TextOutput, value: Array) -> list[str]:
    if value.dtype.kind == "f":
        value = _select_best_ids(name, config.vocabulary, value)
    if value.dtype.kind not in "iu" or value.ndim == 0:
        _raise_unexpected_output(name, value, "ids along its last axis")
    rows = value.reshape(-1, value.shape[-1]) if value.size else np.zeros((0, 0), np.int64)
    lines = [escape_text(decode_text(row, config.vocabulary)) for row in rows[:MAX_ROWS]]
    return lines + _format_omitted_rows(len(rows))


def _format_transcripts(
    name: str, config: CtcOutput, value: Array, mask: Array | None
) -> list[str]:
    """Decode scores [batch, positions, tokens] to transcripts, and format the transcripts."""
    if value.dtype.kind != "f" or value.ndim != 3 or not value.shape[-1]:
        _raise_unexpected_output(name, value, "scores [batch, positions, tokens]")
    if mask is None or mask.shape != value.shape[:2]:
        mask = np.ones(value.shape[:2], np.bool_)
    best_ids = value.argmax(axis=-1)
    lines = [
        escape_text(decode_ctc_path([int(i) for i in ids[is_valid]], config))
        for ids, is_valid in zip(best_ids[:MAX_ROWS], mask.astype(np.bool_), strict=False)
    ]
    return lines + _format_omitted_rows(len(best_ids))


def _format_numbers(name: str, config: ArrayConfig, value: Array) -> list[str]:
    title = f"{escape_text(name)}  {value.dtype}{list(value.shape)}"
    if value.ndim == 0:
        return [f"{escape_text(name)}  {_format_number(value[()], config.digits)}"]
    text = np.array2string(
        value,
        max_line_width=100,
        threshold=MAX_PRINTED_ELEMENTS,
        separator="  " if value.dtype.kind == "f" else " ",
        formatter={"all": lambda item: _format_number(item, config.digits)},
    )
    return [title, *text.splitlines()]


def _format_number(item: object, digits: int) -> str:
    if isinstance(item, np.floating | float):
        return f"{float(item):.{digits}g}"
    return str(item).lower() if isinstance(item, np.bool_ | bool) else str(item)


def _make_images(name: str, config: ImageOutput, value: Array) -> list[tuple[str, bytes]]:
    batch = value[None] if value.ndim == 3 else value
    if batch.ndim != 4 or batch.shape[1] != config.image.channels or not batch.size:
        _raise_unexpected_output(
            name, value, f"pixels [batch, {config.image.channels}, rows, columns]"
        )
    files = [encode_png(denormalize_image(pixels, config.image)) for pixels in batch[:MAX_ROWS]]
    return [(_make_file_name(name, i, len(files)), data) for i, data in enumerate(files)]


def _format_class_maps(name: str, config: SegmentationOutput, value: Array) -> FormattedResults:
    """Render each segmentation map as an image, and list its classes by decreasing area."""
    maps, count = _read_class_ids(name, config, value)
    palette = np.array(config.palette, np.uint8) if config.palette else make_class_colors(count)
    labels = [escape_text(label) for label in config.labels]
    labels = labels or [f"class {i}" for i in range(count)]
    lines: list[str] = []
    for index, ids in enumerate(maps[:MAX_ROWS]):
        prefix = f"{index}:  " if len(maps) > 1 else ""
        lines += _format_class_areas(ids, labels, palette, prefix)
    images = [encode_png(palette[ids]) for ids in maps[:MAX_ROWS]]
    return FormattedResults(
        (*lines, *_format_omitted_rows(len(maps))),
        tuple((_make_file_name(name, i, len(maps)), png) for i, png in enumerate(images)),
    )


def _read_class_ids(name: str, config: SegmentationOutput, value: Array) -> tuple[Array, int]:
    """Return class ids [batch, height, width] and the number of classes.

    The number of classes is the number of labels or colors or, without either, the number of scores
    or the largest id + 1.
    """
    declared_count = len(config.labels) or len(config.palette)
    if value.dtype.kind == "f":
        if value.ndim not in (3, 4) or not value.size:
            _raise_unexpected_output(name, value, "scores [batch, classes, rows, columns]")
        scored_count, ids = value.shape[-3], value.argmax(axis=-3)
    else:
        scored_count, ids = declared_count or int(value.max(initial=0)) + 1, value
    maps = ids[None] if ids.ndim == 2 else ids
    if maps.ndim != 3 or not maps.size or maps.dtype.kind not in "iu":
        _raise_unexpected_output(name, value, "class ids [batch, rows, columns]")
    class_count = declared_count or min(scored_count, MAX_CLASSES)
    if scored_count != class_count or maps.min() < 0 or maps.max() >= class_count:
        _raise_unexpected_output(name, value, f"{class_count} classes")
    return maps, class_count


def _format_class_areas(
    ids: Array, labels: Sequence[str], palette: NDArray[np.uint8], prefix: str
) -> Iterator[str]:
    """Format one line per class: its name, its share of the image and its color."""
    counts = np.bincount(ids.ravel(), minlength=len(labels))
    class_ids = [i for i in np.argsort(-counts, kind="stable") if counts[i]]
    width = max(len(labels[i]) for i in class_ids)
    for i in class_ids:
        color = "#{:02x}{:02x}{:02x}".format(*palette[i])
        percentage = format_percent(counts[i] / ids.size)
        yield f"{prefix}{labels[i]:<{width}}  {percentage:>5}  {color}"
        prefix = " " * len(prefix)


def _make_file_name(name: str, index: int, count: int) -> str:
    """Return a safe file name for image `index` of an output with `count` images."""
    stem = (
        "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name[:64])
        or "output"
    )
    return f"{stem}-{index}.png" if count > 1 else f"{stem}.png"


def _format_omitted_rows(rows: int) -> list[str]:
    return [f"… and {rows - MAX_ROWS} more"] if rows > MAX_ROWS else []


def _raise_unexpected_output(name: str, value: Array, expected: str) -> NoReturn:
    raise_error(
        "E0916",
        f"the output `{escape_text(name)}` does not match its declaration in the spec",
        notes=[f"expected {expected}, got {value.dtype}{list(value.shape)}"],
        helps=[
            "correct `show` in the `reading` section of the spec, or write the arrays to a "
            "file with -o"
        ],
    )
