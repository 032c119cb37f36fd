"""Shell completion: every script contains every option, shells parse the scripts, and completions
are correct."""

import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from specc.cli.completion import collect_completions, format_one_line_help, render_completion_script
from specc.cli.main import COMMANDS, build_command_parsers, main

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the completion script of every shell."""
    directory = tmp_path_factory.mktemp("scripts")
    made = collect_completions(build_command_parsers())
    for shell in SHELLS:
        (directory / f"specc.{shell}").write_text(
            render_completion_script(shell, made), encoding="utf-8"
        )
    return {shell: directory / f"specc.{shell}" for shell in SHELLS}


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_contain_every_option(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text(encoding="utf-8")
    for name, parser in build_command_parsers().items():
        assert name in text
        for action in parser._actions:
            for option in action.option_strings:
                dashes = (
                    option
                    if shell != "fish"
                    else f"{'-l' if option.startswith('--') else '-s'} {option.lstrip('-')}"
                )
                assert dashes in text, (name, option)


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_parses_the_script(shell: str, scripts: dict[str, Path]) -> None:
    if which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run([shell, "-n", scripts[shell]], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_fish_line_is_a_completion(scripts: dict[str, Path]) -> None:
    lines = scripts["fish"].read_text(encoding="utf-8").splitlines()
    after_function = lines[lines.index("end") + 1 :]
    assert [line for line in after_function if not line.startswith("complete -c specc ")] == []
    assert any("-l version" in line for line in after_function)


def complete_in_bash(words: list[str], scripts: dict[str, Path], tmp_path: Path) -> list[str]:
    """Return the completions of bash; `specc` is replaced by a shell script."""
    (tmp_path / "specc").write_text('#!/bin/sh\necho "gpt2 $2"\necho "layers="\n', encoding="utf-8")
    (tmp_path / "specc").chmod(0o755)
    (tmp_path / "my.specc").touch()
    quoted = " ".join(f"'{word}'" for word in words)
    text = (
        f"source {scripts['bash']}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        "_specc; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "-c", text],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["specc", "che"], {"check"}),
        (["specc", "check", "my"], {"my.specc"}),
        (["specc", "check", "gp"], {"gpt2"}),
        (["specc", "check", "gpt2", "--se"], {"--set"}),
        (["specc", "check", "gpt2", "--set", "la"], {"layers="}),
        (["specc", "compile", "gpt2", "--target", "ort"], {"ort-cpu", "ort-cuda"}),
        (["specc", "list", "ma"], {"masks"}),
        (["specc", "completion", ""], set(SHELLS)),
    ],
)
def test_bash_completions(
    words: list[str], some: set[str], scripts: dict[str, Path], tmp_path: Path
) -> None:
    if which("bash") is None:
        pytest.skip("there is no bash here")
    assert some <= set(complete_in_bash(words, scripts, tmp_path))


def test_fish_completions(scripts: dict[str, Path], tmp_path: Path) -> None:
    if which("fish") is None:
        pytest.skip("there is no fish here")
    text = (
        f"source {scripts['fish']}; complete -C 'specc compile gpt2 --targ'; complete -C 'specc li'"
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", text],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["--target", "list"]


def test_complete_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["_complete", "specs"]) == 0
    assert "gpt2" in capsys.readouterr().out.split()
    assert main(["_complete", "set", "gpt2"]) == 0
    assert "layers=" in capsys.readouterr().out.split()
    assert main(["_complete", "codes"]) == 0
    assert "E0302" in capsys.readouterr().out.split()
    # a missing spec has no completions and prints nothing
    for spec in (["no_such.specc"], []):
        assert main(["_complete", "set", *spec]) == 0
        assert capsys.readouterr() == ("", "")


def test_complete_command_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "_complete" not in capsys.readouterr().out
    assert "_complete" not in COMMANDS


def test_help_text_contains_no_shell_syntax() -> None:
    assert (
        format_one_line_help("it's `rm -rf $HOME`; [x]: 100 %% \n more\\")
        == "its rm -rf HOME; x 100 % more"
    )


def test_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["explain", "e302"]])
def test_help_imports_no_heavy_module(words: list[str]) -> None:
    code = (
        f"import sys; from specc.cli.main import main; main({words!r}); "
        "print(*{m.partition('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(done.stderr.split())
    assert "specc" in loaded
    heavy = {
        "numpy",
        "onnx",
        "onnxruntime",
        "PIL",
        "pygls",
        "lsprotocol",
        "pyarrow",
        "ray",
        "torch",
        "rich",
    }
    assert not loaded & heavy
