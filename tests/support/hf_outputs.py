"""Recorded outputs of transformers models: tests compare with them without torch.

A tiny checkpoint consists of its config.json and the names and shapes of its tensors; the values
are derived from the names, so that they need no file. `support.hf_output_recorder` runs
transformers once and writes the outputs to `tests/kept/hf_outputs.npz`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specc
import specc_numpy
from specc.driver.spec_check_and_elaboration import iterate_sibling_graphs
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.driver.weight_sources import bind_checkpoint
from specc.driver.weights_section_and_load_transforms import (
    iterate_graph_parameters,
    list_model_parameters,
    read_weight_rules,
)
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.huggingface.model_family import find_graph_for_architecture
from specc.ir.model_definition import ModelDefinition
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.parameter_sources import read_parameter
from specc.weights.weight_rules_and_initializers import WeightRules, select_graph_weight_rules
from support.elaborated_specs import assert_arrays_close
from support.padded_batches import (
    Arrays,
    BoundingBoxes,
    CodebookIds,
    Field,
    FixedValues,
    PaddingMask,
    PositionValues,
    Samples,
    Side,
    Signal,
    TokenIds,
)

ARCHIVE = Path(__file__).parents[1] / "kept" / "hf_outputs.npz"
FIELDS: dict[str, type[Field]] = {
    kind.__name__: kind
    for kind in (
        *(TokenIds, CodebookIds, PaddingMask),
        *(FixedValues, Signal, PositionValues, BoundingBoxes),
    )
}


@dataclass(frozen=True, kw_only=True)
class RecordedOutputs:
    """The outputs of a transformers model for each of three samples alone.

    `tensors` are the shapes of its checkpoint, `results` maps each output to its padded axis,
    `sides` are the supported padding sides, `sets` are config values besides the config.json.
    Large outputs without a padded axis are sampled (`sample_values`).
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    samples: Samples
    results: Mapping[str, str]
    sides: tuple[Side, ...]
    sets: Mapping[str, Any]
    outputs: tuple[Arrays, ...]


def generate_weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the values of a tensor, derived from its name, scaled by the number of inputs."""
    uniform = _generate_uniform(name, shape)
    if name.endswith("running_var"):  # variances of batch norms are positive
        return 1 + uniform / 2
    if len(shape) < 2:  # norm weights are near 1, biases near 0
        return uniform / 2 + np.float32(name.endswith("weight"))
    # a stack of experts has the scale of a single expert
    inputs = shape[1] if "experts" in name else prod(shape[1:])
    return uniform * np.float32(2 / max(inputs, 1) ** 0.5)


def _generate_uniform(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return uniform values in [-1, 1) from SHAKE-256, which are equal on every machine."""
    digest = hashlib.shake_256(name.encode()).digest(4 * prod(shape))
    bits = np.frombuffer(digest, "<u4")
    return ((bits >> 8) * 2.0**-23 - 1).astype(np.float32).reshape(shape)


MAX_STORED_INPUTS, MAX_STORED_OUTPUTS = 128, 500
"""The maximum numbers of floats that are stored per input (larger inputs are generated from their
names, like weights) and per output (larger outputs are sampled)."""


