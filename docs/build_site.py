"""The documentation as a site: `make docs` puts pages and a gallery of every shipped spec
into build/docs, has zensical make HTML of them in build/site, and looks at what came out.

Pages stay plain Markdown that reads the same where the repository is shown. Here their
links are turned to where pages lie in the site; the README becomes its first page.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attention_gallery

from specc.cli.main import main as specc

ROOT = Path(__file__).parents[1]
DOCS, PAGES, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "build" / "site"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
DOC = re.compile(r'^model (\w+)(?: "(.*)")?|^doc: (.*)$', re.MULTILINE)
FIGURES = re.compile(r"^<!-- figures: (.+) -->$", re.MULTILINE)
RESULTS = ROOT / "benchmarks" / "results.md"

NAV = (
    ("Start", ("index.md", "tutorial.md", "training.md")),
    (
        "The language",
        ("language.md", "glossary.md", "ops.md", "builtins.md", "limits.md", "inputs.md"),
    ),
    ("Gallery", ("models.md", "gallery.md", "families.md", "seeds.md")),
    (
        "How to",
        (
            "from-pytorch.md",
            "from-hugging-face.md",
            "generation.md",
            "packages.md",
            "standalone-generator.md",
            "quantization.md",
            "gpu.md",
            "gpu-report.md",
            "browser.md",
            "providers.md",
            "batch-inference.md",
            "attention-plots.md",
            "editors.md",
            "other-runtimes.md",
            "troubleshooting.md",
        ),
    ),
    ("Reference", ("command-line.md", "api.md", "errors/README.md", "parity.md", "comparison.md")),
    ("Inside", ("architecture.md", "derivation.md", "passes.md", "adding-an-op.md")),
)
"""The pages by heading; one that is not there is left out, one that is not here is last."""

CONFIG = """site_name: specc
docs_dir: build/docs
site_dir: build/site
use_directory_urls: false
theme:
  font: false
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
nav:
"""


def staged(drawn: bool) -> None:
    """Every page in build/docs, with its links turned."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(
        DOCS, PAGES, ignore=shutil.ignore_patterns("*.py", "*.sh", "*.npz", "*.safetensors")
    )
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, PAGES / name)
    shutil.copytree(
        ROOT / "benchmarks",
        PAGES / "benchmarks",
        ignore=shutil.ignore_patterns("*.py", "__pycache__"),
    )
    shutil.copy(ROOT / "README.md", PAGES / "index.md")
    gallery(drawn)
    for page in PAGES.rglob("*.md"):
        page.write_text(_with_links_here(page), encoding="utf-8")


def _with_links_here(page: Path) -> str:
    """The text of a page, its links turned."""
    home = _home(page)
    text = FIGURES.sub(_figures, page.read_text(encoding="utf-8"))
    return LINK.sub(lambda link: _turned(link, page, home), text)


def _figures(wanted: re.Match[str]) -> str:
    """The section of the measured results whose heading begins so: pages repeat no
    figures, so that none is older than the others.
    """
    sections = re.split(r"^(?=### )", RESULTS.read_text(encoding="utf-8"), flags=re.M)
    found = [s for s in sections if s.startswith(f"### {wanted[1]}")]
    if not found:
        print(f"nothing was measured under `{wanted[1]}`", file=sys.stderr)
    return found[0].rstrip() if found else ""


def _home(page: Path) -> Path:
    """Where a page lies in the repository."""
    if page == PAGES / "index.md":
        return ROOT / "README.md"
    below = page.relative_to(PAGES)
    beside = ROOT / below
    return beside if beside.exists() else DOCS / below


def _turned(link: re.Match[str], page: Path, home: Path) -> str:
    """A link to a file of the repository as one to its page here; its words alone where it
    has none.
    """
    picture, words, target = link.groups()
    parts = urlsplit(target)
    if parts.scheme or not parts.path or not home.exists():
        return link.group()
    aim = (home.parent / unquote(parts.path)).resolve()
    found = _here(aim)
    if found is None:
        return words if aim.exists() else link.group()
    up = Path(*[".."] * len(page.relative_to(PAGES).parent.parts))
    anchor = f"#{parts.fragment}" if parts.fragment else ""
    return f"{picture}[{words}]({(up / found).as_posix()}{anchor})"


def _here(aim: Path) -> Path | None:
    """The page of a file, below build/docs; a spec's is its place in the gallery."""
    if aim == ROOT / "README.md":
        return Path("index.md")
    if aim.parent in (ROOT / "specs" / "models", ROOT / "specs" / "std"):
        return Path("specs") / f"{aim.stem}.md"
    for root in (DOCS, ROOT):
        if aim.is_relative_to(root):
            below = aim.relative_to(root)
            if aim.is_dir() and (PAGES / below / "README.md").exists():
                return below / "README.md"
            if (PAGES / below).is_file():
                return below
    return None


