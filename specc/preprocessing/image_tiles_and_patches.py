"""Preprocess images of dynamic size: resize images within bounds, or split them into tiles or
patches.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import MAX_IMAGE_BYTES, read_input_file
from specc.ir.array import Array
from specc.preprocessing.images import (
    Floats,
    ImageSize,
    decode_image,
    decode_pil_image,
    pad_with_black,
    resize_and_normalize_image,
    resize_and_normalize_pixels,
    resize_image,
)
from specc.preprocessing.preprocessing_records import ImageConfig

MAX_ASPECT_RATIO = 200
MAX_LONGEST_SIDE = 4096
SEARCH_PRECISION, MAX_SCALE = 1e-5, 100.0
MIN_SHRINK_RATIO = 1.1
"""LLaVA-OneVision shrinks a feature map if its side exceeds the maximum by this factor."""


@dataclass(frozen=True, slots=True)
class PreprocessedImage:
    """A preprocessed image. `values` is the value of the image input, and `shape` is that of the
    shape input. `grid` is the grid of the image's tokens or tiles in a prompt, or (0, 0) if the
    prompt does not depend on the image size.
    """

    values: Floats
    shape: tuple[int, ...] = ()
    grid: ImageSize = (0, 0)


ResizedImage: TypeAlias = tuple[list[Array], tuple[int, ...], ImageSize]
"""Images `[height, width, channels]`, the value of the shape input, and the token grid size."""


def preprocess_pixels(pixels: Array, config: ImageConfig) -> PreprocessedImage:
    """Preprocess an image with pixels [height, width, 1 or 3] to float32 [channels, height, width],
    [tiles, channels, height, width] or [patches, features]. Raise E0990 if the image size is not
    supported.
    """
    if not config.sizing:
        return PreprocessedImage(resize_and_normalize_image(pixels, config)[0])
    images, shape, grid = SIZINGS[config.sizing](pixels, config)
    values = np.stack([resize_and_normalize_pixels(image, config) for image in images])
    if config.patch_lengths:
        values = flatten_patches(values[0], *config.patch_lengths)
    elif not has_image_tiling(config):
        values = values[0]
    return PreprocessedImage(np.ascontiguousarray(values, np.float32), shape, grid)


def preprocess_image(
    image: object, config: ImageConfig, name: str, image_count: int = 1
) -> PreprocessedImage:
    """Preprocess an image file or Pillow image for the input `name`. `image_count` is the number of
    images in the prompt. Raise E0802, E0902 to E0904 or E0990 if the image is invalid.
    """
    if isinstance(image, str | Path):
        pixels = decode_image(read_input_file(str(image), MAX_IMAGE_BYTES), str(image))
    else:
        pixels = decode_pil_image(image, name)
    if image_count > 1 and config.max_side:
        return _prepare_square_overview(pixels, config)
    return preprocess_pixels(pixels, config)


def _prepare_square_overview(pixels: Array, config: ImageConfig) -> PreprocessedImage:
    """Preprocess an image as a single tile: pad it to a centered square with the mean color, and
    resize it. LLaVA-OneVision does not tile images if a prompt contains several images.
    """
    rows, columns = pixels.shape[:2]
    side = max(rows, columns)
    square = np.empty((side, side, pixels.shape[2]), np.uint8)
    square[:] = [int(255 * mean) for mean in config.mean]
    top, left = (side - rows) // 2, (side - columns) // 2
    square[top : top + rows, left : left + columns] = pixels
    values = resize_and_normalize_pixels(resize_image(square, config.size, config), config)[None]
    shape, tokens = (rows, columns), config.overview_tokens + 1
    return PreprocessedImage(np.ascontiguousarray(values, np.float32), shape, (1, tokens))


def has_image_tiling(config: ImageConfig) -> bool:
    """Return True if the preprocessing splits images into tiles."""
    return config.sizing in ("tiles", "anyres")


def flatten_patches(
    values: Floats, patch_size: int, merge_size: int = 1, frame_count: int = 0
) -> Floats:
    """Flatten float32 [channels, height, width] to [patches, features], in row-major order with
    channels last. If `frame_count` is set, each patch has its channels first and is repeated for
    each frame. The patches of each merge × merge block are consecutive.
    """
    channels, rows, columns = values.shape
    step = patch_size * merge_size
    split = (
        channels,
        rows // step,
        merge_size,
        patch_size,
        columns // step,
        merge_size,
        patch_size,
    )
    blocks = values.reshape(split).transpose((1, 4, 2, 5, 0, 3, 6))
    features = channels * patch_size * patch_size
    if not frame_count:
        return blocks.transpose((0, 1, 2, 3, 5, 6, 4)).reshape(-1, features)
    shape = (*blocks.shape[:5], frame_count, patch_size, patch_size)
    return np.broadcast_to(blocks[:, :, :, :, :, None], shape).reshape(-1, frame_count * features)


def _resize_to_area(pixels: Array, config: ImageConfig) -> ResizedImage:
    """Resize an image so that its pixel count is within bounds, as the Qwen2-VL processor does."""
    (low, high), step = config.size_bounds[0], config.size_multiple
    sides = pixels.shape[:2]
    if max(sides) > MAX_ASPECT_RATIO * min(sides):
        _raise_aspect_ratio(sides, f"the aspect ratio is at most {MAX_ASPECT_RATIO}")
    size = [round(n / step) * step for n in sides]
    if math.prod(size) > high:
        factor = math.sqrt(math.prod(sides) / high)
        size = [max(step, math.floor(n / factor / step) * step) for n in sides]
    elif math.prod(size) < low:
        factor = math.sqrt(low / math.prod(sides))
        size = [math.ceil(n * factor / step) * step for n in sides]
    rows, columns = (n // config.patch_lengths[0] for n in size)
    resized = resize_image(pixels, (size[0], size[1]), config)
    return [resized], (1, rows, columns), (size[0] // step, size[1] // step)


def _resize_within(pixels: Array, config: ImageConfig) -> ResizedImage:
    """Shrink an image to the bounds and round its sides up, as the Pixtral processor does."""
    sides, step = pixels.shape[:2], config.size_multiple
    ratio = max(n / bound for n, bound in zip(sides, config.size_bounds[0], strict=True))
    if ratio > 1:
        sides = tuple(math.floor(n / ratio) for n in sides)
    rows, columns = ((n - 1) // step + 1 for n in sides)
    if not rows * columns:
        _raise_aspect_ratio(pixels.shape[:2], "its shorter side would have no pixels")
    size = rows * step, columns * step
    return [resize_image(pixels, size, config)], size, (rows, columns)


def _resize_to_patches(pixels: Array, config: ImageConfig) -> ResizedImage:
    """Resize an image to the largest size with at most `size_bounds[0][1]` patches (NaFlex)."""
    side, max_patches = config.patch_lengths[0], config.size_bounds[0][1]

    def count_patches(scale: float) -> ImageSize:
        rows, columns = (max(1, math.ceil(n * scale / side)) for n in pixels.shape[:2])
        return rows, columns

    low, high = SEARCH_PRECISION / 10, MAX_SCALE
    while high - low >= SEARCH_PRECISION:
        scale = (low + high) / 2
        low, high = (
            (scale, high) if math.prod(count_patches(scale)) <= max_patches else (low, scale)
        )
    rows, columns = count_patches(low)
    resized = resize_image(pixels, (rows * side, columns * side), config)
    return [resized], (rows, columns), (0, 0)


def _split_into_tiles(pixels: Array, config: ImageConfig) -> ResizedImage:
    """Resize an image to multiples of the tile size and split it into tiles. Append the whole image
    as the last tile, as the Idefics3 processor does.
    """
    tile, longest_side = config.size[0], config.size_bounds[0][1]
    image = resize_image(pixels, _scale_longest_side(pixels.shape[:2], longest_side), config)
    if not config.do_image_splitting:
        return [resize_image(image, config.size, config)], (), (0, 0)
    rows, columns = image.shape[:2]
    ratio = columns / rows
    if columns >= rows:
        tile_columns = math.ceil(columns / tile)
        tile_rows = math.ceil(int(tile_columns * tile / ratio) / tile)
    else:
        tile_rows = math.ceil(rows / tile)
        tile_columns = math.ceil(int(tile_rows * tile * ratio) / tile)
    image = resize_image(image, (tile_rows * tile, tile_columns * tile), config)
    if tile_rows == tile_columns == 1:
        return [image], (), (0, 0)
    overview = resize_image(image, config.size, config)
    return [*_cut_tiles(image, config.size), overview], (), (tile_rows, tile_columns)


def _scale_longest_side(sides: tuple[int, ...], longest: int) -> ImageSize:
    """Scale the longer side to `longest` (at most 4096). Round the shorter side up to an even
    number.
    """
    ratio = sides[1] / sides[0]
    is_landscape = sides[1] >= sides[0]
    shorter = int(longest / ratio) if is_landscape else int(longest * ratio)
    shorter = max(shorter + shorter % 2, 1)
    if longest > MAX_LONGEST_SIDE:
        ratio = longest / shorter if is_landscape else shorter / longest
        longest = MAX_LONGEST_SIDE
        shorter = max(int(longest / ratio) if is_landscape else int(longest * ratio), 1)
    return (shorter, longest) if is_landscape else (longest, shorter)


def _cut_tiles(image: Array, size: ImageSize) -> list[Array]:
    """Split an image into tiles of `size` in row-major order."""
    height, width = size
    return [
        image[top : top + height, left : left + width]
        for top in range(0, image.shape[0], height)
        for left in range(0, image.shape[1], width)
    ]


def _split_into_best_grid(pixels: Array, config: ImageConfig) -> ResizedImage:
    """Return the whole image, resized to one tile, and the tiles of a copy that is resized and
    padded with black to the best size in `size_bounds`, as the LLaVA-NeXT processor does.
    """
    rows, columns = pixels.shape[:2]
    grid_size = height, width = _choose_grid_size((rows, columns), config)
    if width / columns < height / rows:
        size = min(math.ceil(rows * (width / columns)), height), width
    else:
        size = height, min(math.ceil(columns * (height / rows)), width)
    corner = (height - size[0]) // 2, (width - size[1]) // 2
    padded = pad_with_black(resize_image(pixels, size, config), grid_size, corner)
    overview = resize_image(pixels, config.size, config)
    tokens = config.overview_tokens + _count_grid_tokens((rows, columns), grid_size, config)
    return [overview, *_cut_tiles(padded, config.size)], (rows, columns), (1, tokens)


def _choose_grid_size(sides: ImageSize, config: ImageConfig) -> ImageSize:
    """Choose the size in `size_bounds` that keeps the most pixels. Among sizes that keep equally
    many pixels, prefer the size with the least padding.
    """

    def score_size(size: tuple[int, ...]) -> tuple[int, int]:
        scale = min(size[1] / sides[1], size[0] / sides[0])
        effective = min(int(sides[1] * scale) * int(sides[0] * scale), math.prod(sides))
        return effective, effective - math.prod(size)

    rows, columns = max(config.size_bounds, key=score_size)
    return rows, columns


def _count_grid_tokens(sides: ImageSize, size: ImageSize, config: ImageConfig) -> int:
    """Count the tokens of all tiles: one per feature outside the padding, and a newline per row."""
    tile = config.size[0]
    token_rows, token_columns = (n // tile * (tile // config.size_multiple) for n in size)
    rows, columns = sides
    if columns / rows > token_columns / token_rows:
        unpadded = int(round(rows * (token_columns / columns), 7))
        token_rows -= (token_rows - unpadded) // 2 * 2
    else:
        unpadded = int(round(columns * (token_rows / rows), 7))
        token_columns -= (token_columns - unpadded) // 2 * 2
    limit = config.max_side * (tile // config.size_multiple)
    ratio = math.sqrt(token_rows * token_columns / limit**2) if limit else 0.0
    if ratio > MIN_SHRINK_RATIO:
        token_rows, token_columns = int(token_rows // ratio), int(token_columns // ratio)
    return token_rows * token_columns + token_rows


def _pad_to_square(pixels: Array, config: ImageConfig) -> ResizedImage:
    """Pad an image to a square with black at the right and bottom, and resize it in float after a
    Gaussian filter (only for downscaling), as the OWLv2 processor does.
    """
    side = max(pixels.shape[:2])
    square = pad_with_black(pixels.astype(np.float64), (side, side), (0, 0))
    row_weights, column_weights = (_make_antialiased_weights(side, size) for size in config.size)
    resized = np.einsum("ir,rcn,jc->ijn", row_weights, square, column_weights, optimize=True)
    return [np.clip(resized, square.min(), square.max())], (), (0, 0)


def _make_antialiased_weights(length: int, size: int) -> Array:
    """Return a resampling matrix, float64 [size, length]: a Gaussian filter truncated at four
    standard deviations, followed by linear interpolation between pixel centers, with mirrored
    edges.
    """
    factor = length / size
    sigma = max(0.0, (factor - 1) / 2)
    radius = int(4 * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2) if sigma else np.ones(1)
    kernel /= kernel.sum()
    period = max(2 * (length - 1), 1)
    centers = (np.arange(size) + 0.5) * factor - 0.5
    # mirror the pixel center at the edges before the interpolation
    centers = np.where(centers < 0, -centers, np.minimum(centers, period - centers))
    left = np.floor(centers).astype(np.int64)
    weights = np.zeros((size, length))
    for step, weight in ((0, 1 - (centers - left)), (1, centers - left)):
        # mirror the positions of both interpolated pixels and of the filter taps at the edges
        pixel = np.abs(left + step) % period
        indices = np.abs(np.minimum(pixel, period - pixel)[:, None] + offsets) % period
        indices = np.minimum(indices, period - indices)
        np.add.at(weights, (np.arange(size)[:, None], indices), weight[:, None] * kernel)
    return weights


SIZINGS: Mapping[str, Callable[[Array, ImageConfig], ResizedImage]] = {
    "area": _resize_to_area,
    "within": _resize_within,
    "patches": _resize_to_patches,
    "tiles": _split_into_tiles,
    "anyres": _split_into_best_grid,
    "square": _pad_to_square,
}
"""Functions that resize an image, keyed by the name of the rule in `image(sizing=…)`."""


def _raise_aspect_ratio(sides: tuple[int, ...], reason: str) -> NoReturn:
    raise_error(
        "E0990",
        f"an image of {sides[0]} × {sides[1]} pixels cannot be resized for this model",
        notes=[reason],
        helps=["crop it, or pad its shorter side"],
    )
