"""What the documentation shows is true: its specs check, its table and pages are what
the sources say.
"""

import re
from pathlib import Path

import pytest

from specc.compiler.spec import check, open_spec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPECS = [
    pytest.param(kind, text, id=f"{page.name}-{n}")
    for page in PAGES
    for n, (kind, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
    if kind in ("specc", "yaml") and re.match(r"specc:? 1$", text.split("\n", 1)[0])
]


@pytest.mark.parametrize(("kind", "text"), SPECS)
def test_every_spec_in_the_docs_checks(kind: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"example.{kind}"
    path.write_text(text, encoding="utf-8")
    assert check(open_spec(str(path))).trials


def test_there_are_specs_in_the_docs() -> None:
    assert len(SPECS) >= 4


LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    missing = [
        t
        for t in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / t).exists()
    ]
    assert not missing


def test_generated_pages_are_current() -> None:
    source = ROOT / "docs" / "tables.py"
    names: dict[str, object] = {"__name__": "tables", "__file__": str(source)}
    # a script, not a package
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), names)
    pages = names["pages"]
    assert callable(pages)
    stale = [
        str(path.relative_to(ROOT))
        for path, text in pages().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"{', '.join(stale)}: run `python docs/tables.py`"
