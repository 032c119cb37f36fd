"""`--format json`: what every command writes is what the schema in docs says; `--quiet`;
the standard input.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.json_schema import faults

from specc.cli.main import main

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads(
    (ROOT / "docs" / "command-line.schema.json").read_text(encoding="utf-8")
)
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
        assert not list(faults(one, SCHEMA, SCHEMA)), one
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_needs_no_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = objects(["list", "masks"], capsys)
    assert {"kind": "masks", "name": "causal", "doc": ""} in found["items"]
    (found,) = objects(["explain", "e302"], capsys)
    assert (found["code"], found["status"]) == ("E0302", 1)
    (found,) = objects(["show", "gpt2", *SMALL, "--at", "batch=1,seq=8"], capsys)
    assert found["inputs"][0] == {"name": "input_ids", "dtype": "i64", "shape": [1, 8]}
    assert isinstance(found["tree"]["multiply_adds"], int)
    (found,) = objects(["show", "gpt2", *SMALL], capsys)
    assert found["tree"]["multiply_adds"].count("batch")
    (found,) = objects(["show", "gpt2", *SMALL, "--svg", "a.svg"], capsys)
    assert found["written"] == ["a.svg"]
    (found,) = objects(["diff", "gpt2", "gpt2"], capsys)
    assert found["same"]
    (found,) = objects(["diff", "gpt2", "gpt2", "--set", "layers=3"], capsys, 4)
    assert {"kind": "config", "where": "layers", "how": "12 → 3"} in found["changes"]
    (found,) = objects(["show", "gru_lm", "--ir"], capsys)
    assert found["text"].startswith("specc-ir 1\n")
    told, found = objects(["check", "gpt2", *SMALL], capsys)
    # its token that stops is none of so few
    assert (told["code"], told["severity"]) == ("W0755", "warning")
    assert found["axes"] == [{"axis": "seq", "causal": True, "why": ""}]
    assert found["batch"] == "batch"


def test_a_model_and_its_results(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = objects(["compile", "xor", "-o", "xor.onnx"], capsys)
    assert [Path(f["path"]).name for f in found["files"]] == ["xor.onnx"]
    assert found["files"][0]["bytes"] == (folder / "xor.onnx").stat().st_size
    (found,) = objects(["run", "xor.onnx", "[[1, 0], [1, 1]]"], capsys)
    assert found["results"]["y"] == {
        "dtype": "float32",
        "shape": [2, 1],
        "values": [[1.0], [0.0]],
    }
    (found,) = objects(["verify", "xor.onnx"], capsys)
    assert found["agrees"]
    (found,) = objects(["show", "xor.onnx"], capsys)
    assert found["graph"]


def test_a_text_that_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects(
        ["compile", "gpt2", *SMALL, "--init", "1", "--for", "all", "-o", "out"], capsys
    )
    (found,) = objects(["run", "out", "[[1, 2]]", "--max", "3"], capsys)
    ((written,),) = found["texts"]
    assert len(written["tokens"]) == 3
    (found,) = objects(["show", "out"], capsys)
    assert "package of" in found["text"]


def test_faults_are_objects_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.specc").write_text(
        "specc 1\nmodel m\ngraph g(x: float[2]) -> (y: float[2]) { return lineer(x) }\n"
    )
    (found,) = objects(["check", "bad.specc"], capsys, 1)
    assert found["code"] == "E0204"
    (found,) = objects(["explain", "e9"], capsys, 2)
    assert found["code"] == "E0200"


def test_numbers_that_json_lacks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("log.specc").write_text(
        "specc 1\nmodel m\ndims batch\ngraph g(x: float[batch, 2]) -> (y: float[batch, 2]) { return log(x) }\n"
    )
    assert main(["compile", "log.specc", "-o", "log.onnx", "-q"]) == 0
    assert not "".join(capsys.readouterr())
    (found,) = objects(["run", "log.onnx", "[[0, -1]]"], capsys)
    assert found["results"]["y"]["values"] == [["-inf", "nan"]]


@pytest.mark.parametrize(
    "words", [["check", "bert", *SMALL], ["check", "gpt2", *SMALL]]
)
def test_quiet(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--quiet"]) == 0
    assert not "".join(capsys.readouterr())


def test_quiet_keeps_results_and_errors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "gpt2", *SMALL, "--init", "1", "-o", "m.onnx", "-q"]) == 0
    assert not "".join(capsys.readouterr())
    assert main(["run", "m.onnx", "[[1, 2]]", "--max", "2", "-q"]) == 0
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
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    for data, code in (
        (b"\xff\xfe\x00", "E0112"),
        (b" " * (2**20 + 1), "E0904"),
        (b"", "E0113"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert main(["check", "-"]) == 1
        assert code in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["fmt", "-"]) == 3
    assert "E0802" in capsys.readouterr().err


def test_the_page_names_every_form() -> None:
    names = set(SCHEMA["definitions"]) - {
        "length",
        "texts",
        "typed",
        "part",
        "diagnostic",
        "text",
        "drawn",
        "written",
    }
    assert all(f"| `{name}` |" in PAGE for name in names)


def test_a_wrong_shape_is_noticed() -> None:
    wrong: list[dict[str, object]] = [
        {"command": "list"},
        {"command": "list", "items": [{"kind": "masks", "name": 1, "doc": ""}]},
        {"command": "verify", "agrees": False, "rounds": [], "lost": []},
        {"command": "explain", "code": "E1", "title": "", "status": True, "page": ""},
        {"command": "export", "files": [], "more": 1},
    ]
    assert all(list(faults(one, SCHEMA, SCHEMA)) for one in wrong)
