"""Mixtures of experts in the language: the result of each token is computed again expert by expert;
ONNX models run only selected experts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import assert_outputs_match, open_silent_session
from support.parameter_sweeps import sample_sweep

import specc
import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.ir_verifier import find_graph_errors
from specc.weights.formats.safetensors import write_safetensors
from specc_onnx import build_model, get_target

Array = NDArray[Any]
Arrays = dict[str, Array]
D, HIDDEN, OUT = 6, 10, 5

SPEC = """
specc 1
model experts
config {{ experts: int = 4  k: int = 2 }}
dims batch, n

block expert(x: float[batch, n, d], wide: int, out: int) -> float[batch, n, out] {{
  h = silu(linear(x, out=wide, bias=false) @ w1) * (linear(x, out=wide) @ w3)
  return linear(h, out=out) @ w2
}}

graph main(x: float[batch, n, 6], keep: keep[batch, n]) -> (y: float[batch, n, 5]) {{
  scores = linear(x, out=experts) @ gate
  {choose}
  return route(x, ids, gates, to=expert(wide=10, out=5), experts=experts{keep}) @ experts
}}
"""
SOFTMAX_LAST = "top, ids = topk(scores, k)\n  gates = softmax(top)"
SOFTMAX_FIRST = "gates, ids = topk(softmax(scores), k)"


def elaborate_text(
    directory: Path, choose: str = SOFTMAX_LAST, keep: str = ", keep=keep", **sets: int
) -> Graph:
    path = directory / "experts.specc"
    path.write_text(SPEC.format(choose=choose, keep=keep))
    given = [f"{name}={value}" for name, value in sets.items()]
    graph = elaborate_spec(open_spec(str(path), config_settings=given)).graph
    assert not find_graph_errors(graph)
    return graph


def sample_weights(graph: Graph, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=[d.evaluate({}) for d in facts.type.shape]).astype(np.float32)
        for name, facts in graph.parameter_facts.items()
    }


def sample_inputs(*shape: int, seed: int = 1) -> Arrays:
    rng = np.random.default_rng(seed)
    keep = rng.random(shape) < 0.7
    return {"x": rng.normal(size=(*shape, D)).astype(np.float32), "keep": keep}


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def compute_expert(w: Mapping[str, Array], e: int, row: Array) -> Array:
    """Return the MLP of one expert for one token."""
    inner = w["experts.w1.weight"][e] @ row
    inner = inner / (1 + np.exp(-inner))
    inner = inner * (w["experts.w3.weight"][e] @ row + w["experts.w3.bias"][e])
    return np.asarray(w["experts.w2.weight"][e] @ inner + w["experts.w2.bias"][e])


def compute_mixture(w: Mapping[str, Array], given: Arrays, k: int, last: bool) -> Array:
    """Return the result token by token; ties select the first expert."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    x = given["x"].astype(np.float64)
    y = np.zeros((*x.shape[:-1], OUT))
    for at in np.ndindex(*x.shape[:-1]):
        if not given["keep"][at]:
            continue
        scores = w["gate.weight"] @ x[at] + w["gate.bias"]
        chosen = np.argsort(-scores, kind="stable")[:k]
        gates = softmax(scores[chosen]) if last else softmax(scores)[chosen]
        for e, gate in zip(chosen, gates, strict=True):
            y[at] += gate * compute_expert(w, int(e), x[at])
    return y


def open_session(
    graph: Graph, w: Arrays, where: str = "ort-cpu", opset: int = 23
) -> onnx.ModelProto:
    built = build_model(graph, get_target(where), opset)
    for name, tensor in built.weights.items():
        tensor.raw_data = w[name].astype("<f4").tobytes()
    onnx.checker.check_model(built.model, full_check=True)
    return built.model


