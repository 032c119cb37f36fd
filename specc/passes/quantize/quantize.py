"""A graph with some of its weights rounded.

    y = linear(x, w, b)        →    y = linear_q(x, w:int8, w:scale, b)
    e = embedding(ids, t)           e = embedding_q(ids, t:int8, t:scale)
    h = lstm(x, w, u)               h = lstm_q(x, w:int8, u:int8, w:scale, u:scale)

Each weight becomes two parameters, its whole numbers and its scales, also in the bodies
of loops. Where a weight was cut along its results, both are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Node, Parameter, Value
from specc.ir.ops.quantized import Rounding
from specc.ir.precision import Plan, Precision
from specc.ir.types import Type
from specc.passes.quantize.layers import opened
from specc.passes.quantize.products import product_of
from specc.passes.quantize.uses import captured, stacked_of


@dataclass(frozen=True)
class Pair:
    """A rounded weight: its numbers and scales, and whether it is turned over here."""

    numbers: Value
    scales: Value
    form: Precision
    flipped: bool = False


Pairs: TypeAlias = Mapping[Value, Pair]


def quantize(graph: Graph, plan: Plan) -> Graph:
    """`graph` with the weights of `plan` rounded; others, and all inputs and results,
    stay.
    """
    held = {name: form for name, form in plan.items() if name in graph.parameters}
    if not held:
        return graph
    graph = opened(graph, {n for n, form in held.items() if form.rounding != "layer"})
    made = Builder()
    for name, given in graph.input_facts.items():
        made.input(name, given)
    pairs: dict[Value, Pair] = {}
    now = {value: made.inputs[name] for name, value in graph.inputs.items()}
    for name, value in graph.parameters.items():
        facts = graph.parameter_facts[name]
        if name in held:
            pairs[value] = _pair(made, facts, held[name])
        else:
            now[value] = made.parameter(facts)
    _Walk(made, now, pairs).nodes(graph)
    # a name of a weight that is rounded names nothing any more
    made.names = {n: now[v] for n, v in graph.names.items() if v in now}
    outputs = {n: now[v] for n, v in graph.outputs.items()}
    return made.finish(graph.name, outputs, least=graph.least, facts=graph.facts)


def _pair(made: Builder, facts: Parameter, form: Precision) -> Pair:
    """The parameters that a weight becomes."""
    shape = tuple(d.number or 0 for d in facts.type.shape)
    numbers, scales = form.shapes(shape)
    return Pair(
        made.parameter(
            replace(
                facts,
                name=form.numbers(facts.name),
                type=Type.of(form.dtype, *numbers),
                tied_to=form.numbers(facts.tied_to) if facts.tied_to else "",
            )
        ),
        made.parameter(
            replace(
                facts,
                name=form.scales(facts.name),
                type=Type.of("f32", *scales),
                tied_to=form.scales(facts.tied_to) if facts.tied_to else "",
            )
        ),
        form,
    )


@dataclass
class _Walk:
    """Writes nodes again; `now` are the values that are there, `pairs` the weights."""

    made: Builder
    now: dict[Value, Value]
    pairs: dict[Value, Pair] = field(default_factory=dict)

    def nodes(self, graph: Graph) -> None:
        """Every node of a graph, in order."""
        for node, results in graph.nodes:
            new = self._node(node, results)
            # what only moved a weight has become nothing
            self.now.update(zip(results, new, strict=False))
            known = graph.made.get(node)
            if known and new and new[0].node:
                self.made.made[new[0].node] = known

    def _node(self, node: Node, results: tuple[Value, ...]) -> tuple[Value, ...]:
        """What a node becomes; nothing where it only moved a weight."""
        read = [a for a in node.args if a is not None and a in self.pairs]
        if not read:
            return self.made.add(node.op, *(a and self.now[a] for a in node.args))
        pair = self.pairs[read[0]]
        match node.op:
            case ops.Transpose():
                self.pairs[results[0]] = replace(pair, flipped=not pair.flipped)
                return ()
            case ops.Cast(to=to):
                # computed in 16 bits: so are the numbers that whole ones stand for
                scales = self.made.one(ops.Cast(to), pair.scales)
                self.pairs[results[0]] = replace(pair, scales=scales)
                return ()
            case ops.Slice():
                self.pairs[results[0]] = self._cut(node.op, pair)
                return ()
            case ops.Scan() | ops.Route():
                return self._loop(node, node.op)
            case ops.Embedding():
                return self._lookup(node, pair)
            case ops.Lstm():
                return self._layer(node, node.op)
        return self._linear(node, pair)

    def _cut(self, op: ops.Slice, pair: Pair) -> Pair:
        """Some rows of a weight: the results are the last axis of columns, else the first."""
        made, form = self.made, pair.form
        last = form.layout == "columns"
        numbers, scales = (
            made.one(replace(op, axis=v.type.rank - 1 if last else 0), v)
            for v in (pair.numbers, pair.scales)
        )
        return replace(pair, numbers=numbers, scales=scales)

    def _linear(self, node: Node, pair: Pair) -> tuple[Value, ...]:
        form = pair.form
        # what a layer reads may be read in a loop of a graph that was taken apart
        rounding: Rounding = "tensor" if form.rounding == "layer" else form.rounding
        op = ops.LinearQ(form.bits, form.block, form.layout, rounding)
        product = product_of(node)
        assert product is not None, "the plan has no other reader"
        x = node.args[product.rows]
        bias = ops.Linear.bias(node) if isinstance(node.op, ops.Linear) else None
        return self.made.add(
            op,
            x and self.now[x],
            pair.numbers,
            pair.scales,
            bias and self.now[bias],
        )

    def _layer(self, node: Node, op: ops.Lstm) -> tuple[Value, ...]:
        """An LSTM, both of whose weights are rounded."""
        pairs = [self.pairs[v] for v in (op.weights(node), op.state_weights(node))]
        # what is left out is the projection, which such a layer has none of
        rest = [*node.args[op.bias.place : op.peepholes.place + 1]]
        return self.made.add(
            ops.LstmQ(op.reverse),
            self.now[op.rows(node)],
            *(pair.numbers for pair in pairs),
            *(pair.scales for pair in pairs),
            *(a and self.now[a] for a in rest),
        )

    def _lookup(self, node: Node, pair: Pair) -> tuple[Value, ...]:
        form, ids = pair.form, node.args[0]
        table = node.args[1]
        assert table is not None
        op = ops.EmbeddingQ(table.type.shape[1], form.bits, form.block, form.layout)
        return self.made.add(op, ids and self.now[ids], pair.numbers, pair.scales)

    def _loop(self, node: Node, op: ops.Scan | ops.Route) -> tuple[Value, ...]:
        """A loop whose body takes two tensors for each rounded weight; of what is stacked
        for experts, a part of each.
        """
        values = [a for a in node.args if a is not None]
        inputs = list(op.body.inputs.items())
        stacked = len(stacked_of(op, node))
        # A body's inputs are first what changes from turn to turn, then what may be a
        # weight; so are the loop's operands, but with more in front.
        changing = len(inputs) - len(captured(op, node)) - stacked
        outside = len(values) - (len(inputs) - changing)
        args = [self.now[a] for a in values[:outside]]
        inner = Builder()
        inside = _Walk(inner, {})
        for name, value in inputs[:changing]:
            inside.now[value] = inner.input(name, op.body.input_facts[name])
        # A stack that is rounded is two of them: of numbers, and of scales.
        more = 0
        for place, outer in enumerate(values[outside:]):
            name, value = inputs[changing + place]
            facts = op.body.input_facts[name]
            if outer not in self.pairs:
                inside.now[value] = inner.input(name, facts)
                args.append(self.now[outer])
                continue
            pair, first = self.pairs[outer], place < stacked
            more += first
            numbers, scales = (
                inner.input(f"{name} {what}", replace(facts, type=_part(v.type, first)))
                for what, v in (("numbers", pair.numbers), ("scales", pair.scales))
            )
            inside.pairs[value] = replace(pair, numbers=numbers, scales=scales)
            args += pair.numbers, pair.scales
        inside.nodes(op.body)
        outputs = {n: inside.now[v] for n, v in op.body.outputs.items()}
        body = inner.finish(
            op.body.name, outputs, least=op.body.least, facts=op.body.facts
        )
        if isinstance(op, ops.Route):
            return self.made.add(replace(op, body=body, stacked=stacked + more), *args)
        return self.made.add(replace(op, body=body), *args)


def _part(type: Type, stacked: bool) -> Type:
    """What the body of a loop is given of a tensor."""
    return Type(type.dtype, type.shape[1:]) if stacked else type
