"""Runtimes other than ONNX Runtime for Python: write models and inputs to a directory, run them
there with separate programs, and compare the outputs with the float64 reference.

`make other-runtimes` installs the runtimes in `.other-runtimes`; nothing is downloaded here.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specc
from specc import backend
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs
from specc.verification.result_comparison import compare_result
from support.small_configs import SMALL_CONFIGS

ROOT = Path(__file__).parents[2]
RUNTIME_DIR = Path(os.environ.get("SPECC_OTHER_RUNTIMES", ROOT / ".other-runtimes"))
PROGRAMS = Path(__file__).parent / "other_programs"
TRAINED = {"dates", "digits", "numbers", "xor"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
INPUT_SIZES = 3
"""Number of inputs per model: the smallest, then two padded batches of different lengths."""
TIMEOUT = 120
"""Seconds per model; a software renderer is slow."""

Arrays = dict[str, NDArray[Any]]


class MissingRuntime(Exception):
    """A runtime is not installed."""


@dataclass(frozen=True)
class Runtime:
    """A runtime: the target that models are compiled for, and the program that runs them.

    `opset` 0 is the default; `most` is the maximum number of models per process.
    """

    name: str
    target: str
    kind: str
    opset: int = 0
    max_models: int = 200

    def command(self) -> list[str]:
        """Return the command line up to the directory. Raise `MissingRuntime` if the runtime is not
        installed.
        """
        if self.kind in ("openvino", "tract"):
            python = RUNTIME_DIR / self.kind / "bin" / "python"
            if not python.exists():
                raise MissingRuntime(f"{self.kind} is not installed: `make other-runtimes`")
            return [str(python), str(PROGRAMS / f"with_{self.kind}.py")]
        packages = find_node_packages("onnxruntime-web")
        if self.kind == "node":
            return ["node", str(PROGRAMS / "with_node.mjs"), str(packages)]
        check_browser(packages)
        program = str(PROGRAMS / "with_chromium.mjs")
        return ["node", program, self.kind, str(packages)]

    def version(self) -> str:
        """Return the version of the package."""
        if self.kind in ("openvino", "tract"):
            script = f"import importlib.metadata as m; print(m.version('{self.kind}'))"
            return read_first_line([self.command()[0], "-c", script])
        package = find_node_packages("onnxruntime-web") / "node_modules" / "onnxruntime-web"
        number = json.loads((package / "package.json").read_text("utf-8"))["version"]
        return str(number)


RUNTIMES = {
    r.name: r
    for r in (
        Runtime("OpenVINO, processor", "openvino", "openvino"),
        Runtime("onnxruntime-web, wasm in Node", "onnx", "node"),
        Runtime("onnxruntime-web, wasm in Chromium", "onnx", "wasm"),
        Runtime("onnxruntime-web, WebGPU in Chromium", "onnx", "webgpu"),
        Runtime("tract, processor", "onnx", "tract", opset=17, max_models=1),
    )
}
"""All runtimes by name."""


def find_node_packages(package: str) -> Path:
    """Return the directory whose `node_modules` contains a package. Raise `MissingRuntime` if there
    is none.
    """
    if not shutil.which("node"):
        raise MissingRuntime("node is not installed")
    directory = RUNTIME_DIR / "node"
    if not (directory / "node_modules" / package).is_dir():
        raise MissingRuntime(f"{package} is not installed: `make other-runtimes`")
    return directory


def check_browser(packages: Path) -> None:
    """Raise `MissingRuntime` without Chromium or without Playwright."""
    if not (packages / "node_modules" / "playwright").is_dir():
        raise MissingRuntime("playwright is not installed: `make other-runtimes`")
    if not (os.environ.get("SPECC_CHROMIUM") or any(map(shutil.which, BROWSERS))):
        raise MissingRuntime("no Chromium is installed here, and SPECC_CHROMIUM names none")


@cache
def find_browser_version() -> str:
    """Return the version of Chromium."""
    named = os.environ.get("SPECC_CHROMIUM", "")
    found = named or next(filter(None, map(shutil.which, BROWSERS)), "")
    return read_first_line([found, "--version"]) if found else ""


def read_first_line(command: Sequence[str]) -> str:
    """Return the first line that a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()[0].split(" built")[0].strip()


