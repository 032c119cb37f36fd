"""Snippets of the documentation: every specc command parses, Python imports exist, and examples
that need only a built-in model run."""

import argparse
import ast
import re
import shlex
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import specc
from specc.cli.main import COMMANDS, build_command_parsers, main
from specc.cli.options import UsageError

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "errors").glob("*.md")),
    *sorted((ROOT / "docs" / "demos").glob("*/*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?specc (?!1$)(.*)$", re.MULTILINE)
"""`specc 1` is how a spec begins."""
ENDS = re.compile(r"\s(?:\||>|&&|;|#|…|\s)")
"""What is no word of the command any more: a pipe, another command, a comment, a gap."""
WRONG = {"compile bert.specc -o bert.onnx --target gpu", "check gpt2 --confg config.json"}
"""Shown because it is refused."""
SHELLS = {"sh", "text", "console", ""}


def list_commands() -> list[tuple[str, str]]:
    """Return each page with each command in its code blocks."""
    found = []
    for page in PAGES:
        for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if kind in SHELLS:
                joined = text.replace("\\\n", " ")
                found += [
                    (page.name, ENDS.split(said, maxsplit=1)[0].strip())
                    for said in COMMAND.findall(joined)
                ]
    return sorted({(page, line) for page, line in found if line not in WRONG})


def get_usage_error(words: list[str], parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return why a command line is rejected, or an empty string."""
    if not words or words[0] not in parsers:
        return "" if words[:1] in ([], ["COMMAND"], ["--help"]) else "no such command"
    parser = parsers[words[0]]
    try:
        parser.parse_intermixed_args(words[1:])
    except UsageError:
        return f"specc {' '.join(words)}"
    except SystemExit:  # exit of `--help`
        return ""
    return ""


def test_commands_of_the_pages_parse(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = build_command_parsers()
    lines = list_commands()
    assert len(lines) > 60
    wrong = {
        f"{page}: {why}"
        for page, line in lines
        if (why := get_usage_error(shlex.split(line), parsers))
    }
    assert not wrong, capsys.readouterr().err


def test_command_examples_parse() -> None:
    parsers = build_command_parsers()
    assert all(command.example for command in COMMANDS.values())
    assert not [
        line
        for line in (c.example for c in COMMANDS.values())
        if get_usage_error(shlex.split(line), parsers)
    ]


def test_invalid_commands_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = build_command_parsers()
    for line in ("complie vit", "compile vit --wieghts x", "verify"):
        assert get_usage_error(line.split(), parsers)
    assert not get_usage_error(["check", "vit"], parsers)
    capsys.readouterr()


def list_python_snippets() -> list[tuple[str, int, str]]:
    """Return each page with each of its Python blocks."""
    found = []
    for page in PAGES:
        texts = [
            text
            for kind, text in FENCE.findall(page.read_text(encoding="utf-8"))
            if kind == "python" and ">>> " not in text
        ]
        found += [(page.name, n, text) for n, text in enumerate(texts)]
    return found


@pytest.mark.parametrize(
    ("page", "n", "text"), [pytest.param(*s, id=f"{s[0]}-{s[1]}") for s in list_python_snippets()]
)
def test_python_imports_of_the_pages_exist(page: str, n: int, text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specc"):
            if node.module == "specc_torch":
                continue  # needs torch; its pages are run where torch is installed
            module = import_module(node.module or "")
            missing = [a.name for a in node.names if not hasattr(module, a.name)]
            assert not missing, f"{node.module} has no {missing}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "specc" or hasattr(specc, node.attr), node.attr


RUN = {"README.md", "attention-plots.md", "generation.md"}
"""Pages whose Python needs a shipped model and nothing else."""
LINES = ["de 305", "en 21016"]
MUSICGEN_FILE = "audio.onnx"
"""The compiled audio decoder of a MusicGen checkpoint, which a snippet of generation.md needs;
`tests/runtime/test_codebook_generation.py` runs the same calls with a small model."""


@pytest.mark.parity
@pytest.mark.parametrize("page", sorted(RUN))
def test_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the blocks of a page in order, as one program."""
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "digits", "-o", "out/digits.onnx", "-q"]) == 0
    assert main(["compile", "numbers", "--graphs", "all", "-o", "out/numbers", "-q"]) == 0
    names = {
        "specc": specc,
        "image": np.zeros((1, 1, 8, 8), np.float32),
        "model": specc.load("out/numbers"),
        "lines": LINES,
    }
    texts = [
        text
        for name, _, text in list_python_snippets()
        if name == page and MUSICGEN_FILE not in text
    ]
    assert len(texts) >= 2
    # the page is about any model; this one knows numbers and few letters
    program = "\n".join(texts).replace("Once upon a time", LINES[0])
    exec(compile(program, page, "exec"), names)
    assert capsys.readouterr().err == ""
    if page == "attention-plots.md":
        assert {"seven.svg", "gpt2.svg"} <= {p.name for p in tmp_path.iterdir()}
