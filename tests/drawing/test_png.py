"""The PNG writer of results, and the colors of weights and of classes."""

import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from specc.drawing.drawing_elements import apply_colormap, make_class_colors
from specc.drawing.png import encode_png


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3]), st.integers(0, 2**32 - 1))
def test_a_png_is_read_back_equal(rows, columns, channels, seed):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (rows, columns, channels), dtype=np.uint8)
    with Pillow.open(io.BytesIO(encode_png(pixels))) as picture:
        found = np.asarray(picture).reshape(pixels.shape)
    np.testing.assert_array_equal(found, pixels)


def test_colors_grow_in_lightness():
    ramp = apply_colormap(np.linspace(0, 1, 50)).astype(float) @ [0.299, 0.587, 0.114]
    assert (np.diff(ramp) > 0).all()
    assert apply_colormap(np.array([np.nan])).tolist() == [[128, 128, 128]]


def test_class_colors_differ():
    palette = make_class_colors(30).astype(int)
    apart = np.abs(palette[:, None] - palette[None]).sum(-1) + 1000 * np.eye(30, dtype=int)
    assert apart.min() > 20
