"""Write PNG images of handwritten digits from the validation set of the digits model.

The images are the 8×8 digits of scikit-learn (UCI, Alpaydin and Kaynak 1998). Their values from 0
to 16 are the number of black pixels in 4×4 blocks of a scan. Every fifth image (index % 5 == 0)
belongs to the validation set, from which the samples are chosen. This script inverts this
reduction: each value becomes a block of 8×8 pixels with the same fraction of black pixels, arranged
such that strokes are connected. Averaging the blocks (`resize=box`) recovers the values to within
half a gray level. The digits are dark on light paper, as in a photo; `invert=auto` inverts the
images.

    python docs/demos/digits/make_samples.py
"""

import argparse
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import IMAGE_OUTPUT, resolve_output_path

HELD_OUT = 5  # every fifth image
BLOCK = 8  # pixels per side of the block for one value
FINE = 4  # subpixels per side of a pixel, for smooth strokes
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SAMPLES = ("zero", "two", "three", "four", "seven", "nine")
INK, PAPER = 0, 255
WIDTHS = (
    16,
    10,
    10,
    8,
    8,
    6,
    6,
    6,
    5,
    5,
)  # widths in subpixels; the first blur finds the strokes, the other blurs smooth the edges


def select_validation_images(count: int) -> NDArray[np.bool_]:
    """Return a boolean mask that selects the validation images among `count` images."""
    return np.arange(count) % HELD_OUT == 0


def render_digit(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Render values `f[8, 8]` from 0 to 16 as dark ink on light paper, `u8[64, 64]`."""
    side = BLOCK * FINE
    field = np.kron(values / 16, np.ones((side, side)))
    for width in WIDTHS:
        field = place_ink(blur_image(field, width), values)
    pixels = field.reshape(64, FINE, 64, FINE).mean(axis=(1, 3))
    return np.rint(PAPER + (INK - PAPER) * pixels).astype(np.uint8)


def place_ink(wish: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a binary image `f[256, 256]` with ink at the pixels with the largest values of `wish`.
    The number of ink pixels in each block is given by `values`.
    """
    side = BLOCK * FINE
    blocks = wish.reshape(8, side, 8, side).transpose(0, 2, 1, 3).reshape(8, 8, side * side)
    ranks = np.argsort(np.argsort(-blocks, axis=2, kind="stable"), axis=2, kind="stable")
    ink = ranks < (values / 16 * side * side)[:, :, None]
    return (
        ink.reshape(8, 8, side, side)
        .transpose(0, 2, 1, 3)
        .reshape(8 * side, 8 * side)
        .astype(np.float64)
    )


def blur_image(field: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """Return the Gaussian blur with standard deviation `width` in subpixels and edge padding."""
    reach = int(3 * width) + 1
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    for axis in (0, 1):
        ends = [(reach, reach) if i == axis else (0, 0) for i in (0, 1)]
        padded = np.pad(field, ends, mode="edge")
        field = np.apply_along_axis(np.convolve, axis, padded, kernel / kernel.sum(), mode="valid")
    return field


def choose_samples() -> dict[str, NDArray[np.float64]]:
    """Return for each sample name the validation image that is nearest to the mean of its digit."""
    digits = load_digits()
    kept = select_validation_images(len(digits.images))
    chosen = {}
    for name in SAMPLES:
        of_kind = digits.images[kept & (digits.target == NAMES.index(name))]
        distance = ((of_kind - of_kind.mean(axis=0)) ** 2).sum(axis=(1, 2))
        chosen[name] = of_kind[int(np.argmin(distance))]
    return chosen


def main() -> None:
    """Write the sample images next to this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true", help="replace other pictures")
    force = parser.parse_args().force
    for name, values in choose_samples().items():
        path = Path(__file__).with_name(f"{name}.png")
        stream = BytesIO()
        Image.fromarray(render_digit(values)).save(stream, "PNG", optimize=True)
        made = stream.getvalue()
        write_file_atomically(
            resolve_output_path(path, IMAGE_OUTPUT, content=made, force=force), [made]
        )
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
