"""What is computed in 16 bits, what in 32, and that neither changes what is meant."""

from collections.abc import Iterator

import numpy as np
import pytest
from support.elaborated_specs import ElaboratedSpec, elaborate_with_config, sample_spec_weights
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc_numpy
from specc.ir import ops
from specc.ir.graph import Builder, Graph, Input, Node, Parameter, Value
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.types import Type
from specc.runtime.random_inputs import random_inputs, sizes_for
from specc.transforms import pass_pipeline
from specc.transforms.mixed_precision import (
    ALWAYS_HALF_OPS,
    can_follow_operand_dtype,
    convert_derived_to_half,
    convert_graph_to_half,
)

SOME = ("bert", "conformer", "gpt2", "t5", "mixtral", "rnnsearch", "vit")
WRITING = ("gpt2", "mixtral", "rnnsearch", "t5", "transformer_xl")


def small(name: str) -> ElaboratedSpec:
    return elaborate_with_config(
        name, **{k.replace(".", "__"): v for k, v in SMALL_CONFIGS[name].items()}
    )


def thin_nodes(graph: Graph) -> Iterator[Node]:
    for node, results in graph.nodes:
        if results[0].type.dtype == "f16" and not isinstance(node.op, ops.Cast):
            yield node


def check_meaning(name: str) -> None:
    """In float64 a cast is nothing, so both graphs are one function."""
    found = small(name)
    graph = pass_pipeline.simplify_graph(found.model.graph)
    thin = convert_graph_to_half(graph, "f16")
    assert not find_graph_errors(thin)
    assert any(True for _ in thin_nodes(thin))
    weights = sample_spec_weights(found)
    inputs = random_inputs(graph, sizes_for(graph, 1), np.random.default_rng(3))
    want = specc_numpy.evaluate_graph(graph, inputs, weights)
    got = specc_numpy.evaluate_graph(thin, inputs, weights)
    for key, value in want.items():
        np.testing.assert_array_equal(got[key], value)


@pytest.mark.parametrize("name", sample_sweep(SOME))
def test_it_means_the_same(name: str) -> None:
    check_meaning(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL_CONFIGS))
def test_every_spec_means_the_same(name: str) -> None:
    graph = convert_graph_to_half(pass_pipeline.simplify_graph(small(name).model.graph), "bf16")
    assert not find_graph_errors(graph)


@pytest.mark.parametrize("name", SOME)
def test_only_what_the_table_names_is_thin(name: str) -> None:
    """By a second reading: no node of 16 bits sums, divides or exponentiates."""
    graph = convert_graph_to_half(pass_pipeline.simplify_graph(small(name).model.graph), "f16")
    for node in thin_nodes(graph):
        assert isinstance(node.op, ALWAYS_HALF_OPS) or can_follow_operand_dtype(node.op)
        assert not isinstance(node.op, ops.Softmax | ops.Reduce | ops.Scan | ops.Lstm)


@pytest.mark.parametrize("name", SOME)
def test_inputs_and_results_stay(name: str) -> None:
    graph = pass_pipeline.simplify_graph(small(name).model.graph)
    thin = convert_graph_to_half(graph, "bf16")
    for old, new in (
        (graph.inputs, thin.inputs),
        (graph.outputs, thin.outputs),
        (graph.parameters, thin.parameters),
    ):
        assert {n: v.type for n, v in old.items()} == {n: v.type for n, v in new.items()}


def maker_of(value: Value) -> Node:
    """The first node behind a result that computes something."""
    while value.node is not None and isinstance(value.node.op, ops.Cast | ops.Last):
        assert value.node.first is not None
        value = value.node.first
    assert value.node is not None
    return value.node


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "mixtral"])
def test_logits_are_of_32_bits(name: str) -> None:
    """The table that is both is read in 16 bits for tokens, in 32 for logits."""
    graph = convert_graph_to_half(pass_pipeline.simplify_graph(small(name).model.graph), "f16")
    head = maker_of(graph.outputs["logits"])
    assert isinstance(head.op, ops.Linear)
    assert all(a.type.dtype == "f32" for a in head.args if a is not None)


def test_scores_of_experts_are_of_32_bits() -> None:
    graph = convert_graph_to_half(pass_pipeline.simplify_graph(small("mixtral").model.graph), "f16")
    routes = [node for node, _ in graph.nodes if isinstance(node.op, ops.TopK)]
    assert routes
    for node in routes:
        value = node.args[0]
        while value is not None and value.node is not None:
            assert value.type.dtype == "f32"
            if isinstance(value.node.op, ops.Linear):
                break
            value = value.node.args[0]


@pytest.mark.parametrize("name", WRITING)
def test_keys_and_values_are_kept_thin(name: str) -> None:
    found = small(name)
    graph = pass_pipeline.simplify_graph(found.model.graph)
    generation = found.model.generation
    assert generation is not None
    whole = pass_pipeline.derive_with_passes(
        pass_pipeline.PassState(graph=graph, defaults=found.model.defaults, generation=generation)
    )
    thin = convert_derived_to_half(whole, "f16")
    assert not find_graph_errors(thin.step)
    for state in thin.states:
        wanted = "f16" if state.role in ("key", "value") else state.type.dtype
        assert state.type.dtype == wanted
        assert thin.step.inputs[state.name].type == state.type
        assert thin.step.outputs[state.next_output].type.dtype == state.type.dtype
        if state.initial_output:
            assert thin.encode is not None
            made = thin.encode.outputs[state.initial_output].type.dtype
            assert made == state.type.dtype
    for name_ in thin.static_inputs:
        if thin.encode is not None and name_ in thin.encode.outputs:
            made = thin.encode.outputs[name_].type.dtype
            assert thin.step.inputs[name_].type.dtype == made


def test_a_number_that_does_not_fit_stays_wide() -> None:
    """Added to what is thin, `1e-9` would be nothing in float16."""
    made = Builder()
    x = made.input("x", Input(Type.of("f32", 2, 3)))
    w = made.parameter(Parameter(name="w", type=Type.of("f32", 3, 3), initial="zeros"))
    product = made.one(ops.Linear(), x, w)
    for number, half, wanted in ((1e-9, "f16", "f32"), (1e-9, "bf16", "bf16")):
        small = made.one(ops.Constant(number, "f32"))
        total = made.one(ops.Arith("add"), product, small)
        again = made.one(ops.Linear(), total, w)
        graph = convert_graph_to_half(made.finish("g", {"y": again}), half)  # type: ignore[arg-type]
        (added,) = (r for n, r in graph.nodes if isinstance(n.op, ops.Arith))
        assert added[0].type.dtype == wanted