def generate_input(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the values of an input, derived from its name, with variance 1."""
    return _generate_uniform(name, shape) * np.float32(3**0.5)


def sample_values(x: NDArray[Any]) -> NDArray[Any]:
    """Return at most about MAX_STORED_OUTPUTS values of `x`, evenly spaced and in every column."""
    step = -(-x.size // MAX_STORED_OUTPUTS)
    while x.shape and gcd(step, prod(x.shape[-2:])) > 1:
        step += 1
    return x if step < 2 else x.reshape(-1)[::step]


def write_checkpoint(recorded: RecordedOutputs, directory: Path) -> None:
    """Write the checkpoint directory that the transformers model was read from."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(recorded.config))
    tensors = {name: generate_weight(name, shape) for name, shape in recorded.tensors.items()}
    write_safetensors(directory / "model.safetensors", tensors)


def check_reference_outputs(recorded: RecordedOutputs, directory: Path) -> None:
    """Check that the checkpoint gives the recorded outputs in the reference: one sample alone, and
    a padded batch of 3.

    The symbolic check of the spec is skipped: it takes most of a compilation, and other tests run
    it for every spec.
    """
    write_checkpoint(recorded, directory)
    sets = [f"{name}={value}" for name, value in recorded.sets.items()]
    spec = open_spec(str(directory), config=str(directory), config_settings=sets)
    graph_name = find_graph_for_architecture(spec.program, spec.config_options.config_file or {})
    model = elaborate_model(spec.program, spec.config_options, graph_name)
    graph = model.graph
    values = bind_checkpoint(list_model_parameters(graph), _rules(spec, model), str(directory))
    weights = {n: read_parameter(values, values.get_tied_source(n) or n) for n in values.parameters}
    _assert_all(recorded, lambda x: specc_numpy.evaluate_graph(graph, x, weights))


def _rules(spec: LoadedSpec, model: ModelDefinition) -> WeightRules:
    """Return the weight rules of one graph of the spec."""
    context = create_context(spec.program)
    config = evaluate_and_check_config(context, spec.program, spec.config_options)
    env = LexicalScope(context=context, module=spec.program.module, config=config)
    required = {w.name: w for w in list_model_parameters(model.graph)}
    elsewhere = lambda: iterate_graph_parameters(iterate_sibling_graphs(spec, model.graph.name))
    return select_graph_weight_rules(read_weight_rules(spec.program, env), required, elsewhere)


def check_compiled_outputs(recorded: RecordedOutputs, directory: Path) -> None:
    """Check that the compiled checkpoint gives the recorded outputs."""
    write_checkpoint(recorded, directory)
    path = directory / "m.onnx"
    specc.compile(str(directory), path, set=dict(recorded.sets))
    model = specc.load(path, threads=1)
    _assert_all(recorded, lambda x: model.run(**x))


def _assert_all(recorded: RecordedOutputs, run: Callable[[Arrays], Mapping[str, Any]]) -> None:
    assert_outputs_close(recorded, run(recorded.samples.get_sample(0)), None)
    for side in recorded.sides:
        assert_outputs_close(recorded, run(recorded.samples.make_batch(side)), side)


def assert_outputs_close(
    recorded: RecordedOutputs, outputs: Mapping[str, Any], side: Side | None
) -> None:
    """Assert that valid positions have the recorded outputs, within 1e-5 of the largest of them."""
    samples = range(len(recorded.outputs) if side else 1)
    for name, dim in recorded.results.items():
        for n in samples:
            expected = recorded.outputs[n][name]
            actual = outputs[name][n]
            if side and dim:
                actual = actual[recorded.samples.get_positions(n, dim, len(actual), side)]
            elif not dim:
                actual = sample_values(actual)
            assert_arrays_close(actual, expected, f"{name} of sample {n}, {side or 'alone'}")


def write_outputs(recorded_cases: Mapping[str, RecordedOutputs], file: Path = ARCHIVE) -> None:
    """Write all recorded outputs to one file; equal outputs give an equal file."""
    arrays: Arrays = {}
    index = {}
    for case, recorded in recorded_cases.items():
        index[case] = _described(recorded)
        for n, row in enumerate(recorded.samples.rows):
            stored = {name: x for name, x in row.items() if not is_generated(x)}
            arrays |= {f"{case}/inputs/{n}/{name}": x for name, x in stored.items()}
        for n, outputs in enumerate(recorded.outputs):
            arrays |= {f"{case}/outputs/{n}/{name}": x for name, x in outputs.items()}
    text = json.dumps(index, sort_keys=True).encode()
    np.savez_compressed(file, index=np.frombuffer(text, np.uint8), **arrays)


def is_generated(x: NDArray[Any]) -> bool:
    """Return True if an input is generated from its name instead of stored."""
    return x.dtype.kind == "f" and x.size > MAX_STORED_INPUTS


def generate_large_inputs(case: str, samples: Samples) -> Samples:
    """Replace large inputs by values derived from the names of case, sample and input."""
    rows = (
        {
            name: generate_input(f"{case}/inputs/{n}/{name}", x.shape) if is_generated(x) else x
            for name, x in row.items()
        }
        for n, row in enumerate(samples.rows)
    )
    return replace(samples, rows=tuple(rows))


def _described(recorded: RecordedOutputs) -> dict[str, Any]:
    """Return everything except arrays, as JSON."""
    samples = recorded.samples
    return {
        "config": recorded.config,
        "tensors": recorded.tensors,
        "results": recorded.results,
        "sides": recorded.sides,
        "sets": recorded.sets,
        "lengths": samples.lengths,
        "generated": [
            {name: x.shape for name, x in row.items() if is_generated(x)} for row in samples.rows
        ],
        "fields": {n: [type(f).__name__, vars(f)] for n, f in samples.fields.items()},
    }


class OutputArchive:
    """The file of recorded outputs; a case is read when it is accessed."""

    def __init__(self, file: Path = ARCHIVE) -> None:
        self._arrays = np.load(file)
        self._index: dict[str, Any] = json.loads(self._arrays["index"].tobytes())

    @property
    def names(self) -> list[str]:
        """Return the names of all cases."""
        return sorted(self._index)

    def __getitem__(self, case: str) -> RecordedOutputs:
        entry = self._index[case]
        fields = {n: FIELDS[kind](**values) for n, (kind, values) in entry["fields"].items()}
        stored, outputs = self._rows(f"{case}/inputs"), self._rows(f"{case}/outputs")
        rows = tuple(
            stored.get(n, {})
            | {
                name: generate_input(f"{case}/inputs/{n}/{name}", tuple(shape))
                for name, shape in shapes.items()
            }
            for n, shapes in enumerate(entry["generated"])
        )
        return RecordedOutputs(
            config=entry["config"],
            tensors={n: tuple(shape) for n, shape in entry["tensors"].items()},
            samples=Samples(fields, rows, tuple(entry["lengths"]), seed=0),
            results=entry["results"],
            sides=tuple(entry["sides"]),
            sets=entry["sets"],
            outputs=tuple(outputs[n] for n in sorted(outputs)),
        )

    def _rows(self, prefix: str) -> dict[int, Arrays]:
        """Return the arrays below a prefix, by index and name."""
        rows: dict[int, Arrays] = {}
        for key in self._arrays.files:
            if key.startswith(f"{prefix}/"):
                number, name = key.removeprefix(f"{prefix}/").split("/")
                rows.setdefault(int(number), {})[name] = self._arrays[key]
        return rows
