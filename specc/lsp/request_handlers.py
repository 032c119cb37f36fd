"""Answer editor requests from the analysis of open documents."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from lsprotocol import types as lsp

from specc.diagnostics.diagnostic import Failed
from specc.diagnostics.source import Source
from specc.lsp import dsl_completion, inlay_hints, protocol, yaml_completion
from specc.lsp.documents import OpenDocument, OpenDocuments
from specc.lsp.hover import find_meaning
from specc.lsp.protocol import DocumentLines
from specc.syntax import source_limits
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_printer import print_yaml

PATIENCE = 10.0
"""Seconds that an answer waits for a text to be read."""
WORD_END = re.compile(r"[A-Za-z0-9_]*$")


@dataclass(frozen=True)
class RequestHandlers:
    """`lines` counts a text as client and server have agreed."""

    desk: OpenDocuments
    lines: Callable[[str], DocumentLines]

    async def _read(self, uri: str, *, settled: bool = False) -> OpenDocument | None:
        """An open text as far as it is known; waits for the first that is found."""
        document = self.desk.get(uri)
        if document is None:
            return None
        await asyncio.to_thread(self.desk.wait, uri, document.version, PATIENCE, settled=settled)
        return self.desk.get(uri)

    async def hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        """What the word at a character means."""
        document = await self._read(params.text_document.uri)
        if document is None or document.known is None:
            return None
        lines = self.lines(document.text)
        place = params.position
        offset = lines.offset(place.line, place.character)
        found = find_meaning(document.known, offset)
        text = inlay_hints.meaning_as_markdown(found) if found else ""
        if found is None or not text:
            return None
        content = lsp.MarkupContent(lsp.MarkupKind.Markdown, text)
        return lsp.Hover(content, protocol.to_range(lines, found.start, found.end))

    async def definition(self, params: lsp.DefinitionParams) -> lsp.Location | None:
        """Where the word at a character is said."""
        document = await self._read(params.text_document.uri)
        if document is None or document.known is None:
            return None
        lines = self.lines(document.text)
        place = params.position
        found = find_meaning(document.known, lines.offset(place.line, place.character))
        if found is None or found.place is None:
            return None
        return protocol.to_location(document.known, lines, found.place)

    async def complete(self, params: lsp.CompletionParams) -> lsp.CompletionList:
        """What may be written at a character."""
        document = self.desk.get(params.text_document.uri)
        # a text that is too long to be read says so, and no more
        if document is None or len(document.text) > source_limits.MAX_SPEC_BYTES:
            return lsp.CompletionList(False, [])
        # what was known before the text broke tells names; only the first has to come
        if document.best is None:
            await self._read(params.text_document.uri)
        known = document.best
        if known is None:
            return lsp.CompletionList(False, [])
        lines = self.lines(document.text)
        offset = lines.offset(params.position.line, params.position.character)
        word = WORD_END.search(document.text[:offset])
        start = word.start() if word else offset
        give = (
            yaml_completion.complete_yaml if known.syntax == "yaml" else dsl_completion.complete_dsl
        )
        found = give(known, document.text, offset)
        items = protocol.to_completion_items(found, lines, start, offset)
        return lsp.CompletionList(False, items)

    async def format(self, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        """The text in its canonical form; nothing for one that cannot be read."""
        document = self.desk.get(params.text_document.uri)
        if document is None:
            return None
        try:
            file = parse_spec(Source(str(document.path), document.text))
        except Failed:
            return None
        text = print_dsl(file) if document.path.suffix == ".specc" else print_yaml(file)
        if text == document.text:
            return []
        lines = self.lines(document.text)
        return [lsp.TextEdit(protocol.to_range(lines, 0, len(document.text)), text)]

    async def hints(self, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        """Shapes behind the names that a part of a text gives."""
        document = await self._read(params.text_document.uri)
        if document is None or document.known is None:
            return []
        lines = self.lines(document.text)
        first, last = params.range.start, params.range.end
        found = inlay_hints.find_inlay_hints(
            document.known, lines.offset(first.line, 0), lines.offset(last.line, last.character)
        )
        return [
            lsp.InlayHint(
                position=lsp.Position(*lines.place(hint.offset)),
                label=hint.text,
                kind=lsp.InlayHintKind.Type,
            )
            for hint in found
        ]

    async def outline(self, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        """The items of a text."""
        document = await self._read(params.text_document.uri)
        if document is None or document.known is None:
            return []
        lines = self.lines(document.text)
        return [
            lsp.DocumentSymbol(
                name=entry.name,
                kind=protocol.SYMBOLS.get(entry.kind, lsp.SymbolKind.Function),
                range=protocol.to_range(lines, entry.start, entry.end),
                selection_range=protocol.to_range(lines, entry.start, entry.start),
                detail=entry.detail or None,
            )
            for entry in inlay_hints.document_outline(document.known)
        ]

    async def actions(self, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        """The quick fixes of messages in a part of a text, each of which was tried."""
        document = await self._read(params.text_document.uri, settled=True)
        if document is None or document.known is None:
            return []
        lines = self.lines(document.text)
        first, last = params.range.start, params.range.end
        start = lines.offset(first.line, first.character)
        end = lines.offset(last.line, last.character)
        found: list[lsp.CodeAction] = []
        for fault, edits in document.mended:
            at = protocol.diagnostic_span(document.known, fault)
            if at[0] <= end and at[1] >= start:
                said = protocol.to_diagnostic(document.known, lines, fault)
                uri = document.uri
                found += [protocol.to_code_action(uri, lines, said, edit) for edit in edits]
        return found
