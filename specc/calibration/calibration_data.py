"""Calibration samples: model inputs from a file, or self-generated sequences."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from specc.calibration.gram_matrices import Sample
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.io.safe_read import MAX_ARRAY_BYTES, escape_text, read_bytes
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.preprocessing.array_files import NPY_SIGNATURE, load_strict_json, read_arrays
from specc.runtime.generator import Generator
from specc.runtime.inference_model import open_compiled_model
from specc.runtime.model_inputs import ModelInputs, build_model_inputs
from specc.runtime.random_inputs import make_random_inputs

__all__ = ["ModelInputs", "build_model_inputs", "read_calibration_samples"]

FILE_BATCH_SIZE = 8
"""Batch size for calibration data from a file."""


def read_calibration_samples(path: str, input_signature: ModelInputs) -> Iterator[Sample]:
    """Yield checked inputs for each run. Raise E0802 or E0904 if the file cannot be read, and E0854
    if it has no inputs of the model.
    """
    count = 0
    for place, record in _read_records(path):
        for sample in _batch_inputs(
            _prepare_sequences(record, place, input_signature), input_signature
        ):
            count += 1
            yield sample
    if not count:
        _raise_misfit(path, "it is empty", input_signature)


def _read_records(path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the inputs of each run, with their location."""
    if path.lower().endswith(".npz"):
        yield escape_text(path), dict(read_arrays(path))
        return
    content = read_bytes(path, MAX_ARRAY_BYTES)
    if content.startswith(NPY_SIGNATURE):
        raise_error(
            "E0854",
            f"{escape_text(path)} contains a single unnamed array, expected one array per input",
            helps=["save an .npz file with one array per input: numpy.savez"],
        )
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{escape_text(path)}, line {number}"
        yield place, _read_object(line, place)


def _read_object(line: bytes, location: str) -> Mapping[str, object]:
    """Return the inputs by name that one JSON line contains. Raise E0854 if the line is not an
    object, and E0906 if it is invalid JSON.
    """
    helps = ('each line must be an object such as `{"input_ids": [1, 2, 3]}`',)
    try:
        value = load_strict_json(line, location)
    except Failed as failed:
        # replaces the help text about arrays, because the line must be a JSON object
        raise Failed(*(replace(d, helps=helps) for d in failed.diagnostics)) from None
    if not isinstance(value, dict):
        raise_error(
            "E0854", f"{location} is not an object that maps input names to values", helps=helps
        )
    return value


def _prepare_sequences(
    record: Mapping[str, object], location: str, input_signature: ModelInputs
) -> dict[str, Array]:
    """Return arrays for every input of one run. Raise E0854 if they do not match the model."""
    inputs = input_signature.graph.inputs
    given = {
        name: _add_batch_axis(value, inputs[name].type.rank if name in inputs else 0)
        for name, value in record.items()
    }
    for name, value in record.items():
        if isinstance(value, list) and not value:
            _raise_misfit(location, f"`{escape_text(name)}` is empty", input_signature)
    try:
        made = input_signature.prepare(given)
    except Failed as failed:
        _raise_misfit(location, failed.diagnostics[0].title, input_signature)
    for name, array in made.items():
        if reason := _explain_useless(
            name, array, input_signature.graph.input_facts[name].padding_side
        ):
            _raise_misfit(location, reason, input_signature)
    return made


def _explain_useless(name: str, array: Array, keep: str) -> str:
    """Return the reason why an input cannot be used for calibration, or "" if it can be used."""
    if not array.size:
        return f"`{name}` is empty"
    holes = np.argwhere(~np.isfinite(array))
    if len(holes):
        first = holes[0].tolist()
        return f"`{name}` contains NaN or infinity, first at {first}"
    # all positions of the sequence are padding, so its results are meaningless
    hidden = np.argwhere(~np.any(array, -1)) if keep else holes
    if len(hidden):
        return f"`{name}` masks out all positions of batch element {hidden[0].tolist()}"
    return ""


def _add_batch_axis(value: object, rank: int) -> object:
    """Add the batch axis to a value from a file, which is a single example, such as a text or an
    image.
    """
    depth, inner = 0, value
    while isinstance(inner, list) and inner:
        depth, inner = depth + 1, inner[0]
    numbers = isinstance(inner, int | float)
    return [value] if numbers and depth == rank - 1 else value


