"""`until all(done)` ends a loop early without an effect: results equal those of all iterations, bit
for bit, and those of each batch element alone.

Random specs vary carries, conditions, and dependence on other batch elements.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.verification_lines import list_model_lines

import specc
import specc_numpy
import specc_numpy.loop
from specc.analysis.batch_independence import check_batch_independence
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.loop_bodies_and_early_exit import EarlyExit
from specc.ir import ops
from specc.ir.graph import Graph, GraphBuilder, Value
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import format_ir
from specc.transforms.pass_pipeline import simplify_graph

SPEC = """specc 1
model halting
dims batch, n, k

graph g(x: float[batch, n, 4], steps: float[k, 4], keep: keep[batch, n]) -> (h: float[batch, n, 4], turns: int[batch{of}], seen: float[{where}]) {{
  h = x
  done = {start}
  turns = cast(done, to=int) * 0
  scan s in {over} carry h, done, turns collect seen{reverse} until all(done) {{
    h = {body}
    turns = turns + 1
    done = {stop}
    seen = h
  }}
  return h, turns, seen
}}
"""
MOST = 7
ATTENDED = "attention(h, heads=2, mask=visible(keep)) @ look"
BODIES = (
    "tanh(linear(h, out=4) @ one) + {row}",
    "h + 0.5 * (linear(h, out=4) @ one) * {row}",
    f"h + ({ATTENDED}) + {{row}}",
    "cumsum(h, axis=1) * 0.3 + {row}",
)


def make_random_spec(seed: int) -> tuple[str, bool]:
    """Return a spec, and whether batch elements are done as a whole."""
    rng = random.Random(seed)
    whole, along = rng.random() < 0.4, rng.random() < 0.5
    far = rng.choice([0.8, 1.5])
    stop = f"max(h, axis=2) > {far}"
    start = "not keep"
    if whole:
        stop, start = f"every({stop} | not keep, axis=1)", "every(not keep, axis=1)"
    row = "s" if along else "0.1 * float(s)"
    text = SPEC.format(
        of="" if whole else ", n",
        where="k, batch, n, 4" if along else f"{MOST}, batch, n, 4",
        start=start,
        over="steps along k" if along else MOST,
        reverse=" reverse" if rng.random() < 0.3 else "",
        body=rng.choice(BODIES).format(row=row),
        stop=stop,
    )
    return text, whole


def elaborate_text(directory: Path, seed: int) -> tuple[Graph, str]:
    path = directory / f"m{seed}.specc"
    path.write_text(make_random_spec(seed)[0], encoding="utf-8")
    return elaborate_spec(open_spec(str(path))).graph, str(path)


def sample_inputs(seed: int, graph: Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs with some padded positions, and weights."""
    rng = np.random.default_rng(seed)
    keep = rng.random((3, 5)) < 0.8
    x = rng.normal(size=(3, 5, 4)).astype("f").astype(float)
    steps = rng.normal(size=(MOST, 4)).astype("f").astype(float)
    weights = {
        n: rng.normal(size=[d.number for d in f.type.shape]).astype("f").astype(float)
        for n, f in graph.parameter_facts.items()
    }
    return {"x": x, "steps": steps, "keep": keep}, weights


def run_all_iterations(graph: Graph) -> Graph:
    """Return the graph with loops that run all iterations."""
    b, now = GraphBuilder(), dict[Value, Value]()
    for name, value in graph.inputs.items():
        now[value] = b.add_input(name, graph.input_facts[name])
    for name, value in graph.parameters.items():
        now[value] = b.add_parameter(graph.parameter_facts[name])
    for node, results in graph.nodes:
        op = replace(node.op, end_condition_index=-1) if isinstance(node.op, ops.Scan) else node.op
        made = b.add_node(op, *(a and now[a] for a in node.args))
        now.update(zip(results, made, strict=True))
    return b.build_graph(graph.name, {n: now[v] for n, v in graph.outputs.items()})


def select_batch_element(inputs: dict[str, Any], n: int) -> dict[str, Any]:
    return {k: v if k == "steps" else v[n : n + 1] for k, v in inputs.items()}


