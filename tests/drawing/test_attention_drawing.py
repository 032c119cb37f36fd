"""Attention maps as drawings, and drawings as SVG and PNG."""

import io
import re
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from support.attention_maps import (
    HOSTILE_LABELS,
    make_attention_map,
    make_attention_maps,
    make_axis,
    make_image_attention,
)

from specc.drawing.attention_map_drawing import MAX_LABELED_ROWS, draw_attention_maps
from specc.drawing.attention_maps import max_pool_attention
from specc.drawing.drawing_elements import (
    MASKED_COLOR,
    ColorScale,
    Drawing,
    HeatmapElement,
    TextElement,
    make_printable_label,
)
from specc.drawing.png import PIXELS_PER_POINT, find_missing_glyphs, render_png
from specc.drawing.svg_and_html_pages import MAX_PATHS, render_svg

SVG = "{http://www.w3.org/2000/svg}"
PATH = re.compile(r"M(\d+) (\d+)h(\d+)v1H\d+z")


def list_texts(drawing: Drawing) -> list[str]:
    return [element.text for element in drawing.elements if isinstance(element, TextElement)]


def list_heatmaps(drawing: Drawing) -> list[HeatmapElement]:
    """Return the heat maps without the color scale."""
    return [m for m in drawing.elements if isinstance(m, HeatmapElement) and m.width > 12]


def paint_cells(element: Xml.Element, shape: tuple[int, ...]) -> np.ndarray:
    """Return the colors that the paths of a heat map paint; each cell must be painted once."""
    found = np.zeros(shape, np.uint8)
    times = np.zeros(shape[:2], int)
    for path in element.iter(f"{SVG}path"):
        color = [int(path.attrib["fill"][n : n + 2], 16) for n in (1, 3, 5)]
        for x, y, count in (map(int, m) for m in PATH.findall(path.attrib["d"])):
            found[y, x : x + count] = color
            times[y, x : x + count] += 1
    assert (times == 1).all()
    return found


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_svg_cells(rows, columns, seed):
    rng = np.random.default_rng(seed)
    colors = rng.integers(0, 3, (rows, columns, 3), dtype=np.uint8)
    drawing = Drawing(width=100, height=100)
    drawing.add_elements([HeatmapElement(x=0, y=0, width=90, height=90, colors=colors)])
    (group,) = Xml.fromstring(render_svg(drawing)).iter(f"{SVG}g")
    np.testing.assert_array_equal(paint_cells(group, colors.shape), colors)


def test_large_map_is_an_embedded_image():
    side = int(MAX_PATHS**0.5) + 1
    drawing = draw_attention_maps(
        make_attention_maps(make_attention_map(np.random.default_rng(0).random((1, side, side))))
    )
    data = render_svg(drawing)
    assert data.count("data:image/png;base64,") == 1
    assert len(data) < 3_000_000


def test_hostile_labels_are_escaped():
    count = len(HOSTILE_LABELS)
    weights = np.eye(count)[None]
    drawing = draw_attention_maps(
        make_attention_maps(
            make_attention_map(
                weights,
                make_axis(HOSTILE_LABELS),
                make_axis(HOSTILE_LABELS),
                scope=HOSTILE_LABELS[0],
            ),
            model=HOSTILE_LABELS[0],
            text=HOSTILE_LABELS[1],
        )
    )
    data = render_svg(drawing)
    tree = Xml.fromstring(data.encode())
    names = {element.tag.removeprefix(SVG) for element in tree.iter()}
    assert names <= {"svg", "title", "rect", "text", "g", "path", Xml.Comment}
    shown = [element.text for element in tree.iter(f"{SVG}text")]
    for label in HOSTILE_LABELS:
        assert shown.count(make_printable_label(label)) >= 2, ascii(label)
    assert render_png(drawing).startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [1, 2, 7, 30, MAX_LABELED_ROWS])