@pytest.mark.parametrize("last", [True, False], ids=["softmax last", "softmax first"])
@pytest.mark.parametrize(("experts", "k"), [(4, 2), (1, 1), (3, 3), (7, 1), (17, 3)])
def test_each_token_gets_the_result_of_its_experts(
    experts: int, k: int, last: bool, tmp_path: Path
) -> None:
    choose = SOFTMAX_LAST if last else SOFTMAX_FIRST
    graph = elaborate_text(tmp_path, choose, experts=experts, k=k)
    w, given = sample_weights(graph), sample_inputs(3, 5)
    wanted = compute_mixture(w, given, k, last)
    found = specc_numpy.evaluate_graph(graph, given, w)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)
    got = open_silent_session(open_session(graph, w)).run(None, given)
    assert_outputs_match({"y": wanted}, got)


FORMS = pytest.mark.parametrize("experts", [5, 20], ids=["one by one", "loop"])
"""Few experts are unrolled in the graph, many are a loop."""


@FORMS
@pytest.mark.parametrize("where", ["onnx", "ort-cpu"])
@pytest.mark.parametrize("opset", sample_sweep([17, 18, 20, 23, 24, 26]))
def test_onnx_agrees_at_every_opset_for_any_number_of_tokens(
    opset: int, where: str, experts: int, tmp_path: Path
) -> None:
    graph = elaborate_text(tmp_path, experts=experts)
    w = sample_weights(graph)
    model = open_session(graph, w, where, opset)
    domains = {n.domain for n in iterate_nodes(model.graph)}
    assert where != "onnx" or domains <= {""}
    kinds = {n.op_type for n in iterate_nodes(model.graph)}
    assert kinds & {"If", "Loop"} == {"If" if experts == 5 else "Loop"}
    session = open_silent_session(model)
    for shape in ((1, 1), (3, 5), (2, 0), (0, 4)):
        given = sample_inputs(*shape)
        assert_outputs_match({"y": compute_mixture(w, given, 2, True)}, session.run(None, given))


