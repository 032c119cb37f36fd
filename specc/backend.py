"""The interface between the compiler and its backends.

A backend is a package that registers an entry point. A backend is imported only by commands that
need the backend. A backend compiles graphs (`CompilerBackend`), runs compiled models
(`RunnerBackend`) or is the reference implementation of graphs (`ReferenceBackend`). The PyTorch
backend (`specc_torch`) is for training and is imported directly.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass

if TYPE_CHECKING:
    # imported only for annotations, so that opening a model imports neither the IR nor the weights
    import numpy as np

    from specc.artifact.package_index_and_format_versions import WeightFileMetadata
    from specc.ir.array import Array
    from specc.ir.graph import Graph, Value
    from specc.ir.model_definition import DecodeState, KVCacheNames, ModelSource
    from specc.ir.target import Target
    from specc.weights.external_data import ExternalDataPlan
    from specc.weights.parameter_sources import ParameterSource

# ---- Arguments and results of compiler backends

WeightStorage: TypeAlias = Literal["auto", "link", "copy", "inline"]
"""Where weights are stored: in the checkpoint, in a separate file, or in the model."""
Shape: TypeAlias = tuple[int, ...]


@immutable_dataclass
class EmittedModel:
    """The information about an emitted model that its metadata records. `initializer_names` maps
    each parameter to the name of its initializer. `attention_weight_locations` describes where the
    attention weights of each layer are. An entry has the keys `scope` and `dtype`, then `weights`
    (a value) or `node` (the output of an `Attention` node), and `guard` if the node is inside an
    `If`. `weight_files` maps paths to the metadata of weight files.
    """

    initializer_names: Mapping[str, str]
    attention_weight_locations: tuple[Mapping[str, str], ...]
    weight_files: Mapping[str, "WeightFileMetadata"]


MetadataBuilder: TypeAlias = Callable[[EmittedModel], Mapping[str, str]]
"""A function that returns the metadata entries of an emitted model, keyed by metadata key."""


@immutable_dataclass()
class PackageGraph:
    """A graph of a package, with its metadata and a file name such as `decoder_model.onnx`."""

    graph: "ModelSource"
    file: str
    metadata: MetadataBuilder | None = None


@immutable_dataclass()
class ExtraFile:
    """An additional file of a package, such as `tokenizer.json`. `role` is the key of the file in
    the index (default: the file name). If `is_hashed` is True, the name contains a content hash.
    """

    name: str
    content: bytes
    role: str = ""
    is_hashed: bool = False

    @classmethod
    def from_json(cls, name: str, data: object, role: str = "") -> "ExtraFile":
        """Create a JSON file such as `genai_config.json`, indented by two spaces."""
        text = json.dumps(data, ensure_ascii=False, indent=2)
        return cls(name, text.encode() + b"\n", role)


@immutable_dataclass()
class PackageMetadata:
    """The metadata in `specc.json`: the model name, the entries, and spec texts by file name."""

    model: str
    entries: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@immutable_dataclass()
class WriteResult:
    """A written model or package: its path, the name of its weight file (or None), and the sizes of
    all files. The weights in `plan.linked_tensors` remain in the checkpoint.
    """

    path: Path
    weight_file: str | None
    plan: "ExternalDataPlan"
    files: tuple[tuple[Path, int], ...]


class CompilerBackend(Protocol):
    """A backend that compiles graphs to model files."""

    def get_default_opset(self) -> int:
        """Return the default opset of compiled models."""

    def get_target(self, name: str) -> "Target":
        """Return the target `name`. Raise E0822 for an unknown target."""

    def find_in_place_kv_caches(
        self, graph: "Graph", states: Sequence["DecodeState"], target: "Target", opset: int
    ) -> tuple["KVCacheNames", ...]:
        """Return the KV caches of a step graph that the target can update in place."""

    def write_model(
        self,
        graph: "ModelSource",
        path: Path,
        parameters: "ParameterSource",
        *,
        target: "Target",
        opset: int,
        weights_as: WeightStorage,
        dtype: str,
        metadata: MetadataBuilder | None,
        verify_load: bool,
        sidecar_files: Sequence[tuple[str, bytes]],
    ) -> WriteResult:
        """Write `graph` to the model file `path` (see `specc_onnx.write.model_writer`)."""

    def write_package(
        self,
        graphs: Mapping[str, PackageGraph],
        directory: Path,
        parameters: "ParameterSource",
        *,
        target: "Target",
        metadata: PackageMetadata,
        opset: int,
        weights_as: WeightStorage,
        dtype: str,
        extra_files: Sequence[ExtraFile],
        verify_load: bool,
        input_paths: Sequence[Path],
        force: bool,
        checks_hashes_on_open: bool,
    ) -> WriteResult:
        """Write a package of `graphs`, keyed by role (see `specc_onnx.write.package_writer`)."""


# ---- Models and sessions of runner backends


@immutable_dataclass
class TensorSpec:
    """The type of an input or output. Dimensions are integers, symbolic expressions or None."""

    name: str
    dtype: "np.dtype[np.generic]"
    shape: tuple[int | str | None, ...]


@immutable_dataclass
class QuantizedMatMul:
    """A quantized MatMul or activation quantization of a model. It has an operator, value names by
    role (`x`, `w`, `scales`, `y`), and integer attributes.
    """

    operator: str
    value_names: Mapping[str, str]
    attributes: Mapping[str, int]


@immutable_dataclass
class SubgraphInfo:
    """The `If` branches and `Loop` bodies of a compiled model, and the name of the output that
    contains their execution counts.
    """

    execution_counts_output: str  # int64 [n], the number of executions of each subgraph
    names: tuple[str, ...]
    compared_constants: tuple[int, ...]  # integers with which `If` conditions compare sizes


class DeviceTensor(Protocol):
    """A tensor in device memory, allocated by the runtime."""

    def numpy(self) -> "Array":
        """Return a copy of the tensor in host memory."""

    def shape(self) -> list[int]:
        """Return the shape of the tensor."""


DeviceTensors: TypeAlias = dict[str, DeviceTensor]


class IOBindingSession(Protocol):
    """A model with inputs and outputs bound to device tensors (IO binding), for repeated runs."""

    def run(self, inputs: "Mapping[str, Array | DeviceTensor]") -> DeviceTensors:
        """Run the model on `inputs` and the bound inputs. Raise E0924 if the run fails."""


class Executable(Protocol):
    """A callable that maps input arrays by name to output arrays by name."""

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The types of the outputs by name."""

    def run(self, inputs: Mapping[str, "Array"]) -> dict[str, "Array"]:
        """Compute all outputs. Raise E0907, E0910 to E0912, or E0924 if the run fails."""


