"""Measure the time from process start to the first token, the time per token and the peak memory of
specc, onnxruntime-genai, llama.cpp, OpenVINO GenAI and CTranslate2. Each run is a new process.

The model is the Llama of `generation.py`. The programs alternate, and the reported time is the
minimum over all rounds, because other processes on the machine can only add time. With a single
thread, no thread waits for another thread, so CPU time is comparable even on a busy machine.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import decoders
import generation
import measure

PROCESS = Path(__file__).parent / "load_process.py"
BATCH_PROCESS = Path(__file__).parent / "batch_process.py"
Runs = dict[str, tuple[str, str, str]]
"""The Python interpreter, program and model of each run, by the name `PROGRAM, WEIGHTS`."""
COUNT = 161
"""Number of generated tokens. specc moves the weights to huge pages after 128 tokens."""
BATCH_COUNT = 17
REFERENCES = {"float16": "float32", "bfloat16": "float32"}
"""The weight type of specc that 16-bit weights of other programs are compared with. Other weight
types are compared with the same type.
"""
SPECC_OPTIONS = {
    "float32": (),
    "8 bits": ("--quantize", "int8-weights"),
    "8 bits, per channel": ("--quantize", "int8"),
    "4 bits": ("--quantize", "int4", "--calibration-samples", "0"),
}
"""Compile options of specc by weight type, group-wise like those of llama.cpp and OpenVINO."""


def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield tables for a short and a long prompt with two threads, and one thread's CPU times."""
    yield "### Loading and running a Llama with 134 M parameters in a new process\n"
    checkpoint = generation.save_checkpoint("llama", directory / "llama-loading", tiny=False)
    runs, remarks = list_programs(checkpoint, directory)
    yield from (f"* {remark}" for remark in remarks)
    yield "" if remarks else "All programs are installed.\n"
    for prompt, threads in (
        ((8, 2), (8, 1)) if quick else ((128, 2), (1024, 2), (4096, 2), (128, 1))
    ):
        found = run_programs(runs, directory, rounds, prompt, threads)
        title = f"#### A prompt of {prompt} tokens, {threads} thread{'s' * (threads > 1)}"
        yield f"{title}, minimum of {rounds} rounds\n"
        yield from format_table(runs, found, threads)
    for batch, prompt in ((2, 8),) if quick else ((8, 128), (32, 128)):
        yield f"#### {batch} sequences after {prompt} tokens each, 2 threads, {rounds} rounds\n"
        yield from format_batch_table(run_programs(runs, directory, rounds, prompt, 2, batch))


