"""Writing models: inline, external and linked weights; deterministic bytes; no partial output."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from support.decoder_graphs import build_decoder, sample_parameters
from support.onnx_sessions import assert_outputs_match

import specc_numpy
from specc.backend import EmittedModel, WriteResult
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.graph import Graph
from specc.weights.external_data import MAX_INLINE
from specc.weights.formats.safetensors_header import NUMPY_DTYPES, get_array_dtype
from specc.weights.parameter_sources import ByteRange
from specc.weights.weight_rules_and_initializers import ModelParameter
from specc_onnx import get_target
from specc_onnx.ort_session import open_serialized_ort_model
from specc_onnx.write.model_writer import write_model

KEPT = {"specc": "what the model says of itself"}


@dataclass
class Arrays:
    """Weights in memory, or in a file at the offsets in `runs`."""

    graph: Graph
    arrays: Mapping[str, NDArray[Any]]
    ties: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, ByteRange] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> Mapping[str, ModelParameter]:
        return {
            n: ModelParameter(name=n, shape=tuple(d.number or 0 for d in v.type.shape))
            for n, v in self.graph.parameters.items()
        }

    def get_tied_source(self, name: str) -> str | None:
        return self.ties.get(name)

    def get_stored_dtype(self, name: str) -> str:
        return get_array_dtype(self.arrays[name])

    def find_byte_range(self, name: str) -> ByteRange | None:
        return self.runs.get(name)

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        self.read.append(name)
        data = self.arrays[name].astype(NUMPY_DTYPES[dtype]).tobytes()
        for start in range(0, len(data), 100):
            yield memoryview(data)[start : start + 100]

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        self.read += names
        paths = {self.runs[name].path for name in names}
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def write_checkpoint(graph: Graph, arrays: Mapping[str, NDArray[Any]], path: Path) -> Arrays:
    """Write the arrays one after another after 13 other bytes, as in a checkpoint."""
    runs, content = {}, b"something els"
    for name, array in arrays.items():
        runs[name] = ByteRange(path, len(content), array.nbytes)
        content += array.tobytes()
    path.write_bytes(content)
    return Arrays(graph, arrays, runs=runs)


def write_to(graph: Graph, values: Arrays, path: Path, **options: Any) -> WriteResult:
    return write_model(
        graph, path, values, target=get_target("onnx"), metadata=lambda emitted: KEPT, **options
    )


def check_results(graph: Graph, arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    given = {"tokens": np.array([[1, 5, 2], [10, 0, 3]])}
    assert_outputs_match(
        specc_numpy.evaluate_graph(graph, given, arrays),
        list(
            open_serialized_ort_model(path.read_bytes(), directory=path.parent).run(given).values()
        ),
    )


def test_small_weights_are_inline(tmp_path: Path) -> None:
    graph = build_decoder()
    arrays = sample_parameters(graph)
    written = write_to(graph, Arrays(graph, arrays), tmp_path / "m.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert written.weight_file is None
    check_results(graph, arrays, written.path)


def test_copied_weights_are_in_one_file_named_by_hash(tmp_path: Path) -> None:
    graph = build_decoder()
    arrays = sample_parameters(graph)
    values = Arrays(graph, arrays)
    written = write_to(graph, values, tmp_path / "m.onnx", weights_as="copy")
    assert written.weight_file is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["m.onnx", written.weight_file])
    assert written.weight_file.startswith("m-")
    assert values.read == list(graph.parameters)
    check_results(graph, arrays, written.path)
    again = write_to(
        graph,
        Arrays(graph, sample_parameters(graph, seed=1)),
        tmp_path / "m.onnx",
        weights_as="copy",
    )
    assert again.weight_file != written.weight_file


def test_model_bytes_are_deterministic(tmp_path: Path) -> None:
    graph = build_decoder()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_to(
            graph,
            Arrays(graph, sample_parameters(graph)),
            tmp_path / name / "m.onnx",
            weights_as="copy",
        )
    a, b = (sorted(p for p in (tmp_path / name).iterdir()) for name in ("a", "b"))
    assert [p.name for p in a] == [p.name for p in b]
    assert [p.read_bytes() for p in a] == [p.read_bytes() for p in b]


def test_linked_weights_stay_in_the_checkpoint(tmp_path: Path) -> None:
    """Weights are only read to check that they are finite; odd offsets are allowed."""
    graph = build_decoder()
    arrays = sample_parameters(graph)
    (tmp_path / "weights").mkdir()
    values = write_checkpoint(graph, arrays, tmp_path / "weights" / "model.safetensors")
    written = write_to(graph, values, tmp_path / "m.onnx", weights_as="link")
    assert values.read == list(graph.parameters)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "weights"]
    check_results(graph, arrays, written.path)


def test_linked_bf16_is_cast_and_copied_bf16_converted(tmp_path: Path) -> None:
    graph = build_decoder()
    arrays = {n: a.astype(ml_dtypes.bfloat16) for n, a in sample_parameters(graph).items()}
    values = write_checkpoint(graph, arrays, tmp_path / "model.safetensors")
    for how, dtype in (("link", onnx.TensorProto.BFLOAT16), ("copy", onnx.TensorProto.FLOAT)):
        written = write_to(graph, values, tmp_path / f"{how}.onnx", weights_as=how)
        model = onnx.load(written.path, load_external_data=False)
        assert {t.data_type for t in model.graph.initializer if t.name in arrays} == {dtype}
        check_results(graph, arrays, written.path)


def test_unlinkable_weights_are_copied_unless_link_is_required(tmp_path: Path) -> None:
    graph = build_decoder()
    (tmp_path / "out").mkdir()
    values = write_checkpoint(graph, sample_parameters(graph), tmp_path / "model.safetensors")
    written = write_to(graph, values, tmp_path / "out" / "m.onnx", weights_as="auto")
    assert not written.plan.linked_tensors
    with pytest.raises(SpeccError, match="E0824") as caught:
        write_to(graph, values, tmp_path / "out" / "n.onnx", weights_as="link")
    assert "is outside the output directory" in caught.value.diagnostics[0].notes[0]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["m.onnx"]


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    graph = build_decoder()
    arrays = {**sample_parameters(graph)}
    a, b = "layers.0.self_attn.q.weight", "layers.1.self_attn.q.weight"
    arrays[b] = arrays[a]
    values = Arrays(graph, arrays, ties={b: a})
    written = write_to(graph, values, tmp_path / "m.onnx", weights_as="copy")
    assert b not in values.read
    check_results(graph, arrays, written.path)


def test_model_contains_its_metadata(tmp_path: Path) -> None:
    graph = build_decoder()

    def texts(emitted_model: EmittedModel) -> dict[str, str]:
        return {
            "specc": json.dumps([dict(a) for a in emitted_model.attention_weight_locations]),
            "beside": json.dumps(list(emitted_model.weight_files)),
        }

    path = tmp_path / "m.onnx"
    write_model(
        graph,
        path,
        Arrays(graph, sample_parameters(graph)),
        target=get_target("onnx"),
        metadata=texts,
    )
    carried = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert [a["scope"] for a in json.loads(carried["specc"])] == [
        "layers.0.self_attn",
        "layers.1.self_attn",
    ]
    assert carried["beside"] == "[]"  # the weights stand in the file itself


def test_error_while_weights_are_read_leaves_no_files(tmp_path: Path) -> None:
    graph = build_decoder()
    values = Arrays(graph, sample_parameters(graph))
    (tmp_path / "m.onnx").write_text("what was there")

    def broken(name: str, dtype: str) -> Iterator[memoryview]:
        raise SpeccError()

    values.iterate_chunks = broken  # type: ignore[method-assign]
    with pytest.raises(SpeccError):
        write_to(graph, values, tmp_path / "m.onnx", weights_as="copy")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("m.onnx", "what was there")]


def test_too_large_inline_weights_are_rejected_before_reading(tmp_path: Path) -> None:
    graph = build_decoder(layers=1, width=16384, heads=4)
    values = Arrays(graph, dict.fromkeys(graph.parameters, np.zeros(0, np.float32)))
    assert sum(4 * np.prod(w.shape, dtype=float) for w in values.parameters.values()) > MAX_INLINE
    with pytest.raises(
        SpeccError, match=r"E0823\]: .* GiB of weights exceed the 2 GiB limit of one ONNX file"
    ):
        write_to(graph, values, tmp_path / "m.onnx", weights_as="inline")
    assert values.read == []
