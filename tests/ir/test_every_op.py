"""Properties of every op."""

import re

import numpy as np
import pytest
from support.op_examples import EXAMPLES, OpExample, build_example_graph

import specc_numpy
from specc.diagnostics.render import extract_docstring_summary
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_text import format_ir
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.op import OPS_BY_NAME, Op


def test_every_op_has_an_example_and_a_reference() -> None:
    assert {e.op.name for e in EXAMPLES} == set(OPS_BY_NAME)
    assert not {*OPS_BY_NAME.values()} - specc_numpy.evaluate.rules.keys()


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_shape_rule_equals_the_reference(example: OpExample) -> None:
    graph, _ = build_example_graph(example)
    drawn = example.sample_operands(np.random.default_rng(0))
    found = specc_numpy.evaluate_graph(
        graph, {f"x{n}": x for n, x in enumerate(drawn) if x is not None}, {}
    )
    for name, value in graph.outputs.items():
        assert found[name].shape == tuple(d.evaluate({}) for d in value.type.shape)
        kind = {"bool": "b", "i64": "i", "i32": "i", "i8": "i"}.get(value.type.dtype, "f")
        assert found[name].dtype.kind == kind


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_ir_text_round_trip(example: OpExample) -> None:
    graph, _ = build_example_graph(example)
    assert find_graph_errors(graph) == []
    (again,) = parse_ir(format_ir(graph)).values()
    assert format_ir(again) == format_ir(graph)
    assert find_graph_errors(again) == []


MARK = re.compile(r"(?<=\w)(\|\w+|\[\w+(?::\w+)+\]|[>$@~])(?=[\s\]])")


@pytest.mark.parametrize("op", OPS_BY_NAME.values(), ids=lambda op: op.name)
def test_reference_docstring_states_its_shapes(op: type[Op]) -> None:
    """The docstring equals the signature without marks; one-line rules in a table have none."""
    rule = specc_numpy.evaluate.rules[op]
    if rule.__name__ != "<lambda>":
        assert extract_docstring_summary(rule.__doc__) == MARK.sub("", op.signature.text)
