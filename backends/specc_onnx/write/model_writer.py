"""Lower, verify and write graphs, and write their weights tensor by tensor.

Output is deterministic. After all files have been written, they are renamed to their final names,
the `.onnx` file last. `specc_onnx.write.package_writer` writes several graphs as a package.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from specc.artifact.manifest import DOC_METADATA_KEY
from specc.artifact.package_index_and_format_versions import (
    WeightFileMetadata,
    read_weight_file_metadata,
)
from specc.backend import EmittedModel, MetadataBuilder, WeightStorage, WriteResult
from specc.io.atomic_write import OutputDirectory, check_free_disk_space
from specc.io.file_type_detection import find_unused_sidecar_files
from specc.io.output_paths import sanitize_file_stem
from specc.ir.graph import Graph
from specc.ir.model_definition import KVBufferGraph, ModelSource, StandaloneGenerator
from specc.ir.target import Target
from specc.weights.external_data import iterate_external_data
from specc.weights.parameter_sources import ParameterSource
from specc_onnx.generate.generator_inputs import GeneratorDefinition
from specc_onnx.generate.generator_model import build_generation_model
from specc_onnx.lower import onnx_targets
from specc_onnx.model_reader import BLANK_HASH, HASH_KEY, insert_model_hash
from specc_onnx.write.onnx_graph import OnnxBuildResult, build_model, set_doc_strings
from specc_onnx.write.onnx_verifier import verify_built_model
from specc_onnx.write.weight_placement import (
    WeightPlacement,
    plan_weight_placement,
    set_initializer_data,
)


def write_model(
    graph: ModelSource,
    path: Path,
    parameters: ParameterSource,
    *,
    target: Target,
    opset: int = onnx_targets.DEFAULT_OPSET,
    weights_as: WeightStorage = "auto",
    dtype: str = "",
    metadata: MetadataBuilder | None = None,
    verify_load: bool = True,
    sidecar_files: Sequence[tuple[str, bytes]] = (),
) -> WriteResult:
    """Write `graph` as a model to `path`. `metadata` returns the metadata of the built model.
    `verify_load=False` skips the load check in ONNX Runtime. The names of `sidecar_files` (suffix,
    content) contain a content hash. These files replace the sidecar files of the previous model.
    Raise one of E0810 to E0815, E0821, E0823, E0824 or E0923. Errors of `parameters` are passed on.
    """
    prepared = build_verified_models(
        [graph],
        path.parent,
        parameters,
        target=target,
        opset=opset,
        weights_as=weights_as,
        dtype=dtype,
        verify_load=verify_load,
    )
    stem = sanitize_file_stem(path.stem)
    with OutputDirectory(path.parent, superseded=find_unused_sidecar_files(path)) as out:
        side_names = [
            out.write_content_addressed_file(stem, suffix, [content])
            for suffix, content in sidecar_files
        ]
        data = write_verified_models(out, stem, prepared, parameters, [(path.name, metadata)])
    names = [path.name, *([data] if data else []), *side_names]
    files = tuple((path.parent / n, (path.parent / n).stat().st_size) for n in names)
    return WriteResult(path, data, prepared.placement.plan, files)


@dataclass(frozen=True)
class VerifiedModelSet:
    """Verified graphs that are ready to be written, and the placement of their weights."""

    models: tuple[OnnxBuildResult, ...]
    placement: WeightPlacement


def build_verified_models(
    graphs: Sequence[ModelSource],
    directory: Path,
    parameters: ParameterSource,
    *,
    target: Target,
    opset: int,
    weights_as: WeightStorage,
    dtype: str = "",
    verify_load: bool = True,
) -> VerifiedModelSet:
    """Plan the weight files in `directory`, then lower and verify all graphs."""
    onnx_targets.check_opset(opset)
    weight_graphs = [_get_weight_graph(g) for g in graphs]
    placement = plan_weight_placement(
        weight_graphs,
        parameters,
        directory,
        weights_as,
        opset,
        alignment=target.alignment,
        matrix_dtype=dtype,
    )
    if placement.plan.copied_tensors:
        # the directory may not exist yet, so the nearest existing parent directory is checked
        existing_parents = (f for f in (directory, *directory.parents) if f.exists())
        check_free_disk_space(next(existing_parents, directory), placement.plan.copied_bytes)
    built_models = tuple(_build_source(graph, target, opset, placement) for graph in graphs)
    for built_model in built_models:
        verify_built_model(built_model, verify_load=verify_load)
    return VerifiedModelSet(
        built_models,
        replace(placement, weight_files=_record_linked_checkpoints(placement, parameters)),
    )


def _record_linked_checkpoints(
    placement: WeightPlacement, parameters: ParameterSource
) -> dict[str, WeightFileMetadata]:
    """Return the metadata of checkpoint files with linked weights. Raise E0507 for NaN weights."""
    file_metadata = {}
    hashes = (
        parameters.validate_and_hash_files(placement.plan.linked_tensors)
        if placement.plan.linked_tensors
        else {}
    )
    for name, location in placement.plan.linked_tensors.items():
        byte_range = placement.tensors[name].byte_range
        assert byte_range is not None, f"{name} is linked to no file"
        if location.location not in file_metadata:
            file_metadata[location.location] = read_weight_file_metadata(
                byte_range.path, hashes[byte_range.path]
            )
    return file_metadata


def _get_weight_graph(source: ModelSource) -> Graph:
    """Return a copy of a graph that has the parameters of `source`."""
    if isinstance(source, StandaloneGenerator):
        return GeneratorDefinition.from_generator(source).weight_graph
    return source.graph if isinstance(source, KVBufferGraph) else source


def _build_source(
    graph: ModelSource, target: Target, opset: int, placement: WeightPlacement
) -> OnnxBuildResult:
    if isinstance(graph, StandaloneGenerator):
        return build_generation_model(
            graph, target, opset, placement.storage_dtypes, placement.ties
        )
    return build_model(graph, target, opset, placement.storage_dtypes, placement.ties)


def write_verified_models(
    out: OutputDirectory,
    stem: str,
    verified: VerifiedModelSet,
    parameters: ParameterSource,
    entries: Sequence[tuple[str, MetadataBuilder | None]],
) -> str | None:
    """Write the shared weights, and then write each graph as specified by its entry (file name,
    metadata). Return the name of the weight file, or None if all weights are inline or linked.
    """
    placement = verified.placement
    data = write_weight_file(out, stem, placement, parameters)
    if data:
        digest = out.file_digests[data]
        new_file = {data: WeightFileMetadata(digest.bytes, digest.sha256)}
        placement = replace(placement, weight_files={**placement.weight_files, **new_file})
    # Weights are written first, because the model contains the name of the weight file and the
    # offsets.
    for built_model, (name, metadata) in zip(verified.models, entries, strict=True):
        set_initializer_data(built_model, placement, parameters, data)
        if metadata:
            metadata_texts = dict(metadata(_describe_built_model(built_model, placement)))
            set_doc_strings(
                built_model.model, built_model.graph, metadata_texts.pop(DOC_METADATA_KEY, "")
            )
            add_metadata(built_model.model, metadata_texts)
        out.write_named_file(name, serialize_model(built_model.model))
        # graphs are built one at a time, so that only one graph is in memory
        if len(entries) > 1:
            for tensor in built_model.weights.values():
                tensor.ClearField("raw_data")
    return data


def _describe_built_model(built_model: OnnxBuildResult, placement: WeightPlacement) -> EmittedModel:
    """Return the properties of a built model that are recorded in the model's metadata."""
    initializer_names = {}
    for name in built_model.graph.parameters:
        stored_name = placement.ties.get(name, name)
        # a standalone generator may use only some of the weights
        if stored_name in built_model.weights:
            initializer_names[name] = built_model.weights[stored_name].name
    return EmittedModel(
        initializer_names, built_model.attention_weight_locations, placement.weight_files
    )


def write_weight_file(
    out: OutputDirectory, stem: str, placement: WeightPlacement, parameters: ParameterSource
) -> str | None:
    """Write a weight file with the weights that are neither inline nor linked. Return the name of
    the file, or None if all weights are inline or linked.
    """
    if placement.is_inline or not placement.plan.copied_tensors:
        return None

    def read_chunks(name: str) -> Iterator[memoryview]:
        return parameters.iterate_chunks(name, placement.tensors[name].dtype)

    return out.write_content_addressed_file(
        stem, ".data", iterate_external_data(placement.plan, read_chunks)
    )


def add_metadata(model: ModelProto, metadata: Mapping[str, str]) -> None:
    """Add entries to the `metadata_props` of a model."""
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)


def serialize_model(model: ModelProto) -> list[bytes | memoryview]:
    """Serialize a model deterministically. The metadata contains a hash of the other bytes."""
    add_metadata(model, {HASH_KEY: BLANK_HASH})
    return insert_model_hash(model.SerializeToString(deterministic=True))
