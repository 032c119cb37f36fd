"""A loaded model is the compiled model: changed bytes are detected, no file stays open, no file
outside the package is read.
"""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import specc
from specc.cli import main as cli
from specc.diagnostics.diagnostic import SpeccError
from specc.weights.formats.safetensors import write_safetensors

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n, 64]) -> (y: float[batch, n, 64]) {
  x = relu(linear(x, out=%d) @ a)
  return linear(x, out=64) @ b
}
"""
WIDE = 2200
"""Width for which the weights are longer than the part that every load compares."""
KINDS = {
    "linked": ("m.onnx", "--weights-as", "link"),
    "copied": ("m.onnx", "--weights-as", "copy"),
    "inline": ("m.onnx", "--weights-as", "inline"),
    "package linked": ("pack", "--graphs", "score", "--weights-as", "link"),
    "package": ("pack", "--graphs", "score", "--weights-as", "copy"),
}


def compiled(directory: Path, kind: str, *more: str) -> Path:
    """Return a model or package of two linear layers whose weights are in its directory."""
    out, *options = KINDS[kind]
    home = directory / "pack" if out == "pack" else directory
    home.mkdir(exist_ok=True, parents=True)
    (directory / "m.specc").write_text(SPEC % WIDE)
    rng = np.random.default_rng(0)
    shapes = {"a.weight": (WIDE, 64), "a.bias": (WIDE,), "b.weight": (64, WIDE), "b.bias": (64,)}
    numbers = {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()}
    write_safetensors(home / "w.safetensors", numbers)
    words = [
        "compile",
        str(directory / "m.specc"),
        "--weights",
        str(home / "w.safetensors"),
        "-o",
        str(directory / out),
    ]
    assert cli.main([*words, *options, *more]) == 0
    return directory / out


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {kind: compiled(root / kind.replace(" ", "_"), kind) for kind in KINDS}


def list_model_files(model: Path, kind: str) -> list[Path]:
    """Return all files of a model."""
    if model.is_dir():
        return sorted(
            p for p in model.iterdir() if kind == "package linked" or p.name != "w.safetensors"
        )
    beside = {"linked": "w.safetensors", "copied": "*.data"}.get(kind)
    return [model, *(model.parent.glob(beside) if beside else ())]


def get_error_code(model: Path) -> int:
    return cli.main(["verify", str(model), "--rounds", "1"])


def flip_byte(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def assert_flips_detected(model: Path, kind: str, seeds: range) -> int:
    assert get_error_code(model) == 0, "unharmed"
    for seed in seeds:
        draw = random.Random(f"{kind} {seed}")
        path = draw.choice(list_model_files(model, kind))
        at, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
        flip_byte(path, at, bit)
        try:
            assert get_error_code(model) != 0, f"byte {at} of {path.name}, bit {bit}"
        finally:
            flip_byte(path, at, bit)
    assert get_error_code(model) == 0, "mended"
    return len(seeds)


@pytest.mark.parametrize("kind", KINDS)
def test_verify_detects_every_changed_byte(models: dict[str, Path], kind: str) -> None:
    assert_flips_detected(models[kind], kind, range(12))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_verify_detects_changed_bytes_in_many_places(models: dict[str, Path], kind: str) -> None:
    assert_flips_detected(models[kind], kind, range(12, 300))


def get_load_error(model: Path) -> str:
    """Return the code of the error when a model is opened; "" if it opens."""
    try:
        specc.load(str(model))
    except SpeccError as failed:
        return failed.diagnostics[0].code
    return ""


@pytest.mark.parametrize("kind", ["linked", "package linked"])
def test_load_detects_changed_size_and_changed_first_bytes(tmp_path: Path, kind: str) -> None:
    model = compiled(tmp_path, kind)
    weights = next(tmp_path.rglob("w.safetensors"))
    code = "E0830" if model.is_dir() else "E0929"
    assert not get_load_error(model)
    flip_byte(weights, 1000, 0)
    assert get_load_error(model) == code
    flip_byte(weights, 1000, 0)
    assert not get_load_error(model)
    with weights.open("ab") as file:
        file.write(b"x")
    assert get_load_error(model) == code


@pytest.mark.parametrize("kind", ["linked", "package linked", "package", "copied"])
def test_zeroed_bytes_are_detected_by_verify_and_by_load_with_full_check(
    tmp_path: Path, kind: str
) -> None:
    for more, at_load in (((), False), (("--hash", "full"), True)):
        shutil.rmtree(tmp_path)
        model = compiled(tmp_path, kind, *more)
        weights = list_model_files(model, kind)
        path = max(weights, key=lambda p: p.stat().st_size)
        with path.open("r+b") as file:
            file.seek(path.stat().st_size - 4096)
            file.write(bytes(4096))
        assert get_error_code(model) != 0
        assert bool(get_load_error(model)) == at_load, more


def list_invalid_locations(model: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield invalid locations of external weights."""
    data = next(model.parent.glob("*.data"))
    size = data.stat().st_size
    good = {"location": data.name, "offset": "0", "length": str(64 * WIDE * 4)}
    yield "behind the end", {**good, "offset": str(size - 4)}
    yield "far behind the end", {**good, "offset": str(2**63)}
    yield "negative offset", {**good, "offset": "-4096"}
    yield "negative length", {**good, "length": "-1"}
    yield "no length", {**good, "length": "0"}
    yield "length left out", {k: v for k, v in good.items() if k != "length"}
    yield "length too great", {**good, "length": str(2**70)}
    yield "no number", {**good, "offset": "0x10"}
    yield "digits of another script", {**good, "offset": "٣"}
    yield "other file", {**good, "location": "other.data"}
    yield "absolute", {**good, "location": "/etc/passwd"}
    yield "outside", {**good, "location": "../outside.data"}
    yield "folder", {**good, "location": "."}
    yield "no location", {**good, "location": ""}
    yield "NUL", {**good, "location": "a\0b"}
    (model.parent / "link.data").symlink_to(data)
    yield "symlink", {**good, "location": "link.data"}
    os.link(data, model.parent / "hard.data")
    yield "two links", good
    (model.parent / "hard.data").unlink()
    os.replace(data, model.parent / "moved.data")
    data.symlink_to(model.parent / "moved.data")
    yield "became a symlink", good
    data.unlink()
    yield "is gone", good
    os.mkfifo(data)
    yield "became a pipe", good


