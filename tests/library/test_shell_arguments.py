"""Paths with spaces are quoted in the commands that messages show."""

import shlex
from pathlib import Path

import pytest

from specc.cli.main import main

CONFIG = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'


@pytest.mark.parametrize(
    ("command", "file", "text", "shown"),
    [
        (["run", "my model", "x"], "config.json", CONFIG, "specc compile 'my model' --graphs all"),
        (["check", "my model"], "config.json", CONFIG, "specc check SPEC --config 'my model'"),
        (["check", "my model"], "model.safetensors", "", "specc compile SPEC --weights 'my model'"),
        (["check", "my model"], "a b.gguf", "", "specc compile 'my model/a b.gguf'"),
    ],
)
def test_path_with_a_space_is_one_argument(
    command: list[str],
    file: str,
    text: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my model").mkdir()
    Path("my model", file).write_text(text)
    assert main(command)
    message = capsys.readouterr().err
    assert shown in message
    assert any(word.startswith("my model") for word in shlex.split(shown))