@pytest.mark.parametrize("heads", [1, 12])
def test_all_labels_of_short_sequences(count, heads):
    names = [f"token {n}" for n in range(count)]
    given_ = make_attention_map(np.ones((heads, count, count)), make_axis(names), make_axis(names))
    drawing = draw_attention_maps(make_attention_maps(given_))
    for name in names:
        assert list_texts(drawing).count(name) >= 2
    assert not any("is labeled" in text for text in list_texts(drawing))


@pytest.mark.parametrize("count", [MAX_LABELED_ROWS + 50, 400, 3000])
def test_labels_of_long_sequences_are_thinned(count):
    names = [f"t{n}" for n in range(count)]
    drawing = draw_attention_maps(
        make_attention_maps(
            make_attention_map(np.ones((1, count, 2)), make_axis(names), make_axis(2))
        )
    )
    (said,) = [t for t in list_texts(drawing) if t.startswith("query: ")]
    every = int(re.search(r"every (\d+)", said)[1])
    there = [t for t in list_texts(drawing) if re.fullmatch(r"t\d+", t)]
    assert there == names[::every][: len(there)]
    assert len(there) >= count // every - 1


def test_labels_do_not_overlap():
    """Labeled rows are at least one line height apart."""
    for count in (5, 60, 500):
        drawing = draw_attention_maps(
            make_attention_maps(make_attention_map(np.ones((4, count, count))))
        )
        down = sorted(
            {
                round(m.y, 3)
                for m in drawing.elements
                if isinstance(m, TextElement) and m.anchor == "end" and not m.is_rotated
            }
        )
        assert min(np.diff(down), default=99) >= 7.5


def test_masked_cells_have_their_own_color():
    weights = np.tril(np.full((1, 4, 4), 0.25))
    weights[0, 3, 0] = 0
    hidden = ~np.tril(np.ones((1, 4, 4), np.bool_))
    drawing = draw_attention_maps(make_attention_maps(make_attention_map(weights, hidden=hidden)))
    (table,) = list_heatmaps(drawing)
    gray = (table.colors == MASKED_COLOR).all(-1)
    np.testing.assert_array_equal(gray, hidden[0])
    assert "masked" in list_texts(drawing)
    assert "masked" not in list_texts(
        draw_attention_maps(make_attention_maps(make_attention_map(weights)))
    )


def test_nonzero_masked_weights_are_shown():
    """The computed weights take precedence over the mask."""
    made = make_attention_map(np.full((1, 2, 2), 0.5), hidden=np.ones((1, 2, 2), np.bool_))
    assert np.isfinite(made.get_masked_weights()).all()


def test_logarithmic_scale():
    values = np.array([0.0, 1e-6, 1e-4, 1e-3, 1e-2, 1.0])
    scale = ColorScale.from_values([values], log=True)
    np.testing.assert_allclose(scale.normalize_values(values), [0, 0, 0, 0.25, 0.5, 1], atol=1e-9)
    assert ColorScale.from_values([values]).normalize_values(values)[3] == pytest.approx(1e-3)
    text = list_texts(
        draw_attention_maps(make_attention_maps(make_attention_map(values[None, None])), log=True)
    )
    assert "≤ 0.0001" in text


def test_large_maps_keep_their_peaks():
    weights = np.zeros((1, 3000, 3000))
    weights[0, 1234, 2345] = 1.0
    small, step = max_pool_attention(weights, 1024)
    assert small.shape == (1, 1000, 1000)
    assert step == 3
    assert small[0, 411, 781] == small.max() == 1.0
    said = list_texts(
        draw_attention_maps(make_attention_maps(make_attention_map(weights[:, :30, :1100])))
    )
    assert any("a cell is the maximum of 2 × 2" in text for text in said)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 3, 1), (3, 1, 40), (1, 200, 300), (12, 7, 7), (70, 2, 2)]
)
def test_any_size_has_a_margin(shape):
    drawing = draw_attention_maps(
        make_attention_maps(make_attention_map(np.random.default_rng(0).random(shape)))
    )
    Xml.fromstring(render_svg(drawing))
    with Pillow.open(io.BytesIO(render_png(drawing))) as picture:
        found = np.asarray(picture)
    size = (round(drawing.height * PIXELS_PER_POINT), round(drawing.width * PIXELS_PER_POINT), 3)
    assert found.shape == size
    for edge in (found[0], found[-1], found[:, 0], found[:, -1]):
        assert (edge == 255).all()


