"""Build the encoder graph: everything that does not depend on generated positions, and
the initial states.

    step 1, 1 key, k = 3          step 4, 4 keys
    a  -inf  -inf  -inf           a  b  c  d  -inf  -inf  -inf
    └──────┬─────┘                └── three of these
    the numbers 0, 1, 2

With fewer than k keys, `topk` is padded with masked keys: in the full graph position 0 sees one
key and selects the first two masked ones, which are minus infinity and have the same indices.

If only the last position of a value is wanted, it is computed from the last positions of its
operands, unless the value is computed anyway. So of a prefix of many positions, such as those of
an image, only one passes through the last MLP and the output projection.

    x = linear(y) @ norm           x' = linear(y[:, -1:]) @ norm
    logits = linear(x) @ head  →   logits' = linear(x') @ head

After a prefix, states start with their values at the prefix positions: the encoder runs the same
ops with a time axis of length 0. Parts of a concatenation that are empty then are left out, so
that the generated input is not read at all.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

from specc.analysis.time_dataflow_facts import TimeFlow
from specc.incremental.graph_boundary import (
    add_graph_input,
    collect_value_symbols,
    find_determined_symbols,
    remove_unused_inputs,
    split_batch,
)
from specc.incremental.position_demand import collect_step_nodes
from specc.incremental.step_plan import StepPlan
from specc.ir import ops
from specc.ir.dependence import Dependence, find_dependences
from specc.ir.dim import Dim, min_dims
from specc.ir.graph import (
    Builder,
    Graph,
    Node,
    NodeResults,
    Value,
    collect_needed_nodes,
    substitute_op,
)
from specc.ir.types import Type


def pad_topk_keys(b: Builder, op: ops.TopK, keys: Value) -> Value:
    """Pad keys with masked ones so that there are at least k."""
    hidden = -inf if op.largest else inf
    return b.add_op(ops.Pad(op.axis, Dim.of(0), op.k, value=hidden), keys)


def _add_with_enough_keys(
    b: Builder, node: Node, args: list[Value | None], symbol: str
) -> tuple[Value, ...]:
    """Add a node with operands `args` that have an empty time axis. The largest k of fewer than k
    positions are as many as there are, padded.
    """
    op, x = node.op, node.first_operand
    if isinstance(op, ops.TopK) and x and args[0] and symbol in x.shape[op.axis].symbols():
        args = [pad_topk_keys(b, op, args[0])]
    return b.add_node(op, *args)


LastPosition: TypeAlias = tuple[Value, int]
"""The last position of a value along an axis."""


def has_first_result(graph: Graph, flow: TimeFlow, source: str) -> bool:
    """Return True if a result has a last position even with an empty time axis."""
    value, clock = graph.outputs[source], flow.time_axis
    axes = [*flow.get_state(value).axes]
    if not all(clock.has_prefix(value.shape[axis]) for axis in axes):
        return False
    # Then each newest position on the way is one of a head.
    newest = _iterate_newest_reads(graph, collect_step_nodes([value], flow))
    return all(
        clock.has_prefix(x.shape[axis]) for x, axis in newest if axis in flow.get_state(x).axes
    )


def _iterate_newest_reads(graph: Graph, live: Collection[Node]) -> Iterator[LastPosition]:
    """Yield the operands, and their axes, of which a live node reads the newest position."""
    for node, results in graph.nodes:
        if node in live:
            for link in find_dependences(node, results):
                if link.kind == "newest" and (operand := node.args[link.operand]):
                    yield operand, link.operand_axis


@dataclass(kw_only=True)
class LastPositionBuilder:
    """Builds the last position of a value along `axis` at `symbol` = 0: computed from positions of
    the operands, or sliced from the value if its node is in `there`, the nodes that are computed
    anyway. `whole` are the values that are needed completely.
    """

    value: Value
    axis: int
    there: set[Node]
    symbol: str
    whole: list[Value] = field(default_factory=list)
    order: list[LastPosition] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Collect the positions to recompute, without duplicates, operands first."""
        seen: set[LastPosition] = set()
        todo: list[tuple[LastPosition, bool]] = [((self.value, self.axis), False)]
        while todo:
            row, done = todo.pop()
            if done:
                self.order.append(row)
            elif row not in seen:
                seen.add(row)
                rows, others = self._operands(row)
                self.whole += others if rows else [row[0]]
                if rows:
                    todo += [(row, True), *((r, False) for r in rows.values())]

    def _operands(self, row: LastPosition) -> tuple[dict[int, LastPosition], list[Value]]:
        """Return the positions that a position is computed from, by operand, and the values
        that are read whole. No positions if it is sliced from its value.
        """
        value, axis = row
        node = value.node
        if node is None or node in self.there or isinstance(node.op, ops.Scan):
            return {}, []
        if (passed := self._passed(node, axis)) is not None:
            return {passed[0]: passed[1]}, []
        rows = self._same_row(node, row)
        return rows, [a for n, a in enumerate(node.args) if a and n not in rows]

    def _same_row(self, node: Node, row: LastPosition) -> dict[int, LastPosition]:
        """Return the operands of which the same position is read for a position of the result;
        None if others are read, except through a mask, or the op depends on the length.
        """
        value, axis = row
        every = find_dependences(node)
        found = [link for link in every if (link.result, link.result_axis) == (value.index, axis)]
        says = substitute_op(node.op, {self.symbol: Dim.of(0)}) != node.op
        if says or any(link.kind not in ("same", "band") for link in found):
            return {}
        return _map_equal_positions(node, found, value.shape[axis])

    def _passed(self, node: Node, axis: int) -> tuple[int, LastPosition] | None:
        """Return the operand whose last position is that of a concatenation or slice, or None."""
        match node:
            case Node(ops.Slice(axis=n, stop=stop), (Value() as x,)) if n == axis:
                return (0, (x, axis)) if stop == x.shape[axis] else None
            case Node(ops.Concat(n)) if n == axis:
                # the last part that has positions when nothing has grown yet
                for place, a in reversed([*enumerate(node.args)]):
                    if a and a.shape[axis].substitute({self.symbol: 0}) != 0:
                        return place, (a, axis)
        return None

    def build(self, b: Builder, now: Mapping[Value, Value]) -> Value:
        """Build the last position in another graph; `now` maps values of the full graph to it."""
        made: dict[LastPosition, Value] = {}

        def get_last_row(row: LastPosition) -> Value:
            if row not in made:
                value, axis = now[row[0]], row[1]
                rows = value.shape[axis]
                cut = ops.Slice(axis, rows - 1, rows)
                made[row] = value if rows == 1 else b.add_op(cut, value)
            return made[row]

        for row in self.order:
            node = row[0].node
            assert node is not None, "a recomputed value has a node"
            rows, _ = self._operands(row)
            if self._passed(node, row[1]) is not None:
                (made[row],) = (get_last_row(r) for r in rows.values())
                continue
            args = [
                get_last_row(rows[n]) if n in rows else a and now[a]
                for n, a in enumerate(node.args)
            ]
            made[row] = _add_with_enough_keys(b, node, args, self.symbol)[row[0].index]
        return get_last_row((self.value, self.axis))


