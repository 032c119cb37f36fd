"""Load a compiled model, run it on batches or with static shapes, and dequantize its weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from specc import backend
from specc.artifact import package_index_and_checksums
from specc.artifact.manifest import METADATA_KEY, Manifest, parse_manifest
from specc.backend import Computation, ModelFile, QuantizedMatMul, Session
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.diagnostics.render import format_repr
from specc.io.memory_check import check_free_memory
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.dim import DimError
from specc.ir.graph import Graph
from specc.ir.ops.quantized import QuantizationFormat
from specc.preprocessing.input_checks import InputSpec
from specc.runtime.attention_weights import AttentionWeights, compute_attention_weights
from specc.runtime.kv_buffer_step import KVBufferStep
from specc.runtime.model_inputs import ModelInputs, build_model_inputs
from specc.weights.int_quantization import dequantize_weight

STACK_RANK = 3
"""The rank of a parameter that is a stack of matrices."""
STORAGE_DTYPES = {"i8": "int8", "u8": "uint8", "i4": "int4", "f32": "float32"}
"""NumPy names of the dtypes that store quantized weights."""


def read_dequantized_weights(file: ModelFile, manifest: Manifest) -> dict[str, Array]:
    """Read and dequantize all parameters. Raise E0917 (wrong shape) or E0925 (unreadable)."""
    weights = file.read_weights(manifest.initializers)
    scales = file.read_weights({n: quantized.scales for n, quantized in manifest.quantized.items()})
    zero_points = file.read_weights(
        {n: q.zero_points for n, q in manifest.quantized.items() if q.format.has_zero_points}
    )
    for name, quantized in manifest.quantized.items():
        shape = tuple(d.number or 0 for d in manifest.graph.parameters[name].type.shape)
        format = quantized.format
        parts = [part[name] for part in (weights, scales, zero_points) if name in part]
        if [(part.shape, part.dtype.name) for part in parts] != _list_types(format, shape):
            raise_error(
                "E0917",
                f"the specc metadata in `{escape_text(file.path)}` is invalid: "
                f"`{escape_text(name)}` is not stored as described",
            )
        input_width = shape[-2] if format.is_transposed else shape[-1]
        # a stacked weight has one matrix per expert
        is_stacked = len(shape) == STACK_RANK
        matrix_parts = zip(*parts, strict=True) if is_stacked else [parts]
        matrices = [
            dequantize_weight(values, scale, input_width, format, *zero_point)
            for values, scale, *zero_point in matrix_parts
        ]
        weights[name] = np.stack(matrices) if is_stacked else matrices[0]
    return weights


def _list_types(
    format: QuantizationFormat, shape: tuple[int, ...]
) -> list[tuple[tuple[int, ...], str]]:
    """Return the shape and NumPy dtype of each stored tensor of a weight with the shape `shape`."""
    return [
        (format.compute_tensor_shape(shape, role), STORAGE_DTYPES[format.get_dtype(role)])
        for role in format.tensor_roles
    ]


@dataclass(kw_only=True)
class LoadedModel:
    """A compiled model, ready to run. `runtime` is the session of the file. `session` has the
    inputs of the declared graph; it differs from `runtime` only for a step with in-place buffers.

    `model.run(pixel_values=array)` returns the outputs by name. Omitted inputs with a default are
    computed.
    """

    path: Path
    manifest: Manifest
    provider: str
    file: ModelFile = field(repr=False)
    session: Computation = field(repr=False)
    runtime: Session = field(repr=False)

    def __repr__(self) -> str:
        return format_repr(f"graph {self.manifest.graph.format_signature()}, {self.provider}")

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs of the model, with their expected dtypes and shapes."""
        return self.input_signature.input_specs

    def run(self, **inputs: object) -> dict[str, Array]:
        """Run the model on arrays, lists or strings. Return outputs by name. Raise E09xx."""
        return self.session.run(self.prepare_inputs(inputs))

    def attention(self, **inputs: object) -> tuple[dict[str, Array], AttentionWeights]:
        """Run the model. Return the outputs, and the attention weights [batch, heads, query, key]
        of every layer by scope.

        For attention in a loop, each iteration is a query position. If an iteration has several
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
        return self.file.open_with_attention(self.provider, self.manifest.attentions)

    @property
    def input_signature(self) -> ModelInputs:
        """The inputs of the model with their preprocessing and defaults."""
        manifest = self.manifest
        sequence_input = str((manifest.generation or {}).get("growing", ""))
        return build_model_inputs(
            manifest.graph, manifest.preprocessing, manifest.defaults, sequence_input
        )

    def prepare_inputs(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return checked arrays for every input, including computed defaults."""
        return self.input_signature.prepare(inputs)

    def with_weight_only_quantization(self) -> "LoadedModel":
        """Return the model without activation quantization, or the same model if it has none."""
        if not self.manifest.quantized:
            return self
        runtime = self.file.open_without_activation_quantization(self.provider)
        return replace(self, runtime=runtime, session=self._wrap_kv_buffers(runtime))

    def open_with_quantized_matmuls(self) -> tuple[Computation, tuple[QuantizedMatMul, ...]]:
        """Open a session that also outputs values of quantized MatMul nodes. Return the session and
        descriptions of the nodes.
        """
        session, products = self.file.open_with_quantized_matmuls(self.provider)
        return self._wrap_kv_buffers(session), products

    def open_with_execution_counts(self, wrap: Callable[[Session], Computation]) -> Computation:
        """Open a session that counts subgraph executions. `wrap` wraps the runtime's session."""
        return self._wrap_kv_buffers(wrap(self.file.open_with_execution_counts(self.provider)))

    def _wrap_kv_buffers(self, runtime: Computation) -> Computation:
        """Return a session with the inputs of the declared graph: `runtime` itself, or for a step
        with in-place KV buffers, a wrapper that allocates the buffers.
        """
        if isinstance(self.session, KVBufferStep):
            return replace(self.session, session=runtime)
        return runtime

    def weights(self) -> dict[str, Array]:
        """Return the dequantized parameters by their names in the spec."""
        return read_dequantized_weights(self.file, self.manifest)


