"""Any file name that the file system accepts works or fails with an error code; terminals receive
no control characters."""

import os
import re
from pathlib import Path
from shutil import copytree

import pytest
from support.parameter_sweeps import sample_sweep

from specc.cli.main import main

NAMES = [
    "plain", "with space", "new\nline", "tab\there", "escape\x1b[31mred", "bell\x07", "back\x08space", "caf\u00e9",
    "\u6f22\u5b57", "rtl\u202eexe", "zero\u200bwidth", "a=b", "@at", "percent%s%d{}", "quote'\"`", "star*?[x]",
    "c1\x9bcontrol", "e" * 240, "\udcff\udcfe",
]  # fmt: skip
"""Stems; the last one is bytes that are no UTF-8, as Python gives them."""
SPEC = """specc 1
model m
dims batch
graph g(x: float[batch, 2]) -> (y: float[batch, 2]) { return linear(x, out=2) @ a }
"""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|\u202e")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a directory with a spec, an input and a model."""
    directory = tmp_path_factory.mktemp("template")
    spec, model = directory / "m.specc", directory / "m.onnx"
    spec.write_text(SPEC)
    (directory / "x.json").write_text("[[1, 2]]")
    assert main(["compile", str(spec), "--init", "0", "-o", str(model)]) == 0
    return directory


@pytest.fixture
def work_dir(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", sample_sweep([*NAMES]), ids=ascii)
def test_output_of_any_name(name: str, work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["compile", "./m.specc", "--init", "0", "--weights-as", "copy", "-o", f"./{name}.onnx"],
        ["compile", "./m.specc", "--init", "0", "--graphs", "score", "-o", f"./{name}"],
        ["run", "m.onnx", "x.json", "-o", f"./{name}.npz"],
        ["convert", "./m.specc", "-o", f"./{name}.yaml"],
    ):
        code = main(words)
        said = "".join(capsys.readouterr())
        assert code == 0 or (code in (1, 2, 3) and "error[E" in said), (code, said)
        assert os.path.lexists(words[-1]) == (code == 0)
        assert not CONTROL.search(said), ascii(said)


@pytest.mark.parametrize("name", sample_sweep([*NAMES]), ids=ascii)
def test_input_of_any_name(name: str, work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work_dir / f"{name}.specc").write_bytes((work_dir / "m.specc").read_bytes())
    (work_dir / f"{name}.onnx").write_bytes((work_dir / "m.onnx").read_bytes())
    (work_dir / f"{name}.json").write_text("[[1, 2]]")
    bad = work_dir / f"{name}.bad.specc"
    bad.write_text(SPEC.replace("linear", "linera"))
    for words in (
        ["check", f"./{name}.specc"],
        ["fmt", f"./{name}.specc"],
        ["show", f"./{name}.specc"],
        ["verify", f"./{name}.onnx"],
        ["run", f"./{name}.onnx", f"./{name}.json"],
        ["check", f"./{name}.bad.specc"],
        ["check", f"./{name}.absent.specc"],
        ["run", "m.onnx", f"./{name}.absent.json"],
        ["run", f"./{name}.absent.onnx", "x.json"],
        ["compile", "m.specc", "--weights", f"./{name}.absent.safetensors", "-o", "n.onnx"],
        ["check", "m.specc", "--config", f"./{name}.absent.json"],
        ["explain", name],
        ["doc", name],
        ["show", "m.specc", "--set", f"{name}=3"],
        ["run", "m.onnx", f"{name}={name}"],
    ):
        code = main(words)
        said = "".join(capsys.readouterr())
        assert code in (0, 1, 2, 3), (words, code, said)
        assert code == 0 or "error" in said
        assert not CONTROL.search(said), (words, ascii(said))
