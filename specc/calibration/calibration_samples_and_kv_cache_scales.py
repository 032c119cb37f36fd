"""Read calibration samples from a file, or let the model generate them. Compute the scales of int8
KV caches from the samples.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from specc.calibration.calibration_stages_and_gram_matrices import Sample
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.io.safe_read import MAX_ARRAY_BYTES, escape_text, read_input_file
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.preprocessing.array_files import NPY_SIGNATURE, load_strict_json, read_arrays
from specc.runtime.decoder_sessions import KVCacheSession
from specc.runtime.generator import Generator
from specc.runtime.inference_model import open_compiled_model
from specc.runtime.model_inputs import ModelInputs, build_model_inputs
from specc.runtime.random_inputs import make_random_inputs
from specc.weights.int_quantization import MIN_SCALE

__all__ = ["ModelInputs", "build_model_inputs", "read_calibration_samples"]

FILE_BATCH_SIZE = 8
"""Batch size of calibration samples from a file."""


def read_calibration_samples(path: str, input_signature: ModelInputs) -> Iterator[Sample]:
    """Yield batches of model inputs from an .npz or JSON Lines file. Raise E0802 or E0904 if the
    file cannot be read, E0906 if the file contains invalid JSON, and E0854 if a record does not
    contain the inputs of the model.
    """
    is_empty = True
    for location, record in _read_records(path):
        inputs = _prepare_sequences(record, location, input_signature)
        for sample in _batch_inputs(inputs, input_signature):
            is_empty = False
            yield sample
    if is_empty:
        _raise_mismatch(path, "it is empty", input_signature)


def _read_records(path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the inputs of each record by name, with the record's location in the file for error
    messages. An .npz file is a single record. In other files, each line is a record.
    """
    if path.lower().endswith(".npz"):
        yield escape_text(path), dict(read_arrays(path))
        return
    content = read_input_file(path, MAX_ARRAY_BYTES)
    if content.startswith(NPY_SIGNATURE):
        raise_error(
            "E0854",
            f"{escape_text(path)} contains a single unnamed array, expected one array per input",
            helps=["save an .npz file with one array per input: numpy.savez"],
        )
    lines = content.split(b"\n")
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        location = f"{escape_text(path)}, line {line_number}"
        yield location, _read_object(line, location)


def _read_object(line: bytes, location: str) -> Mapping[str, object]:
    """Parse one line of a JSON Lines file. Raise E0906 (invalid JSON) or E0854 (not an object)."""
    helps = ('each line must be an object such as `{"input_ids": [1, 2, 3]}`',)
    try:
        value = load_strict_json(line, location)
    except SpeccError as failed:
        # replace the default help text, because the line must be a JSON object, not an array
        raise SpeccError(*(replace(d, helps=helps) for d in failed.diagnostics)) from None
    if not isinstance(value, dict):
        raise_error(
            "E0854", f"{location} is not an object that maps input names to values", helps=helps
        )
    return value


def _prepare_sequences(
    record: Mapping[str, object], location: str, input_signature: ModelInputs
) -> dict[str, Array]:
    """Return a record's arrays for all model inputs. Raise E0854 if the arrays do not match the
    model, are empty, contain NaN or infinity, or contain only padding.
    """
    inputs = input_signature.graph.inputs
    values = {
        name: _add_batch_axis(value, inputs[name].type.rank if name in inputs else 0)
        for name, value in record.items()
    }
    for name, value in record.items():
        if isinstance(value, list) and not value:
            _raise_mismatch(location, f"`{escape_text(name)}` is empty", input_signature)
    try:
        arrays = input_signature.prepare(values)
    except SpeccError as failed:
        _raise_mismatch(location, failed.diagnostics[0].title, input_signature)
    for name, array in arrays.items():
        is_mask = bool(input_signature.graph.input_facts[name].padding_side)
        if reason := _explain_unusable_input(name, array, is_mask):
            _raise_mismatch(location, reason, input_signature)
    return arrays


