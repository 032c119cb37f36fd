"""`--format json`: what every command writes is what the schema in docs says; `--quiet`;
the standard input.
"""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.json_schema import list_schema_violations

from specc.cli.main import COMMANDS, main
from specc.preprocessing.records import TEXT_TAGS

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "command-line.schema.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
SMALL = ["--set", "d=16", "--set", "heads=2", "--set", "layers=1", "--set", "vocab=11"]


def objects(
    words: list[str], capsys: pytest.CaptureFixture[str], status: int = 0
) -> list[dict[str, Any]]:
    """The lines of a command, each of which fits the schema."""
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


def test_what_needs_no_model(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = objects(["list", "masks"], capsys)
    assert {"kind": "masks", "name": "causal", "doc": ""} in found["items"]
    (found,) = objects(["explain", "e302"], capsys)
    assert (found["code"], found["status"]) == ("E0302", 1)
    (found,) = objects(["show", "gpt2", *SMALL, "--dims", "batch=1,seq=8"], capsys)
    assert found["inputs"][0] == {"name": "input_ids", "dtype": "i64", "shape": [1, 8]}
    assert isinstance(found["tree"]["multiply_adds"], int)
    (found,) = objects(["show", "gpt2", *SMALL], capsys)
    assert found["tree"]["multiply_adds"].count("batch")
    (found,) = objects(["show", "gpt2", *SMALL, "--svg", "a.svg"], capsys)
    assert found["files"] == ["a.svg"]
    (found,) = objects(["diff", "gpt2", "gpt2"], capsys)
    assert found["same"]
    (found,) = objects(["diff", "gpt2", "gpt2", "--set", "layers=3"], capsys, 4)
    assert {"kind": "config", "path": "layers", "change": "12 → 3"} in found["changes"]
    (found,) = objects(["show", "gru_lm", "--ir"], capsys)
    assert found["text"].startswith("specc-ir 1\n")
    told, found = objects(["check", "gpt2", *SMALL], capsys)
    # its token that stops is none of so few
    assert (told["code"], told["severity"]) == ("W0755", "warning")
    assert found["axes"] == [{"axis": "seq", "causal": True, "reason": ""}]
    assert found["batch_axis"] == "batch"


def test_a_model_and_its_results(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = objects(["compile", "xor", "-o", "xor.onnx"], capsys)
    assert [Path(f["path"]).name for f in found["files"]] == ["xor.onnx"]
    assert found["files"][0]["bytes"] == (directory / "xor.onnx").stat().st_size
    (found,) = objects(["run", "xor.onnx", "[[1, 0], [1, 1]]"], capsys)
    assert found["results"]["y"] == {"dtype": "float32", "shape": [2, 1], "values": [[1.0], [0.0]]}
    (found,) = objects(["verify", "xor.onnx"], capsys)
    assert found["agrees"]
    (found,) = objects(["show", "xor.onnx"], capsys)
    assert found["graph"]


def test_a_text_that_is_written(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects(["compile", "gpt2", *SMALL, "--init", "1", "--graphs", "all", "-o", "out"], capsys)
    (found,) = objects(["run", "out", "[[1, 2]]", "--max-tokens", "3"], capsys)
    ((written,),) = found["texts"]
    assert len(written["tokens"]) == 3
    (found,) = objects(["show", "out"], capsys)
    assert "package of" in found["text"]


def test_faults_are_objects_too(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.specc").write_text(
        "specc 1\nmodel m\ngraph g(x: float[2]) -> (y: float[2]) { return lineer(x) }\n"
    )
    (found,) = objects(["check", "bad.specc"], capsys, 1)
    assert found["code"] == "E0204"
    (found,) = objects(["explain", "e9"], capsys, 2)
    assert found["code"] == "E0200"


NEEDLESS = ("lsp", "completion")
"""Commands that write for editors and shells, not for programs that read JSON."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_is_used_wrongly_says_so_in_an_object(
    command: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = objects([command, "--no-such-option"], capsys, 2)
    assert found["code"] == "E0983"
    if command not in ("list", "lsp"):  # which need no more
        (found,) = objects([command], capsys, 2)
        assert found["code"] == "E0983"


def test_what_cannot_be_read_is_told_in_objects(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_the_form_is_found_in_a_command_line_that_is_not_understood(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--format=json", "gpt2", "a"], ["gpt2", "a", "--format", "json"]):
        assert main(["check", *words]) == 2
        assert json.loads(capsys.readouterr().out)["code"] == "E0983"
    assert main(["chek", "--format", "sarif"]) == 2
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"]
    # behind `--` it is no option; and a form that is none is not spoken
    for words in (["a", "b", "--", "--format", "json"], ["a", "--format", "xml"]):
        assert main(["check", *words]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert said.err.startswith("error[E0983]: ")


def test_a_mistake_of_ours_is_told_in_an_object(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(given: object) -> int:
        raise KeyError("target")

    monkeypatch.setattr("specc.cli.check.run_check", broken)
    (found,) = objects(["check", "gpt2"], capsys, 70)
    assert found["code"] == "E0986"
    assert "KeyError: 'target'" in found["message"]


def test_rows_of_a_stream_are_results_too(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sums.specc").write_text(
        "specc 1\nmodel m\ndims batch, t\n"
        "graph g(x: float[batch, t]) -> (y: float[batch, t]) { return cumsum(x, axis=1) }\nstream y of x\n"
    )
    objects(["compile", "sums.specc", "--graphs", "step", "-o", "sums"], capsys)
    (found,) = objects(["run", "sums", "[[1, 2, 3]]", "--chunk-size", "1"], capsys)
    assert found["results"]["y"]["values"] == [[1.0, 3.0, 6.0]]


def test_numbers_that_json_lacks(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("log.specc").write_text(
        "specc 1\nmodel m\ndims batch\ngraph g(x: float[batch, 2]) -> (y: float[batch, 2]) { return log(x) }\n"
    )
    assert main(["compile", "log.specc", "-o", "log.onnx", "-q"]) == 0
    assert not "".join(capsys.readouterr())
    (found,) = objects(["run", "log.onnx", "[[0, -1]]"], capsys)
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
    # the note that weights were drawn is not said
    assert said.out.strip()
    assert not said.err
    assert main(["check", "no_such.specc", "-q"]) == 3
    assert "E0802" in capsys.readouterr().err


SPEC = "specc 1\nmodel m\ndims n\ngraph g(x:float[n])->(y:float[n]){return -x}\n"


def given(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_a_spec_on_the_standard_input(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given(SPEC, monkeypatch)
    assert main(["check", "-"]) == 0
    assert capsys.readouterr().out.startswith("m: ok")
    given(SPEC, monkeypatch)
    assert main(["fmt", "-"]) == 0
    formatted = capsys.readouterr().out
    assert "  return -x\n" in formatted
    given(formatted, monkeypatch)
    assert main(["convert", "-"]) == 0
    converted = capsys.readouterr().out
    assert converted.startswith("specc: 1\n")
    given(converted, monkeypatch)
    assert main(["fmt", "--check", "-"]) == 0
    given(SPEC.replace("-x", "z"), monkeypatch)
    assert main(["check", "-"]) == 1
    assert "<standard input>:4:" in capsys.readouterr().err


def test_what_is_no_spec_on_the_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for data, code in ((b"\xff\xfe\x00", "E0112"), (b" " * (2**20 + 1), "E0904"), (b"", "E0113")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert main(["check", "-"]) == 1
        assert code in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["fmt", "-"]) == 3
    assert "E0802" in capsys.readouterr().err


def test_a_difference_is_told_in_one_object(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects(["compile", "xor", "-o", "xor.onnx"], capsys)
    (found,) = objects(["verify", "xor.onnx", "--baseline", "xor.onnx"], capsys)
    assert found["agrees"] is True
    assert found["quantization_errors"] == [{"result": "y", "error": 0.0, "cosine_distance": 0.0}]
    assert {r["sizes"]["batch"] for r in found["rounds"]} == {1, 2, 3}
    assert all(0 <= r["max_error"] < 1e-5 for r in found["rounds"])
    monkeypatch.setattr("specc.verification.tolerance.RELATIVE_TOLERANCE", -1.0)
    monkeypatch.setattr("specc.verification.verify_model.is_rounding_difference", lambda *_: False)
    (found,) = objects(["verify", "xor.onnx"], capsys, 4)
    assert found["agrees"] is False
    assert found["rounds"] == []
    assert [fault["code"] for fault in found["diagnostics"]] == ["E0930"]


def test_what_writes_specs(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = objects(["new", "xor", "mine.yaml"], capsys)
    assert (found["file"], found["draft"]) == ("mine.yaml", None)
    (found,) = objects(["new", "xor", "mine.yaml"], capsys, 1)
    assert found["code"] == "E0833"
    (found,) = objects(["fmt", "mine.yaml"], capsys)
    assert found["written"]
    (found,) = objects(["convert", "mine.yaml"], capsys)
    assert "\nspecc 1\n" in f"\n{found['text']}"
    (found,) = objects(["convert", "mine.yaml", "-o", "mine.specc"], capsys)
    assert found["files"] == ["mine.specc"]
    assert Path("mine.specc").exists()
    (found,) = objects(["expand", "xor"], capsys)
    assert "\nspecc 1\n" in found["text"]
    (found,) = objects(["expand", "xor", "-o", "alone.specc"], capsys)
    assert (found["file"], found["text"]) == ("alone.specc", None)
    Path("bad.specc").write_text(SPEC)
    (found,) = objects(["fmt", "--check", "bad.specc"], capsys, 1)
    assert (found["changed"], found["written"]) == (["bad.specc"], False)
    assert [fault["code"] for fault in found["diagnostics"]] == ["E0984"]
    (found,) = objects(["fmt", "--diff", "bad.specc"], capsys)
    assert Path("bad.specc").read_text() == SPEC
    given(SPEC, monkeypatch)
    (found,) = objects(["fmt", "-"], capsys)
    assert found["text"].endswith("return -x\n}\n")


@pytest.mark.parametrize("name", ["text", *TEXT_TAGS])
def test_every_way_to_read_a_text_has_a_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = objects(["doc", name], capsys)
    (one,) = [m for m in found["definitions"] if m["kind"] == "reading"]
    assert f"{name}(" in one["text"]


def test_what_a_name_means(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = objects(["doc", "topk"], capsys)
    assert [one["kind"] for one in found["definitions"]] == ["function", "normalizer"]
    (found,) = objects(["doc", "gpt2", "--source"], capsys)
    assert found["definitions"][0]["kind"] == "spec"
    (found,) = objects(["doc", "gpt2"], capsys, 1)
    assert found["code"] == "E0204"


def test_a_data_set(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects(["compile", "xor", "-o", "xor.onnx"], capsys)
    Path("rows.jsonl").write_text('{"x": [1, 0]}\n{"x": [1]}\n')
    words = ["map", "xor.onnx", "rows.jsonl", "-o", "out", "--engine", "serial"]
    (found,) = objects(words, capsys)
    assert (found["rows"], found["errors"], found["resumed_rows"]) == (2, 1, 0)
    assert all((directory / "out" / part).exists() for part in found["parts"])
    (found,) = objects(words, capsys)
    assert found["resumed_rows"] == 2


OF_THEIR_OWN = {"lsp", "completion"}
"""Commands whose output is a language of its own."""


def test_every_command_has_a_form() -> None:
    answering = {
        properties["command"]["const"]
        for form in SCHEMA["definitions"].values()
        if "command" in (properties := form.get("properties", {}))
    }
    assert answering == COMMANDS.keys() - OF_THEIR_OWN


def test_the_page_names_every_form() -> None:
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
    # those of tasks have a page of their own
    names -= {name for name in names if name.startswith(("predicted_", "of_"))}
    firsts = {
        name
        for line in PAGE.splitlines()
        for name in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
    }
    assert not names - firsts


def test_a_wrong_shape_is_noticed() -> None:
    wrong: list[dict[str, object]] = [
        {"command": "list"},
        {"command": "list", "items": [{"kind": "masks", "name": 1, "doc": ""}]},
        {"command": "verify", "agrees": False, "rounds": [], "quantization_errors": []},
        {"command": "doc", "name": "x", "definitions": [{"kind": "", "text": ""}]},
        {"command": "explain", "code": "E1", "title": "", "status": True, "page": ""},
        {"command": "export", "files": [], "more": 1},
    ]
    assert all(list(list_schema_violations(one, SCHEMA, SCHEMA)) for one in wrong)