def run_programs(
    runs: Runs, directory: Path, rounds: int, prompt: int, threads: int, batch: int = 0
) -> dict[str, list[dict[str, float]]]:
    """Run each program `rounds` times in alternation, for one prompt or for a batch of prompts.
    Return the measurements of each program by name.
    """
    # use cached bytecode for source files, as for an installed package
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(directory / "compiled")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for index in range(rounds + 1):
        for name, (python, program, model) in runs.items():
            numbers = (prompt, BATCH_COUNT, threads, batch) if batch else (prompt, COUNT, threads)
            process = BATCH_PROCESS if batch else PROCESS
            command = [python, str(process), program, model, *map(str, numbers)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=program == "specc", env=environment
            )
            # the first run of each program reads files from the disk and compiles Python modules
            if index and done.returncode == 0:
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def format_table(
    runs: Runs, found: dict[str, list[dict[str, float]]], threads: int
) -> Iterator[str]:
    """Yield the lines of a table of wall times, or of CPU times for one thread, because a single
    thread never waits for another thread.
    """
    suffix = "" if threads > 1 else "_processor"
    kind = "" if threads > 1 else "CPU "
    yield (
        f"| | files, MB | {kind}first token, s | specc's time / its (95 % interval) | peak, MB "
        f"| peak / files | {kind}prefill, ms | {kind}ms per token | specc's time / its "
        "(95 % interval) |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, (_, program, model) in runs.items():
        if len(found[name]) < len(found["specc, float32"]):
            yield f"| {name} | fails | | | | | | | |"
            continue
        best = {key: min(run[key] for run in found[name]) for key in found[name][0] if key != "tokens"}  # fmt: skip
        ratios = {
            key: "" if program == "specc" else _estimate_ratio(found, name, key + suffix)
            for key in ("first", "step")
        }
        path = Path(model.partition(":")[0])
        size = (
            measure.measure_directory_size(path) if path.is_dir() else path.stat().st_size
        ) / 1e6
        yield (
            f"| {name} | {size:.0f} | {best['first' + suffix]:.2f} | {ratios['first']} "
            f"| {best['peak']:.0f} | {best['peak'] / size:.2f} "
            f"| {best['prefill' + suffix] * 1e3:.0f} | {best['step' + suffix] * 1e3:.1f} "
            f"| {ratios['step']} |"
        )
    yield ""


def format_batch_table(found: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Yield the lines of a throughput table: tokens of all sequences per second."""
    yield (
        "| | prefill, tokens/s | generated tokens/s | specc's time / its (95 % interval) | peak, MB |"
    )
    yield "|---|---|---|---|---|"
    for name, runs in found.items():
        if len(runs) < len(found["specc, float32"]):
            yield f"| {name} | fails | | | |"
            continue
        best = {key: min(run[key] for run in runs) for key in ("prefill", "step", "peak")}
        batch, prompt = len(runs[0]["tokens"]), runs[0]["prompt"]
        ratio = "" if name.startswith("specc, ") else _estimate_ratio(found, name, "step")
        yield (
            f"| {name} | {batch * prompt / best['prefill']:.0f} | {batch / best['step']:.0f} "
            f"| {ratio} | {best['peak']:.0f} |"
        )
    yield ""


def _estimate_ratio(found: dict[str, list[dict[str, float]]], name: str, key: str) -> str:
    """Return the time of specc with the weight type of `name`, divided by the time of `name`."""
    weights = name.split(", ")[-1]
    ours = found[f"specc, {REFERENCES.get(weights, weights)}"]
    return str(
        measure.estimate_ratio(*([run[key] for run in each] for each in (ours, found[name])))
    )


def list_programs(checkpoint: Path, directory: Path) -> tuple[Runs, list[str]]:
    """Return the programs with their models, and remarks on the programs that are missing."""
    runs: Runs = {}
    remarks = []
    for name, options in SPECC_OPTIONS.items():
        package = directory / f"loading-{name.replace(' ', '-').replace(',', '')}"
        command = [sys.executable, "-m", "specc", "compile", "llama", "--graphs", "step", *options]
        measure.measure_process([*command, "--weights", str(checkpoint), "-o", str(package)])
        runs[f"specc, {name}"] = (sys.executable, "specc", str(package))
    python = generation.find_genai_python() or sys.executable * bool(find_spec("onnxruntime_genai"))
    if python:
        package = directory / "loading-genai"
        generation.compile_package("llama", checkpoint, package, "genai", "onnx")
        runs["onnxruntime-genai, specc's package, float32"] = (python, "genai", str(package))
        package = directory / "loading-genai-int4"
        if error := decoders.build_genai_model(python, checkpoint, package, "int4"):
            remarks.append(f"The model builder of onnxruntime-genai fails: {error}")
        else:
            runs["onnxruntime-genai, 4 bits"] = (python, "genai", str(package))
    else:
        remarks.append(
            "onnxruntime-genai is not installed: `make other-runtimes`, or SPECC_GENAI_PYTHON."
        )
    if find_spec("ctranslate2"):
        for name, precision in {"float32": "float32", "8 bits": "int8"}.items():
            model = directory / f"loading-ctranslate2-{precision}"
            convert_ctranslate2(checkpoint, model, precision)
            runs[f"CTranslate2, {name}"] = (sys.executable, "ctranslate2", str(model))
    else:
        remarks.append("CTranslate2 is not installed: `pip install ctranslate2`.")
    list_gguf_programs(checkpoint, directory, runs, remarks)
    return runs, remarks


GGUF_KINDS = {"float32": "F32", "float16": "F16", "8 bits": "Q8_0", "4 bits": "Q4_0"}
OPENVINO_HINTS = {"float16": {"float32": ":f32", "bfloat16": ""}, "8 bits": {"8 bits": ""}, "4 bits": {"4 bits": ""}}  # fmt: skip
"""The OpenVINO GenAI hints for each GGUF file, by the resulting compute precision."""


def list_gguf_programs(checkpoint: Path, directory: Path, runs: Runs, remarks: list[str]) -> None:
    """Add the programs that read GGUF files to `runs`, or remarks on missing programs."""
    if not find_spec("gguf"):
        remarks.append("llama.cpp and OpenVINO GenAI need `pip install gguf` for their files.")
        return
    import gguf_llama

    files = {name: directory / f"llama-{kind}.gguf" for name, kind in GGUF_KINDS.items()}
    for name, path in files.items():
        gguf_llama.write_gguf(checkpoint, path, GGUF_KINDS[name])
    if find_spec("llama_cpp"):
        for name, path in files.items():
            runs[f"llama.cpp, {name}"] = (sys.executable, "llama.cpp", str(path))
    else:
        remarks.append("llama.cpp is not installed: `pip install llama-cpp-python`.")
    if find_spec("openvino_genai"):
        for file, hints in OPENVINO_HINTS.items():
            for name, hint in hints.items():
                runs[f"OpenVINO GenAI, {name}"] = (sys.executable, "openvino", f"{files[file]}{hint}")  # fmt: skip
    else:
        remarks.append("OpenVINO GenAI is not installed: `pip install openvino-genai`.")


def convert_ctranslate2(checkpoint: Path, out: Path, precision: str) -> None:
    """Convert a checkpoint to CTranslate2. CTranslate2 requires special tokens, so missing special
    tokens become the unknown token.
    """
    import ctranslate2

    shutil.rmtree(out, ignore_errors=True)
    converter = ctranslate2.converters.TransformersConverter(str(checkpoint))
    converter.convert(str(out), quantization=precision)
    config = json.loads((out / "config.json").read_text())
    tokens = {name: config["unk_token"] for name, value in config.items() if value is None}
    (out / "config.json").write_text(json.dumps({**config, **tokens}))
