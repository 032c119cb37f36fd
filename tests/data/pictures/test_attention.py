"""Attention drawn as PNG, and the PNG writer and the font below it."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from specc.data.pictures import font
from specc.data.pictures.attention import heatmap, overlay
from specc.data.pictures.colors import class_colors, colors
from specc.data.pictures.png import encode_png


def opened(data: bytes) -> np.ndarray:
    picture = Pillow.open(io.BytesIO(data))
    picture.load()
    return np.asarray(picture)


@settings(max_examples=50)
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([1, 3]),
    st.integers(0, 2**32 - 1),
)
def test_a_png_is_read_back_equal(rows, columns, channels, seed):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (rows, columns, channels), dtype=np.uint8)
    if seed % 2:
        pixels = np.sort(pixels, axis=0)  # smooth downwards: the other filter
    np.testing.assert_array_equal(
        opened(encode_png(pixels)).reshape(pixels.shape), pixels
    )


def test_titles_do_not_run_into_each_other():
    weights = np.ones((4, 2, 2))
    short, long = (
        opened(heatmap(weights, titles=[text] * 4))
        for text in ("a", "layer 10, head 11")
    )
    assert long.shape[1] > short.shape[1] + 200


def test_equal_pictures_are_equal_bytes():
    weights = np.random.default_rng(0).random((2, 5, 6))
    assert heatmap(weights) == heatmap(weights.copy())


def test_every_latin_character_has_a_glyph_of_its_own():
    empty = font.glyph("\ufffd")
    seen: dict[bytes, str] = {}
    for code in (*range(0x21, 0x7F), *range(0xA1, 0x100)):
        character = chr(code)
        if character in font.SAME:
            continue
        dots = font.glyph(character)
        assert dots.shape == (font.HEIGHT, font.WIDTH)
        assert dots.any()
        assert (dots != empty).any(), character
        assert seen.setdefault(dots.tobytes(), character) == character
    assert not font.glyph(" ").any()
    assert (font.glyph("漢") == empty).all()


def test_labels_show_what_cannot_be_seen():
    assert font.visible("a\nb", 10) == "a↵b"
    assert font.visible(" the", 10) == "␣the"
    assert font.visible("  ", 10) == "␣␣"
    assert font.visible("\x1b[0m", 10) == "\\x1b[0m"
    assert font.visible("abcdefgh", 5) == "abcd…"
    assert font.visible("", 5) == ""


def test_colors_grow_in_lightness():
    ramp = colors(np.linspace(0, 1, 50)).astype(float) @ [0.299, 0.587, 0.114]
    assert (np.diff(ramp) > 0).all()
    assert colors(np.array([np.nan])).tolist() == [[128, 128, 128]]


def test_class_colors_differ():
    palette = class_colors(30).astype(int)
    apart = np.abs(palette[:, None] - palette[None]).sum(-1) + 1000 * np.eye(
        30, dtype=int
    )
    assert apart.min() > 20


def test_the_greatest_weight_is_the_brightest_cell():
    weights = np.zeros((4, 5))
    weights[2, 3] = 0.9
    picture = opened(heatmap(weights, list("abcd"), list("vwxyz")))
    bright = (picture == colors(np.array([1.0]))[0]).all(-1)
    dark = (picture == colors(np.array([0.0]))[0]).all(-1)
    assert bright.sum() > 500
    assert dark.sum() > 15 * 500


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (3, 1), (1, 40), (200, 300), (1, 4, 4), (12, 7, 7), (0, 3), (2, 0, 0)],
)
def test_any_size_gives_a_picture(shape):
    picture = opened(heatmap(np.random.default_rng(0).random(shape)))
    assert picture.ndim == 3
    assert (picture[0] == 255).all()  # a margin
    assert (picture[-1] == 255).all()
    assert (picture[:, 0] == 255).all()
    assert (picture[:, -1] == 255).all()


def test_large_maps_keep_their_peaks():
    weights = np.zeros((3000, 3000))
    weights[1234, 2345] = 1.0
    picture = opened(heatmap(weights))
    assert max(picture.shape) < 1400
    area = picture[:, : picture.shape[1] - 80]  # without the scale
    assert (area == colors(np.array([1.0]))[0]).all(-1).any()


def test_values_that_are_no_numbers_are_gray():
    weights = np.ones((3, 3))
    weights[0, 0] = np.nan
    assert (opened(heatmap(weights)) == 128).all(-1).sum() > 300


def test_long_and_strange_labels_do_not_break_the_layout():
    labels = ["", "x" * 500, "漢字", "\x00", "é" * 10]
    assert opened(heatmap(np.eye(5), labels, labels)).shape[1] < 1000


@pytest.mark.parametrize(
    "shape", [(8, 8), (1, 8, 8), (3, 16, 12), (3, 224, 224), (1, 1), (2000, 1500)]
)
def test_an_overlay_of_any_picture(shape):
    rng = np.random.default_rng(0)
    for maps in (rng.random((4, 4)), rng.random((6, 2, 3))):
        assert opened(overlay(rng.random(shape), maps)).shape[2] == 3


def test_an_overlay_colors_the_patch_that_was_looked_at():
    weights = np.zeros((2, 2))
    weights[0, 1] = 1
    picture = opened(overlay(np.zeros((8, 8)), weights)).astype(int)
    yellow = (
        (picture[:, :, 0] > 150) & (picture[:, :, 1] > 120) & (picture[:, :, 2] < 80)
    )
    rows, columns = np.nonzero(yellow[:, : picture.shape[1] - 69])
    assert columns.size > 160 * 160 * 0.9
    assert columns.max() - columns.min() == 159
    assert rows.max() - rows.min() == 159
