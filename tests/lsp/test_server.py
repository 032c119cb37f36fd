"""The language server as a process with messages over pipes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.lsp_client import LspClient

pytestmark = pytest.mark.skipif(not find_spec("pygls"), reason="needs the extra lsp")

SPEC = """specc 1
model m

config {
  d: int = 8 "the width"
}

dims b, n

mask near(back: int) "close rows" = i - j < back

block twice(x: float[b, n, d]) -> float[b, n, d] {
  "two maps"
  y = linear(x, out=d) @ one
  return linear(y, out=d) @ two
}

graph g(x: float[b, n, d]) -> (z: float[b, n, d]) {
  h = twice(x) @ maps
  a = attend(h, h, h, mask=near(3))
  return layer_norm(a, eps=1e-5) @ norm
}
"""
YAML = """specc: 1
model: mine
extends: luong
config:
  embed_dim: 8
  attention_type: local_p
"""


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LspClient]:
    """Start a server; close it at the end without errors."""
    made = LspClient(tmp_path_factory.mktemp("specs"))
    yield made
    assert made.close() == 0
    assert not made.errors


@pytest.fixture(scope="module")
def editor_with_errors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LspClient]:
    """Start a server that may log errors; the log is read on another thread, at any time."""
    made = LspClient(tmp_path_factory.mktemp("specs"))
    yield made
    assert made.close() == 0


@pytest.fixture
def opened(editor: LspClient) -> Iterator[LspClient]:
    """The editor with SPEC open."""
    assert editor.open("a.specc", SPEC) == []
    yield editor
    editor.notify("textDocument/didClose", {"textDocument": {"uri": editor.uri("a.specc")}})
    editor.published.clear()


def request_hover(editor: LspClient, marked: str, name: str = "a.specc", text: str = SPEC) -> str:
    found = editor.request_at("hover", name, text, marked)
    return "" if found is None else str(found["contents"]["value"])


def completion_labels(found: Any) -> list[str]:
    return [item["label"] for item in found["items"]]


def full_range(editor: LspClient, name: str) -> dict[str, Any]:
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    return {"textDocument": {"uri": editor.uri(name)}, "range": whole}


def test_diagnostic_appears_and_disappears(opened: LspClient) -> None:
    opened.change("a.specc", SPEC.replace("twice(x)", "twise(x)"), 2)
    (said,) = opened.diagnostics("a.specc", 2)
    assert said["code"] == "E0204"
    assert said["range"]["start"] == {"line": 18, "character": 6}
    assert said["range"]["end"] == {"line": 18, "character": 11}
    assert "did you mean `twice`?" in said["message"]
    opened.change("a.specc", SPEC, 3)
    assert opened.diagnostics("a.specc", 3) == []


def test_columns_in_utf_16(opened: LspClient) -> None:
    wide = SPEC.replace('"two maps"\n  y = linear(x, out', '"𝔁𝔁" y = linear(x, uot')
    opened.change("a.specc", wide, 2)
    (said,) = opened.diagnostics("a.specc", 2)
    line = wide.split("\n")[said["range"]["start"]["line"]]
    units = line.encode("utf-16-le")
    start, end = (said["range"][side]["character"] * 2 for side in ("start", "end"))
    assert units[start:end].decode("utf-16-le") == "uot"


def test_hover_shapes_signatures_and_docs(opened: LspClient) -> None:
    assert "`float[b, n, d]`" in request_hover(opened, "^h = twice")
    assert "`float[b, n, 8]`" in request_hover(opened, "twice(^x)")
    assert "two maps" in request_hover(opened, "h = tw^ice")
    assert "the width" in request_hover(opened, "linear(x, out=^d)")
    assert "eps=" in request_hover(opened, "^layer_norm")
    assert "close rows" in request_hover(opened, "mask=^near")
    assert "dynamic length" in request_hover(opened, "dims b, ^n")
    assert "decided" not in request_hover(opened, "^return layer_norm")
    assert request_hover(opened, "model ^m") == ""


def test_definitions_in_the_file_and_in_std(opened: LspClient) -> None:
    def find_definition(marked: str) -> tuple[str, int]:
        found = opened.request_at("definition", "a.specc", SPEC, marked)
        return Path(found["uri"]).name, found["range"]["start"]["line"]

    assert find_definition("h = ^twice") == ("a.specc", 11)
    assert find_definition("mask=^near") == ("a.specc", 9)
    assert find_definition("attend(^h") == ("a.specc", 18)
    assert find_definition("linear(x, out=^d)") == ("a.specc", 4)
    text = SPEC.replace("near(3)", "causal")
    opened.change("a.specc", text, 2)
    found = opened.request_at("definition", "a.specc", text, "mask=^causal")
    assert found["uri"].endswith("/std/masks.specc")


INPUTS_SPEC = """specc 1
model m

