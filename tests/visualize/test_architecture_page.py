"""Architecture drawings and pages."""

import re
from xml.etree import ElementTree as Xml

import pytest
from support.html_pages import PageParser, check_page, read_page_data

from specc.drawing.drawing_elements import BoxElement, LineElement
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.visualize.architecture_page import (
    ArchitectureView,
    render_architecture_page,
    render_architecture_svg,
)
from specc.visualize.block_layout import draw_block
from specc.visualize.block_tree import (
    build_diagram_block_tree,
    choose_blocks_to_expand,
    list_model_graphs,
)

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b\u202e"


def make_view(name: str, **more: object) -> ArchitectureView:
    model = elaborate_spec(open_spec(name))
    return ArchitectureView(name=model.name, doc=model.doc, graphs=list_model_graphs(model), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["digits", "numbers", "rnnsearch", "xor", pytest.param("mistral", marks=pytest.mark.slow)],
)
def test_page_is_valid_and_its_links_exist(name: str) -> None:
    text = render_architecture_page(make_view(name))
    check_page(text)
    read = PageParser(text)
    ids = [a["id"] for _, a in read.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    links = [a["href"] for n, a in read.elements if n == "a"]
    assert links
    assert {link.removeprefix("#") for link in links if link} <= set(ids)
    for _, attributes in read.elements:
        if panel := attributes.get("data-panel"):
            assert panel in ids


def test_links_point_to_the_shown_line() -> None:
    text = render_architecture_page(make_view("digits"))
    pairs = re.findall(r"<li><code>([^<]*)</code> <a href=\"#(s\d+-\d+)\">", text)
    assert len(pairs) > 5
    for said, place in pairs:
        (line,) = re.findall(f'<li id="{place}"><code>([^<]*)</code>', text)
        assert said == line.strip()


def test_page_contains_derived_graphs() -> None:
    text = render_architecture_page(make_view("numbers"))
    assert re.findall(r'data-graph="\d">([^<]*)<', text) == ["whole", "encode", "step"]
    assert len(read_page_data(text)["graphs"]) == 3
    assert 'data-graph="' not in render_architecture_page(make_view("digits"))


def test_hostile_spec_text_is_escaped(tmp_path) -> None:
    # the parser rejects control characters
    quoted = HOSTILE.replace("\x1b", "").replace("\u202e", "")
    (tmp_path / "m.specc").write_text(
        f'specc 1\nmodel m "{quoted}"\ndims batch, n\n'
        f"# {quoted}\n"
        "graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 4]) {\n"
        f"  y = linear(x, out=4) @ w  # {quoted}\n  return y\n}}\n"
    )
    model = elaborate_spec(open_spec(str(tmp_path / "m.specc")))
    made = ArchitectureView(
        name=HOSTILE, doc=model.doc, graphs=list_model_graphs(model), parameter_count_text="1"
    )
    check_page(render_architecture_page(made))
    tree = Xml.fromstring(render_architecture_svg(made).encode())
    assert "alert" in "".join(tree.itertext())


@pytest.mark.parametrize(
    "name", ["numbers", "rnnsearch", pytest.param("swin", marks=pytest.mark.slow)]
)
def test_boxes_stay_inside_and_do_not_overlap(name: str) -> None:
    root = build_diagram_block_tree(elaborate_spec(open_spec(name)).graph)
    drawing = draw_block(root, choose_blocks_to_expand(root, 60), name)
    boxes = [m for m in drawing.elements if isinstance(m, BoxElement)]
    for box in boxes:
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= drawing.width
        assert box.y + box.height <= drawing.height
    for n, one in enumerate(boxes):
        for other in boxes[n + 1 :]:
            assert (
                are_disjoint(one, other)
                or is_scope_inside(one, other)
                or is_scope_inside(other, one)
            )
    for line in (m for m in drawing.elements if isinstance(m, LineElement)):
        for x, y in line.points:
            assert -1 <= x <= drawing.width
            assert -1 <= y <= drawing.height


def are_disjoint(one: BoxElement, other: BoxElement) -> bool:
    return (
        one.x + one.width <= other.x
        or other.x + other.width <= one.x
        or one.y + one.height <= other.y
        or other.y + other.height <= one.y
    )


def is_scope_inside(one: BoxElement, other: BoxElement) -> bool:
    return (
        other.x <= one.x
        and other.y <= one.y
        and one.x + one.width <= other.x + other.width
        and one.y + one.height <= other.y + other.height
    )


def test_page_is_deterministic() -> None:
    assert render_architecture_page(make_view("digits")) == render_architecture_page(
        make_view("digits")
    )


def test_given_lengths_are_shown() -> None:
    text = render_architecture_page(make_view("gpt2", sizes={"batch": 2, "seq": 128}))
    assert "i64[2, 128]" in text
    assert "[2, 128, 768]" in text
