"""Properties of every op."""

import re

import numpy as np
import pytest
from support.op_examples import EXAMPLES, OpExample, build_example_graph

import specc_numpy
from specc.diagnostics.render import extract_docstring_summary
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.op import OPS_BY_NAME


def test_every_op_has_an_example_and_a_reference() -> None:
    assert {e.op.name for e in EXAMPLES} == set(OPS_BY_NAME)
    assert not {*OPS_BY_NAME.values()} - specc_numpy.evaluate.rules.keys()


def list_examples(op: str) -> list[OpExample]:
    return [example for example in EXAMPLES if example.op.name == op]


@pytest.mark.parametrize("op", OPS_BY_NAME)
def test_shape_rule_equals_the_reference(op: str) -> None:
    for example in list_examples(op):
        check_shape_rule(example)


def check_shape_rule(example: OpExample) -> None:
    graph, _ = build_example_graph(example)
    drawn = example.sample_operands(np.random.default_rng(0))
    found = specc_numpy.evaluate_graph(
        graph, {f"x{n}": x for n, x in enumerate(drawn) if x is not None}, {}
    )
    for name, value in graph.outputs.items():
        assert found[name].shape == tuple(d.evaluate({}) for d in value.type.shape), str(example)
        kind = {"bool": "b", "i64": "i", "i32": "i", "i8": "i"}.get(value.type.dtype, "f")
        assert found[name].dtype.kind == kind, str(example)


@pytest.mark.parametrize("op", OPS_BY_NAME)
def test_ir_text_round_trip(op: str) -> None:
    for example in list_examples(op):
        graph, _ = build_example_graph(example)
        assert find_graph_errors(graph) == [], str(example)
        (again,) = parse_ir(format_ir(graph)).values()
        assert format_ir(again) == format_ir(graph), str(example)
        assert find_graph_errors(again) == [], str(example)


MARK = re.compile(r"(?<=\w)(\|\w+|\[\w+(?::\w+)+\]|[>$@~])(?=[\s\]])")


def test_reference_docstrings_state_their_shapes() -> None:
    """The second paragraph of a docstring equals the signature without marks; one-line rules in
    a table have no docstring.
    """
    for op in OPS_BY_NAME.values():
        rule = specc_numpy.evaluate.rules[op]
        if rule.__name__ != "<lambda>":
            _, _, shapes = (rule.__doc__ or "").partition("\n\n")
            assert extract_docstring_summary(shapes) == MARK.sub("", op.signature.text)
