"""One shipped spec, small, on a provider: compiled in each width, compared with the
float64 reference, written with, and where each node went.

A process of its own for each spec, so that one that ends a process is one row of a
table: `python benchmarks/gpu_specs.py NAME PROVIDER FOLDER DTYPE…` prints a line of JSON.
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
"""What a spec without a weight that can be rounded says."""


def said(command: Sequence[str]) -> tuple[int, str]:
    """The exit status of a command, and what it says."""
    heard = StringIO()
    with redirect_stdout(heard), redirect_stderr(heard):
        status = main(list(command))
    return status, heard.getvalue()


def compiled(name: str, dtype: str, out: Path, *more: str) -> str:
    """Compile the spec with small sizes; what it says where that fails."""
    sets = [f"--set={key}={_text(value)}" for key, value in SMALL_CONFIGS[name].items()]
    width = () if dtype == "f32" else ("--dtype", dtype)
    options = ("--target", "ort-cuda", "--init", "1", "--force", "-o", str(out))
    status, heard = said(["compile", name, *sets, *width, *more, *options])
    return "" if status == 0 else heard


def _text(value: object) -> str:
    return json.dumps(value).replace(" ", "") if isinstance(value, bool | list) else str(value)


def verified(path: Path, provider: str) -> dict[str, object]:
    """How far the model is from the reference, or what is wrong."""
    status, heard = said(["verify", str(path), "--execution-provider", provider])
    found = [float(number) for number in WORST.findall(heard)]
    if status:
        return {"wrong": heard.strip()[-600:]}
    return {"worst": max(found, default=0.0)}


def written(directory: Path, provider: str) -> dict[str, object]:
    """Tokens of a package, of its one file, and of both on the processor: whether all
    are the same.
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
    """Inputs with a default: padding would stand behind a prompt."""
    defaults = model.input_signature.defaults
    return {*defaults.outputs} if defaults is not None else set()


def placed(path: Path, provider: str) -> Iterator[tuple[str, str, str]]:
    """Provider, operator and name of each node of a model, once it is optimized."""
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
    """All that can be told of one spec."""
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
            # a spec without `generate` has a package with its full forward alone
            if dtype == "f32" and (package / "generate.onnx").exists():
                row["writes"] = written(package, provider)
    for kind in ROUNDED:
        row[kind] = rounded(name, kind, provider, directory)
    return row


def rounded(name: str, kind: str, provider: str, directory: Path) -> dict[str, object]:
    """The whole graph with rounded weights; nothing is told of one that has none."""
    path = directory / f"{name}-{kind}.onnx"
    more = ["--quantize", kind]
    if kind == "int4":
        more += ["--calibration-samples", "0"]
    # `int8` has a scale a result, and no blocks
    if kind != "int8":
        more += ["--group-size", "32"]
    if fault := compiled(name, "f32", path, *more):
        return {} if NOTHING in fault else {"wrong": fault[-600:]}
    return verified(path, provider)


if __name__ == "__main__":
    spec, where, out, *widths = sys.argv[1:]
    print(json.dumps(tried(spec, where, Path(out), widths)))
