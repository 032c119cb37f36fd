"""The open documents of an editor, positions in them, and the thread that analyzes them."""

import re
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from lsprotocol import types as lsp

from specc.diagnostics.diagnostic import Diagnostic
from specc.lsp.document_analysis import DocumentAnalysis, QuickFixEdit, analyze_incrementally
from specc.lsp.quick_fixes import find_quick_fixes

LINE_END = re.compile(r"\r\n|\r|\n")


ENCODING_UNITS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
"""The Python codec and the number of bytes per code unit, for each LSP position encoding."""


class DocumentPosition(NamedTuple):
    """A position in a document as 0-based line and column."""

    line: int
    column: int


class DocumentLines:
    """The lines of a text, split at the line ends that the protocol defines. Columns are counted in
    code units of `encoding`, the position encoding negotiated with the editor.
    """

    def __init__(self, text: str, encoding: str = "utf-16") -> None:
        self.text = text
        self.encoding_name = encoding
        self.encoding, self.unit_size = ENCODING_UNITS.get(encoding, ENCODING_UNITS["utf-16"])

    @cached_property
    def _line_ends(self) -> list[re.Match[str]]:
        return list(LINE_END.finditer(self.text))

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(end.end() for end in self._line_ends)]

    def get_position(self, offset: int) -> DocumentPosition:
        """Return the line and column of an offset. Larger offsets are clipped."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self._line_starts, offset) - 1
        return DocumentPosition(
            line, self._count_units(self.text[self._line_starts[line] : offset])
        )

    def get_offset(self, line: int, column: int) -> int:
        """Return the offset of a line and column. A column after the end of the line is clipped."""
        if line < 0:
            return 0
        if line >= len(self._line_starts):
            return len(self.text)
        start = self._line_starts[line]
        end = self._line_ends[line].start() if line < len(self._line_ends) else len(self.text)
        for offset in range(start, end):
            if column <= 0:
                return offset
            column -= self._count_units(self.text[offset])
        return end

    def get_offsets(self, text_range: lsp.Range) -> tuple[int, int]:
        """Return the start and end offsets of an LSP range."""
        offsets = (
            (position.line, position.character) for position in (text_range.start, text_range.end)
        )
        start, end = (self.get_offset(*position) for position in offsets)
        return start, end

    def _count_units(self, text: str) -> int:
        # a document may contain an unpaired surrogate
        return len(text.encode(self.encoding, "surrogatepass")) // self.unit_size


@lru_cache(maxsize=16)
def split_document_lines(text: str, encoding: str) -> DocumentLines:
    """Split a text into lines. The lines are cached, because every request needs them."""
    return DocumentLines(text, encoding)


MAX_FIXED_MESSAGES = 20
"""Maximum number of diagnostics per document for which quick fixes are tried."""

DiagnosticWithFixes = tuple[Diagnostic, tuple[QuickFixEdit, ...]]


@dataclass(kw_only=True)
class OpenDocument:
    """One version of an open document, its analysis, and the last analysis with a syntax tree."""

    uri: str
    path: Path
    text: str
    version: int
    analysis: DocumentAnalysis | None = None
    last_parsed_analysis: DocumentAnalysis | None = None
    quick_fixes: list[DiagnosticWithFixes] = field(default_factory=list)
    is_complete: bool = False
    """True if all graphs of this document version have been analyzed."""

    @property
    def latest_analysis(self) -> DocumentAnalysis | None:
        """The analysis of this version, or of the last version without syntax errors."""
        is_parsed = self.analysis is not None and self.analysis.module is not None
        return self.analysis if is_parsed else self.last_parsed_analysis or self.analysis


ResultsCallback = Callable[[str, int], None]
"""A callback `(uri, version)` that the analysis thread calls when it has new results."""
ErrorCallback = Callable[[str, int, Exception], None]
"""A callback `(uri, version, exception)` for exceptions, i.e. bugs, in the analysis thread."""


class OpenDocuments:
    """The open documents of an editor. All methods are thread-safe."""

    def __init__(self, on_results: ResultsCallback, on_error: ErrorCallback) -> None:
        self.on_results = on_results
        self.on_error = on_error
        self._documents: dict[str, OpenDocument] = {}
        self._queue: dict[str, None] = {}
        self._is_closed = False
        self._condition = threading.Condition()
        # use a daemon thread, so that a running analysis does not keep the process alive
        self._thread = threading.Thread(target=self._run_worker, daemon=True)
        self._thread.start()

    def set_text(self, uri: str, path: Path, text: str, version: int) -> None:
        """Store the new text of a document, and queue it for analysis."""
        with self._condition:
            previous_version = self._documents.get(uri)
            last_parsed_analysis = (
                previous_version.last_parsed_analysis if previous_version else None
            )
            self._documents[uri] = OpenDocument(
                uri=uri,
                path=path,
                text=text,
                version=version,
                last_parsed_analysis=last_parsed_analysis,
            )
            self._reanalyze_document(uri)

    def remove_document(self, uri: str) -> None:
        """Remove a document that the editor has closed."""
        with self._condition:
            self._documents.pop(uri, None)
            self._queue.pop(uri, None)

    def get_document(self, uri: str) -> OpenDocument | None:
        """Return an open document, or None if it is not open."""
        with self._condition:
            return self._documents.get(uri)

    def reanalyze_other_documents(self, uri: str) -> None:
        """Queue all open documents except the saved one, `uri`, because they may use it."""
        with self._condition:
            for other_uri in self._documents:
                if other_uri != uri:
                    self._reanalyze_document(other_uri)

    def wait_for_analysis(
        self, uri: str, version: int, timeout: float, *, is_complete: bool
    ) -> None:
        """Wait up to `timeout` seconds for the analysis of one graph, or of all graphs if
        `is_complete` is True.
        """

        def is_analyzed() -> bool:
            document = self._documents.get(uri)
            if self._is_closed or document is None or document.version != version:
                return True
            return document.is_complete if is_complete else document.analysis is not None

        with self._condition:
            self._condition.wait_for(is_analyzed, timeout)

    def _reanalyze_document(self, uri: str) -> None:
        """Queue a document for analysis, unless it is already queued."""
        self._documents[uri].is_complete = False
        self._queue[uri] = None
        self._condition.notify_all()

    def _run_worker(self) -> None:
        """Analyze queued documents until the process ends."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: bool(self._queue))
                uri = next(iter(self._queue))
                del self._queue[uri]
                document = self._documents[uri]
                unsaved_texts = {
                    _resolve_path(d.path): d.text
                    for d in self._documents.values()
                    if d is not document
                }
            try:
                self._analyze_document(document, unsaved_texts)
            except Exception as error:
                self.on_error(uri, document.version, error)
            with self._condition:
                if uri not in self._queue:
                    document.is_complete = True
                self._condition.notify_all()

    def _analyze_document(self, document: OpenDocument, unsaved_texts: dict[Path, str]) -> None:
        """Analyze a document one graph at a time. Stop if the document gets a newer version."""
        for new_analysis in analyze_incrementally(document.path, document.text, unsaved_texts):
            if not self._store_analysis(document, new_analysis):
                return
        analysis = document.analysis
        for diagnostic in analysis.diagnostics[:MAX_FIXED_MESSAGES] if analysis else ():
            edits = tuple(find_quick_fixes(analysis, diagnostic, unsaved_texts)) if analysis else ()
            with self._condition:
                if not self._is_latest(document):
                    return
                document.quick_fixes.append((diagnostic, edits))

    def _store_analysis(self, document: OpenDocument, analysis: DocumentAnalysis) -> bool:
        """Store the analysis of a document. Return False if a newer version is queued."""
        with self._condition:
            is_latest = self._is_latest(document)
            if is_latest:
                document.analysis = analysis
                document.quick_fixes = []
                if analysis.module is not None:
                    document.last_parsed_analysis = analysis
                self._condition.notify_all()
        if is_latest:
            self.on_results(document.uri, document.version)
        return is_latest

    def _is_latest(self, document: OpenDocument) -> bool:
        """Return True if `document` is the open version and is not queued for analysis."""
        current = self._documents.get(document.uri)
        return current is document and document.uri not in self._queue

    def close(self) -> None:
        """Cancel queued analyses. If the process exits, a running analysis is aborted."""
        with self._condition:
            self._is_closed = True
            self._documents.clear()
            self._queue.clear()
            self._condition.notify_all()


def _resolve_path(path: Path) -> Path:
    """Resolve the symbolic links of a path, or return the path unchanged if an error occurs."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path