def load_model(
    path: str, *, provider: str = "cpu", threads: int = 0, verify_contents: bool = False
) -> LoadedModel:
    """Load a compiled model. With `verify_contents`, verify all bytes by hash.

    Raise E0918 if the file has no specc manifest, E0929 if the weights have changed since they were
    compiled, and E0921 or E0922 if the execution provider is not available.
    """
    file = backend.load_runner().read_model(Path(path))
    manifest = read_file_manifest(file, path)
    _check_weights(file, manifest, verify_contents or manifest.weights.get("every_load") is True)
    return load_parsed_model(file, manifest, provider, threads)


MAX_BYTES_HASHED_ON_LOAD = 1 << 20
"""Maximum size of embedded weights that are hashed on every load. For larger models, hashing takes
more than 5 % of the load time."""


def _check_weights(file: ModelFile, manifest: Manifest, verify_contents: bool) -> None:
    """Raise E0929 if the model or its external data differ from the files that were compiled.

    Models with more than MAX_BYTES_HASHED_ON_LOAD of embedded weights, and all bytes after the
    first mebibyte of a weight file, are verified only with `verify_contents`.
    """
    directory, name = file.path.parent, file.path.name
    recorded = package_index_and_checksums.parse_weight_files(manifest.weights.get("beside", {}))
    if recorded is None:
        raise_error(
            "E0917",
            f"the specc metadata in `{escape_text(file.path)}` is invalid: `beside` is invalid",
        )
    if reason := package_index_and_checksums.describe_misplaced_tensor(
        file.list_external_files(), {n: f.bytes for n, f in recorded.items()}
    ):
        _raise_changed(file.path, name, reason)
    # a model file with external weights contains only the graph and the offsets of the weights
    is_quick_to_hash = bool(recorded) or file.path.stat().st_size <= MAX_BYTES_HASHED_ON_LOAD
    if (verify_contents or is_quick_to_hash) and not file.is_unchanged():
        _raise_changed(file.path, name, "its content has changed since it was compiled")
    for location, facts in recorded.items():
        if reason := package_index_and_checksums.describe_file_mismatch(
            directory, location, facts, verifies_contents=verify_contents
        ):
            _raise_changed(file.path, location, reason)


def _raise_changed(path: Path, name: str, reason: str) -> NoReturn:
    raise_error(
        "E0929",
        f"`{escape_text(name)[:200]}` has changed since `{escape_text(path)}` was compiled",
        notes=[reason],
        helps=["compile the model again, or restore its files"],
    )


def load_parsed_model(
    file: ModelFile, manifest: Manifest, provider: str, threads: int = 0
) -> LoadedModel:
    """Open a parsed model file with its manifest and external data.

    Raise E0804 if there is too little memory for the weights (checked before allocation), E0921 or
    E0922 if the provider is not available, and E0942 if the tokenizer does not match the model.
    """
    manifest = replace(manifest, preprocessing=manifest.preprocessing.load_files(file.path.parent))
    footprint = file.measure_weights()
    if provider == "cpu":  # only the device driver knows how much device memory is free
        check_free_memory(
            str(file.path), footprint.memory_bytes, footprint.stored_bytes, footprint.element_count
        )
    session = file.open(provider, threads)
    return LoadedModel(
        path=file.path,
        manifest=manifest,
        provider=provider,
        file=file,
        session=session,
        runtime=session,
    )


