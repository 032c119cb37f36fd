"""Other platforms: functions that only Linux has are removed, and everything still works."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.io import atomic_write, output_paths, platform_and_signals
from specc.io.atomic_write import write_file_atomically

WITHOUT = """
import builtins, collections, importlib, os, mmap, shutil, signal, sys
Usage = collections.namedtuple("Usage", "total used free")
shutil.disk_usage = lambda folder: Usage(10**12, 0, 10**12)  # Windows has its own implementation
for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "fchmod", "statvfs", "fstatvfs", "getuid",
             "geteuid", "getpgid", "killpg", "fork", "pread", "preadv", "pwrite", "sched_getaffinity", "mkfifo"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("PROT_READ", "PROT_WRITE", "MAP_PRIVATE", "MAP_SHARED"):
    if hasattr(mmap, name):
        delattr(mmap, name)
for name in ("SIGKILL", "SIGALRM", "SIGHUP"):
    if hasattr(signal, name):
        delattr(signal, name)
was = builtins.__import__
def imported(name, *rest, **more):
    if name in ("fcntl", "resource", "pwd", "grp", "termios"):
        raise ImportError(name)
    return was(name, *rest, **more)
builtins.__import__ = imported
import specc.io.platform_and_signals as system
system.IS_WINDOWS = True
def never(*given):
    raise AssertionError("asking would end the process")
os.kill = never
from specc.cli.main import main
for words in WORDS:
    status = main(words)
    assert status == 0, (words, status)
"""
LM = ["--set", "d=16", "--set", "heads=2", "--set", "layers=1", "--set", "vocab=11"]


@pytest.mark.parity
def test_commands_without_posix_functions(tmp_path: Path) -> None:
    (tmp_path / ".specc-999999-0").write_bytes(b"left behind")
    words = [
        ["check", "gpt2", *LM],
        ["compile", "gpt2", *LM, "--init", "1", "--weights-as", "copy", "-o", "m.onnx"],
        ["compile", "gpt2", *LM, "--init", "1", "--weights-as", "copy", "-o", "m.onnx"],
        ["compile", "gpt2", *LM, "--init", "1", "--graphs", "all", "-o", "out"],
        ["compile", "digits", "-o", "d.onnx"],
        ["run", "out", "[[1, 2]]", "--max-tokens", "3"],
        ["verify", "m.onnx", "--rounds", "1"],
        ["show", "m.onnx"],
    ]
    text = WITHOUT.replace("WORDS", repr(words))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # a process whose state is unknown counts as alive
    assert (tmp_path / ".specc-999999-0").exists()


@pytest.mark.parametrize(
    "name",
    [
        "con.onnx",
        "AUX.onnx",
        "nul.tar.onnx",
        "com1.onnx",
        "LPT9.onnx",
        "con .onnx",
        "prn",
        "out.",
        "out ",
        "out. .",
    ],
)
def test_unportable_names_are_rejected(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    more = [] if name.endswith(".onnx") else ["--graphs", "score"]
    assert main(["compile", "xor", "-o", name, *more]) == 1
    assert "E0958" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["console.onnx", "com10.onnx", "a.con.onnx", ".hidden", "..", ".", "auxiliary"]
)
def test_portable_names(name: str) -> None:
    assert not output_paths.explain_unportable_file_name(name)


@pytest.mark.parametrize("names", ["specc", "hf", "genai"])
def test_package_file_names_differ_when_case_folded(names: str, tmp_path: Path) -> None:
    parts = ["--graphs", "step", "--io-names", names] if names != "specc" else ["--graphs", "all"]
    out = tmp_path / "out"
    assert main(["compile", "gpt2", *LM, "--init", "1", *parts, "-o", str(out), "-q"]) == 0
    found = [path.name for path in out.iterdir()]
    assert len({name.casefold() for name in found}) == len(found)
    assert not [name for name in found if output_paths.explain_unportable_file_name(name)]


def test_replacing_an_open_file_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, really = [0], os.replace

    def replace_busy_file(source: Path, target: Path) -> None:
        times[0] += 1
        if times[0] < 3:
            raise PermissionError(errno.EACCES, "it is open")
        really(source, target)

    monkeypatch.setattr(os, "replace", replace_busy_file)
    monkeypatch.setattr(platform_and_signals, "IS_WINDOWS", True)
    monkeypatch.setattr(atomic_write, "RETRY_SECONDS", 0.0)
    write_file_atomically(tmp_path / "a.txt", [b"new"])
    assert (times[0], (tmp_path / "a.txt").read_bytes()) == (3, b"new")
    # a file that stays open causes an error and remains unchanged
    times[0] = -10
    with pytest.raises(SpeccError, match="E0812"):
        write_file_atomically(tmp_path / "a.txt", [b"newer"])
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == b"new"
    # other errors are not retried
    times[0] = 1
    monkeypatch.setattr(platform_and_signals, "IS_WINDOWS", False)
    with pytest.raises(SpeccError, match="E0812"):
        write_file_atomically(tmp_path / "a.txt", [b"newer"])
    assert times[0] == 2


def test_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_not_permitted(*given: object, **more: object) -> None:
        raise OSError(errno.EPERM, "no such thing")

    (tmp_path / "a").write_bytes(b"kept")
    monkeypatch.setattr(os, "link", raise_not_permitted)
    platform_and_signals.link_or_copy_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"kept"


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_vocabulary_line_endings(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specc.diagnostics.diagnostic import Source
    from specc.preprocessing.vocabulary import parse_vocabulary

    assert parse_vocabulary(Source("v", ends.join(["a", '"\\n"', "b", ""]))) == ("a", "\n", "b")
