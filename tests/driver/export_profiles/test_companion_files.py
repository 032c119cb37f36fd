"""Files that other programs need next to the graphs are copied unchanged."""

import json
from pathlib import Path

import pytest

from specc.cli.main import main

SMALL = ["--set", "d=16", "--set", "heads=2", "--set", "layers=1", "--init", "1"]
CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 400,
    "n_positions": 32,
}
FILES = {
    "config.json": json.dumps(CONFIG),
    "generation_config.json": '{"max_length": 20}',
    "tokenizer_config.json": '{"tokenizer_class": "GPT2Tokenizer"}',
    "special_tokens_map.json": "{}",
    "merges.txt": "#version: 0.2\r\na b\r\n",
    "vocab.json": '{"a": 0}',
    "notes.txt": "nothing of it",
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    for name, text in FILES.items():
        (directory / name).write_bytes(text.encode())
    return directory


def compile_package(checkpoint: Path, names: str, *more: str) -> Path:
    out = checkpoint.parent / "out"
    words = [
        "compile",
        "gpt2",
        "--config",
        str(checkpoint),
        *SMALL,
        "--graphs",
        "step",
        "--io-names",
        names,
        "-o",
        str(out),
    ]
    assert main([*words, *more]) == 0
    return out


@pytest.mark.parametrize("names", ["hf", "genai"])
def test_companion_files_are_copied(names: str, checkpoint: Path) -> None:
    out = compile_package(checkpoint, names)
    for name, text in FILES.items():
        carried = out / name
        assert carried.exists() == (name != "notes.txt"), name
        if carried.exists():
            assert carried.read_bytes() == text.encode()
    # the index lists the files, so that an incomplete package is rejected
    assert "merges.txt" in (out / "specc.json").read_text(encoding="utf-8")
    # a second compilation replaces the files of the first
    compile_package(checkpoint, names)


def test_specc_profile_copies_no_files(checkpoint: Path) -> None:
    assert not [p for p in compile_package(checkpoint, "specc").iterdir() if p.name in FILES]


def test_missing_tokenizer_config_is_generated(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    assert tokenizers
    from support.tokenizer_files import train_tokenizer

    (checkpoint / "tokenizer_config.json").unlink()
    (checkpoint / "tokenizer.json").write_text(train_tokenizer("byte_bpe"), encoding="utf-8")
    out = compile_package(checkpoint, "genai")
    found = json.loads((out / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert found == {"tokenizer_class": "PreTrainedTokenizerFast"}
    assert (out / "tokenizer.json").read_text(encoding="utf-8") == train_tokenizer("byte_bpe")


@pytest.mark.parametrize(("names", "lacks"), [("hf", "config.json"), ("genai", "tokenizer.json")])
def test_missing_companion_file_is_reported(
    names: str, lacks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert (
        main(["compile", "gpt2", *SMALL, "--graphs", "step", "--io-names", names, "-o", out]) == 0
    )
    assert f"{lacks} next to" in capsys.readouterr().err


def test_unreadable_companion_file(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "merges.txt").unlink()
    (checkpoint / "merges.txt").mkdir()
    out = str(checkpoint.parent / "out")
    words = [
        "compile",
        "gpt2",
        "--config",
        str(checkpoint),
        *SMALL,
        "--graphs",
        "step",
        "--io-names",
        "hf",
        "-o",
        out,
    ]
    assert main(words) == 3
    assert "E0802" in capsys.readouterr().err
    assert not Path(out).exists()
