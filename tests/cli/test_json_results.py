"""`--format json`: the output of every command conforms to the JSON Schema in docs. Also `--quiet`
and stdin."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.json_schema import list_schema_violations

from specc.cli.main import COMMANDS, main
from specc.preprocessing.preprocessing_records import TEXT_TAGS

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "command-line.schema.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
SMALL = ["--set", "d=16", "--set", "heads=2", "--set", "layers=1", "--set", "vocab=11"]


def run_json(
    words: list[str], capsys: pytest.CaptureFixture[str], status: int = 0
) -> list[dict[str, Any]]:
    """Run a command and return its JSON lines, each validated against the schema."""
    capsys.readouterr()
    assert main([*words, "--format", "json"]) == status
    said = capsys.readouterr()
    assert not said.err
    found = [json.loads(line) for line in said.out.splitlines()]
    for one in found:
        assert not list(list_schema_violations(one, SCHEMA, SCHEMA)), one
    return found


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_results_without_a_model(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(["list", "masks"], capsys)
    assert {"kind": "masks", "name": "causal", "doc": ""} in found["items"]
    (found,) = run_json(["explain", "e302"], capsys)
    assert (found["code"], found["status"]) == ("E0302", 1)
    (found,) = run_json(["show", "gpt2", *SMALL, "--dims", "batch=1,seq=8"], capsys)
    assert found["inputs"][0] == {"name": "input_ids", "dtype": "i64", "shape": [1, 8]}
    assert isinstance(found["tree"]["multiply_adds"], int)
    (found,) = run_json(["show", "gpt2", *SMALL], capsys)
    assert found["tree"]["multiply_adds"].count("batch")
    (found,) = run_json(["show", "gpt2", *SMALL, "--svg", "a.svg"], capsys)
    assert found["files"] == ["a.svg"]
    (found,) = run_json(["diff", "gpt2", "gpt2"], capsys)
    assert found["same"]
    (found,) = run_json(["diff", "gpt2", "gpt2", "--set", "layers=3"], capsys, 4)
    assert {"kind": "config", "path": "layers", "change": "12 → 3"} in found["changes"]
    (found,) = run_json(["show", "gru_lm", "--ir"], capsys)
    assert found["text"].startswith("specc-ir 1\n")
    told, found = run_json(["check", "gpt2", *SMALL], capsys)
    # the eos token exceeds the small vocabulary
    assert (told["code"], told["severity"]) == ("W0755", "warning")
    assert found["axes"] == [{"axis": "seq", "causal": True, "reason": ""}]
    assert found["batch_axis"] == "batch"


def test_compile_run_and_verify_results(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = run_json(["compile", "xor", "-o", "xor.onnx"], capsys)
    assert [Path(f["path"]).name for f in found["files"]] == ["xor.onnx"]
    assert found["files"][0]["bytes"] == (directory / "xor.onnx").stat().st_size
    (found,) = run_json(["run", "xor.onnx", "[[1, 0], [1, 1]]"], capsys)
    assert found["results"]["y"] == {"dtype": "float32", "shape": [2, 1], "values": [[1.0], [0.0]]}
    (found,) = run_json(["verify", "xor.onnx"], capsys)
    assert found["agrees"]
    (found,) = run_json(["show", "xor.onnx"], capsys)
    assert found["graph"]


def test_generation_results(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_json(["compile", "gpt2", *SMALL, "--init", "1", "--graphs", "all", "-o", "out"], capsys)
    (found,) = run_json(["run", "out", "[[1, 2]]", "--max-tokens", "3"], capsys)
    ((written,),) = found["texts"]
    assert len(written["tokens"]) == 3
    (found,) = run_json(["show", "out"], capsys)
    assert "package of" in found["text"]


def test_errors_as_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.specc").write_text(
        "specc 1\nmodel m\ngraph g(x: float[2]) -> (y: float[2]) { return lineer(x) }\n"
    )
    (found,) = run_json(["check", "bad.specc"], capsys, 1)
    assert found["code"] == "E0204"
    (found,) = run_json(["explain", "e9"], capsys, 2)
    assert found["code"] == "E0200"


NEEDLESS = ("lsp", "completion")
"""Commands that write for editors and shells, not for programs that read JSON."""


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_errors_as_json(
    command: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = run_json([command, "--no-such-option"], capsys, 2)
    assert found["code"] == "E0983"
    if command not in ("list", "lsp"):  # commands without required arguments
        (found,) = run_json([command], capsys, 2)
        assert found["code"] == "E0983"


def test_read_errors_as_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = {"compile": ["-o", "x"], "export": ["-o", "x"], "map": ["x", "-o", "y"]}
    second = {"diff": ["gpt2"], "export": ["triton"]}
    for command in set(COMMANDS) - {*NEEDLESS, "list"}:
        words = [command, "none", *second.get(command, ()), *output.get(command, ())]
        capsys.readouterr()
        status = main([*words, "--format", "json"])
        said = capsys.readouterr()
        assert status in (1, 2, 3), command
        assert not said.err, command
        for line in said.out.splitlines():
            one = json.loads(line)
            assert one["severity"] == "error", command
            assert not list(list_schema_violations(one, SCHEMA, SCHEMA)), command


def test_format_option_of_an_invalid_command_line(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--format=json", "gpt2", "a"], ["gpt2", "a", "--format", "json"]):
        assert main(["check", *words]) == 2
        assert json.loads(capsys.readouterr().out)["code"] == "E0983"
    assert main(["chek", "--format", "sarif"]) == 2
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"]
    # after `--` it is not an option; an unknown format is ignored
    for words in (["a", "b", "--", "--format", "json"], ["a", "--format", "xml"]):
        assert main(["check", *words]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert said.err.startswith("error[E0983]: ")


def test_internal_error_as_json(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_key_error(given: object) -> int:
        raise KeyError("target")

    monkeypatch.setattr("specc.cli.check.execute_check_command", raise_key_error)
    (found,) = run_json(["check", "gpt2"], capsys, 70)
    assert found["code"] == "E0986"
    assert "KeyError: 'target'" in found["message"]


def test_streaming_results(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sums.specc").write_text(
        "specc 1\nmodel m\ndims batch, t\n"
        "graph g(x: float[batch, t]) -> (y: float[batch, t]) { return cumsum(x, axis=1) }\nstream y of x\n"
    )
    run_json(["compile", "sums.specc", "--graphs", "step", "-o", "sums"], capsys)
    (found,) = run_json(["run", "sums", "[[1, 2, 3]]", "--chunk-size", "1"], capsys)
    assert found["results"]["y"]["values"] == [[1.0, 3.0, 6.0]]


def test_infinite_and_nan_results(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("log.specc").write_text(
        "specc 1\nmodel m\ndims batch\ngraph g(x: float[batch, 2]) -> (y: float[batch, 2]) { return log(x) }\n"
    )
    assert main(["compile", "log.specc", "-o", "log.onnx", "-q"]) == 0
    assert not "".join(capsys.readouterr())
    (found,) = run_json(["run", "log.onnx", "[[0, -1]]"], capsys)
    assert found["results"]["y"]["values"] == [["-inf", "nan"]]


@pytest.mark.parametrize("words", [["check", "bert", *SMALL], ["check", "gpt2", *SMALL]])
def test_quiet(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--quiet"]) == 0
    assert not "".join(capsys.readouterr())


def test_quiet_keeps_results_and_errors(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "gpt2", *SMALL, "--init", "1", "-o", "m.onnx", "-q"]) == 0
    assert not "".join(capsys.readouterr())
    assert main(["run", "m.onnx", "[[1, 2]]", "--max-tokens", "2", "-q"]) == 0
    said = capsys.readouterr()
    # the note about random weights is suppressed
    assert said.out.strip()
    assert not said.err
    assert main(["check", "no_such.specc", "-q"]) == 3
    assert "E0802" in capsys.readouterr().err


SPEC = "specc 1\nmodel m\ndims n\ngraph g(x:float[n])->(y:float[n]){return -x}\n"


def set_stdin(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace stdin with a text."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_spec_on_stdin(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stdin(SPEC, monkeypatch)
    assert main(["check", "-"]) == 0
    assert capsys.readouterr().out.startswith("m: ok")
    set_stdin(SPEC, monkeypatch)
    assert main(["fmt", "-"]) == 0
    formatted = capsys.readouterr().out
    assert "  return -x\n" in formatted
    set_stdin(formatted, monkeypatch)
    assert main(["convert", "-"]) == 0
    converted = capsys.readouterr().out
    assert converted.startswith("specc: 1\n")
    set_stdin(converted, monkeypatch)
    assert main(["fmt", "--check", "-"]) == 0
    set_stdin(SPEC.replace("-x", "z"), monkeypatch)
    assert main(["check", "-"]) == 1
    assert "<standard input>:4:" in capsys.readouterr().err


def test_invalid_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for data, code in (
        (b"\xff\xfe\x00", "E0112"),
        (b" " * (2**20 + 1), "E0904"),
        (b"", "E0113"),
        (b"model:\n  size: 8\nconfig:\n  rate: 1\ntrainer:\n  epochs: 3\n", "E0222"),
        (b'{"model_type": "bert"}', "E0222"),
        (b"model: m\ndims: [n]\n", "E0126"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert main(["check", "-"]) == 1
        errors = capsys.readouterr().err
        assert code in errors
        assert errors.count("error[") == 1
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["fmt", "-"]) == 3
    assert "E0802" in capsys.readouterr().err


def test_verify_difference_as_json(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_json(["compile", "xor", "-o", "xor.onnx"], capsys)
    (found,) = run_json(["verify", "xor.onnx", "--baseline", "xor.onnx"], capsys)
    assert found["agrees"] is True
    assert found["quantization_errors"] == [{"result": "y", "error": 0.0, "cosine_distance": 0.0}]
    assert {r["sizes"]["batch"] for r in found["rounds"]} == {1, 2, 3}
    assert all(0 <= r["max_error"] < 1e-5 for r in found["rounds"])
    monkeypatch.setattr("specc.verification.result_comparison.RELATIVE_TOLERANCE", -1.0)
    monkeypatch.setattr(
        "specc.verification.model_verification.is_rounding_difference", lambda *_: False
    )
    (found,) = run_json(["verify", "xor.onnx"], capsys, 4)
    assert found["agrees"] is False
    assert found["rounds"] == []
    assert [fault["code"] for fault in found["diagnostics"]] == ["E0930"]


def test_results_of_commands_that_write_specs(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = run_json(["new", "xor", "mine.yaml"], capsys)
    assert (found["file"], found["draft"]) == ("mine.yaml", None)
    (found,) = run_json(["new", "xor", "mine.yaml"], capsys, 1)
    assert found["code"] == "E0833"
    (found,) = run_json(["fmt", "mine.yaml"], capsys)
    assert found["written"]
    (found,) = run_json(["convert", "mine.yaml"], capsys)
    assert "\nspecc 1\n" in f"\n{found['text']}"
    (found,) = run_json(["convert", "mine.yaml", "-o", "mine.specc"], capsys)
    assert found["files"] == ["mine.specc"]
    assert Path("mine.specc").exists()
    (found,) = run_json(["expand", "xor"], capsys)
    assert "\nspecc 1\n" in found["text"]
    (found,) = run_json(["expand", "xor", "-o", "alone.specc"], capsys)
    assert (found["file"], found["text"]) == ("alone.specc", None)
    Path("bad.specc").write_text(SPEC)
    (found,) = run_json(["fmt", "--check", "bad.specc"], capsys, 1)
    assert (found["changed"], found["written"]) == (["bad.specc"], False)
    assert [fault["code"] for fault in found["diagnostics"]] == ["E0984"]
    (found,) = run_json(["fmt", "--diff", "bad.specc"], capsys)
    assert Path("bad.specc").read_text() == SPEC
    set_stdin(SPEC, monkeypatch)
    (found,) = run_json(["fmt", "-"], capsys)
    assert found["text"].endswith("return -x\n}\n")


@pytest.mark.parametrize("name", ["text", *TEXT_TAGS])
def test_doc_of_every_text_tag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(["doc", name], capsys)
    (one,) = [m for m in found["definitions"] if m["kind"] == "reading"]
    assert f"{name}(" in one["text"]


def test_doc_results(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(["doc", "topk"], capsys)
    assert [one["kind"] for one in found["definitions"]] == ["function", "normalizer"]
    for options in ([], ["--source"]):
        (found,) = run_json(["doc", "gpt2", *options], capsys)
        assert found["definitions"][0]["kind"] == "spec"
    (found,) = run_json(["doc", "gpt-2"], capsys, 1)
    assert found["code"] == "E0204"


def test_map_results(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_json(["compile", "xor", "-o", "xor.onnx"], capsys)
    Path("rows.jsonl").write_text('{"x": [1, 0]}\n{"x": [1]}\n')
    words = ["map", "xor.onnx", "rows.jsonl", "-o", "out", "--engine", "serial"]
    (found,) = run_json(words, capsys)
    assert (found["rows"], found["errors"], found["resumed_rows"]) == (2, 1, 0)
    assert all((directory / "out" / part).exists() for part in found["parts"])
    (found,) = run_json(words, capsys)
    assert found["resumed_rows"] == 2


OF_THEIR_OWN = {"lsp", "completion"}
"""Commands whose output is a language of its own."""


def test_every_command_has_a_schema_definition() -> None:
    answering = {
        properties["command"]["const"]
        for form in SCHEMA["definitions"].values()
        if "command" in (properties := form.get("properties", {}))
    }
    assert answering == COMMANDS.keys() - OF_THEIR_OWN


def test_docs_page_lists_every_schema_definition() -> None:
    names = set(SCHEMA["definitions"]) - {
        "measure",
        "round",
        "length",
        "texts",
        "typed",
        "part",
        "diagnostic",
        "text",
        "drawn",
        "written",
        "arrays",
    }
    # results of tasks have their own page
    names -= {name for name in names if name.startswith(("predicted_", "of_"))}
    firsts = {
        name
        for line in PAGE.splitlines()
        for name in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
    }
    assert not names - firsts


def test_schema_rejects_wrong_results() -> None:
    wrong: list[dict[str, object]] = [
        {"command": "list"},
        {"command": "list", "items": [{"kind": "masks", "name": 1, "doc": ""}]},
        {"command": "verify", "agrees": False, "rounds": [], "quantization_errors": []},
        {"command": "doc", "name": "x", "definitions": [{"kind": "", "text": ""}]},
        {"command": "explain", "code": "E1", "title": "", "status": True, "page": ""},
        {"command": "export", "files": [], "more": 1},
    ]
    assert all(list(list_schema_violations(one, SCHEMA, SCHEMA)) for one in wrong)
