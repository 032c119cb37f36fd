"""Inlay hints: inferred shapes of the names that a spec binds."""

from collections.abc import Iterator

from lsprotocol import types as lsp

from specc.diagnostics.render import escape_control_characters
from specc.diagnostics.source import Span
from specc.lsp.document_analysis import DocumentAnalysis
from specc.lsp.protocol import DocumentLines
from specc.syntax import ast
from specc.syntax.ast import walk_tree


def to_inlay_hints(
    analysis: DocumentAnalysis, lines: DocumentLines, place: lsp.Range
) -> Iterator[lsp.InlayHint]:
    """Yield the shapes of the names bound in a range without a type, after the name; in YAML,
    where a key has its own colon, at the end of its line.
    """
    start, end = lines.offset(place.start.line, 0), lines.offsets(place)[1]
    for node in walk_tree(analysis.file) if analysis.file else ():
        match node:
            case ast.Target(type=None, span=Span() as span) if start <= span.start <= end:
                yield from _inlay_hint(analysis, lines, span)


def _inlay_hint(
    analysis: DocumentAnalysis, lines: DocumentLines, span: Span
) -> Iterator[lsp.InlayHint]:
    types = analysis.shapes.get((span.start, span.end), ())
    # numbers and words are self-explanatory; a shape has brackets
    shapes = [escape_control_characters(s) for s in types if "[" in s and s[:4] != "the "]
    mark, offset = ": ", span.end
    if analysis.syntax == "yaml":
        mark, offset = "  ", (analysis.source.text + "\n").find("\n", span.start)
    if shapes:
        at = lsp.Position(*lines.place(offset))
        yield lsp.InlayHint(at, mark + " or ".join(shapes), lsp.InlayHintKind.Type)
