"""After any failure of `compile` the previous or the new model is complete, and the exit code is
correct."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from specc.cli import main as cli
from specc.io import atomic_write as output

SPEC = """specc 1
model m

config {
  width: int = 64
}

dims batch, n

graph g(x: float[batch, n, 64]) -> (y: float[batch, n, width]) {
  y = linear(x, out=width) @ w
  return y
}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a working directory with a spec and a compiled model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.specc").write_text(SPEC)
    (tmp_path / "other.onnx").write_bytes(b"of another program")
    (tmp_path / "nowhere").symlink_to("absent")
    assert (
        cli.main(["compile", "m.specc", "--init", "0", "--weights-as", "copy", "-o", "m.onnx"]) == 0
    )
    return tmp_path


def read_files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}


def execute_compile(*words: str) -> int:
    source = [] if "--weights" in words else ["--init", "1"]
    return cli.main(["compile", "m.specc", *source, "--weights-as", "copy", "-o", "m.onnx", *words])


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_each_failing_call_leaves_a_complete_model(
    call: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raise ENOSPC in the n-th write, fsync or rename, for every n until one run succeeds."""
    before = read_files(directory)
    usual: Any = getattr(os, call)
    for nth in range(1, 60):
        seen = 0

        def fail_nth_call(*args: Any, nth: int = nth, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == nth:
                raise OSError(errno.ENOSPC, "No space left on device")
            return usual(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(output.os, call, fail_nth_call)
            code = execute_compile()
        if code == 0:
            assert nth > 1, "nothing was made to fail"
            return
        assert code == 3
        assert "E081" in capsys.readouterr().err
        after = read_files(directory)
        if after["m.onnx"] == before["m.onnx"]:
            assert after == before
    raise AssertionError("it never got through")


def test_missing_disk_space_is_detected_before_writing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_on_write(*args: object) -> int:
        raise AssertionError("written all the same")

    before = read_files(directory)
    monkeypatch.setattr(output.os, "write", fail_on_write)
    assert execute_compile("--set", "width=900000000000") == 3
    err = capsys.readouterr().err
    assert "error[E0813]" in err
    assert "GB needed" in err
    assert read_files(directory) == before


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (["--set", "width=0"], "E0308", 1),
        (["--set", "width=9007199254740991"], "E0308", 1),
        (["--set", "width=wide"], "E0202", 1),
        (["--opset", "3"], "E0821", 2),
        (["--tap", "nothing.*"], "E0408", 2),
        (["--graph", "h"], "E0219", 1),
        (["--weights", "absent.safetensors"], "E0802", 3),
        (["--weights", "m.specc"], "E0506", 1),
        (["--config", "absent.json"], "E0802", 3),
        (["-o", "nowhere/m.onnx"], "E0810", 3),
        (["-o", "m.txt"], "E0816", 1),
        (["-o", "other.onnx"], "E0833", 1),
        (["-o", "m.specc"], "E0814", 1),
        (["-o", "."], "E0811", 1),
        (["-o", "a\0b.onnx"], "E0815", 3),
        (["-o", "n" * 300 + ".onnx"], "E0815", 3),
    ],
)
def test_failed_compile_writes_nothing(
    words: list[str], code: str, status: int, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_files(directory)
    assert execute_compile(*words) == status
    assert f"error[{code}]" in capsys.readouterr().err
    assert read_files(directory) == before
