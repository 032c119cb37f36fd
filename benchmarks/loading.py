"""Measure the time from process start to the first token and the peak memory of specc,
onnxruntime-genai and CTranslate2. Each run is a new process.

The model is the Llama of `generation.py`, with a prompt of 128 tokens. The programs alternate; the
minimum over all rounds counts, since other work on the machine only adds time.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import generation
import measure

PROCESS = Path(__file__).parent / "load_process.py"
Runs = dict[str, tuple[str, str, Path]]
"""Python interpreter, program and model of each run, by name."""


def rows(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield a table of the minimum time and memory of each program."""
    prompt, count = (8, 3) if quick else (128, 17)
    yield f"### Loading a Llama with 134 M parameters and processing {prompt} tokens in a new process\n"
    checkpoint = generation.saved("llama", directory / "llama-loading", tiny=False)
    runs, remarks = list_programs(checkpoint, directory)
    yield from (f"* {remark}" for remark in remarks)
    if remarks:
        yield ""
    # Python keeps what it made of source files, as it does for an installed package
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(directory / "compiled")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, (python, program, model) in runs.items():
            command = [python, str(PROCESS), program, str(model), str(prompt), str(count)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            found[name].append(json.loads(done.stdout))
    yield (
        "| | files, MB | first token, s | CPU time, s | peak, MB | peak / files "
        "| warm prefill, ms | ms per token |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, (_, _, model) in runs.items():
        # the first run of each reads files from the disk and compiles modules
        best = {key: min(run[key] for run in found[name][1:]) for key in KEYS}
        size = sum(path.stat().st_size for path in model.iterdir()) / 1e6
        yield (
            f"| {name} | {size:.0f} | {best['first']:.2f} | {best['first_processor']:.2f} "
            f"| {best['peak']:.0f} | {best['peak'] / size:.2f} "
            f"| {best['prefill'] * 1e3:.0f} | {best['step'] * 1e3:.1f} |"
        )
    yield ""


KEYS = ("first", "first_processor", "peak", "prefill", "step")


def list_programs(checkpoint: Path, directory: Path) -> tuple[Runs, list[str]]:
    """Return the programs with their models, and remarks about those that are missing."""
    runs: Runs = {}
    remarks = []
    for name, options in {
        "float32": (),
        "int8": ("--quantize", "int8"),
        "int4": ("--quantize", "int4", "--calibration-samples", "0"),
    }.items():
        package = directory / f"loading-{name}"
        command = [sys.executable, "-m", "specc", "compile", "llama", "--graphs", "step", *options]
        measure.of_process([*command, "--weights", str(checkpoint), "-o", str(package)])
        runs[f"specc, {name}"] = (sys.executable, "specc", package)
    if python := generation.genai_python():
        package = directory / "loading-genai"
        generation.compiled("llama", checkpoint, package, "genai", "onnx")
        runs["onnxruntime-genai, specc's package, float32"] = (python, "genai", package)
    else:
        remarks.append("onnxruntime-genai is not there: `make readers`, or SPECC_GENAI_PYTHON.")
    if find_spec("ctranslate2"):
        for precision in ("float32", "int8"):
            model = directory / f"loading-ctranslate2-{precision}"
            convert_ctranslate2(checkpoint, model, precision)
            runs[f"CTranslate2, {precision}"] = (sys.executable, "ctranslate2", model)
    else:
        remarks.append("CTranslate2 is not there: `pip install ctranslate2`.")
    return runs, remarks


def convert_ctranslate2(checkpoint: Path, out: Path, precision: str) -> None:
    """Convert a checkpoint whose tokenizer has no special tokens, which CTranslate2 wants."""
    import ctranslate2

    shutil.rmtree(out, ignore_errors=True)
    converter = ctranslate2.converters.TransformersConverter(str(checkpoint))
    converter.convert(str(out), quantization=precision)
    config = json.loads((out / "config.json").read_text())
    tokens = {name: config["unk_token"] for name, value in config.items() if value is None}
    (out / "config.json").write_text(json.dumps({**config, **tokens}))
