"""Images that keep their aspect ratio: padded at the bottom and right of a frame, or document pages
centered on black."""

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.images import resize_and_normalize_image
from specc.preprocessing.preprocessing_records import ImageConfig

MEAN = (0.485, 0.456, 0.406)


def make_padded_record(size: tuple[int, int], **more: object) -> ImageConfig:
    told = {"mean": MEAN, "shortest_longest_edge": (64, 96), "resizes_to_uint8": True} | more
    return ImageConfig(size=size, **told)


def make_page_record(size: tuple[int, int], **more: object) -> ImageConfig:
    return ImageConfig(size=size, pads_all_sides=True, resizes_to_uint8=True, **more)


def sample_image(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (rows, columns, 3), np.uint8)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((64, 64), (64, 64)),
        ((32, 40), (64, 80)),
        ((48, 90), (51, 96)),  # the longer side decides: 96 * 48 / 90 is 51.2
        ((90, 48), (96, 51)),
        ((10, 96), (10, 96)),
        ((1, 2000), (1, 96)),
    ],
)
def test_aspect_ratio_is_kept(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    made = resize_and_normalize_image(sample_image(*size), make_padded_record((96, 96)))
    assert made.shape == (1, 3, 96, 96)
    there = np.abs(made).max(axis=(0, 1)) > 0
    assert (there.sum(0).max(), there.sum(1).max()) == wanted
    assert there[: wanted[0], : wanted[1]].all()
    assert not there[wanted[0] :].any()
    assert not there[:, wanted[1] :].any()


def test_sides_are_multiples() -> None:
    made = resize_and_normalize_image(
        sample_image(48, 90), make_padded_record((96, 96), size_multiple=16)
    )
    there = np.abs(made).max(axis=(0, 1)) > 0
    assert (there.sum(0).max(), there.sum(1).max()) == (48, 96)


def test_no_normalized_pixel_is_0() -> None:
    """Specs detect padding by zeros, so no byte may normalize to 0 with a published mean."""
    for mean in (*MEAN, 0.5, 0.48145466, 0.4578275, 0.40821073):
        values = np.arange(256, dtype=np.float32) * np.float32(1 / 255)
        assert (values - np.float32(mean) != 0).all()


@pytest.mark.parametrize("size", [(40, 64), (64, 96), (95, 95)])
def test_image_larger_than_its_frame(size: tuple[int, int]) -> None:
    with pytest.raises(SpeccError, match="E0990") as failed:
        resize_and_normalize_image(sample_image(90, 48), make_padded_record(size))
    assert "resized to 96 × 51" in str(failed.value)
    assert "--set image=[96, " in str(failed.value)


@pytest.mark.parametrize(
    ("size", "wanted", "place"),
    [
        ((40, 30), (40, 30), (0, 0)),  # the expected size
        ((20, 20), (30, 30), (5, 0)),  # the shorter side is resized to that of the frame
        ((10, 40), (7, 30), (16, 0)),  # 30 rows would give 120 columns, so 30 are kept
        ((41, 10), (40, 9), (0, 10)),  # 123 rows of 30: 40 of 30 * 40 / 123 = 9.8
        ((1, 4000), (1, 30), (19, 0)),
    ],
)
def test_page_is_centered(
    size: tuple[int, int], wanted: tuple[int, int], place: tuple[int, int]
) -> None:
    made = resize_and_normalize_image(sample_image(*size) | 1, make_page_record((40, 30)))
    there = made[0].max(axis=0) > 0
    rows, columns = np.flatnonzero(there.any(1)), np.flatnonzero(there.any(0))
    assert (len(rows), len(columns)) == wanted
    assert (rows[0], columns[0]) == place
    assert there[np.ix_(rows, columns)].all()


@pytest.mark.parametrize(
    ("frame", "size", "turned"),
    [
        ((40, 30), (10, 20), True),
        ((40, 30), (20, 10), False),
        ((30, 40), (20, 10), True),
        ((30, 40), (10, 20), False),
        ((30, 30), (10, 20), False),
        ((40, 30), (10, 10), False),
    ],
)
def test_page_is_rotated_to_the_orientation_of_its_frame(
    frame: tuple[int, int], size: tuple[int, int], turned: bool
) -> None:
    """Rotate clockwise: the left side becomes the top."""
    pixels = sample_image(*size)
    made = resize_and_normalize_image(pixels, make_page_record(frame, do_align_long_axis=True))
    given = np.ascontiguousarray(pixels[::-1].swapaxes(0, 1)) if turned else pixels
    np.testing.assert_array_equal(made, resize_and_normalize_image(given, make_page_record(frame)))
