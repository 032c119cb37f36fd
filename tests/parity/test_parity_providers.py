"""Small specs on other runtimes than ONNX Runtime for Python, compared with the float64 reference.
Skipped where a runtime is not installed.

`make providers` runs all specs.
"""

from pathlib import Path

import pytest
from support.other_runtimes import RUNTIMES, MissingRuntime, prepare_models, run_models
from support.small_configs import SMALL_CONFIGS

pytestmark = pytest.mark.parity

LOOPS = ["dates", "seq2seq", "lstm_lm", "perceiver"]
"""Those with loops and rows of different lengths, at which runtimes differ most."""

SHARE = {
    "OpenVINO, processor": [*LOOPS, *list(SMALL_CONFIGS)[::12]],
    "onnxruntime-web, wasm in Node": [*LOOPS, *list(SMALL_CONFIGS)[::12]],
    "onnxruntime-web, wasm in Chromium": ["digits", "dates", "numbers"],
    "onnxruntime-web, WebGPU in Chromium": ["digits", "bert"],
    "tract, processor": ["digits", "feedforward", "xor"],
}


@pytest.mark.parametrize("name", RUNTIMES)
def test_it_computes_what_the_reference_does(name: str, tmp_path: Path) -> None:
    runtime = RUNTIMES[name]
    try:
        runtime.command()
    except MissingRuntime as why:
        pytest.skip(str(why))
    laid = prepare_models(tmp_path, list(dict.fromkeys(SHARE[name])), runtime.target, runtime.opset)
    wrong = {n: o.error for n, o in run_models(runtime, laid).items() if o.error}
    assert not wrong
