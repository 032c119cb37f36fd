"""The interface between compiler and backends.

A backend is a package found by entry point and loaded only by the command that needs it: it
compiles graphs (`CompilerBackend`), runs compiled models (`RunnerBackend`) or evaluates graphs as
the reference (`ReferenceBackend`). The PyTorch backend (`specc_torch`) is for training and is
imported directly.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from specc.diagnostics.diagnostic import raise_error
from specc.ir.graph import Graph, Value
from specc.ir.model import DecodeState, KVCache, ModelSource
from specc.ir.target import Target

if TYPE_CHECKING:
    # for annotations only: running a model needs no weights package, and importing this no NumPy
    import numpy as np

    from specc.artifact.package_index import WeightFileFacts
    from specc.ir.array import Array
    from specc.weights.external_data import ExternalDataPlan
    from specc.weights.parameter_values import ParameterValues

# ---- What the compiler passes to a backend

WeightStorage: TypeAlias = Literal["auto", "link", "copy", "inline"]
"""Weight storage: in the checkpoint, a separate file, inside the model, or automatic."""
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmittedModel:
    """Facts of a built model that only the backend knows, for the metadata that the model has.

    `held` maps each parameter to its initializer. `attentions` says, per attention, where its
    weights can be read: `scope` and `dtype`, then `weights` (a value) or `node` (the result of an
    `Attention`), with `guard` if it is inside an `If`. `beside` are the weight files, by path
    relative to the model's directory.
    """

    held: Mapping[str, str]
    attentions: tuple[Mapping[str, str], ...]
    beside: Mapping[str, "WeightFileFacts"]


MetadataTexts: TypeAlias = Callable[[EmittedModel], Mapping[str, str]]
"""The metadata texts of a model, by key."""


@dataclass(frozen=True)
class PackageGraph:
    """A graph of a package, and its file name, such as `decoder_model.onnx`."""

    graph: ModelSource
    file: str
    metadata: MetadataTexts | None = None


@dataclass(frozen=True)
class ExtraFile:
    """A further file of a package, such as `tokenizer.json`. If `hashed`, its file name gets a
    content hash before the first dot. Programs find it by `role`, by default its name.
    """

    name: str
    content: bytes
    role: str = ""
    hashed: bool = False

    @classmethod
    def of_data(cls, name: str, data: object, role: str = "") -> "ExtraFile":
        """Format a JSON file, such as `genai_config.json`, indented by two spaces."""
        text = json.dumps(data, ensure_ascii=False, indent=2)
        return cls(name, text.encode() + b"\n", role)


@dataclass(frozen=True)
class PackageMetadata:
    """Contents of `specc.json` besides the files: `facts` are any JSON, `sources` the spec
    files by name.
    """

    model: str
    facts: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenModel:
    """A written model or package: `path` is the file or directory, `data` the weights file, if any.
    `plan.linked` are the weights that stayed in the checkpoint, `plan.reasons` why others did not.
    `files` are all files with their sizes.
    """

    path: Path
    data: str | None
    plan: "ExternalDataPlan"
    files: tuple[tuple[Path, int], ...]


@runtime_checkable
class CompilerBackend(Protocol):
    """A backend that compiles graphs to models."""

    @property
    def DEFAULT_OPSET(self) -> int:  # noqa: N802
        """The default opset of a model."""

    def get_target(self, name: str) -> Target:
        """Return the target `name`. Raise E0822 if there is none."""

    def find_kv_buffers(
        self, graph: Graph, states: Sequence[DecodeState], target: Target, opset: int
    ) -> tuple[KVCache, ...]:
        """Return the caches of a step graph that can be updated in place."""

    def write_model(
        self,
        graph: ModelSource,
        path: Path,
        values: "ParameterValues",
        *,
        target: Target,
        opset: int,
        weights_as: WeightStorage,
        dtype: str,
        metadata: MetadataTexts | None,
        load: bool,
        beside: Sequence[tuple[str, bytes]],
    ) -> WrittenModel:
        """Write `graph` as the model `path`; see `specc_onnx.write.model_writer`."""

    def write_package(
        self,
        parts: Mapping[str, PackageGraph],
        directory: Path,
        values: "ParameterValues",
        *,
        target: Target,
        about: PackageMetadata,
        opset: int,
        weights_as: WeightStorage,
        dtype: str,
        extras: Sequence[ExtraFile],
        load: bool,
        inputs: Sequence[Path],
        force: bool,
        every_load: bool,
    ) -> WrittenModel:
        """Write graphs by role to `directory`; see `specc_onnx.write.package_writer`."""


# ---- What the runtime gets from a backend


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """An input or output. A length is a number, a formula as text, or None."""

    name: str
    dtype: "np.dtype[np.generic]"
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class QuantizedProduct:
    """A quantized matrix product of an open model, or the activation quantization before one: its
    operator, values (results of the model by role: `x`, `w`, `scales`, `y`) and attributes.
    """

    kind: str
    values: Mapping[str, str]
    numbers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Subgraphs:
    """The branches and loop bodies of a compiled model."""

    output: str  # i64[n], the executions that a copy counts
    names: tuple[str, ...]
    constants: tuple[int, ...]  # integers that branch conditions compare with


class DeviceTensor(Protocol):
    """A tensor in memory of the runtime, on the device of its model."""

    def numpy(self) -> "Array":
        """Return the values, copied to the host."""

    def shape(self) -> list[int]:
        """Return the shape."""


DeviceTensors: TypeAlias = dict[str, DeviceTensor]


class BoundRun(Protocol):
    """A run with some inputs and outputs bound to device tensors."""

    def run(self, inputs: "Mapping[str, Array | DeviceTensor]") -> DeviceTensors:
        """Run with these inputs and the bound ones; return all outputs. Raise E0924."""


class Computation(Protocol):
    """A function from named arrays to named arrays."""

    @property
    def outputs(self) -> Mapping[str, TensorSlot]:
        """The outputs by name."""

    def run(self, inputs: Mapping[str, "Array"]) -> dict[str, "Array"]:
        """Run and return all outputs. Raise E0907, E0910 to E0912 or E0924."""


class Session(Computation, Protocol):
    """An open model. Inputs that are `optional` have a default in the model."""

    @property
    def inputs(self) -> Mapping[str, TensorSlot]:
        """The required inputs."""

    @property
    def optional(self) -> Mapping[str, TensorSlot]:
        """The optional inputs."""

    def run_interruptibly(self, inputs: Mapping[str, "Array"]) -> dict[str, "Array"]:
        """Run a model that may take long, so that Ctrl-C interrupts it; return all outputs."""

    def tensor(self, array: "Array") -> DeviceTensor:
        """Copy an array to the device."""

    def joined(self, parts: Sequence[DeviceTensor], axis: int) -> DeviceTensor:
        """Concatenate tensors along an axis, on the device of the model."""

    def numbers(self, held: DeviceTensor) -> "Array":
        """Return the values of a tensor of any dtype, on the host."""

    def rows_of(self, held: DeviceTensor, axis: int, rows: "Array") -> DeviceTensor:
        """Select indices `rows` along an axis, on the device of the model."""

    def tensors(
        self,
        inputs: Mapping[str, "Array | DeviceTensor"],
        into: "Mapping[str, DeviceTensor] | None" = None,
    ) -> DeviceTensors:
        """Run without checks; return all outputs as device tensors, those in `into` written in
        place. Raise E0924.
        """

    def bind(
        self, inputs: Mapping[str, DeviceTensor], into: Mapping[str, DeviceTensor]
    ) -> BoundRun:
        """Bind inputs and outputs to device tensors for repeated runs."""


@dataclass(frozen=True, slots=True)
class WeightFootprint:
    """The size of a model's weights: the number of elements (`numbers`), and the bytes on disk
    (`stored`) and in memory (`held`).
    """

    numbers: int
    stored: int
    held: int


class ModelFile(Protocol):
    """A parsed model and its path."""

    @property
    def path(self) -> Path:
        """Return the path of the model file."""

    @property
    def metadata(self) -> dict[str, str]:
        """Return the metadata of the model."""

    def outside(self) -> list[tuple[str, int]]:
        """Return the external data files of the model, with the minimum size of each or -1."""

    def is_unchanged(self) -> bool:
        """Return True if the model has not changed since it was written."""

    def shares_scales(self) -> bool:
        """Return True if batch elements share activation scales."""

    def room(self) -> WeightFootprint:
        """Return the size of the weights."""

    def weights(self, names: Mapping[str, str]) -> dict[str, "Array"]:
        """Return the values of each parameter; `names` maps it to its initializer. Raise E0925."""

    def open(self, provider: str, threads: int = 0) -> Session:
        """Open the model for running. Raise E0921 to E0923."""

    def open_fixed(
        self, provider: str, lengths: Mapping[str, int], shapes: Mapping[str, Shape]
    ) -> Computation:
        """Open the model for fixed lengths and input shapes."""

    def open_exact(self, provider: str, threads: int = 0) -> Session:
        """Return a copy with weight-only quantization."""

    def open_with_products(self, provider: str) -> tuple[Session, tuple[QuantizedProduct, ...]]:
        """Return a copy that also outputs operands and results of its quantized products."""

    def subgraphs(self) -> Subgraphs:
        """Return the branches and loop bodies of the model."""

    def open_counting(self, provider: str) -> Session:
        """Open a copy as `open_exact` does that also counts executions of subgraphs."""

    def open_with_attention(
        self, provider: str, notes: Iterable[Mapping[str, str]]
    ) -> tuple[Session, dict[str, str]]:
        """Open a copy that also outputs attention weights; return it and output names by scope."""


@runtime_checkable
class RunnerBackend(Protocol):
    """A backend that reads and runs compiled models."""

    def read_model(self, path: Path) -> ModelFile:
        """Read a model file. Raise E0802 if it cannot be read, E0926 if it is not a model."""

    def parse_model(self, data: bytes, path: Path) -> ModelFile:
        """Parse a model from the bytes of the file `path`. Raise E0926 if they are not a model."""


@runtime_checkable
class ReferenceBackend(Protocol):
    """A backend that evaluates graphs: the reference."""

    def evaluate_graph(
        self,
        graph: Graph,
        inputs: Mapping[str, "Array"],
        parameters: Mapping[str, "Array"],
        *,
        wanted: tuple[str, ...] | None = None,
        after: Callable[[Value, "Array"], "Array"] | None = None,
    ) -> dict[str, "Array"]:
        """Evaluate a graph in float64; return all outputs or the `wanted` values, with `after`
        applied to each value.
        """


# ---- Finding backends


def load_compiler() -> CompilerBackend:
    """Return the backend that compiles models. Raise E0801 if it cannot be loaded."""
    package = _package("onnx")
    assert isinstance(package, CompilerBackend), f"{package} builds no models"
    return package


def load_runner() -> RunnerBackend:
    """Return the backend that runs models. Raise E0801 if it cannot be loaded."""
    package = _package("onnx")
    assert isinstance(package, RunnerBackend), f"{package} runs no models"
    return package


def load_reference() -> ReferenceBackend:
    """Return the reference backend. Raise E0801 if it cannot be loaded."""
    package = _package("numpy")
    assert isinstance(package, ReferenceBackend), f"{package} computes no graphs"
    return package


def _package(name: str) -> ModuleType:
    """Return the package registered as backend `name`, e.g. `onnx`."""
    try:
        return import_module(_announced().get(name, f"specc_{name}"))
    except ModuleNotFoundError as error:
        raise_error(
            "E0801",
            f"the {name} backend needs the package `{error.name}`, which is not installed",
            helps=[f"pip install -e '.[{name}]'" if name == "torch" else "pip install -e ."],
        )


@cache
def _announced() -> dict[str, str]:
    """Return the registered package of each backend by name. Cached: it searches all installed
    packages.
    """
    return {e.name: e.value for e in entry_points(group="specc.backends")}
