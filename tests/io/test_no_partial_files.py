"""`compile` leaves the former complete model or the new one, whatever fails, and says
which code.
"""

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
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.specc").write_text(SPEC)
    (tmp_path / "other.onnx").write_bytes(b"of another program")
    (tmp_path / "nowhere").symlink_to("absent")
    assert (
        cli.main(["compile", "m.specc", "--init", "0", "--weights-as", "copy", "-o", "m.onnx"]) == 0
    )
    return tmp_path


def content(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}


def compiled(*words: str) -> int:
    source = [] if "--weights" in words else ["--init", "1"]
    return cli.main(["compile", "m.specc", *source, "--weights-as", "copy", "-o", "m.onnx", *words])


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_every_call_fails_once(
    call: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ENOSPC from the n-th write, fsync or rename, for every n, until one run gets through."""
    before = content(directory)
    usual: Any = getattr(os, call)
    for nth in range(1, 60):
        seen = 0

        def failing(*args: Any, nth: int = nth, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == nth:
                raise OSError(errno.ENOSPC, "No space left on device")
            return usual(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(output.os, call, failing)
            code = compiled()
        if code == 0:
            assert nth > 1, "nothing was made to fail"
            return
        assert code == 3
        assert "E081" in capsys.readouterr().err
        after = content(directory)
        if after["m.onnx"] == before["m.onnx"]:
            assert after == before
    raise AssertionError("it never got through")


def test_too_little_space_is_seen_before_writing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*args: object) -> int:
        raise AssertionError("written all the same")

    before = content(directory)
    monkeypatch.setattr(output.os, "write", never)
    assert compiled("--set", "width=900000000000") == 3
    err = capsys.readouterr().err
    assert "error[E0813]" in err
    assert "GB needed" in err
    assert content(directory) == before


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
def test_nothing_is_written(
    words: list[str], code: str, status: int, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(directory)
    assert compiled(*words) == status
    assert f"error[{code}]" in capsys.readouterr().err
    assert content(directory) == before
