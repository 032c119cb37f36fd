"""Lower, verify and write graphs with their weights, tensor by tensor.

The same graphs, weights and options give the same bytes. Files appear under their final
names when all is written, the `.onnx` last. `specc_onnx.write.package_writer` writes several
graphs as a package.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from specc.artifact.manifest import DOC_METADATA_KEY
from specc.artifact.package_index import WeightFileFacts, checkpoint_facts
from specc.backend import EmittedModel, MetadataTexts, WeightStorage, WrittenModel
from specc.io.atomic_write import OutputDirectory, check_free_disk_space, sanitize_file_stem
from specc.io.file_signatures import find_unused_side_files
from specc.ir.graph import Graph
from specc.ir.model import KVBufferGraph, ModelSource, SelfDecodingGraph
from specc.ir.target import Target
from specc.weights.external_data import external_data_chunks
from specc.weights.parameter_values import ParameterValues
from specc_onnx.emit.kv_buffers import build_kv_buffer_model
from specc_onnx.emit.onnx_graph import BuiltModel, add_model_docs, build_model
from specc_onnx.generate.generation_context import GenerationParts
from specc_onnx.generate.generation_model import build_generation_model
from specc_onnx.lower import onnx_targets
from specc_onnx.verifier.onnx_verifier import verify_built_model
from specc_onnx.write.model_file import BLANK_HASH, HASH_KEY, insert_model_hash
from specc_onnx.write.weight_placement import (
    WeightPlacement,
    plan_weight_placement,
    store_weight_locations,
    store_weights_inline,
)


def write_model(
    graph: ModelSource,
    path: Path,
    values: ParameterValues,
    *,
    target: Target,
    opset: int = onnx_targets.DEFAULT_OPSET,
    weights_as: WeightStorage = "auto",
    dtype: str = "",
    metadata: MetadataTexts | None = None,
    load: bool = True,
    beside: Sequence[tuple[str, bytes]] = (),
) -> WrittenModel:
    """Write `graph` as the model `path`. `metadata` makes its texts once it is built; `load=False`
    skips the load in ONNX Runtime; `beside` are further files (suffix, content) named by their
    hash, which replace those of the old model. Raise E0810 to E0815, E0821, E0823, E0824, E0923,
    and what `values` does.
    """
    prepared = prepare_graphs(
        [graph],
        path.parent,
        values,
        target=target,
        opset=opset,
        weights_as=weights_as,
        dtype=dtype,
        load=load,
    )
    stem = sanitize_file_stem(path.stem)
    with OutputDirectory(path.parent, superseded=find_unused_side_files(path)) as out:
        others = [out.hashed(stem, suffix, [content]) for suffix, content in beside]
        data = write_prepared_graphs(out, stem, prepared, values, [(path.name, metadata)])
    names = [path.name, *([data] if data else []), *others]
    files = tuple((path.parent / n, (path.parent / n).stat().st_size) for n in names)
    return WrittenModel(path, data, prepared.stored.plan, files)


@dataclass(frozen=True)
class PreparedGraphs:
    """Verified graphs and the placement of their weights, before writing."""

    built: tuple[BuiltModel, ...]
    stored: WeightPlacement


def prepare_graphs(
    graphs: Sequence[ModelSource],
    directory: Path,
    values: ParameterValues,
    *,
    target: Target,
    opset: int,
    weights_as: WeightStorage,
    dtype: str = "",
    load: bool = True,
) -> PreparedGraphs:
    """Decide, lower and check graphs that are to be written to `directory` together."""
    onnx_targets.check_opset(opset)
    weighed = [_get_weight_graph(g) for g in graphs]
    stored = plan_weight_placement(
        weighed, values, directory, weights_as, opset, alignment=target.alignment, store=dtype
    )
    if stored.plan.copied:
        # the directory is created later: its disk is that of the nearest existing parent
        there = (f for f in (directory, *directory.parents) if f.exists())
        check_free_disk_space(next(there, directory), stored.plan.size)
    built = tuple(_build_source(graph, target, opset, stored) for graph in graphs)
    for one in built:
        verify_built_model(one, load=load)
    return PreparedGraphs(built, replace(stored, beside=_record_linked_checkpoints(stored, values)))


def _record_linked_checkpoints(
    stored: WeightPlacement, values: ParameterValues
) -> dict[str, WeightFileFacts]:
    """Return facts of linked checkpoints, whose values are checked (NaN is E0507)."""
    found = {}
    hashes = values.look_through(stored.plan.linked) if stored.plan.linked else {}
    for name, place in stored.plan.linked.items():
        run = stored.pieces[name].run
        assert run is not None, f"{name} is linked to no file"
        if place.location not in found:
            found[place.location] = checkpoint_facts(run.path, hashes[run.path])
    return found


def _get_weight_graph(source: ModelSource) -> Graph:
    """The graph whose parameters it needs."""
    match source:
        case SelfDecodingGraph():
            return GenerationParts.of(source).stored
        case KVBufferGraph():
            return source.graph
    return source


def _build_source(
    graph: ModelSource, target: Target, opset: int, stored: WeightPlacement
) -> BuiltModel:
    if isinstance(graph, SelfDecodingGraph):
        return build_generation_model(graph, target, opset, stored.dtypes, stored.ties)
    if isinstance(graph, KVBufferGraph):
        return build_kv_buffer_model(graph, target, opset, stored.dtypes, stored.ties)
    return build_model(graph, target, opset, stored.dtypes, stored.ties)


def write_prepared_graphs(
    out: OutputDirectory,
    stem: str,
    prepared: PreparedGraphs,
    values: ParameterValues,
    entries: Sequence[tuple[str, MetadataTexts | None]],
) -> str | None:
    """Write weights once and each graph; return the name of our weight file, if any."""
    stored = prepared.stored
    data = write_weight_file(out, stem, stored, values)
    if data:
        facts = out.facts[data]
        own = {data: WeightFileFacts(facts.bytes, facts.sha256)}
        stored = replace(stored, beside={**stored.beside, **own})
    # Weights are written first: the model contains their file name and offsets.
    for built, (name, metadata) in zip(prepared.built, entries, strict=True):
        attach_weights(built, stored, values, data)
        if metadata:
            texts = dict(metadata(_describe_built_model(built, stored)))
            add_model_docs(built.model, built.graph, texts.pop(DOC_METADATA_KEY, ""))
            add_metadata(built.model, texts)
        out.entry(name, serialize_model(built.model))
        if len(entries) > 1:
            release_weights(built)
    return data


def _describe_built_model(built: BuiltModel, stored: WeightPlacement) -> EmittedModel:
    """Return the facts about a built model for its metadata."""
    held = {}
    for name in built.graph.parameters:
        own = stored.ties.get(name, name)
        # a model with the decoding loop may not use every weight of the whole graph
        if own in built.weights:
            held[name] = built.weights[own].name
    return EmittedModel(held, built.attentions, stored.beside)


def write_weight_file(
    out: OutputDirectory, stem: str, stored: WeightPlacement, values: ParameterValues
) -> str | None:
    """Write the weights that go to a file of our own; its name, if there is one."""
    if stored.inline or not stored.plan.copied:
        return None

    def read_chunks(name: str) -> Iterator[memoryview]:
        return values.chunks(name, stored.pieces[name].dtype)

    return out.hashed(stem, ".data", external_data_chunks(stored.plan, read_chunks))


def attach_weights(
    built: BuiltModel, stored: WeightPlacement, values: ParameterValues, data: str | None
) -> None:
    """Put the weights into the model, or say there where they lie."""
    if stored.inline:
        store_weights_inline(built, stored, values)
        store_weight_locations(built, stored.plan.linked)
    else:
        store_weight_locations(built, stored.plan.places(data or ""))


def release_weights(built: BuiltModel) -> None:
    """Free the weights of a written model, so that one graph at a time is in memory."""
    for tensor in built.weights.values():
        tensor.ClearField("raw_data")


def add_metadata(model: ModelProto, texts: Mapping[str, str]) -> None:
    """Texts that the model carries, by key."""
    for key, value in texts.items():
        model.metadata_props.add(key=key, value=value)


def serialize_model(model: ModelProto) -> list[bytes | memoryview]:
    """Serialize a model deterministically with a hash of its own bytes inside."""
    add_metadata(model, {HASH_KEY: BLANK_HASH})
    return insert_model_hash(model.SerializeToString(deterministic=True))