def _batch_inputs(inputs: dict[str, Array], input_signature: ModelInputs) -> Iterator[Sample]:
    """Yield the inputs in batches of `FILE_BATCH_SIZE`, or unchanged if the inputs have no common
    batch axis.
    """
    lengths = {len(a) for a in inputs.values() if a.ndim}
    # without a common batch axis, the inputs cannot be sliced consistently
    axes = _collect_first_axes(input_signature.graph)
    if len(axes) != 1 or None in axes or len(lengths) != 1:
        yield inputs
        return
    (rows,) = lengths
    for start in range(0, rows, FILE_BATCH_SIZE):
        yield {n: a[start : start + FILE_BATCH_SIZE] for n, a in inputs.items()}


def _collect_first_axes(graph: Graph) -> set[str | None]:
    """Return the symbolic dimensions of the first axes of a graph's inputs."""
    shapes = [v.type.shape for v in graph.inputs.values()]
    return {shape[0].name if shape else None for shape in shapes}


def _raise_misfit(place: str, reason: str, input_signature: ModelInputs) -> NoReturn:
    """Raise E0854 with the reason why an input does not match the model."""
    wanted = [f"`{name}`: {value.type}" for name, value in input_signature.graph.inputs.items()]
    raise_error(
        "E0854",
        f"{place} contains no inputs of this model: {reason}",
        notes=[f"inputs of the model: {', '.join(wanted)}"],
        helps=["pass arrays with these names in an .npz file, or one JSON object per line"],
    )


SAMPLE_TOKENS = 128
"""Length of self-generated samples in tokens; shorter if the maximum context length is smaller."""
FIXED_INPUT_ROWS = 24
"""Maximum number of random samples for models that do not generate."""
GENERATED_BATCH_SIZE = 8
"""Batch size for self-generated calibration data."""


def generate_samples(package: Path, input_signature: ModelInputs, count: int) -> Iterator[Sample]:
    """Yield `count` self-generated sequences as inputs of the full-forward graph. Raise E0859 if
    the package is not generative.
    """
    writer = open_compiled_model(str(package)).generator
    if writer is None:
        raise_no_generated_text()
    for start in range(0, count, GENERATED_BATCH_SIZE):
        rows = min(GENERATED_BATCH_SIZE, count - start)
        for text in _generate_sequences(writer, rows, start):
            yield input_signature.prepare(text)


def raise_no_generated_text() -> NoReturn:
    """Raise E0859 for a model that cannot generate calibration data."""
    raise_error(
        "E0859",
        "this model cannot generate its own calibration data",
        helps=[
            "pass calibration inputs in a file: `--calibration-data FILE`",
            "or remove --calibration-samples",
        ],
    )


def _generate_sequences(generator: Generator, count: int, seed: int) -> Iterator[dict[str, Array]]:
    """Yield the inputs of generated sequences with batch size 1."""
    growing = generator.input_signature.sequence_input
    given = _make_start_inputs(generator, count, seed)
    long = min(SAMPLE_TOKENS, generator.max_context or SAMPLE_TOKENS)
    writing = generator.generate(
        **given,
        strategy="sample",
        temperature=1.0,
        stop=(),
        stop_strings=(),
        max_tokens=long,
        seed=seed,
    )
    steps = np.array([step.tokens for step in writing])
    for row, prompt in enumerate(writing.fed_prompt):
        whole = np.concatenate([prompt, steps[:, row]])
        # the model was not run on the last generated token
        others = {n: v[row : row + 1] for n, v in given.items() if n != growing}
        yield {**others, growing: whole[None, :long]}


def _make_start_inputs(generator: Generator, count: int, seed: int) -> dict[str, Array]:
    """Return random inputs for `count` sequences, beginning with the start token if the model has
    one.
    """
    input_signature, generation = generator.input_signature, generator.generation
    graph, growing = input_signature.graph, input_signature.sequence_input
    bounds = {name: bound.high for name, bound in input_signature.length_bounds.items()}
    symbols = _collect_input_symbols(graph)
    sizes = {s: min(FIXED_INPUT_ROWS, bounds.get(s) or FIXED_INPUT_ROWS) for s in symbols}
    batch, length, *_ = graph.inputs[growing].type.shape
    sizes |= {batch.name or "": count, length.name or "": 1}
    drawn = make_random_inputs(graph, sizes, np.random.default_rng(seed))
    given = {name: drawn[name] for name in input_signature.required_inputs}
    # Prompts of real inputs never begin with a random token.
    if generator.allows_empty_prompt or generation.settings.get("start"):
        given.pop(growing, None)
    return given


def _collect_input_symbols(graph: Graph) -> set[str]:
    """Return the symbolic dimensions in the shapes of a graph's inputs."""
    dims = [dim for value in graph.inputs.values() for dim in value.type.shape]
    return {s for dim in dims for s in dim.symbols()}
