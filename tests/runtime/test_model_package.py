"""Packages are untrusted: files that do not match the index are rejected, and the index is
validated.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from support.two_graph_packages import read_extra_file, write_pair_package

from specc.artifact import package_index_and_format_versions
from specc.artifact.package_index_and_format_versions import INDEX_FILE, is_portable_file_name
from specc.backend import ExtraFile
from specc.cli.main import main
from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.io.safe_read import compute_file_sha256, is_safe_relative_path
from specc.runtime.inference_model import open_compiled_model
from specc.runtime.model_package import open_package


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    write_pair_package(
        tmp_path / "pair", extra_files=[ExtraFile("tokenizer.json", b"[1]", role="tokenizer")]
    )
    return tmp_path / "pair"


def get_error(directory: Path, contents: bool = False) -> Diagnostic:
    with pytest.raises(SpeccError) as failed:
        open_package(directory, verify_contents=contents)
    (found,) = failed.value.diagnostics
    return found


def write_changed_index(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the index with changes."""
    data = json.loads((directory / INDEX_FILE).read_text(encoding="utf-8"))
    change(data)
    (directory / INDEX_FILE).write_text(json.dumps(data), encoding="utf-8")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def linked(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


@pytest.mark.parametrize("damage", [Path.unlink, cut, linked])
def test_a_missing_or_truncated_or_linked_file_is_named(
    damage: Callable[[Path], None], pair: Path
) -> None:
    for path in [p for p in pair.iterdir() if p.name != INDEX_FILE]:
        data = path.read_bytes()
        damage(path)
        found = get_error(pair)
        assert found.code == "E0830"
        assert f"`{path.name}`" in found.title
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    open_package(pair)


def test_a_pipe_is_refused(pair: Path) -> None:
    (pair / "score.onnx").unlink()
    os.mkfifo(pair / "score.onnx")
    assert "score.onnx" in get_error(pair).title


def test_graphs_are_always_compared_with_their_hash(pair: Path) -> None:
    flip(pair / "encode.onnx")
    assert "`encode.onnx`" in get_error(pair).title


def test_weights_are_compared_with_their_hash_on_request(pair: Path) -> None:
    (weights,) = pair.glob("*.data")
    flip(weights)
    open_package(pair)
    assert weights.name in get_error(pair, contents=True).title
    assert main(["verify", str(pair)]) == 1


def test_other_files_are_compared_when_they_are_read(pair: Path) -> None:
    flip(pair / "tokenizer.json")
    with pytest.raises(SpeccError, match=r"E0830\]: `tokenizer\.json`"):
        read_extra_file(open_package(pair), "tokenizer")


def test_graphs_of_another_package_are_refused(pair: Path, tmp_path: Path) -> None:
    write_pair_package(tmp_path / "other", seed=1)
    (tmp_path / "other" / "score.onnx").replace(pair / "score.onnx")
    assert "`score.onnx`" in get_error(pair).title


def test_exchanged_graphs_are_refused(pair: Path) -> None:
    score = (pair / "score.onnx").read_bytes()
    (pair / "encode.onnx").replace(pair / "score.onnx")
    (pair / "encode.onnx").write_bytes(score)
    assert get_error(pair).code == "E0830"


BAD_NAMES = [
    "../score.onnx", "/etc/passwd", "a/b.onnx", "..", ".", "", "a\\b.onnx", "C:score.onnx", ".hidden", "a\0b", INDEX_FILE,
    "a\nb", "x" * 300, "trailing.",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_path_outside_the_package_is_refused(name: str, pair: Path) -> None:
    assert not is_portable_file_name(name)

    def change(data: dict[str, Any]) -> None:
        data["files"][name] = data["files"].pop("score.onnx")
        data["graphs"]["score"] = name

    write_changed_index(pair, change)
    assert get_error(pair).code == "E0831"


FACTS = {"bytes": 1, "sha256": "0" * 64, "head": "0" * 64}


@pytest.mark.parametrize(
    "path", ["../w.safetensors", "/w", "a//b", "a/../../b", "a\\..\\b", "C:/w", ""]
)
def test_a_checkpoint_outside_the_package_is_refused(path: str, pair: Path) -> None:
    assert not is_safe_relative_path(path)
    write_changed_index(pair, lambda data: data["linked_files"].update({path: FACTS}))
    assert get_error(pair).code == "E0831"


def test_a_linked_checkpoint_is_refused(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "w").write_bytes(b"x")
    (pair / "inside").symlink_to(tmp_path / "elsewhere")
    write_changed_index(pair, lambda data: data["linked_files"].update({"inside/w": FACTS}))
    found = get_error(pair)
    assert found.code == "E0830"
    assert "its path contains a link" in found.notes[0]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": lambda d: d.update(format=3),
    "no files": lambda d: d.pop("files"),
    "files are a list": lambda d: d.update(files=[]),
    "no hash": lambda d: d["files"]["score.onnx"].pop("sha256"),
    "a hash of another length": lambda d: d["files"]["score.onnx"].update(sha256="ab"),
    "a negative size": lambda d: d["files"]["score.onnx"].update(bytes=-1),
    "a truth for a size": lambda d: d["files"]["score.onnx"].update(bytes=True),
    "a size that is a text": lambda d: d["files"]["score.onnx"].update(bytes="1"),
    "facts that are none": lambda d: d["files"].update({"score.onnx": None}),
    "a graph in no file": lambda d: d["graphs"].update(step="step.onnx"),
    "a graph that is a number": lambda d: d["graphs"].update(step=1),
    "no graph": lambda d: d.update(graphs={}),
    "an extra in no file": lambda d: d["extras"].update(merges="merges.txt"),
    "kept, but in no file": lambda d: d.update(preexisting=["notes.txt"]),
    "sources that are lists": lambda d: d.update(sources={"a": []}),
    "facts that are a list": lambda d: d.update(metadata=[]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_damaged_index_is_refused(what: str, pair: Path) -> None:
    write_changed_index(pair, CHANGES[what])
    assert get_error(pair).code == "E0831"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff", b"[" * 10**5, b'{"format": ' + b"9" * 5000 + b"}"]
)
def test_an_invalid_index_is_refused(data: bytes, pair: Path) -> None:
    (pair / INDEX_FILE).write_bytes(data)
    assert get_error(pair).code == "E0831"


def test_the_maximum_index_size_is_exact(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (pair / INDEX_FILE).stat().st_size
    monkeypatch.setattr(package_index_and_format_versions, "MAX_BYTES", size)
    open_package(pair)
    monkeypatch.setattr(package_index_and_format_versions, "MAX_BYTES", size - 1)
    assert get_error(pair).code == "E0802"


def test_a_directory_without_an_index_is_refused(tmp_path: Path) -> None:
    assert get_error(tmp_path).code == "E0802"
    with pytest.raises(SpeccError, match="E0802"):
        open_compiled_model(str(tmp_path))


def test_unlisted_weights_are_refused(pair: Path, tmp_path: Path) -> None:
    """Even if the hashes match: anyone can write an index."""
    for location, offset in (("../secret", 0), ("other.data", 0), ("", 1 << 40)):
        model = onnx.load(pair / "score.onnx", load_external_data=False)
        entry = {e.key: e for e in model.graph.initializer[0].external_data}
        entry["location"].value = location or entry["location"].value
        entry["offset"].value = str(offset)
        other = tmp_path / "other"
        other.mkdir(exist_ok=True)
        for path in pair.iterdir():
            (other / path.name).write_bytes(path.read_bytes())
        (other / "score.onnx").write_bytes(model.SerializeToString())
        facts = {
            "bytes": (other / "score.onnx").stat().st_size,
            "sha256": compute_file_sha256(other / "score.onnx"),
        }
        write_changed_index(
            other, lambda data, facts=facts: data["files"].update({"score.onnx": facts})
        )  # type: ignore[misc]
        found = get_error(other)
        assert found.code == "E0830"
        assert "weights" in found.notes[0]


def test_a_package_replaced_during_load_is_loaded_again(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = package_index_and_format_versions.read_package_index(pair)
    write_pair_package(pair, seed=1)
    answers = [former, package_index_and_format_versions.read_package_index(pair)]
    monkeypatch.setattr(
        "specc.runtime.package_integrity.read_package_index",
        lambda directory, **more: answers.pop(0) if len(answers) > 1 else answers[0],
    )
    assert open_package(pair).index == answers[0]


def test_a_session_opened_in_the_background_is_used_once(pair: Path) -> None:
    model = open_package(pair).models["encode"]
    model.open_in_background(threads=1)
    assert model.open("cpu").inputs  # another number of threads
    (pending,) = model.pending_sessions.values()  # type: ignore[attr-defined]
    opened = model.open("cpu", 1)
    assert opened is pending.result()
    assert model.open("cpu", 1) is not opened


def test_a_background_error_is_raised_when_the_model_is_opened(pair: Path) -> None:
    package = open_package(pair)
    for path in pair.glob("*.data"):
        path.unlink()
    model = package.models["score"]
    model.open_in_background()
    with pytest.raises(SpeccError, match="E0923"):
        model.open("cpu")


def test_the_default_graph_is_score(pair: Path, tmp_path: Path) -> None:
    package = open_package(pair)
    assert (package.resolve_graph_name(), package.resolve_graph_name("encode")) == (
        "score",
        "encode",
    )
    with pytest.raises(SpeccError, match="E0832") as failed:
        package.resolve_graph_name("enocde")
    assert failed.value.diagnostics[0].helps == ("did you mean `encode`?",)
    write_pair_package(tmp_path / "pair", graphs=("encode",))
    assert open_package(pair).resolve_graph_name() == "encode"
