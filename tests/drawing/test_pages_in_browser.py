"""Pages in headless Chromium without network: user interaction, and no unexpected scripts or
requests. Needs Chromium, and playwright in `.other-runtimes/browser`: `make other-runtimes`."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.attention_maps import (
    HOSTILE_LABELS,
    make_attention_map,
    make_attention_maps,
    make_axis,
    make_image_attention,
)

from specc.drawing.attention_maps import render_attention_html
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.visualize.architecture_page import ArchitectureView, render_architecture_page
from specc.visualize.block_tree import list_model_graphs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "browser_script.py"


@dataclass(frozen=True)
class PageVisit:
    """Console messages, requests, results of the steps, and background color of a page."""

    said: list[str]
    asked: list[str]
    read: list[object]
    paper: str


def visit_page(text: str, directory: Path, *steps: str, scheme: str = "light") -> PageVisit:
    python = ROOT / ".other-runtimes" / "browser" / "bin" / "python"
    chromium = os.environ.get("SPECC_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "google-chrome"))), ""
    )
    if not python.exists() or not chromium:
        pytest.skip(
            "needs Chromium, and playwright: run `make other-runtimes`, or set SPECC_CHROMIUM"
        )
    page = directory / "page.html"
    page.write_text(text, encoding="utf-8")
    words = [str(python), str(SCRIPT), str(page), chromium, scheme, *steps]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    found = PageVisit(**json.loads(done.stdout))
    assert not found.said, "a violation of the policy, an error or a dialog"
    assert found.asked == [f"file://{page}"], "nothing else is asked for"
    return found


def test_hover_shows_the_weight(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4))
    made = make_attention_maps(
        make_attention_map(
            weights, make_axis(list("abcd"), "generated"), make_axis(list("xyz")), "layers.0.attn"
        ),
        make_attention_map(
            weights, make_axis(list("abcd"), "generated"), make_axis(list("xyz")), "layers.1.attn"
        ),
    )
    steps = ["text #scope", "fill #which 0", "fill #head 1", "text #scope", "text #headname"]
    steps += ["hover #map 40 50", "text #told", "count '#heads button'", "count '#tokens span'"]
    first, _, _, scope, head, _, told, heads, tokens = visit_page(
        render_attention_html(made), tmp_path, *steps
    ).read
    assert (first, scope, head) == ("layers.1.attn", "layers.0.attn", "1")
    assert (heads, tokens) == (3, 3)
    assert told == f"“a” (0) attends to “x” (0): {float(f'{weights[1, 0, 0]:.4g}'):g}"


@pytest.mark.parametrize(
    ("scheme", "paper"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 22, 27)")]
)
def test_light_and_dark_theme(scheme: str, paper: str, tmp_path: Path) -> None:
    text = render_attention_html(make_image_attention())
    assert visit_page(text, tmp_path, scheme=scheme).paper == paper
    assert visit_page(text, tmp_path, "click #theme", scheme=scheme).paper != paper


def test_hostile_tokens_are_escaped(tmp_path: Path) -> None:
    count = len(HOSTILE_LABELS)
    made = make_attention_map(
        np.eye(count)[None], make_axis(HOSTILE_LABELS), make_axis(HOSTILE_LABELS), HOSTILE_LABELS[0]
    )
    text = render_attention_html(
        make_attention_maps(made, model=HOSTILE_LABELS[0], text=HOSTILE_LABELS[1])
    )
    steps = ("text h1", "count img", "text '#tokens span'", "count script")
    name, images, token, scripts = visit_page(text, tmp_path, *steps).read
    assert (name, images, token, scripts) == (HOSTILE_LABELS[0], 0, HOSTILE_LABELS[0][:120], 2)


def test_masked_cells_are_labeled(tmp_path: Path) -> None:
    weights = np.tril(np.full((1, 3, 3), 0.5))
    hidden = ~np.tril(np.ones((1, 3, 3), np.bool_))
    text = render_attention_html(make_attention_maps(make_attention_map(weights, hidden=hidden)))
    steps = ("shown #masked", "hover #map 90 40", "text #told", "count '#tokens .masked'")
    legend, _, told, struck = visit_page(text, tmp_path, *steps).read
    assert legend
    assert str(told).endswith("masked")
    assert struck == 2


def test_click_selects_a_patch(tmp_path: Path) -> None:
    steps = ("text #who", "click #picture", "text #who", "check #log")
    before, _, after, _ = visit_page(
        render_attention_html(make_image_attention()), tmp_path, *steps
    ).read
    assert str(before).startswith("[CLS] attends to 4 × 4 patches")
    assert str(after).startswith("patch ")


def test_architecture_blocks_expand_and_collapse(tmp_path: Path) -> None:
    model = elaborate_spec(open_spec("numbers"))
    text = render_architecture_page(
        ArchitectureView(name="numbers", doc=HOSTILE_LABELS[0], graphs=list_model_graphs(model))
    )
    steps = [
        "text '#g0 .panel:not([hidden]) .path'",
        "click '#g0 .panel:not([hidden]) rect[data-part=encoder]'",
        "text '#g0 .panel:not([hidden]) .path'",
        "count '#g0 details:not([open])'",
        "click #fold",
        "count '#g0 details:not([open])'",
        "click '[data-graph=\"2\"]'",
        "shown #g2",
        "shown #g0",
        "click '#g2 .panel:not([hidden]) .lines a'",
        "count 'li.target'",
        "text .doc",
    ]
    found = visit_page(text, tmp_path, *steps).read
    assert [found[n] for n in (0, 2)] == ["numbers", "encoder"]
    assert isinstance(found[3], int)
    assert found[3] > 0
    assert found[5] == 0
    assert [found[n] for n in (7, 8, 10)] == [True, False, 1]
    assert found[11] == HOSTILE_LABELS[0]
