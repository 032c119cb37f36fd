"""Locations of external data in a model: any name and number is rejected with a code or read
correctly.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from support.resource_limits import list_violations, run_command

from specc.api import compile

SPEC = """specc 1
model big
dims batch
graph g(x: float[batch, 64]) -> (y: float[batch, 64]) { return linear(linear(x, out=64) @ a, out=64) @ b }
"""
NUMBERS = (
    None,
    "",
    "-1",
    "0",
    "4096",
    "1e3",
    "9" * 30,
    "0x10",
    " 0",
    str(2**63 - 1),
    str(2**64 - 1),
    "٣",
    "0\0",
)
ENTRIES = ("offset", "length", "checksum", "unknown")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with external data, next to files that are not its data."""
    directory = tmp_path_factory.mktemp("outside")
    (directory / "big.specc").write_text(SPEC)
    made = directory / "m" / "big.onnx"
    compile(str(directory / "big.specc"), str(made), init=0, weights_as="copy")
    (data,) = made.parent.glob("*.data")
    (directory / "out.data").write_bytes(data.read_bytes())
    inner = made.parent / "dir"
    inner.mkdir()
    shutil.copy(data, inner / "in.data")
    (made.parent / "linkdir").symlink_to("dir")
    (made.parent / "link.data").symlink_to(data.name)
    os.link(inner / "in.data", made.parent / "hard.data")
    os.mkfifo(made.parent / "pipe.data")
    return made


def list_invalid_locations(model: Path) -> list[str]:
    """Yield names that are not regular files in the directory of the model."""
    (data,) = model.parent.glob("big-*.data")
    return [
        "", ".", "..", "../out.data", str(model.parent.parent / "out.data"), "link.data", "linkdir/in.data",
        "dir/../../out.data", "hard.data", "pipe.data", "dir", "dir/", "a\0b", f"{data.name}\0", "x" * 300,
        "x/" * 3000, "\x1b[31mred", "C:\\x", "\\\\host\\x", "~/x", "nul", "big.onnx", "/dev/zero", "/dev/stdin",
        "/proc/self/mem", "*", "\u202ex",
    ]  # fmt: skip


def iterate_changed_models(sound: bytes, key: str, value: str | None) -> bytes:
    """Yield models with changed external tensors."""
    found = onnx.load_model_from_string(sound)
    for tensor in found.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            said = {e.key: e.value for e in tensor.external_data} | {key: value}
            del tensor.external_data[:]
            for k, v in said.items():
                if v is not None:
                    tensor.external_data.add(key=k, value=v)
    return bytes(found.SerializeToString())


def iterate_invalid_strings(sound: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield models with invalid UTF-8 in each kind of string: names, keys, operators, values."""
    found = onnx.load_model_from_string(sound)
    words = {
        "location": found.graph.initializer[0].external_data[0].value,
        "weight": found.graph.initializer[0].name,
        "node": found.graph.node[0].name,
        "operation": found.graph.node[0].op_type,
        "operand": found.graph.node[0].input[0],
        "result": found.graph.output[0].name,
        "length": found.graph.output[0].type.tensor_type.shape.dim[0].dim_param,
        "graph": found.graph.name,
        "key": found.metadata_props[0].key,
        "value": found.metadata_props[0].value,
        "producer": found.producer_name,
    }
    for what, word in words.items():
        held = word.encode()
        assert held
        assert held in sound
        for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80"):
            if len(bad) <= len(held):
                yield f"{what} {bad!r}", sound.replace(held, bad + held[len(bad) :])


def assert_refused(command: str, model: Path) -> None:
    """Assert that no command reads other files, and that each reports a code only."""
    sound = model.read_bytes()
    words = [command, str(model)]
    words += ["x=" + str([[0.0] * 64])] if command == "run" else []
    assert run_command(*words).status == 0
    places = [
        (f"location {name[:40]!r}", iterate_changed_models(sound, "location", name))
        for name in list_invalid_locations(model)
    ]
    numbers = [
        (f"{key} {n!r}", iterate_changed_models(sound, key, n)) for key in ENTRIES for n in NUMBERS
    ]
    try:
        assert not list_violations(
            model, [*places, *numbers, *iterate_invalid_strings(sound)], *words
        )
        if command == "run":
            for name, data in places:
                model.write_bytes(data)
                assert run_command(*words).status, f"{name} was read"
    finally:
        model.write_bytes(sound)


def test_invalid_external_data_is_refused(model: Path) -> None:
    assert_refused("run", model)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "show"])
def test_no_command_reads_invalid_external_data(command: str, model: Path) -> None:
    assert_refused(command, model)
