"""The command line: help, unknown options, formats, colors, closed streams, and the modules that
`check` imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specc.cli import main as cli
from specc.cli.list_doc_explain import WEIGHT_RULE_DOCS
from specc.cli.options import OPTIONS_OF_OTHER_TOOLS
from specc.diagnostics.render import escape_control_characters
from specc.driver.weights_section_and_load_transforms import WEIGHT_TRANSFORMS
from specc.io.platform_and_signals import ProcessTerminatedError

SPECC = [sys.executable, "-m", "specc"]
SPEC = """specc 1
model m

dims batch, n

graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 4]) {
  y = linear(x, out=4) @ w
  return y
}
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "m.specc").write_text(SPEC)
    (tmp_path / "bad.specc").write_text(SPEC.replace("linear", "lineer"))
    return tmp_path


def run_process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run specc in a new process."""
    root = str(Path(cli.__file__).parents[2])
    paths = os.pathsep.join([root, os.path.join(root, "backends")])
    env = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(
        [*SPECC, *words], capture_output=True, text=True, env=env, timeout=60, check=False
    )


# --- arguments ----------------------------------------------------------------------


def test_usage_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    for command in cli.COMMANDS:
        assert command in captured.err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_each_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: specc {command}")
    assert not captured.err


@pytest.mark.parametrize("word", ["--help", "-h", "--version"])
def test_help_and_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word]) == 0
    assert "specc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek", "gpt2"], "unknown command `chek`; did you mean `check`?"),
        (["chek\x1b[31m"], "unknown command `chek\\x1b[31m`"),
        (["--color", "never", "check"], "options follow the command"),
        (["--"], "options follow the command"),
        (
            ["check", "m.specc", "--confg", "x"],
            "unknown option `--confg`; did you mean `--config`?",
        ),
        (
            ["check", "m.specc", "--form", "json"],
            "unknown option `--form`; did you mean `--format`?",
        ),
        (["check"], "the following arguments are required: SPEC"),
        (
            ["run", "x.onnx", "--max_new_tokens=3"],
            "unknown option `--max_new_tokens`; did you mean `--max-tokens`?",
        ),
        (["check", "m.specc", "--top-k", "3"], "`specc run`, `specc map` have `--top-k`"),
        (["check", "m.specc", "n.specc"], "unrecognized arguments: n.specc"),
        (["check", "m.specc", "--format", "xml"], "invalid choice: 'xml'"),
        (
            ["compile", "m.specc", "-o", "x.onnx", "--init", "-1"],
            "a seed must be an integer from 0",
        ),
        (
            ["compile", "m.specc", "-o", "x.onnx", "--init", str(2**64)],
            "a seed must be an integer from 0",
        ),
        (
            ["compile", "m.specc", "-o", "x.onnx", "--init", "9" * 5000],
            "a seed must be an integer from 0",
        ),
        (["verify", "x.onnx", "--rounds", "0"], "a number of rounds must be an integer from 1"),
    ],
)
def test_usage_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error[E0983]: ")
    assert said in captured.err
    assert len(captured.err.splitlines()) <= 3, "the message and two helps, without the usage"
    assert not captured.out
    assert not list(Path().glob("*.onnx*"))


@pytest.mark.parametrize("option", OPTIONS_OF_OTHER_TOOLS)
def test_option_of_another_tool_suggests_ours(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, _, value = OPTIONS_OF_OTHER_TOOLS[option].partition(" ")
    parsers = cli.build_command_parsers()
    having = [name for name, p in parsers.items() if ours in p._option_string_actions]
    assert having
    assert not any(option in p._option_string_actions for p in parsers.values())
    for name in having:
        action = parsers[name]._option_string_actions[ours]
        assert not value or value in (action.choices or (value,))
        words = ["-o", "x"] if "-o" in parsers[name]._option_string_actions else []
        cli.main([name, *"abc", *words, option])
        said = capsys.readouterr().err
        if "no option" in said:  # not an error about another argument
            assert f"did you mean `{OPTIONS_OF_OTHER_TOOLS[option]}`?" in said


@pytest.mark.parametrize(
    "name", ["-x.specc", "a b.specc", "naïve 🙂.specc", "new\nline.specc", "x'\"$(y).specc"]
)
def test_unusual_spec_file_names(
    name: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / name).write_text(SPEC)
    assert cli.main(["check", "--", name]) == 0
    (directory / name).write_text(SPEC.replace("linear", "lineer"))
    assert cli.main(["check", f"./{name}"]) == 1
    assert escape_control_characters(name) in capsys.readouterr().err


# --- formats and colors ---------------------------------------------------------------


def test_short_format_prints_one_line_per_diagnostic(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "bad.specc", "--format", "short"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "bad.specc:7:7: error[E0204]: unknown block or operation `lineer`\n"
    assert not captured.out


@pytest.mark.parametrize(("file", "count"), [("bad.specc", 1), ("m.specc", 0)])
def test_json_on_stdout_only(file: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", file, "--format", "json"]) == count
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    found = [line for line in lines if "code" in line]
    assert len(found) == count
    # the result of a successful check (test_json_results.py)
    assert len(lines) == 1
    assert not captured.err
    if found:
        assert found[0]["code"] == "E0204"


@pytest.mark.parametrize(("file", "count"), [("bad.specc", 1), ("m.specc", 0)])
def test_sarif_on_stdout_only(file: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", file, "--format", "sarif"]) == count
    captured = capsys.readouterr()
    log = json.loads(captured.out)
    assert log["version"] == "2.1.0"
    assert len(log["runs"][0]["results"]) == count
    assert not captured.err


@pytest.mark.parametrize(
    ("environment", "words", "colored"),
    [
        ({}, [], False),  # stderr is not a terminal
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
        ({"FORCE_COLOR": "1"}, ["--color", "never"], False),
    ],
)
def test_colors(
    environment: dict[str, str],
    words: list[str],
    colored: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cli.main(["check", "bad.specc", *words])
    assert ("\x1b[" in capsys.readouterr().err) == colored


# --- exit codes -----------------------------------------------------------------------


def test_internal_error_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specc.cli import check

    def raise_key_error(*given: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(check, "check_spec", raise_key_error)
    assert cli.main(["check", "m.specc"]) == 70
    assert "this is a bug in specc" in capsys.readouterr().err
    with pytest.raises(KeyError):
        cli.main(["check", "m.specc", "--debug"])


@pytest.mark.parametrize(
    ("stop", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ProcessTerminatedError(15), 143, "terminated"),
        (ProcessTerminatedError(1), 129, "terminated"),
    ],
)
def test_interrupt_exit_code(
    stop: KeyboardInterrupt,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from specc.cli import check

    def raise_interrupt(*given: object) -> None:
        raise stop

    monkeypatch.setattr(check, "check_spec", raise_interrupt)
    assert cli.main(["check", "m.specc"]) == status
    assert said in capsys.readouterr().err
    monkeypatch.setattr("specc.cli.main.import_module", raise_interrupt)
    assert cli.main(["check", "gpt2"]) == status  # interrupted during import
    assert capsys.readouterr().err.startswith(said)


# --- in a new process ---------------------------------------------------------------


def test_check_loads_no_backend() -> None:
    """`specc check` starts fast because it imports no backend."""
    code = (
        "import sys; from specc.cli.main import main; code = main(['check', 'gpt2']); "
        "print(code, *sorted(m for m in sys.modules if '.' not in m), file=sys.stderr)"
    )
    root = str(Path(cli.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.path.join(root, "backends")])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=True,
    )
    status, *loaded = done.stderr.splitlines()[-1].split()
    assert status == "0"
    heavy = {
        "onnx",
        "onnxruntime",
        "numpy",
        "torch",
        "ml_dtypes",
        "PIL",
        "google",
        "specc_onnx",
        "specc_numpy",
        "lark",
    }
    assert not heavy & set(loaded)


def test_closed_stdout_pipe() -> None:
    root = str(Path(cli.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.path.join(root, "backends")])}
    with subprocess.Popen(
        [*SPECC, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, bufsize=0
    ) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == b""
        assert running.wait(60) == 141


@pytest.mark.parity
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_stdout_device() -> None:
    root = str(Path(cli.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.path.join(root, "backends")])}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*SPECC, "list"], stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False
        )
    assert done.returncode == 3
    assert done.stderr.startswith("error[E0805]")


@pytest.mark.parity
def test_ascii_terminal() -> None:
    done = run_process("check", "naïve.specc", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 3
    assert "na\\xefve.specc" in done.stderr


@pytest.mark.parity
def test_errors_under_optimized_python() -> None:
    """Python -OO removes assertions; user errors are still reported."""
    done = run_process("check", "bad.specc", PYTHONOPTIMIZE="2")
    assert done.returncode == 1
    assert "E0204" in done.stderr


@pytest.mark.parity
def test_closed_stdout_and_stderr(directory: Path) -> None:
    root = str(Path(cli.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.path.join(root, "backends")])}
    words = ["sh", "-c", 'exec "$0" -m specc check m.specc >&- 2>&-', sys.executable]
    assert subprocess.run(words, env=env, check=False, timeout=60).returncode == 0


EMPTY = [
    (command, option)
    for command, parser in cli.build_command_parsers().items()
    for action in parser._actions
    if action.default == "" and action.choices is None
    for option in action.option_strings[:1]
]


@pytest.mark.parametrize("form", ["two words", "one"])
def test_option_with_empty_value(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--adapter "$ADAPTER"` passes an empty string if the variable is not set."""
    for command, option in EMPTY:
        given = [option, ""] if form == "two words" else [f"{option}="]
        assert cli.main([command, "bad.specc", *given]) == 2, (command, option)
        said = capsys.readouterr().err
        assert "E0983" in said, (command, option)
        assert option in said, command


def test_options_that_reject_empty_values_are_found() -> None:
    assert {("compile", "--adapter"), ("compile", "--weights")} <= {*EMPTY}


def test_every_weight_transformation_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert WEIGHT_RULE_DOCS.keys() == {*WEIGHT_TRANSFORMS}
    assert cli.main(["doc", "first_present"]) == 0
    assert "first argument whose tensors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "tried"),
    [
        ("xor", ""),
        ("lstm_lm", " (tried layers = 1, layers = 2, tied = false, tied = true)"),
        ("bert", " (tried 18 values of 8 config fields)"),
    ],
)
def test_check_counts_many_trial_values(
    name: str, tried: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", name]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "all sizes" in line]
    assert line == f"  shapes are valid for all sizes{tried}"


def test_check_lists_unchecked_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    (Path("m.specc")).write_text(SPEC + SPEC[SPEC.index("graph g") :].replace("graph g", "graph h"))
    assert cli.main(["check", "m.specc"]) == 0
    assert "other graphs (check them with --graph NAME): h\n" in capsys.readouterr().out
