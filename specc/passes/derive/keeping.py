"""Which values a step keeps for the next one, and which `encode` hands over: two uses of
one minimum cut.

On entry: the needs of `demand`. A value of which earlier rows are needed has them only
if they were kept, or if they can be made again from values that were.

Both weigh bytes kept against bytes worked again. A contraction or a loop is never done
twice; axes moved about cost nothing; what depends on positions, masks and inputs that
are given whole is always done again. Run-time lengths count as 64: no choice was seen
to change between 2 and 100 000.

Here a delay wants the row before of `exp(x W)`. To keep `x` would be as small, but then
`x W` were done twice; to keep `x W` and to do `exp` again costs more than to keep what
`exp` gave, for both have four features. Of `m`, which does not grow, the product is
handed over as the step reads it, not `m` itself:

    $ keeping x y=new
    graph "g"
    input "x" %0: f32[b, n, 4]
    input "m" %1: f32[b, 4]
    parameter "w" %2: f32[4, 4] initial="zeros" made_by="linear"
    %3: f32[b, n, 4] = linear(%0, %2)
    %4: f32[b, n, 4] = pointwise(%3) {fn="exp"}
    %5: f32[b, n, 4] = delay(%4) {axis=1, by=1, first=0.0}
    %6: f32[b, 4] = linear(%1, %2)
    %7: f32[b, 1, 4] = insert(%6) {axis=1}
    %8: f32[b, n, 4] = arith(%5, %7) {fn="add"}
    output "y" %8
    end
    gives
    %4 is kept
    "insert" is handed over
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf, prod

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.passes.derive.asked import FOLDS, NEWEST, Setting
from specc.passes.derive.cut import Choice, cheapest
from specc.passes.derive.demand import demand, picks_fixed, wanted
from specc.passes.prove.flow import Flow

NOMINAL = 64
BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "bool": 1}


def size(value: Value) -> float:
    """Bytes of a value, run-time lengths taken as 64."""
    lengths = [d.at(dict.fromkeys(d.symbols(), NOMINAL)) for d in value.type.shape]
    return float(prod(lengths) * BYTES[value.type.dtype])


def again(node: Node, value: Value) -> float:
    """What it costs to do a node again."""
    if node.op.heavy or isinstance(node.op, FOLDS):
        return inf
    return 0.0 if node.op.view else size(value)


def free_values(graph: Graph, flow: Flow, growing: str) -> set[Value]:
    """Moving values whose earlier rows cost nothing to have: positions, whole inputs,
    light work on such.
    """
    free = {v for n, v in graph.inputs.items() if n != growing and flow.state(v).moves}
    for node, results in every_node(graph, flow):
        if node in flow.inside:
            free.update(v for v, x in _rows_of(node) if x in free)
        moves = flow.state(results[0]).moves
        if moves and not node.op.heavy and _fed(node, flow) <= free:
            free.update(results)
    return free


def _fed(node: Node, flow: Flow) -> set[Value]:
    """What moves of what a node reads."""
    if isinstance(node.op, ops.Extent):
        return set()
    return {a for a in node.args if a and flow.state(a).moves}


def kept_values(setting: Setting, outputs: Mapping[Value, float]) -> list[Value]:
    """The values whose earlier rows a step keeps: they have one time axis and are not free."""
    candidates = _looked_back(setting, demand(setting, outputs))
    if not candidates:
        return []
    sure = replace(setting, kept=frozenset(candidates))
    sinks = _looked_back(sure, demand(sure, outputs))
    choices = {}
    sources = _Sources(setting, frozenset(candidates))
    for value in candidates:
        if value in sources.rows:
            # One row of what a loop reads is there again wherever that is.
            choices[value] = Choice(size(value), 0.0, sources.of(value))
        elif value.node is None:
            # What grows, and what is carried through a loop, nothing makes again.
            choices[value] = Choice[Value](size(value), inf)
        else:
            choices[value] = Choice(
                size(value), again(value.node, value), sources.of(value)
            )
    return cheapest(choices, sinks)


def every_node(graph: Graph, flow: Flow) -> Iterator[tuple[Node, tuple[Value, ...]]]:
    """The nodes of a graph, each loop over another axis before those of its body."""
    for node, results in graph.nodes:
        yield node, results
        if node in flow.inside:
            yield from every_node(flow.inside[node], flow)


def _rows_of(node: Node) -> list[tuple[Value, Value]]:
    """The rows that the body of a loop sees, each with what it is a row of."""
    op = node.op
    assert isinstance(op, ops.Scan), "no other op has a body"
    outer = [x for x in op.parts(node.args).rows if x is not None]
    return list(zip(op.inner().rows, outer, strict=True))


def _looked_back(
    setting: Setting, needs: Mapping[Value, Mapping[int, float]]
) -> list[Value]:
    """Streams of which earlier rows are needed, in the graph's order."""
    every = list(setting.graph.inputs.values())
    for node, results in every_node(setting.graph, setting.flow):
        every += results
        if node in setting.flow.inside:
            every += setting.flow.inside[node].inputs.values()
    return [
        v
        for v in every
        if v not in setting.free
        and len(setting.times(v)) == 1
        and max(needs.get(v, {}).values(), default=NEWEST) > 0
    ]


class _Sources:
    """What values are done again from: of those that could be kept, `known`, the nearest."""

    def __init__(self, setting: Setting, known: frozenset[Value]) -> None:
        self.setting, self.known = setting, known
        loops = setting.flow.inside
        self.rows = {row: x for node in loops for row, x in _rows_of(node)}

    def of(self, value: Value) -> list[Value]:
        """Those of one value, itself apart."""
        found: dict[Value, None] = {}
        todo = self._read(value)
        while todo:
            value = todo.pop()
            if value in self.known:
                found[value] = None
            elif value not in self.setting.free and self.setting.times(value):
                todo += self._read(value)
        return list(found)

    def _read(self, value: Value) -> list[Value]:
        if value in self.rows:
            return [self.rows[value]]
        return [a for a in value.node.args if a] if value.node else []


def handed_values(graph: Graph, flow: Flow, used: Iterable[Value]) -> list[Value]:
    """Of the values that stay the same, those that `encode` hands over so that all of
    `used` can be had in a step.

    Values that no input reaches are weights and numbers, and are not handed over.
    """
    inputs = {v for v in graph.inputs.values() if not flow.state(v).moves}
    reached = set(inputs)
    # an input is given as it is, where that is equal
    choices = {v: Choice[Value](size(v) - 0.5, inf) for v in inputs}
    sinks = list(dict.fromkeys(used))
    live = wanted(sinks, flow)
    for node, results in graph.nodes:
        if node in live and (picks_fixed(node, flow) or reached & {*node.args}):
            reached.update(results)
            choices |= _choices(node, results, flow, reached)
    return cheapest(choices, [v for v in sinks if v in reached])


def _choices(
    node: Node, results: Iterable[Value], flow: Flow, reached: set[Value]
) -> dict[Value, Choice[Value]]:
    """What it costs to hand over the results of a node, or to do it again in a step."""
    if picks_fixed(node, flow):
        # What was picked from rows of a head `encode` alone can make.
        return {r: Choice(size(r), inf) for r in results}
    operands = [a for a in node.args if a in reached and a is not None]
    return {r: Choice(size(r), again(node, r), operands) for r in results}
