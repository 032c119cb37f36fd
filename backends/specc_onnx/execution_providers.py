"""ONNX Runtime's execution providers: their names, options and availability, tensors on their
devices, and a check that no compute node fell back to the CPU.

ONNX Runtime computes shapes on the CPU with every provider, so the session option
`disable_cpu_ep_fallback` rejects nearly every model with dynamic dimensions. The check permits
nodes on the CPU if they depend only on dimensions, constants and one-element tensors. Any other
node on the CPU causes an error that names the node, because a silent fallback would make GPU
measurements wrong.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.io.safe_read import escape_text
from specc.ir.array import Array

HELPER_OPSET, HELPER_IR_VERSION = 17, 8
"""The opset and IR version of one-node helper models (opset 17 is the oldest supported opset)."""


def gather_on_device(
    tensor: onnxruntime.OrtValue, axis: int, indices: Array, provider: str
) -> onnxruntime.OrtValue:
    """Gather `indices` along an axis of `tensor` on the device of the provider."""
    index_tensor = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(indices, np.int64))
    return _run_operator("Gather", (tensor, index_tensor), provider, axis=axis)


def concat_on_device(
    tensors: Sequence[onnxruntime.OrtValue], axis: int, provider: str
) -> onnxruntime.OrtValue:
    """Concatenate tensors of the same type along an axis, on the device of the provider."""
    return _run_operator("Concat", tensors, provider, axis=axis)


def copy_to_host(tensor: onnxruntime.OrtValue, provider: str) -> Array:
    """Return a copy of a tensor on the host. A bfloat16 tensor is cast to float32 on the device for
    the copy, because NumPy lacks bfloat16.
    """
    if tensor.element_type() != TensorProto.BFLOAT16:
        array: Array = tensor.numpy()
        return array
    float_array: Array = _run_operator("Cast", (tensor,), provider, to=TensorProto.FLOAT).numpy()
    return float_array.astype(ml_dtypes.bfloat16)


def _run_operator(
    operator: str, inputs: Sequence[onnxruntime.OrtValue], provider: str, **attributes: Any
) -> onnxruntime.OrtValue:
    """Run a single ONNX operator on an execution provider and return the result. The result of
    `Cast` is on the host, and the results of all other operators are on the device.
    """
    types = tuple((x.element_type(), len(x.shape())) for x in inputs)
    session = _make_operator_session(operator, types, provider, **attributes)
    binding = session.io_binding()
    for n, value in enumerate(inputs):
        binding.bind_ortvalue_input(f"x{n}", value)
    is_on_host = operator == "Cast"
    binding.bind_output("y", "cpu" if is_on_host else PROVIDER_DEVICES.get(provider, "cpu"))
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0]


@cache
def _make_operator_session(
    operator: str, types: tuple[tuple[int, int], ...], provider: str, **attributes: Any
) -> onnxruntime.InferenceSession:
    """Open a session for one node. `types` are the (element type, rank) pairs of the operands."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT_LOG_LEVEL
    names = [f"x{n}" for n in range(len(types))]
    node = helper.make_node(operator, names, ["y"], name="one", **attributes)
    infos = [
        helper.make_tensor_value_info(name, type_code, [f"{name}{n}" for n in range(rank)])
        for name, (type_code, rank) in zip(names, types, strict=True)
    ]
    result = helper.make_tensor_value_info("y", attributes.get("to", types[0][0]), None)
    model = ModelProto(
        ir_version=HELPER_IR_VERSION,
        graph=GraphProto(name="one", node=[node], input=infos, output=[result]),
        opset_import=[helper.make_opsetid("", HELPER_OPSET)],
    )
    return onnxruntime.InferenceSession(
        model.SerializeToString(),
        options,
        providers=[(ORT_PROVIDER_NAMES[provider], PROVIDER_OPTIONS.get(provider, {}))],
        enable_fallback=0,
    )


