"""The language server: protocol requests and bounded standard input."""

import asyncio
import io
import logging
import re
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from specc.lsp import protocol
from specc.lsp.documents import OpenDocuments
from specc.lsp.protocol import DocumentLines, split_document_lines
from specc.lsp.request_handlers import RequestHandlers
from specc.version import __version__

MOST_BYTES = 64 << 20
"""Bytes of one message."""
LONGEST_HEADER = 1 << 12


class BoundedInput(io.BytesIO):
    """A stream that ends where a message is too long: what follows could not be told
    from what was promised. `heard` says whether a message ever came.
    """

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
        """Serve until the editor says `exit` or goes away; how the latter came, empty
        where it took its leave.
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
    """A notification taken; a bug of ours is logged. pygls writes on what it is given,
    and on a method it cannot.
    """

    @wraps(take)
    def heard(params: Params) -> None:
        try:
            take(params)
        except Exception:
            LOG.exception("a notification failed")

    return heard


def path_from_uri(uri: str, language: str) -> Path | None:
    """Where a text will lie. One that is in no file yet is as if in the folder that the
    server runs in; None for an address that no file can have.
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
