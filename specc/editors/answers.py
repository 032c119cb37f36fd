"""What an editor asks, answered from what the desk knows of its texts."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from lsprotocol import types as lsp

from specc.editors import offers, offers_yaml, shown, told
from specc.editors.desk import Desk, Document
from specc.editors.meaning import meaning
from specc.editors.positions import Lines
from specc.lang import limits
from specc.lang.dsl.write import write
from specc.lang.read import read
from specc.lang.yaml.write import write_yaml
from specc.text.diagnostic import Failed
from specc.text.source import Source

PATIENCE = 10.0
"""Seconds that an answer waits for a text to be read."""
WORD_END = re.compile(r"[A-Za-z0-9_]*$")


@dataclass(frozen=True)
class Answers:
    """`lines` counts a text as client and server have agreed."""

    desk: Desk
    lines: Callable[[str], Lines]

    async def _read(self, uri: str, *, settled: bool = False) -> Document | None:
        """An open text as far as it is known; waits for the first that is found."""
        document = self.desk.get(uri)
        if document is None:
            return None
        await asyncio.to_thread(
            self.desk.wait, uri, document.version, PATIENCE, settled=settled
        )
        return self.desk.get(uri)

    async def hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        """What the word at a character means."""
        document = await self._read(params.text_document.uri)
        if document is None or document.known is None:
            return None
        lines = self.lines(document.text)
        place = params.position
        offset = lines.offset(place.line, place.character)
        found = meaning(document.known, offset)
        text = shown.markdown(found) if found else ""
        if found is None or not text:
            return None
        content = lsp.MarkupContent(lsp.MarkupKind.Markdown, text)
        return lsp.Hover(content, told.span_range(lines, found.start, found.end))

    async def definition(self, params: lsp.DefinitionParams) -> lsp.Location | None:
        """Where the word at a character is said."""
        document = await self._read(params.text_document.uri)
        if document is None or document.known is None:
            return None
        lines = self.lines(document.text)
        place = params.position
        found = meaning(document.known, lines.offset(place.line, place.character))
        if found is None or found.place is None:
            return None
        return told.location(document.known, lines, found.place)

    async def complete(self, params: lsp.CompletionParams) -> lsp.CompletionList:
        """What may be written at a character."""
        document = self.desk.get(params.text_document.uri)
        # a text that is too long to be read says so, and no more
        if document is None or len(document.text) > limits.TEXT:
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
        give = offers_yaml.offers if known.syntax == "yaml" else offers.offers
        found = give(known, document.text, offset)
        items = told.completions(found, lines, start, offset)
        return lsp.CompletionList(False, items)

    async def format(
        self, params: lsp.DocumentFormattingParams
    ) -> list[lsp.TextEdit] | None:
        """The text in its canonical form; nothing for one that cannot be read."""
        document = self.desk.get(params.text_document.uri)
        if document is None:
            return None
        try:
            file = read(Source(str(document.path), document.text))
        except Failed:
            return None
        text = write(file) if document.path.suffix == ".specc" else write_yaml(file)
        if text == document.text:
            return []
        lines = self.lines(document.text)
        return [lsp.TextEdit(told.span_range(lines, 0, len(document.text)), text)]

    async def hints(self, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        """Shapes behind the names that a part of a text gives."""
        document = await self._read(params.text_document.uri)
        if document is None or document.known is None:
            return []
        lines = self.lines(document.text)
        first, last = params.range.start, params.range.end
        found = shown.hints(
            document.known,
            lines.offset(first.line, 0),
            lines.offset(last.line, last.character),
        )
        return [
            lsp.InlayHint(
                position=lsp.Position(*lines.place(hint.offset)),
                label=hint.text,
                kind=lsp.InlayHintKind.Type,
            )
            for hint in found
        ]

    async def outline(
        self, params: lsp.DocumentSymbolParams
    ) -> list[lsp.DocumentSymbol]:
        """The items of a text."""
        document = await self._read(params.text_document.uri)
        if document is None or document.known is None:
            return []
        lines = self.lines(document.text)
        return [
            lsp.DocumentSymbol(
                name=entry.name,
                kind=told.SYMBOLS.get(entry.kind, lsp.SymbolKind.Function),
                range=told.span_range(lines, entry.start, entry.end),
                selection_range=told.span_range(lines, entry.start, entry.start),
                detail=entry.detail or None,
            )
            for entry in shown.outline(document.known)
        ]

    async def actions(self, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        """The mends of messages in a part of a text, each of which was tried."""
        document = await self._read(params.text_document.uri, settled=True)
        if document is None or document.known is None:
            return []
        lines = self.lines(document.text)
        first, last = params.range.start, params.range.end
        start = lines.offset(first.line, first.character)
        end = lines.offset(last.line, last.character)
        found: list[lsp.CodeAction] = []
        for fault, edits in document.mended:
            at = told.shown_at(document.known, fault)
            if at[0] <= end and at[1] >= start:
                said = told.diagnostic(document.known, lines, fault)
                uri = document.uri
                found += [told.action(uri, lines, said, edit) for edit in edits]
        return found
