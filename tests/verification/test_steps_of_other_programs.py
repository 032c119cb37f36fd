"""Steps with input names of other programs are verified on states after a prefix."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS
from support.verification_lines import list_package_lines

import specc
from specc import backend
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.runtime.model_package import open_package
from specc.runtime.random_inputs import (
    find_past_key_value_states,
    make_random_inputs,
    make_step_input_sampler,
)


@pytest.mark.parametrize(
    ("spec", "names"),
    sample_sweep(
        [
            ("gpt2", "hf"),
            ("llama", "genai"),
            ("encoder_decoder", "hf"),
            ("bloom", "hf"),
            # its position embedding is short
            ("bart", "hf"),
        ]
    ),
)
def test_states_of_a_prefix(spec: str, names: str, tmp_path: Path) -> None:
    """A step on these states returns the result of a full forward pass for the last position."""
    specc.compile(
        spec, tmp_path / "p", set=SMALL_CONFIGS[spec], init=0, graphs="step", io_names=names
    )
    package = open_package(tmp_path / "p")
    tried = 0
    for role in package.graph_names:
        model = package.load_graph(role)
        tried += _has_consistent_states(model.manifest.graph, model.weights())
    assert tried
    assert list(list_package_lines(package))


def _has_consistent_states(step: Graph, weights: Mapping[str, Array]) -> bool:
    states = find_past_key_value_states(step)
    growing = {n for n in states if not all(d.number for d in step.inputs[n].type.shape[1:])}
    if not growing:
        return False
    symbols = {n: {s for d in v.type.shape for s in d.symbols()} for n, v in step.inputs.items()}
    new = next(iter(symbols["input_ids"] - {str(step.inputs["input_ids"].type.shape[0])}))
    past = next(s for s in symbols[min(growing)] if s not in symbols["input_ids"])
    sizes = dict.fromkeys(set().union(*symbols.values()), 3)
    given = make_step_input_sampler(weights)(step, sizes, np.random.default_rng(0))
    again = np.random.default_rng(0)
    make_random_inputs(step, sizes, again)
    first = make_random_inputs(step, {**sizes, new: 3, past: 0}, again)
    whole = {}
    for name, told in symbols.items():
        if name in states:
            whole[name] = first[name]
        elif new in told and past not in told:
            whole[name] = np.concatenate([first[name], given[name]], axis=1)
        else:
            whole[name] = given[name]
    stepped = backend.load_reference_backend().evaluate_graph(step, given, weights)["logits"]
    at_once = backend.load_reference_backend().evaluate_graph(step, whole, weights)["logits"]
    assert np.allclose(stepped[:, -1], at_once[:, -1], rtol=1e-4, atol=1e-5)
    return True
