"""Quick fixes: most golden-file messages with exact advice produce an edit that removes the
message."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.test_suggested_fixes import CASES, GOLDEN, find_guesses
from support.golden_cases import split_sections, write_case_file
from support.suggested_fixes import APPLIED_FIXES

from specc.diagnostics.diagnostic import Diagnostic
from specc.lsp.document_analysis import DocumentAnalysis, QuickFixEdit, analyze_incrementally
from specc.lsp.quick_fixes import find_quick_fixes

EXACT = sorted({*APPLIED_FIXES, *(guess[0] for guess in find_guesses())})
"""Cases of which a help says what to write."""
NEVER = {
    "E0219-no-graph",
    "E0227-a-number",
    "E0227-no-table",
    "E0401-inside-another-key",
    "E0401-missing",
    "E0420-architecture",
    "E0701-nothing-generated",
    "E0703-no-tokens",
    "E0752-loop",
    "E0752-rows",
    "E0753-a-folder",
    "E0753-beams",
}
"""Cases whose fault is in the command line, a config.json or a checkpoint: no editor
hears of them.
"""


def write_case_specs(name: str, directory: Path) -> Iterator[Path]:
    """Write the files of a case to a directory and yield its specs."""
    case, _ = CASES[name]
    spec = "spec.yaml" if name.endswith("yaml") else "spec.specc"
    files = [(spec, "", case)]
    if not (GOLDEN / "errors-syntax" / f"{name}.txt").is_file():
        lines = case.splitlines(keepends=True)
        if not case.startswith(("$", "%", "===")):
            lines = [f"=== {spec}\n", *lines]
        _, files = split_sections(lines)
    for file, kind, text in files:
        write_case_file(directory / file, kind, text)
    for file, _, _ in files:
        if file.endswith((".specc", ".yaml")):
            yield directory / file


def find_diagnostics(path: Path) -> Iterator[tuple[DocumentAnalysis, Diagnostic]]:
    """Yield each diagnostic of a spec once."""
    seen = set()
    for known in analyze_incrementally(path, path.read_text(encoding="utf-8")):
        for fault in known.diagnostics:
            here = fault.primary is not None and known.is_in_document(fault.primary.span)
            if here and (fault.code, fault.title) not in seen:
                seen.add((fault.code, fault.title))
                yield known, fault


def collect_quick_fixes(name: str, directory: Path) -> list[tuple[Path, Diagnostic, QuickFixEdit]]:
    """Return every quick fix for the messages of a case."""
    return [
        (path, fault, edit)
        for path in write_case_specs(name, directory)
        for known, fault in find_diagnostics(path)
        for edit in find_quick_fixes(known, fault)
    ]


def check_fix_helps(path: Path, fault: Diagnostic, edit: QuickFixEdit) -> None:
    """The edit removes the message or reduces its count."""
    text = path.read_text(encoding="utf-8")
    before, after = (
        sum(d.count for _, d in list(_find_all_diagnostics(path, t)) if _is_same_message(d, fault))
        for t in (text, edit.apply_to_text(text))
    )
    assert after < before, (fault.title, edit)


def _find_all_diagnostics(path: Path, text: str) -> Iterator[tuple[int, Diagnostic]]:
    """Yield the diagnostics of all graphs of a text."""
    for n, known in enumerate(analyze_incrementally(path, text)):
        yield from ((n, d) for d in known.diagnostics)


def _is_same_message(one: Diagnostic, other: Diagnostic) -> bool:
    return (one.code, one.title) == (other.code, other.title)


CLASSES = {
    "E0211-one-input-too-many": "write `relu(x)`",
    "E0712-no-mask": "write `mask=causal`",
    "E0711-fewer-rows": "add `padding=causal`",
    "E0712-no-comparison": "write `both(pre) & causal`",
    "E0202-length-not-declared": "add `dims batch`",
    "E0220-no-type": "write `width: int = 8`",
    "E0214-no-return": "add `return y`",
    "E0203-word-of-a-choice": "write `pre`",
    "E0302-axis-missing": "write `insert(first, axis=1)`",
    "E0302-two-lengths": "add `where src = tgt`",
    "E0601-numbers-as-mask": "write `bias > 0`",
    "W0601-every-second-row": "declare `keep: keep[batch, n] right`",
    "W0505-one-call": "remove `share encoder.proj`",
    "E0113-version": "write `specc 1`",
    "E0125-two-keys-yaml": "write `repeat`",
    "E0526-two-calls-yaml": "add `weights: [{share: inner}]`",
}
"""A case of each way in which advice is written down, and the edit."""


@pytest.mark.parametrize("name", CLASSES)
def test_each_form_of_advice(name: str, tmp_path: Path) -> None:
    edits = collect_quick_fixes(name, tmp_path)
    assert CLASSES[name] in [edit.title for _, _, edit in edits]
    for path, fault, edit in edits:
        check_fix_helps(path, fault, edit)


@pytest.mark.parity
def test_most_exact_advice_is_a_quick_fix(tmp_path: Path) -> None:
    """Check every golden file in 10 to 20 seconds."""
    mended, names = set(), [n for n in EXACT if n not in NEVER]
    for name in names:
        for path, fault, edit in collect_quick_fixes(name, tmp_path / name):
            check_fix_helps(path, fault, edit)
            mended.add(name)
    assert len(mended) > len(names) / 2, sorted({*names} - mended)