def _map_equal_positions(
    node: Node, links: Iterable[Dependence], length: Dim
) -> dict[int, LastPosition]:
    """Return the operands of `length` positions that are read position by position. A single
    position is read as it is.
    """
    rows = dict[int, LastPosition]()
    for link in links:
        x, own = node.args[link.operand], link.operand_axis
        if x and link.kind == "same" and x.shape[own] == length:
            rows[link.operand] = x, own
    return rows


@dataclass(frozen=True)
class InitialValue:
    """The initial value of a state: a value of the full graph at time 0. Of its positions along
    `axis` the last `most`, their `total`, or only the `newest`, computed from as few positions as
    possible.
    """

    value: Value
    axis: int | None = None
    most: float = inf
    total: bool = False
    newest: bool = False


def build_encoder_graph(plan: StepPlan, targets: Mapping[str, InitialValue]) -> Graph | None:
    """Build the graph of `targets`; None without targets.

    If no input of it determines a length such as the batch size, it takes the input with the
    time axis, of which only the lengths are read.
    """
    if not targets:
        return None
    beginning = EncoderBuilder(plan)
    beginning.copy(targets.values())
    outputs = {name: beginning.output(first) for name, first in targets.items()}
    b, (least, facts) = beginning.b, plan.known_lengths()
    name = f"{plan.graph.name} encode"
    graph = remove_unused_inputs(
        b.build_graph(name, outputs, min_lengths=least, length_equations=facts)
    )
    read = collect_value_symbols(r for _, results in graph.nodes for r in results)
    lengths = read | collect_value_symbols(graph.outputs.values())
    if lengths <= find_determined_symbols(graph.inputs.values(), facts):
        return graph
    return add_graph_input(graph, plan.growing, plan.graph.input_facts[plan.growing])


