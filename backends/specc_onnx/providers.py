"""The execution providers of ONNX Runtime: what users call them, whether one is there,
and whether it computes a whole model.

The provider that was named computes the model, or nothing does: a node that silently
went to the processor would make a measurement of the card a lie.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import NoReturn

import onnx
import onnxruntime

from specc.files.read import shown
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean, suggestion
from specc_onnx.placement import computing

PROVIDERS: dict[str, str] = {
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
"""What users call a provider, and what ONNX Runtime does."""

OPTIONS: dict[str, dict[str, str]] = {"cuda": {"use_tf32": "0"}}
"""Options of a provider: products of f32 are computed in f32, so that results agree
with the reference.
"""

TARGETED = {"cuda": "ort-cuda", "openvino": "openvino"}
"""The target that is made for a provider."""

DEVICE = {"cuda": "cuda"}
"""Where a provider holds tensors, if not on the host."""

SILENT, USUAL = 4, 2
"""Only what ends the process is logged; everything else reaches us as an exception.
ONNX Runtime's own choice.
"""

NAMED = 6
"""Nodes that a message names."""

RECORD, STRICT = (
    "session.record_ep_graph_assignment_info",
    "session.disable_cpu_ep_fallback",
)
"""Settings of a session: to tell afterwards which node went to which provider; to
refuse any on the processor.
"""


def available(provider: str) -> str:
    """ONNX Runtime's name of `provider`. E0921 for an unknown one, E0922 for one that
    is not installed.
    """
    known = PROVIDERS.get(provider)
    installed = [
        ours
        for ours, theirs in PROVIDERS.items()
        if theirs in onnxruntime.get_available_providers()
    ]
    if known is None:
        near = (
            "cuda"
            if provider.lower() in ("gpu", "nvidia")
            else did_you_mean(provider, PROVIDERS)
        )
        fail(
            "E0921",
            f"there is no provider called `{shown(provider)}`",
            helps=[suggestion(near) if near else f"known are {listed(PROVIDERS)}"],
        )
    if provider not in installed:
        absent(
            provider,
            [
                f"it is not part of the ONNX Runtime installed here, which has {listed(installed)}"
            ],
        )
    return known


def absent(provider: str, notes: list[str]) -> NoReturn:
    """E0922, with what is known of why."""
    page = "docs/gpu.md" if provider in ("cuda", "tensorrt") else "docs/providers.md"
    fail(
        "E0922",
        f"the provider `{provider}` is not available here",
        notes=notes,
        helps=[
            "use `--provider cpu`",
            f"{page} says how to install another ONNX Runtime",
        ],
    )


def tells_places() -> bool:
    """Whether this ONNX Runtime says which node went to which provider, as 1.24 was the
    first to do.
    """
    return tuple(int(n) for n in onnxruntime.__version__.split(".")[:2]) >= (1, 24)


@contextmanager
def others_quiet(provider: str) -> Iterator[None]:
    """While another provider than the processor is started, which says what it misses
    past all settings of a session.

    NVIDIA's libraries may lie among the Python packages, where they are found only if
    they are loaded beforehand.
    """
    if provider == "cpu":
        yield
        return
    if provider in ("cuda", "tensorrt"):
        # what it does not find there may be found elsewhere
        with redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    onnxruntime.set_default_logger_severity(SILENT)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(USUAL)


def check_places(
    session: onnxruntime.InferenceSession, model: str | bytes, name: str, provider: str
) -> None:
    """E0923 where a node that does more than reckon with lengths was left to the processor."""
    places = session.get_provider_graph_assignment_info()
    left = [
        (n.op_type, n.name)
        for p in places
        if p.ep_name == PROVIDERS["cpu"]
        for n in p.get_nodes()
    ]
    if isinstance(model, bytes):
        held = onnx.ModelProto.FromString(model)
    else:
        held = onnx.load_model(model, load_external_data=False)
    if found := computing(held, left):
        nodes = ", ".join(
            f"`{shown(node)}` ({shown(kind)})" for kind, node in found[:NAMED]
        )
        more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
        fail(
            "E0923",
            f"{provider} cannot compute all of `{shown(name)}`, and nothing is moved "
            "to the processor unasked",
            notes=[f"left to the processor: {nodes}{more}"],
            helps=[
                *(
                    [f"compile it with `--target {TARGETED[provider]}`"]
                    if provider in TARGETED
                    else []
                ),
                "use `--provider cpu`",
            ],
        )


def listed(names: Iterable[str]) -> str:
    """Names as a message lists them."""
    return ", ".join(f"`{n}`" for n in names) or "nothing"
