"""Open documents of the server: internal errors are reported, and the next version of a document is
analyzed."""

import io
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest

from specc.lsp import documents as desks
from specc.lsp.document_analysis import DocumentAnalysis, analyze_incrementally
from specc.lsp.documents import DocumentLines, OpenDocuments
from specc.lsp.quick_fixes import find_quick_fixes
from specc.lsp.server import MAX_BYTES, BoundedInput

GOOD = "specc 1\nmodel m\ndims b\ngraph g(x: float[b]) -> (y: float[b]) { return x }\n"


@pytest.mark.skipif(not find_spec("pygls"), reason="needs the extra lsp")
def test_server_survives_internal_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specc.lsp.server import SpeccLanguageServer

    class Loop:
        def call_soon_threadsafe(self, call: Callable[..., None], *given: Any) -> None:
            call(*given)

    def raise_internal_error(path: Path, text: str, unsaved: object) -> Iterator[DocumentAnalysis]:
        raise RecursionError("too deep") if "bug" in text else StopIteration

    said: dict[int, list[str]] = {}
    server = SpeccLanguageServer()
    server.loop = cast(Any, Loop())
    monkeypatch.setattr(desks, "analyze_incrementally", raise_internal_error)
    monkeypatch.setattr(
        server,
        "_publish_diagnostics",
        lambda uri, found, version: said.update({version: [d.code for d in found]}),
    )
    server.documents.set_text("file:///a.specc", tmp_path / "a.specc", "a bug", 1)
    server.documents.wait_for_analysis("file:///a.specc", 1, 10, is_complete=True)
    assert said == {1: ["E0969"]}
    monkeypatch.undo()
    server.documents.set_text("file:///a.specc", tmp_path / "a.specc", GOOD, 2)
    server.documents.wait_for_analysis("file:///a.specc", 2, 10, is_complete=True)
    document = server.documents.get_document("file:///a.specc")
    assert document is not None
    assert document.analysis is not None
    assert document.analysis.diagnostics == ()


def test_newer_version_cancels_the_analysis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reads: list[str] = []
    inside, go = threading.Event(), threading.Event()

    def analyze_slowly(path: Path, text: str, unsaved: Any) -> Iterator[DocumentAnalysis]:
        for known in (*analyze_incrementally(path, text, unsaved),) * 3:
            reads.append(text)
            inside.set()
            assert go.wait(10)
            yield known

    told: list[int] = []
    monkeypatch.setattr(desks, "analyze_incrementally", analyze_slowly)
    desk = OpenDocuments(lambda uri, version: told.append(version), lambda *given: None)
    desk.set_text("u", tmp_path / "a.specc", GOOD, 1)
    assert inside.wait(10)
    desk.set_text("u", tmp_path / "a.specc", GOOD + "# newer\n", 2)
    go.set()
    desk.wait_for_analysis("u", 2, 10, is_complete=True)
    assert reads == [GOOD, *[GOOD + "# newer\n"] * 3]
    assert told == [2, 2, 2]


@pytest.mark.parametrize(("encoding", "column"), [("utf-8", 9), ("utf-16", 5), ("utf-32", 4)])
def test_columns_in_the_negotiated_encoding(encoding: str, column: int) -> None:
    lines = DocumentLines("one\r\n é𝔁\x0c|x\rthree\u2028", encoding)
    offset = lines.text.index("|")
    assert lines.get_position(offset) == (1, column - (encoding == "utf-8"))
    assert lines.get_offset(*lines.get_position(offset)) == offset
    assert lines.get_position(len(lines.text)).line == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_positions_round_trip(encoding: str) -> None:
    text = "a𝔁\ud800\n\n\tb\r\nc\r"
    lines = DocumentLines(text, encoding)
    for offset in range(len(text) + 1):
        back = lines.get_offset(*lines.get_position(offset))
        # no position lies between CR and LF
        assert back == offset or text[back:offset] == "\r"
    assert lines.get_offset(99, 99) == len(text)
    assert lines.get_offset(-1, -1) == 0
    assert lines.get_offset(0, 99) == text.index("\n")


HEAD = "specc 1\nmodel m\ndims b, n\ngraph g(x: float[b, n, 8]) -> (y: float[b, n, 8]) {\n"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("return liner(x, out=8) @ w", "return linear(x, out=8) @ w"),
        ("return linear(x, otu=8) @ w", "return linear(x, out=8) @ w"),
        ("return x * parameter(shape=[8])", "return x * parameter(shape=[8]) @ name"),
        ("return relu(x", "return relu(x)"),
        ("return gelu(xx)", "return gelu(x)"),
        ("y = x * 1_0.0\n  return x", None),
        ("return layer_norm(x, eps=1_000) @ w", "return layer_norm(x, eps=1000) @ w"),
    ],
)
def test_advice_becomes_a_quick_fix(wrong: str, right: str | None) -> None:
    *_, known = analyze_incrementally(Path("/nowhere/a.specc"), f"{HEAD}  {wrong}\n}}\n")
    fault = known.diagnostics[0]
    made = [edit.apply_to_text(known.source.text) for edit in find_quick_fixes(known, fault)]
    assert made == ([] if right is None else [f"{HEAD}  {right}\n}}\n"])


def test_advice_that_fixes_nothing_is_no_quick_fix() -> None:
    text = f"{HEAD}  return x + reshape(x, [2])\n}}\n"
    *_, known = analyze_incrementally(Path("/nowhere/a.specc"), text)
    assert known.diagnostics[0].helps
    assert find_quick_fixes(known, known.diagnostics[0]) == []


def test_oversized_message_ends_the_input() -> None:
    given = BoundedInput(io.BytesIO(b"Content-Length: 9\r\n\r\nxxxxxxxxx" + b"y" * 9000))
    assert given.readline() == b"Content-Length: 9\r\n"
    assert given.readline() == b"\r\n"
    assert given.read(9) == b"x" * 9
    # a header without an end is read in chunks
    assert len(given.readline()) < 9000
    assert given.read(MAX_BYTES + 1) == b""
    assert given.readline() == b""
    assert given.read(1) == b""
