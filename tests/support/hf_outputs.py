"""Answers of published models that are kept, so that every run of the tests compares
with transformers, where there is no torch either.

A tiny checkpoint is its config.json and the names and shapes of its tensors; the numbers
in it follow from the names, so that no file holds them. `support.hf_output_recorder` asks
transformers once and writes what it answers to `tests/kept/hf_outputs.npz`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specc
import specc_numpy
from specc.driver.spec_loader import OpenedSpec, elaborate_other_graphs, open_spec
from specc.driver.weight_sources import bind_checkpoint
from specc.driver.weights_section import (
    merge_required_parameters,
    read_weight_rules,
    required_parameters,
)
from specc.frontend.context import Env
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.huggingface.model_family import graph_for_architecture
from specc.ir.model import ModelDefinition
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.parameter_values import read_parameter
from specc.weights.weight_rules import WeightRules, rules_of_graph
from support.elaborated_specs import assert_arrays_close
from support.padded_batches import (
    Arrays,
    BoundingBoxes,
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
    for kind in (TokenIds, PaddingMask, FixedValues, Signal, PositionValues, BoundingBoxes)
}


@dataclass(frozen=True, kw_only=True)
class RecordedOutputs:
    """What a published model answered to each of three samples alone.

    `tensors` are the shapes of its file, `results` the padded axis that each result
    runs along, `sides` those that it may be padded on, `sets` what is told beside its
    config.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    given: Samples
    results: Mapping[str, str]
    sides: tuple[Side, ...]
    sets: Mapping[str, Any]
    told: tuple[Arrays, ...]


def generate_weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The numbers of a tensor, by its name: even ones from SHAKE-256, which every machine
    gives alike, as large as what a layer adds up allows.
    """
    digest = hashlib.shake_256(name.encode()).digest(4 * prod(shape))
    bits = np.frombuffer(digest, "<u4")
    even = ((bits >> 8) * 2.0**-23 - 1).astype(np.float32).reshape(shape)  # [-1, 1)
    if name.endswith("running_var"):  # of a batch norm: a variance is above 0
        return 1 + even / 2
    if len(shape) < 2:  # norms are about 1, biases about 0
        return even / 2 + np.float32(name.endswith("weight"))
    # a stack of experts is as large as each of them would be
    inputs = shape[1] if "experts" in name else prod(shape[1:])
    return even * np.float32(2 / max(inputs, 1) ** 0.5)


def write_checkpoint(answer: RecordedOutputs, directory: Path) -> None:
    """The folder that the published model was read from."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(answer.config))
    tensors = {name: generate_weight(name, shape) for name, shape in answer.tensors.items()}
    write_safetensors(directory / "model.safetensors", tensors)


def check_reference_outputs(answer: RecordedOutputs, directory: Path) -> None:
    """The folder is read and means what was answered: one sample alone, and three padded.

    Its spec is not read with symbols, which takes most of a compilation: other tests do
    that for every spec.
    """
    write_checkpoint(answer, directory)
    sets = [f"{name}={value}" for name, value in answer.sets.items()]
    spec = open_spec(str(directory), config=str(directory), sets=sets)
    graph_name = graph_for_architecture(spec.program, spec.reader.config_file or {})
    model = elaborate_model(spec.program, spec.library, spec.reader, graph_name)
    graph = model.graph
    values = bind_checkpoint(required_parameters(graph), _rules(spec, model), str(directory))
    numbers = {n: read_parameter(values, values.tied_to(n) or n) for n in values.wanted}
    _assert_all(answer, lambda x: specc_numpy.evaluate_graph(graph, x, numbers))


def _rules(spec: OpenedSpec, model: ModelDefinition) -> WeightRules:
    """What the spec says about the weights of one graph."""
    context = create_context(spec.library)
    config = evaluate_and_check_config(context, spec.program, spec.reader)
    env = Env(module=spec.program.module, config=config)
    wanted = {w.name: w for w in required_parameters(model.graph)}
    elsewhere = lambda: merge_required_parameters(elaborate_other_graphs(spec, model.graph.name))
    return rules_of_graph(read_weight_rules(context, spec.program, env), wanted, elsewhere)


