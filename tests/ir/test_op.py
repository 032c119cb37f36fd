"""Operands by name stand where the signature has them, and a value knows which result
of its node it is.
"""

import pytest

from specc.ir import ops
from specc.ir.graph import Builder, Input
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_text import format_ir, parse_dim
from specc.ir.op import OPS_BY_NAME, Op, Operand, OptionalOperand
from specc.ir.types import Type

NAMED = {
    (name, word): operand
    for name, op in OPS_BY_NAME.items()
    for word, operand in vars(op).items()
    if isinstance(operand, Operand | OptionalOperand)
}


@pytest.mark.parametrize(("name", "word"), NAMED)
def test_a_named_operand_is_one_of_the_signature(name: str, word: str) -> None:
    operand, terms = NAMED[name, word], OPS_BY_NAME[name].signature.operands
    assert operand.index < len(terms)
    assert terms[operand.index].is_optional == isinstance(operand, OptionalOperand)


@pytest.mark.parametrize("op", [ops.Attend, ops.Rnn, ops.Gru, ops.Lstm])
def test_no_two_names_of_an_op_are_one_operand(op: type[Op]) -> None:
    places = [o.index for (name, _), o in NAMED.items() if name == op.name]
    assert len(places) == len(set(places))


def test_first_states_are_answered_by_the_results_behind_the_first() -> None:
    for op in (ops.Rnn, ops.Gru, ops.Lstm):
        assert len(op.initial_states) == len(op.signature.results) - 1


def test_a_value_knows_which_result_it_is_also_when_it_was_read() -> None:
    b = Builder()
    x = b.input("x", Input(Type("f32", tuple(map(parse_dim, ("b", "h", "t", "4"))))))
    made = b.add(ops.Attend(1.0), x, x, x)
    assert [v.index for v in made] == [0, ops.Attend.weights_result]
    graph = b.finish("g", {"y": made[0], "w": made[1]})
    again = parse_ir(format_ir(graph))["g"]
    assert [v.index for v in again.outputs.values()] == [0, 1]
