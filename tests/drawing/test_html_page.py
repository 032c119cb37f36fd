"""Pages: one file, no network, nothing from a model that runs, and the numbers that it gave."""

import base64
import json

import numpy as np
import pytest
from support.looks import HOSTILE, attention, axis, looks, over
from support.pages import Read, data_of, page_is_sound

from specc.drawing.drawing_marks import printable_label
from specc.drawing.html_page import MAX_CELLS, escape_json, render_attention_html


def test_a_page_is_sound_whatever_the_tokens_are():
    count = len(HOSTILE)
    made = attention(np.eye(count)[None], axis(HOSTILE), axis(HOSTILE), HOSTILE[0])
    text = render_attention_html(looks(made, model=HOSTILE[0], given=HOSTILE[1]))
    page_is_sound(text)
    data = data_of(text)
    assert data["axes"][0]["labels"] == [printable_label(t, 120) for t in HOSTILE]
    assert Read(text).inside["h1"] == [HOSTILE[0]]
    text.encode("utf-8")


def test_a_mistake_in_the_policy_would_be_seen():
    text = render_attention_html(looks(attention(np.eye(2)[None])))
    for broken in (
        text.replace('"use strict";', '"use strict"; ', 1),
        text.replace("<h1>", "<script>1</script><h1>"),
        text.replace("<h1>", "<h1 style='color:red'>"),
        text.replace("<h1>", "<img src='https://example.org/a.png'><h1>"),
    ):
        assert broken != text
        with pytest.raises(AssertionError):
            page_is_sound(broken)


def test_the_numbers_in_a_page_are_those_of_the_model():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(5), (3, 4)).astype(np.float32).astype(np.float64)
    hidden = np.zeros(weights.shape, np.bool_)
    hidden[:, 0, 3:] = True
    weights[hidden] = 0
    weights[1, 1, 1] = np.nan
    data = data_of(render_attention_html(looks(attention(weights, hidden=hidden))))
    (made,) = data["maps"]
    found = np.frombuffer(base64.b64decode(made["weights"]), "<f4")
    found = found.reshape(len(made["heads"]), made["rows"], made["columns"])
    np.testing.assert_array_equal(np.isneginf(found), hidden)
    np.testing.assert_array_equal(found[~hidden], weights.astype(np.float32)[~hidden])


def test_a_large_page_is_pooled_and_says_so():
    weights = np.zeros((2, 900, 900))
    weights[1, 700, 701] = 0.5
    text = render_attention_html(looks(attention(weights)))
    data = data_of(text)
    (made,) = data["maps"]
    assert data["step"] == 2
    assert len(made["heads"]) * made["rows"] * made["columns"] <= MAX_CELLS
    found = np.frombuffer(base64.b64decode(made["weights"]), "<f4")
    assert found.max() == 0.5
    assert "the maximum weight of 2 × 2" in text
    assert len(text) < 7_000_000
    small = render_attention_html(looks(attention(weights[:, :30, :30])))
    assert "the maximum weight of" not in small


def test_a_picture_is_in_the_page():
    given = over()
    text = render_attention_html(given)
    page_is_sound(text)
    picture = data_of(text)["picture"]
    pixels = np.frombuffer(base64.b64decode(picture["pixels"]), np.uint8)
    np.testing.assert_array_equal(pixels.reshape(8, 8, 3), given.image)
    assert data_of(text)["axes"][0]["grid"] == [4, 4, 1]
    assert data_of(render_attention_html(looks(*given.maps)))["picture"] is None


def test_axes_that_several_maps_share_are_there_once():
    one, other = axis(["a", "b"], "input"), axis(["x", "y", "z"], "generated")
    maps = (
        attention(np.ones((1, 2, 2)), one, one, "enc"),
        attention(np.ones((1, 3, 2)), other, one, "cross"),
    )
    data = data_of(render_attention_html(looks(*maps)))
    assert len(data["axes"]) == 2
    assert [(m["queries"], m["keys"]) for m in data["maps"]] == [(0, 0), (1, 0)]


def test_data_ends_no_element():
    for text in HOSTILE:
        made = escape_json([text])
        assert not set("<>&") & set(made)
        assert json.loads(made) == [text]