def gallery(drawn: bool) -> None:
    """A page for each shipped spec, with its drawing and its text, and one for all."""
    (PAGES / "specs").mkdir()
    lines = [
        "# Every shipped spec",
        "",
        "Each page has the drawing that `specc show NAME --svg` makes, where the model looks,",
        "and the whole text.",
        "",
    ]
    models = _texts("models")
    pictures = _pictures([path.stem for path in models]) if drawn else {}
    for path in models:
        title = _title(path)
        lines.append(f"* [`{path.stem}`](specs/{path.stem}.md) {title}")
        _spec_page(path, title, pictures.get(path.stem, ()))
    for path in _texts("std"):
        _spec_page(path, _title(path), ())
    (PAGES / "gallery.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _texts(folder: str) -> list[Path]:
    """The specs of a folder."""
    found = (ROOT / "specs" / folder).iterdir()
    return sorted(p for p in found if p.suffix in (".specc", ".yaml"))


def _title(path: Path) -> str:
    found = DOC.search(path.read_text(encoding="utf-8"))
    return next((part for part in (found.group(2), found.group(3)) if part), "") if found else ""


def _pictures(names: list[str]) -> dict[str, list[str]]:
    """The lines of each page that show its pictures, which are drawn by all processors."""
    # a process of its own knows nothing of the threads that ONNX Runtime has here
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return dict(zip(names, pool.map(_drawn, names), strict=True))


def _drawn(name: str) -> list[str]:
    """Draw a spec, and where it looks; gives the lines that show both."""
    lines, folder = [], PAGES / "specs"
    heard = StringIO()
    with redirect_stdout(heard), redirect_stderr(heard):
        made = specc(["show", name, "--svg", str(folder / f"{name}.svg")]) == 0
    if made:
        lines += [f"![{name}]({name}.svg)", ""]
    looks = f"{name}-attention.svg"
    if caption := attention_gallery.drawn(name, folder / looks):
        lines += [f"![The attention of {name}]({looks})", "", caption, ""]
    return lines


def _spec_page(path: Path, title: str, pictures: Sequence[str]) -> None:
    """The page of a spec: its pictures and its text."""
    text = path.read_text(encoding="utf-8").rstrip("\n")
    fence = "yaml" if path.suffix == ".yaml" else "text"
    lines = [f"# {path.stem}", "", title, "", *pictures]
    lines += [f"```{fence}", text, "```", ""]
    (PAGES / "specs" / f"{path.stem}.md").write_text("\n".join(lines), encoding="utf-8")


def configured() -> Path:
    """The settings of the site, with every page in its list."""
    lines, seen = [CONFIG.rstrip()], set()
    for heading, pages in NAV:
        there = [page for page in pages if (PAGES / page).exists()]
        seen |= {*there}
        lines += [f"  - {heading}:", *(f"    - {page}" for page in there)]
    rest = sorted(p.name for p in PAGES.glob("*.md") if p.name not in seen)
    lines += ["  - More:", *(f"    - {page}" for page in rest)]
    path = ROOT / "build" / "mkdocs.yml"
    text = "\n".join(lines) + "\n"
    path.write_text(text.replace("build/", ""), encoding="utf-8")
    return path


class _Links(HTMLParser):
    """The links of a page, what it loads, and the places in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if known.get("id"):
            self.places.add(known["id"] or "")
        if tag == "a" and known.get("href"):
            self.links.append(known["href"] or "")
        if tag in ("script", "img", "iframe") and known.get("src"):
            self.loads.append(known["src"] or "")
        if tag == "link" and known.get("rel") in ("stylesheet", "preload"):
            self.loads.append(known.get("href") or "")


def faults() -> Iterator[str]:
    """Links to no page, and what would be loaded from elsewhere."""
    for page in sorted(SITE.rglob("*.html")):
        found = _Links()
        found.feed(page.read_text(encoding="utf-8"))
        name = page.relative_to(SITE)
        for address in found.loads:
            if urlsplit(address).netloc:
                yield f"{name} loads {address}"
        for address in found.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or not parts.path or page.name == "404.html":
                continue
            aim = (page.parent / unquote(parts.path)).resolve()
            if not aim.exists():
                yield f"{name} links to {address}, which is not there"


def main() -> None:
    """Build, and end with 1 where a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zensical", default="zensical", help="the program")
    parser.add_argument("--undrawn", action="store_true", help="leave drawings out")
    given = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    staged(not given.undrawn)
    config = configured()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [given.zensical, "build", "--clean", "-f", str(config)]
    done = subprocess.run(command, check=False, cwd=config.parent)
    wrong = list(faults())
    print("\n".join(wrong) or f"no link of {len(list(SITE.rglob('*.html')))} pages leads nowhere")
    sys.exit(done.returncode or bool(wrong))


if __name__ == "__main__":
    main()
