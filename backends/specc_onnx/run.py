"""Opening and running models with ONNX Runtime, on the provider the user named and on no other.

A run checks names, element types, byte order and lengths that must agree, because ONNX Runtime does not:
it takes big-endian arrays for little-endian ones and lets lengths that should be equal differ. Whatever it
says goes into a diagnostic; nothing is printed.
"""

import io
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from specc.input import shown
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean
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
"""Options of a provider: products of f32 are computed in f32, so that results agree with the reference."""

NUMPY_OF: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(np.bool_),
}
"""NumPy's form of the element types that inputs have."""

DEVICE = {"cuda": "cuda"}
"""Where a provider holds tensors, if not on the host."""

SILENT, USUAL = 4, 2
"""Only what ends the process is logged; everything else reaches us as an exception. ONNX Runtime's own choice."""

NAMED = 6
"""Nodes that a message names."""

RECORD, STRICT = "session.record_ep_graph_assignment_info", "session.disable_cpu_ep_fallback"
"""Settings of a session: to tell afterwards which node went to which provider; to refuse any on the processor."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An input or output: a length is a number, or a formula as text, or None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class RunningModel:
    """An open model. `name` is what messages call it; inputs that are `optional` have a default in the model."""

    session: Any
    name: str
    provider: str
    inputs: Mapping[str, Slot]
    outputs: Mapping[str, Slot]
    optional: Mapping[str, Slot] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, NDArray[Any]], wanted: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
        """The outputs by name, all of them or those `wanted`. Fails with E0907, E0910 to E0912 and E0924."""
        given = {name: self._fitting(name, inputs) for name in (*self.inputs, *inputs)}
        check_lengths({**self.inputs, **self.optional}, given)
        names = list(wanted or self.outputs)
        try:
            results = self.session.run(names, given)
        except Exception as error:  # ONNX Runtime has no base class for what it raises
            _refused("E0924", f"`{self.name}` stopped while running", error)
        return dict(zip(names, results, strict=True))

    def run_interruptibly(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """All outputs, as `run`, of a model that may run for long: an interrupt (Ctrl-C) ends it.

        ONNX Runtime does not listen for one while it computes, so it does that beside the thread that does.
        """
        given = {name: self._fitting(name, inputs) for name in (*self.inputs, *inputs)}
        check_lengths({**self.inputs, **self.optional}, given)
        options = onnxruntime.RunOptions()
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(self.session.run, list(self.outputs), given, options)
            try:
                results = running.result()
            except KeyboardInterrupt:
                options.terminate = True
                raise
            except Exception as error:  # as above
                _refused("E0924", f"`{self.name}` stopped while running", error)
        return dict(zip(self.outputs, results, strict=True))

    def tensor(self, array: NDArray[Any]) -> Any:
        """An array as the runtime holds it, on the device of the model."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), DEVICE.get(self.provider, "cpu"))

    def tensors(self, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The outputs as the runtime holds them, from arrays or from outputs of before; nothing is checked.

        Outputs named in `into` are written to these tensors, which may be inputs as well.

        States so go from one run to the next without being copied. Fails with E0924.
        """
        binding = self.session.io_binding()
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                value = self.tensor(value)
            binding.bind_ortvalue_input(name, value)
        into = into or {}
        for name in self.outputs:
            if name in into:
                binding.bind_ortvalue_output(name, into[name])
            else:
                binding.bind_output(name, DEVICE.get(self.provider, "cpu"))
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:  # as above
            _refused("E0924", f"`{self.name}` stopped while running", error)
        return dict(zip(self.outputs, binding.get_outputs(), strict=True))

    def _fitting(self, name: str, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """An input as ONNX Runtime has to be given it: native byte order, contiguous."""
        slot = self.inputs.get(name) or self.optional.get(name)
        if slot is None:
            near = did_you_mean(name, self.inputs)
            helps = [f"did you mean `{near}`?"] if near else [f"it takes {_list(self.inputs)}"]
            fail("E0910", f"the model has no input called `{shown(name)}`", helps=helps)
        if name not in inputs:
            fail("E0910", f"the input `{name}` is missing", helps=[f"give {_list(self.inputs)}"])
        array = np.asarray(inputs[name])
        if array.dtype.newbyteorder("=") != slot.dtype:
            fail(
                "E0907",
                f"the input `{name}` holds {array.dtype}, {slot.dtype} is expected",
                helps=[f"convert it first: array.astype({str(slot.dtype)!r})"],
            )
        # not ascontiguousarray, which makes an axis where there is none
        return np.asarray(array, dtype=slot.dtype, order="C")


def open_model(path: Path, provider: str = "cpu", *, threads: int = 0) -> RunningModel:
    """The model in a file, whose weights may lie beside it. Fails with E0921 to E0923."""
    return _open(str(path), str(path), provider, threads, "")


def open_bytes(
    model: bytes,
    provider: str = "cpu",
    *,
    folder: Path | None = None,
    name: str = "the model",
    threads: int = 0,
) -> RunningModel:
    """A model in memory; `folder` is where its weights lie, if they are not in it."""
    return _open(model, name, provider, threads, str(folder.resolve()) if folder else "")


def available(provider: str) -> str:
    """ONNX Runtime's name of `provider`. E0921 for an unknown one, E0922 for one that is not installed."""
    known = PROVIDERS.get(provider)
    installed = [ours for ours, theirs in PROVIDERS.items() if theirs in onnxruntime.get_available_providers()]
    if known is None:
        near = "cuda" if provider.lower() in ("gpu", "nvidia") else did_you_mean(provider, PROVIDERS)
        fail(
            "E0921",
            f"there is no provider called `{shown(provider)}`",
            helps=[f"did you mean `{near}`?"] if near else [f"known are {_list(PROVIDERS)}"],
        )
    if provider not in installed:
        _absent(provider, [f"it is not part of the ONNX Runtime installed here, which has {_list(installed)}"])
    return known


def _absent(provider: str, notes: list[str]) -> NoReturn:
    fail(
        "E0922",
        f"the provider `{provider}` is not available here",
        notes=notes,
        helps=["use `--provider cpu`", "docs/gpu.md says how to install another ONNX Runtime"],
    )


def _open(model: str | bytes, name: str, provider: str, threads: int, folder: str) -> RunningModel:
    chosen = available(provider)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.intra_op_num_threads = threads
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    if provider != "cpu":
        options.add_session_config_entry(RECORD if tells_places() else STRICT, "1")
    try:
        with _others_quiet(provider):
            session = onnxruntime.InferenceSession(
                model, options, providers=[(chosen, OPTIONS.get(provider, {}))], enable_fallback=0
            )
    except Exception as error:  # as above
        _refused("E0923", f"ONNX Runtime cannot load `{shown(name)}` for {provider}", error)
    if chosen not in session.get_providers():
        _absent(provider, ["it is installed, but could not be started; its driver or libraries may be missing"])
    if provider != "cpu" and tells_places():
        check_places(session, model, name, provider)
    inputs, outputs, optional = (
        {known.name: _slot(known) for known in listed()}
        for listed in (session.get_inputs, session.get_outputs, session.get_overridable_initializers)
    )
    return RunningModel(session, name, provider, inputs, outputs, optional)


def tells_places() -> bool:
    """Whether this ONNX Runtime says which node went to which provider, as 1.24 was the first to do."""
    return tuple(int(n) for n in onnxruntime.__version__.split(".")[:2]) >= (1, 24)


@contextmanager
def _others_quiet(provider: str) -> Iterator[None]:
    """While another provider than the processor is started, which says what it misses past all settings of a session.

    NVIDIA's libraries may lie among the Python packages, where they are found only if they are loaded beforehand.
    """
    if provider == "cpu":
        yield
        return
    if provider in ("cuda", "tensorrt"):
        with redirect_stdout(io.StringIO()):  # what it does not find there may be found elsewhere
            onnxruntime.preload_dlls()
    onnxruntime.set_default_logger_severity(SILENT)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(USUAL)


def check_places(session: Any, model: str | bytes, name: str, provider: str) -> None:
    """E0923 where a node that does more than reckon with lengths was left to the processor."""
    places = session.get_provider_graph_assignment_info()
    left = [(n.op_type, n.name) for p in places if p.ep_name == PROVIDERS["cpu"] for n in p.get_nodes()]
    if isinstance(model, bytes):
        held = onnx.ModelProto.FromString(model)
    else:
        held = onnx.load_model(model, load_external_data=False)
    if found := computing(held, left):
        nodes = ", ".join(f"`{shown(node)}` ({shown(kind)})" for kind, node in found[:NAMED])
        more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
        fail(
            "E0923",
            f"{provider} cannot compute all of `{shown(name)}`, and nothing is moved to the processor unasked",
            notes=[f"left to the processor: {nodes}{more}"],
            helps=[*(["compile it with `--target ort-cuda`"] if provider == "cuda" else []), "use `--provider cpu`"],
        )


def _slot(known: Any) -> Slot:
    return Slot(known.name, NUMPY_OF.get(known.type, np.dtype(np.void)), tuple(known.shape))


def check_lengths(slots: Mapping[str, Slot], given: Mapping[str, NDArray[Any]]) -> None:
    """Lengths fit what is declared, and one symbol is one length everywhere. E0911 or E0912 where not."""
    found: dict[str, tuple[int, str, int]] = {}
    for name, slot in slots.items():
        if name not in given:
            continue
        shape = given[name].shape
        if len(shape) != len(slot.shape):
            fail(
                "E0911",
                f"`{name}` has {len(shape)} axes, {len(slot.shape)} are expected",
                notes=[_declared(slot)],
            )
        for axis, (wanted, length) in enumerate(zip(slot.shape, shape, strict=True)):
            if isinstance(wanted, int) and wanted != length:
                fail(
                    "E0912",
                    f"`{name}` has {length} rows along axis {axis + 1}, {wanted} are expected",
                    notes=[_declared(slot)],
                )
            if isinstance(wanted, str):
                first, where, at = found.setdefault(wanted, (length, name, axis))
                if first != length:
                    fail(
                        "E0912",
                        f"`{wanted}` is {first} in `{where}` but {length} in `{name}`",
                        notes=[f"axis {at + 1} of `{where}` and axis {axis + 1} of `{name}` must be equally long"],
                    )


def _declared(slot: Slot) -> str:
    return f"`{slot.name}` is declared {slot.dtype}[{', '.join(map(str, slot.shape))}]"


def _refused(code: str, title: str, error: Exception) -> NoReturn:
    """What ONNX Runtime said, without its own file names and line numbers."""
    words = shown(" ".join(str(error).split()))[:600]
    fail(
        code,
        title,
        notes=[f"it says: {words}"],
        helps=["`specc verify` tells whether the model is as it was compiled"],
    )


def _list(names: Any) -> str:
    return ", ".join(f"`{n}`" for n in names) or "nothing"