class Session(Executable, Protocol):
    """A loaded model. Optional inputs have a default value in the model."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The types of the required inputs by name."""

    @property
    def optional_inputs(self) -> Mapping[str, TensorSpec]:
        """The types of the optional inputs by name."""

    def run_interruptibly(self, inputs: Mapping[str, "Array"]) -> dict[str, "Array"]:
        """Run the model and return all outputs. Ctrl-C interrupts a long run."""

    def copy_to_device(self, array: "Array") -> DeviceTensor:
        """Copy an array to the device of the model."""

    def concat(self, tensors: Sequence[DeviceTensor], axis: int) -> DeviceTensor:
        """Concatenate tensors along an axis, on the device of the model."""

    def copy_to_host(self, tensor: DeviceTensor) -> "Array":
        """Copy a tensor to host memory."""

    def gather(self, tensor: DeviceTensor, axis: int, indices: "Array") -> DeviceTensor:
        """Gather `indices` along an axis, on the device of the model."""

    def run_on_device(
        self,
        inputs: Mapping[str, "Array | DeviceTensor"],
        output_buffers: "Mapping[str, DeviceTensor] | None" = None,
    ) -> DeviceTensors:
        """Run the model without checking its inputs. Return all outputs as device tensors. Outputs
        named in `output_buffers` are written to these buffers. Raise E0924 if the run fails.
        """

    def bind(
        self, inputs: Mapping[str, DeviceTensor], output_buffers: Mapping[str, DeviceTensor]
    ) -> IOBindingSession:
        """Bind inputs and outputs to device tensors for repeated runs."""


@immutable_dataclass
class WeightFootprint:
    """The number of weight elements of a model, and their bytes on disk and in memory."""

    element_count: int
    stored_bytes: int
    memory_bytes: int


