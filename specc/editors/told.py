"""What is known of a text, in the words of the protocol."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lsprotocol import types as lsp

from specc.editors.analysis import Analysis
from specc.editors.offers import Offer
from specc.editors.placing import Edit
from specc.editors.positions import Lines
from specc.lang import tree
from specc.text.characters import escaped
from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span

SOURCE = "specc"
SEVERITIES = {
    "error": lsp.DiagnosticSeverity.Error,
    "warning": lsp.DiagnosticSeverity.Warning,
}
KINDS = {
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
SYMBOLS = {
    "graph": lsp.SymbolKind.Module,
    "block": lsp.SymbolKind.Function,
    "config": lsp.SymbolKind.Namespace,
    "generate": lsp.SymbolKind.Event,
    "stream": lsp.SymbolKind.Event,
}
"""Anything else is a definition."""


def span_range(lines: Lines, start: int, end: int) -> lsp.Range:
    """A piece of a text."""
    first, last = lines.place(start), lines.place(max(start, end))
    return lsp.Range(lsp.Position(*first), lsp.Position(*last))


def diagnostics(known: Analysis, lines: Lines) -> list[lsp.Diagnostic]:
    """Every message of a text, where it is shown."""
    return [diagnostic(known, lines, d) for d in known.diagnostics]


def diagnostic(known: Analysis, lines: Lines, said: Diagnostic) -> lsp.Diagnostic:
    """One message. What is about another file stands where this one names it."""
    start, end = shown_at(known, said)
    texts = [said.title]
    if said.primary and said.primary.text:
        texts.append(said.primary.text)
    texts += said.notes
    texts += [f"help: {text}" for text in said.helps]
    related = list(_related(known, lines, said))
    return lsp.Diagnostic(
        range=span_range(lines, start, end),
        message="\n".join(escaped(line) for t in texts for line in t.split("\n")),
        severity=SEVERITIES[said.severity],
        code=said.code,
        source=SOURCE,
        related_information=related or None,
    )


def shown_at(known: Analysis, said: Diagnostic) -> tuple[int, int]:
    """The characters of this text that a message stands at."""
    labels = (*((said.primary,) if said.primary else ()), *said.others)
    for label in labels:
        if known.is_here(label.span):
            return label.span.start, label.span.end
    for span in _names_of_files(known):
        return span.start, span.end
    end = known.source.text.find("\n")
    return 0, end if end >= 0 else len(known.source.text)


def _names_of_files(known: Analysis) -> Iterator[Span]:
    """Where this text names another file, first the one that it extends."""
    if known.file is None:
        return
    if known.file.extends_span is not None:
        yield known.file.extends_span
    for item in known.file.items:
        if isinstance(item, tree.Use) and item.span is not None:
            yield item.span


def _related(
    known: Analysis, lines: Lines, said: Diagnostic
) -> Iterator[lsp.DiagnosticRelatedInformation]:
    """The other places of a message, those in other files too."""
    labels: list[Label] = list(said.others)
    if said.primary is not None and not known.is_here(said.primary.span):
        labels.insert(0, said.primary)
    for label in labels:
        place = location(known, lines, label.span)
        if place is not None:
            text = escaped(label.text) or "here"
            yield lsp.DiagnosticRelatedInformation(location=place, message=text)


def location(known: Analysis, lines: Lines, span: Span) -> lsp.Location | None:
    """A place, in this text or in a file; None for a text that is none."""
    path = known.path_of(span)
    if path is None:
        return None
    if known.is_here(span):
        there = lines
    else:
        text = known.library.unsaved.get(path)
        there = Lines(span.source.text if text is None else text, lines.name)
    return lsp.Location(uri_of(path), span_range(there, span.start, span.end))


def uri_of(path: Path) -> str:
    """The address of a file."""
    return path.absolute().as_uri()


def completions(
    offers: Sequence[Offer], lines: Lines, start: int, end: int
) -> list[lsp.CompletionItem]:
    """What may be written in place of the characters of a word, in this order: editors
    would sort by the alphabet.
    """
    place = span_range(lines, start, end)
    return [
        lsp.CompletionItem(
            label=escaped(offer.text).rstrip(" :="),
            kind=KINDS[offer.kind],
            detail=escaped(offer.detail) or None,
            documentation=escaped(offer.doc) or None,
            text_edit=lsp.TextEdit(place, offer.text),
            filter_text=offer.text,
            sort_text=f"{number:04}",
        )
        for number, offer in enumerate(offers)
    ]


def action(uri: str, lines: Lines, said: lsp.Diagnostic, edit: Edit) -> lsp.CodeAction:
    """A mend as an edit."""
    change = lsp.TextEdit(span_range(lines, edit.start, edit.end), edit.text)
    return lsp.CodeAction(
        title=escaped(edit.title),
        kind=lsp.CodeActionKind.QuickFix,
        diagnostics=[said],
        edit=lsp.WorkspaceEdit(changes={uri: [change]}),
    )
