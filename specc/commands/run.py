"""Run a compiled model on images, texts or arrays, and show what it gives."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from specc.attention import ALIGNMENT, alignment_of, picture_of
from specc.decoding import Plan, decode, plan_of
from specc.output import atomic_write
from specc.reading.record import TextOf
from specc.reading.show import Shown, show
from specc.running import Loaded, open_model, read_arguments

Array = Any
Arrays = dict[str, Array]


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
    plan = plan_of(model, inputs)
    results, shown = _write(model, plan, inputs, given.attention) if plan else _compute(model, inputs, given.attention)
    for line in shown.lines:
        print(line)
    for name, png in shown.pictures:
        atomic_write(Path(name), [png])
        print(f"{name} written", file=sys.stderr)
    if given.output:
        _save(given.output, results)
    return 0


def _compute(model: Loaded, inputs: Arrays, picture: str) -> tuple[Arrays, Shown]:
    results = _draw(model, inputs, picture) if picture else model.run(**inputs)
    return results, show(model.manifest.reading, results)


def _write(model: Loaded, plan: Plan, inputs: Arrays, picture: str) -> tuple[Arrays, Shown]:
    """What a model writes by itself; its tokens are a result under the name that the spec gives them."""
    decoded = decode(model, plan, inputs)
    if plan.strategy != "greedy":
        print(f"note: the spec asks for {plan.strategy}; the most probable token is taken each time", file=sys.stderr)
    if not decoded.complete and plan.stop:
        print(f"note: cut off after {decoded.tokens.shape[1]} tokens, at which it had not ended", file=sys.stderr)
    if picture:
        _draw(model, decoded.inputs, picture, decoded.tokens)
    reading = model.manifest.reading
    if not reading.shows:
        return {**decoded.results, plan.name: decoded.tokens}, show(reading, {plan.name: decoded.tokens})
    text = any(name == plan.source and isinstance(record, TextOf) for name, record in reading.shows)
    seen = {**decoded.results, plan.source: decoded.tokens} if text else decoded.results
    return {**decoded.results, plan.name: decoded.tokens}, show(reading, seen)


def _draw(model: Loaded, inputs: Mapping[str, Array], path: str, written: Array | None = None) -> Arrays:
    """The results; where the model looked goes into a picture."""
    if ALIGNMENT in model.manifest.graph.outputs:
        results = model.run(**inputs)
        png = alignment_of(model, inputs, results[ALIGNMENT], written)
    else:
        results, weights = model.attention(**inputs)
        png = picture_of(model, inputs, weights)
    atomic_write(path, [png])
    print(f"{path} written", file=sys.stderr)
    return results


def _save(path: str, results: Arrays) -> None:
    """An .npz with a fixed date, so that equal results are equal files."""
    buffer = BytesIO()
    np.savez(buffer, **results)
    atomic_write(path, [buffer.getvalue()])
    print(f"{path} written", file=sys.stderr)
