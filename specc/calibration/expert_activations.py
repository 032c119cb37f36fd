"""Activations that each expert of a mixture receives."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Node, Value
from specc.transforms.quantize import find_viewed_weight
from specc.transforms.weight_uses import find_matrix_product


def collect_expert_activations(
    made: Builder, node: Node, args: list[Value], stacks: Mapping[Value, str]
) -> Iterator[tuple[str, int, Value]]:
    """The name of each matrix that is one of a stack, the number of its expert, and what
    it meets; `args` are the operands of `node` in the new graph, `stacks` are the names
    of stacked operands outside.
    """
    op = node.op
    assert isinstance(op, ops.Route)
    outside = op.parts([a for a in node.args if a is not None]).stacked
    inside = zip(outside, op.inner()[1:], strict=False)
    names = {inner: stacks[outer] for outer, inner in inside if outer in stacks}
    count = op.experts.number
    if not names or count is None:
        return
    bodies = {value: _up_to(op.body, value) for _, value in _read(op.body, names)}
    for expert in range(count):
        met = {v: _sent(made, op, b, args, expert) for v, b in bodies.items()}
        for name, value in _read(op.body, names):
            yield name, expert, met[value]


def _read(body: Graph, names: Mapping[Value, str]) -> Iterator[tuple[str, Value]]:
    """The matrices that rows are multiplied by in a body, and these rows."""
    for node, _ in body.nodes:
        product = find_matrix_product(node)
        if product is None:
            continue
        matrix, rows = (find_viewed_weight(node.args[product.matrix]), node.args[product.rows])
        if matrix is not None and rows is not None and matrix in names:
            yield names[matrix], rows


def _up_to(body: Graph, value: Value) -> Graph:
    """A body that gives a value of this one."""
    return replace(body, outputs={next(iter(body.outputs)): value})


def _sent(made: Builder, op: ops.Route, body: Graph, args: list[Value], expert: int) -> Value:
    """What a body makes of the rows that one expert is sent."""
    given = op.parts(args)
    number = made.one(ops.Constant(expert, given.ids.type.dtype))
    named = made.one(ops.Compare("eq"), given.ids, number)
    # the only expert there is now is 0, and -1 is none
    one = made.one(ops.Constant(1, given.ids.type.dtype))
    chosen = made.one(ops.Cast(given.ids.type.dtype), named)
    ids = made.one(ops.Arith("sub"), chosen, one)
    gates = made.one(ops.Cast(given.gates.type.dtype), named)
    part = ops.Slice(0, Dim.of(expert), Dim.of(expert + 1))
    rows = [given.x, ids, gates, *([given.keep] if given.keep is not None else [])]
    parts = [made.one(part, stack) for stack in given.stacked]
    alone = replace(op, body=body, experts=Dim.of(1))
    return made.one(alone, *rows, *parts, *given.captured)