LENGTH_OPERATORS = frozenset({"Shape", "Size"})
"""Operators whose results are always dimensions."""

SCALAR_INPUT_TYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
"""The element types of one-element graph inputs such as limits, counters and conditions."""

NodeKey = tuple[str, str]
"""The operator type and the name of a node, as reported by ONNX Runtime."""


def find_cpu_compute_nodes(model: ModelProto, cpu_nodes: Iterable[NodeKey]) -> list[NodeKey]:
    """Return the distinct nodes in `cpu_nodes` that are not shape computations, in graph order.
    Nodes that ONNX Runtime inserted are included.
    """
    is_shape_node: dict[NodeKey, bool] = {}
    for key, computes_lengths in _classify_nodes(model.graph, {}):
        is_shape_node[key] = is_shape_node.get(key, True) and computes_lengths
    return [key for key in dict.fromkeys(cpu_nodes) if not is_shape_node.get(key, False)]


def _classify_nodes(
    graph: GraphProto, outer_scalars: Mapping[str, bool]
) -> Iterator[tuple[NodeKey, bool]]:
    """Yield every node, including nodes in subgraphs, with a flag that is True if the node computes
    only dimensions and one-element tensors. `outer_scalars` maps a value outside the subgraph to
    True if it is a dimension, a constant, or computed from dimensions and constants.
    """
    is_scalar = {**outer_scalars, **_find_scalar_sources(graph)}
    for node in graph.node:
        bodies = [b for a in node.attribute for b in ((a.g,) if a.HasField("g") else a.graphs)]
        reads_scalars = not bodies and all(is_scalar.get(n, False) for n in node.input if n)
        computes_lengths = reads_scalars or node.op_type in LENGTH_OPERATORS
        is_scalar.update(dict.fromkeys(node.output, computes_lengths))
        yield (node.op_type, node.name), computes_lengths
        for body in bodies:
            yield from _classify_nodes(body, is_scalar)


def _find_scalar_sources(graph: GraphProto) -> dict[str, bool]:
    """Map each initializer and graph input to True if it is a constant or a one-element tensor."""
    constants = [t.name for t in graph.initializer]
    constants += (t.values.name for t in graph.sparse_initializer)
    return {**dict.fromkeys(constants, True), **{i.name: _is_scalar_input(i) for i in graph.input}}


def _is_scalar_input(graph_input: ValueInfoProto) -> bool:
    """Return True if a graph input is declared as an integer or boolean with one element."""
    type_ = graph_input.type.tensor_type
    return (
        type_.elem_type in SCALAR_INPUT_TYPES
        and type_.HasField("shape")
        and all(d.dim_value == 1 for d in type_.shape.dim)
    )


ORT_PROVIDER_NAMES: dict[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "directml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
}
"""ONNX Runtime's provider names, keyed by the provider names on the command line."""

PROVIDER_OPTIONS: dict[str, dict[str, str]] = {"cuda": {"use_tf32": "0"}}
"""The options of each execution provider. TF32 is off, so that f32 MatMuls match the reference."""

PROVIDER_TARGETS = {"cuda": "ort-cuda", "openvino": "openvino"}
"""The compile target for each provider."""

PROVIDER_DEVICES = {"cuda": "cuda"}
"""The device name of each provider that stores tensors on a device other than the host."""

SILENT_LOG_LEVEL, DEFAULT_LOG_LEVEL = 4, 2
"""ONNX Runtime's log level for fatal errors only (others are exceptions), and its default level."""

MAX_NAMED_NODES = 6
"""Maximum number of nodes that a message lists."""

RECORD_PLACEMENT_OPTION, FORBID_CPU_FALLBACK_OPTION = (
    "session.record_ep_graph_assignment_info",
    "session.disable_cpu_ep_fallback",
)
"""The session options that record the provider of each node and that reject nodes on the CPU."""