def iterate_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Yield the nodes of a graph and of its subgraphs."""
    found = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += iterate_nodes(attribute.g)
    return found


@FORMS
def test_every_token_alone_equals_itself_in_a_batch(experts: int, tmp_path: Path) -> None:
    graph = elaborate_text(tmp_path, experts=experts)
    w, given = sample_weights(graph), sample_inputs(2, 9)
    session = open_silent_session(open_session(graph, w))
    (whole,) = session.run(None, given)
    for b, t in np.ndindex(2, 9):
        row = {name: x[b : b + 1, t : t + 1] for name, x in given.items()}
        assert_outputs_match(
            {"y": whole[b : b + 1, t : t + 1].astype(float)}, session.run(None, row)
        )


@FORMS
@pytest.mark.parametrize("favourite", [0, 3])
def test_all_tokens_may_select_one_expert(favourite: int, experts: int, tmp_path: Path) -> None:
    graph = elaborate_text(tmp_path, k=1, experts=experts)
    w, given = sample_weights(graph), sample_inputs(2, 6)
    w["gate.bias"][favourite] += 1000
    assert_outputs_match(
        {"y": compute_mixture(w, given, 1, True)},
        open_silent_session(open_session(graph, w)).run(None, given),
    )


@FORMS
def test_ties_select_the_lowest_expert_index(experts: int, tmp_path: Path) -> None:
    graph = elaborate_text(tmp_path, experts=experts, k=2)
    w, given = sample_weights(graph), sample_inputs(2, 4)
    w["gate.weight"][:] = w["gate.weight"][0]
    w["gate.bias"][:] = 0
    w["gate.bias"][0] = -1  # the first other expert, then the second
    wrong = poison_experts(w, set(range(experts)) - {1, 2})
    wanted = compute_mixture(w, given, 2, True)
    assert_outputs_match(
        {"y": wanted}, open_silent_session(open_session(graph, wrong)).run(None, given)
    )
    found = specc_numpy.evaluate_graph(graph, given, wrong)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def poison_experts(w: Arrays, experts: set[int]) -> Arrays:
    """Return the weights, with NaN for some experts."""
    found = {name: x.copy() for name, x in w.items()}
    for name, x in found.items():
        if name.startswith("experts."):
            x[sorted(experts)] = np.nan
    return found


def test_unselected_experts_do_not_affect_results(tmp_path: Path) -> None:
    """Padded positions would select the expert with NaN."""
    graph = elaborate_text(tmp_path, experts=5)
    w, given = sample_weights(graph), sample_inputs(2, 6)
    w["gate.weight"][4] = 0
    w["gate.bias"][4] = -1000
    wrong = poison_experts(w, {4})
    model = open_session(graph, wrong)
    wanted = compute_mixture(w, given, 2, True)
    assert_outputs_match({"y": wanted}, open_silent_session(model).run(None, given))
    np.testing.assert_allclose(
        specc_numpy.evaluate_graph(graph, given, wrong)["y"], wanted, rtol=1e-11, atol=1e-12
    )
    # the same token, valid and padded
    w["gate.weight"][4, 0] = 100
    wrong = poison_experts(w, {4})
    given["x"][..., 0] = np.where(given["keep"], -50, 50)
    wanted = compute_mixture(w, given, 2, True)
    assert_outputs_match(
        {"y": wanted}, open_silent_session(open_session(graph, wrong)).run(None, given)
    )
    assert not wanted[~given["keep"]].any()


@pytest.mark.parametrize("experts", [16, 24])
def test_each_selected_expert_runs_once(experts: int, tmp_path: Path) -> None:
    graph = elaborate_text(tmp_path, experts=experts, k=2)
    w = sample_weights(graph)
    given = sample_inputs(1, 4)
    given["keep"][:] = [[True, False, True, False]]
    scores = given["x"] @ w["gate.weight"].T + w["gate.bias"]
    chosen = np.argsort(-scores, -1)[0, :, :2]
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.log_severity_level = True, 4
    options.intra_op_num_threads = 1
    options.profile_file_prefix = str(tmp_path / "profile")
    model = open_session(graph, w, "onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    session.run(None, given)
    events = json.loads(Path(session.end_profiling()).read_text())
    runs = [
        e["name"]
        for e in events
        if e["name"].startswith("experts/w2/") and e["name"].endswith("kernel_time")
    ]
    products = [name for name in runs if "Gemm" in name or "MatMul" in name]
    assert len(products) == len(np.unique(chosen[[0, 2]]))


def list_stack_readers(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that read the stacked weights of all experts in the main graph."""
    stacked = {t.name for t in model.graph.initializer if t.name.startswith("experts.")}
    assert len(stacked) == 5
    return [n for n in iterate_nodes(model.graph) if stacked & set(n.input)]


def test_no_value_has_the_size_of_tokens_times_experts(tmp_path: Path) -> None:
    """Only one expert's weights are sliced, inside the loop."""
    graph = elaborate_text(tmp_path, experts=24)
    model = open_session(graph, sample_weights(graph), "onnx")
    readers = list_stack_readers(model)
    assert [n.op_type for n in readers] == ["Gather"] * 5
    assert not any(n.name in {r.name for r in readers} for n in model.graph.node)


def test_unrolled_experts_run_only_if_selected(tmp_path: Path) -> None:
    """Outside conditional branches nothing multiplies by their weights."""
    graph = elaborate_text(tmp_path, experts=6)
    model = open_session(graph, sample_weights(graph), "onnx")
    assert [n.op_type for n in list_stack_readers(model)] == ["Split"] * 5
    products = [n for n in model.graph.node if n.op_type in ("Gemm", "MatMul")]
    assert len(products) == 1  # the router's weight
    assert len([n for n in iterate_nodes(model.graph) if n.op_type == "Gemm"]) == 1 + 6 * 3


def test_the_model_contains_the_expert_body_once(tmp_path: Path) -> None:
    few, many = (
        open_session(graph, sample_weights(graph), "onnx")
        for graph in (elaborate_text(tmp_path, experts=n) for n in (17, 64))
    )
    assert len(iterate_nodes(few.graph)) == len(iterate_nodes(many.graph))


