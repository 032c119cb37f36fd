"""Batch the images of prompts, and replace image placeholders in texts."""

from collections.abc import Mapping, Sequence, Sized
from itertools import chain
from operator import add
from typing import NoReturn

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Graph, select_entries
from specc.preprocessing.image_tiles_and_patches import (
    PreprocessedImage,
    has_image_tiling,
    preprocess_image,
)
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import ImageConfig
from specc.preprocessing.python_inputs import is_image
from specc.preprocessing.tokenizer_files import PLAIN_REPLACEMENT, HfTokenizer
from specc.preprocessing.tokenizer_library import get_token_strings

BATCHED_RANK = 5
"""Rank of an array with several images per text. An array that contains a single image has rank 3.
"""
GROUPING_HELP = 'group the images by text: [["a.png", "b.png"], ["c.png"]]'
CONCATENATED_SIZINGS = ("area", "tiles")
"""Resize rules (`sizing`) that concatenate the patches or tiles of all images in a text."""


def prepare_images(
    graph: Graph, preprocessing: PreprocessingConfig, inputs: Mapping[str, object]
) -> dict[str, object]:
    """Convert the images in `inputs` to arrays, add inputs with the image sizes, and expand the
    image placeholders in texts. Raise E0902 to E0904, E0912 or E0990 if an image is invalid, and
    E0991 if a text and its images do not match.
    """
    prepared = dict(inputs)
    for name, config in preprocessing.inputs:
        if not isinstance(config, ImageConfig) or name not in graph.inputs or name not in inputs:
            continue
        groups = _group_images(graph, config, name, inputs)
        if not groups or not any(groups):
            continue
        preprocessed = [
            [preprocess_image(image, config, name, len(group)) for image in group]
            for group in groups
        ]
        arrays = batch_images(graph, name, config, preprocessed)
        prepared |= {
            key: array for key, array in arrays.items() if key == name or key not in inputs
        }
        if can_take_multiple_images(graph, name, config):
            prepared |= _replace_placeholders(graph, preprocessing, name, inputs, preprocessed)
    return prepared


def can_take_multiple_images(graph: Graph, name: str, config: ImageConfig) -> bool:
    """Return True if an image input accepts several images per text."""
    values_rank = 2 if config.patch_lengths else 4 if has_image_tiling(config) else 3
    extra_axes = graph.inputs[name].rank - values_rank
    return extra_axes == 2 or (extra_axes == 1 and config.sizing in CONCATENATED_SIZINGS)


def _group_images(
    graph: Graph, config: ImageConfig, name: str, inputs: Mapping[str, object]
) -> list[list[object]]:
    """Return the images of each text or batch element, or [] if there are no images."""
    value = inputs[name]
    items: list[object] = [*value] if isinstance(value, list | tuple) else [value]
    if not can_take_multiple_images(graph, name, config):
        return [[item] for item in items] if all(map(is_image, items)) else []
    groups = [[*item] for item in items if isinstance(item, list | tuple)]
    if groups:
        has_only_images = len(groups) == len(items) and all(map(is_image, chain(*groups)))
        return groups if has_only_images else []
    if not all(map(is_image, items)):
        return []
    is_single_text = _belong_to_single_text(graph, inputs, name, len(items))
    return [items] if is_single_text else [[item] for item in items]


def batch_images(
    graph: Graph, name: str, config: ImageConfig, groups: Sequence[Sequence[PreprocessedImage]]
) -> dict[str, Array]:
    """Return the image input and the shape input for `groups`. Each group contains the images of
    one text or batch element. Smaller images are zero-padded, and missing images are filled with
    zeros.
    """
    values = [[image.values for image in group] for group in groups]
    shapes = [[np.array(image.shape, np.int64) for image in group] for group in groups]
    is_joined = config.sizing in CONCATENATED_SIZINGS
    if not can_take_multiple_images(graph, name, config):
        batches = [stack_padded([array for (array,) in arrays]) for arrays in (values, shapes)]
    else:
        if not config.shape_input and not is_joined:
            _check_counts(graph, name, [*map(len, groups)])
        batches = [
            _stack_groups(values, is_joined=is_joined),
            _stack_groups(shapes, is_joined=False),
        ]
    arrays_by_name = dict(zip((name, config.shape_input), batches, strict=True))
    return select_entries(arrays_by_name, graph.inputs)