class ModelFile(Protocol):
    """A parsed model and its path."""

    @property
    def path(self) -> Path:
        """Return the path of the model file."""

    @property
    def metadata(self) -> dict[str, str]:
        """Return the metadata entries of the model by key."""

    def list_external_files(self) -> list[tuple[str, int]]:
        """Return the path and the minimum size in bytes of each external file (-1 if invalid)."""

    def is_unchanged(self) -> bool:
        """Return True if the model has not changed since it was written."""

    def has_per_tensor_scales(self) -> bool:
        """Return True if activation scales are per-tensor, i.e. shared by all batch elements."""

    def compute_weight_footprint(self) -> WeightFootprint:
        """Return the number of weight elements of the model and the size of the weights."""

    def read_weights(self, initializer_names: Mapping[str, str]) -> dict[str, "Array"]:
        """Return the parameters by name. Raise E0925 if an initializer cannot be read."""

    def open(self, provider: str, threads: int = 0) -> Session:
        """Open the model for running. Raise E0921 to E0923 on failure."""

    def open_in_background(self, threads: int = 0) -> None:
        """Open a CPU session in the background. The next call of `open` returns this session."""

    def open_with_static_shapes(
        self, provider: str, lengths: Mapping[str, int], shapes: Mapping[str, Shape]
    ) -> Executable:
        """Open the model with static dimension sizes and static input shapes."""

    def open_without_activation_quantization(self, provider: str, threads: int = 0) -> Session:
        """Open a copy of the model without activation quantization (weight-only)."""

    def open_with_quantized_matmul_outputs(
        self, provider: str
    ) -> tuple[Session, tuple[QuantizedMatMul, ...]]:
        """Open a copy of the model that outputs the operands and results of quantized MatMuls."""

    def collect_subgraphs(self) -> SubgraphInfo:
        """Return the `If` branches and `Loop` bodies of the model."""

    def open_with_execution_counters(self, provider: str) -> Session:
        """Open a copy that counts subgraph executions and does not quantize activations."""

    def open_with_attention_outputs(
        self, provider: str, locations: Iterable[Mapping[str, str]]
    ) -> tuple[Session, dict[str, str]]:
        """Open a copy that outputs attention weights, and map each scope to its output name."""


class RunnerBackend(Protocol):
    """A backend that opens and runs compiled models."""

    def read_model(self, path: Path) -> ModelFile:
        """Read a model file. Raise E0802 for an unreadable file, and E0926 for an invalid model."""

    def parse_model(self, data: bytes, path: Path) -> ModelFile:
        """Parse a model from the content of the file `path`. Raise E0926 for an invalid model."""


class ReferenceBackend(Protocol):
    """The reference backend, which evaluates graphs in float64."""

    def evaluate_graph(
        self,
        graph: "Graph",
        inputs: Mapping[str, "Array"],
        parameters: Mapping[str, "Array"],
        *,
        value_names: tuple[str, ...] | None = None,
        result_hook: Callable[["Value", "Array"], "Array"] | None = None,
    ) -> dict[str, "Array"]:
        """Evaluate a graph in float64. Return the values `value_names`, or all outputs by default.
        `result_hook` may replace each computed value.
        """


# ---- Finding backends


def load_compiler() -> CompilerBackend:
    """Return the backend that compiles models. Raise E0801 if no backend can be loaded."""
    return cast(CompilerBackend, _import_backend("onnx", CompilerBackend))


def load_runner() -> RunnerBackend:
    """Return the backend that runs models. Raise E0801 if no backend can be loaded."""
    return cast(RunnerBackend, _import_backend("onnx", RunnerBackend))


def load_reference_backend() -> ReferenceBackend:
    """Return the reference backend. Raise E0801 if the backend cannot be loaded."""
    return cast(ReferenceBackend, _import_backend("numpy", ReferenceBackend))


def find_missing_members(package: ModuleType, protocol: type) -> set[str]:
    """Return the members of a protocol that a package neither defines nor lists in `__all__`."""
    # since Python 3.12, `isinstance` with a protocol does not call the `__getattr__` of a module
    names = {name for name in vars(protocol) if not name.startswith("_")}
    return names - {*vars(package), *vars(package).get("__all__", ())}


def _import_backend(name: str, protocol: type) -> ModuleType:
    """Return the package that is registered as the backend `name`, such as `onnx`."""
    try:
        package = import_module(_find_package(name))
    except ModuleNotFoundError as error:
        raise_error(
            "E0801",
            f"the {name} backend requires the package `{error.name}`, which is not installed",
            helps=[f"pip install -e '.[{name}]'" if name == "torch" else "pip install -e ."],
        )
    assert not (missing := find_missing_members(package, protocol)), f"{package} lacks {missing}"
    return package


def _find_package(name: str) -> str:
    """Return the package that a distribution registers as the entry point of a backend."""
    if find_spec(package := f"specc_{name}"):
        return package
    from importlib.metadata import entry_points  # imported here, because the import takes 15 ms

    return {e.name: e.value for e in entry_points(group="specc.backends")}.get(name, package)
