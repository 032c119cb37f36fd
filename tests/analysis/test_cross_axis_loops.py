"""Loops along another axis in decode steps: their bodies do not depend on the number of
positions."""

from pathlib import Path

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step
from support.op_examples import make_sequence_conv

from specc.analysis.causality import check_causality
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.types import Type

SPEC = """specc 1
model m
dims batch, src >= 1, seq, wide
graph lm(x: float[batch, seq, 4], memory: float[batch, src, {wide}]) -> (y: float[batch, seq, 4]) {{
  y = x
  scan row in memory along src carry y {{
    {body}
  }}
  return y
}}
generate text of x from y {{ stop = 0 }}
"""
AT = "float(positions(y))"
WAVES = "insert(sinusoid(positions(y), dim=4, layout=halves), axis=0)"
CELL = "insert(insert(cell, axis=1), axis=2)"


def elaborate_body(directory: Path, body: str) -> Graph:
    body = body.replace("{ ", "{\n").replace(" }", "\n}")
    text = SPEC.format(body=body, wide="wide" if "wide" in body else "4")
    (directory / "m.specc").write_text(text, encoding="utf-8")
    return elaborate_spec(open_spec(str(directory / "m.specc"))).graph


@pytest.mark.parametrize(
    ("body", "by_hand"),
    [
        (f"y = tanh(y + insert(row, axis=1) * insert({AT}, axis=1))", lambda y, r, i: np.tanh(y + r * i)),
        (
            f"y = y * insert(row, axis=1) + {WAVES} * insert({AT}, axis=1)",
            lambda y, r, i: y * r + compute_sinusoid(i) * i,
        ),
        (
            f"scan cell in row along wide carry y {{ y = 0.5 * y + {CELL} * "
            f"insert({AT}, axis=1) }}",
            lambda y, r, i: run_nested_loop(y, r, i),
        ),
    ],
    ids=["tanh", "sinusoid", "nested"],
)  # fmt: skip
def test_position_ids_continue_across_steps(body: str, by_hand: object, tmp_path: Path) -> None:
    graph = elaborate_body(tmp_path, body)
    assert find_graph_errors(graph) == []
    assert check_causality(graph, "seq", "x", ["y"]) == []
    rng = np.random.default_rng(0)
    x, memory = rng.normal(size=(2, 6, 4)), rng.normal(size=(2, 3, 4))
    wanted = x
    for n in range(3):
        wanted = by_hand(wanted, memory[:, n : n + 1], np.arange(6.0)[None, :, None])  # type: ignore[operator]
    derived_graphs = derive_encoder_and_step(graph, "x", {"y": "new"})
    for plan in ([6], [1] * 6, [2, 3, 1]):
        made = [
            r["y"] for r in run_steps(derived_graphs, graph, {"x": x, "memory": memory}, {}, plan)
        ]
        np.testing.assert_allclose(np.concatenate(made, axis=1), wanted, rtol=1e-12)


def compute_sinusoid(i: np.ndarray) -> np.ndarray:
    angles = i * 10000.0 ** (-np.arange(2) / 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def run_nested_loop(y: np.ndarray, row: np.ndarray, i: np.ndarray) -> np.ndarray:
    for n in range(4):
        y = 0.5 * y + row[:, :, n : n + 1] * i
    return y


class LoopBody:
    """A hand-built loop over `src` that carries `y: f64[batch, seq, 3]`."""

    def __init__(self) -> None:
        self.type = Type.of("f64", Dim.symbol("batch"), Dim.symbol("seq"), 3)
        self.inner = GraphBuilder()
        self.row = self.inner.add_input("row", Input(Type.of("f64", Dim.symbol("batch"), 3)))
        self.carry = self.inner.add_input("y", Input(self.type))

    def scan(self, after: Value) -> Graph:
        """Return the graph of the loop over `memory`."""
        outer = GraphBuilder()
        x = outer.add_input("x", Input(self.type))
        memory = outer.add_input(
            "memory", Input(Type.of("f64", Dim.symbol("batch"), Dim.symbol("src"), 3))
        )
        op = ops.Scan(self.inner.build_graph("body", {"y": after}), 1, 1, 1)
        return outer.build_graph("g", {"y": outer.add_op(op, memory, x)})

    def faults(self, after: Value) -> list[str]:
        """Return the causality errors."""
        return [
            f"{d.code} {d.title.partition(': ')[2]}"
            for d in check_causality(self.scan(after), "seq", "x", ["y"])
        ]


def test_position_ids_inside_a_body() -> None:
    body = LoopBody()
    at = body.inner.add_op(ops.Cast("f64"), body.inner.add_op(ops.Extent(1), body.carry))
    after = body.inner.add_op(ops.Arith("add"), body.carry, body.inner.add_op(ops.Insert(1), at))
    why = "position ids are computed inside this loop and would restart in every step"
    assert body.faults(after) == [f"E0717 {why}"]
    (fault,) = find_graph_errors(body.scan(after))
    assert "the body of a loop computes position indices" in fault


def test_compensated_lookahead_inside_a_body() -> None:
    """Each result position depends on its own position only, but the intermediate position does not
    exist yet."""
    body = LoopBody()
    weight = body.inner.add_input("w", Input(Type.of("f64", 3, 3, 2)))
    ahead = body.inner.add_op(make_sequence_conv(2, 1, 1), body.carry, weight, None)
    after = body.inner.add_op(ops.Delay(1, 1, 0.0), ahead)
    outer = GraphBuilder()
    given = [outer.add_input(n, f) for n, f in body.inner.input_facts.items() if n != "row"]
    memory = outer.add_input(
        "memory", Input(Type.of("f64", Dim.symbol("batch"), Dim.symbol("src"), 3))
    )
    op = ops.Scan(body.inner.build_graph("body", {"y": after}), 1, 1, 1)
    graph = outer.build_graph("g", {"y": outer.add_op(op, memory, *given)})
    assert [d.code for d in check_causality(graph, "seq", "y", ["y"])] == ["E0711"]


def test_time_axis_created_inside_a_body() -> None:
    """The body sums one copy of a value per position: it depends on the final length, although no
    operand has the axis."""
    inner = GraphBuilder()
    row, carry = (
        inner.add_input(n, Input(Type.of("f64", Dim.symbol("batch"), 3))) for n in ("row", "h")
    )
    copies = inner.add_op(ops.Expand(1, Dim.symbol("seq")), inner.add_op(ops.Insert(1), carry))
    after = inner.add_op(ops.Arith("add"), row, inner.add_op(ops.Reduce("sum", 1), copies))
    outer = GraphBuilder()
    x = outer.add_input("x", Input(Type.of("f64", Dim.symbol("batch"), Dim.symbol("seq"), 3)))
    memory = outer.add_input(
        "memory", Input(Type.of("f64", Dim.symbol("batch"), Dim.symbol("src"), 3))
    )
    first = outer.add_input("first", Input(Type.of("f64", Dim.symbol("batch"), 3)))
    h = outer.add_op(ops.Scan(inner.build_graph("body", {"h": after}), 1, 1, 1), memory, first)
    graph = outer.build_graph(
        "g", {"y": outer.add_op(ops.Arith("add"), x, outer.add_op(ops.Insert(1), h))}
    )
    assert [d.code for d in check_causality(graph, "seq", "x", ["y"])] == ["E0714"]
