"""Compile large checkpoints, measuring time, CPU time and memory; generate with a Llama of 7
billion parameters in int4.

    python benchmarks/large_models.py            # a Llama of 1 GB in f32, and one of 7 B in bf16
    python benchmarks/large_models.py --tiny     # the same of a few megabytes, to test the script

The checkpoints of this script are sparse files of zeros, which are read once before the measurement
to warm the page cache. In `run.py`, a checkpoint of random bfloat16 values (13.5 GB) is written,
compiled by streaming, run, and removed. SPECC_SEVEN names a compiled package to run instead.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import decoders
import generation
import measure
import numpy as np

SPECC = (sys.executable, "-m", "specc")
CHUNK = 1 << 24


@dataclass(frozen=True)
class LlamaSizes:
    """The sizes of a Llama model, its dtype, and the time limit of compilation in seconds."""

    name: str
    dtype: str
    wide: int
    hidden: int
    layers: int
    words: int
    goal: float


LARGE = (
    LlamaSizes("1 GB, f32", "F32", 1024, 2816, 14, 32000, 2),
    LlamaSizes("7 B, bf16", "BF16", 4096, 11008, 32, 32000, 15),
)
TINY = (
    LlamaSizes("tiny, f32", "F32", 64, 128, 2, 1000, 2),
    LlamaSizes("tiny, bf16", "BF16", 64, 128, 2, 1000, 2),
)


def iterate_tensors(sizes: LlamaSizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensor names and shapes of a Llama checkpoint."""
    wide, hidden = sizes.wide, sizes.hidden
    yield "model.embed_tokens.weight", (sizes.words, wide)
    for n in range(sizes.layers):
        layer = f"model.layers.{n}"
        for part in "qkvo":
            yield f"{layer}.self_attn.{part}_proj.weight", (wide, wide)
        yield f"{layer}.mlp.gate_proj.weight", (hidden, wide)
        yield f"{layer}.mlp.up_proj.weight", (hidden, wide)
        yield f"{layer}.mlp.down_proj.weight", (wide, hidden)
        yield f"{layer}.input_layernorm.weight", (wide,)
        yield f"{layer}.post_attention_layernorm.weight", (wide,)
    yield "model.norm.weight", (wide,)
    yield "lm_head.weight", (sizes.words, wide)


