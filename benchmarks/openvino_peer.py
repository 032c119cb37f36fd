"""Measure forward passes in OpenVINO, in float32 and int8, of an ONNX model that specc compiled.

The int8 model uses the post-training quantization of NNCF for transformers, which has static
activation scales. NNCF is calibrated on the measured input, which favors the accuracy of the int8
model.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import decoders
import measure
import nncf
import numpy as np
import openvino as ov

_THREADS = {"INFERENCE_NUM_THREADS": decoders.THREADS}


def make_openvino_calls(
    path: Path, prepared: Mapping[str, np.ndarray], result: str, directory: Path
) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return a call and the file size in bytes for each precision."""
    core = ov.Core()
    model = core.read_model(path)
    names = {name for slot in model.inputs for name in slot.names}
    given = {name: value for name, value in prepared.items() if name in names}
    # static shapes, because OpenVINO cannot compile every quantized model with dynamic shapes
    model.reshape({name: list(value.shape) for name, value in given.items()})
    quantized = nncf.quantize(
        model, nncf.Dataset([given]), model_type=nncf.ModelType.TRANSFORMER, subset_size=1
    )
    ov.save_model(quantized, directory / "m.xml", compress_to_fp16=False)
    exact = core.compile_model(model, "CPU", {**_THREADS, "INFERENCE_PRECISION_HINT": "f32"})
    return {
        "OpenVINO, float32": (
            _make_call(exact, given, result),
            measure.measure_directory_size(path.parent),
        ),
        "OpenVINO, int8": (
            _make_call(core.compile_model(quantized, "CPU", _THREADS), given, result),
            measure.measure_directory_size(directory),
        ),
    }


def _make_call(
    compiled: ov.CompiledModel, given: Mapping[str, np.ndarray], result: str
) -> Callable[[], Any]:
    request, output = compiled.create_infer_request(), compiled.output(result)
    return lambda: request.infer(given)[output]
