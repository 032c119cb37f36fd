"""A Llama of 7 billion parameters, which this machine need not be able to load in
float32: rounded to 4 bits by streaming, then run.

SPECC_SEVEN names a folder: a package in it is run as it is. Where it is not named, a
checkpoint of random numbers in bfloat16 is written (13.5 GB) and compiled, and both are
removed again.
"""

import math
import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import compile_large
import decoders
import generation
import measure
import numpy as np
from compile_large import Sizes

SEVEN, SMALL = compile_large.LARGE[1], compile_large.TINY[1]

PROMPT, COUNT = 32, 17
"""Tokens that are read, and written behind them."""

PEAK, RATE = 1500, 200
"""Goals: MB of memory at most, MB of the checkpoint a second at least."""

NOISE = 2**25
"""Numbers that are drawn; the weights are these again and again, at other places."""


def rows(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """What compiling took, and how fast tokens come."""
    yield "### A Llama with 7 B parameters in int4\n"
    named = os.environ.get("SPECC_SEVEN", "")
    package = Path(named) if named else directory / "package"
    if named and not (package / "specc.json").exists():
        raise SystemExit(f"SPECC_SEVEN: there is no package in {named}")
    if named:
        yield "The package was there already: compiling was not measured.\n"
    elif shutil.disk_usage(directory).free < 20e9 and not quick:
        yield "Not run: it needs 20 GB of disk for the while.\n"
        return
    else:
        yield from _compiled(directory / "checkpoint", package, quick)
    yield from _written(package, rounds)


def _compiled(checkpoint: Path, package: Path, quick: bool) -> Iterator[str]:
    sizes = SMALL if quick else SEVEN
    size = save(sizes, checkpoint, NOISE // 64 if quick else NOISE)
    command = [sys.executable, "-m", "specc", "compile", str(checkpoint)]
    options = ["--quantize", "int4", "--calibration-samples", "0", "--graphs", "step"]
    cost = measure.of_process([*command, *options, "-o", str(package)])
    shutil.rmtree(checkpoint)
    rate = size / 1e6 / cost.seconds
    made = sum(p.stat().st_size for p in package.rglob("*") if p.is_file())
    yield "| | | goal | goal reached |\n|---|---|---|---|"
    yield f"| checkpoint in bfloat16 | {size / 1e9:.2f} GB | | |"
    yield f"| package | {made / 1e9:.2f} GB | | |"
    yield f"| compile time, round to nearest | {cost.seconds:.0f} s | | |"
    yield f"| checkpoint throughput | {rate:.0f} MB/s | {RATE} MB/s | {_word(rate >= RATE)} |"
    peak = cost.megabytes
    yield f"| peak memory | {peak:.0f} MB | {PEAK} MB | {_word(peak <= PEAK)} |\n"


def _written(package: Path, rounds: int) -> Iterator[str]:
    write = decoders.of_specc(package)
    ids = np.random.default_rng(0).integers(5, 900, (1, PROMPT))
    traces = generation.in_turn({"specc": write}, ids, COUNT, rounds)["specc"]
    rate = statistics.median(len(t.steps) / sum(t.steps) for t in traces)
    first = statistics.median(t.prefill for t in traces)
    yield (
        f"With {decoders.THREADS} threads, the model processes a prompt of {PROMPT} tokens in "
        f"{first:.2f} s and then generates {rate:.2f} tokens/s.\n"
    )
    # four bytes a number
    needed, there = (
        4e-9 * sum(math.prod(shape) for _, shape in compile_large.tensors(SEVEN)),
        measure.memory() / 1e9,
    )
    if needed > there:
        yield (
            "The model builder of onnxruntime-genai could not compile this model: it first loads a "
            f"model in float32, which needs {needed:.0f} GB; this machine has {there:.0f} GB.\n"
        )


def save(sizes: Sizes, directory: Path, noise: int) -> int:
    """A checkpoint of random bfloat16 numbers, as a hub would have it; its bytes."""
    size = compile_large.write(sizes, directory)
    drawn = np.random.default_rng(0).normal(0, 0.02, noise).astype(np.float32)
    # the upper half of a float32 is the bfloat16 next to it towards zero
    block = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    path = directory / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - size)
        for at in range(0, size, len(block)):
            file.write(block[: size - at])
    return size


def _word(yes: bool) -> str:
    return "yes" if yes else "no"