def get_ort_provider(provider: str) -> str:
    """Return the name of a provider in ONNX Runtime. Raise E0921 for an unknown provider, and E0922
    for a provider that is not installed.
    """
    ort_provider_name = ORT_PROVIDER_NAMES.get(provider)
    installed_providers = [
        name
        for name, ort_name in ORT_PROVIDER_NAMES.items()
        if ort_name in onnxruntime.get_available_providers()
    ]
    if ort_provider_name is None:
        is_gpu = provider.lower() in ("gpu", "nvidia")
        suggestion = "cuda" if is_gpu else find_similar_name(provider, ORT_PROVIDER_NAMES)
        known_names = f"expected one of {format_quoted_names(ORT_PROVIDER_NAMES)}"
        raise_error(
            "E0921",
            f"unknown execution provider `{escape_text(provider)}`",
            helps=[format_suggestion(suggestion) if suggestion else known_names],
        )
    if provider not in installed_providers:
        names = format_quoted_names(installed_providers)
        raise_missing_provider_error(
            provider, [f"the installed ONNX Runtime supports only {names}"]
        )
    return ort_provider_name


def raise_missing_provider_error(provider: str, notes: list[str]) -> NoReturn:
    """Raise E0922 with `notes`, because an execution provider is missing or cannot be loaded."""
    page = "docs/gpu.md" if provider in ("cuda", "tensorrt") else "docs/providers.md"
    raise_error(
        "E0922",
        f"the execution provider `{provider}` is not available",
        notes=notes,
        helps=["use `--execution-provider cpu`", f"or install another ONNX Runtime: see {page}"],
    )


def can_report_node_placement() -> bool:
    """Return True if ONNX Runtime reports node placement (version 1.24 or later)."""
    return tuple(int(n) for n in onnxruntime.__version__.split(".")[:2]) >= (1, 24)


@contextmanager
def silence_provider_startup(provider: str) -> Iterator[None]:
    """Suppress the startup messages of a GPU provider inside a `with` block, and preload NVIDIA's
    libraries from Python packages.
    """
    if provider == "cpu":
        yield
        return
    if provider in ("cuda", "tensorrt"):
        # NVIDIA's libraries may also be installed without Python packages
        with redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    onnxruntime.set_default_logger_severity(SILENT_LOG_LEVEL)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(DEFAULT_LOG_LEVEL)


def check_node_placement(
    session: onnxruntime.InferenceSession, model: bytes, name: str, provider: str
) -> None:
    """Raise E0923 if a node that is not a shape computation was assigned to the CPU."""
    assignments = session.get_provider_graph_assignment_info()
    cpu_nodes = [
        (n.op_type, n.name)
        for assignment in assignments
        if assignment.ep_name == ORT_PROVIDER_NAMES["cpu"]
        for n in assignment.get_nodes()
    ]
    if compute_nodes := find_cpu_compute_nodes(ModelProto.FromString(model), cpu_nodes):
        nodes = ", ".join(
            f"`{escape_text(node)}` ({escape_text(kind)})"
            for kind, node in compute_nodes[:MAX_NAMED_NODES]
        )
        omission = (
            f", and {len(compute_nodes) - MAX_NAMED_NODES} more"
            if len(compute_nodes) > MAX_NAMED_NODES
            else ""
        )
        raise_error(
            "E0923",
            f"{provider} does not support all nodes of `{escape_text(name)}`, and specc does "
            "not fall back to the CPU",
            notes=[f"unsupported nodes: {nodes}{omission}"],
            helps=[
                *(
                    [f"compile it with `--target {PROVIDER_TARGETS[provider]}`"]
                    if provider in PROVIDER_TARGETS
                    else []
                ),
                "use `--execution-provider cpu`",
            ],
        )


def format_quoted_names(names: Iterable[str]) -> str:
    """Return names as a comma-separated list of quoted names, or "none"."""
    return ", ".join(f"`{n}`" for n in names) or "none"