def _stack_groups(groups: Sequence[Sequence[Array]], *, is_joined: bool) -> Array:
    """Stack or concatenate the images of each text, and then stack the texts."""
    first = next(image for group in groups for image in group)
    no_images = np.zeros((0, *first.shape[is_joined:]), first.dtype)
    stack = np.concatenate if is_joined else stack_padded
    return stack_padded([stack(group) if group else no_images for group in groups])


def stack_padded(arrays: Sequence[Array]) -> Array:
    """Zero-pad arrays at the end of each axis to a common shape, and stack the arrays."""
    shape = np.max([array.shape for array in arrays], axis=0)
    paddings = [
        [(0, size - length) for size, length in zip(shape, a.shape, strict=True)] for a in arrays
    ]
    return np.stack([np.pad(a, pad) for a, pad in zip(arrays, paddings, strict=True)])


def stack_image_groups(graph: Graph, name: str, images_by_text: Sequence[Array]) -> Array:
    """Stack the images (float32 [images, …]) of all texts. Raise E0912 if texts have different
    numbers of images and there is no mask input.
    """
    _check_counts(graph, name, [*map(len, images_by_text)])
    return stack_padded(images_by_text)


def _check_counts(graph: Graph, name: str, counts: Sequence[int]) -> None:
    """Raise E0912 if texts have different numbers of images and there is no mask input."""
    shape = graph.inputs[name].shape
    has_mask = any(v.shape == shape[:2] for v in graph.inputs.values())
    if len({*counts}) > 1 and not has_mask:
        raise_error(
            "E0912",
            f"the texts have {min(counts)} to {max(counts)} images in `{name}`, but the model "
            "has no mask for missing images",
            notes=["the model has no image mask input"],
            helps=["batch texts with equal numbers of images"],
        )


def is_multi_image_input(graph: Graph, preprocessing: PreprocessingConfig, name: str) -> bool:
    """Return True if an input accepts arrays with several images per text."""
    is_image_input = isinstance(preprocessing.get_input_config(name), ImageConfig)
    return is_image_input and graph.inputs[name].rank == BATCHED_RANK


