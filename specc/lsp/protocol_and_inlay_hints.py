"""Convert diagnostics, completions, symbols, edits and inlay hints to protocol types."""

from collections.abc import Iterator, Sequence

from lsprotocol import types as lsp

from specc.diagnostics.diagnostic import Diagnostic, Label, Span
from specc.diagnostics.render import escape_control_characters
from specc.lsp.document_analysis import DocumentAnalysis, QuickFixEdit
from specc.lsp.documents import DocumentLines
from specc.lsp.dsl_completion import CompletionItem
from specc.syntax import ast
from specc.syntax.ast import walk_tree

DIAGNOSTIC_SOURCE = "specc"
LSP_SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning}
COMPLETION_KINDS = {
    "keyword": lsp.CompletionItemKind.Keyword,
    "function": lsp.CompletionItemKind.Function,
    "variable": lsp.CompletionItemKind.Variable,
    "property": lsp.CompletionItemKind.Property,
    "option": lsp.CompletionItemKind.Field,
    "constant": lsp.CompletionItemKind.Constant,
    "type": lsp.CompletionItemKind.Class,
    "module": lsp.CompletionItemKind.Module,
    "file": lsp.CompletionItemKind.File,
}
SYMBOL_KINDS = {
    "graph": lsp.SymbolKind.Module,
    "block": lsp.SymbolKind.Function,
    "config": lsp.SymbolKind.Namespace,
    "generate": lsp.SymbolKind.Event,
    "stream": lsp.SymbolKind.Event,
}
"""The symbol kind of each item kind. All other item kinds have the symbol kind of functions."""


def to_lsp_range(lines: DocumentLines, start: int, end: int) -> lsp.Range:
    """Convert the offsets of a span to an LSP range."""
    start_position, end_position = lines.get_position(start), lines.get_position(max(start, end))
    return lsp.Range(lsp.Position(*start_position), lsp.Position(*end_position))


def to_lsp_diagnostic(
    analysis: DocumentAnalysis, lines: DocumentLines, diagnostic: Diagnostic
) -> lsp.Diagnostic:
    """Convert a diagnostic to LSP. Show an error in another file at the reference to that file."""
    start, end = find_diagnostic_span(analysis, diagnostic)
    texts = [diagnostic.title]
    if diagnostic.primary and diagnostic.primary.text:
        texts.append(diagnostic.primary.text)
    texts += diagnostic.notes
    texts += [f"help: {text}" for text in diagnostic.helps]
    related = list(_convert_related_spans(analysis, lines, diagnostic))
    return lsp.Diagnostic(
        range=to_lsp_range(lines, start, end),
        message="\n".join(escape_control_characters(line) for t in texts for line in t.split("\n")),
        severity=LSP_SEVERITIES[diagnostic.severity],
        code=diagnostic.code,
        source=DIAGNOSTIC_SOURCE,
        related_information=related or None,
    )


def find_diagnostic_span(analysis: DocumentAnalysis, diagnostic: Diagnostic) -> tuple[int, int]:
    """Return the start and end offsets of the text range that a diagnostic underlines."""
    for label in diagnostic.labels:
        if analysis.is_in_document(label.span):
            return label.span.start, label.span.end
    for span in _iterate_file_references(analysis):
        return span.start, span.end
    end = analysis.source.text.find("\n")
    return 0, end if end >= 0 else len(analysis.source.text)


def _iterate_file_references(analysis: DocumentAnalysis) -> Iterator[Span]:
    """Yield the spans of the references to other files, beginning with the base spec."""
    if analysis.file is None:
        return
    if analysis.file.extends_span is not None:
        yield analysis.file.extends_span
    for item in analysis.file.items:
        if isinstance(item, ast.UseStatement) and item.span is not None:
            yield item.span


def _convert_related_spans(
    analysis: DocumentAnalysis, lines: DocumentLines, diagnostic: Diagnostic
) -> Iterator[lsp.DiagnosticRelatedInformation]:
    """Convert the secondary labels of a diagnostic, including labels in other files."""
    labels: list[Label] = list(diagnostic.related_labels)
    if diagnostic.primary is not None and not analysis.is_in_document(diagnostic.primary.span):
        labels.insert(0, diagnostic.primary)
    for label in labels:
        location = to_lsp_location(analysis, lines, label.span)
        if location is not None:
            text = escape_control_characters(label.text) or "here"
            yield lsp.DiagnosticRelatedInformation(location=location, message=text)


