"""Named operands have the index of the signature, and a value knows its result index."""

import pytest

from specc.ir import ops
from specc.ir.graph import GraphBuilder, Input
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import format_ir, parse_dim
from specc.ir.op import OPS_BY_NAME, Op, Operand, OptionalOperand
from specc.ir.types import Type

NAMED = {
    (name, word): operand
    for name, op in OPS_BY_NAME.items()
    for word, operand in vars(op).items()
    if isinstance(operand, Operand | OptionalOperand)
}


def test_named_operands_are_in_the_signature() -> None:
    for (name, word), operand in NAMED.items():
        terms = OPS_BY_NAME[name].signature.operands
        assert operand.index < len(terms), (name, word)
        is_optional = isinstance(operand, OptionalOperand)
        assert terms[operand.index].is_optional == is_optional, (name, word)


@pytest.mark.parametrize("op", [ops.Attend, ops.Rnn, ops.Gru, ops.Lstm])
def test_operand_names_are_distinct(op: type[Op]) -> None:
    places = [o.index for (name, _), o in NAMED.items() if name == op.name]
    assert len(places) == len(set(places))


def test_initial_states_correspond_to_final_states() -> None:
    for op in (ops.Rnn, ops.Gru, ops.Lstm):
        assert len(op.initial_states) == len(op.signature.results) - 1


def test_result_index_of_values() -> None:
    b = GraphBuilder()
    x = b.add_input("x", Input(Type("f32", tuple(map(parse_dim, ("b", "h", "t", "4"))))))
    made = b.add_node(ops.Attend(1.0), x, x, x)
    assert [v.index for v in made] == [0, ops.Attend.weights_result]
    graph = b.build_graph("g", {"y": made[0], "w": made[1]})
    again = parse_ir(format_ir(graph))["g"]
    assert [v.index for v in again.outputs.values()] == [0, 1]


def test_elementwise_ops_read_all_operands_at_the_position_of_the_result() -> None:
    elementwise_ops = [op for op in OPS_BY_NAME.values() if op.is_elementwise]
    assert len(elementwise_ops) > 5
    for op in elementwise_ops:
        for term in (*op.signature.operands, *op.signature.results):
            axes = [(axis.name, axis.mark, axis.is_variadic) for axis in term.axes]
            assert axes == [("s", "", True)], op.name


def test_selections_return_elements_of_the_first_operand_and_indices() -> None:
    selections = [op for op in OPS_BY_NAME.values() if op.is_selection]
    assert len(selections) > 5
    for op in selections:
        first, *others = (term.kind for term in op.signature.results)
        assert first == op.signature.operands[0].kind, op.name
        assert set(others) <= {"i"}, op.name