def test_without_keep_every_token_is_routed(tmp_path: Path) -> None:
    graph = elaborate_text(tmp_path, keep="")
    w, given = sample_weights(graph), sample_inputs(2, 3)
    given["keep"][:] = True
    wanted = compute_mixture(w, given, 2, True)
    given["keep"][:] = False  # unused
    assert_outputs_match(
        {"y": wanted}, open_silent_session(open_session(graph, w)).run(None, given)
    )


LOADS = """
weights {
  load "experts.*.weight" = stack("experts.{e}.*.weight", e=experts)
  load "experts.*.bias" = stack("experts.{e}.*.bias", e=experts)
}
"""


def test_a_checkpoint_may_have_one_tensor_per_expert(tmp_path: Path) -> None:
    """More than ten, so that numeric and alphabetic order differ."""
    graph = elaborate_text(tmp_path, experts=12)
    w, given = sample_weights(graph), sample_inputs(2, 5)
    path = tmp_path / "experts.specc"
    path.write_text(path.read_text() + LOADS)
    apart = {n: x for n, x in w.items() if n.startswith("gate.")}
    for name, stacked in w.items():
        if name not in apart:
            leaf = name.removeprefix("experts.")
            apart |= {f"experts.{e}.{leaf}": x for e, x in enumerate(stacked)}
    write_safetensors(tmp_path / "w.safetensors", apart)
    out = tmp_path / "m.onnx"
    specc.compile(path, out, weights=tmp_path / "w.safetensors", set={"experts": 12, "k": 2})
    found = specc.load(out, threads=1).run(**given)
    assert_outputs_match({"y": compute_mixture(w, given, 2, True)}, [found["y"]])


YAML = """
specc: 1
model: experts

config:
  experts: {type: int, default: 4}
  k: {type: int, default: 2}

dims: [batch, n]

items:
  - block: expert
    in: {x: 'float[batch, n, d]', wide: int, out: int}
    out: float[batch, n, out]
    do:
      - h: silu(linear(x, out=wide, bias=false) @ w1) * (linear(x, out=wide) @ w3)
      - return: {linear: {in: h, out: out, weights: w2}}

  - graph: main
    in: {x: 'float[batch, n, 6]', keep: 'keep[batch, n]'}
    out: {y: 'float[batch, n, 5]'}
    do:
      - scores: {linear: {in: x, out: experts, weights: gate}}
      - top, ids: topk(scores, k)
      - gates: {softmax: {in: top}}
      - return:
          route:
            in: [x, ids, gates]
            to: expert(wide=10, out=5)
            experts: experts
            keep: keep
            weights: experts
"""


def test_yaml_gives_the_same_graph(tmp_path: Path) -> None:
    path = tmp_path / "experts.yaml"
    path.write_text(YAML)
    assert format_ir(elaborate_spec(open_spec(str(path))).graph) == format_ir(
        elaborate_text(tmp_path)
    )


def test_ir_text_preserves_experts(tmp_path: Path) -> None:
    graph = elaborate_text(tmp_path)
    (again,) = parse_ir(format_ir(graph)).values()
    assert format_ir(again) == format_ir(graph)
    assert not find_graph_errors(again)
    w, given = sample_weights(graph), sample_inputs(2, 3)
    one, other = (specc_numpy.evaluate_graph(g, given, w)["y"] for g in (graph, again))
    assert np.array_equal(one, other)


def test_experts_are_one_op_with_equal_initial_weights(tmp_path: Path) -> None:
    graph = elaborate_text(tmp_path, experts=3)
    (node,) = (n for n, _ in graph.nodes if isinstance(n.op, ops.MixtureOfExperts))
    assert node.op.get_attributes()["stacked_count"] == 5
    initial = {n: f.initializer for n, f in graph.parameter_facts.items()}
    assert initial["experts.w1.weight"] == "fan_in_each(1.0)"
    assert initial["experts.w2.bias"] == "zeros"
    assert initial["gate.weight"] == "fan_in(1.0)"
