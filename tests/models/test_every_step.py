"""Properties of steps for every built-in generative spec, in the float64 reference.

STEP: a full pass equals prefill and steps, for every split and for steps of 1, 2 and 5 positions.
CAUSAL: a later token changes no earlier position. BATCH: batch elements are independent. REUSE: no
contraction is computed twice; encoder and step together contain those of the spec.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
from support.decode_steps import run_encoder_graph, run_steps
from support.derived_graphs import derive_encoder_and_step
from support.mechanism_sample import sample_mechanisms
from support.small_configs import LONG_AXES, SMALL_CONFIGS, list_specs_with

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.spec_inheritance_and_config_overrides import (
    iterate_config_literals as config_literals,
)
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.model_definition import DerivedGraphs
from specc.runtime.random_inputs import make_random_inputs
from specc.transforms.fuse_scan import fuse_scan
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.split_scan import split_scan

ROWS = 11
TOLERANCE = 1e-11
GENERATING = list_specs_with("generate")
COSTLY = {
    "gemma3",  # gemma3n_text
    "led",
    "llava_next",  # qwen3_vl
    "mbart",  # transformer, t5
    "numbers",  # transformer
    "qwen2_vl",  # qwen3_vl
    "qwen3_5_text",  # nemotron_h
    "sparsemax_lm",  # bloom
}
"""Specs of the parity suite; most have the steps of another one, which the default suite tests."""
SWEEP = sample_mechanisms(GENERATING, COSTLY)


@cache
def derive_spec(name: str) -> tuple[Graph, DerivedGraphs, str]:
    """Return the lowered graph of a spec, its derived graphs, and the output that tokens are
    sampled from.
    """
    model = elaborate_spec(
        open_spec(
            name,
            config_settings=[
                f"{key}={text}" for key, text in config_literals("", SMALL_CONFIGS[name])
            ],
        )
    )
    graph = rewrite_graph(model.graph, [fuse_scan, split_scan])
    assert model.generation
    source, growing = model.generation.logits_output, model.generation.sequence_input
    begins = "" if "start" in model.generation.settings else source
    return (
        graph,
        derive_encoder_and_step(graph, growing, {source: "newest"}, begins=begins),
        source,
    )


def sample_inputs(
    graph: Graph, growing: str, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs, all valid in the first batch element, and weights."""
    rng = np.random.default_rng(seed)
    grows = graph.inputs[growing].type.shape[1]
    symbols = {s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()} - set(
        graph.length_equations
    )
    sizes = {s: LONG_AXES.get(s, 3 + n) for n, s in enumerate(sorted(symbols))}
    sizes[str(grows)] = ROWS
    weights = {
        n: rng.normal(size=[d.number for d in f.type.shape]) * 0.4
        for n, f in graph.parameter_facts.items()
    }
    return make_random_inputs(graph, sizes, rng), weights


SPLITS = [[split, ROWS - split] for split in range(1, ROWS)]
PIECES = [[min(size, ROWS - start) for start in range(0, ROWS, size)] for size in (1, 2, 5)]
EVERY = pytest.param([*SPLITS, *PIECES], marks=pytest.mark.slow, id="every split")
SOME = pytest.param([SPLITS[0], SPLITS[5], SPLITS[-1], *PIECES], id="some splits")


@pytest.mark.parametrize("plans", [SOME, EVERY])
@pytest.mark.parametrize("name", SWEEP)
def test_steps_equal_the_full_pass(name: str, plans: list[list[int]]) -> None:
    graph, parts, source = derive_spec(name)
    inputs, weights = sample_inputs(graph, parts.sequence_input)
    full = specc_numpy.evaluate_graph(graph, inputs, weights)[source]
    within = TOLERANCE * np.abs(full).max()
    head = full.shape[1] - ROWS
    if parts.initial_logits_output:
        first = run_encoder_graph(parts, inputs, weights)[parts.initial_logits_output]
        assert np.abs(first[:, 0] - full[:, head - 1]).max() <= within
    for plan in plans:
        results = run_steps(parts, graph, inputs, weights, plan)
        for end, made in zip(np.cumsum(plan), results, strict=True):
            apart = np.abs(made[source][:, 0] - full[:, head + end - 1]).max()
            assert apart <= within, (plan, end)


@pytest.mark.parametrize("name", SWEEP)
def test_a_later_token_changes_no_earlier_position(name: str) -> None:
    graph, parts, source = derive_spec(name)
    inputs, weights = sample_inputs(graph, parts.sequence_input)
    before = specc_numpy.evaluate_graph(graph, inputs, weights)[source]
    moved = inputs[parts.sequence_input].copy()
    moved[:, 6:] = (moved[:, 6:] + 1) % 5
    after = specc_numpy.evaluate_graph(graph, {**inputs, parts.sequence_input: moved}, weights)[
        source
    ]
    assert np.array_equal(before[:, :6], after[:, :6])
    assert not np.array_equal(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("name", SWEEP)
def test_batch_elements_are_independent(name: str) -> None:
    graph, parts, source = derive_spec(name)
    inputs, weights = sample_inputs(graph, parts.sequence_input)
    batch = graph.inputs[parts.sequence_input].type.shape[0]
    whole = [made[source] for made in run_steps(parts, graph, inputs, weights, [4, 1, 1])]
    row = {
        n: v[1:2] if graph.inputs[n].type.shape[:1] == (batch,) else v for n, v in inputs.items()
    }
    alone = [made[source] for made in run_steps(parts, graph, row, weights, [4, 1, 1])]
    for a, b in zip(whole, alone, strict=True):
        assert np.abs(a[1:2] - b).max() <= TOLERANCE * max(1.0, np.abs(b).max())


@pytest.mark.parametrize("name", SWEEP)
def test_every_contraction_is_computed_once(name: str) -> None:
    graph, parts, _ = derive_spec(name)
    once = list_expensive_nodes(parts.encode) if parts.encode else 0
    every = list_expensive_nodes(graph)
    if any(s.initial_output and s.time_axis is not None for s in parts.states):
        # The encoder computes those of prefix positions, the step all others.
        assert (
            max(once, list_expensive_nodes(parts.step))
            <= every
            <= once + list_expensive_nodes(parts.step)
        )
        read = {a for node, _ in parts.step.nodes for a in node.args}
        head = {*graph.inputs} - {parts.sequence_input, *parts.full_length_inputs}
        kept = {n for n in head if graph.input_facts[n].padding_side}
        there = [v for n, v in parts.step.inputs.items() if n in head - kept]
        assert not read & {*there}
    else:
        assert once + list_expensive_nodes(parts.step) == every
    assert not find_graph_errors(parts.step)
    assert not (parts.encode and find_graph_errors(parts.encode))


def list_expensive_nodes(graph: Graph) -> int:
    """Return contractions and loops, including those in loop bodies."""
    inner = sum(
        list_expensive_nodes(node.op.body)
        for node, _ in graph.nodes
        if isinstance(node.op, ops.Scan)
    )
    return inner + sum(node.op.is_compute_intensive for node, _ in graph.nodes)