def test_png_colors_equal_the_drawing():
    drawing = draw_attention_maps(
        make_attention_maps(make_attention_map(np.random.default_rng(0).random((2, 3, 5))))
    )
    with Pillow.open(io.BytesIO(render_png(drawing))) as picture:
        found = np.asarray(picture)
    for table in list_heatmaps(drawing):
        rows, columns = table.colors.shape[:2]
        for r in range(rows):
            for c in range(columns):
                y = round((table.y + (r + 0.5) * table.height / rows) * PIXELS_PER_POINT)
                x = round((table.x + (c + 0.5) * table.width / columns) * PIXELS_PER_POINT)
                assert (found[y, x] == table.colors[r, c]).all()


def test_rendering_is_deterministic():
    made = [
        draw_attention_maps(make_attention_maps(make_attention_map(np.eye(3)[None])))
        for _ in range(2)
    ]
    assert render_svg(made[0]) == render_svg(made[1])
    assert render_png(made[0]) == render_png(made[1])


def test_missing_glyphs_are_shown_as_code_points():
    drawing = Drawing(width=200, height=40)
    # a private-use character is in no font
    drawing.add_elements([TextElement(x=5, y=20, text="a\ue123b")])
    assert find_missing_glyphs(drawing.elements) == "\ue123"
    assert not find_missing_glyphs([TextElement(x=0, y=0, text="plain")])
    assert render_png(drawing).startswith(b"\x89PNG")


def test_image_attention_of_the_cls_token():
    given_ = make_image_attention()
    drawing = draw_attention_maps(given_)
    said = list_texts(drawing)
    assert "layers.0.attn: [CLS] attends to 4 × 4 patches" in said
    assert [t for t in said if t in ("input", "mean of heads") or "head " in t] == [
        "input",
        "mean of heads",
        "head 0",
        "head 1",
    ]
    tables = list_heatmaps(drawing)
    assert len(tables) == 4
    np.testing.assert_array_equal(tables[0].colors[:: len(tables[0].colors) // 8, 0], given_.image[:, 0])  # fmt: skip


def test_attended_patch_is_the_brightest():
    given_ = make_image_attention(size=8, side=2, heads=1)
    given_.maps[0].weights[:] = 0
    given_.maps[0].weights[0, 0, 2] = 1  # after [CLS]: row 0, column 1
    given_.image[:] = 0
    table = list_heatmaps(draw_attention_maps(given_))[-1].colors.astype(int)
    half = len(table) // 2
    yellow = (table[:, :, 0] > 150) & (table[:, :, 2] < 80)
    np.testing.assert_array_equal(yellow[:half, half:], True)
    assert yellow.sum() == half * half


def test_captions():
    assert make_axis(1).caption == "input, 1 token"
    assert make_axis(12, "image").caption == "image, 12 patches"
    assert make_axis(1500, "audio", duration_seconds=30.0).caption == "audio, 1 500 steps, 30 s"
    assert make_axis(1500, "unnamed").caption == "1 500 positions"


@pytest.mark.parametrize("shape", [(8, 8), (16, 12), (224, 224), (1, 1), (2000, 1500)])
def test_images_of_any_size(shape):
    made = make_image_attention()
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    drawing = draw_attention_maps(make_attention_maps(*made.maps, image=pixels))
    assert len(render_svg(drawing)) < 4_000_000
    assert render_png(drawing).startswith(b"\x89PNG")
