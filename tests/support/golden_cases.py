"""Run a case of `tests/golden/errors`: write its files, run its commands, and return their
messages.

A case is a spec, which is checked; or lines `$ specc …` (commands), lines `% …` (injected failures)
and files after `=== name`. Arrays and weights are written as JSON: `=== x.npy`, `=== w.safetensors`
(name: shape, or `{"shape": …, "value": …, "dtype": …}`); `=== f hex` contains bytes, `=== f link`
is a link. The output contains only commands that fail or warn.
"""

import errno
import json
import os
import re
import shlex
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from specc import backend
from specc.cli import check, new_and_lsp
from specc.cli import main as cli
from specc.io import atomic_write as output
from specc.preprocessing import chat_template
from specc.runtime import single_model_file as running
from specc_onnx.model_reader import BLANK_HASH, HASH_KEY, insert_model_hash

DTYPES = {
    "I32": "<i4",
    "F32": "<f4",
    "F64": "<f8",
    "F16": "<f2",
    "I64": "<i8",
    "BF16": ml_dtypes.bfloat16,
}


def run_golden_case(
    case: str,
    directory: Path,
    patch: pytest.MonkeyPatch,
    capture: pytest.CaptureFixture[str],
    name: str,
) -> str:
    """Return the messages and exit status of each command of a case that fails or warns."""
    patch.chdir(directory)
    patch.setenv("NO_COLOR", "1")
    lines = case.splitlines(keepends=True)
    if not case.startswith(("$", "%", "===")):
        lines = ["$ specc check " + name + "\n", f"=== {name}\n", *lines]
    commands, files = split_sections(lines)
    for file, kind, text in files:
        write_case_file(directory / file, kind, text)
    out = []
    for line in commands:
        if line.startswith("%"):
            inject_failure(line[1:].strip(), directory, patch)
            continue
        words = shlex.split(line[1:])
        assert words[0] == "specc", line
        code = cli.main(words[1:])
        captured = capture.readouterr()
        heard = f"{captured.err}{captured.out}" if code else captured.err
        if code or "warning[" in heard:
            out.append(f"{heard}exit {code}\n".replace(f"{directory.resolve()}/", ""))
    assert out, "nothing failed"
    return "\n".join(out)


def split_sections(lines: list[str]) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return the lines of a case as commands, and its files as (name, kind, text)."""
    commands: list[str] = []
    files: list[tuple[str, str, str]] = []
    for line in lines:
        if line.startswith("=== "):
            name, _, kind = line[4:].strip().partition(" ")
            files.append((name, kind, ""))
        elif files:
            name, kind, text = files[-1]
            files[-1] = (name, kind, text + line)
        elif line.strip():
            commands.append(line.rstrip("\n"))
    return commands, files


def write_case_file(path: Path, kind: str, text: str) -> None:
    """Write a file of a case in the format of its name and kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(text.strip())
    elif kind == "hex":
        path.write_bytes(bytes.fromhex(re.sub(r"\s", "", text)))
    elif path.suffix == ".npy":
        np.save(path, np.array(json.loads(text)))
    elif path.suffix == ".safetensors" and kind != "text":
        path.write_bytes(encode_safetensors(json.loads(text)))
    else:
        path.write_text(text, encoding="utf-8")


def encode_safetensors(described: dict[str, Any]) -> bytes:
    """Return a safetensors file in which each tensor has one value everywhere."""
    header: dict[str, Any] = {}
    data = b""
    for name, what in described.items():
        facts = what if isinstance(what, dict) else {"shape": what}
        dtype = facts.get("dtype", "F32")
        array = np.full(facts["shape"], float(facts.get("value", 0.5)), "f8").astype(
            DTYPES.get(dtype, "u1")
        )
        header[name] = {
            "dtype": dtype,
            "shape": facts["shape"],
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


# --- injected failures ------------------------------------------------------------------


def inject_failure(failure: str, directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Cause a failure of later commands: `% full disk`; or change a file: `% manifest m.onnx
    {"format": 9}`.
    """
    word, _, rest = failure.partition(" ")
    if word == "manifest":
        path, _, change = rest.partition(" ")
        _rewrite(directory / path, json.loads(change))
    elif word == "cut":
        path, _, size = rest.partition(" ")
        (directory / path).write_bytes((directory / path).read_bytes()[: int(size)])
    else:
        FAILURES[failure](patch)


def _rewrite(path: Path, change: dict[str, Any]) -> None:
    model = onnx.load(path)
    (entry,) = [e for e in model.metadata_props if e.key == "specc"]
    entry.value = json.dumps({**json.loads(entry.value), **change})
    if not change:
        model.metadata_props.remove(entry)
    for entry in model.metadata_props:
        if entry.key == HASH_KEY:
            entry.value = BLANK_HASH
    path.write_bytes(b"".join(insert_model_hash(model.SerializeToString())))


def _raises(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*args: object, **kwargs: object) -> NoReturn:
        raise error

    return fail


def _full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(output.os, "write", _raises(OSError(errno.ENOSPC, "No space left on device")))


def _readonly(patch: pytest.MonkeyPatch) -> None:
    usual = os.open

    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return usual(path, flags, *args, **kwargs)

    patch.setattr(output.os, "open", opened)


def _no_onnx(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backend, "import_module", _raises(ModuleNotFoundError("no onnx", name="onnx")))


FAILURES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "full disk": _full,
    "read-only disk": _readonly,
    "failing disk": lambda p: p.setattr(
        output.os, "write", _raises(OSError(errno.EIO, "Input/output error"))
    ),
    "no memory": lambda p: p.setattr(check, "check_spec", _raises(MemoryError())),
    "too many files": lambda p: p.setattr(
        check, "check_spec", _raises(OSError(errno.EMFILE, "Too many open files"))
    ),
    "onnx is missing": _no_onnx,
    "pyarrow is missing": lambda p: p.setitem(sys.modules, "pyarrow", None),
    "Pillow is missing": lambda p: p.setitem(sys.modules, "PIL", None),
    "tokenizers is missing": lambda p: p.setitem(sys.modules, "tokenizers", None),
    "pygls is missing": lambda p: p.setattr(new_and_lsp, "find_spec", lambda name: None),
    "jinja2 is missing": lambda p: p.setattr(chat_template, "find_spec", lambda name: None),
    "the runtime stops": lambda p: p.setattr(
        onnxruntime.InferenceSession, "run", _raises(RuntimeError("Non-zero status code returned"))
    ),
    "the runtime refuses": lambda p: p.setattr(
        onnxruntime, "InferenceSession", _raises(RuntimeError("No such file: external data"))
    ),
    "wrong results": lambda p: p.setattr(
        running.LoadedModel,
        "weights",
        lambda self: {
            n: a + 1 for n, a in self.file.read_weights(self.manifest.initializers).items()
        },
    ),
}
"""Failures of the environment, which files cannot cause."""