def read_manifest(path: str) -> Manifest:
    """Read the manifest of a compiled model without running it."""
    return read_file_manifest(backend.load_runner().read_model(Path(path)), path)


def read_file_manifest(file: ModelFile, path: str) -> Manifest:
    """Parse the manifest of a model file. Raise E0918 if the file has no manifest."""
    texts = file.metadata
    if METADATA_KEY not in texts:
        raise_error(
            "E0918",
            f"`{escape_text(path)}` was not compiled by specc",
            notes=["the file has no specc manifest"],
            helps=["only models compiled by specc can be run: compile its spec"],
        )
    return parse_manifest(texts[METADATA_KEY], escape_text(path))


def run_batches(
    model: LoadedModel, arguments: tuple[object, ...], inputs: Mapping[str, object]
) -> Iterator[dict[str, Array]]:
    """Run the model on each batch, and yield the outputs lazily. Raise E0910 unless `arguments` is
    an iterable of mappings. Error messages name the batch.
    """
    batches: Any = arguments[0]
    is_single_argument = len(arguments) == 1 and not inputs
    # an array is iterable, but not an iterable of batches
    is_iterable = isinstance(batches, Iterable) and "__array__" not in dir(type(batches))
    if not is_single_argument or isinstance(batches, Mapping | str) or not is_iterable:
        _raise_not_batches()
    return _run_batches(model, batches)


def _run_batches(
    model: LoadedModel, batches: Iterable[Mapping[str, object]]
) -> Iterator[dict[str, Array]]:
    for number, batch in enumerate(batches, start=1):
        if not isinstance(batch, Mapping):
            _raise_not_batches()
        try:
            results = model.run(**batch)
        except SpeccError as failed:
            first, *others = failed.diagnostics
            where = f"in batch {number}"
            raise SpeccError(replace(first, notes=(*first.notes, where)), *others) from None
        yield results


def _raise_not_batches() -> NoReturn:
    raise_error(
        "E0910",
        "positional arguments must be batches (mappings of input names to arrays)",
        helps=[
            "model.run(x=array)",
            'for several batches: model.run({"x": array} for array in arrays)',
        ],
    )


def specialize_static_shapes(model: LoadedModel, lengths: Mapping[str, int]) -> LoadedModel:
    """Specialize a model to static sizes of its symbolic dimensions, such as `{"batch": 1}`.

    Raise E0981 unless each symbolic dimension has an integer size, and E0832 if the model is a
    standalone generator, whose output sizes are dynamic.
    """
    if model.manifest.decoding is not None:
        raise_error("E0832", "a standalone generator does not support static shapes")
    graph = model.manifest.graph
    _check_lengths(graph, lengths)
    env = {**lengths}
    try:
        env |= {name: dim.evaluate(env) for name, dim in graph.length_equations.items()}
        shapes = {
            name: tuple(d.evaluate(env) for d in value.type.shape)
            for name, value in (*graph.inputs.items(), *graph.outputs.items())
        }
    except DimError as error:
        _raise_invalid_lengths(f"the lengths are invalid for this model: {error}", graph)
    session = model.file.open_with_static_shapes(model.provider, lengths, shapes)
    return replace(model, session=session)


def _check_lengths(graph: Graph, lengths: Mapping[str, int]) -> None:
    """Raise E0981 if a symbolic dimension is unknown or if its size is invalid."""
    symbols = _list_dynamic_lengths(graph)
    for name, length in lengths.items():
        if name not in symbols:
            _raise_invalid_lengths(f"unknown length `{escape_text(name)}`", graph)
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            _raise_invalid_lengths(
                f"`{name}` must be a positive integer, got {escape_text(repr(length))[:40]}", graph
            )
    if missing := [name for name in symbols if name not in lengths]:
        missing_names = ", ".join(f"`{name}`" for name in missing)
        _raise_invalid_lengths(f"missing length of {missing_names}", graph)


def _list_dynamic_lengths(graph: Graph) -> list[str]:
    """Return the names of the symbolic dimensions of the inputs, in order."""
    dims = (d for v in graph.inputs.values() for d in v.type.shape)
    symbols = dict.fromkeys(symbol for dim in dims for symbol in sorted(dim.symbols()))
    return [symbol for symbol in symbols if symbol not in graph.length_equations]


def _raise_invalid_lengths(title: str, graph: Graph) -> NoReturn:
    example = ", ".join(f"{name}=8" for name in _list_dynamic_lengths(graph))
    raise_error("E0981", title, helps=[f"set all of them: `model.with_static_shapes({example})`"])
