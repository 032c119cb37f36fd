"""Check a small version of one built-in spec on an execution provider: compile it in each dtype,
compare it with the float64 reference, generate tokens, and report the placement of each node. Each
spec runs in a separate process, so that a crash affects only one row of the table:
`python benchmarks/gpu_specs.py NAME PROVIDER FOLDER DTYPE…` prints a line of JSON.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import onnxruntime
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model
from specc.cli.main import main
from specc.runtime.random_inputs import choose_lengths, make_random_inputs
from specc_onnx.execution_providers import ORT_PROVIDER_NAMES, silence_provider_startup

WORST = re.compile(r"worst difference (\S+) ")
WRITTEN = 8


ROUNDED = ("int8", "int8-weights", "int4")
NOTHING = "E0852"
"""The error code for a spec without quantizable weights."""


def said(command: Sequence[str]) -> tuple[int, str]:
    """Run a command; return its exit code and its messages."""
    heard = StringIO()
    with redirect_stdout(heard), redirect_stderr(heard):
        status = main(list(command))
    return status, heard.getvalue()


def compiled(name: str, dtype: str, out: Path, *more: str) -> str:
    """Compile the spec with small sizes; return the error message, "" on success."""
    sets = [f"--set={key}={_text(value)}" for key, value in SMALL_CONFIGS[name].items()]
    width = () if dtype == "f32" else ("--dtype", dtype)
    options = ("--target", "ort-cuda", "--init", "1", "--force", "-o", str(out))
    status, heard = said(["compile", name, *sets, *width, *more, *options])
    return "" if status == 0 else heard


def _text(value: object) -> str:
    return json.dumps(value).replace(" ", "") if isinstance(value, bool | list) else str(value)


def verified(path: Path, provider: str) -> dict[str, object]:
    """Return the largest difference from the reference, or the error message."""
    status, heard = said(["verify", str(path), "--execution-provider", provider])
    found = [float(number) for number in WORST.findall(heard)]
    if status:
        return {"wrong": heard.strip()[-600:]}
    return {"worst": max(found, default=0.0)}


def written(directory: Path, provider: str) -> dict[str, object]:
    """Compare the tokens of a package and of its standalone generator on the provider and on the
    CPU; return whether all are equal.
    """
    tokens = {}
    for at in dict.fromkeys((provider, "cpu")):
        for path in (directory, directory / "generate.onnx"):
            model = specc.load(path, execution_provider=at)
            input_signature = model.input_signature
            lengths = choose_lengths(input_signature.graph, 1)
            inputs = make_random_inputs(input_signature.graph, lengths, np.random.default_rng(0))
            given = {n: v for n, v in inputs.items() if n not in _absent(model)}
            made = model.generate(**given, max_tokens=WRITTEN)
            tokens[f"{path.suffix or 'package'} {at}"] = [row[0].tokens for row in made.results()]
    first = next(iter(tokens.values()))
    return {"same": all(t == first for t in tokens.values())}


def _absent(model: Model) -> set[str]:
    """Return the inputs with a default, which are omitted because random padding masks would pad
    after the prompt.
    """
    defaults = model.input_signature.defaults
    return {*defaults.outputs} if defaults is not None else set()


def placed(path: Path, provider: str) -> Iterator[tuple[str, str, str]]:
    """Return provider, operator type and name of each node of the optimized model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with silence_provider_startup(provider):
        session = onnxruntime.InferenceSession(
            str(path), options, providers=[ORT_PROVIDER_NAMES[provider]]
        )
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            yield part.ep_name, node.op_type, node.name


def tried(name: str, provider: str, directory: Path, dtypes: Sequence[str]) -> dict[str, object]:
    """Return the results of all checks of one spec."""
    row: dict[str, object] = {"spec": name}
    for dtype in dtypes:
        whole = directory / f"{name}-{dtype}.onnx"
        if fault := compiled(name, dtype, whole):
            row[dtype] = {"wrong": fault[-600:]}
            continue
        row[dtype] = verified(whole, provider)
        if dtype == "f32":
            nodes = list(placed(whole, provider))
            row["nodes"] = dict(Counter(ep for ep, _, _ in nodes))
            row["placement"] = nodes
        package = directory / f"{name}-{dtype}"
        fault = compiled(name, dtype, package, "--graphs", "all")
        if fault and "E0701" not in fault and "E0703" not in fault:
            row[f"{dtype} package"] = {"wrong": fault[-600:]}
        elif not fault:
            row[f"{dtype} package"] = verified(package, provider)
            # the package of a spec without `generate` contains only the full forward graph
            if dtype == "f32" and (package / "generate.onnx").exists():
                row["writes"] = written(package, provider)
    for kind in ROUNDED:
        row[kind] = rounded(name, kind, provider, directory)
    return row


def rounded(name: str, kind: str, provider: str, directory: Path) -> dict[str, object]:
    """Check the full forward graph with quantized weights; return no result for a spec without
    quantizable weights.
    """
    path = directory / f"{name}-{kind}.onnx"
    more = ["--quantize", kind]
    if kind == "int4":
        more += ["--calibration-samples", "0"]
    # `int8` has per-channel scales and no groups
    if kind != "int8":
        more += ["--group-size", "32"]
    if fault := compiled(name, "f32", path, *more):
        return {} if NOTHING in fault else {"wrong": fault[-600:]}
    return verified(path, provider)


if __name__ == "__main__":
    spec, where, out, *widths = sys.argv[1:]
    print(json.dumps(tried(spec, where, Path(out), widths)))
