"""Read a model file: its metadata, weights and memory usage. Copies of the model can have
additional outputs.

Model files are untrusted, so their size is limited before they are read, and external weights are
read only from regular files in or below the model's directory.
"""

import hashlib
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import onnx
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from specc.backend import QuantizedMatMul, SubgraphInfo, WeightFootprint
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.io.safe_read import (
    UnreadableFileError,
    escape_text,
    open_regular_file,
    read_regular_file,
)
from specc.ir.array import Array
from specc_onnx.lower.subgraphs import iterate_nested_graphs
from specc_onnx.ort_model import OrtModel, StaticShapeModel, can_capture_cuda_graph
from specc_onnx.ort_session import open_serialized_ort_model
from specc_onnx.write.instrumentation import (
    PROVIDERS_WITHOUT_WEIGHTS,
    add_attention_outputs,
    add_execution_count_output,
    collect_subgraphs,
)
from specc_onnx.write.quantization_probes import (
    add_quantized_matmul_outputs,
    has_per_tensor_activation_scales,
    remove_activation_quantization,
)


def compute_weight_footprint(model: ModelProto) -> WeightFootprint:
    """Return the number of weight elements, and the weights' size in bytes on disk and in memory.
    ONNX Runtime applies a `Cast` of a weight once, at load time, so a weight that is cast to a
    wider type takes more memory than disk space.
    """
    widened_bits = _find_widened_bits(model)
    element_count = stored_bytes = memory_bytes = 0
    tensors = (t for graph in iterate_nested_graphs(model.graph) for t in graph.initializer)
    for tensor in tensors:
        count = math.prod(max(length, 0) for length in tensor.dims)
        width = _get_element_bits(tensor.data_type)
        element_count += count
        stored_bytes += count * width // 8
        memory_bytes += count * max(width, widened_bits.get(tensor.name, 0)) // 8
    return WeightFootprint(element_count, stored_bytes, memory_bytes)


def _find_widened_bits(model: ModelProto) -> dict[str, int]:
    """Return the largest bit width to which each value is cast by a `Cast`."""
    widened_bits: dict[str, int] = {}
    nodes = (node for graph in iterate_nested_graphs(model.graph) for node in graph.node)
    for node in nodes:
        if node.op_type == "Cast" and node.input:
            type_codes = [a.i for a in node.attribute if a.name == "to"]
            bits = max((_get_element_bits(type_code) for type_code in type_codes), default=0)
            widened_bits[node.input[0]] = max(bits, widened_bits.get(node.input[0], 0))
    return widened_bits


def _get_element_bits(type_code: int) -> int:
    """Return the bits per element of an ONNX element type, or 0 for an unknown type."""
    if type_code in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return 4
    try:
        return 8 * int(helper.tensor_dtype_to_np_dtype(type_code).itemsize)
    except (KeyError, TypeError):
        return 0


MAX_MODEL_BYTES = 2**31
"""The maximum size of an ONNX file in bytes, which is the limit of protobuf."""


