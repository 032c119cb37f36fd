"""docs/demos/browser in headless Chromium: results for drawn digits and typed text equal those of
the models in Python. Skipped without Node, onnxruntime-web, playwright or Chromium.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.other_runtimes import PROGRAMS, ROOT, MissingRuntime, check_browser, find_node_packages

import specc

pytestmark = pytest.mark.parity
BUILD = ROOT / "docs" / "demos" / "browser" / "build.sh"
SEVEN = [[[0.28, 0.2], [0.72, 0.2], [0.5, 0.82]]]
ONE = [[[0.5, 0.15], [0.5, 0.85]]]
ZERO = [
    [[0.5, 0.15], [0.3, 0.3], [0.28, 0.6], [0.4, 0.83], [0.6, 0.83], [0.72, 0.6], [0.7, 0.3], [0.5, 0.15]]
]  # fmt: skip
DATES = ["3 mai 1979", "Thursday, May 3rd, 1979", "le 14 juillet 1989"]
NUMBERS = ["hunderteintausendeinhunderteins", "de 30017", "en 21016"]
HOSTILE = '4 <img src=x onerror="alert(1)">☃'


@pytest.fixture(scope="module")
def packages() -> Path:
    """Return the directory whose `node_modules` has all packages."""
    try:
        directory = find_node_packages("onnxruntime-web")
        check_browser(directory)
    except MissingRuntime as why:
        pytest.skip(str(why))
    return directory.resolve()


@pytest.fixture(scope="module")
def directory(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the page as `make browser` does."""
    made = tmp_path_factory.mktemp("browser")
    command = str(Path(sys.executable).with_name("specc"))
    subprocess.run(["sh", str(BUILD), command, str(packages), str(made)], check=True, timeout=200)
    return made


def shown(packages: Path, directory: Path, **asked: object) -> Any:
    """Return the text of an element of the page."""
    command = ["node", str(PROGRAMS / "with_page.mjs"), str(packages), str(directory)]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def page(packages: Path, directory: Path) -> Any:
    """Return the page after drawing and typing."""
    return shown(
        packages, directory, strokes=[SEVEN, ONE, ZERO], dates=[*DATES, HOSTILE], numbers=NUMBERS
    )


def test_drawn_digits_are_classified(page: Any) -> None:
    assert [d["said"] for d in page["digits"]] == ["7", "1", "0"]
    for digit in page["digits"]:
        assert digit["seen"] == 64
        assert digit["looks"] == 4 * 16


@pytest.mark.parametrize(("name", "asked"), [("dates", DATES), ("numbers", NUMBERS)])
def test_answers_are_those_of_the_model(
    name: str, asked: list[str], page: Any, directory: Path
) -> None:
    model = specc.load(directory / "models" / name)
    rows = model.generate(asked, max_tokens=90).results()
    wanted = [row[0].text for row in rows]
    assert [found["answer"] for found in page[name][: len(asked)]] == wanted
    for text, found in zip(asked, page[name], strict=False):
        assert len(found["cells"]) == (len(text) + 1) * (len(found["answer"]) + 1)


def test_attention_plot_shows_the_attention_weights(page: Any, tmp_path: Path) -> None:
    path = tmp_path / "dates.onnx"
    specc.compile("dates", path)
    model = specc.load(path)
    vocabulary = Path(ROOT / "specs" / "models" / "dates.vocab").read_text("utf-8")
    letters = vocabulary.splitlines()
    for text, found in zip(DATES, page["dates"], strict=False):
        # the start, and then what was written but its end: row t answers letter t
        target = [1, *(letters.index(letter) for letter in found["answer"])]
        wanted = model.run(source=[text], target=[target])["alignment"][0]
        cells = np.array(found["cells"]).reshape(wanted.shape)
        assert np.abs(cells - wanted).max() <= 0.0006


def test_text_is_escaped(page: Any) -> None:
    hostile = page["dates"][len(DATES)]
    assert hostile["answer"] == ""
    for letter in "<>☃":
        assert f"“{letter}”" in hostile["problem"]


def test_no_console_errors_and_no_external_requests(page: Any) -> None:
    assert page["status"] == "Ready. Draw, or type."
    assert page["complaints"] == []
    assert page["outside"] == []
    assert page["themes"] == ["light", "dark"]


def test_missing_files_are_named(packages: Path, tmp_path: Path) -> None:
    for file in BUILD.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    said = shown(packages, tmp_path)["status"]
    assert said == "Something went wrong: the directory ort is missing: run make browser"
