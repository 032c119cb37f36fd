"""docs/seeds.md and the notebooks generated from it: each runs and gives the printed outputs."""

import ast
import doctest
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parity
def test_the_page_prints_the_computed_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(
        str(DOCS / "seeds.md"),
        module_relative=False,
        optionflags=doctest.NORMALIZE_WHITESPACE,
        encoding="utf-8",
    )
    assert found.attempted > 20
    assert not found.failed


def test_notebooks_are_generated_from_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import notebooks

    page = (DOCS / "seeds.md").read_text(encoding="utf-8")
    assert [path.stem for path in NOTEBOOKS] == sorted(notebooks.ARTICLES)
    for path in NOTEBOOKS:
        assert path.read_text(encoding="utf-8") == notebooks.build_notebook(path.stem, page)


@pytest.mark.parity
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own namespace: no cell needs another notebook. IPython is not installed, so a stand-in
    for its SVG checks for an image.
    """
    display = ModuleType("IPython.display")
    display.SVG = lambda path: Path(path).read_text().index("<svg")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), path.name, "exec"), names)
        if last is None:
            continue
        shown = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
        if cell["outputs"] and "data" in cell["outputs"][0]:
            wanted = "".join(cell["outputs"][0]["data"]["text/plain"])
            assert repr(shown).split() == wanted.split()