dims b, n

inputs {
  ids: int[b, n]
  keep: keep[b, n] right = ids != 0
}

graph g(ids, keep) -> (z: int[b, n]) {
  return ids + positions(keep)
}

graph h(ids) -> (z: int[b, n]) {
  return ids
}
"""


def test_section_inputs(editor: LspClient) -> None:
    name = "inputs.specc"

    def find_line(marked: str) -> int:
        found = editor.request_at("definition", name, INPUTS_SPEC, marked)
        return int(found["range"]["start"]["line"])

    (editor.directory / name).write_text(INPUTS_SPEC)
    assert editor.open(name, INPUTS_SPEC) == []
    parameter_hover = request_hover(editor, "graph g(ids, ^keep", name, INPUTS_SPEC)
    assert "keep: keep[b, n] right = ids != 0" in parameter_hover
    assert "keep: keep[b, n] right" in request_hover(editor, "  ^keep: keep", name, INPUTS_SPEC)
    assert "ids: int[b, n]" in request_hover(editor, "right = ^ids", name, INPUTS_SPEC)
    assert "several graphs" in request_hover(editor, "^inputs {", name, INPUTS_SPEC)
    assert [find_line(m) for m in ("right = ^ids", "graph h(^ids", "^ids +")] == [6, 6, 10]
    unfinished = INPUTS_SPEC.replace("graph h(ids", "graph h(ids, ")
    editor.change(name, unfinished, 2)
    found = editor.request_at("completion", name, unfinished, "graph h(ids, ^")
    assert completion_labels(found) == ["keep"]
    editor.change(name, INPUTS_SPEC, 3)
    derived = "specc 1\nmodel m\nextends inputs\ninputs { ke }\n"
    editor.open("derived.specc", derived.replace("ke", "keep: keep[b, n]"))
    editor.change("derived.specc", derived, 2)
    found = editor.request_at("completion", "derived.specc", derived, "{ ke^")
    assert completion_labels(found)[:2] == ["ids", "keep"]


def test_completion_by_context(opened: LspClient) -> None:
    def complete_after_edit(before: str, after: str, marked: str, version: int) -> list[str]:
        assert before in SPEC
        text = SPEC.replace(before, after)
        opened.change("a.specc", text, version)
        return completion_labels(opened.request_at("completion", "a.specc", text, marked))

    inside = complete_after_edit("twice(x) @ maps", "twice(", "h = twice(^", 2)
    assert {"x", "linear", "d", "n"} <= set(inside)
    assert "block" not in inside
    assert {"q", "mask", "scale"} <= set(
        complete_after_edit("h, mask=near(3))", "h, ", "h, h, ^", 3)
    )
    items = complete_after_edit("dims b, n\n", "dims b, n\n\n", "n\n^\n", 4)
    assert {"graph", "weights"} <= set(items)
    assert "h" not in items
    types = complete_after_edit("d: int = 8", "d: ", "d: ^ ", 5)
    assert {"int", "float", "choice"} <= set(types)
    assert "linear" not in types
    begun = complete_after_edit("h = twice", "h = twi", "h = twi^", 6)
    assert "twice" in begun


@pytest.mark.parametrize(
    ("item", "word"),
    [
        ("reading {\n  ^\n}", "x"),
        ("quantize {\n  ^\n}", "exclude"),
        ("weights {\n  ^\n}", "tie"),
        ("block b(x: ^", "float"),
        ("mask m(n) = ^", "i"),
        ("score s = sinusoid(x, dim=8, layout=^", "interleaved"),
    ],
)
def test_completion_inside_items(editor: LspClient, item: str, word: str) -> None:
    assert editor.open("d.specc", SPEC) == []
    text = SPEC + "\n" + item.replace("^", "")
    editor.change("d.specc", text, 2)
    found = completion_labels(
        editor.request_at("completion", "d.specc", text, "}\n\n" + item.split("\n}")[0])
    )
    assert word in found
    editor.published.clear()


def test_completion_in_an_unfinished_block(opened: LspClient) -> None:
    grown = SPEC.replace(
        "  return layer_norm(a, eps=1e-5) @ norm\n}\n", "  # so\n" * 20 + "  return layer_norm("
    )
    opened.change("a.specc", grown, 2)
    found = completion_labels(opened.request_at("completion", "a.specc", grown, "layer_norm(^"))
    assert {"h", "a", "x"} <= set(found)
    # local names before built-in functions
    assert found.index("h") < found.index("not")


def test_completion_in_yaml(editor: LspClient) -> None:
    assert editor.open("b.yaml", YAML, "yaml") == []
    text = YAML + "  \n"
    editor.change("b.yaml", text, 2)
    assert {"hidden", "score", "vocab"} <= set(
        completion_labels(editor.request_at("completion", "b.yaml", text, "local_p\n  ^\n"))
    )
    assert "local_m" in completion_labels(
        editor.request_at("completion", "b.yaml", text, "attention_type: ^local_p")
    )
    text = YAML.replace("luong", "lu")
    editor.change("b.yaml", text, 3)
    assert "luong" in completion_labels(
        editor.request_at("completion", "b.yaml", text, "extends: lu^")
    )


def test_completion_in_an_unfinished_yaml_block(editor: LspClient) -> None:
    text = "specc: 1\nmodel: m\ndims: [b, n]\nitems:\n  - graph: g\n    in: {x: 'float[b, n]'}\n    out: {y: 'float[b, n]'}\n    do:\n      - h: relu(x)\n      - return: h\n"
    assert editor.open("e.yaml", text, "yaml") == []
    grown = text.replace("      - return: h\n", "      # so\n" * 20 + "      - z: layer_norm(h, ")
    editor.change("e.yaml", grown, 2)
    found = completion_labels(editor.request_at("completion", "e.yaml", grown, "layer_norm(h, ^"))
    assert {"h", "x", "eps"} <= set(found)
    assert request_hover(editor, "^graph: g", "e.yaml", text)


def test_yaml_features(editor: LspClient) -> None:
    wrong = YAML.replace("embed_dim:", "embde_dim:")
    (said,) = editor.open("c.yaml", wrong, "yaml")
    assert said["code"] == "E0201"
    assert said["range"]["start"] == {"line": 4, "character": 2}
    (action,) = editor.request(
        "textDocument/codeAction", {**full_range(editor, "c.yaml"), "context": {"diagnostics": []}}
    )
    (edit,) = action["edit"]["changes"][editor.uri("c.yaml")]
    assert (edit["newText"], edit["range"]["start"]) == ("embed_dim", {"line": 4, "character": 2})
    editor.change("c.yaml", YAML, 2)
    assert editor.diagnostics("c.yaml", 2) == []
    assert "choice(" in request_hover(editor, "attention^_type", "c.yaml", YAML)
    found = editor.request_at("definition", "c.yaml", YAML, "extends: lu^ong")
    assert found["uri"].endswith("/models/luong.specc")
    editor.change("c.yaml", YAML.replace("embed_dim: 8", "embed_dim:    8"), 3)
    (whole,) = editor.request(
        "textDocument/formatting",
        {**full_range(editor, "c.yaml"), "options": {"tabSize": 2, "insertSpaces": True}},
    )
    assert "embed_dim: 8\n" in whole["newText"]


def test_inlay_hints(opened: LspClient) -> None:
    found = opened.request("textDocument/inlayHint", full_range(opened, "a.specc"))
    said = {(h["position"]["line"], h["position"]["character"]): h["label"] for h in found}
    assert said == {
        (13, 3): ": float[b, n, d]",
        (18, 3): ": float[b, n, d]",
        (19, 3): ": float[b, n, d]",
    }


def test_formatting(opened: LspClient) -> None:
    ask = {**full_range(opened, "a.specc"), "options": {"tabSize": 2, "insertSpaces": True}}
    assert opened.request("textDocument/formatting", ask) == []
    opened.change("a.specc", SPEC.replace("  d: int = 8", "d:int=8"), 2)
    (edit,) = opened.request("textDocument/formatting", ask)
    assert edit["newText"] == SPEC
    opened.change("a.specc", SPEC + "{", 3)
    assert opened.request("textDocument/formatting", ask) is None


def test_code_action_fixes_the_error(opened: LspClient) -> None:
    wrong = SPEC.replace("near(3)", "naer(3)")
    opened.change("a.specc", wrong, 2)
    ask = {**full_range(opened, "a.specc"), "context": {"diagnostics": []}}
    (action,) = opened.request("textDocument/codeAction", ask)
    (edit,) = action["edit"]["changes"][opened.uri("a.specc")]
    line = wrong.split("\n")[edit["range"]["start"]["line"]]
    start, end = (edit["range"][side]["character"] for side in ("start", "end"))
    assert line[:start] + edit["newText"] + line[end:] == SPEC.split("\n")[19]


def test_stale_results_are_dropped(opened: LspClient) -> None:
    opened.published.clear()
    for version in range(2, 12):
        opened.change("a.specc", SPEC + "#" * version + "\n}" * (version % 2), version)
    assert len(opened.diagnostics("a.specc", 11)) == 1
    versions = [p["version"] for p in opened.published if p["uri"] == opened.uri("a.specc")]
    assert versions == sorted(versions)
    assert versions[-1] == 11


def test_document_symbols(opened: LspClient) -> None:
    found = opened.request(
        "textDocument/documentSymbol", {"textDocument": {"uri": opened.uri("a.specc")}}
    )
    assert [s["name"] for s in found] == ["config", "near", "twice", "g"]


def test_unsaved_imports(editor: LspClient) -> None:
    blocks = "specc 1\nmodel blocks\ndims b, n\nblock half(x: float[b, n]) -> float[b, n] { return x / 2.0 }\ngraph g(x: float[b, n]) -> (y: float[b, n]) { return half(x) }\n"
    user = 'specc 1\nmodel user\nuse "blocks.specc" as v\ndims b, n\ngraph g(x: float[b, n]) -> (y: float[b, n]) {\n  return v.half(x)\n}\n'
    (missing,) = editor.open("user.specc", user)
    assert missing["code"] == "E0802"
    assert missing["range"]["start"]["line"] == 2
    assert editor.open("blocks.specc", blocks) == []
    editor.change("user.specc", user + "\n", 2)
    assert editor.diagnostics("user.specc", 2) == []
    found = editor.request_at("definition", "user.specc", user, "v.^half")
    assert (Path(found["uri"]).name, found["range"]["start"]["line"]) == ("blocks.specc", 3)


HOSTILE = {
    "nothing": "",
    "control characters": "specc 1\x00\x1b[31m\nmodel m\n",
    "form feeds": "specc 1\x0cmodel m\u2028graph g(",
    "half a pair": "specc 1\nmodel m \ud800",
    "brackets": "specc 1\nmodel m\n" + "(" * 5000,
    "operators": "specc 1\nmodel m\nrequire " + "- " * 5000 + "1",
    "long": "specc 1\nmodel m\n" + "# a comment of a line\n" * 50_000,
    "markup": 'specc 1\nmodel m "</script><img src=x onerror=alert(1)>"\n',
    "bomb": "specc 1\nmodel m\n" + "".join(f"mask m{n}(k) = m{n - 1}(k) & m{n - 1}(k)\n" for n in range(1, 40)) + "mask m0(k) = i < k\ndims b, n\ngraph g(x: float[b, n, 8]) -> (y: float[b, n, 8]) {\n  return attend(x, x, x, mask=m39(3))\n}\n",
    "yaml bomb": "specc: 1\nmodel: &a [x]\nconfig: *a\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_server_survives_any_text(editor: LspClient, name: str) -> None:
    ending = "yaml" if "yaml" in name else "specc"
    said = editor.open(f"{name.replace(' ', '_')}.{ending}", HOSTILE[name], ending)
    assert name == "long" or said
    assert all(s["code"] for s in said)
    assert "E0969" not in {s["code"] for s in said}
    place = {"line": 1, "character": 9}
    for method in ("hover", "definition", "completion", "documentSymbol"):
        editor.send_request(
            f"textDocument/{method}",
            {
                "textDocument": {"uri": editor.uri(f"{name.replace(' ', '_')}.{ending}")},
                "position": place,
            },
        )


@pytest.mark.parametrize(
    "uri",
    [
        "file:///a%00b.specc",
        "untitled:Untitled-1",
        "file:///nowhere/x.specc",
        "http://[",
        "file:///tmp/%ff.specc",
    ],
)
def test_server_survives_any_uri(editor: LspClient, uri: str) -> None:
    editor.notify(
        "textDocument/didOpen",
        {"textDocument": {"uri": uri, "languageId": "specc", "version": 1, "text": SPEC}},
    )
    editor.send_request(
        "textDocument/hover",
        {"textDocument": {"uri": uri}, "position": {"line": 17, "character": 3}},
    )


def test_other_yaml_files_are_ignored(editor: LspClient) -> None:
    assert editor.open("compose.yaml", "services: {a: 1}\n", "yaml") == []
    assert request_hover(editor, "ser^vices", "compose.yaml", "services: {a: 1}\n") == ""


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"null", b'{"jsonrpc": "2.0"}', b'{"jsonrpc": "2.0", "id": 1, "method": 3}', b"\xff\xfe",
     json.dumps({"jsonrpc": "2.0", "method": "textDocument/didChange", "params": {"textDocument": 7}}).encode()],
)  # fmt: skip
def test_server_survives_malformed_messages(editor_with_errors: LspClient, body: bytes) -> None:
    editor = editor_with_errors
    editor.send(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    editor.send_request(
        "textDocument/hover",
        {
            "textDocument": {"uri": editor.uri("none.specc")},
            "position": {"line": 0, "character": 0},
        },
    )


def test_server_exits_with_the_editor(tmp_path: Path) -> None:
    editor = LspClient(tmp_path, encodings=["utf-8"])
    assert editor.ready["capabilities"]["positionEncoding"] == "utf-8"
    # a long check is running
    text = (Path(__file__).parents[2] / "specs" / "models" / "t5.specc").read_text(encoding="utf-8")
    editor.notify(
        "textDocument/didOpen",
        {
            "textDocument": {
                "uri": editor.uri("t5.specc"),
                "languageId": "specc",
                "version": 1,
                "text": text,
            }
        },
    )
    assert editor.process.stdin is not None
    editor.process.stdin.close()
    assert editor.wait_for_exit(15) == 1
    assert editor.errors == b"the editor closed the connection without `shutdown`\n"


@pytest.mark.parametrize("said", [b"", pytest.param(b"hello\n", marks=pytest.mark.parity)])
def test_stdin_closed_before_the_first_message(said: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specc", "lsp"],
        input=said,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"stdin ended before the first message")