def test_invalid_weight_locations_are_refused_at_load(tmp_path: Path) -> None:
    model = compiled(tmp_path, "copied")
    (tmp_path.parent / "outside.data").write_bytes(bytes(10**6))
    whole = model.read_bytes()
    for name, places in list_invalid_locations(model):
        made = onnx.load_model_from_string(whole)
        tensor = next(t for t in made.graph.initializer if t.data_location == TensorProto.EXTERNAL)
        del tensor.external_data[:]
        for key, value in places.items():
            tensor.external_data.add(key=key, value=value)
        model.write_bytes(made.SerializeToString())
        assert get_load_error(model) == "E0929", name
        assert get_error_code(model) not in (0, 70), name


def list_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="the system does not list open files"
)
def test_files_are_closed_after_success_and_failure(tmp_path: Path) -> None:
    """Successful and failing calls of compile, load, run and verify."""

    def all_of_it() -> None:
        for kind in ("linked", "package"):
            model = compiled(tmp_path, kind)
            found = specc.load(str(model))
            assert get_error_code(model) == 0
            del found
        weights = str(tmp_path / "w.safetensors")
        other = str(tmp_path / "other.specc")
        Path(other).write_text(SPEC % 7)
        assert (
            cli.main(["compile", other, "--weights", weights, "-o", str(tmp_path / "o.onnx")]) != 0
        )
        nowhere = str(tmp_path / "no" / "such" / "folder\0")
        with suppress(SystemExit):
            assert (
                cli.main(
                    ["compile", str(tmp_path / "m.specc"), "--weights", weights, "-o", nowhere]
                )
                != 0
            )
        flip_byte(tmp_path / "w.safetensors", 1000, 0)
        assert get_load_error(tmp_path / "m.onnx")
        flip_byte(tmp_path / "w.safetensors", 1000, 0)

    all_of_it()
    before = list_open_files()
    for _ in range(2):
        all_of_it()
    assert list_open_files() == before
