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
from specc.lsp.document_analysis import DocumentAnalysis
from specc.lsp.documents import OpenDocument, OpenDocuments
from specc.lsp.hover import NameMeaning, find_meaning, meaning_as_markdown
from specc.lsp.protocol import DocumentLines, split_document_lines
from specc.syntax.dsl import lexer
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_printer import print_yaml
from specc.version import __version__

REQUEST_TIMEOUT = 10.0
"""Seconds that a request waits for the analysis."""
WORD_END = re.compile(r"[A-Za-z0-9_]*$")


@dataclass(frozen=True)
class RequestHandlers:
    """`lines` counts a text as client and server have agreed."""

    desk: OpenDocuments
    lines: Callable[[str], DocumentLines]

    async def _wait_for_document(
        self, uri: str, *, is_complete: bool = False
    ) -> tuple[OpenDocument, DocumentAnalysis, DocumentLines] | None:
        """Return an open document once its first analysis, or all that is `is_complete`, is
        there.
        """
        document = self.desk.get(uri)
        if document is None:
            return None
        await asyncio.to_thread(
            self.desk.wait, uri, document.version, REQUEST_TIMEOUT, is_complete=is_complete
        )
        document = self.desk.get(uri)
        if document is None or document.known is None:
            return None
        return document, document.known, self.lines(document.text)

    async def _on_hover(
        self, params: lsp.HoverParams | lsp.DefinitionParams
    ) -> tuple[NameMeaning, DocumentAnalysis, DocumentLines] | None:
        read = await self._wait_for_document(params.text_document.uri)
        if read is None:
            return None
        _, known, lines = read
        offset = lines.offset(params.position.line, params.position.character)
        found = find_meaning(known, offset)
        return (found, known, lines) if found else None

    async def hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        """Return signature, documentation and type of the name at a position."""
        meaning = await self._on_hover(params)
        text = meaning_as_markdown(meaning[0]) if meaning else ""
        if meaning is None or not text:
            return None
        found, _, lines = meaning
        content = lsp.MarkupContent(lsp.MarkupKind.Markdown, text)
        return lsp.Hover(content, protocol.to_range(lines, found.start, found.end))

    async def definition(self, params: lsp.DefinitionParams) -> lsp.Location | None:
        """Return where the name at a position is defined."""
        meaning = await self._on_hover(params)
        if meaning is None or meaning[0].place is None:
            return None
        return protocol.to_location(*meaning[1:], meaning[0].place)

    async def complete(self, params: lsp.CompletionParams) -> lsp.CompletionList:
        """Return the completions at a position."""
        document = self.desk.get(params.text_document.uri)
        # a document that is too large only gets that error
        if document is None or len(document.text) > lexer.MAX_SPEC_BYTES:
            return lsp.CompletionList(False, [])
        # names of the last valid version are known; only the first version has to be waited for
        if document.latest_analysis is None:
            await self._wait_for_document(params.text_document.uri)
        known = document.latest_analysis
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
        """Return the edit to the canonical form; None for a text that does not parse."""
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
        """Return the shapes of the names that a range of a text binds."""
        read = await self._wait_for_document(params.text_document.uri)
        return list(inlay_hints.to_inlay_hints(*read[1:], params.range)) if read else []

    async def outline(self, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        """Return the items of a text."""
        read = await self._wait_for_document(params.text_document.uri)
        return list(protocol.to_document_symbols(*read[1:])) if read else []

    async def actions(self, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        """Return the quick fixes of messages in a range of a text, each of which was tried."""
        read = await self._wait_for_document(params.text_document.uri, is_complete=True)
        if read is None:
            return []
        document, known, lines = read
        start, end = lines.offsets(params.range)
        actions: list[lsp.CodeAction] = []
        for fault, edits in document.quick_fixes:
            at = protocol.diagnostic_span(known, fault)
            if at[0] <= end and at[1] >= start:
                said = protocol.to_diagnostic(known, lines, fault)
                actions += [protocol.to_code_action(document.uri, lines, said, e) for e in edits]
        return actions


MAX_BYTES = 64 << 20
"""Maximum size of one message."""
LONGEST_HEADER = 1 << 12


class BoundedInput(io.BytesIO):
    """A stream that ends at a message that is too long; `heard` is whether any message arrived."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream = stream
        self.ended = False
        self.heard = False

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a header line; empty at the end."""
        return b"" if self.ended else self.stream.readline(LONGEST_HEADER)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the body of a message; empty if it is too long."""
        wanted = -1 if size is None else size
        if not 0 <= wanted <= MAX_BYTES:
            self.ended = True
        self.heard = True
        return b"" if self.ended else self.stream.read(wanted)


LOGGER = logging.getLogger(__name__)
YAML_SPEC = re.compile(r"""^["']?specc["']?[ \t]*:""", re.MULTILINE)
"""Distinguishes specs from other YAML files."""
SPEC_SUFFIXES = (".specc", ".yaml", ".yml")
Params = TypeVar("Params")
Answer = TypeVar("Answer")


class SpeccLanguageServer:
    """A language server for one editor, over standard input and output."""

    def __init__(self) -> None:
        self.editor = LanguageServer(
            "specc", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Full
        )
        self.desk = OpenDocuments(self._publish_found, self._report_crash)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False
        answers = RequestHandlers(self.desk, self._get_lines)
        on = self.editor.feature
        triggers = [".", "(", ",", "=", ":", " ", "@", '"']
        on(lsp.INITIALIZED)(_make_handler(self._on_start))
        on(lsp.SHUTDOWN)(_make_handler(self._on_stop))
        on(lsp.TEXT_DOCUMENT_DID_OPEN)(_make_handler(self._on_open))
        on(lsp.TEXT_DOCUMENT_DID_CHANGE)(_make_handler(self._on_change))
        on(lsp.TEXT_DOCUMENT_DID_SAVE)(_make_handler(self._on_save))
        on(lsp.TEXT_DOCUMENT_DID_CLOSE)(_make_handler(self._on_close))
        on(lsp.TEXT_DOCUMENT_HOVER)(_run_safely(answers.hover))
        on(lsp.TEXT_DOCUMENT_DEFINITION)(_run_safely(answers.definition))
        on(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=triggers))(
            _run_safely(answers.complete)
        )
        on(lsp.TEXT_DOCUMENT_FORMATTING)(_run_safely(answers.format))
        on(lsp.TEXT_DOCUMENT_INLAY_HINT)(_run_safely(answers.hints))
        on(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)(_run_safely(answers.outline))
        on(
            lsp.TEXT_DOCUMENT_CODE_ACTION,
            lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix]),
        )(_run_safely(answers.actions))

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
            return "the editor closed the connection without `shutdown`"
        return "stdin ended before the first message; this command is started by an editor"

    # --- texts ------------------------------------------------------------------------

    def _on_start(self, params: lsp.InitializedParams) -> None:
        self.loop = asyncio.get_running_loop()

    def _on_stop(self, params: None) -> None:
        self.stopped = True
        self.desk.close()

    def _on_open(self, params: lsp.DidOpenTextDocumentParams) -> None:
        self.loop = asyncio.get_running_loop()
        self._put_text(params.text_document.uri)

    def _on_change(self, params: lsp.DidChangeTextDocumentParams) -> None:
        self._put_text(params.text_document.uri)

    def _on_save(self, params: lsp.DidSaveTextDocumentParams) -> None:
        self.desk.saved(params.text_document.uri)

    def _on_close(self, params: lsp.DidCloseTextDocumentParams) -> None:
        self.desk.drop(params.text_document.uri)
        self._publish(params.text_document.uri, [], None)

    def _put_text(self, uri: str) -> None:
        """Queue a text for analysis if it is a spec."""
        document = self.editor.workspace.get_text_document(uri)
        path = path_from_uri(uri, document.language_id or "")
        if path is None or not _is_spec(path, document.source):
            self.desk.drop(uri)
            self._publish(uri, [], document.version)
            return
        self.desk.put(uri, path, document.source, document.version or 0)

    def _get_lines(self, text: str) -> DocumentLines:
        agreed = self.editor.workspace.position_encoding
        if isinstance(agreed, lsp.PositionEncodingKind):
            return split_document_lines(text, agreed.value)
        return split_document_lines(text, agreed or "utf-16")

    # --- notifications ---------- ------------------------------------------------------

    def _publish_found(self, uri: str, version: int) -> None:
        """Publish the diagnostics of an analysis. Runs in the analysis thread."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._tell, uri, version)

    def _tell(self, uri: str, version: int) -> None:
        """Publish diagnostics, unless the text is newer."""
        document = self.desk.get(uri)
        if document is None or document.version != version or document.known is None:
            return
        lines = self._get_lines(document.text)
        self._publish(uri, protocol.to_diagnostics(document.known, lines), version)

    def _report_crash(self, uri: str, version: int, error: Exception) -> None:
        """Report an internal error. Runs in the analysis thread."""
        LOGGER.error("reading %s failed", uri, exc_info=error)
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
            source=protocol.DIAGNOSTIC_SOURCE,
        )
        self._publish(uri, [said], version)

    def _publish(self, uri: str, found: list[lsp.Diagnostic], version: int | None) -> None:
        self.editor.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri=uri, diagnostics=found, version=version)
        )


def _run_safely(
    answer: Callable[[Params], Awaitable[Answer]],
) -> Callable[[Params], Awaitable[Answer | None]]:
    """Wrap a request handler: an internal error is logged, and the answer is None."""

    @wraps(answer)
    async def answered(params: Params) -> Answer | None:
        try:
            return await answer(params)
        except Exception:
            LOGGER.exception("a request failed")
            return None

    return answered


def _make_handler(take: Callable[[Params], None]) -> Callable[[Params], None]:
    """Return a notification handler that logs errors; a function, as pygls sets attributes."""

    @wraps(take)
    def handle_notification(params: Params) -> None:
        try:
            take(params)
        except Exception:
            LOGGER.exception("a notification failed")

    return handle_notification


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
    """Return whether a text is a spec: other YAML files are opened, too."""
    if path.suffix == ".specc":
        return True
    return path.suffix in SPEC_SUFFIXES and YAML_SPEC.search(text) is not None
