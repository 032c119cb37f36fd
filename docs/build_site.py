"""Build the documentation site (`make docs`).

Write the pages, and a gallery of all built-in specs with attention plots, to build/docs. zensical
then renders the pages to build/site, and the script checks all links. The sources are plain
Markdown, which GitHub also renders. Links are rewritten to the layout of the site. The first page
of the site is the README.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main as run_command
from specc.runtime.attention_plot import capture_attention, render_attention
from specc.runtime.attention_weights import find_attention_nodes
from specc.runtime.random_inputs import make_random_inputs
from specc.verification.quantization_error import choose_verification_axis_sizes

ROOT = Path(__file__).parents[1]
TRAINED_INPUTS = {
    "dates": "3 mai 1979",
    "digits": str(ROOT / "docs" / "demos" / "digits" / "seven.png"),
    "numbers": "dreihundertfünf",
}
"""Inputs of the gallery's trained models, by spec name."""
MODELS_WITHOUT_ATTENTION = {"xor"}
"""Trained models without attention layers."""


def draw_attention(name: str, path: Path) -> str:
    """Plot the last attention layer of a built-in spec as SVG. Return the caption, or "" for a spec
    without attention.

    Plot a real input for specs with trained weights. Compile other specs with small sizes and
    random weights; their plots show the structure of masks, not learned attention.
    """
    if name in MODELS_WITHOUT_ATTENTION:
        return ""
    with tempfile.TemporaryDirectory() as directory:
        if name in TRAINED_INPUTS:
            return _draw_trained(name, path, Path(directory))
        return _draw_untrained(name, path, Path(directory))


def _draw_trained(name: str, path: Path, directory: Path) -> str:
    """Plot the attention of a trained model on a real input. Return the caption."""
    given, made = TRAINED_INPUTS[name], str(directory / name)
    # an image classifier is not generative, so it is compiled to a single file
    one_file = given.endswith(".png")
    words = ["-o", f"{made}.onnx"] if one_file else ["--graphs", "all", "-o", made]
    _run_quietly("compile", name, *words)
    _run_quietly("run", words[-1], given, "--attention", str(path))
    shown = Path(given).name if one_file else given
    return f"Attention of the trained model for the input `{shown}`."


def _draw_untrained(name: str, path: Path, directory: Path) -> str:
    """Plot the attention of a small model with random weights and input. Return the caption."""
    sets, model = SMALL_CONFIGS[name], directory / "model.onnx"
    specc.compile(name, model, set=sets, init=0)
    whole = specc.load(model).selected_model
    graph = whole.manifest.graph
    if not find_attention_nodes(graph):
        return ""
    given = make_random_inputs(
        graph, choose_verification_axis_sizes(graph), np.random.default_rng(0)
    )
    path.write_bytes(render_attention(capture_attention(whole, given), ".svg").content)
    config = ", ".join(f"`{key}={value}`" for key, value in sets.items())
    small = f" with small sizes ({config})," if config else " with"
    return (
        f"Attention weights of the last attention layer of the model{small} random weights and a "
        "random input. Gray cells are masked out."
    )


def _run_quietly(*words: str) -> None:
    """Run a specc command without output. Raise RuntimeError if the command fails."""
    heard = StringIO()
    with redirect_stdout(heard), redirect_stderr(heard):
        status = run_command([*words, "--quiet"])
    if status:
        raise RuntimeError(
            f"specc {' '.join(words)} exited with status {status}: {heard.getvalue()}"
        )


DOCS, PAGES, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "build" / "site"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
DOC = re.compile(r'^model (\w+)(?: "(.*)")?|^doc: (.*)$', re.MULTILINE)
FIGURES = re.compile(r"^<!-- figures: (.+) -->$", re.MULTILINE)
RESULTS = ROOT / "benchmarks" / "results.md"

