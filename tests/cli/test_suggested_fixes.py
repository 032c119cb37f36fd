"""Advice in messages works: apply every code snippet of a help line in the golden files where the
message says; the message disappears."""

import re
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from support.golden_cases import run_golden_case
from support.parameter_sweeps import sample_sweep
from support.suggested_fixes import APPLIED_FIXES, OTHER_ADVICE

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.syntax.parse import parse_spec

GOLDEN = Path(__file__).parents[1] / "golden"
SPECS = re.compile(r"E0[1-7]|W0[56]")
"""Codes of what is wrong in a spec; others are of files, models and machines."""
HELP = re.compile(r"= help: (.*)")
PIECE = re.compile(r"`([^`]+)`")
WRITTEN = re.compile(r"[ =(@:]")
"""What a text of more than one word has; a word alone is a name that the help speaks of."""
SAID = re.compile(r"^(?:error|warning)\[(\w+)\]: (.*)", re.MULTILINE)
MEANT = re.compile(r"did you mean `([^`]+)`\?")
PLACE = re.compile(r"--> (\S+):(\d+):(\d+)")
MARK = re.compile(r"\| *(\^+)")
NAMED = re.compile(r"\b(\w+)(?=[(=])|\b(repeat|scan|when|where|dims|share|until|else)\b")

LEFT = {"last(x)", "last(...)", "stride="}
"""Said of something that is to be left out, or of one way among others."""


def read_golden_cases() -> dict[str, tuple[str, str]]:
    """Return the input and the expected messages of every golden file about an error in a spec."""
    found = {}
    for directory in ("errors", "errors-syntax"):
        for path in sorted((GOLDEN / directory).glob("*.txt")):
            case, rule, said = path.read_text(encoding="utf-8").partition("\n----\n")
            if rule and SPECS.match(path.stem):
                found[path.stem] = case + "\n", said
    return found


CASES = read_golden_cases()


def find_snippets(said: str) -> set[str]:
    """Return the code snippets in the help lines."""
    helps = [h for h in HELP.findall(said) if not MEANT.search(h)]
    return {p for h in helps for p in PIECE.findall(h) if WRITTEN.search(p)}


def test_every_snippet_has_an_applied_fix() -> None:
    missing = {
        f"{name}: {piece}"
        for name, (_, said) in CASES.items()
        for piece in find_snippets(said)
        - {d[0] for d in APPLIED_FIXES.get(name, ())}
        - OTHER_ADVICE
    }
    assert not missing, "say in tests/support/suggested_fixes.py what the spec is then"
    assert APPLIED_FIXES.keys() <= CASES.keys()


def count_case_messages(
    name: str,
    case: str,
    directory: Path,
    patch: pytest.MonkeyPatch,
    capture: pytest.CaptureFixture[str],
) -> Counter[str]:
    """Count the messages of a case."""
    file = "spec.yaml" if name.endswith("yaml") else "spec.specc"
    if (GOLDEN / "errors-syntax" / f"{name}.txt").is_file():
        try:
            parse_spec(Source(file, case))
        except SpeccError as failed:
            return Counter(f"{d.code}: {d.title}" for d in failed.diagnostics)
        return Counter()
    directory.mkdir()
    try:
        said = run_golden_case(case, directory, patch, capture, file)
    except AssertionError as nothing:
        if "nothing failed" not in str(nothing):
            raise
        return Counter()
    return count_rendered_messages(said)


def count_rendered_messages(said: str) -> Counter[str]:
    """Count each message in rendered output."""
    return Counter(": ".join(found) for found in SAID.findall(said))


@pytest.mark.parametrize(
    ("name", "piece", "old", "new"),
    sample_sweep([(n, *done) for n in APPLIED_FIXES for done in APPLIED_FIXES[n]]),
    ids=[f"{n}-{k}" for n in APPLIED_FIXES for k in range(len(APPLIED_FIXES[n]))],
)
def test_fix_removes_the_message(
    name: str,
    piece: str,
    old: str,
    new: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case, said = CASES[name]
    assert piece in find_snippets(said), f"no help says `{piece}` any more"
    assert old in case
    mended = case.replace(old, new)
    # a call with all its defaults shows the signature, not a replacement
    wanted = {a or b for a, b in NAMED.findall(piece.split("=none")[0])}
    if piece not in LEFT:
        missing = wanted - {"f", "name", "x", "scale"} - set(re.findall(r"\w+", mended))
        assert not missing, f"{new} is not what `{piece}` says"
    before = count_rendered_messages(said)
    after = count_case_messages(name, mended, tmp_path / "after", monkeypatch, capsys)
    assert before - after, f"following `{piece}` changed nothing of {set(before)}"
    first = next(iter(before))
    if len(before) == before.total() == 1:
        assert first not in after, f"{first} is still said"


def find_guesses() -> list[tuple[str, str, int, int, int, str]]:
    """Return every `did you mean …?`: the case, file, position, length of the underlined text, and
    the suggestion."""
    found = []
    for name, (_, said) in CASES.items():
        for block in re.split(r"\n\n(?=error|warning)", said):
            meant, place, mark = (p.search(block) for p in (MEANT, PLACE, MARK))
            if meant and place and mark:
                at = int(place[2]), int(place[3]), len(mark[1])
                found.append((name, place[1], *at, meant[1]))
    return found


def find_offset(case: str, file: str, line: int, column: int) -> int:
    """Return the offset of a position in a case that may contain several files."""
    start = case.index(f"=== {file}\n") + len(f"=== {file}\n") if "===" in case else 0
    for _ in range(line - 1):
        start = case.index("\n", start) + 1
    return start + column - 1


@pytest.mark.parametrize(
    "guess", sample_sweep([(guess,) for guess in find_guesses()]), ids=lambda g: f"{g[0]}-{g[2]}"
)
def test_guess_removes_the_message(
    guess: tuple[str, str, int, int, int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, file, line, column, length, meant = guess
    case, said = CASES[name]
    at = find_offset(case, file, line, column)
    wrong = case[at : at + length]
    # for a dotted name or a key with its value, replace the most similar part
    word = max(re.findall(r"\w+", wrong), key=lambda w: compute_similarity(w, meant))
    mended = case[:at] + wrong.replace(word, meant, 1) + case[at + length :]
    before = count_rendered_messages(said)
    after = count_case_messages(name, mended, tmp_path / "after", monkeypatch, capsys)
    assert before - after, f"`{meant}` for `{word}` changed nothing of {set(before)}"


def compute_similarity(a: str, b: str) -> float:
    """Return the similarity of two strings."""
    return SequenceMatcher(None, a, b).ratio()
