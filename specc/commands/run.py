"""Run a compiled model on images, texts or arrays, and show what it gives."""

import sys
from argparse import ArgumentParser, Namespace
from io import BytesIO
from pathlib import Path

import numpy as np

from specc.attention import picture_of
from specc.output import atomic_write
from specc.reading.show import show
from specc.running import Loaded, open_model, read_arguments


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument(
        "inputs", nargs="*", metavar="INPUT", help="a file (.png, .npy, .npz, .json) or a text; NAME=INPUT names one"
    )
    parser.add_argument("--provider", default="cpu", help="cpu, cuda, … (an execution provider of ONNX Runtime)")
    parser.add_argument("--attention", default="", metavar="OUT.png", help="draw where the model looked")
    parser.add_argument("-o", "--output", default="", metavar="OUT.npz", help="write the results as arrays")


def run(given: Namespace) -> int:
    """Print the results, and write what was asked for."""
    model = open_model(given.model, provider=given.provider)
    if model.manifest.seed is not None and model.manifest.graph.parameters:
        print(f"note: the weights are random (seed {model.manifest.seed})", file=sys.stderr)
    inputs = read_arguments(model, given.inputs)
    results = _draw(model, inputs, given.attention) if given.attention else model.run(**inputs)
    shown = show(model.manifest.reading, results)
    for line in shown.lines:
        print(line)
    for name, png in shown.pictures:
        atomic_write(Path(name), [png])
        print(f"{name} written", file=sys.stderr)
    if given.output:
        _save(given.output, results)
    return 0


def _draw(model: Loaded, inputs: dict[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    results, weights = model.attention(**inputs)
    atomic_write(path, [picture_of(model, inputs, weights)])
    print(f"{path} written", file=sys.stderr)
    return results


def _save(path: str, results: dict[str, np.ndarray]) -> None:
    """An .npz with a fixed date, so that equal results are equal files."""
    buffer = BytesIO()
    np.savez(buffer, **results)  # type: ignore[arg-type]
    atomic_write(path, [buffer.getvalue()])
    print(f"{path} written", file=sys.stderr)