def write_checkpoint(sizes: LlamaSizes, directory: Path) -> int:
    """Write a checkpoint directory. Return the size of the weights in bytes."""
    directory.mkdir()
    heads = sizes.wide // 32 if sizes.wide < 1024 else sizes.wide // 128
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": sizes.words,
        "hidden_size": sizes.wide,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    header: dict[str, object] = {}
    at = 0
    for name, shape in iterate_tensors(sizes):
        end = at + prod(shape) * (4 if sizes.dtype == "F32" else 2)
        header[name] = {"dtype": sizes.dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # `truncate` creates a sparse file of zeros
    return at


def warm_file_cache(file: Path) -> None:
    """Read a file once, so that the file is in the page cache."""
    with file.open("rb") as opened:
        while opened.read(CHUNK):
            pass


def format_row(sizes: LlamaSizes, directory: Path) -> str:
    """Return a table row with the compile time and memory of a checkpoint, compiled as a model with
    linked weights and as a package of all graphs.
    """
    place = directory / sizes.dtype
    size = write_checkpoint(sizes, place)
    warm_file_cache(place / "model.safetensors")
    cells = []
    for what in (
        ["-o", str(directory / f"{sizes.dtype}.onnx")],
        ["--graphs", "all", "-o", str(directory / f"{sizes.dtype}-all")],
    ):
        cost = measure.measure_process([*SPECC, "compile", str(place), *what])
        cells.append(f"{cost.seconds:.1f} s, {cost.processor:.1f} s, {cost.megabytes:.0f} MB")
    return f"| {sizes.name} | {size / 1e9:.2f} GB | {' | '.join(cells)} | {sizes.goal:.0f} s |"


def main() -> None:
    """Print a table with one row per checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="models of a few megabytes, to test the script"
    )
    parser.add_argument(
        "--directory", help="working directory (default: the system's temporary directory)"
    )
    args = parser.parse_args()
    print(f"{measure.describe_machine()}\n")
    print(
        "| Llama | weights | one graph: wall time, CPU time, memory | all graphs | goal |\n|---|---|---|---|---|"
    )
    for sizes in TINY if args.tiny else LARGE:
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            print(format_row(sizes, Path(directory)), flush=True)


if __name__ == "__main__":
    main()


SEVEN, SMALL = LARGE[1], TINY[1]

PROMPT, COUNT = 32, 17
"""The prompt length and the number of generated tokens."""

PEAK, RATE = 1500, 200
"""Goals: the maximum peak memory in MB, and the minimum compile throughput in MB/s."""

NOISE = 2**25
"""Number of distinct random values, which repeat throughout the weights."""


def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield the lines on the cost of compilation and on the generation speed."""
    yield "### A Llama with 7 B parameters in int4\n"
    named = os.environ.get("SPECC_SEVEN", "")
    package = Path(named) if named else directory / "package"
    if named and not (package / "specc.json").exists():
        raise SystemExit(f"SPECC_SEVEN: {named} is not a package")
    if named:
        yield "SPECC_SEVEN is a compiled package, so compilation was not measured.\n"
    elif shutil.disk_usage(directory).free < 20e9 and not quick:
        yield "Not run: needs 20 GB of free disk space.\n"
        return
    else:
        yield from _measure_compilation(directory / "checkpoint", package, quick)
    yield from _measure_generation(package, rounds)


def _measure_compilation(checkpoint: Path, package: Path, quick: bool) -> Iterator[str]:
    sizes = SMALL if quick else SEVEN
    size = save_random_checkpoint(sizes, checkpoint, NOISE // 64 if quick else NOISE)
    command = [sys.executable, "-m", "specc", "compile", str(checkpoint)]
    options = ["--quantize", "int4", "--calibration-samples", "0", "--graphs", "step"]
    cost = measure.measure_process([*command, *options, "-o", str(package)])
    shutil.rmtree(checkpoint)
    rate = size / 1e6 / cost.seconds
    made = measure.measure_directory_size(package)
    yield "| | | goal | goal reached |\n|---|---|---|---|"
    yield f"| checkpoint in bfloat16 | {size / 1e9:.2f} GB | | |"
    yield f"| package | {made / 1e9:.2f} GB | | |"
    yield f"| compile time, round to nearest | {cost.seconds:.0f} s | | |"
    yield f"| checkpoint throughput | {rate:.0f} MB/s | {RATE} MB/s | {measure.format_yes_or_no(rate >= RATE)} |"
    peak = cost.megabytes
    yield f"| peak memory | {peak:.0f} MB | {PEAK} MB | {measure.format_yes_or_no(peak <= PEAK)} |\n"


def _measure_generation(package: Path, rounds: int) -> Iterator[str]:
    generate = decoders.make_specc_generator(package)
    ids = np.random.default_rng(0).integers(5, 900, (1, PROMPT))
    traces = generation.measure_in_turn({"specc": generate}, ids, COUNT, rounds)["specc"]
    rate = statistics.median(len(t.steps) / sum(t.steps) for t in traces)
    first = statistics.median(t.prefill for t in traces)
    yield (
        f"With {decoders.THREADS} threads, the model processes a prompt of {PROMPT} tokens in "
        f"{first:.2f} s and then generates {rate:.2f} tokens/s.\n"
    )
    # float32 weights have four bytes per value
    needed, there = (
        4e-9 * sum(math.prod(shape) for _, shape in iterate_tensors(SEVEN)),
        measure.get_total_memory() / 1e9,
    )
    if needed > there:
        yield (
            "The model builder of onnxruntime-genai could not compile this model: it first loads a "
            f"model in float32, which needs {needed:.0f} GB; this machine has {there:.0f} GB.\n"
        )


def save_random_checkpoint(sizes: LlamaSizes, directory: Path, noise: int) -> int:
    """Save a checkpoint of random bfloat16 weights. Return the size of the weights in bytes."""
    size = write_checkpoint(sizes, directory)
    drawn = np.random.default_rng(0).normal(0, 0.02, noise).astype(np.float32)
    # the upper half of a float32 is the bfloat16 value, rounded toward zero
    block = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    path = directory / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - size)
        for at in range(0, size, len(block)):
            file.write(block[: size - at])
    return size
