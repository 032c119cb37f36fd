"""Recurrent layers as `scan` loops: results, parameter names, padding, and carried (nested) lists."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.verification_lines import list_model_lines

import specc
import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.ir_verifier import find_graph_errors

SPEC = """
specc 1
model cells
config {{ hidden: int = 4  layers: int = 2  way: choice(forward | backward | both) = both }}
dims batch, n
graph f(x: float[batch, n, 3], keep: keep[batch, n] right) -> {results} {{
  return {call} @ layers
}}
"""
TWO = "(out: float[batch, n, _], last: float[batch, _, hidden])"
THREE = "(out: float[batch, n, _], last: float[batch, _, hidden], cell: float[batch, _, hidden])"


def written(directory: Path, call: str, results: str = TWO) -> str:
    path = directory / "cells.specc"
    path.write_text(SPEC.format(call=call, results=results))
    return str(path)


def numbers(graph: Graph) -> dict[str, NDArray[Any]]:
    """Return random weights that do not depend on the order of the parameters."""
    made = {}
    for name, facts in sorted(graph.parameter_facts.items()):
        made[name] = np.random.default_rng(len(made)).normal(
            size=[d.evaluate({}) for d in facts.type.shape]
        )
    return made


def run(graph: Graph, x: NDArray[Any], lengths: list[int]) -> dict[str, NDArray[Any]]:
    keep = np.arange(x.shape[1]) < np.array(lengths)[:, None]
    return specc_numpy.evaluate_graph(graph, {"x": x, "keep": keep}, numbers(graph))


WORDS = {
    "rnn": ("rnn(x, hidden=hidden, direction=way, layers=layers, keep=keep)", TWO),
    "gru": ("gru(x, hidden=hidden, reset=before, direction=way, layers=layers, keep=keep)", TWO),
    "lstm": ("lstm(x, hidden=hidden, direction=way, layers=layers, keep=keep)", THREE),
}
CELLS = {"rnn": "rnn_cell", "gru": "gru_cell(reset=before, update=old)"}
LOOPS = {
    f"{k} cell": (f"recurrent(x, {cell}, hidden, way, layers, keep)", TWO)
    for k, cell in CELLS.items()
}
CALLS = {**WORDS, **LOOPS}


@pytest.mark.parametrize("call", CALLS)
def test_layers_for_all_sizes_counts_and_directions(call: str, tmp_path: Path) -> None:
    checked = check_spec(open_spec(written(tmp_path, *CALLS[call])))
    tried = {(k, v) for t in checked.trials for k, v in t.trial_values.items()}
    assert {("way", "forward"), ("way", "backward"), ("layers", "1")} <= tried
    assert checked.model is not None
    assert find_graph_errors(checked.model.graph) == []
    loops = sum(isinstance(n.op, ops.Scan) for n, _ in checked.model.graph.nodes)
    assert loops == (4 if call in LOOPS else 0)


@pytest.mark.parametrize("call", CALLS)
def test_padding_does_not_change_results(call: str, tmp_path: Path) -> None:
    graph = elaborate_spec(open_spec(written(tmp_path, *CALLS[call]))).graph
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    together = run(graph, x, [6, 4])
    alone = run(graph, x[1:, :4], [4])
    np.testing.assert_allclose(together["out"][1, :4], alone["out"][0], rtol=1e-12)
    np.testing.assert_allclose(together["last"][1], alone["last"][0], rtol=1e-12)
    assert not together["out"][1, 4:].any()


@pytest.mark.parametrize("cell", CELLS)
def test_loop_over_cell_equals_builtin_layers(cell: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 5, 3))
    found = [
        run(elaborate_spec(open_spec(written(tmp_path, *calls[name]))).graph, x, [5, 1, 3])
        for calls, name in ((WORDS, cell), (LOOPS, f"{cell} cell"))
    ]
    for name, expected in found[0].items():
        np.testing.assert_allclose(found[1][name], expected, rtol=1e-11, atol=1e-13)


def test_weight_names_match_pytorch(tmp_path: Path) -> None:
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    expected = {
        f"layers.{k}_l{n}{side}" for k in kinds for n in (0, 1) for side in ("", "_reverse")
    }
    for calls, name in ((WORDS, "gru"), (LOOPS, "gru cell")):
        graph = elaborate_spec(open_spec(written(tmp_path, *calls[name]))).graph
        assert set(graph.parameters) == expected
        assert str(graph.parameter_facts["layers.weight_ih_l1_reverse"].type) == "f32[12, 8]"


def test_gru_requires_reset_option(tmp_path: Path) -> None:
    with pytest.raises(SpeccError) as failed:
        elaborate_spec(open_spec(written(tmp_path, "gru(x, hidden=hidden)")))
    assert failed.value.diagnostics[0].code == "E0211"


def test_loop_without_keep_reads_all_positions(tmp_path: Path) -> None:
    graph = elaborate_spec(open_spec(written(tmp_path, "rnn(x, hidden=hidden)"))).graph
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    np.testing.assert_array_equal(run(graph, x, [6, 1])["out"], run(graph, x, [6, 6])["out"])


def test_loop_starts_from_initial_carry(tmp_path: Path) -> None:
    call = "rnn(x, hidden=hidden, start=ones(shape=[batch, 1, hidden]))"
    graph = elaborate_spec(open_spec(written(tmp_path, call))).graph
    drawn = numbers(graph)
    w, u, b, c = (drawn[f"layers.{n}_l0"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    x = np.random.default_rng(0).normal(size=(2, 1, 3))
    expected = np.tanh(x[:, 0] @ w.T + b + u.sum(axis=1) + c)
    np.testing.assert_allclose(run(graph, x, [1, 1])["last"][:, 0], expected, rtol=1e-12)


STACK = """specc 1
model stack
config { d: int = 4  layers: int = 3 }
dims batch, n
graph g(x: float[batch, n, d]) -> (y: float[batch, n, d], top: float[batch, d]) {
  states = [zeros(shape=[batch, d]) for k in layers]
  scan row in x along n carry states collect y {
    y = row
    repeat k in layers collect after {
      y = rnn_cell(y, states[k], names=["w{k}", "u{k}", "b{k}", "c{k}"]) @ cell
      after = y
    }
    states = after
  }
  return y, states[layers - 1]
}
"""


def test_several_layers_in_one_loop(tmp_path: Path) -> None:
    path = tmp_path / "stack.specc"
    path.write_text(STACK, encoding="utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    rng = np.random.default_rng(0)
    w = {
        k: rng.normal(size=[d.number or 0 for d in v.type.shape])
        for k, v in graph.parameters.items()
    }
    x = rng.normal(size=(2, 5, 4))
    states = [np.zeros((2, 4))] * 3
    want = []
    for t in range(5):
        y = x[:, t]
        for k in range(3):
            made = (
                y @ w[f"cell.w{k}"].T
                + w[f"cell.b{k}"]
                + states[k] @ w[f"cell.u{k}"].T
                + w[f"cell.c{k}"]
            )
            y = states[k] = np.tanh(made)
        want.append(y)
    found = specc_numpy.evaluate_graph(graph, {"x": x}, w)
    np.testing.assert_allclose(found["y"], np.stack(want, axis=1), atol=1e-12)
    np.testing.assert_allclose(found["top"], want[-1], atol=1e-12)
    specc.compile(path, tmp_path / "stack.onnx", init=0)
    assert list(list_model_lines(specc.load(tmp_path / "stack.onnx").selected_model))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("states = [row]", "a list of 1"),
        ("states = row", "float"),
        ("states = [row, row[:, 0:2]]", r"states\[1\].*changes"),
        ("y = row", r"states\[0\].*does not assign"),
    ],
)
def test_carried_list_keeps_its_structure(body: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.specc"
    path.write_text(
        "specc 1 model bad dims batch, n graph g(x: float[batch, n, 4]) -> (y: "
        "float[batch, n, 4]) {"
        " states = [zeros(shape=[batch, 4]) for k in 2]"
        f" scan row in x along n carry states collect y {{ y = row {body} }} return y }}",
        encoding="utf-8",
    )
    with pytest.raises(specc.SpeccError, match="E0305") as failed:
        specc.check(path)
    assert re.search(said, failed.value.diagnostics[0].title)
