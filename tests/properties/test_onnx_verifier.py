"""The ONNX verifier: inferred shapes are correct, every value is inferred, and changed numbers are
detected.

Mutants of every built-in spec for both CPU targets at four opsets, and of every graph of its
package: `score`, `encode`, `step`, a step with KV buffers, and the standalone generator with each
strategy. The verifier must detect every mutant that changes the length of an output, and at least
95 % of the others. Undetected mutants are listed here with the reason.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product

import numpy as np
import onnx
import pytest
from support.derived_graphs import derive_encoder_and_step
from support.elaborated_specs import elaborate_with_config
from support.onnx_sessions import open_silent_session
from support.package_graphs import PARTS, build_package_graph
from support.parameter_sweeps import sample_sweep
from support.shape_mutants import (
    ShapeMutation,
    find_changed_types,
    iterate_shape_mutations,
    strip_declared_types,
)
from support.small_configs import SMALL_CONFIGS

from specc.ir.model_definition import ModelDefinition
from specc.runtime.random_inputs import make_random_inputs
from specc_onnx import OnnxBuildResult, build_model, get_target
from specc_onnx.lower.subgraphs import iterate_node_subgraphs
from specc_onnx.write.onnx_value_types import (
    InferredTypes,
    InvalidModelError,
    has_unknown_length,
    read_shape,
)
from specc_onnx.write.onnx_verifier import (
    check_value_types,
    convert_weights_to_inputs,
    infer_onnx_value_types,
    verify_model_statically,
)

TARGETS = ("onnx", "ort-cpu")
OPSETS = (17, 20, 23, 26)
FEW = [
    ("gpt2", "ort-cpu", 23),
    ("rnnsearch", "onnx", 17),
    ("vit", "onnx", 20),
    ("lstm_lm", "ort-cpu", 26),
]
ALL = list(product(SMALL_CONFIGS, TARGETS, OPSETS))
UNSEEN = {
    "ReduceMax": "as of `ReduceSum`",
    "TopK": "as many as data decides: so are those along another axis",
    "Max": "a length that may be 0 is raised to 1 for a kernel, and what was added is "
    "cut off again",
    "Concat": "as above: the padding that stands in for no rows, or for the token that is "
    "seen by none; or rows before the first turn, as many as data decides are written",
    "Slice": "rows that a later comparison broadcasts, or of which none is left; "
    "or that a carry of a length of its own collects",
    "ReduceSum": "counts along another axis broadcast to the same shape",
    "Transpose": "rows of which a step reads the last alone",
    "Unsqueeze": "an axis of length 1 beside another: both broadcast to the same shape",
    "Expand": "broadcast again by what follows",
    "GatherND": "one row is read for all",
    "Shape": "a length that is only compared",
}
"""Operators whose mutants may be undetected because all shapes stay correct. `verify` compares
values.
"""


@cache
def build_spec_model(spec: str) -> ModelDefinition:
    return elaborate_with_config(
        spec, **{key.replace(".", "__"): value for key, value in SMALL_CONFIGS[spec].items()}
    ).model


def built(spec: str, where: str, opset: int) -> OnnxBuildResult:
    return build_model(build_spec_model(spec).graph, get_target(where), opset)


def infer_types(one: OnnxBuildResult) -> InferredTypes:
    """Return the types that the verifier infers from the nodes alone, without declared types."""
    model = convert_weights_to_inputs(one)
    env = check_value_types(one, model).lengths
    told = {name: env[symbol] for symbol, name in one.length_inputs.items() if symbol in env}
    return infer_onnx_value_types(strip_declared_types(model), env, told)


def run_all_values(
    one: OnnxBuildResult, found: InferredTypes
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return every value of the main graph, computed by ONNX Runtime from inputs of equal lengths."""
    model = strip_declared_types(convert_weights_to_inputs(one))
    graph = one.graph
    rng = np.random.default_rng(0)
    inputs = make_random_inputs(
        graph, {s: n for s, n in found.lengths.items() if s not in graph.length_equations}, rng
    )
    for tensor in one.weights.values():
        inputs[tensor.name] = rng.normal(size=list(tensor.dims)).astype("f4")
    names = [n for node in model.graph.node for n in node.output if n]
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in one.types)
    options = [o.name for o in model.graph.output]
    for name, made in zip(options, open_silent_session(model).run(options, inputs), strict=True):
        yield name, made.shape


