"""One test for each promise, for every op at once."""

import re

import numpy as np
import pytest
from support.op_examples import EXAMPLES, Example, graph_of

import specc_numpy
from specc.ir.op import OPS, Op
from specc.ir.read import read
from specc.ir.verify import verify
from specc.ir.write import write
from specc.text.summary import summary


def test_every_op_has_an_example_and_a_meaning() -> None:
    assert {e.op.name for e in EXAMPLES} == set(OPS)
    assert not specc_numpy.evaluate.missing(OPS.values())


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_shape_rule_predicts_the_reference(example: Example) -> None:
    graph, _ = graph_of(example)
    drawn = example.draw(np.random.default_rng(0))
    found = specc_numpy.run(
        graph, {f"x{n}": x for n, x in enumerate(drawn) if x is not None}, {}
    )
    for name, value in graph.outputs.items():
        assert found[name].shape == tuple(d.at({}) for d in value.type.shape)
        kind = {"bool": "b", "i64": "i", "i32": "i", "i8": "i"}.get(
            value.type.dtype, "f"
        )
        assert found[name].dtype.kind == kind


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_node_verifies_and_survives_its_text(example: Example) -> None:
    graph, _ = graph_of(example)
    assert verify(graph) == []
    (again,) = read(write(graph)).values()
    assert write(again) == write(graph)
    assert verify(again) == []


MARK = re.compile(r"(?<=\w)(\|\w+|\[\w+(?::\w+)+\]|[>$@~])(?=[\s\]])")


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_the_docstring_of_a_meaning_states_its_shapes(op: type[Op]) -> None:
    """It is the signature without the marks, so that neither can go its own way."""
    doc = specc_numpy.evaluate.table[op].__doc__
    assert summary(doc) == MARK.sub("", op.signature.text)
