"""Encode images as PNG, and rasterize drawings."""

import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_thousands
from specc.drawing.drawing_elements import (
    PAPER,
    BoxElement,
    Drawing,
    DrawingElement,
    HeatmapElement,
    LineElement,
    TextElement,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont


SIGNATURE = b"\x89PNG\r\n\x1a\n"
SOFTWARE_CHUNK = b"Software\0specc"
"""The PNG text chunk that marks images as written by specc (see `specc.io.file_type_detection`)."""
COLOR_TYPE = {1: 0, 3: 2}  # the number of channels is 1 for grayscale and 3 for RGB


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an image (uint8 [height, width] or [height, width, 1 or 3]) as a PNG file."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    rows, columns, channels = pixels.shape
    assert pixels.dtype == np.uint8, "pixels are bytes"
    assert pixels.size, "an image has pixels"
    header = struct.pack(">IIBBBBB", columns, rows, 8, COLOR_TYPE[channels], 0, 0, 0)
    lines = pixels.reshape(rows, columns * channels)
    # labels and maps repeat vertically, so PNG filter 2 is used (difference from the previous line)
    differences = lines - np.vstack([np.zeros_like(lines[:1]), lines[:-1]])
    filtered = np.hstack([np.full((rows, 1), 2, np.uint8), differences]).tobytes()
    chunks = (
        (b"IHDR", header),
        (b"tEXt", SOFTWARE_CHUNK),
        (b"IDAT", zlib.compress(filtered, 9)),
        (b"IEND", b""),
    )
    return SIGNATURE + b"".join(_make_chunk(kind, data) for kind, data in chunks)


def _make_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PIXELS_PER_POINT = 2
MAX_PIXELS = 64_000_000
"""The maximum number of pixels in a rendered image, equal to the limit for input images."""

SYSTEM_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "Arial Unicode.ttf",
    "arial.ttf",
    "NotoSansCJK-Regular.ttc",
    "msgothic.ttc",
)
"""Fonts that are common on Linux, macOS and Windows, and that Pillow finds by file name."""

MISSING_GLYPH = "\U0010fffe"
"""A code point without a character. Fonts draw this code point as the missing-glyph box."""


def render_png(drawing: Drawing) -> bytes:
    """Render a drawing as PNG. Raise E0902 if Pillow is missing, and E0953 for too many pixels."""
    require_pillow()
    from PIL import Image, ImageDraw, PngImagePlugin

    size = (
        max(1, round(drawing.width * PIXELS_PER_POINT)),
        max(1, round(drawing.height * PIXELS_PER_POINT)),
    )
    if size[0] * size[1] > MAX_PIXELS:
        raise_error(
            "E0953",
            f"the PNG would have {size[0]} × {size[1]} pixels",
            notes=[f"the limit is {format_thousands(MAX_PIXELS)}"],
            helps=["select fewer maps with --layers or --heads, or write .svg or .html"],
        )
    image = Image.new("RGB", size, PAPER)
    canvas = ImageDraw.Draw(image)
    for element in drawing.elements:
        _draw_element(element, image, canvas)
    metadata = PngImagePlugin.PngInfo()
    metadata.add_text("Software", "specc")
    data = BytesIO()
    image.save(data, "PNG", pnginfo=metadata, dpi=(72 * PIXELS_PER_POINT, 72 * PIXELS_PER_POINT))
    return data.getvalue()


