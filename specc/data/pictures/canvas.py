"""A picture under construction: rectangles, blocks of pixels and text on white."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specc.data.pictures.font import ADVANCE, HEIGHT, line
from specc.data.pictures.png import encode_png

Color = tuple[int, int, int]

INK: Color = (32, 32, 36)
FAINT: Color = (120, 120, 128)


class Canvas:
    """Pixels, row 0 on top. What would lie outside is cut off."""

    def __init__(self, rows: int, columns: int) -> None:
        self.pixels: NDArray[np.uint8] = np.full((rows, columns, 3), 255, np.uint8)

    def place(self, block: NDArray[Any], top: int, left: int) -> None:
        """Put `u8[rows, columns, 3]` with its corner at (`top`, `left`)."""
        room = self.pixels[top : top + block.shape[0], left : left + block.shape[1]]
        room[...] = block[: room.shape[0], : room.shape[1]]

    def frame(
        self, top: int, left: int, rows: int, columns: int, color: Color = FAINT
    ) -> None:
        """A line of one pixel around a block that begins at (`top`, `left`)."""
        area = self.pixels
        area[top - 1, left - 1 : left + columns + 1] = color
        area[top + rows, left - 1 : left + columns + 1] = color
        area[top - 1 : top + rows + 1, left - 1] = color
        area[top - 1 : top + rows + 1, left + columns] = color

    def text(
        self,
        text: str,
        top: int,
        left: int,
        scale: int = 1,
        color: Color = INK,
        *,
        upright: bool = False,
    ) -> None:
        """A text; `upright` runs it from the bottom to the top, with its last letter at `top`."""
        dots = np.kron(line(text), np.ones((scale, scale), np.bool_)).astype(np.bool_)
        if upright:
            dots = np.rot90(dots)
        top, left = max(top, 0), max(left, 0)
        room = self.pixels[top : top + dots.shape[0], left : left + dots.shape[1]]
        room[dots[: room.shape[0], : room.shape[1]]] = color

    def png(self) -> bytes:
        """The picture as a PNG file."""
        return encode_png(self.pixels)


def text_width(text: str, scale: int = 1) -> int:
    """Pixels that a text is wide."""
    return max(0, ADVANCE * len(text) - 1) * scale


def text_height(scale: int = 1) -> int:
    """Pixels that a line of text is high, accents and descenders included."""
    return HEIGHT * scale