def _explain_unusable_input(name: str, array: Array, is_padding_mask: bool) -> str:
    """Return the reason why an input cannot be used for calibration, or "" if it can be used."""
    if not array.size:
        return f"`{name}` is empty"
    nonfinite = np.argwhere(~np.isfinite(array))
    if len(nonfinite):
        return f"`{name}` contains NaN or infinity, first at {nonfinite[0].tolist()}"
    if is_padding_mask and len(masked := np.argwhere(~np.any(array, -1))):
        return f"`{name}` masks out all positions of batch element {masked[0].tolist()}"
    return ""


def _add_batch_axis(value: object, rank: int) -> object:
    """Add a batch axis to a nested list of numbers that has `rank - 1` axes, where `rank` is the
    rank of the input. Values that are not such a list are returned unchanged.
    """
    depth, inner = 0, value
    while isinstance(inner, list) and inner:
        depth, inner = depth + 1, inner[0]
    is_numeric = isinstance(inner, int | float)
    return [value] if is_numeric and depth == rank - 1 else value


def _batch_inputs(inputs: dict[str, Array], input_signature: ModelInputs) -> Iterator[Sample]:
    """Yield the inputs in batches of `FILE_BATCH_SIZE`, or in one batch without a batch axis."""
    lengths = {len(a) for a in inputs.values() if a.ndim}
    shapes = [v.type.shape for v in input_signature.graph.inputs.values()]
    # an axis name is None if the input is a scalar or if its first axis is not symbolic
    axes = {shape[0].name if shape else None for shape in shapes}
    if len(axes) != 1 or None in axes or len(lengths) != 1:
        yield inputs
        return
    (batch_size,) = lengths
    for start in range(0, batch_size, FILE_BATCH_SIZE):
        yield {n: a[start : start + FILE_BATCH_SIZE] for n, a in inputs.items()}


def _raise_mismatch(location: str, reason: str, input_signature: ModelInputs) -> NoReturn:
    """Raise E0854 because the record at `location` does not contain the inputs of the model."""
    expected = [f"`{name}`: {value.type}" for name, value in input_signature.graph.inputs.items()]
    raise_error(
        "E0854",
        f"{location} does not match the inputs of this model: {reason}",
        notes=[f"inputs of the model: {', '.join(expected)}"],
        helps=["pass arrays with these names in an .npz file, or one JSON object per line"],
    )


SAMPLE_TOKENS = 128
"""Number of tokens in a generated sample, unless the model's maximum sequence length is smaller."""
MAX_RANDOM_LENGTH = 24
"""Maximum size of the dynamic axes of random inputs, except the batch axis and sequence axis."""
GENERATED_BATCH_SIZE = 8
"""Number of calibration samples that the model generates at once."""


def generate_samples(package: Path, input_signature: ModelInputs, count: int) -> Iterator[Sample]:
    """Yield `count` sequences that a package's model generates by sampling. Each sequence is
    returned as inputs of the full-forward graph, with batch size 1. Raise E0859 if the package is
    not generative.
    """
    generator = open_compiled_model(str(package)).generator
    if generator is None:
        raise_not_generative_error()
    for start in range(0, count, GENERATED_BATCH_SIZE):
        batch_size = min(GENERATED_BATCH_SIZE, count - start)
        for inputs in _generate_sequences(generator, batch_size, start):
            yield input_signature.prepare(inputs)


def raise_not_generative_error() -> NoReturn:
    """Raise E0859 because a model cannot generate its own calibration data."""
    raise_error(
        "E0859",
        "this model cannot generate its own calibration data",
        helps=[
            "pass calibration inputs in a file: `--calibration-data FILE`",
            "or remove --calibration-samples",
        ],
    )


