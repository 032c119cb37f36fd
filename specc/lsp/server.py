"""The language server: request and notification handlers, and input with a message size limit."""

import asyncio
import io
import logging
import re
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.lsp import dsl_completion, yaml_completion
from specc.lsp import protocol_and_inlay_hints as protocol
from specc.lsp.document_analysis import DocumentAnalysis
from specc.lsp.documents import DocumentLines, OpenDocument, OpenDocuments, split_document_lines
from specc.lsp.hover import HoverInfo, find_hover_info, format_hover
from specc.syntax.dsl import dsl_lexer
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_printer import format_yaml
from specc.version import __version__

REQUEST_TIMEOUT = 10.0
"""Maximum time in seconds that a request waits for the analysis."""
WORD_END = re.compile(r"[A-Za-z0-9_]*$")


@immutable_dataclass
class RequestHandlers:
    """Handlers of LSP requests. `split_lines` uses the negotiated position encoding."""

    documents: OpenDocuments
    split_lines: Callable[[str], DocumentLines]

    async def _wait_for_document(
        self, uri: str, *, is_complete: bool = False
    ) -> tuple[OpenDocument, DocumentAnalysis, DocumentLines] | None:
        """Return an open document after the analysis of its first graph or, if `is_complete` is
        True, of all graphs.
        """
        document = self.documents.get_document(uri)
        if document is None:
            return None
        await asyncio.to_thread(
            self.documents.wait_for_analysis,
            uri,
            document.version,
            REQUEST_TIMEOUT,
            is_complete=is_complete,
        )
        document = self.documents.get_document(uri)
        if document is None or document.analysis is None:
            return None
        return document, document.analysis, self.split_lines(document.text)

    async def _find_hover(
        self, params: lsp.HoverParams | lsp.DefinitionParams
    ) -> tuple[HoverInfo, DocumentAnalysis, DocumentLines] | None:
        """Return the hover at a position with the document's analysis and lines, or None."""
        document_state = await self._wait_for_document(params.text_document.uri)
        if document_state is None:
            return None
        _, analysis, lines = document_state
        offset = lines.get_offset(params.position.line, params.position.character)
        hover = find_hover_info(analysis, offset)
        return (hover, analysis, lines) if hover else None

    async def handle_hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        """Return the signature, documentation and type of the name at a position."""
        hover = await self._find_hover(params)
        text = format_hover(hover[0]) if hover else ""
        if hover is None or not text:
            return None
        info, _, lines = hover
        content = lsp.MarkupContent(lsp.MarkupKind.Markdown, text)
        return lsp.Hover(content, protocol.to_lsp_range(lines, info.start_offset, info.end_offset))

    async def handle_definition(self, params: lsp.DefinitionParams) -> lsp.Location | None:
        """Return the location of the definition of the name at a position."""
        hover = await self._find_hover(params)
        if hover is None or hover[0].definition is None:
            return None
        return protocol.to_lsp_location(*hover[1:], hover[0].definition)

    async def handle_completion(self, params: lsp.CompletionParams) -> lsp.CompletionList:
        """Return the completions at a position."""
        document = self.documents.get_document(params.text_document.uri)
        # a document over the size limit gets only the diagnostic E0109, and no completions
        if document is None or len(document.text) > dsl_lexer.MAX_SPEC_BYTES:
            return lsp.CompletionList(False, [])
        # wait only if no version has been analyzed yet, because otherwise the names of the last
        # valid version suffice
        if document.latest_analysis is None:
            await self._wait_for_document(params.text_document.uri)
        analysis = document.latest_analysis
        if analysis is None:
            return lsp.CompletionList(False, [])
        lines = self.split_lines(document.text)
        offset = lines.get_offset(params.position.line, params.position.character)
        word = WORD_END.search(document.text[:offset])
        start = word.start() if word else offset
        find_completions = (
            yaml_completion.complete_yaml
            if analysis.syntax == "yaml"
            else dsl_completion.complete_dsl
        )
        completions = find_completions(analysis, document.text, offset)
        items = protocol.to_lsp_completion_items(completions, lines, start, offset)
        return lsp.CompletionList(False, items)

    async def handle_formatting(
        self, params: lsp.DocumentFormattingParams
    ) -> list[lsp.TextEdit] | None:
        """Return the edits that format a document, or None if the document has a syntax error."""
        document = self.documents.get_document(params.text_document.uri)
        if document is None:
            return None
        try:
            file = parse_spec(Source(str(document.path), document.text))
        except SpeccError:
            return None
        text = format_dsl(file) if document.path.suffix == ".specc" else format_yaml(file)
        if text == document.text:
            return []
        lines = self.split_lines(document.text)
        return [lsp.TextEdit(protocol.to_lsp_range(lines, 0, len(document.text)), text)]

    async def handle_inlay_hints(self, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        """Return the inlay hints of a range, which show the shapes of the names that the document
        binds.
        """
        document_state = await self._wait_for_document(params.text_document.uri)
        return (
            list(protocol.to_lsp_inlay_hints(*document_state[1:], params.range))
            if document_state
            else []
        )

    async def handle_document_symbols(
        self, params: lsp.DocumentSymbolParams
    ) -> list[lsp.DocumentSymbol]:
        """Return the document symbols, which are the items of a spec."""
        document_state = await self._wait_for_document(params.text_document.uri)
        return list(protocol.to_lsp_document_symbols(*document_state[1:])) if document_state else []

    async def handle_code_actions(self, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        """Return the quick fixes of the diagnostics in a range of a document."""
        document_state = await self._wait_for_document(params.text_document.uri, is_complete=True)
        if document_state is None:
            return []
        document, analysis, lines = document_state
        start, end = lines.get_offsets(params.range)
        actions: list[lsp.CodeAction] = []
        for diagnostic, edits in document.quick_fixes:
            diagnostic_span = protocol.find_diagnostic_span(analysis, diagnostic)
            if diagnostic_span[0] <= end and diagnostic_span[1] >= start:
                lsp_diagnostic = protocol.to_lsp_diagnostic(analysis, lines, diagnostic)
                actions += [
                    protocol.to_lsp_code_action(document.uri, lines, lsp_diagnostic, e)
                    for e in edits
                ]
        return actions


MAX_BYTES = 64 << 20
"""Maximum size of one message in bytes."""
LONGEST_HEADER = 1 << 12


class BoundedInput(io.BytesIO):
    """An input stream that ends before a message larger than MAX_BYTES bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream = stream
        self.has_ended = False
        self.has_received = False

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line of a message header, or "" at the end of the stream."""
        return b"" if self.has_ended else self.stream.readline(LONGEST_HEADER)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the body of a message, or "" if the message is too long."""
        count = -1 if size is None else size
        if not 0 <= count <= MAX_BYTES:
            self.has_ended = True
        self.has_received = True
        return b"" if self.has_ended else self.stream.read(count)


LOGGER = logging.getLogger(__name__)
YAML_SPEC = re.compile(r"""^["']?specc["']?[ \t]*:""", re.MULTILINE)
"""The pattern of the key `specc`, which distinguishes YAML specs from other YAML files."""
SPEC_SUFFIXES = (".specc", ".yaml", ".yml")
Params = TypeVar("Params")
Result = TypeVar("Result")


class SpeccLanguageServer:
    """A language server for one editor, over stdin and stdout."""

    def __init__(self) -> None:
        self.editor = LanguageServer(
            "specc", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Full
        )
        self.documents = OpenDocuments(self._publish_results, self._report_crash)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_stopped = False
        handlers = RequestHandlers(self.documents, self._get_lines)
        register = self.editor.feature
        triggers = [".", "(", ",", "=", ":", " ", "@", '"']
        notifications: dict[str, Callable[[Any], None]] = {
            lsp.INITIALIZED: self._on_start,
            lsp.SHUTDOWN: self._on_stop,
            lsp.TEXT_DOCUMENT_DID_OPEN: self._on_text,
            lsp.TEXT_DOCUMENT_DID_CHANGE: self._on_text,
            lsp.TEXT_DOCUMENT_DID_SAVE: self._on_save,
            lsp.TEXT_DOCUMENT_DID_CLOSE: self._on_close,
        }
        for feature, on_notification in notifications.items():
            register(feature)(_make_handler(on_notification))
        options = {
            lsp.TEXT_DOCUMENT_COMPLETION: lsp.CompletionOptions(trigger_characters=triggers),
            lsp.TEXT_DOCUMENT_CODE_ACTION: lsp.CodeActionOptions(
                code_action_kinds=[lsp.CodeActionKind.QuickFix]
            ),
        }
        requests: dict[str, Callable[[Any], Awaitable[object]]] = {
            lsp.TEXT_DOCUMENT_HOVER: handlers.handle_hover,
            lsp.TEXT_DOCUMENT_DEFINITION: handlers.handle_definition,
            lsp.TEXT_DOCUMENT_COMPLETION: handlers.handle_completion,
            lsp.TEXT_DOCUMENT_FORMATTING: handlers.handle_formatting,
            lsp.TEXT_DOCUMENT_INLAY_HINT: handlers.handle_inlay_hints,
            lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL: handlers.handle_document_symbols,
            lsp.TEXT_DOCUMENT_CODE_ACTION: handlers.handle_code_actions,
        }
        for feature, on_request in requests.items():
            register(feature, options.get(feature))(_run_safely(on_request))

    def serve(self, stdin: BinaryIO, stdout: BinaryIO) -> str:
        """Serve an editor until `exit` or the end of input. Return "" or an error message."""
        stdin = BoundedInput(stdin)
        self.editor.start_io(stdin, stdout)
        self.documents.close()
        if self.is_stopped:
            return ""
        if stdin.has_received:
            return "the editor closed the connection without `shutdown`"
        return "stdin ended before the first message; editors start this command"

    # --- documents ------------------------------------------------------------------------

    def _on_start(self, params: lsp.InitializedParams) -> None:
        self.loop = asyncio.get_running_loop()

    def _on_stop(self, params: None) -> None:
        self.is_stopped = True
        self.documents.close()

    def _on_text(
        self, params: lsp.DidOpenTextDocumentParams | lsp.DidChangeTextDocumentParams
    ) -> None:
        """Queue the new text of a document for analysis if the document is a spec."""
        self.loop = asyncio.get_running_loop()
        uri = params.text_document.uri
        document = self.editor.workspace.get_text_document(uri)
        path = convert_uri_to_path(uri, document.language_id or "")
        if path is None or not _is_spec(path, document.source):
            self.documents.remove_document(uri)
            self._publish_diagnostics(uri, [], document.version)
            return
        self.documents.set_text(uri, path, document.source, document.version or 0)

    def _on_save(self, params: lsp.DidSaveTextDocumentParams) -> None:
        self.documents.reanalyze_other_documents(params.text_document.uri)

    def _on_close(self, params: lsp.DidCloseTextDocumentParams) -> None:
        self.documents.remove_document(params.text_document.uri)
        self._publish_diagnostics(params.text_document.uri, [], None)

    def _get_lines(self, text: str) -> DocumentLines:
        """Split a text into lines, with the position encoding that the editor has negotiated."""
        encoding = self.editor.workspace.position_encoding or "utf-16"
        if isinstance(encoding, lsp.PositionEncodingKind):
            encoding = encoding.value
        return split_document_lines(text, encoding)

    # --- notifications ----------------------------------------------------------------

    def _publish_results(self, uri: str, version: int) -> None:
        """Publish the diagnostics of an analysis. The analysis thread calls this method."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._publish_latest_results, uri, version)

    def _publish_latest_results(self, uri: str, version: int) -> None:
        """Publish the diagnostics of a document version unless a newer version exists."""
        document = self.documents.get_document(uri)
        if document is None or document.version != version or document.analysis is None:
            return
        lines = self._get_lines(document.text)
        analysis = document.analysis
        lsp_diagnostics = [
            protocol.to_lsp_diagnostic(analysis, lines, d) for d in analysis.diagnostics
        ]
        self._publish_diagnostics(uri, lsp_diagnostics, version)

    def _report_crash(self, uri: str, version: int, error: Exception) -> None:
        """Report an internal error of the analysis. The analysis thread calls this method."""
        LOGGER.error("reading %s failed", uri, exc_info=error)
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._publish_crash, uri, version, error)

    def _publish_crash(self, uri: str, version: int, error: Exception) -> None:
        """Publish an internal error of the analysis as E0969 at the start of the document."""
        start = lsp.Position(0, 0)
        title = f"internal error: {type(error).__name__}"
        lsp_diagnostic = lsp.Diagnostic(
            range=lsp.Range(start, start),
            message=f"{title}; this is a bug in specc, please report it with the spec",
            severity=lsp.DiagnosticSeverity.Error,
            code="E0969",
            source=protocol.DIAGNOSTIC_SOURCE,
        )
        self._publish_diagnostics(uri, [lsp_diagnostic], version)

    def _publish_diagnostics(
        self, uri: str, diagnostics: list[lsp.Diagnostic], version: int | None
    ) -> None:
        """Publish the diagnostics of a document version, replacing those of earlier versions."""
        self.editor.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri=uri, diagnostics=diagnostics, version=version)
        )


def _run_safely(
    handler: Callable[[Params], Awaitable[Result]],
) -> Callable[[Params], Awaitable[Result | None]]:
    """Wrap a request handler so that internal errors are logged and the result is None."""

    @wraps(handler)
    async def handle_request(params: Params) -> Result | None:
        try:
            return await handler(params)
        except Exception:
            LOGGER.exception("a request failed")
            return None

    return handle_request


def _make_handler(handler: Callable[[Params], None]) -> Callable[[Params], None]:
    """Wrap a handler in a function that logs errors. pygls sets attributes on this function."""

    @wraps(handler)
    def handle_notification(params: Params) -> None:
        try:
            handler(params)
        except Exception:
            LOGGER.exception("a notification failed")

    return handle_notification


def convert_uri_to_path(uri: str, language_id: str) -> Path | None:
    """Return the path of a document, or None if the URI is invalid. If a document has no file, its
    path is `untitled` in the working directory, with a suffix that depends on `language_id`.
    """
    parts = urlsplit(uri)
    name = unquote(parts.path)
    if parts.scheme != "file":
        suffix = ".yaml" if language_id == "yaml" else ".specc"
        return Path.cwd() / f"untitled{suffix}"
    if "\0" in name:
        return None
    # on Windows, the path in a URI begins with a slash, as in `/c:/models`
    if sys.platform == "win32":
        name = name.lstrip("/")
    return Path(name)


def _is_spec(path: Path, text: str) -> bool:
    """Return True if a document is a spec rather than another YAML file."""
    if path.suffix == ".specc":
        return True
    return path.suffix in SPEC_SUFFIXES and YAML_SPEC.search(text) is not None
