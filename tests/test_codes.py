"""One meaning a code: every code that is used has a page, a golden message, and an example that raises it."""

import re
from pathlib import Path

import pytest

from specc.driver import Spec, check
from specc.elaborate.config import Reader
from specc.elaborate.modules import module_of, program_of
from specc.lang.read import decode, read
from specc.library import Files
from specc.passes.facts import report
from specc.text.diagnostic import Failed

ROOT = Path(__file__).parents[1]
CODE = re.compile(r'"([EW]0\d{3})"')
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ELSEWHERE = {
    "E0109": "tests/unit/lang/test_limits.py",  # a spec of more than 1 MiB
    "E0111": "tests/unit/lang/test_limits.py",  # an expression of 10 001 words
    "E0416": "tests/unit/torch/test_torch_ties.py",  # values for a module, which only Python gives
    "E0512": "tests/unit/weights/test_safetensors_files.py",  # a file that changes while it is read
    "E0822": "tests/unit/onnx/test_onnx_legal.py",  # the command line takes only targets there are
    "E0961": "tests/unit/generation/test_generation_writing.py",  # logits that are NaN
    "E0932": "tests/unit/test_verifying.py",  # says by how much, which no two machines agree on
    "E0754": "tests/unit/test_api.py",  # the command line says it of its own argument
    "E0962": "tests/unit/generation/test_generation_again.py",  # writing that was interrupted
    "E0751": "tests/unit/profiles/test_profiles_refused.py",  # forms of inputs and outputs
    "E0904": "tests/unit/reading/test_reading_image.py",  # a picture of more than 64 million points
}
"""Codes whose message needs too much for a golden file: the test that raises each."""


def used() -> dict[str, set[str]]:
    """Every code in the sources, with the files it is in."""
    found: dict[str, set[str]] = {}
    for folder in ("specc", "backends"):
        for path in (ROOT / folder).rglob("*.py"):
            for code in CODE.findall(path.read_text(encoding="utf-8")):
                found.setdefault(code, set()).add(str(path.relative_to(ROOT)))
    return found


PAGES = {p.stem: p for p in sorted((ROOT / "docs" / "errors").glob("*.md"))}
GOLDEN = sorted((ROOT / "tests" / "golden").glob("errors*/[EW]0*.txt"))


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert sorted(used()) == sorted(PAGES)


def test_every_code_has_a_golden_message() -> None:
    shown = {p.name[:5] for p in GOLDEN}
    assert sorted(used().keys() - shown - ELSEWHERE.keys()) == []
    for code, test in ELSEWHERE.items():
        assert code in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not mention {code}"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_a_golden_message_is_of_the_code_it_is_named_after(path: Path) -> None:
    message = path.read_text(encoding="utf-8").partition("----\n")[2]
    assert f"[{path.name[:5]}]" in message


@pytest.mark.parametrize("code", PAGES)
def test_a_page_has_a_title_a_meaning_an_example_and_a_mend(code: str) -> None:
    text = PAGES[code].read_text(encoding="utf-8")
    title, meaning, *rest = text.split("\n\n")
    assert re.fullmatch(rf"# {code}: \S.*[^.]", title), title
    assert len(meaning.splitlines()) <= 8
    assert FENCE.search(text), "an example"
    assert rest[-1].strip(), "how to mend it"


def examples() -> list[tuple[str, str, str]]:
    """Code, language and text of every example that is a spec; those in `text` are for people."""
    return [
        (code, language, body)
        for code, path in PAGES.items()
        for language, body in FENCE.findall(path.read_text(encoding="utf-8"))
        if language != "text"
    ]


def codes_of(name: str, text: str) -> set[str]:
    """Every code that checking a spec gives, warnings included."""
    library = Files()
    try:
        module = module_of(read(decode(text.encode(), name)), name)
        module.folder = ROOT / "specs" / "models"
        found = check(Spec(program_of(module, library), library, Reader(), name))
    except Failed as failed:
        return {d.code for d in failed.diagnostics}
    model = found.model or found.trials[0].model
    grows = model.generation
    proved = report(model.graph, grows.growing, grows.source, model.defaults) if grows else report(model.graph)
    return {d.code for d in (*found.missing, *found.warnings, *proved.errors, *proved.warnings)}


@pytest.mark.parametrize(("code", "language", "text"), examples(), ids=lambda v: v if len(v) == 5 else "")
def test_the_example_of_a_page_raises_its_code(code: str, language: str, text: str) -> None:
    assert code in codes_of(f"example.{language}", text)
