"""The documentation is correct: its specs pass the check, and its tables and pages agree with the
sources."""

import re
from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import Source
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_emitter import FIELD_KEYS
from specc.syntax.yaml.yaml_keys import STATEMENT_SCHEMAS
from specc.syntax.yaml.yaml_parser import YAML_TOP_KEYS

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
def test_specs_of_the_docs(kind: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"example.{kind}"
    path.write_text(text, encoding="utf-8")
    assert check_spec(open_spec(str(path))).trials


def test_docs_contain_specs() -> None:
    assert len(SPECS) >= 20


GUIDE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(specc|yaml)( part)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCES = list(FENCE.finditer(GUIDE))
HEADS = {"specc": "specc 1\nmodel m\n", "yaml": "specc: 1\nmodel: m\n"}


def test_guide_examples_in_both_syntaxes() -> None:
    """Each `.specc` block is followed by the same spec in YAML."""
    pairs = list(zip(FENCES[::2], FENCES[1::2], strict=True))
    assert len(pairs) >= 16
    for pair in pairs:
        kinds, parts, texts = zip(*(fence.groups() for fence in pair), strict=True)
        assert kinds == ("specc", "yaml"), pair[0][0]
        assert parts[0] == parts[1], pair[0][0]
        assert not GUIDE[pair[0].end() : pair[1].start()].strip(), pair[0][0]
        one, other = (
            parse_spec(Source(f"example.{kind}", (HEADS[kind] if part else "") + text))
            for kind, part, text in zip(kinds, parts, texts, strict=True)
        )
        assert one == other, pair[0][0]


KEYS = (
    *YAML_TOP_KEYS, *FIELD_KEYS, "that", "because", "block", "graph", "mask", "score", "bias", "normalizer",
    "in", "out", "where", "do", "is", *(key for form in STATEMENT_SCHEMAS.values() for key in form.key_names),
    "file", "as", "to", "of", "from", "tie", "load", "ignore", "share",
)  # fmt: skip


def test_guide_lists_every_yaml_key() -> None:
    listed = GUIDE[GUIDE.index("## YAML keys") :].split("\n## ", 2)[0]
    assert not [key for key in KEYS if not re.search(rf"\b{key}\b", listed)]


LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_exist(page: Path) -> None:
    missing = [
        t for t in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / t).exists()
    ]
    assert not missing


ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ALL_PAGES = [*PAGES, *sorted((ROOT / "docs" / "errors").glob("*.md")), ROOT / "CHANGELOG.md"]


def heading_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def test_link_anchors_exist() -> None:
    missing = [
        f"{page.name}: {target}#{anchor}"
        for page in ALL_PAGES
        for target, anchor in ANCHOR.findall(page.read_text(encoding="utf-8"))
        if (aim := page.parent / target if target else page).suffix == ".md"
        and anchor not in heading_anchors(aim)
    ]
    assert not missing


SOURCE_FILE = re.compile(r"`((?:specc|backends|tests|docs|benchmarks|specs)/[\w/]+\.\w+)`")


def test_source_files_on_pages_exist() -> None:
    named = {
        f"{page.name}: {path}": path
        for page in ALL_PAGES[:-1]
        for path in SOURCE_FILE.findall(page.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    assert not [where for where, path in named.items() if not (ROOT / path).exists()]


def test_figures_are_sections_of_the_benchmark_results() -> None:
    results = (ROOT / "benchmarks" / "results.md").read_text(encoding="utf-8")
    wanted = [
        heading
        for page in PAGES
        for heading in re.findall(r"^<!-- figures: (.+) -->$", page.read_text("utf-8"), re.M)
    ]
    assert wanted
    assert not [heading for heading in wanted if f"\n### {heading}" not in results]


def test_generated_pages_are_current() -> None:
    source = ROOT / "docs" / "tables.py"
    names: dict[str, object] = {"__name__": "tables", "__file__": str(source)}
    # a script, not a package
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), names)
    pages = names["render_pages"]
    assert callable(pages)
    stale = [
        str(path.relative_to(ROOT))
        for path, text in pages().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"{', '.join(stale)}: run `python docs/tables.py`"
