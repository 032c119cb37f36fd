"""Decode, resize, crop and normalize images."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text, raise_file_too_large_error
from specc.ir.array import Array
from specc.preprocessing.preprocessing_records import ImageConfig, Resampling

if TYPE_CHECKING:
    from PIL import Image as Pillow

Floats: TypeAlias = NDArray[np.float32]
ImageSize: TypeAlias = tuple[int, int]
"""The height and width of an image."""

MAX_PIXELS = 64 << 20  # 64 megapixels; the size is checked before decoding
IMAGE_FORMATS = ("PNG", "JPEG")
IMAGE_SIGNATURES = (b"\x89PNG\r\n", b"\xff\xd8\xff")
LUMA_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as in Pillow's mode L
# Exceptions that image decoders raise for corrupted files.
DECODER_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, ArithmeticError, LookupError, TypeError),
    *(MemoryError, AssertionError, AttributeError, RuntimeError, struct.error, zlib.error),
)
MIDDLE_GRAY = 127.5  # border brightness above which an image has a light background


def decode_image(data: bytes, name: str) -> Array:
    """Decode an image file to pixels from 0 to 255, uint8 or float32 [height, width, 1 or 3]."""
    pillow = _import_pillow()
    try:
        with warnings.catch_warnings():
            # ignore Pillow's size warning, because `_check_size` checks the size
            warnings.simplefilter("ignore")
            with pillow.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
                _check_size(image.size, name)
                return _decode_pixels(image)
    except pillow.DecompressionBombError:
        raise_file_too_large_error(
            name, f"the image has more than {MAX_PIXELS >> 20} million pixels"
        )
    except pillow.UnidentifiedImageError:
        is_truncated = data.startswith(IMAGE_SIGNATURES)
        reason = "it is cut off" if is_truncated else "it is neither a PNG nor a JPEG file"
        _raise_not_image(name, data, reason)
    except DECODER_ERRORS as error:
        _raise_not_image(name, data, f"corrupted image ({escape_text(error)[:200]})")


def decode_pil_image(image: Any, name: str) -> Array:
    """Return the pixels of a Pillow image, 0 to 255. Raise E0903 or E0904 for an invalid image."""
    try:
        _check_size(image.size, name)
        return _decode_pixels(image)
    except DECODER_ERRORS as error:
        _raise_not_image(name, b" ", f"corrupted image ({escape_text(error)[:200]})")


def resize_and_normalize_image(pixels: Array, config: ImageConfig) -> Floats:
    """Normalize pixels, [height, width, 1 or 3], and return float32 [1, channels, height, width].
    Raise E0990 if the resized image exceeds the input size of the model.
    """
    invert = config.invert is True or (config.invert == "auto" and has_light_background(pixels))
    pixels = _crop_and_resize(pixels, config)
    rows, columns = pixels.shape[:2] if config.shortest_longest_edge else config.size
    values = resize_and_normalize_pixels(pixels, config, (rows, columns), invert)
    if config.shortest_longest_edge:
        # pad after the normalization, because the padding is then exactly 0
        bottom_padding, right_padding = config.size[0] - rows, config.size[1] - columns
        values = np.pad(values, ((0, 0), (0, bottom_padding), (0, right_padding)))
    return np.ascontiguousarray(values[None], np.float32)


def resize_and_normalize_pixels(
    pixels: Array, config: ImageConfig, size: ImageSize | None = None, invert: bool = False
) -> Floats:
    """Resize pixels [height, width, 1 or 3] to `size`, and normalize them with the mean and
    standard deviation of `config`. Return float32 [channels, height, width].
    """
    planes = [
        resize_channel(plane, size or plane.shape, config.resample)
        for plane in _iterate_channels(pixels, config.channels)
    ]
    values = np.stack(planes * (config.channels // len(planes)))
    if invert:
        # invert after resizing, which is faster, and is equivalent because interpolation weights
        # sum to 1
        values = np.float32(255) - values
    mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (config.mean, config.std))
    return np.asarray((values * np.float32(config.scale) - mean) / std, np.float32)


def _crop_and_resize(pixels: Array, config: ImageConfig) -> Array:
    """Crop, rotate and resize an image as `config` specifies, before the final resize."""
    if config.do_center_crop:
        pixels = _crop_center(pixels, config.size)
    if config.do_align_long_axis:
        pixels = _rotate_to_target(pixels, config.size)
    rows, columns = pixels.shape[:2]
    if config.pads_all_sides:
        return _fit_and_center(pixels, config)
    if config.shortest_longest_edge:
        return resize_image(pixels, _compute_fitted_size(rows, columns, config), config)
    if config.resizes_to_uint8 or config.resize_lengths:
        # the first resize precedes the center crop or padding, as in image processors of
        # transformers
        height, *width = config.resize_lengths or config.size
        size = (height, width[0]) if width else _compute_short_edge_size(rows, columns, height)
        return _crop_or_pad_center(resize_image(pixels, size, config), config.size)
    return pixels


def has_light_background(pixels: Array) -> bool:
    """Return True if the mean brightness of an image border is high, as in scans of paper."""
    border = np.concatenate([pixels[0], pixels[-1], pixels[1:-1, 0], pixels[1:-1, -1]])
    return float(border.mean(dtype=np.float64)) > MIDDLE_GRAY


def resize_channel(channel: Floats, size: ImageSize, resample: Resampling) -> Floats:
    """Resize a channel, float32 [height, width], to `size` with antialiasing, as Pillow does."""
    if channel.shape == size:
        return channel
    return np.asarray(_resize_with_pillow(channel.astype(np.float32), size, resample), np.float32)


def _resize_with_pillow(pixels: Array, size: ImageSize, kind: Resampling) -> Array:
    pillow = _import_pillow()
    image = pillow.fromarray(np.ascontiguousarray(pixels))
    resized: Array = np.asarray(image.resize(size[::-1], pillow.Resampling[kind.upper()]))
    return resized


def resize_image(pixels: Array, size: ImageSize, config: ImageConfig) -> Array:
    """Resize pixels [height, width, 1 or 3] to `size`. If `resizes_to_uint8` is True, round to
    uint8.
    """
    if pixels.shape[:2] == size:
        return pixels
    if config.resizes_to_uint8 and pixels.dtype == np.uint8:
        # resize all channels in one call
        is_gray = pixels.shape[2] == 1
        resized = _resize_with_pillow(pixels[:, :, 0] if is_gray else pixels, size, config.resample)
        return resized[:, :, None] if is_gray else resized
    planes = pixels.astype(np.float32).transpose(2, 0, 1)
    return np.stack([resize_channel(plane, size, config.resample) for plane in planes], axis=-1)


def _rotate_to_target(pixels: Array, size: ImageSize) -> Array:
    """Rotate an image by 90° clockwise if it is portrait and `size` is landscape, or vice versa."""
    rows, columns = pixels.shape[:2]
    has_other_orientation = (rows - columns) * (size[0] - size[1]) < 0
    return np.rot90(pixels, -1) if has_other_orientation else pixels


def _fit_and_center(pixels: Array, config: ImageConfig) -> Array:
    """Resize an image and pad it with black on all sides, as the Donut processor does."""
    rows, columns = config.size
    edge = min(rows, columns)
    height, width = _compute_short_edge_size(pixels.shape[0], pixels.shape[1], edge)
    pixels = resize_image(pixels, (height, width), config)
    fitted_height, fitted_width = min(height, rows), min(width, columns)
    # resize twice, as the Donut processor does: each resize rounds to 8 bits, so a single resize
    # produces different pixels
    if (fitted_height, fitted_width) != (height, width):
        if height > width:
            fitted_width = max(1, width * fitted_height // height)
        elif width > height:
            fitted_height = max(1, height * fitted_width // width)
        pixels = resize_image(pixels, (fitted_height, fitted_width), config)
    return pad_with_black(
        pixels, config.size, ((rows - fitted_height) // 2, (columns - fitted_width) // 2)
    )


def pad_with_black(pixels: Array, size: ImageSize, corner: ImageSize) -> Array:
    """Return a black image of `size` that contains `pixels` at `corner` (top, left)."""
    (top, left), (height, width), (rows, columns) = corner, size, pixels.shape[:2]
    return np.pad(pixels, ((top, height - rows - top), (left, width - columns - left), (0, 0)))


def _compute_short_edge_size(rows: int, columns: int, edge: int) -> ImageSize:
    """Return the resized (height, width) whose shorter side is `edge`. Raise E0904 if the image
    would have more than MAX_PIXELS pixels.
    """
    short, long = min(rows, columns), max(rows, columns)
    longer = max(1, edge * long // short)
    if longer * edge > MAX_PIXELS:
        raise_file_too_large_error("the image", f"it would be resized to {edge} × {longer}")
    return (edge, longer) if rows <= columns else (longer, edge)


def _compute_fitted_size(rows: int, columns: int, config: ImageConfig) -> ImageSize:
    """Return the resized (height, width) as in DETR and YOLOS. Raise E0990 if a side exceeds
    `config.size`.
    """
    edge, max_edge = config.shortest_longest_edge
    short, long = min(rows, columns), max(rows, columns)
    exact_edge = float(edge)
    if long / short * edge > max_edge:
        exact_edge = max_edge * short / long
        edge = round(exact_edge)
    # keep the size of an image whose shorter side already has the required length
    longer = long if short == edge else int(exact_edge * long / short)
    height, width = (edge, longer) if rows <= columns else (longer, edge)
    height, width = (max(n - n % config.size_multiple, 1) for n in (height, width))
    if height > config.size[0] or width > config.size[1]:
        frame = f"{config.size[0]} × {config.size[1]}"
        raise_error(
            "E0990",
            f"an image of {rows} × {columns} pixels is resized to {height} × {width}, but the "
            f"model expects {frame}",
            notes=[
                "the image is resized without changing its aspect ratio, as in the published "
                "processor"
            ],
            helps=[
                "compile for larger images, such as "
                f"`--set image=[{max(height, config.size[0])}, {max(width, config.size[1])}]`, "
                "or use a smaller image of this aspect ratio"
            ],
        )
    return height, width


def _crop_or_pad_center(pixels: Array, size: ImageSize) -> Array:
    """Crop the center of an image, or pad a smaller image with black on all sides."""
    if pixels.shape[:2] == size:
        return pixels
    rows, columns = pixels.shape[:2]
    height, width = max(rows, size[0]), max(columns, size[1])
    # as in transformers, if the margin is odd, the extra row is padded at the top but cropped at
    # the bottom
    corner = -(-(height - rows) // 2), -(-(width - columns) // 2)
    padded = pad_with_black(pixels, (height, width), corner)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return padded[top : top + size[0], left : left + size[1]]


def denormalize_image(values: Array, config: ImageConfig) -> NDArray[np.uint8]:
    """Convert normalized pixels [channels, height, width] to uint8 [height, width, channels]."""
    mean, std = (np.array(v, np.float64).reshape(-1, 1, 1) for v in (config.mean, config.std))
    pixels = (values.astype(np.float64) * std + mean) / config.scale
    if config.invert is True:
        pixels = 255 - pixels
    rounded = np.clip(np.rint(np.nan_to_num(pixels)), 0, 255).astype(np.uint8)
    return np.ascontiguousarray(rounded.transpose(1, 2, 0))


def _decode_pixels(source: "Pillow.Image") -> Array:
    """Decode a lazily opened image. 8-bit files are decoded to uint8."""
    from PIL import Image as pillow  # noqa: N813 - the extra [image]: `_import_pillow` has found it by now
    from PIL import ImageOps

    source.load()
    image = ImageOps.exif_transpose(source)
    if image.mode == "I" or image.mode.startswith("I;16"):  # in 16-bit grayscale, white is 65535
        return (np.asarray(image, np.float32) / np.float32(257))[:, :, None]
    is_gray = image.mode in ("L", "LA", "La", "1")
    if image.has_transparency_data:
        background = pillow.new("RGBA", image.size, "white")
        background.alpha_composite(image.convert("RGBA"))
        image = background
    pixels = np.asarray(image.convert("L" if is_gray else "RGB"))
    return pixels[:, :, None] if is_gray else pixels


def _iterate_channels(pixels: Array, channels: int) -> Iterator[Floats]:
    """Yield the channels of an image, or only the luminance if the model input has one channel."""
    count = pixels.shape[2]
    if channels == 1 and count == 3:
        luminance = np.zeros(pixels.shape[:2], np.float32)
        for channel in range(3):
            luminance += pixels[:, :, channel].astype(np.float32) * LUMA_WEIGHTS[channel]
        yield luminance
    else:
        yield from (pixels[:, :, channel].astype(np.float32) for channel in range(count))


def _crop_center(pixels: Array, size: ImageSize) -> Array:
    """Crop the largest centered region with the aspect ratio of `size`."""
    rows, columns = pixels.shape[:2]
    height = max(1, min(rows, round(columns * size[0] / size[1])))
    width = max(1, min(columns, round(rows * size[1] / size[0])))
    top, left = (rows - height) // 2, (columns - width) // 2
    return pixels[top : top + height, left : left + width]


def _check_size(size: ImageSize, name: str) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise_file_too_large_error(
            name, f"it has {width} × {height} pixels, but the maximum is {MAX_PIXELS >> 20} million"
        )
    if not width * height:
        raise_error(
            "E0903",
            f"`{escape_text(name)}` has no pixels",
            helps=["use an image of at least one pixel"],
        )


def _raise_not_image(name: str, data: bytes, reason: str) -> NoReturn:
    helps = ["save the image again as PNG or JPEG"]
    if not data:
        reason = "the file is empty"
    elif data.startswith((b"\x93NUMPY", b"PK\x03\x04")):
        helps = ["pass a preprocessed array as `NAME=FILE.npy`, with the name of the input"]
    raise_error("E0903", f"cannot read `{escape_text(name)}` as an image: {reason}", helps=helps)


def _import_pillow() -> Any:
    """Return the module `PIL.Image` of the optional dependency Pillow."""
    try:
        from PIL import Image as pillow  # noqa: N813
    except ImportError:
        raise_error(
            "E0902",
            "reading images requires Pillow, which is not installed",
            helps=["pip install -e '.[image]'", "or pass the pixels as an array in a .npy file"],
        )
    return pillow