def check_compiled_outputs(answer: RecordedOutputs, directory: Path) -> None:
    """The folder compiles, and what is compiled answers so."""
    write_checkpoint(answer, directory)
    path = directory / "m.onnx"
    specc.compile(str(directory), path, set=dict(answer.sets))
    model = specc.load(path, threads=1)
    _assert_all(answer, lambda x: model.run(**x))


def _assert_all(answer: RecordedOutputs, run: Callable[[Arrays], Mapping[str, Any]]) -> None:
    assert_outputs_close(answer, run(answer.given.alone(0)), None)
    for side in answer.sides:
        assert_outputs_close(answer, run(answer.given.together(side)), side)


def assert_outputs_close(
    answer: RecordedOutputs, made: Mapping[str, Any], side: Side | None
) -> None:
    """Valid rows are what was answered, within 1e-5 of the greatest of them."""
    samples = range(len(answer.told) if side else 1)
    for name, dim in answer.results.items():
        for n in samples:
            told = answer.told[n][name]
            found = made[name][n]
            if side and dim:
                found = found[answer.given.kept(n, dim, len(found), side)]
            assert_arrays_close(found, told, f"{name} of sample {n}, {side or 'alone'}")


def write_outputs(answers: Mapping[str, RecordedOutputs], file: Path = ARCHIVE) -> None:
    """All of them in one file, the same for the same answers."""
    arrays: Arrays = {}
    index = {}
    for case, answer in answers.items():
        index[case] = _described(answer)
        for n, row in enumerate(answer.given.rows):
            arrays |= {f"{case}/inputs/{n}/{name}": x for name, x in row.items()}
        for n, told in enumerate(answer.told):
            arrays |= {f"{case}/outputs/{n}/{name}": x for name, x in told.items()}
    text = json.dumps(index, sort_keys=True).encode()
    np.savez_compressed(file, index=np.frombuffer(text, np.uint8), **arrays)


def _described(answer: RecordedOutputs) -> dict[str, Any]:
    """What is no array, as JSON has it."""
    given = answer.given
    return {
        "config": answer.config,
        "tensors": answer.tensors,
        "results": answer.results,
        "sides": answer.sides,
        "sets": answer.sets,
        "lengths": given.lengths,
        "fields": {n: [type(f).__name__, vars(f)] for n, f in given.fields.items()},
    }


class OutputArchive:
    """The file, of which an answer is read when it is asked for."""

    def __init__(self, file: Path = ARCHIVE) -> None:
        self._arrays = np.load(file)
        self._index: dict[str, Any] = json.loads(self._arrays["index"].tobytes())

    @property
    def names(self) -> list[str]:
        """Every case that is kept."""
        return sorted(self._index)

    def __getitem__(self, case: str) -> RecordedOutputs:
        told = self._index[case]
        fields = {n: FIELDS[kind](**values) for n, (kind, values) in told["fields"].items()}
        rows, answers = self._rows(f"{case}/inputs"), self._rows(f"{case}/outputs")
        return RecordedOutputs(
            config=told["config"],
            tensors={n: tuple(shape) for n, shape in told["tensors"].items()},
            given=Samples(fields, rows, tuple(told["lengths"]), seed=0),
            results=told["results"],
            sides=tuple(told["sides"]),
            sets=told["sets"],
            told=answers,
        )

    def _rows(self, prefix: str) -> tuple[Arrays, ...]:
        """The arrays below a prefix, by number and name."""
        rows: dict[int, Arrays] = {}
        for key in self._arrays.files:
            if key.startswith(f"{prefix}/"):
                number, name = key.removeprefix(f"{prefix}/").split("/")
                rows.setdefault(int(number), {})[name] = self._arrays[key]
        return tuple(rows[n] for n in sorted(rows))
