"""A package of several graphs: shared weights, named entry files, and an index."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.two_graph_packages import (
    ALL_SIZES,
    SHARED_SIZES,
    SPEC,
    read_extra_file,
    write_pair_package,
    write_single_graph,
)
from support.verification_lines import list_package_lines

import specc
from specc.artifact.package_index_and_format_versions import INDEX_FILE
from specc.backend import ExtraFile
from specc.diagnostics.diagnostic import SpeccError
from specc.runtime.model_package import open_package
from specc.weights.formats.safetensors import write_safetensors

IDS = np.array([[3, 1, 4], [9, 2, 6]])


def list_names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


def read_directory(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir())}


def find_weights_file(directory: Path) -> Path:
    (found,) = directory.glob("model-*.data")
    return found


def read_initializers(path: Path) -> dict[str, Any]:
    return {t.name: t for t in onnx.load(path, load_external_data=False).graph.initializer}


def test_package_contains_graphs_weights_and_index(tmp_path: Path) -> None:
    written = write_pair_package(tmp_path / "pair")
    assert list_names(tmp_path / "pair") == sorted(
        ["score.onnx", "encode.onnx", INDEX_FILE, str(written.weight_file)]
    )
    assert [path.name for path, _ in written.files][-1] == INDEX_FILE
    assert all(path.stat().st_size == size for path, size in written.files)


def test_shared_weights_are_stored_once(tmp_path: Path) -> None:
    write_pair_package(tmp_path / "pair")
    assert find_weights_file(tmp_path / "pair").stat().st_size < 4 * sum(
        ALL_SIZES.values()
    ) + 64 * len(ALL_SIZES)
    score, encode = (
        read_initializers(tmp_path / "pair" / f"{n}.onnx") for n in ("score", "encode")
    )
    assert set(score) | set(encode) >= set(ALL_SIZES)
    for name in SHARED_SIZES:
        assert [e.value for e in score[name].external_data] == [
            e.value for e in encode[name].external_data
        ]
    assert "more.weight" not in score
    assert not any(t.raw_data for n, t in (*score.items(), *encode.items()) if n in ALL_SIZES)


def test_index_contains_size_and_hash_of_every_file(tmp_path: Path) -> None:
    write_pair_package(tmp_path / "pair")
    index = json.loads((tmp_path / "pair" / INDEX_FILE).read_text(encoding="utf-8"))
    for name, data in read_directory(tmp_path / "pair").items():
        if name != INDEX_FILE:
            assert index["files"][name] == {
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
    assert index["graphs"] == {"score": "score.onnx", "encode": "encode.onnx"}
    assert index["metadata"] == {"growing": "ids"}
    assert index["files"].keys() == set(list_names(tmp_path / "pair")) - {INDEX_FILE}


def test_package_bytes_are_deterministic(tmp_path: Path) -> None:
    for where in ("a", "b"):
        write_pair_package(
            tmp_path / where / "pair",
            extra_files=[ExtraFile.from_json("config.json", {"b": 1, "a": 2})],
        )
    assert read_directory(tmp_path / "a" / "pair") == read_directory(tmp_path / "b" / "pair")


def test_graph_equals_the_single_file_model(tmp_path: Path) -> None:
    write_pair_package(tmp_path / "pair")
    package = open_package(tmp_path / "pair")
    for graph, result in (("score", "tags"), ("encode", "rows")):
        alone = specc.load(write_single_graph(tmp_path, graph)).run(ids=IDS)[result]
        np.testing.assert_array_equal(package.load_graph(graph).run(ids=IDS)[result], alone)


def test_every_graph_agrees_with_the_reference(tmp_path: Path) -> None:
    write_pair_package(tmp_path / "pair")
    lines = list(
        list_package_lines(open_package(tmp_path / "pair", verify_contents=True), rounds=2)
    )
    assert [line.partition(":")[0] for line in lines] == ["encode", "encode", "score", "score"]


def test_sources_are_in_the_index_and_in_each_manifest(tmp_path: Path) -> None:
    write_pair_package(tmp_path / "pair")
    package = open_package(tmp_path / "pair")
    assert {package.read_manifest(role).sources["pair.specc"] for role in package.graph_names} == {
        SPEC
    }
    assert b"Tags words, or" in (tmp_path / "pair" / INDEX_FILE).read_bytes()
    assert b"layer_norm(x, eps=1e-5) @ norm" not in (tmp_path / "pair" / "score.onnx").read_bytes()


def test_inline_weights_are_in_each_graph(tmp_path: Path) -> None:
    write_pair_package(tmp_path / "pair", weights_as="inline")
    assert list_names(tmp_path / "pair") == ["encode.onnx", "score.onnx", INDEX_FILE]
    assert set(read_initializers(tmp_path / "pair" / "score.onnx")) >= set(SHARED_SIZES)
    assert len(list(list_package_lines(open_package(tmp_path / "pair"), rounds=1))) == 2


def test_small_weights_of_a_single_graph_are_inline(tmp_path: Path) -> None:
    write_pair_package(tmp_path / "pair", graphs=("score",))
    assert list_names(tmp_path / "pair") == ["score.onnx", INDEX_FILE]
    assert open_package(tmp_path / "pair").resolve_graph_name() == "score"


@pytest.fixture
def checkpoint_path(tmp_path: Path) -> Path:
    """Write a checkpoint to the directory of the package; return its path."""
    write_pair_package(tmp_path / "first")
    package = open_package(tmp_path / "first")
    weights = {
        n: a for role in package.graph_names for n, a in package.load_graph(role).weights().items()
    }
    path = tmp_path / "pair" / "weights" / "model.safetensors"
    path.parent.mkdir(parents=True)
    write_safetensors(path, {n: np.ascontiguousarray(a) for n, a in weights.items()}, {})
    return path


def test_linked_weights_stay_in_the_checkpoint(tmp_path: Path, checkpoint_path: Path) -> None:
    written = write_pair_package(tmp_path / "pair", weights=str(checkpoint_path), weights_as="link")
    assert written.weight_file is None
    assert list_names(tmp_path / "pair") == ["encode.onnx", "score.onnx", INDEX_FILE, "weights"]
    package = open_package(tmp_path / "pair", verify_contents=True)
    assert list(package.index.linked_files) == ["weights/model.safetensors"]
    want = open_package(tmp_path / "first").load_graph("score").run(ids=IDS)["tags"]
    np.testing.assert_array_equal(package.load_graph("score").run(ids=IDS)["tags"], want)
    assert len(list(list_package_lines(package, rounds=1))) == 2


def test_changed_checkpoint_is_rejected_by_name(tmp_path: Path, checkpoint_path: Path) -> None:
    write_pair_package(tmp_path / "pair", weights=str(checkpoint_path), weights_as="link")
    data = bytearray(checkpoint_path.read_bytes())
    data[-1] ^= 1
    checkpoint_path.write_bytes(data)
    with pytest.raises(SpeccError, match=r"E0830\]: `weights/model\.safetensors` does not belong"):
        open_package(tmp_path / "pair")


def test_replacing_a_linked_package_keeps_the_checkpoint(
    tmp_path: Path, checkpoint_path: Path
) -> None:
    write_pair_package(tmp_path / "pair", weights=str(checkpoint_path), weights_as="link")
    write_pair_package(tmp_path / "pair", weights=str(checkpoint_path), weights_as="copy")
    assert checkpoint_path.exists()
    assert not open_package(tmp_path / "pair").index.linked_files


def test_extra_files_are_found_by_role(tmp_path: Path) -> None:
    extras = [
        ExtraFile("genai_config.json", b"{}"),
        ExtraFile("tokenizer.json", b"[1]", role="tokenizer", is_hashed=True),
    ]
    write_pair_package(tmp_path / "pair", extra_files=extras)
    package = open_package(tmp_path / "pair")
    assert read_extra_file(package, "genai_config.json") == b"{}"
    assert read_extra_file(package, "tokenizer") == b"[1]"
    assert "merges" not in package.index.extras
    assert package.index.extras["tokenizer"].startswith("tokenizer-")


def test_superseded_files_are_removed(tmp_path: Path) -> None:
    extras = [
        ExtraFile("genai_config.json", b"{}"),
        ExtraFile("tokenizer.json", b"[1]", is_hashed=True),
    ]
    write_pair_package(tmp_path / "pair", extra_files=extras)
    (tmp_path / "pair" / "notes.txt").write_text("mine")
    write_pair_package(tmp_path / "pair", seed=1, graphs=("score",))
    assert list_names(tmp_path / "pair") == ["notes.txt", "score.onnx", INDEX_FILE]


def test_file_that_contradicts_the_index_is_not_removed(tmp_path: Path) -> None:
    """Only files whose content the former package wrote are removed."""
    write_pair_package(tmp_path / "pair")
    for name in ("notes.txt", "notes-0123456789abcdef.txt"):
        (tmp_path / "pair" / name).write_text("mine")
    path = tmp_path / "pair" / INDEX_FILE
    index = json.loads(path.read_text(encoding="utf-8"))
    for name in ("notes.txt", "notes-0123456789abcdef.txt"):
        index["files"][name] = {"bytes": 4, "sha256": "0" * 64}
    path.write_text(json.dumps(index), encoding="utf-8")
    write_pair_package(tmp_path / "pair", seed=1)
    assert {"notes.txt", "notes-0123456789abcdef.txt"} < set(list_names(tmp_path / "pair"))


def test_equal_existing_file_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "tokenizer.json").write_bytes(b"[1]")
    for _ in range(2):
        write_pair_package(tmp_path / "pair", extra_files=[ExtraFile("tokenizer.json", b"[1]")])
        assert open_package(tmp_path / "pair").index.preexisting == ("tokenizer.json",)
    write_pair_package(tmp_path / "pair")
    assert "tokenizer.json" in list_names(tmp_path / "pair")


@pytest.mark.parametrize("name", ["tokenizer.json", "score.onnx"])
def test_foreign_file_is_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / name).write_bytes(b"something else")
    with pytest.raises(
        SpeccError, match=rf"E0833\]: .*{name}` already exists and would be overwritten"
    ):
        write_pair_package(tmp_path / "pair", extra_files=[ExtraFile("tokenizer.json", b"[1]")])
    assert read_directory(tmp_path / "pair") == {name: b"something else"}


def test_single_file_model_may_be_replaced_by_a_package(tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    write_single_graph(tmp_path, "score").rename(tmp_path / "pair" / "score.onnx")
    write_pair_package(tmp_path / "pair")
    assert open_package(tmp_path / "pair").graph_names == ("encode", "score")