def group_images_by_text(
    graph: Graph, preprocessing: PreprocessingConfig, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Return `inputs` with images grouped by text. Raise E0912 for a wrong number of images."""
    grouped_inputs = dict(inputs)
    for name, array in inputs.items():
        if name not in graph.inputs or not is_multi_image_input(graph, preprocessing, name):
            continue
        if array.ndim == BATCHED_RANK - 1:
            is_single_text = _belong_to_single_text(graph, inputs, name, len(array))
            grouped_inputs[name] = array[None] if is_single_text else array[:, None]
    return grouped_inputs


def _belong_to_single_text(
    graph: Graph, inputs: Mapping[str, object], name: str, image_count: int
) -> bool:
    """Return True if all images belong to a single text, and False if each image has its own text.
    Raise E0912 if the other inputs contain a different number of texts.
    """
    text_count = _count_texts(graph, inputs, name)
    if text_count not in (None, 1, image_count):
        _raise_wrong_image_count(name, image_count, text_count)
    return text_count == 1


def _count_texts(graph: Graph, inputs: Mapping[str, object], name: str) -> int | None:
    """Infer the number of texts from inputs other than images. Return None on failure."""
    batch_size = graph.inputs[name].shape[:1]
    for other_name, value in inputs.items():
        other_input = graph.inputs.get(other_name)
        if other_name == name or other_input is None or other_input.shape[:1] != batch_size:
            continue
        if isinstance(value, str):
            return 1
        if isinstance(value, Sized) and not (isinstance(value, np.ndarray) and not value.ndim):
            return len(value)
    return None


def _raise_wrong_image_count(name: str, image_count: int, text_count: int | None) -> NoReturn:
    raise_error(
        "E0912",
        f"`{name}` has {image_count} images, but there are {text_count} texts",
        notes=["expected one image per text, or a flat list of images for a single text"],
        helps=[GROUPING_HELP],
    )


def _replace_placeholders(
    graph: Graph,
    preprocessing: PreprocessingConfig,
    name: str,
    inputs: Mapping[str, object],
    groups: Sequence[Sequence[PreprocessedImage]],
) -> dict[str, object]:
    """Replace image placeholders in texts. Raise E0991 for a wrong number of placeholders."""
    for text_input, tokenizer in find_image_prompt_inputs(graph, preprocessing):
        value = inputs.get(text_input)
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
            continue
        if len(texts) != len(groups):
            _raise_wrong_image_count(name, sum(map(len, groups)), len(texts))
        replaced_texts = [
            replace_image_placeholders(text, tokenizer, [image.grid for image in group])
            for text, group in zip(texts, groups, strict=True)
        ]
        return {text_input: replaced_texts}
    return {}


def find_image_prompt_inputs(
    graph: Graph, preprocessing: PreprocessingConfig
) -> list[tuple[str, HfTokenizer]]:
    """Return the text inputs that may contain image placeholders."""
    return [
        (name, config)
        for name, config in preprocessing.inputs
        if isinstance(config, HfTokenizer)
        and name in graph.inputs
        and (config.placeholder_replacement or config.image_token_repetition)
    ]


def find_image_input(graph: Graph, preprocessing: PreprocessingConfig) -> str:
    """Return the name of the image input. Raise E0910 if the model has no image input."""
    for name, config in preprocessing.inputs:
        if isinstance(config, ImageConfig) and name in graph.inputs:
            return name
    helps = [f"the inputs are {', '.join(graph.inputs)}"]
    raise_error("E0910", "the model has no image input", helps=helps)


def get_image_placeholder(tokenizer: HfTokenizer) -> str:
    """Return the placeholder text of an image in prompts."""
    if tokenizer.placeholder_replacement:
        return tokenizer.placeholder_replacement[0]
    assert tokenizer.image_token_repetition, "only texts with placeholders"
    return get_token_strings(tokenizer.image_token_repetition[:1], tokenizer)[0]


def replace_image_placeholders(
    text: str, tokenizer: HfTokenizer, grids: Sequence[tuple[int, int]]
) -> str:
    """Replace each image's placeholder in a text if its replacement depends on the token grid.
    Raise E0991 if the numbers of placeholders and images differ.
    """
    placeholder = get_image_placeholder(tokenizer)
    first, *parts = text.split(placeholder) if placeholder else [text]
    if len(parts) != len(grids):
        escaped_placeholder = escape_text(placeholder)
        raise_error(
            "E0991",
            f"the prompt has {len(parts)} image placeholder{'s' * (len(parts) != 1)}, but "
            + ("1 image was passed" if len(grids) == 1 else f"{len(grids)} images were passed"),
            notes=[f"the placeholder of an image is `{escaped_placeholder}`"],
            helps=[
                f"write `{escaped_placeholder}` in the prompt where each image belongs",
                "or insert it with `specc run MODEL --image FILE` and `model.chat(…, images=…)`",
            ],
        )
    replacement = tokenizer.placeholder_replacement
    if replacement is None or len(replacement) == PLAIN_REPLACEMENT:
        return text
    replacements = (format_image_replacement(replacement, grid) for grid in grids)
    return first + "".join(map(add, replacements, parts))


def format_image_replacement(texts: Sequence[str], grid: tuple[int, int]) -> str:
    """Format the replacement of an image placeholder. For an image with a grid, join the texts of
    all grid cells, with a separator between rows, and append the end text. An image without a grid
    has a separate replacement text.
    """
    _, cell, separator, end, single = texts
    rows, columns = grid
    if not rows * columns:
        return single
    rows_of_text = (
        "".join(
            cell.replace("$row", str(row)).replace("$column", str(column))
            for column in range(1, columns + 1)
        )
        for row in range(1, rows + 1)
    )
    return separator.join(rows_of_text) + end
