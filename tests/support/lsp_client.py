"""A minimal language client: speaks the Language Server Protocol over pipes, independently of the
server's library.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Message = dict[str, Any]


class LspClient:
    """A running server and the messages received so far."""

    def __init__(self, directory: Path, encodings: list[str] | None = None) -> None:
        self.directory = directory
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "backends")])}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specc", "lsp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=env,
        )
        self.messages: queue.Queue[Message | None] = queue.Queue()
        self.published: list[Message] = []
        self.request_count = 0
        self.errors = b""
        self.threads = [
            threading.Thread(target=heard, daemon=True) for heard in (self._listen, self._log)
        ]
        for thread in self.threads:
            thread.start()
        general = {"positionEncodings": encodings} if encodings else {}
        self.ready = self.request(
            "initialize",
            {"processId": os.getpid(), "rootUri": None, "capabilities": {"general": general}},
        )
        self.notify("initialized", {})

    def _listen(self) -> None:
        out = self.process.stdout
        assert out is not None
        while line := out.readline():
            size = int(line.split(b":")[1])
            assert out.readline() == b"\r\n" or out.readline() == b"\r\n"
            self.messages.put(json.loads(out.read(size)))
        self.messages.put(None)

    def _log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send_message(self, message: Mapping[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self.send_message({"method": method, "params": params})

    def request(self, method: str, params: Any) -> Any:
        """Send a request and return its result. Fails if the server responds with an error."""
        answer = self.send_request(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    def send_request(self, method: str, params: Any) -> Message:
        """Send a request and return the response."""
        self.request_count += 1
        number = self.request_count
        self.send_message({"id": number, "method": method, "params": params})
        return self._read_until(lambda m: m.get("id") == number and "method" not in m)

    def _read_until(self, predicate: Callable[[Message], bool]) -> Message:
        while True:
            message = self.messages.get(timeout=60)
            assert message is not None, f"the server went away: {self.errors.decode()}"
            if message.get("method") == "textDocument/publishDiagnostics":
                self.published.append(message["params"])
            if predicate(message):
                return message

    def uri(self, name: str) -> str:
        return name if ":" in name else (self.directory / name).as_uri()

    def open(self, name: str, text: str, language: str = "specc") -> list[Message]:
        """Open a document and return its diagnostics."""
        uri = self.uri(name)
        item = {"uri": uri, "languageId": language, "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return self.diagnostics(name, 1)

    def change(self, name: str, text: str, version: int) -> None:
        self.notify(
            "textDocument/didChange",
            {
                "textDocument": {"uri": self.uri(name), "version": version},
                "contentChanges": [{"text": text}],
            },
        )

    def diagnostics(self, name: str, version: int) -> list[Message]:
        """Return the published diagnostics of a document version."""
        uri = self.uri(name)
        for published in self.published:
            if published["uri"] == uri and published.get("version") == version:
                return list(published["diagnostics"])
        found = self._read_until(
            lambda m: (
                m.get("method") == "textDocument/publishDiagnostics"
                and m["params"]["uri"] == uri
                and m["params"].get("version") == version
            )
        )
        return list(found["params"]["diagnostics"])

    def request_at(self, method: str, name: str, text: str, marker_text: str, **more: Any) -> Any:
        """Send a request for the position that `^` marks in `marked`, a part of the text."""
        piece = marker_text.replace("^", "")
        assert text.count(piece) == 1, piece
        offset = text.index(piece) + marker_text.index("^")
        line = text.count("\n", 0, offset)
        column = len(text[text.rfind("\n", 0, offset) + 1 : offset].encode("utf-16-le")) // 2
        position = {"line": line, "character": column}
        document = {"uri": self.uri(name)}
        return self.request(
            f"textDocument/{method}", {"textDocument": document, "position": position, **more}
        )

    def close(self) -> int:
        """Send `shutdown` and `exit`, and return the exit status."""
        self.request("shutdown", None)
        self.notify("exit", None)
        return self.wait_for_exit(20)

    def wait_for_exit(self, seconds: float) -> int:
        """Return the exit status of a server that should exit within `seconds`."""
        try:
            return self.process.wait(timeout=seconds)
        finally:
            self.process.kill()
            for thread in self.threads:
                thread.join()
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()
