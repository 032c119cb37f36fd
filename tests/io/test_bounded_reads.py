"""Unbounded or oversized input is rejected before it is read: self-referential lists, symlink
loops, large files."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.resource_limits import run_with_limits

import specc
from specc.artifact.package_index_and_format_versions import PackageIndex, parse_package_index
from specc.diagnostics.diagnostic import SpeccError
from specc.io.safe_read import UnreadableFileError, read_regular_file
from specc.preprocessing.array_files import convert_lists_to_array

SPEC = (
    "specc 1\nmodel m\ndims batch, n\ngraph g(x: float[batch, n, 8]) -> (y: "
    "float[batch, n, 8]) {\n%s\n}\n"
)


def make_cyclic_list() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def get_error_code(run: Any) -> str:
    with pytest.raises(SpeccError) as failed:
        run()
    return failed.value.diagnostics[0].code


def test_cyclic_lists(tmp_path: Path) -> None:
    spec = tmp_path / "m.specc"
    spec.write_text(
        "specc 1\nmodel m\nconfig { a: list[int] = [1] }\n"
        + SPEC.partition("model m\n")[2] % "return x"
    )
    assert get_error_code(lambda: convert_lists_to_array(make_cyclic_list(), "a list")) == "E0906"
    assert (
        get_error_code(lambda: convert_lists_to_array([1.0, make_cyclic_list()], "a list"))
        == "E0906"
    )
    assert get_error_code(lambda: specc.check(spec, set={"a": make_cyclic_list()})) == "E0203"
    record: dict[str, Any] = {}
    record["a"] = record
    assert get_error_code(lambda: specc.check(spec, set=record)) == "E0203"


@pytest.mark.parametrize("how", ["itself", "extends", "use", "weights"])
def test_symlink_loops(tmp_path: Path, how: str) -> None:
    loop = tmp_path / "loop.specc"
    loop.symlink_to(loop)
    user = tmp_path / "user.specc"
    body = SPEC % "return linear(x, out=8) @ w"
    match how:
        case "itself":
            assert get_error_code(lambda: specc.check(loop)) == "E0802"
        case "extends":
            user = tmp_path / "user.yaml"
            user.write_text("specc: 1\nmodel: u\nextends: loop.specc\n")
            assert get_error_code(lambda: specc.check(user)) == "E0802"
        case "use":
            used = SPEC % "return v.f(x)"
            user.write_text(used.replace("dims", 'use "loop.specc" as v\ndims'))
            assert get_error_code(lambda: specc.check(user)) == "E0802"
        case _:
            user.write_text(body + 'weights { from "loop.specc" }\n')
            assert get_error_code(lambda: specc.compile(user, tmp_path / "m.onnx")) == "E0802"


def test_spec_name_that_is_not_utf_8(tmp_path: Path) -> None:
    spec = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.specc")
    Path(spec).write_text(SPEC % "return linear(x, out=8) @ w")
    specc.compile(spec, tmp_path / "m.onnx", init=0)
    assert list(specc.load(tmp_path / "m.onnx").manifest.sources) == [spec]


@pytest.mark.parametrize("size", [pytest.param(3 << 30, marks=pytest.mark.parity), 1 << 40])
def test_oversized_file_is_not_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(size)
    with pytest.raises(UnreadableFileError, match="larger than"):
        read_regular_file(path, 1 << 31)
    code = """
import resource
from specc.api import load
from specc.diagnostics.diagnostic import SpeccError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load(given)
except SpeccError as failed:
    result = [failed.diagnostics[0].code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]
"""
    found, kilobytes = run_with_limits(code, values=str(path), seconds=20, megabytes=6000)
    assert found == "E0802"
    assert kilobytes < 300 << 10


def test_package_index_with_many_graphs() -> None:
    facts = '{"bytes": 1, "sha256": "%s"}' % ("0" * 64)
    graphs = ", ".join(f'"g{n}": "score.onnx"' for n in range(3000))
    text = '{"format": 2, "specc": "1", "model": "m", "graphs": {%s}, "extras": {}, "files": {"score.onnx": %s}, ' \
        '"linked_files": {}, "metadata": {}, "sources": {}}'  # fmt: skip
    assert isinstance(
        parse_package_index((text % ('"g": "score.onnx"', facts)).encode(), "specc.json"),
        PackageIndex,
    )
    assert (
        get_error_code(lambda: parse_package_index((text % (graphs, facts)).encode(), "specc.json"))
        == "E0831"
    )
    assert (
        get_error_code(
            lambda: parse_package_index(
                (text % ('"a": "score.onnx", "b": "score.onnx"', facts)).encode(), "specc.json"
            )
        )
        == "E0831"
    )