def require_pillow() -> None:
    """Raise E0902 if the optional dependency Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise_error(
            "E0902",
            "drawing a PNG requires the package Pillow",
            helps=["pip install -e '.[image]'", "write .svg or .html, which do not require it"],
        )


def find_missing_glyphs(elements: Iterable[DrawingElement]) -> str:
    """Return the distinct characters for which the PNG fonts have no glyph."""
    texts = (element.text for element in elements if isinstance(element, TextElement))
    characters = dict.fromkeys(c for text in texts for c in text)
    return "".join(c for c in characters if _find_font(c) is None)


def _draw_element(element: DrawingElement, image: "Image", canvas: "ImageDraw") -> None:
    match element:
        case TextElement():
            _draw_text(element, image, canvas)
        case BoxElement():
            _draw_box(element, canvas)
        case LineElement():
            points = [(x * PIXELS_PER_POINT, y * PIXELS_PER_POINT) for x, y in element.points]
            canvas.line(
                points, element.color, max(1, round(element.stroke_width * PIXELS_PER_POINT))
            )
        case HeatmapElement():
            _draw_cells(element, image)


def _draw_box(element: BoxElement, canvas: "ImageDraw") -> None:
    edges = (element.x, element.y, element.x + element.width, element.y + element.height)
    left, top, right, bottom = (round(edge * PIXELS_PER_POINT) for edge in edges)
    canvas.rounded_rectangle(
        (left, top, max(left, right - 1), max(top, bottom - 1)),
        element.corner_radius * PIXELS_PER_POINT,
        None if element.fill == "none" else element.fill,
        None if element.stroke == "none" else element.stroke,
        max(1, round(element.stroke_width * PIXELS_PER_POINT)),
    )


def _draw_cells(element: HeatmapElement, image: "Image") -> None:
    """Draw a heat map without interpolation between cells."""
    from PIL import Image

    left, top = round(element.x * PIXELS_PER_POINT), round(element.y * PIXELS_PER_POINT)
    width = max(1, round((element.x + element.width) * PIXELS_PER_POINT) - left)
    height = max(1, round((element.y + element.height) * PIXELS_PER_POINT) - top)
    heatmap = Image.fromarray(np.ascontiguousarray(element.colors), "RGB")
    image.paste(heatmap.resize((width, height), Image.Resampling.NEAREST), (left, top))


def _draw_text(element: TextElement, image: "Image", canvas: "ImageDraw") -> None:
    """Draw a line of text. Rotated text is drawn on a separate image, which is then pasted."""
    runs = list(_split_runs(element.text, element.size))
    length = sum(font.getlength(text) for font, text in runs)
    fraction = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.anchor]
    if not element.is_rotated:
        _draw_runs(
            runs,
            (element.x * PIXELS_PER_POINT - length * fraction, element.y * PIXELS_PER_POINT),
            element.color,
            canvas,
        )
        return
    from PIL import Image, ImageDraw

    baseline = round(element.size * PIXELS_PER_POINT * 1.1)
    text_image = Image.new("L", (max(1, round(length) + 2), round(baseline * 1.4)))
    _draw_runs(runs, (0, baseline), 255, ImageDraw.Draw(text_image))
    rotated = text_image.transpose(Image.Transpose.ROTATE_90)
    # rotated text is anchored at the lower end
    top = round(element.y * PIXELS_PER_POINT - length * (1 - fraction))
    image.paste(element.color, (round(element.x * PIXELS_PER_POINT) - baseline, top), rotated)


def _draw_runs(
    runs: Iterable[tuple["FreeTypeFont", str]],
    position: tuple[float, float],
    color: str | int,
    canvas: "ImageDraw",
) -> None:
    x, y = position
    for font, text in runs:
        canvas.text((x, y), text, color, font, "ls")
        x += font.getlength(text)


def _split_runs(text: str, size: float) -> Iterator[tuple["FreeTypeFont", str]]:
    """Split a string into runs, each with a font and a text. Characters without a glyph are
    replaced by their escaped code points.
    """
    fonts = _load_fonts(size)
    character_fonts = ((_find_font(c), c) for c in text)
    glyph_runs = ((0, ascii(c)[1:-1]) if n is None else (n, c) for n, c in character_fonts)
    for n, run in groupby(glyph_runs, key=itemgetter(0)):
        yield fonts[n], "".join(c for _, c in run)


@cache
def _load_fonts(size: float) -> tuple["FreeTypeFont", ...]:
    """Load the default font of Pillow and the installed system fonts."""
    from PIL import ImageFont

    default_font = ImageFont.load_default(size * PIXELS_PER_POINT)
    assert isinstance(default_font, ImageFont.FreeTypeFont), "Pillow was built with FreeType"
    fonts = [default_font]
    for name in SYSTEM_FONTS:
        with suppress(OSError):  # skip a font that is not installed
            fonts.append(ImageFont.truetype(name, size * PIXELS_PER_POINT))
    return tuple(fonts)


@cache
def _find_font(character: str) -> int | None:
    """Return the index of the first font with a glyph for a character, or None if there is none."""
    for n, font in enumerate(_load_fonts(16)):
        if character == " " or bytes(font.getmask(character)) != bytes(font.getmask(MISSING_GLYPH)):
            return n
    return None