@dataclass(frozen=True)
class OnnxModelFile:
    """A parsed ONNX model file, whose external weights are read on demand."""

    path: Path
    model: ModelProto
    pending_sessions: dict[int, "Future[OrtModel]"] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The CPU sessions that background threads create, by number of ONNX Runtime threads."""

    @property
    def metadata(self) -> dict[str, str]:
        """Return the `metadata_props` of the model."""
        return {p.key: p.value for p in self.model.metadata_props}

    def list_external_files(self) -> list[tuple[str, int]]:
        """Return each external file's path and minimum size in bytes (-1 if invalid)."""
        return _list_external_files(self.model)

    def is_unchanged(self) -> bool:
        """Return True if the file matches the content hash that it contains."""
        return has_valid_hash(self.path)

    def compute_weight_footprint(self) -> WeightFootprint:
        """Return the number of weight elements and their bytes on disk and in memory."""
        return compute_weight_footprint(self.model)

    def read_weights(self, initializer_names: Mapping[str, str]) -> dict[str, Array]:
        """Read each parameter's value from its initializer. `initializer_names` maps parameters to
        initializers. Raise E0925 if an initializer is unreadable.
        """
        initializers = {t.name: t for t in self.model.graph.initializer}
        weights = {}
        for parameter, name in initializer_names.items():
            if name not in initializers:
                raise_error(
                    "E0925",
                    f"`{escape_text(str(self.path))}` has no weights named `{escape_text(name)}`",
                )
            try:
                weights[parameter] = onnx.numpy_helper.to_array(
                    initializers[name], str(self.path.parent)
                )
            except (ValueError, OSError, TypeError, onnx.checker.ValidationError) as error:
                raise_error(
                    "E0925",
                    f"the weights `{escape_text(name)}` of `{escape_text(str(self.path))}` "
                    f"cannot be read",
                    notes=[escape_text(str(error))[:300]],
                    helps=[
                        "compile the model again; the file with its weights may be missing or "
                        "truncated"
                    ],
                )
        return weights

    def open(self, provider: str, threads: int = 0) -> OrtModel:
        """Load the model on an execution provider with `threads` threads (0: the default)."""
        if provider == "cpu" and threads in self.pending_sessions:
            return self.pending_sessions.pop(threads).result()
        return self._open_model(self.model, provider, threads)

    def open_in_background(self, threads: int = 0) -> None:
        """Load the model for the CPU on a background thread. The next call of `open` returns it."""
        executor = ThreadPoolExecutor(1)
        future = executor.submit(self._open_model, self.model, "cpu", threads)
        self.pending_sessions[threads] = future
        executor.shutdown(wait=False)

    def open_with_static_shapes(
        self, provider: str, lengths: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
    ) -> StaticShapeModel:
        """Load the model with static input shapes, as a CUDA graph if possible."""
        open_session = partial(
            open_serialized_ort_model,
            self.model.SerializeToString(),
            provider,
            directory=self.path.parent,
            name=str(self.path),
            lengths=lengths,
        )
        if not can_capture_cuda_graph(self.model, provider):
            return StaticShapeModel.allocate(open_session(), shapes)
        try:
            session = open_session(enable_cuda_graph=True)
        except SpeccError:
            # ONNX Runtime does not capture a CUDA graph if shape computations remain on the CPU
            session = open_session()
        return StaticShapeModel.allocate(session, shapes)

    def has_per_tensor_scales(self) -> bool:
        """Return True if a node quantizes activations with one scale per tensor."""
        return has_per_tensor_activation_scales(self.model)

    def open_without_activation_quantization(self, provider: str, threads: int = 0) -> OrtModel:
        """Load a copy of the model that does not quantize activations."""
        copy = _copy_model(self.model)
        remove_activation_quantization(copy)
        return self._open_model(copy, provider, threads, without_activation_quantization=True)

    def open_with_quantized_matmul_outputs(
        self, provider: str
    ) -> tuple[OrtModel, tuple[QuantizedMatMul, ...]]:
        """Load a model copy that also outputs the operands and results of quantized MatMuls."""
        copy = _copy_model(self.model)
        products = add_quantized_matmul_outputs(copy)
        # use one thread, because with more threads, the activation scales depend on how the kernel
        # splits a tensor
        return self._open_model(copy, provider, threads=1), products

    def collect_subgraphs(self) -> SubgraphInfo:
        """Return the names of the branches and loop bodies of the model."""
        return collect_subgraphs(self.model)

    def open_with_execution_counters(self, provider: str) -> OrtModel:
        """Load a model copy that counts subgraph executions and does not quantize activations."""
        copy = _copy_model(self.model)
        remove_activation_quantization(copy)
        add_execution_count_output(copy)
        return self._open_model(copy, provider, without_activation_quantization=True)

    def _open_model(
        self,
        model: ModelProto,
        provider: str,
        threads: int = 0,
        without_activation_quantization: bool = False,
    ) -> OrtModel:
        return open_serialized_ort_model(
            model.SerializeToString(),
            provider,
            directory=self.path.parent,
            name=str(self.path),
            threads=threads,
            without_activation_quantization=without_activation_quantization,
        )

    def open_with_attention_outputs(
        self, provider: str, locations: Iterable[Mapping[str, str]]
    ) -> tuple[OrtModel, dict[str, str]]:
        """Load a model copy that also outputs attention weights. Return output names by scope."""
        copy = _copy_model(self.model)
        # the caller computes attention weights that the model does not return with the reference
        # interpreter
        if provider in PROVIDERS_WITHOUT_WEIGHTS:
            locations = [location for location in locations if "weights" in location]
        names = add_attention_outputs(copy, locations)
        return self._open_model(copy, provider), names


