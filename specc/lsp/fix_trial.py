"""Apply an edit to a document and check that it removes a diagnostic."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from specc.diagnostics.diagnostic import Diagnostic
from specc.lsp.document_analysis import DocumentAnalysis, analyze_incrementally


@dataclass(frozen=True)
class FixEdit:
    """An edit that replaces the characters from `start` to `end` with `text`; `title` is shown to
    the user.
    """

    title: str
    start: int
    end: int
    text: str

    def apply_to_text(self, text: str) -> str:
        """Return the text after the edit."""
        return text[: self.start] + self.text + text[self.end :]


@dataclass
class FixTrial:
    """A trial that checks whether edits remove one diagnostic of a document."""

    analysis: DocumentAnalysis
    diagnostic: Diagnostic
    unsaved: Mapping[Path, str]

    def removes_diagnostic(self, edit: FixEdit) -> bool:
        """Return True if an edit removes the diagnostic without a new error."""
        result = self._analyze_graph(edit.apply_to_text(self.analysis.source.text))
        before, after = _count_diagnostics(self.analysis), _count_diagnostics(result)
        key = self.diagnostic.code, self.diagnostic.title
        if after[key] >= before[key] or (result.spec is None and self.analysis.spec is not None):
            return False
        # the suggested code may contain names that this document does not define; errors elsewhere
        # existed before but were hidden by the removed diagnostic
        return not any(
            d.severity == "error"
            and (d.code, d.title) not in before
            and _is_in_inserted_text(result, d, edit)
            for d in result.diagnostics
        )

    def _analyze_graph(self, text: str) -> DocumentAnalysis:
        """Analyze a document up to the graph with the diagnostic, or up to the first graph if the
        document has fewer graphs.
        """
        results = analyze_incrementally(self.analysis.path, text, self.unsaved)
        return next(islice(results, self._graph_index, None), None) or next(
            analyze_incrementally(self.analysis.path, text, self.unsaved)
        )

    @cached_property
    def _graph_index(self) -> int:
        """Return the index of the first graph with the diagnostic."""
        text = self.analysis.source.text
        for n, result in enumerate(analyze_incrementally(self.analysis.path, text, self.unsaved)):
            if (self.diagnostic.code, self.diagnostic.title) in _count_diagnostics(result):
                return n
        return 0


def _is_in_inserted_text(result: DocumentAnalysis, diagnostic: Diagnostic, edit: FixEdit) -> bool:
    """Return True if a diagnostic is located in the text that an edit inserted."""
    span = diagnostic.primary.span if diagnostic.primary else None
    if span is None or not result.is_in_document(span):
        return False
    return span.start <= edit.start + len(edit.text) and span.end >= edit.start


def _count_diagnostics(analysis: DocumentAnalysis) -> Counter[tuple[str, str]]:
    """Count diagnostics by code and title."""
    counts: Counter[tuple[str, str]] = Counter()
    for d in analysis.diagnostics:
        counts[d.code, d.title] += d.count
    return counts
