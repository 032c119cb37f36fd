"""Editor files, checked with the programs that read them: VS Code's TextMate library, the YAML
language server, and vsce.

The packages are installed by `make other-runtimes`, or are in the directory that SPECC_NODE names. Without
them the tests are skipped.
"""

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from specc.library.spec_file_lookup import get_specs_directory
from specc.syntax.dsl.lalr import load_lalr_table
from specc.syntax.dsl.unexpected_token import RESERVED_TERMINALS

pytestmark = pytest.mark.parity

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"
SCRIPT = Path(__file__).parent / "textmate_in_node.mjs"
SPECS = sorted(get_specs_directory().rglob("*.specc"))


def packages(*needed: str) -> Path:
    """Return the directory whose `node_modules` has some packages."""
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    directory = Path(os.environ.get("SPECC_NODE", ROOT / ".other-runtimes" / "node")).resolve()
    for name in needed:
        if not (directory / "node_modules" / name).is_dir():
            pytest.skip(
                f"{name} is not installed: `make other-runtimes`, or name its folder in SPECC_NODE"
            )
    return directory


@pytest.fixture(scope="module")
def scopes() -> dict[str, list[tuple[int, str, str]]]:
    """Return every token of the built-in files with its innermost scope."""
    directory = packages("vscode-textmate", "vscode-oniguruma")
    grammar = EXTENSION / "syntaxes" / "specc.tmLanguage.json"
    command = ["node", str(SCRIPT), str(directory), str(grammar), *map(str, SPECS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[tuple[int, str, str]]] = json.loads(done.stdout)
    return found


def test_every_token_has_a_scope(scopes: Any) -> None:
    plain = {
        text.strip()
        for found in scopes.values()
        for _, text, scope in found
        if scope == "source.specc"
    }
    # brackets and separators; VS Code pairs brackets by itself
    assert not [text for text in plain if any(c.isalnum() for c in text)]


def test_reserved_words_are_keywords_everywhere(scopes: Any) -> None:
    hard = {kind.lower() for kind in RESERVED_TERMINALS}
    # but parts of the paths of weights: `@ in`
    taken = ("keyword", "comment", "string", "entity.name.tag")
    outside = [
        (file, line, text, scope)
        for file, found in scopes.items()
        for line, text, scope in found
        if text in hard and not scope.startswith(taken)
    ]
    assert not outside


def test_contextual_keywords_are_keywords_somewhere(scopes: Any) -> None:
    words = {text for text in load_lalr_table().keywords if text.isalpha()}
    colored = {
        text
        for found in scopes.values()
        for _, text, scope in found
        if scope.startswith(("keyword", "support.type"))
    }
    # no built-in spec says these
    assert words - colored <= {
        "reverse",
        "where",
        "extends",
        "until",
        "pair",
        "left",
        "normalizer",
        "quantize",
        "share",
    }


def test_the_yaml_server_reads_the_schema(tmp_path: Path) -> None:
    directory = packages("yaml-language-server")
    schema = (get_specs_directory() / "schema.json").as_uri()
    text = f"# yaml-language-server: $schema={schema}\nspecc: 1\nmodel: m\nextends: vit\nconfig:\n  heads: 4\n"
    server = directory / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"
    talk = LanguageClient(["node", str(server), "--stdio"])
    try:
        talk.ask("initialize", {"processId": os.getpid(), "rootUri": None, "capabilities": {}})
        talk.tell("initialized", {})
        assert talk.messages_of(tmp_path / "a.yaml", text) == []
        (said,) = talk.messages_of(tmp_path / "b.yaml", text.replace("heads", "heds"))
        assert said["range"]["start"] == {"line": 5, "character": 8}
        assert "no config value" in said["message"]
        assert talk.messages_of(tmp_path / "c.yaml", text.replace("heads: 4", "heads: true"))
        shipped = (get_specs_directory() / "models" / "dates.yaml").read_text(encoding="utf-8")
        assert (
            talk.messages_of(
                tmp_path / "d.yaml", f"# yaml-language-server: $schema={schema}\n{shipped}"
            )
            == []
        )
    finally:
        talk.end()


class LanguageClient:
    """A synchronous client of a language server."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.count = 0

    def tell(self, method: str, params: Any, **more: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        out = self.process.stdout
        assert out is not None
        size = 0
        while (line := out.readline()).strip():
            if line.lower().startswith(b"content-length"):
                size = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(out.read(size))
        # it asks for settings, which nobody has
        if "id" in message and "method" in message:
            self.reply(message["id"])
        return message

    def reply(self, number: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": None}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def ask(self, method: str, params: Any) -> Any:
        self.count += 1
        self.tell(method, params, id=self.count)
        while (message := self.read()).get("id") != self.count or "method" in message:
            pass
        return message["result"]

    def messages_of(self, path: Path, text: str) -> list[dict[str, Any]]:
        item = {"uri": path.as_uri(), "languageId": "yaml", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": item})
        while True:
            message = self.read()
            if (
                message.get("method") == "textDocument/publishDiagnostics"
                and message["params"]["uri"] == path.as_uri()
            ):
                return list(message["params"]["diagnostics"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def test_extension_package_is_complete(tmp_path: Path) -> None:
    modules = EXTENSION / "node_modules"
    if not shutil.which("node") or not (modules / "@vscode" / "vsce").is_dir():
        pytest.skip("the extension's packages are not installed: `make other-runtimes`")
    made = tmp_path / "specc.vsix"
    command = ["npx", "vsce", "package", "--allow-missing-repository", "-o", str(made)]
    done = subprocess.run(command, cwd=EXTENSION, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(made) as packed:
        names = packed.namelist()
        schema = packed.read("extension/schemas/specc.json")
    assert schema == (get_specs_directory() / "schema.json").read_bytes()
    for name in (
        "extension.js",
        "syntaxes/specc.tmLanguage.json",
        "node_modules/vscode-languageclient/package.json",
    ):
        assert f"extension/{name}" in names
    assert not [name for name in names if "@vscode" in name]