def find_failure(directory: Path, seed: int) -> str:
    """Return an error of one random spec; "" if there is none."""
    graph, _ = elaborate_text(directory, seed)
    inputs, weights = sample_inputs(seed, graph)
    made = specc_numpy.evaluate_graph(graph, inputs, weights)
    whole = specc_numpy.evaluate_graph(run_all_iterations(graph), inputs, weights)
    rewritten = specc_numpy.evaluate_graph(simplify_graph(graph), inputs, weights)
    alone = [
        specc_numpy.evaluate_graph(graph, select_batch_element(inputs, n), weights)
        for n in range(3)
    ]
    for name, value in made.items():
        axis = 1 if name == "seen" else 0
        apart = np.concatenate([a[name] for a in alone], axis=axis)
        if not np.array_equal(value, whole[name]):
            return f"{seed}: {name} differs from a loop to the end"
        if not np.allclose(value, apart, rtol=1e-12, atol=1e-12):
            return f"{seed}: {name} depends on other rows"
        if not np.allclose(value, rewritten[name], rtol=1e-12, atol=1e-12):
            return f"{seed}: {name} differs when simplified"
    return "" if not check_batch_independence(graph, "batch") else f"{seed}: said to mix"


def test_early_exit_changes_no_result(tmp_path: Path) -> None:
    assert not [found for seed in range(40) if (found := find_failure(tmp_path, seed))]


def test_changes_after_done_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted mistake: carries change after done. Both the proof and the values detect it."""
    monkeypatch.setattr(
        EarlyExit, "freeze_finished_carries", lambda self, context, before, after: after
    )
    assert all(check_batch_independence(elaborate_text(tmp_path, s)[0], "batch") for s in range(8))
    faults = [find_failure(tmp_path, seed) for seed in range(8)]
    assert sum("depends" in f or "to the end" in f for f in faults) > 3


def test_a_loop_runs_until_all_positions_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if padded positions would iterate forever, and if there are no valid positions."""
    walked = specc_numpy.loop.evaluate_nodes
    turns: list[int] = []

    def counted(*args: Any) -> Any:
        turns.append(1)
        return walked(*args)

    monkeypatch.setattr(specc_numpy.loop, "evaluate_nodes", counted)
    early = 0
    for seed in range(20):
        graph, _ = elaborate_text(tmp_path, seed)
        inputs, weights = sample_inputs(seed, graph)
        turns.clear()
        made = specc_numpy.evaluate_graph(graph, inputs, weights)["turns"]
        assert len(turns) == made.max(), seed
        early += len(turns) < MOST
        turns.clear()
        inputs["keep"] = np.zeros_like(inputs["keep"])
        assert not specc_numpy.evaluate_graph(graph, inputs, weights)["turns"].any()
        assert not turns
    assert early > 5


@pytest.mark.parametrize("seed", range(6))
def test_compiled_models_exit_early_with_equal_results(seed: int, tmp_path: Path) -> None:
    """Padded, alone, with batch size 0, and without valid positions."""
    graph, path = elaborate_text(tmp_path, seed)
    inputs, _ = sample_inputs(seed, graph)
    opset = (17, 18, 20, 21, 23, 26)[seed]
    specc.compile(path, tmp_path / "m.onnx", init=seed, opset=opset)
    model = specc.load(tmp_path / "m.onnx")
    assert list(list_model_lines(model.selected_model, rounds=2))
    for case in (
        inputs,
        select_batch_element(inputs, 1),
        {**inputs, "keep": np.zeros_like(inputs["keep"])},
        {k: v if k == "steps" else v[:0] for k, v in inputs.items()},
    ):
        said = {n: v.astype("f") if v.dtype == float else v for n, v in case.items()}
        said = {n: v for n, v in said.items() if n in graph.inputs}
        found = model.run(**said)
        assert found["seen"].shape[1:3] == case["keep"].shape


def test_ir_text_preserves_early_exit_and_older_text_has_none(tmp_path: Path) -> None:
    graph, _ = elaborate_text(tmp_path, 0)
    text = format_ir(graph)
    assert "end_condition_index=1" in text
    assert format_ir(*parse_ir(text).values()) == text
    older = format_ir(run_all_iterations(graph)).replace(", end_condition_index=-1", "")
    assert "end_condition_index" not in older
    assert format_ir(*parse_ir(older).values()) == format_ir(run_all_iterations(graph))
