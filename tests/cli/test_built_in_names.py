"""The name of a built-in spec resolves to that spec in every command, regardless of the files in
the working directory; `./NAME` is a path."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.driver.weights_section_and_load_transforms import list_model_parameters
from specc.frontend.spec_inheritance_and_config_overrides import (
    iterate_config_literals as config_literals,
)
from specc.weights.formats.safetensors import write_safetensors

TINY = {
    "model_type": "distilbert", "architectures": ["DistilBertModel"], "vocab_size": 11, "dim": 8,
    "n_heads": 2, "n_layers": 1, "hidden_dim": 12, "max_position_embeddings": 16,
}  # fmt: skip
NAMES = ("distilbert", "xor", "elman")


def write_checkpoint(path: Path) -> None:
    """Write a tiny DistilBERT checkpoint directory."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    rng = np.random.default_rng(0)
    tensors = {
        w.name: rng.standard_normal(w.shape).astype(np.float32)
        for w in list_model_parameters(graph)
    }
    write_safetensors(path / "model.safetensors", tensors)


def write_package(path: Path) -> None:
    """Write a compiled package directory."""
    specc.compile("gpt2", path, graphs="step", init=0, set={"layers": 1, "d": 8, "heads": 2, "vocab": 11})  # fmt: skip


def write_plain_file(path: Path) -> None:
    """Write a spec file without a suffix."""
    path.write_text("specc 1\nmodel other\ngraph g(x: float[2]) -> (y: float[2]) {\n  return x\n}\n")  # fmt: skip


OBSTACLES: tuple[Callable[[Path], None], ...] = (
    write_checkpoint, write_package, write_plain_file, Path.mkdir,
)  # fmt: skip


def commands(name: str) -> list[list[list[str]]]:
    """Return command lines that name the spec; those in one list depend on each other."""
    small = [f"--set={key}={text}" for key, text in config_literals("", SMALL_CONFIGS[name])]
    return [
        [["check", name, *small]],
        [["show", name, *small]],
        [["show", name, "--ir", *small]],
        [["expand", name, *small]],
        [["diff", name, name]],
        [["doc", name, "--source"]],
        [["_complete", "set", name]],
        [["compile", name, "--init", "0", "-o", "out.onnx", "--force", *small]],
        [["check", "instance.specc", *small]],
        [["new", name, "new.yaml", "--force"], ["check", "new.yaml", *small]],
    ]


def outputs(
    name: str, lines: list[list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> list[tuple[int, str]]:
    """Run the commands, and return exit statuses with what was printed to stdout."""
    text = f'specc 1\nmodel mine "mine"\nextends {name}\n'
    Path("instance.specc").write_text(text, encoding="utf-8")
    found = []
    for words in (words for group in lines for words in group):
        status = main(words)
        found.append((status, capsys.readouterr().out))
    return found


@pytest.mark.parametrize("name", sample_sweep(NAMES, costly={"distilbert"}, stride=1))
def test_built_in_name_ignores_working_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run every command with every obstacle in the working directory, each pair with one of the
    names."""
    (tmp_path / "empty").mkdir()
    for n, write_obstacle in enumerate(OBSTACLES, NAMES.index(name)):
        lines = commands(name)[n % len(NAMES) :: len(NAMES)]
        monkeypatch.chdir(tmp_path / "empty")
        expected = outputs(name, lines, capsys)
        taken = tmp_path / f"taken by {write_obstacle.__name__}"
        taken.mkdir()
        write_obstacle(taken / name)
        monkeypatch.chdir(taken)
        assert outputs(name, lines, capsys) == expected, taken
        main(commands(name)[0][0])
        assert f"write `./{name}` for the file or directory" in capsys.readouterr().err


def test_path_selects_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`llama` is the built-in Llama; `./llama` and `llama/` are the checkpoint directory."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "llama")
    for path in ("./llama", "llama/", str(tmp_path / "llama")):
        assert main(["check", path]) == 0
        said = capsys.readouterr()
        assert said.out.startswith("distilbert: ok")
        assert "is the built-in spec" not in said.err
    assert main(["check", "llama"]) == 0
    assert capsys.readouterr().out.startswith("llama: ok")


def test_draft_extends_the_built_in_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Draft a spec from a checkpoint directory that has the name of the base spec."""
    drafts = []
    for directory in ("distilbert", "checkpoint"):
        (tmp_path / f"in_{directory}").mkdir()
        monkeypatch.chdir(tmp_path / f"in_{directory}")
        write_checkpoint(Path(directory).resolve())
        assert main(["new", "my.yaml", "--from-checkpoint", f"{directory}/"]) == 0
        assert main(["check", "my.yaml"]) == 0
        drafts.append((Path("my.yaml").read_text(), capsys.readouterr().out))
    assert drafts[0] == drafts[1]
    assert "  d: 8" in drafts[0][0]


def test_path_object_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "llama")
    assert "distilbert" in repr(specc.check(Path("llama")))
    assert "llama" in repr(specc.check("llama"))
    assert any("./llama" in note for note in specc.check("llama").remarks)


def test_advice_names_the_directory_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands in a help line name the directory, not the built-in spec."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "distilbert")
    assert main(["run", "distilbert"]) != 0
    assert "specc compile ./distilbert " in capsys.readouterr().err
    assert main(["check", "distilbert", "--spec", "bert"]) != 0
    assert "write `./distilbert` for the directory" in capsys.readouterr().err