@dataclass(frozen=True)
class PreparedModels:
    """Models in a directory, and the reference outputs for each of their inputs."""

    directory: Path
    wanted: Mapping[str, Sequence[Arrays]]


def prepare_models(
    directory: Path, specs: Sequence[str], target: str, opset: int = 0
) -> PreparedModels:
    """Compile small built-in specs for a target, with inputs of several sizes."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for name in specs:
        path = directory / f"{name}.onnx"
        init = None if name in TRAINED else 0
        options: dict[str, Any] = {"opset": opset} if opset else {}
        specc.compile(
            name,
            path,
            set=SMALL_CONFIGS[name],
            init=init,
            target=target,
            weights_as="inline",
            **options,
        )
        wanted[name] = list(_inputs(path))
    return PreparedModels(directory, wanted)


def _inputs(path: Path) -> list[Arrays]:
    """Write the inputs of a model next to it and return the reference outputs."""
    model = specc.load(path).selected_model
    graph, weights = model.manifest.graph, model.weights()
    rng, wanted = np.random.default_rng(0), []
    for turn in range(INPUT_SIZES):
        given = make_random_inputs(graph, choose_dim_sizes(graph, turn), rng)
        told = {name: _told(array) for name, array in given.items()}
        path.with_suffix(f".{turn}.json").write_text(json.dumps(told))
        outputs = backend.load_reference_backend().evaluate_graph(graph, given, weights)
        wanted.append({n: np.asarray(v) for n, v in outputs.items()})
    return wanted


def _told(array: NDArray[Any]) -> dict[str, Any]:
    dims, data = list(array.shape), array.ravel().tolist()
    return {"type": str(array.dtype), "dims": dims, "data": data}


@dataclass(frozen=True)
class ModelOutcome:
    """Result of a model: the largest difference relative to the largest value, or an error."""

    worst: float
    error: str = ""


def run_models(runtime: Runtime, prepared: PreparedModels) -> dict[str, ModelOutcome]:
    """Run all prepared models and compare their outputs. Raise `MissingRuntime` if the runtime is
    not installed.
    """
    command = [*runtime.command(), str(prepared.directory)]
    names, found = list(prepared.wanted), dict[str, ModelOutcome]()
    while left := [n for n in names if n not in found]:
        share = left[: runtime.max_models]
        for name, wrong in _run(command, share).items():
            found[name] = ModelOutcome(np.inf, wrong) if wrong else _compared(prepared, name)
        # the program crashed at the first model without a report
        silent = next((n for n in share if n not in found), None)
        if silent is not None:
            found[silent] = ModelOutcome(np.inf, "ends the process")
    return {name: found[name] for name in names}


def _run(command: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the error of each model for which the program reports one."""
    done = subprocess.run(
        [*command, *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT * (1 + len(names)),
    )
    lines = [json.loads(t) for t in done.stdout.splitlines() if t.startswith('{"name"')]
    return {line["name"]: " ".join(line["wrong"].split()) for line in lines}


def _compared(prepared: PreparedModels, name: str) -> ModelOutcome:
    worst = 0.0
    for turn, expected in enumerate(prepared.wanted[name]):
        told = json.loads((prepared.directory / f"{name}.{turn}.out.json").read_text())
        for n, (result, want) in enumerate(expected.items()):
            # some programs do not return names
            got = told[result] if result in told else told[str(n)]
            difference = compare_result(result, _array(got), want)
            worst = max(worst, difference.relative_size)
            if difference.description:
                return ModelOutcome(difference.relative_size, difference.description)
    return ModelOutcome(worst)


def _array(printed: Mapping[str, Any]) -> NDArray[Any]:
    """Return an array that a program printed; strings are non-finite values."""
    numbers = [float(x) if isinstance(x, str) else x for x in printed["data"]]
    return np.array(numbers, printed["type"]).reshape(printed["dims"])