NAV = (
    ("Start", ("index.md", "tutorial.md", "training.md", "tasks.md")),
    ("Language", ("language.md", "glossary.md", "ops.md", "builtins.md", "limits.md", "inputs.md")),
    ("Gallery", ("models.md", "gallery.md", "families.md", "seeds.md")),
    (
        "Guides",
        (
            "from-pytorch.md",
            "from-hugging-face.md",
            "generation.md",
            "packages.md",
            "standalone-generator.md",
            "quantization.md",
            "streaming-inference.md",
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
    ("Internals", ("architecture.md", "derivation.md", "passes.md", "adding-an-op.md")),
)
"""The pages of the site by heading. Missing pages are omitted, and other pages are listed last."""

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


def write_pages(drawn: bool) -> None:
    """Write all pages to build/docs with rewritten links."""
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
    write_gallery(drawn)
    for page in PAGES.rglob("*.md"):
        page.write_text(_rewrite_links(page), encoding="utf-8")


def _rewrite_links(page: Path) -> str:
    """Return the text of a page with rewritten links."""
    home = _find_source(page)
    text = FIGURES.sub(_insert_results, page.read_text(encoding="utf-8"))
    return LINK.sub(lambda link: _rewrite_link(link, page, home), text)


def _insert_results(wanted: re.Match[str]) -> str:
    """Return the section of the benchmark results whose heading begins with the matched text."""
    sections = re.split(r"^(?=### )", RESULTS.read_text(encoding="utf-8"), flags=re.M)
    found = [s for s in sections if s.startswith(f"### {wanted[1]}")]
    if not found:
        print(f"benchmarks/results.md has no section `{wanted[1]}`", file=sys.stderr)
    return found[0].rstrip() if found else ""


def _find_source(page: Path) -> Path:
    """Return the repository file from which a page in build/docs was generated."""
    if page == PAGES / "index.md":
        return ROOT / "README.md"
    below = page.relative_to(PAGES)
    beside = ROOT / below
    return beside if beside.exists() else DOCS / below


def _rewrite_link(link: re.Match[str], page: Path, home: Path) -> str:
    """Return a link to the page of a repository file, or only the link text if there is no page."""
    picture, words, target = link.groups()
    parts = urlsplit(target)
    if parts.scheme or not parts.path or not home.exists():
        return link.group()
    aim = (home.parent / unquote(parts.path)).resolve()
    found = _find_page(aim)
    if found is None:
        return words if aim.exists() else link.group()
    up = Path(*[".."] * len(page.relative_to(PAGES).parent.parts))
    anchor = f"#{parts.fragment}" if parts.fragment else ""
    return f"{picture}[{words}]({(up / found).as_posix()}{anchor})"


def _find_page(aim: Path) -> Path | None:
    """Return the page of a repository file relative to build/docs. Specs have gallery pages."""
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


def write_gallery(drawn: bool) -> None:
    """Write a gallery page for each built-in spec, with diagram and source, and an index page."""
    (PAGES / "specs").mkdir()
    lines = [
        "# Gallery of built-in models",
        "",
        "Each page has the diagram of `specc show NAME --svg`, attention plots,",
        "and the source of the spec.",
        "",
    ]
    models = _list_specs("models")
    pictures = _render_all([path.stem for path in models]) if drawn else {}
    for path in models:
        title = _read_title(path)
        lines.append(f"* [`{path.stem}`](specs/{path.stem}.md) {title}")
        _write_spec_page(path, title, pictures.get(path.stem, ()))
    for path in _list_specs("std"):
        _write_spec_page(path, _read_title(path), ())
    (PAGES / "gallery.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _list_specs(directory: str) -> list[Path]:
    """Return the paths of the specs in a directory of `specs`."""
    found = (ROOT / "specs" / directory).iterdir()
    return sorted(p for p in found if p.suffix in (".specc", ".yaml"))


def _read_title(path: Path) -> str:
    found = DOC.search(path.read_text(encoding="utf-8"))
    return next((part for part in (found.group(2), found.group(3)) if part), "") if found else ""


def _render_all(names: list[str]) -> dict[str, list[str]]:
    """Return the image lines of each gallery page, rendered in parallel."""
    # use spawn, because the threads of ONNX Runtime do not survive a fork
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return dict(zip(names, pool.map(_render_spec, names), strict=True))


def _render_spec(name: str) -> list[str]:
    """Render the diagram and the attention plot of a spec. Return the lines of the images."""
    lines, directory = [], PAGES / "specs"
    heard = StringIO()
    with redirect_stdout(heard), redirect_stderr(heard):
        made = run_command(["show", name, "--svg", str(directory / f"{name}.svg")]) == 0
    if made:
        lines += [f"![{name}]({name}.svg)", ""]
    looks = f"{name}-attention.svg"
    if caption := draw_attention(name, directory / looks):
        lines += [f"![The attention of {name}]({looks})", "", caption, ""]
    return lines


def _write_spec_page(path: Path, title: str, pictures: Sequence[str]) -> None:
    """Write the gallery page of a spec with its images and its source."""
    text = path.read_text(encoding="utf-8").rstrip("\n")
    fence = "yaml" if path.suffix == ".yaml" else "text"
    lines = [f"# {path.stem}", "", title, "", *pictures]
    lines += [f"```{fence}", text, "```", ""]
    (PAGES / "specs" / f"{path.stem}.md").write_text("\n".join(lines), encoding="utf-8")


def write_config() -> Path:
    """Write the configuration of the site, with every page in the navigation."""
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
    """The links, loaded resources and anchors of an HTML page."""

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


def find_broken_links() -> Iterator[str]:
    """Yield a message for each broken link and each resource that is loaded from another host."""
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
                yield f"{name} has a broken link to {address}"


def main() -> None:
    """Build the site. Exit with status 1 if a link is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zensical", default="zensical", help="the zensical executable")
    parser.add_argument("--undrawn", action="store_true", help="omit diagrams and attention plots")
    given = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    write_pages(not given.undrawn)
    config = write_config()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [given.zensical, "build", "--clean", "-f", str(config)]
    done = subprocess.run(command, check=False, cwd=config.parent)
    wrong = list(find_broken_links())
    print("\n".join(wrong) or f"no broken links on {len(list(SITE.rglob('*.html')))} pages")
    sys.exit(done.returncode or bool(wrong))


if __name__ == "__main__":
    main()
