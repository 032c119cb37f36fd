"""The language server: protocol requests, their answers, and bounded standard input."""

import asyncio
import io
import logging
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from specc.diagnostics.diagnostic import Failed
from specc.diagnostics.source import Source
from specc.lsp import dsl_completion, inlay_hints, protocol, yaml_completion
from specc.lsp.documents import OpenDocument, OpenDocuments
from specc.lsp.hover import find_meaning
from specc.lsp.protocol import DocumentLines, split_document_lines
from specc.syntax import source_limits
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_printer import print_yaml
from specc.version import __version__

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


MOST_BYTES = 64 << 20
"""Bytes of one message."""
LONGEST_HEADER = 1 << 12


class BoundedInput(io.BytesIO):
    """A stream that ends at a message that is too long; `heard` is whether any message came."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream = stream
        self.ended = False
        self.heard = False

    def readline(self, size: int | None = -1, /) -> bytes:
        """A line of a header; nothing behind the end."""
        return b"" if self.ended else self.stream.readline(LONGEST_HEADER)

    def read(self, size: int | None = -1, /) -> bytes:
        """The body of a message; nothing for one that is too long."""
        wanted = -1 if size is None else size
        if not 0 <= wanted <= MOST_BYTES:
            self.ended = True
        self.heard = True
        return b"" if self.ended else self.stream.read(wanted)


LOG = logging.getLogger(__name__)
YAML_SPEC = re.compile(r"""^["']?specc["']?[ \t]*:""", re.MULTILINE)
"""What tells a spec from any other YAML file."""
SUFFIXES = (".specc", ".yaml", ".yml")
Params = TypeVar("Params")
Answer = TypeVar("Answer")


class SpeccLanguageServer:
    """One editor that is served."""

    def __init__(self) -> None:
        self.editor = LanguageServer(
            "specc", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Full
        )
        self.desk = OpenDocuments(self._found, self._broke)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False
        answers = RequestHandlers(self.desk, self._lines)
        on = self.editor.feature
        triggers = [".", "(", ",", "=", ":", " ", "@", '"']
        on(lsp.INITIALIZED)(_heard(self._started))
        on(lsp.SHUTDOWN)(_heard(self._stopped))
        on(lsp.TEXT_DOCUMENT_DID_OPEN)(_heard(self._opened))
        on(lsp.TEXT_DOCUMENT_DID_CHANGE)(_heard(self._changed))
        on(lsp.TEXT_DOCUMENT_DID_SAVE)(_heard(self._saved))
        on(lsp.TEXT_DOCUMENT_DID_CLOSE)(_heard(self._closed))
        on(lsp.TEXT_DOCUMENT_HOVER)(_safe(answers.hover))
        on(lsp.TEXT_DOCUMENT_DEFINITION)(_safe(answers.definition))
        on(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=triggers))(
            _safe(answers.complete)
        )
        on(lsp.TEXT_DOCUMENT_FORMATTING)(_safe(answers.format))
        on(lsp.TEXT_DOCUMENT_INLAY_HINT)(_safe(answers.hints))
        on(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)(_safe(answers.outline))
        on(
            lsp.TEXT_DOCUMENT_CODE_ACTION,
            lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix]),
        )(_safe(answers.actions))

    def serve(self, given: BinaryIO, taken: BinaryIO) -> str:
        """Serve until `exit` or the end of input; return why it ended without `shutdown`, else
        "".
        """
        stdin = BoundedInput(given)
        self.editor.start_io(stdin, taken)
        self.desk.close()
        if self.stopped:
            return ""
        if stdin.heard:
            return "the editor went away without saying `shutdown`"
        return "stdin ended before a message came; an editor starts this command"

    # --- texts ------------------------------------------------------------------------

    def _started(self, params: lsp.InitializedParams) -> None:
        self.loop = asyncio.get_running_loop()

    def _stopped(self, params: None) -> None:
        self.stopped = True
        self.desk.close()

    def _opened(self, params: lsp.DidOpenTextDocumentParams) -> None:
        self.loop = asyncio.get_running_loop()
        self._put(params.text_document.uri)

    def _changed(self, params: lsp.DidChangeTextDocumentParams) -> None:
        self._put(params.text_document.uri)

    def _saved(self, params: lsp.DidSaveTextDocumentParams) -> None:
        self.desk.saved(params.text_document.uri)

    def _closed(self, params: lsp.DidCloseTextDocumentParams) -> None:
        self.desk.drop(params.text_document.uri)
        self._publish(params.text_document.uri, [], None)

    def _put(self, uri: str) -> None:
        """Have a text read, if it is a spec."""
        document = self.editor.workspace.get_text_document(uri)
        path = path_from_uri(uri, document.language_id or "")
        if path is None or not _is_spec(path, document.source):
            self.desk.drop(uri)
            self._publish(uri, [], document.version)
            return
        self.desk.put(uri, path, document.source, document.version or 0)

    def _lines(self, text: str) -> DocumentLines:
        agreed = self.editor.workspace.position_encoding
        if isinstance(agreed, lsp.PositionEncodingKind):
            return split_document_lines(text, agreed.value)
        return split_document_lines(text, agreed or "utf-16")

    # --- what the desk tells ----------------------------------------------------------

    def _found(self, uri: str, version: int) -> None:
        """Called by the thread that reads."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._tell, uri, version)

    def _tell(self, uri: str, version: int) -> None:
        """Publish what was found, unless a newer text has come."""
        document = self.desk.get(uri)
        if document is None or document.version != version or document.known is None:
            return
        lines = self._lines(document.text)
        self._publish(uri, protocol.to_diagnostics(document.known, lines), version)

    def _broke(self, uri: str, version: int, error: Exception) -> None:
        """Called by the thread that reads, for a bug of ours."""
        LOG.error("reading %s failed", uri, exc_info=error)
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._tell_bug, uri, version, error)

    def _tell_bug(self, uri: str, version: int, error: Exception) -> None:
        start = lsp.Position(0, 0)
        text = (
            f"specc stopped in the middle of this text: {type(error).__name__}; this is "
            "a bug in specc, please report it with the text"
        )
        said = lsp.Diagnostic(
            range=lsp.Range(start, start),
            message=text,
            severity=lsp.DiagnosticSeverity.Error,
            code="E0969",
            source=protocol.SOURCE,
        )
        self._publish(uri, [said], version)

    def _publish(self, uri: str, found: list[lsp.Diagnostic], version: int | None) -> None:
        self.editor.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri=uri, diagnostics=found, version=version)
        )


def _safe(
    answer: Callable[[Params], Awaitable[Answer]],
) -> Callable[[Params], Awaitable[Answer | None]]:
    """The same, where a bug of ours is logged and gives no answer."""

    @wraps(answer)
    async def answered(params: Params) -> Answer | None:
        try:
            return await answer(params)
        except Exception:
            LOG.exception("a request failed")
            return None

    return answered


def _heard(take: Callable[[Params], None]) -> Callable[[Params], None]:
    """Return a notification handler that logs errors; a function, as pygls sets attributes."""

    @wraps(take)
    def heard(params: Params) -> None:
        try:
            take(params)
        except Exception:
            LOG.exception("a notification failed")

    return heard


def path_from_uri(uri: str, language: str) -> Path | None:
    """Return the path of a document, `untitled` for one without a file; None for an invalid
    address.
    """
    parts = urlsplit(uri)
    name = unquote(parts.path)
    if parts.scheme != "file":
        ending = ".yaml" if language == "yaml" else ".specc"
        return Path.cwd() / f"untitled{ending}"
    if "\0" in name:
        return None
    # `/c:/models` on Windows
    if sys.platform == "win32":
        name = name.lstrip("/")
    return Path(name)


def _is_spec(path: Path, text: str) -> bool:
    """Whether a text is one of ours: other YAML files are opened, too."""
    if path.suffix == ".specc":
        return True
    return path.suffix in SUFFIXES and YAML_SPEC.search(text) is not None
