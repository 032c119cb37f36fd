"""Load, verify and run a single compiled model file, and dequantize its weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from specc import backend
from specc.artifact.generation_metadata import GenerationMetadata
from specc.artifact.manifest import (
    METADATA_KEY,
    Manifest,
    parse_manifest,
    raise_invalid_manifest_error,
)
from specc.artifact.package_index_and_format_versions import parse_weight_file_metadata
from specc.backend import Executable, ModelFile, QuantizedMatMul, Session, TensorSpec
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr
from specc.io.memory_check import check_free_memory
from specc.io.safe_read import escape_text
from specc.ir.array import Array, Arrays
from specc.ir.graph import Graph, Value
from specc.ir.model_definition import PAST_LENGTH_INPUT
from specc.ir.ops.quantized import QuantizationFormat
from specc.preprocessing.input_checks import InputSpec
from specc.runtime.attention_weights import AttentionWeights, compute_attention_weights
from specc.runtime.model_inputs import ModelInputs, build_model_inputs, find_axis_of_length
from specc.runtime.package_integrity import describe_file_mismatch, describe_out_of_bounds_tensor
from specc.weights.int_quantization import dequantize_weight


@dataclass(frozen=True)
class KVBufferSession:
    """A session that runs a step with in-place KV buffers. `session` runs the model that was
    lowered from `graph`.
    """

    session: Executable
    graph: Graph
    metadata: GenerationMetadata

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The outputs of the wrapped session."""
        return self.session.outputs

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Run the step. After the first step, process several sequences position by position."""
        states = {s.name: inputs[s.name] for s in self.metadata.states}
        past = states[self.metadata.in_place_states[0]].shape[2]
        batch_size, count = inputs[self.metadata.generation.sequence_input].shape[:2]
        # with several sequences, the kernel accepts several positions only in the first step
        call_length = 1 if past and batch_size > 1 else max(count, 1)
        others = {n: v for n, v in inputs.items() if n not in states}
        results: list[dict[str, Array]] = []
        # run at least once, because the caller expects all outputs
        for start in range(0, max(count, 1), call_length):
            stop = min(start + call_length, count)
            step_inputs = {n: self._slice_input(n, v, past, start, stop) for n, v in others.items()}
            inputs = {**step_inputs, **states}
            results.append(self._run_single_step(inputs, past + start, stop - start))
            states = {s.name: results[-1][s.next_output] for s in self.metadata.states}
        return {n: self._concatenate_results(n, [r[n] for r in results]) for n in results[-1]}

    def _run_single_step(self, inputs: dict[str, Array], past: int, count: int) -> dict[str, Array]:
        """Run the session once, with KV buffers that hold the past and the new positions."""
        for name in self.metadata.in_place_states:
            buffer = inputs[name]
            batch, heads, _, width = buffer.shape
            inputs[name] = np.zeros((batch, heads, past + count, width), buffer.dtype)
            inputs[name][:, :, :past] = buffer
        return self.session.run({**inputs, PAST_LENGTH_INPUT: np.array(past, np.int64)})

    def _slice_input(self, name: str, value: Array, past: int, start: int, stop: int) -> Array:
        """Slice an input to the new positions `start` to `stop`."""
        if name in self.metadata.full_inputs:
            return value[:, : past + stop]
        axis = self._find_new_axis(self.graph.inputs[name])
        return value if axis is None else np.take(value, np.arange(start, stop), axis)

    def _concatenate_results(self, name: str, parts: list[Array]) -> Array:
        # an output without a time axis is taken from the last call
        output = self.graph.outputs.get(name)
        axis = self._find_new_axis(output) if output else None
        return parts[-1] if axis is None else np.concatenate(parts, axis)

    def _find_new_axis(self, value: Value) -> int | None:
        """Return the axis whose size is the number of new positions, or None if there is none."""
        sequence_type = self.graph.inputs[self.metadata.generation.sequence_input].type
        return find_axis_of_length(value.type, sequence_type.shape[1])


STORAGE_DTYPES = {"i8": "int8", "u8": "uint8", "i4": "int4", "f32": "float32"}
"""NumPy names of the dtypes that store quantized weights."""


def _list_types(format: QuantizationFormat, shape: tuple[int, ...]) -> list[object]:
    """Return the shape and NumPy dtype of each tensor that stores a weight of shape `shape`."""
    return [
        (format.compute_tensor_shape(shape, role), STORAGE_DTYPES[format.get_dtype(role)])
        for role in format.tensor_roles
    ]


@dataclass(kw_only=True)
class LoadedModel:
    """A compiled model, ready to run. `raw_session` is the session of the file. `session` has the
    inputs of the declared graph. The two sessions differ only for step graphs with in-place KV
    buffers.

    `model.run(pixel_values=array)` returns the outputs by name. Omitted inputs with a default are
    computed.
    """

    path: Path
    manifest: Manifest
    provider: str
    file: ModelFile
    session: Executable
    raw_session: Session

    def __repr__(self) -> str:
        return format_repr(f"graph {self.manifest.graph.format_signature()}, {self.provider}")

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs of the model, with their expected dtypes and shapes."""
        return self.input_signature.input_specs

    def run(self, **inputs: object) -> dict[str, Array]:
        """Run the model on inputs by name, and return its outputs by name. Raise E09xx if an input
        is invalid.
        """
        return self.session.run(self.prepare_inputs(inputs))

    def attention(self, **inputs: object) -> tuple[dict[str, Array], AttentionWeights]:
        """Run the model. Return the outputs, and the attention weights [batch, heads, query, key]
        of every layer, keyed by scope.

        If attention runs in a loop, each iteration is a query position. If an iteration has several
        queries, each iteration has a separate entry such as `self.attn turn 1`.
        """
        session, names = self._attention_session
        prepared = self.prepare_inputs(inputs)
        results = session.run(prepared)
        returned = {scope: results[n] for scope, n in names.items()}
        weights = compute_attention_weights(self.manifest.graph, prepared, returned, self.weights)
        return {n: results[n] for n in self.session.outputs}, AttentionWeights(weights)

    @cached_property
    def _attention_session(self) -> tuple[Session, dict[str, str]]:
        """A session that also outputs attention weights, and the names of the weights by scope."""
        return self.file.open_with_attention_outputs(self.provider, self.manifest.attentions)

    @property
    def input_signature(self) -> ModelInputs:
        """The inputs of the model with their preprocessing and defaults."""
        m = self.manifest
        sequence_input = str((m.generation or {}).get("sequence_input", ""))
        return build_model_inputs(m.graph, m.preprocessing, m.defaults, sequence_input, m.sources)

    def prepare_inputs(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return checked arrays for every input, including computed defaults."""
        return self.input_signature.prepare(inputs)

    def without_activation_quantization(self) -> "LoadedModel":
        """Return a copy without activation quantization, or this model if it is not quantized."""
        if not self.manifest.quantized:
            return self
        raw_session = self.file.open_without_activation_quantization(self.provider)
        return replace(self, raw_session=raw_session, session=self._wrap_kv_buffers(raw_session))

    def open_with_quantized_matmul_outputs(self) -> tuple[Executable, tuple[QuantizedMatMul, ...]]:
        """Open a session that also outputs values of quantized MatMul nodes. Return the session and
        descriptions of the nodes.
        """
        session, products = self.file.open_with_quantized_matmul_outputs(self.provider)
        return self._wrap_kv_buffers(session), products

    def open_with_execution_counters(
        self, wrap_session: Callable[[Session], Executable]
    ) -> Executable:
        """Open a session that counts subgraph executions. `wrap_session` wraps the runtime's
        session.
        """
        return self._wrap_kv_buffers(
            wrap_session(self.file.open_with_execution_counters(self.provider))
        )

    def _wrap_kv_buffers(self, raw_session: Executable) -> Executable:
        """Return a session with the inputs of the declared graph: `raw_session` itself, or for a
        step with in-place KV buffers, a wrapper that allocates the buffers.
        """
        if isinstance(self.session, KVBufferSession):
            return replace(self.session, session=raw_session)
        return raw_session

    def weights(self) -> dict[str, Array]:
        """Return the dequantized parameters by their names in the spec. Raise E0917 if the shape of
        a parameter is wrong, and E0925 if a parameter cannot be read.
        """
        quantized_weights = self.manifest.quantized.items()
        weights = self.file.read_weights(self.manifest.initializers)
        scales = self.file.read_weights({n: q.scales for n, q in quantized_weights})
        zero_points = self.file.read_weights(
            {n: q.zero_points for n, q in quantized_weights if q.format.has_zero_points}
        )
        for name, quantized in quantized_weights:
            shape = tuple(d.number or 0 for d in self.manifest.graph.parameters[name].shape)
            format = quantized.format
            parts = [part[name] for part in (weights, scales, zero_points) if name in part]
            if [(part.shape, part.dtype.name) for part in parts] != _list_types(format, shape):
                reason = f"`{escape_text(name)}` is not stored as described"
                raise_invalid_manifest_error(escape_text(self.file.path), reason)
            input_width = shape[-2 if format.is_transposed else -1]
            # a stacked weight [experts, …, …] has one matrix per expert
            is_stacked = len(shape) == 3
            matrix_parts = zip(*parts, strict=True) if is_stacked else [parts]
            matrices = [
                dequantize_weight(values, scale, input_width, format, *zero_point)
                for values, scale, *zero_point in matrix_parts
            ]
            weights[name] = np.stack(matrices) if is_stacked else matrices[0]
        return weights


def load_model(
    path: str, *, provider: str = "cpu", threads: int = 0, verify_contents: bool = False
) -> LoadedModel:
    """Load a compiled model. If `verify_contents` is True, verify the complete contents by hash.

    Raise E0918 if the file has no specc manifest, E0929 if the weights have changed since they were
    compiled, and E0921 or E0922 if the execution provider is not available.
    """
    file = backend.load_runner().read_model(Path(path))
    manifest = parse_model_file_manifest(file, path)
    _check_weights(
        file, manifest, verify_contents or manifest.weights.get("checks_hashes_on_open") is True
    )
    return load_parsed_model_file(file, manifest, provider, threads)


MAX_BYTES_HASHED_ON_LOAD = 1 << 20
"""Maximum size of embedded weights that are hashed on every load. For larger models, hashing takes
more than 5 % of the load time."""


def _check_weights(file: ModelFile, manifest: Manifest, verify_contents: bool) -> None:
    """Raise E0929 if the model or its external data have changed since compilation.

    Models with more than MAX_BYTES_HASHED_ON_LOAD of embedded weights, and all bytes after the
    first mebibyte of a weight file, are verified only if `verify_contents` is True.
    """
    directory, name = file.path.parent, file.path.name
    recorded = parse_weight_file_metadata(manifest.weights.get("beside", {}))
    if recorded is None:
        raise_invalid_manifest_error(escape_text(file.path), "`beside` is invalid")
    if reason := describe_out_of_bounds_tensor(
        file.list_external_files(), {n: f.bytes for n, f in recorded.items()}
    ):
        _raise_changed(file.path, name, reason)
    # a model file with external weights contains only the graph and the offsets of the weights
    is_quick_to_hash = bool(recorded) or file.path.stat().st_size <= MAX_BYTES_HASHED_ON_LOAD
    if (verify_contents or is_quick_to_hash) and not file.is_unchanged():
        _raise_changed(file.path, name, "its content has changed since it was compiled")
    for location, facts in recorded.items():
        if reason := describe_file_mismatch(
            directory, location, facts, verify_contents=verify_contents
        ):
            _raise_changed(file.path, location, reason)


def _raise_changed(path: Path, name: str, reason: str) -> NoReturn:
    raise_error(
        "E0929",
        f"`{escape_text(name)[:200]}` has changed since `{escape_text(path)}` was compiled",
        notes=[reason],
        helps=["compile the model again, or restore its files"],
    )


def load_parsed_model_file(
    file: ModelFile, manifest: Manifest, provider: str, threads: int = 0
) -> LoadedModel:
    """Open a parsed model file with its manifest and external data.

    Raise E0804 if the weights do not fit in memory, E0921 or E0922 if the provider is not
    available, and E0942 if the tokenizer does not match the model.
    """
    manifest = replace(
        manifest, preprocessing=manifest.preprocessing.load_tokenizer_files(file.path.parent)
    )
    if provider == "cpu":  # the free memory of other devices is unknown
        size = file.compute_weight_footprint()
        check_free_memory(str(file.path), size.memory_bytes, size.stored_bytes, size.element_count)
    session = file.open(provider, threads)
    return LoadedModel(
        path=file.path,
        manifest=manifest,
        provider=provider,
        file=file,
        session=session,
        raw_session=session,
    )


def read_manifest(path: str) -> Manifest:
    """Read the manifest of a compiled model without running it."""
    return parse_model_file_manifest(backend.load_runner().read_model(Path(path)), path)


def parse_model_file_manifest(file: ModelFile, path: str) -> Manifest:
    """Parse the manifest of a model file. Raise E0918 if the file has no manifest."""
    if METADATA_KEY not in file.metadata:
        raise_error(
            "E0918",
            f"`{escape_text(path)}` was not compiled by specc",
            notes=["the file has no specc manifest"],
            helps=["only models compiled by specc can be run: compile its spec"],
        )
    return parse_manifest(file.metadata[METADATA_KEY], escape_text(path))
