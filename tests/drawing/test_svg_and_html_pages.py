"""HTML pages: a single file, no network access, no script from model text, and the exact
weights."""

import base64
import json

import numpy as np
import pytest
from support.attention_maps import (
    HOSTILE_LABELS,
    make_attention_map,
    make_attention_maps,
    make_axis,
    make_image_attention,
)
from support.html_pages import PageParser, check_page, read_page_data

from specc.drawing.attention_maps import MAX_CELLS, render_attention_html
from specc.drawing.drawing_elements import make_printable_label
from specc.drawing.svg_and_html_pages import encode_html_safe_json


def test_page_with_hostile_tokens_is_valid():
    count = len(HOSTILE_LABELS)
    made = make_attention_map(
        np.eye(count)[None], make_axis(HOSTILE_LABELS), make_axis(HOSTILE_LABELS), HOSTILE_LABELS[0]
    )
    text = render_attention_html(
        make_attention_maps(made, model=HOSTILE_LABELS[0], text=HOSTILE_LABELS[1])
    )
    check_page(text)
    data = read_page_data(text)
    assert data["axes"][0]["labels"] == [make_printable_label(t, 120) for t in HOSTILE_LABELS]
    assert PageParser(text).inside["h1"] == [HOSTILE_LABELS[0]]
    text.encode("utf-8")


def test_planted_policy_violations_are_found():
    text = render_attention_html(make_attention_maps(make_attention_map(np.eye(2)[None])))
    for broken in (
        text.replace('"use strict";', '"use strict"; ', 1),
        text.replace("<h1>", "<script>1</script><h1>"),
        text.replace("<h1>", "<h1 style='color:red'>"),
        text.replace("<h1>", "<img src='https://example.org/a.png'><h1>"),
    ):
        assert broken != text
        with pytest.raises(AssertionError):
            check_page(broken)


def test_page_data_equals_the_weights():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(5), (3, 4)).astype(np.float32).astype(np.float64)
    hidden = np.zeros(weights.shape, np.bool_)
    hidden[:, 0, 3:] = True
    weights[hidden] = 0
    weights[1, 1, 1] = np.nan
    data = read_page_data(
        render_attention_html(make_attention_maps(make_attention_map(weights, hidden=hidden)))
    )
    (made,) = data["maps"]
    found = np.frombuffer(base64.b64decode(made["weights"]), "<f4")
    found = found.reshape(len(made["heads"]), made["rows"], made["columns"])
    np.testing.assert_array_equal(np.isneginf(found), hidden)
    np.testing.assert_array_equal(found[~hidden], weights.astype(np.float32)[~hidden])


def test_large_page_is_pooled():
    weights = np.zeros((2, 900, 900))
    weights[1, 700, 701] = 0.5
    text = render_attention_html(make_attention_maps(make_attention_map(weights)))
    data = read_page_data(text)
    (made,) = data["maps"]
    assert data["step"] == 2
    assert len(made["heads"]) * made["rows"] * made["columns"] <= MAX_CELLS
    found = np.frombuffer(base64.b64decode(made["weights"]), "<f4")
    assert found.max() == 0.5
    assert "the maximum weight of 2 × 2" in text
    assert len(text) < 7_000_000
    small = render_attention_html(make_attention_maps(make_attention_map(weights[:, :30, :30])))
    assert "the maximum weight of" not in small


def test_page_contains_the_image():
    given = make_image_attention()
    text = render_attention_html(given)
    check_page(text)
    picture = read_page_data(text)["picture"]
    pixels = np.frombuffer(base64.b64decode(picture["pixels"]), np.uint8)
    np.testing.assert_array_equal(pixels.reshape(8, 8, 3), given.image)
    assert read_page_data(text)["axes"][0]["grid"] == [4, 4, 1]
    assert (
        read_page_data(render_attention_html(make_attention_maps(*given.maps)))["picture"] is None
    )


def test_shared_axes_are_stored_once():
    one, other = make_axis(["a", "b"], "input"), make_axis(["x", "y", "z"], "generated")
    maps = (
        make_attention_map(np.ones((1, 2, 2)), one, one, "enc"),
        make_attention_map(np.ones((1, 3, 2)), other, one, "cross"),
    )
    data = read_page_data(render_attention_html(make_attention_maps(*maps)))
    assert len(data["axes"]) == 2
    assert [(m["queries"], m["keys"]) for m in data["maps"]] == [(0, 0), (1, 0)]


def test_json_data_is_escaped():
    for text in HOSTILE_LABELS:
        made = encode_html_safe_json([text])
        assert not set("<>&") & set(made)
        assert json.loads(made) == [text]
