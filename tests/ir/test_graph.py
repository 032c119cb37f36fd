"""A node that is requested at thousands of source positions records each of them once, in linear
time."""

import pytest

from specc.diagnostics.diagnostic import Source, Span
from specc.ir import ops
from specc.ir.graph import GraphBuilder, Input, NodeOrigin
from specc.ir.types import Type


def test_each_source_position_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    alike = Span.__eq__

    def count_comparisons(self: Span, other: object) -> bool:
        nonlocal compared
        compared += 1
        return alike(self, other)

    monkeypatch.setattr(Span, "__eq__", count_comparisons)
    source, count = Source("m.specc", "x" * 2_000), 1_000
    spans = [Span(source, n, n + 1) for n in range(count)]
    b = GraphBuilder()
    x = b.add_input("x", Input(Type.of("f32", 3)))
    w = b.add_input("w", Input(Type.of("f32", 3, 3)))
    for span in [*spans, *(Span(source, n, n + 1) for n in range(count))]:
        y = b.add_op(ops.Linear(), x, w, scope="a", span=span)
    y = b.add_op(ops.Linear(), x, w, scope="b")
    assert y.node is not None
    work, made = compared, b.node_origins[y.node]
    assert made == NodeOrigin(("a", "b"), tuple(spans))
    assert work < 10 * count
    b.node_origins[y.node] = NodeOrigin(("c",))
    b.add_op(ops.Linear(), x, w, scope="a", span=spans[0])
    assert b.node_origins[y.node] == NodeOrigin(("c", "a"), (spans[0],))