@pytest.mark.parametrize(("spec", "where", "opset"), FEW)
def test_inferred_shapes_equal_those_of_onnx_runtime(spec: str, where: str, opset: int) -> None:
    one = built(spec, where, opset)
    found = infer_types(one)
    seen = dict(run_all_values(one, found))
    assert {n: read_shape(found.types[n]) for n in seen} == seen


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "where", "opset"), ALL)
def test_every_value_of_every_spec_is_inferred_correctly(spec: str, where: str, opset: int) -> None:
    one = built(spec, where, opset)
    found = infer_types(one)
    data = list_data_dependent_values(one.model.graph, found)
    unknown = [n for n, type in found.types.items() if has_unknown_length(type) and n not in data]
    assert unknown == []
    seen = dict(run_all_values(one, found))
    known_ones = {n: read_shape(found.types[n]) for n in seen if n not in data}
    assert known_ones == {n: s for n, s in seen.items() if n not in data}


def list_data_dependent_values(
    graph: onnx.GraphProto, found: InferredTypes, outside: frozenset[str] = frozenset()
) -> set[str]:
    """Return values with data-dependent lengths: the number of positions of a mask, and values
    computed from them where that number matters.
    """
    names = set(outside)
    for node in graph.node:
        told = node.op_type != "If" or node.input[0] in found.constants
        for body in iterate_node_subgraphs(node):
            deep = list_data_dependent_values(body, found, frozenset(names))
            names |= deep if told else deep | iterate_values(body)
        ends = {o.name for body in iterate_node_subgraphs(node) for o in body.output}
        if not told or node.op_type == "NonZero" or names & {*node.input, *ends}:
            names |= {n for n in node.output if n and has_unknown_length(found.types[n])}
    return names


def iterate_values(graph: onnx.GraphProto) -> set[str]:
    """Yield every value of a graph and of its subgraphs."""
    names = {n for node in graph.node for n in node.output}
    return names.union(
        *(iterate_values(b) for node in graph.node for b in iterate_node_subgraphs(node))
    )


@pytest.mark.parametrize("spec", ["gpt2", "rnnsearch"])
def test_every_value_of_a_step_is_inferred(spec: str) -> None:
    model = build_spec_model(spec)
    assert model.generation
    derived_graphs = derive_encoder_and_step(
        model.graph, model.generation.sequence_input, {model.generation.logits_output: "newest"}
    )
    found = infer_types(build_model(derived_graphs.step, get_target("ort-cpu")))
    assert [n for n, type in found.types.items() if has_unknown_length(type)] == []


def is_detected(one: OnnxBuildResult, mutant: onnx.ModelProto) -> bool:
    """Return True if the verifier rejects a model."""
    try:
        verify_model_statically(one, mutant)
    except InvalidModelError:
        return True
    return False


def count_undetected_mutants(
    one: OnnxBuildResult, seed: str, tries: int
) -> tuple[int, list[tuple[ShapeMutation, list[str]]]]:
    """Return the number of mutants with an effect, and the undetected ones with the values that
    changed. All mutants of outputs are tried.
    """
    model, before = convert_weights_to_inputs(one), infer_types(one)
    results, others = [], []
    for mutation in iterate_shape_mutations(model):
        (results if mutation.kind == "declared output" and mutation.graph == 0 else others).append(
            mutation
        )
    chosen = random.Random(seed).sample(others, min(tries, len(others)))
    count, unseen = 0, []
    for mutation in (*results, *chosen):
        mutant = mutation.apply(model)
        changed = (
            [mutation.kind]
            if mutation.kind.startswith("declared")
            else find_changed_types(mutant, before)
        )
        if changed:
            count += 1
            unseen += [] if is_detected(one, mutant) else [(mutation, changed)]
    return count, unseen


def assert_mutants_detected(
    count: int, unseen: list[tuple[ShapeMutation, list[str]]], results: set[str]
) -> None:
    """Assert that 95 % are detected, and all that change an output."""
    assert len(unseen) <= 0.05 * count, (
        f"{len(unseen)} of {count}: {Counter(m.kind for m, _ in unseen)}"
    )
    assert not [m for m, changed in unseen if results & set(changed) or m.kind == "declared output"]


