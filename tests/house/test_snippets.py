"""What pages tell people to type can be typed: every command of `specc` in the
documentation is one that its parser takes, Python can be read and imports what there
is, and what needs no more than a shipped model is run.
"""

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


def commands() -> list[tuple[str, str]]:
    """Each page with each command in its blocks."""
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


def refused(words: list[str], parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """Why a command line is not taken; nothing where it is."""
    if not words or words[0] not in parsers:
        return "" if words[:1] in ([], ["COMMAND"], ["--help"]) else "no such command"
    parser = parsers[words[0]]
    try:
        parser.parse_intermixed_args(words[1:])
    except UsageError:
        return f"specc {' '.join(words)}"
    except SystemExit:  # what `--help` ends with
        return ""
    return ""


def test_every_command_of_the_pages_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = build_command_parsers()
    lines = commands()
    assert len(lines) > 60
    wrong = {
        f"{page}: {why}" for page, line in lines if (why := refused(shlex.split(line), parsers))
    }
    assert not wrong, capsys.readouterr().err


def test_every_command_has_an_example_that_its_parser_takes() -> None:
    parsers = build_command_parsers()
    assert all(command.example for command in COMMANDS.values())
    assert not [
        line
        for line in (c.example for c in COMMANDS.values())
        if refused(shlex.split(line), parsers)
    ]


def test_a_command_that_is_not_taken_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = build_command_parsers()
    for line in ("complie vit", "compile vit --wieghts x", "verify"):
        assert refused(line.split(), parsers)
    assert not refused(["check", "vit"], parsers)
    capsys.readouterr()


def snippets() -> list[tuple[str, int, str]]:
    """Each page with each block of Python in it."""
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
    ("page", "n", "text"), [pytest.param(*s, id=f"{s[0]}-{s[1]}") for s in snippets()]
)
def test_python_of_the_pages_imports_what_there_is(page: str, n: int, text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specc"):
            if node.module == "specc_torch":
                continue  # it needs torch, and pages about it are run where that is
            module = import_module(node.module or "")
            missing = [a.name for a in node.names if not hasattr(module, a.name)]
            assert not missing, f"{node.module} has no {missing}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "specc" or hasattr(specc, node.attr), node.attr


RUN = {"README.md", "attention-plots.md", "generation.md"}
"""Pages whose Python needs a shipped model and nothing else."""
LINES = ["de 305", "en 21016"]


@pytest.mark.parity
@pytest.mark.parametrize("page", sorted(RUN))
def test_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page one after the other, as one program."""
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "digits", "-o", "out/digits.onnx", "-q"]) == 0
    assert main(["compile", "numbers", "--graphs", "all", "-o", "out/numbers", "-q"]) == 0
    names = {
        "specc": specc,
        "image": np.zeros((1, 1, 8, 8), np.float32),
        "model": specc.load("out/numbers"),
        "lines": LINES,
    }
    texts = [text for name, _, text in snippets() if name == page]
    assert len(texts) >= 2
    # the page writes about any model; ours knows numbers and few letters
    program = "\n".join(texts).replace("Once upon a time", LINES[0])
    exec(compile(program, page, "exec"), names)
    assert capsys.readouterr().err == ""
    if page == "attention-plots.md":
        assert {"seven.svg", "gpt2.svg"} <= {p.name for p in tmp_path.iterdir()}
