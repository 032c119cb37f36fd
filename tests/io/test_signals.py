"""A terminated process removes its temporary files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specc.cli import list_doc_explain as list_command
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.io import platform_and_signals
from specc.io.atomic_write import create_temporary_directory

WAITING = """
import sys, time
from pathlib import Path
from specc.cli import main
from specc.io.atomic_write import create_temporary_directory
from specc.io.atomic_write import OutputDirectory

def stays(given):
    # what compile, export and map do: a create_temporary_directory folder, and files that are half
    # written
    def chunks():
        yield b"half"
        print("here", flush=True)
        time.sleep(60)
    with create_temporary_directory() as folder, OutputDirectory(Path("out")) as out:
        (folder / "sums").write_bytes(b"x")
        out.write_named_file("m.onnx", chunks())

import specc.cli.list_doc_explain
specc.cli.list_doc_explain.execute_list_command = stays
sys.argv = ["specc", "list"]
main.run_main_and_exit()
"""


@pytest.mark.parametrize(
    "name",
    [
        "SIGTERM",
        pytest.param("SIGHUP", marks=pytest.mark.parity),
        pytest.param("SIGINT", marks=pytest.mark.parity),
    ],
)
def test_signal_removes_temporary_files(name: str, tmp_path: Path) -> None:
    number = getattr(signal, name)
    (tmp_path / "t").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "t")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    assert list((tmp_path / "t").iterdir())
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert b"no further output was written" in told
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["t"]


@pytest.mark.skipif(os.name != "posix", reason="signals are sent to no process there")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
@pytest.mark.parametrize("loading", [True, False])
def test_signal_masked_by_an_import_error(
    name: str, loading: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """C extensions that are interrupted during initialization raise ImportError."""
    number = getattr(signal, name)

    def interrupt_import(*_: object) -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None
        return 0

    monkeypatch.setattr(platform_and_signals, "RECEIVED_SIGNALS", [])
    monkeypatch.setattr(
        list_command, "add_list_arguments" if loading else "execute_list_command", interrupt_import
    )
    numbers = [signal.SIGINT, *(getattr(signal, n) for n in platform_and_signals.SIGNAL_NAMES)]
    before = [signal.getsignal(n) for n in numbers]
    try:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        platform_and_signals.install_termination_handlers()
        assert main(["list"]) == 128 + number
    finally:
        for each, handler in zip(numbers, before, strict=True):
            signal.signal(each, handler)
    assert "no further output was written" in capsys.readouterr().err


def test_missing_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(SpeccError, match="E0810"), create_temporary_directory():
        pass
