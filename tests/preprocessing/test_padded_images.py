"""Pictures that keep their proportions lie at the upper left of a frame, zeros behind
them; pages in the middle of one, black around them.
"""

import numpy as np
import pytest

from specc.diagnostics.diagnostic import Failed
from specc.preprocessing.images import normalize_image
from specc.preprocessing.records import ImageRecord

MEAN = (0.485, 0.456, 0.406)


def framed(size: tuple[int, int], **more: object) -> ImageRecord:
    told = {"mean": MEAN, "fitted": (64, 96), "rounded": True} | more
    return ImageRecord(size=size, **told)


def paged(size: tuple[int, int], **more: object) -> ImageRecord:
    return ImageRecord(size=size, centered=True, rounded=True, **more)


def drawn(rows: int, columns: int) -> np.ndarray:
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
def test_proportions_are_kept(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    made = normalize_image(drawn(*size), framed((96, 96)))
    assert made.shape == (1, 3, 96, 96)
    there = np.abs(made).max(axis=(0, 1)) > 0
    assert (there.sum(0).max(), there.sum(1).max()) == wanted
    assert there[: wanted[0], : wanted[1]].all()
    assert not there[wanted[0] :].any()
    assert not there[:, wanted[1] :].any()


def test_sides_are_whole_multiples() -> None:
    made = normalize_image(drawn(48, 90), framed((96, 96), multiple=16))
    there = np.abs(made).max(axis=(0, 1)) > 0
    assert (there.sum(0).max(), there.sum(1).max()) == (48, 96)


def test_no_pixel_is_0() -> None:
    """What says where a picture is asks for that: no byte is a published mean."""
    for mean in (*MEAN, 0.5, 0.48145466, 0.4578275, 0.40821073):
        values = np.arange(256, dtype=np.float32) * np.float32(1 / 255)
        assert (values - np.float32(mean) != 0).all()


@pytest.mark.parametrize("size", [(40, 64), (64, 96), (95, 95)])
def test_a_picture_larger_than_its_frame_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(Failed, match="E0990") as failed:
        normalize_image(drawn(90, 48), framed(size))
    assert "resized to 96 × 51" in str(failed.value)
    assert "--set image=[96, " in str(failed.value)


@pytest.mark.parametrize(
    ("size", "wanted", "place"),
    [
        ((40, 30), (40, 30), (0, 0)),  # as it should be
        ((20, 20), (30, 30), (5, 0)),  # the shorter side as long as the frame's
        ((10, 40), (7, 30), (16, 0)),  # 30 rows would be 120 columns: these are cut to 30
        ((41, 10), (40, 9), (0, 10)),  # 123 rows of 30: 40 of 30 * 40 / 123 = 9.8
        ((1, 4000), (1, 30), (19, 0)),
    ],
)
def test_a_page_lies_in_the_middle(
    size: tuple[int, int], wanted: tuple[int, int], place: tuple[int, int]
) -> None:
    made = normalize_image(drawn(*size) | 1, paged((40, 30)))
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
def test_a_page_is_turned_as_its_frame_is(
    frame: tuple[int, int], size: tuple[int, int], turned: bool
) -> None:
    """To the right: what was at the left is above."""
    pixels = drawn(*size)
    made = normalize_image(pixels, paged(frame, aligned=True))
    given = np.ascontiguousarray(pixels[::-1].swapaxes(0, 1)) if turned else pixels
    np.testing.assert_array_equal(made, normalize_image(given, paged(frame)))