def _generate_sequences(generator: Generator, count: int, seed: int) -> Iterator[dict[str, Array]]:
    """Generate a batch of `count` sequences. Yield the inputs of each sequence (batch size 1)."""
    name = generator.input_signature.sequence_input
    start_inputs = _make_start_inputs(generator, count, seed)
    max_tokens = min(SAMPLE_TOKENS, generator.max_context or SAMPLE_TOKENS)
    stream = generator.generate(
        **start_inputs,
        strategy="sample",
        temperature=1.0,
        stop=(),
        stop_strings=(),
        max_tokens=max_tokens,
        seed=seed,
    )
    steps = np.array([step.tokens for step in stream])
    for index, prompt in enumerate(stream.input_ids):
        tokens = np.concatenate([prompt, steps[:, index]])
        # drop the last generated token, because the model has not been run on it
        other_inputs = {n: v[index : index + 1] for n, v in start_inputs.items() if n != name}
        yield {**other_inputs, name: tokens[None, :max_tokens]}


def _make_start_inputs(generator: Generator, count: int, seed: int) -> dict[str, Array]:
    """Return random inputs for the generation of `count` sequences. The prompt is a random token,
    and is omitted if the model has a start token or can generate from an empty prompt.
    """
    input_signature, generation = generator.input_signature, generator.generation
    graph, sequence_input = input_signature.graph, input_signature.sequence_input
    bounds = {name: bound.high for name, bound in input_signature.length_bounds.items()}
    symbols = _collect_input_symbols(graph)
    sizes = {s: min(MAX_RANDOM_LENGTH, bounds.get(s) or MAX_RANDOM_LENGTH) for s in symbols}
    batch, length, *_ = graph.inputs[sequence_input].type.shape
    sizes |= {batch.name or "": count, length.name or "": 1}
    random_inputs = make_random_inputs(graph, sizes, np.random.default_rng(seed))
    inputs = {name: random_inputs[name] for name in input_signature.required_inputs}
    if generator.allows_empty_prompt or generation.settings.get("start"):
        inputs.pop(sequence_input, None)
    return inputs


def _collect_input_symbols(graph: Graph) -> set[str]:
    """Return the symbolic dimensions in the shapes of a graph's inputs."""
    dims = [dim for value in graph.inputs.values() for dim in value.type.shape]
    return {s for dim in dims for s in dim.symbols()}


RANGE_MARGIN = 1.25
"""Ratio of the largest value that a quantized cache can represent to the largest value in the
samples.
"""


MAX_CODE = 127
"""The largest magnitude of a code in an int8 KV cache."""


def measure_kv_cache_scales(package: Path, samples: Iterable[Sample]) -> dict[str, Array]:
    """Run the step graph of a generative package on the calibration samples. Return each KV cache's
    scales, float32 [heads, 1, head_dim], keyed by state name. Raise E0859 if a cache entry is not
    finite.
    """
    max_by_state: dict[str, Array] = {}
    generator = open_compiled_model(str(package)).generator
    assert generator is not None, "a generative package has a generator"
    for sample in samples:
        decoder_session = generator.create_decoder_session(sample)
        assert isinstance(decoder_session, KVCacheSession), "the package has a step"
        decoder_session.step(sample[generator.input_signature.sequence_input])
        for state in decoder_session.buffers:
            cache = decoder_session.states[state.name].numpy()
            entries = cache[:, :, : decoder_session.past_length]
            maxima = np.abs(entries).max((0, 2), initial=0.0)
            if not np.isfinite(maxima).all():
                raise_error(
                    "E0859",
                    f"the state `{escape_text(state.name)}` contains NaN or infinity on the "
                    "calibration data",
                    notes=["its int8 scales are calibrated on these values"],
                    helps=[
                        "use other calibration inputs: `--calibration-data FILE`",
                        "or remove `--kv-cache`",
                    ],
                )
            max_by_state[state.name] = np.maximum(max_by_state.get(state.name, 0.0), maxima)
    factor = np.float32(RANGE_MARGIN / MAX_CODE)
    return {
        name: np.maximum(maximum * factor, MIN_SCALE).astype(np.float32)[:, None, :]
        for name, maximum in max_by_state.items()
    }