def describe_undetected(unseen: list[tuple[ShapeMutation, list[str]]]) -> str:
    """Return the undetected mutants by operator, with the reason if it is known."""
    counts = Counter(m.kind.split()[0].split(".")[0] for m, _ in unseen)
    return "; ".join(
        f"{n} {kind}: {UNSEEN.get(kind, 'no reason known')}" for kind, n in counts.items()
    )


@pytest.mark.parametrize(("spec", "where", "opset"), sample_sweep(FEW))
def test_mutants_are_detected(spec: str, where: str, opset: int) -> None:
    one = built(spec, where, opset)
    count, unseen = count_undetected_mutants(one, f"{spec} {where} {opset}", 100)
    assert_mutants_detected(count, unseen, set(build_spec_model(spec).graph.outputs))
    assert "no reason" not in describe_undetected(unseen)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SMALL_CONFIGS)
def test_many_mutants_are_detected(
    spec: str, record_property: Callable[[str, object], None]
) -> None:
    total, unseen = 0, []
    for where, opset in product(TARGETS, OPSETS):
        one = built(spec, where, opset)
        count, missed = count_undetected_mutants(one, f"{spec} {where} {opset}", 60)
        total, unseen = total + count, unseen + missed
    record_property(f"{spec}: not found of {total}", describe_undetected(unseen))
    assert_mutants_detected(total, unseen, set(build_spec_model(spec).graph.outputs))


IN_PACKAGES = (
    ("gpt2", "buffers", "ort-cpu", 23),
    ("rnnsearch", "encode", "onnx", 20),
    ("seq2seq", "step", "ort-cpu", 26),
    ("lstm_lm", "greedy", "onnx", 23),
)


def count_undetected_in_package(
    spec: str, part: str, where: str, opset: int, tries: int
) -> tuple[int, list[tuple[ShapeMutation, list[str]]]]:
    """Run `count_undetected_mutants` on one graph of a package; nothing if the spec does not have it."""
    if part == "sample" and opset < 18:  # sampling needs `BitwiseXor`
        return 0, []
    one = build_package_graph(build_spec_model(spec), part, where, opset)
    if one is None:
        return 0, []
    count, unseen = count_undetected_mutants(one, f"{spec} {part} {where} {opset}", tries)
    results = {o.name for o in one.model.graph.output}
    assert not [m for m, changed in unseen if results & set(changed)]
    return count, unseen


@pytest.mark.parity
def test_mutants_of_packages_are_detected() -> None:
    total, unseen = 0, []
    for spec, part, where, opset in IN_PACKAGES:
        count, missed = count_undetected_in_package(spec, part, where, opset, 25)
        assert count > 15, f"{spec} {part}: {count} mutants"
        total, unseen = total + count, unseen + missed
    assert_mutants_detected(total, unseen, set())
    assert "no reason" not in describe_undetected(unseen)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SMALL_CONFIGS)
def test_many_mutants_of_packages_are_detected(
    spec: str, record_property: Callable[[str, object], None]
) -> None:
    if build_spec_model(spec).generation is None:
        return
    total, unseen = 0, []
    forms = (("onnx", 17), ("onnx", 23), ("ort-cpu", 20), ("ort-cpu", 26))
    for part, (where, opset) in product(PARTS, forms):
        count, missed = count_undetected_in_package(spec, part, where, opset, 30)
        total, unseen = total + count, unseen + missed
    record_property(f"{spec}: not found of {total}", describe_undetected(unseen))
    assert_mutants_detected(total, unseen, set())


@pytest.mark.parity
def test_the_verifier_works_without_asserts() -> None:
    """Under `python -O`, which removes all `assert` statements."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1].split(chr(58));"
        "from test_onnx_verifier import built, count_undetected_mutants;"
        "count, unseen = count_undetected_mutants(built('feedforward', 'onnx', 23), '', 40);"
        "sys.exit(f'{len(unseen)} of {count} pass' if unseen or count < 20 or __debug__ else 0)"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-O", "-c", program, path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