def _list_external_files(model: ModelProto) -> list[tuple[str, int]]:
    """Return each external file's path and minimum size in bytes (-1 if invalid)."""
    ends: dict[str, int] = {}
    tensors = [*_iterate_tensors(model.graph)]
    for function in model.functions:
        tensors += _iterate_node_tensors(function.node)
    for tensor in tensors:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        offset = _parse_byte_count(fields.get("offset", "0"))
        length = _parse_byte_count(fields.get("length", ""))
        location = fields.get("location", "")
        previous_end = ends.get(location, 0)
        ends[location] = (
            -1
            if min(previous_end, offset) < 0 or length < 1
            else max(previous_end, offset + length)
        )
    return list(ends.items())


def _copy_model(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def read_model(path: Path) -> OnnxModelFile:
    """Read a model file. Raise E0802 if the file is unreadable, and E0926 if it is not a model."""
    try:
        data = read_regular_file(path, MAX_MODEL_BYTES)
    except UnreadableFileError as error:
        raise_error("E0802", f"the model `{escape_text(str(path))}` cannot be read: {error.reason}")
    return _resolve_model_link(parse_model(data, path))


def _resolve_model_link(file: OnnxModelFile) -> OnnxModelFile:
    """Resolve a symbolic link to a model, unless the external files are next to the link itself."""
    locations = [location for location, _ in file.list_external_files() if "\0" not in location]
    if not file.path.is_symlink() or (
        locations and all((file.path.parent / name).exists() for name in locations)
    ):
        return file
    return replace(file, path=file.path.resolve())


def parse_model(data: bytes, path: Path) -> OnnxModelFile:
    """Parse the contents `data` of the file `path`. Raise E0926 if `data` is not an ONNX model."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
        is_readable = _has_valid_strings(model)
    except (DecodeError, ValueError):
        is_readable = False
    if not is_readable:
        model.Clear()
    if not model.graph.node and not model.graph.output:
        raise_error(
            "E0926",
            f"`{escape_text(str(path))}` is not an ONNX model",
            helps=["compile a spec: `specc compile SPEC -o MODEL.onnx`"],
        )
    return OnnxModelFile(path, model)


def _has_valid_strings(message: Message) -> bool:
    """Return True if all strings of a message are UTF-8 (protobuf returns bytes otherwise)."""
    for name in _list_string_fields(message.DESCRIPTOR):
        value = getattr(message, name)
        if isinstance(value, str):
            continue
        if isinstance(value, bytes):
            return False
        if isinstance(value, Message):
            elements = [value] if message.HasField(name) else []
        else:  # a repeated field has a container of elements
            elements = value
        for element in elements:
            if isinstance(element, Message):
                if not _has_valid_strings(element):
                    return False
            elif isinstance(element, bytes):
                return False
    return True


@lru_cache(maxsize=64)
def _list_string_fields(descriptor: Descriptor) -> list[str]:
    """Return the names of the string and message fields of a message type."""
    return [
        f.name for f in descriptor.fields if f.message_type is not None or f.type == f.TYPE_STRING
    ]


def _iterate_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield every tensor of a graph: initializers and attributes, at any depth."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _iterate_node_tensors(graph.node)


def _iterate_node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _iterate_tensors(graph)


def _parse_byte_count(text: str) -> int:
    """Parse a decimal number of bytes. Return -1 if the text is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


HASH_KEY = "specc.seal"
BLANK_HASH = "0" * 64
"""The content hash's metadata key, and the placeholder for the hash while it is computed."""
_HASH_PREFIX = bytes([0x0A, len(HASH_KEY)]) + HASH_KEY.encode() + bytes([0x12, len(BLANK_HASH)])
"""The protobuf encodings of the metadata key for the hash and of the size of the hash."""


def insert_model_hash(data: bytes) -> list[bytes | memoryview]:
    """Replace the placeholder hash in the bytes of a model with the hash of the model, in place."""
    offset = data.rindex(_HASH_PREFIX + BLANK_HASH.encode()) + len(_HASH_PREFIX)
    view = memoryview(data)
    return [
        view[:offset],
        hashlib.sha256(data).hexdigest().encode(),
        view[offset + len(BLANK_HASH) :],
    ]


def has_valid_hash(path: Path) -> bool:
    """Return True if a model file matches the content hash that it contains."""
    try:
        with (
            os.fdopen(open_regular_file(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            offset = data.rfind(_HASH_PREFIX) + len(_HASH_PREFIX)
            if offset < len(_HASH_PREFIX):
                return False
            with memoryview(data) as view:
                digest = hashlib.sha256(view[:offset])
                digest.update(BLANK_HASH.encode())
                digest.update(view[offset + len(BLANK_HASH) :])
            return data[offset : offset + len(BLANK_HASH)] == digest.hexdigest().encode()
    except (UnreadableFileError, OSError, ValueError):
        return False