def to_lsp_location(
    analysis: DocumentAnalysis, lines: DocumentLines, span: Span
) -> lsp.Location | None:
    """Convert a span to a location, or return None if its source is not a file."""
    path = analysis.find_source_path(span)
    if path is None:
        return None
    if analysis.is_in_document(span):
        target_lines = lines
    else:
        text = analysis.library.unsaved_texts.get(path)
        target_lines = DocumentLines(
            span.source.text if text is None else text, lines.encoding_name
        )
    return lsp.Location(path.absolute().as_uri(), to_lsp_range(target_lines, span.start, span.end))


def to_lsp_completion_items(
    completions: Sequence[CompletionItem], lines: DocumentLines, start: int, end: int
) -> list[lsp.CompletionItem]:
    """Convert completions that replace the word at offsets `start` to `end`. The sort keys preserve
    the order of `completions`.
    """
    edit_range = to_lsp_range(lines, start, end)
    return [
        lsp.CompletionItem(
            label=escape_control_characters(completion.text).rstrip(" :="),
            kind=COMPLETION_KINDS[completion.kind],
            detail=escape_control_characters(completion.detail) or None,
            documentation=escape_control_characters(completion.doc) or None,
            text_edit=lsp.TextEdit(edit_range, completion.text),
            filter_text=completion.text,
            sort_text=f"{number:04}",
        )
        for number, completion in enumerate(completions)
    ]


def to_lsp_document_symbols(
    analysis: DocumentAnalysis, lines: DocumentLines
) -> Iterator[lsp.DocumentSymbol]:
    """Yield a document symbol for each named item of a spec."""
    for item in analysis.items:
        fields = _get_symbol_fields(item)
        if fields is not None and item.span is not None:
            name, kind, detail = fields
            yield lsp.DocumentSymbol(
                name=name,
                kind=SYMBOL_KINDS.get(kind, lsp.SymbolKind.Function),
                range=to_lsp_range(lines, item.span.start, item.span.end),
                selection_range=to_lsp_range(lines, item.span.start, item.span.start),
                detail=detail or None,
            )


def _get_symbol_fields(item: ast.Item) -> tuple[str, str, str] | None:
    """Return the name, the kind and the detail text of an item, or None for unnamed items."""
    match item:
        case ast.Block() | ast.AttentionDef():
            return item.name, item.kind, item.doc
        case ast.ConfigSection():
            return "config", "config", ""
        case ast.InputsSection():
            return "inputs", "config", ""
        case ast.StreamSection():
            return item.output_name, "stream", ""
        case ast.GenerateSection():
            return item.name, "generate", ""
        case _:
            return None


def to_lsp_code_action(
    uri: str, lines: DocumentLines, diagnostic: lsp.Diagnostic, edit: QuickFixEdit
) -> lsp.CodeAction:
    """Convert a quick fix of `diagnostic` in the document `uri` to a code action."""
    change = lsp.TextEdit(to_lsp_range(lines, edit.start, edit.end), edit.text)
    return lsp.CodeAction(
        title=escape_control_characters(edit.title),
        kind=lsp.CodeActionKind.QuickFix,
        diagnostics=[diagnostic],
        edit=lsp.WorkspaceEdit(changes={uri: [change]}),
    )


def to_lsp_inlay_hints(
    analysis: DocumentAnalysis, lines: DocumentLines, visible_range: lsp.Range
) -> Iterator[lsp.InlayHint]:
    """Yield inlay hints with the shapes of the names that are bound in a range without a declared
    type. The hint is placed after the name, or in YAML at the end of the line.
    """
    start, end = lines.get_offset(visible_range.start.line, 0), lines.get_offsets(visible_range)[1]
    for node in walk_tree(analysis.file) if analysis.file else ():
        match node:
            case ast.AssignmentTarget(type=None, span=Span() as span) if start <= span.start <= end:
                yield from _iterate_span_hints(analysis, lines, span)


def _iterate_span_hints(
    analysis: DocumentAnalysis, lines: DocumentLines, span: Span
) -> Iterator[lsp.InlayHint]:
    """Yield an inlay hint for the name at `span` if its value is a tensor."""
    types = analysis.shapes.get((span.start, span.end), ())
    # show only tensor types, which contain brackets
    shapes = [escape_control_characters(s) for s in types if "[" in s and s[:4] != "the "]
    prefix, offset = ": ", span.end
    if analysis.syntax == "yaml":
        prefix, offset = "  ", (analysis.source.text + "\n").find("\n", span.start)
    if shapes:
        position = lsp.Position(*lines.get_position(offset))
        yield lsp.InlayHint(position, prefix + " or ".join(shapes), lsp.InlayHintKind.Type)
