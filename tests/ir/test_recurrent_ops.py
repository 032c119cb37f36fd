"""A recurrent layer equals the loop that it stands for."""

import numpy as np
import pytest
from support.op_examples import EXAMPLES, OpExample, build_example_graph

import specc_numpy
from specc.ir import ops
from specc.ir.graph import GraphBuilder, Input
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.recurrent_as_loop import expand_recurrent_to_scan

LAYERS = [e for e in EXAMPLES if isinstance(e.op, ops.Rnn | ops.Gru | ops.Lstm)]


@pytest.mark.parametrize("example", LAYERS, ids=str)
def test_loop_equals_the_layer(example: OpExample) -> None:
    graph, _ = build_example_graph(example)
    b = GraphBuilder()
    given = [b.add_input(f"x{n}", Input(a)) if a else None for n, a in enumerate(example.operands)]
    assert isinstance(example.op, ops.Rnn | ops.Gru | ops.Lstm)
    loop = b.build_graph(
        "loop", {f"y{n}": v for n, v in enumerate(expand_recurrent_to_scan(b, example.op, given))}
    )
    assert find_graph_errors(loop) == []
    drawn = {
        f"x{n}": x
        for n, x in enumerate(example.sample_operands(np.random.default_rng(3)))
        if x is not None
    }
    wanted = specc_numpy.evaluate_graph(graph, drawn, {})
    for name, found in specc_numpy.evaluate_graph(loop, drawn, {}).items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-12, atol=1e-13)


def test_input_projections_are_outside_the_loop() -> None:
    example = next(e for e in LAYERS if e.op == ops.Gru("before"))
    b = GraphBuilder()
    given = [b.add_input(f"x{n}", Input(a)) if a else None for n, a in enumerate(example.operands)]
    expand_recurrent_to_scan(b, ops.Gru("before"), given)
    (scan,) = (n.op for n in b.nodes if isinstance(n.op, ops.Scan))
    assert [n.op.name for n, _ in scan.body.nodes].count("linear") == 2, (
        "the gates', and the new state's"
    )
    assert sum(n.op == ops.Linear() for n in b.nodes) == 1