class EncoderBuilder:
    """Builds the encoder graph: a copy of a graph whose time axis has length 0."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.b = Builder()
        self.now: dict[Value, Value] = {}
        self.rows: dict[Value, LastPositionBuilder] = {}

    def copy(self, targets: Iterable[InitialValue]) -> None:
        """Copy every node that the targets need, except where only the last position is wanted. A
        loop that collects more results than in the full graph comes last.
        """
        b, graph, now = self.b, self.plan.graph, self.now
        values = self._whole(list(targets))
        live = collect_needed_nodes(values, self._read)
        self._given({a for node in live for a in node.operands})
        for node, results in graph.nodes:
            if node in live:
                made = self._node(node, results)
                now.update(zip(results, made, strict=True))
                if (known := graph.node_origins.get(node)) and made[0].node:
                    b.node_origins.setdefault(made[0].node, known)
        self._beside(values)

    def _given(self, read: Collection[Value]) -> None:
        """Declare inputs and parameters, and the prefix positions of the generated inputs in
        `read`.
        """
        b, graph, now = self.b, self.plan.graph, self.now
        for name, value in graph.inputs.items():
            if not self.plan.depends_on_time(value):
                now[value] = b.add_input(name, graph.input_facts[name])
        for name, value in graph.parameters.items():
            now[value] = b.add_parameter(graph.parameter_facts[name])
        for value in graph.inputs.values():
            if value not in now and value in read:
                nothing = False if value.dtype == "bool" else 0
                now[value] = self._filled(value.type, nothing)

    def _whole(self, targets: Sequence[InitialValue]) -> list[Value]:
        """Return the values of which more than the last position is wanted or read."""
        values = [first.value for first in targets if not first.newest]
        there = collect_needed_nodes(values, self._read)
        for first in targets:
            if first.newest and first.axis is not None:
                row = LastPositionBuilder(
                    value=first.value, axis=first.axis, there=there, symbol=self.plan.symbol
                )
                self.rows[first.value] = row
                values += row.whole
        return values

    def _beside(self, values: Iterable[Value]) -> None:
        """Compute values of nodes that the graph lacks."""
        for value in values:
            if value not in self.now and value.node:
                made = self._node(value.node, (value,))
                self.now[value] = made[value.index]

    def output(self, first: InitialValue) -> Value:
        """Return a result, restricted to the positions that are wanted."""
        if first.newest and first.axis is not None:
            return self.rows[first.value].build(self.b, self.now)
        value, axis = self.now[first.value], first.axis
        if first.total and axis is not None:
            value = self.b.add_op(ops.Reduce("sum", axis), value)
        elif first.most != inf and axis is not None:
            rows = value.shape[axis]
            kept = self._at_most(rows, int(first.most))
            if kept != rows:
                value = self.b.add_op(ops.Slice(axis, rows - kept, rows), value)
        return split_batch(self.b, value, self.plan.batch)

    def _at_most(self, rows: Dim, most: int) -> Dim:
        """Return the minimum of both lengths, simplified where it is known."""
        clock = self.plan.flow.time_axis
        if clock.is_non_negative(rows - most):
            return Dim.of(most)
        return rows if clock.is_non_negative(most - rows) else min_dims(rows, most)

    def _read(self, node: Node) -> list[Value | None]:
        """Return the operands that are read while the time axis is empty: none for an `extent`,
        only those with positions for a concatenation or `pad`.
        """
        if isinstance(node.op, ops.Extent) or self._all_padding(node):
            return []
        if isinstance(node.op, ops.Concat):
            axis = node.op.axis
            full = [a for a in node.operands if self._length(a.shape[axis]) != 0]
            return [*(full or node.args)]
        return [*node.args]

    def _length(self, length: Dim) -> Dim:
        """Return a length with an empty time axis."""
        return length.substitute({self.plan.symbol: 0})

    def _node(self, node: Node, results: NodeResults) -> NodeResults:
        """Apply the same op to prefix positions alone."""
        op = substitute_op(node.op, {self.plan.symbol: Dim.of(0)})
        # An `extent` reads only the length of its operand, which is known here.
        if isinstance(op, ops.Extent):
            return self.b.add_node(ops.Range(self._length(results[0].shape[0])))
        if isinstance(op, ops.Pad) and self._all_padding(node):
            return (self._filled(results[0].type, op.value),)
        args = [a and self.now[a] for a in self._read(node)]
        if isinstance(op, ops.Concat) and len(args) == 1 and args[0]:
            return (args[0],)
        return _add_with_enough_keys(self.b, replace(node, op=op), args, self.plan.symbol)

    def _all_padding(self, node: Node) -> bool:
        """Return True if a `pad` adds positions to an empty axis."""
        x = node.first_operand
        if x is None or not isinstance(node.op, ops.Pad) or node.op.mode != "constant":
            return False
        return self._length(x.shape[node.op.axis]) == 0

    def _filled(self, type: Type, number: float | bool) -> Value:
        """Return a constant of the given type; the time axis is empty."""
        value = self.b.add_op(ops.Constant(number, type.dtype))
        for axis, length in enumerate(type.shape):
            value = self.b.add_op(ops.Insert(axis), value)
            value = self.b.add_op(ops.Expand(axis, self._length(length)), value)
        return value
