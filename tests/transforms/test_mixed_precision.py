"""Mixed precision: which nodes compute in 16 and in 32 bits, and that the function is unchanged."""

from collections.abc import Iterator

import numpy as np
import pytest
from support.elaborated_specs import ElaboratedSpec, elaborate_with_config, sample_spec_weights
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc_numpy
from specc.ir import ops
from specc.ir.graph import Graph, GraphBuilder, Input, Node, Parameter, Value
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.types import Type
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs
from specc.transforms import pass_pipeline
from specc.transforms.mixed_precision import (
    ALWAYS_HALF_OPS,
    MAX_FINITE,
    can_compute_in_operand_dtype,
    convert_derived_graphs_to_half,
    convert_graph_to_half,
)

SOME = ("bert", "conformer", "gpt2", "t5", "mixtral", "rnnsearch", "vit")
WRITING = ("gpt2", "mixtral", "rnnsearch", "t5", "transformer_xl")


def elaborate_small(name: str) -> ElaboratedSpec:
    return elaborate_with_config(
        name, **{k.replace(".", "__"): v for k, v in SMALL_CONFIGS[name].items()}
    )


def find_half_nodes(graph: Graph) -> Iterator[Node]:
    for node, results in graph.nodes:
        if results[0].type.dtype == "f16" and not isinstance(node.op, ops.Cast):
            yield node


def check_equal_function(name: str) -> None:
    """In float64 casts have no effect, so both graphs compute one function."""
    found = elaborate_small(name)
    graph = pass_pipeline.simplify_graph(found.model.graph)
    thin = convert_graph_to_half(graph, "f16")
    assert not find_graph_errors(thin)
    assert any(True for _ in find_half_nodes(thin))
    weights = sample_spec_weights(found)
    inputs = make_random_inputs(graph, choose_dim_sizes(graph, 1), np.random.default_rng(3))
    want = specc_numpy.evaluate_graph(graph, inputs, weights)
    got = specc_numpy.evaluate_graph(thin, inputs, weights)
    for key, value in want.items():
        np.testing.assert_array_equal(got[key], value)


@pytest.mark.parametrize("name", sample_sweep(SOME))
def test_function_is_unchanged(name: str) -> None:
    check_equal_function(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL_CONFIGS))
def test_every_spec_converts_without_errors(name: str) -> None:
    graph = convert_graph_to_half(
        pass_pipeline.simplify_graph(elaborate_small(name).model.graph), "bf16"
    )
    assert not find_graph_errors(graph)


@pytest.mark.parametrize("name", SOME)
def test_only_listed_ops_compute_in_half(name: str) -> None:
    """Checked independently: no 16-bit node sums, divides or exponentiates."""
    graph = convert_graph_to_half(
        pass_pipeline.simplify_graph(elaborate_small(name).model.graph), "f16"
    )
    for node in find_half_nodes(graph):
        assert isinstance(node.op, ALWAYS_HALF_OPS) or can_compute_in_operand_dtype(node.op)
        assert not isinstance(node.op, ops.Softmax | ops.Reduce | ops.Scan | ops.Lstm)


@pytest.mark.parametrize("name", SOME)
def test_interface_is_unchanged(name: str) -> None:
    graph = pass_pipeline.simplify_graph(elaborate_small(name).model.graph)
    thin = convert_graph_to_half(graph, "bf16")
    for old, new in (
        (graph.inputs, thin.inputs),
        (graph.outputs, thin.outputs),
        (graph.parameters, thin.parameters),
    ):
        assert {n: v.type for n, v in old.items()} == {n: v.type for n, v in new.items()}


def find_producer(value: Value) -> Node:
    """Return the node that computes a result, ignoring casts."""
    while value.node is not None and isinstance(value.node.op, ops.Cast | ops.Last):
        assert value.node.first_operand is not None
        value = value.node.first_operand
    assert value.node is not None
    return value.node


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "mixtral"])
def test_logits_are_float32(name: str) -> None:
    """A tied embedding is read in 16 bits for tokens and in 32 bits for logits."""
    graph = convert_graph_to_half(
        pass_pipeline.simplify_graph(elaborate_small(name).model.graph), "f16"
    )
    head = find_producer(graph.outputs["logits"])
    assert isinstance(head.op, ops.Linear)
    assert all(a.type.dtype == "f32" for a in head.args if a is not None)


def test_router_scores_are_float32() -> None:
    graph = convert_graph_to_half(
        pass_pipeline.simplify_graph(elaborate_small("mixtral").model.graph), "f16"
    )
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
def test_kv_cache_is_half(name: str) -> None:
    found = elaborate_small(name)
    graph = pass_pipeline.simplify_graph(found.model.graph)
    generation = found.model.generation
    assert generation is not None
    whole = pass_pipeline.run_decode_step_passes(
        pass_pipeline.CompilerPassState(
            graph=graph, defaults=found.model.defaults, generation=generation
        )
    )
    thin = convert_derived_graphs_to_half(whole, "f16")
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
    for name_ in thin.loop_invariant_inputs:
        if thin.encode is not None and name_ in thin.encode.outputs:
            made = thin.encode.outputs[name_].type.dtype
            assert thin.step.inputs[name_].type.dtype == made


def test_underflowing_constant_stays_float32() -> None:
    """`1e-9` underflows to zero in float16."""
    made = GraphBuilder()
    x = made.add_input("x", Input(Type.of("f32", 2, 3)))
    w = made.add_parameter(Parameter(name="w", type=Type.of("f32", 3, 3), initializer="zeros"))
    product = made.add_op(ops.Linear(), x, w)
    for number, half, wanted in ((1e-9, "f16", "f32"), (1e-9, "bf16", "bf16")):
        small = made.add_op(ops.Constant(number, "f32"))
        total = made.add_op(ops.Arith("add"), product, small)
        again = made.add_op(ops.Linear(), total, w)
        graph = convert_graph_to_half(made.build_graph("g", {"y": again}), half)  # type: ignore[arg-type]
        (added,) = (r for n, r in graph.nodes if isinstance(n.op, ops.Arith))
        assert added[0].type.dtype == wanted


@pytest.mark.parametrize(
    ("name", "observed"), [("patchtsmixer", [-1]), ("patchtst", [-1]), ("timesfm", [0, -1])]
)
def test_standardized_inputs_do_not_overflow(name: str, observed: list[int]) -> None:
    """The standard deviation of one observed value is 0; TimesFM computes it of the last patch."""
    found = elaborate_small(name)
    graph = convert_graph_to_half(pass_pipeline.simplify_graph(found.model.graph), "f16")
    inputs = make_random_inputs(graph, choose_dim_sizes(graph, 1), np.random.default_rng(3))
    inputs["past_values"] = np.float32(100) * inputs["past_values"]
    masks = {k: v for k, v in inputs.items() if v.dtype == bool}
    assert masks
    for key, mask in masks.items():
        inputs[key] = np.full_like(mask, "padding" in key)
        inputs[key][:, observed] = "padding" not in key
    largest = [0.0]

    def record_value(value: Value, array: np.ndarray) -> np.ndarray:
        if value.type.dtype == "f16":
            largest.append(float(np.abs(array).max(initial=0)))
        return array

    weights = sample_spec_weights(found)
    specc_numpy.evaluate_graph(graph, inputs, weights, result_hook=record_value)
    assert max(largest) < MAX_FINITE["f16"] / 100
