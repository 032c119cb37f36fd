"""Check a small version of one built-in spec on an execution provider: compile the spec in each
dtype, compare the model with the float64 reference, generate tokens, and report the placement of
each node. Each spec runs in a separate process, so that a crash affects only one row of the table:
`python benchmarks/gpu_specs.py NAME PROVIDER DIRECTORY COLUMN…` prints a line of JSON for each
column of the table.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import onnxruntime
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model
from specc.cli.main import main
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs
from specc.runtime.static_shapes import specialize_to_static_shapes
from specc_onnx.execution_providers import ORT_PROVIDER_NAMES, silence_provider_startup

DIFFERENCE = re.compile(r"worst difference (\S+) ")
TOKEN_COUNT = 8
MESSAGE_LENGTH = 600
"""Maximum number of characters of an error message in the results."""

DTYPES = ("f32", "f16", "bf16")
QUANTIZATIONS = ("int8", "int8-weights", "int4")
NOT_QUANTIZABLE = "E0852"
"""The error code for a spec without quantizable weights."""
NO_DECODER = ("E0701", "E0703")
"""The error codes for a spec that is not generative, which has only a full-forward graph."""


def run_specc(command: Sequence[str]) -> tuple[int, str]:
    """Run a specc command. Return the exit code and the messages."""
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = main(list(command))
    return status, output.getvalue()


def compile_spec(name: str, dtype: str, out: Path, *more: str) -> str:
    """Compile the spec with small sizes. Return the error message, or "" on success."""
    sets = [f"--set={key}={_format_value(value)}" for key, value in SMALL_CONFIGS[name].items()]
    dtype_options = () if dtype == "f32" else ("--dtype", dtype)
    options = ("--target", "ort-cuda", "--init", "1", "--force", "-o", str(out))
    status, output = run_specc(["compile", name, *sets, *dtype_options, *more, *options])
    return "" if status == 0 else output[-MESSAGE_LENGTH:]


def _format_value(value: object) -> str:
    return json.dumps(value).replace(" ", "") if isinstance(value, bool | list) else str(value)


def verify_model(path: Path, provider: str) -> dict[str, object]:
    """Return the largest difference from the reference, or the error message of `verify`."""
    status, output = run_specc(["verify", str(path), "--execution-provider", provider])
    found = [float(number) for number in DIFFERENCE.findall(output)]
    if status:
        return {"error": output.strip()[-MESSAGE_LENGTH:]}
    return {"difference": max(found, default=0.0)}


def compare_tokens(directory: Path, provider: str) -> dict[str, object]:
    """Compare the tokens that a package and a standalone generator produce on the provider and on
    the CPU. Return whether all tokens are equal.
    """
    tokens = {}
    for at in dict.fromkeys((provider, "cpu")):
        for path in (directory, directory / "generate.onnx"):
            model = specc.load(path, execution_provider=at)
            input_signature = model.input_signature
            lengths = choose_dim_sizes(input_signature.graph, 1)
            inputs = make_random_inputs(input_signature.graph, lengths, np.random.default_rng(0))
            given = {n: v for n, v in inputs.items() if n not in _list_defaulted_inputs(model)}
            made = model.generate(**given, max_tokens=TOKEN_COUNT)
            tokens[f"{path.suffix or 'package'} {at}"] = [row[0].tokens for row in made.results()]
    first = next(iter(tokens.values()))
    return {"equal": all(t == first for t in tokens.values())}


def _list_defaulted_inputs(model: Model) -> set[str]:
    """Return the inputs with a default value. These inputs are omitted, because a random padding
    mask would mark positions after the prompt as padding.
    """
    defaults = model.input_signature.defaults
    return {*defaults.outputs} if defaults is not None else set()


def list_placement(path: Path, provider: str) -> list[tuple[str, str, str]]:
    """Return the provider, operator type and name of each node of the optimized model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with silence_provider_startup(provider):
        session = onnxruntime.InferenceSession(
            str(path), options, providers=[ORT_PROVIDER_NAMES[provider]]
        )
    return [
        (part.ep_name, node.op_type, node.name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def compare_cuda_graph(path: Path, provider: str) -> dict[str, object]:
    """Run the model with static shapes (on a GPU as a CUDA graph) on three random inputs. Return
    the largest difference from the run with dynamic shapes, relative to the largest value.
    """
    model = specc.load(path, execution_provider=provider).full_forward_model
    graph = model.manifest.graph
    lengths = choose_dim_sizes(graph, 1)
    fixed = specialize_to_static_shapes(model, lengths)
    rng, difference = np.random.default_rng(0), 0.0
    for _ in range(3):
        inputs = make_random_inputs(graph, lengths, rng)
        expected, computed = model.run(**inputs), fixed.run(**inputs)
        for name, array in expected.items():
            wide = np.asarray(array, np.float64)
            finite = np.isfinite(wide)
            peak = np.abs(wide[finite]).max(initial=1e-30)
            error = np.abs(wide - np.asarray(computed[name], np.float64))[finite]
            difference = max(difference, float(error.max(initial=0.0) / peak))
    return {"difference": difference}


def check_spec(
    name: str, provider: str, directory: Path, columns: Collection[str]
) -> Iterator[tuple[str, object]]:
    """Yield the table column and the result of each check of one spec."""
    for dtype in DTYPES:
        whole, package = directory / f"{name}-{dtype}.onnx", directory / f"{name}-{dtype}"
        checks = {dtype: partial(verify_model, whole, provider)}
        if dtype == "f32":
            checks["placement"] = partial(list_placement, whole, provider)
            checks["CUDA graph"] = partial(compare_cuda_graph, whole, provider)
        if columns & checks.keys():
            error = compile_spec(name, dtype, whole)
            for column in (c for c in checks if c in columns):
                yield column, {"error": error} if error else catch_errors(checks[column])
        if f"{dtype} package" in columns:
            error = compile_spec(name, dtype, package, "--graphs", "all")
            if not any(code in error for code in NO_DECODER):
                check = partial(verify_model, package, provider)
                yield f"{dtype} package", {"error": error} if error else catch_errors(check)
            # the package of a spec without a `generate` section contains only the full-forward
            # graph
            if dtype == "f32" and (package / "generate.onnx").exists():
                yield "tokens", catch_errors(partial(compare_tokens, package, provider))
    for kind in (kind for kind in QUANTIZATIONS if kind in columns):
        yield kind, catch_errors(partial(check_quantized, name, kind, provider, directory))


def catch_errors(check: Callable[[], object]) -> object:
    """Return the result of a check, or the error message of its exception."""
    try:
        return check()
    except Exception as error:  # the exceptions of ONNX Runtime have no common base class
        return {"error": f"{type(error).__name__}: {error}"[-MESSAGE_LENGTH:]}


def check_quantized(name: str, kind: str, provider: str, directory: Path) -> dict[str, object]:
    """Check the full-forward graph with quantized weights. Return an empty result for a spec
    without quantizable weights.
    """
    path = directory / f"{name}-{kind}.onnx"
    more = ["--quantize", kind]
    if kind == "int4":
        more += ["--calibration-samples", "0"]
    # `int8` has per-channel scales instead of groups
    if kind != "int8":
        more += ["--group-size", "32"]
    if error := compile_spec(name, "f32", path, *more):
        return {} if NOT_QUANTIZABLE in error else {"error": error}
    return verify_model(path, provider)


if __name__ == "__main__":
    spec, execution_provider, out, *columns = sys.argv[1:]
    for column, result in check_spec(spec, execution_provider, Path(out), {*columns}):
        print(json.dumps({column: result}), flush=True)
