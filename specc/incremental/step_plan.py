"""Plan a decode step: cached values, positions per value, length symbols; and the
graph under construction.

On entry: a graph that was proved causal for the requested outputs. On exit, every live value
has a need along each of its time axes, and every need can be met: from a cached value, from an
input that is passed completely, or by recomputation.

A delay by 2 reads two positions back, so at most two positions of `x` are cached. The length
of the cache is therefore not `past`, the number of all earlier positions, but a separate
length `kept` of at most 2:

    $ plan x y=new
    graph "g"
    input "x" %0: f32[b, n, 4]
    %1: f32[b, n, 4] = delay(%0) {axis=1, steps=2, fill_value=0.0}
    output "y" %1
    end
    gives
    lengths: new, and kept from before
    %0 axis 1: 2 more, kept
    %1 axis 1: the new rows
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Literal

from specc.analysis.time_axis import TimeAxisLayout, is_first_position_slice
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.incremental.position_demand import collect_step_nodes, compute_position_demand
from specc.incremental.position_demand_types import (
    NEWEST_ONLY,
    Demand,
    DemandContext,
    PositionNeeds,
)
from specc.incremental.state_selection import (
    find_free_values,
    iterate_flow_nodes,
    select_kept_values,
)
from specc.ir import ops
from specc.ir.dim import Dim, min_dims
from specc.ir.graph import Builder, Graph, Node, NodeOrigin, NodeResults, Value
from specc.ir.op import Op
from specc.ir.types import Type

OutputPositions = Literal["newest", "new"]


@dataclass(frozen=True, kw_only=True)
class StepPlan(DemandContext):
    """The decisions for one graph that grows along `symbol`.

    `needs` is the number of earlier positions of each value (`specc.incremental.position_demand`),
    `whole` names the inputs along the time axis that are given with all their positions. A step
    gets `new` chunks of positions after `base` earlier ones: all, or at most `most` if no more are
    ever cached. Without strides a chunk is one position. `batch` is the batch size.
    """

    symbol: str
    growing: str
    outputs: Mapping[str, OutputPositions]
    needs: dict[Value, dict[int, float]]
    whole: tuple[str, ...]
    most: float
    base: Dim
    new: Dim
    batch: Dim | None
    live: set[Node] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        graph: Graph,
        symbol: str,
        growing: str,
        outputs: Mapping[str, OutputPositions],
        bounded: bool = True,
        chunk: int = 1,
    ) -> "StepPlan":
        """Plan a step: choose the cached values, then compute the demand of every value."""
        found = trace_time_dataflow(graph, symbol, chunk)
        asked = {
            graph.outputs[n]: NEWEST_ONLY if rows == "newest" else 0.0
            for n, rows in outputs.items()
        }
        open_ = DemandContext(
            graph, found, (), frozenset(find_free_values(graph, found, growing)), bounded
        )
        kept = frozenset(select_kept_values(open_, asked))
        setting, needs, whole = _count_needs(open_, kept, asked, growing)
        most = inf if whole else _find_max_chunks(setting, needs, setting.kept)
        firsts = _count_firsts(setting)
        lacking = _find_max_chunks(setting, needs, needs) > most
        # A cached first position tells whether there was one.
        if lacking or not (firsts >= most or _is_length_known(setting, needs, most)):
            # No cached value is long enough to look back, or to determine the past length: the
            # growing input itself is cached.
            token = graph.inputs[growing]
            setting, needs, whole = _count_needs(open_, kept | {token}, asked, growing)
            needs[token], most = dict.fromkeys(setting.find_time_axes(token), inf), inf
        most = max(most, firsts)
        base, new = _make_length_symbols(graph, most)
        shape = graph.inputs[growing].shape
        return cls(
            **vars(setting),
            symbol=symbol,
            growing=growing,
            outputs=outputs,
            needs=needs,
            whole=whole,
            most=most,
            base=base,
            new=new,
            batch=shape[0] if len(shape) > 1 else None,
            live=collect_step_nodes(asked, found),
        )

    def make_body_plan(self, body: Graph) -> "StepPlan":
        """Return the plan for the body of a loop."""
        live = collect_step_nodes(body.outputs.values(), self.flow)
        return replace(self, graph=body, outputs={}, live=live)

    def rows(self, need: float, track: TimeAxisLayout) -> Dim:
        """Return how many positions a value with this demand has along an axis."""
        if need < 0:
            return Dim.of(1)
        return self.before(need, track) + self.new * track.rate

    def before(self, need: float, track: TimeAxisLayout) -> Dim:
        """Return how many of these positions are earlier ones or prefix positions."""
        chunks = _count_chunks(self, need, track)
        known = track.prefix_length.number is not None
        all_ = need == inf or (chunks >= self.most > 0 and known)
        return self._of(self.base, need, track, all_)

    def after(self, need: float, track: TimeAxisLayout) -> Dim:
        """Return how many earlier positions there are after this step."""
        return self._of(self.base + self.new, need, track, need == inf)

    def _of(self, there: Dim, need: float, track: TimeAxisLayout, all_: bool) -> Dim:
        """Return as many positions as are needed, at most those of `there` chunks, or with
        `all_` all of the cached ones.
        """
        head, rate = track.prefix_length, track.rate
        if need == inf:
            return there * rate + head
        lacking = _count_lacking_positions(self, need, head)
        if lacking <= 0:
            return Dim.of(max(int(need), 0))
        if rate == 1:
            return there + head if all_ else min_dims(there + head, int(need))
        # Of one chunk as many positions as demanded, of several all (`whole_chunks`).
        chunks = there if all_ else min_dims(there, ceil(lacking / rate))
        return chunks * int(min(lacking, rate)) + head

    def depends_on_time(self, value: Value) -> bool:
        """Return True if a value depends on the time axis."""
        return self.flow.get_state(value).is_time_dependent

    def known_lengths(self) -> tuple[dict[str, int], dict[str, Dim]]:
        """Return the bounds and equations of lengths other than the time axis."""
        least = {n: m for n, m in self.graph.min_lengths.items() if n != self.symbol}
        facts = {
            n: d
            for n, d in self.graph.length_equations.items()
            if self.symbol not in d.symbols() and n != self.symbol
        }
        return least, facts


def _count_needs(
    open_: DemandContext, kept: frozenset[Value], asked: Mapping[Value, float], growing: str
) -> tuple[DemandContext, dict[Value, dict[int, float]], tuple[str, ...]]:
    """Return the demand if these values are cached; an input read further back is given whole."""
    setting = replace(open_, kept=kept)
    needs = compute_position_demand(setting, asked)
    inputs = {
        n: v
        for n, v in open_.graph.inputs.items()
        if n != growing and open_.flow.get_state(v).is_time_dependent
    }
    whole = tuple(
        n for n, v in inputs.items() if max(needs.get(v, {}).values(), default=NEWEST_ONLY) > 0
    )
    for name in whole:
        needs[inputs[name]] = dict.fromkeys(setting.find_time_axes(inputs[name]), inf)
    return setting, needs, whole


def _count_lacking_positions(setting: DemandContext, need: float, head: Dim) -> float:
    """Return the maximum number of positions needed besides the prefix."""
    if need <= 0 or need == inf:
        return max(need, 0.0)
    if head.number is not None:
        return max(need - head.number, 0.0)
    return 0.0 if setting.flow.time_axis.is_non_negative(head - int(need)) else need


def _count_chunks(setting: DemandContext, need: float, track: TimeAxisLayout) -> float:
    """Return how many chunks give the positions that are needed besides the prefix."""
    lacking = _count_lacking_positions(setting, need, track.prefix_length)
    return lacking if lacking == inf else float(ceil(lacking / track.rate))


def _find_max_chunks(
    setting: DemandContext, needs: PositionNeeds, values: Iterable[Value]
) -> float:
    """Return the maximum number of earlier chunks that any of the values needs."""
    found = (
        _count_chunks(setting, need, setting.track(v, axis))
        for v in values
        for axis, need in needs.get(v, {}).items()
    )
    return max(found, default=0.0)


def _count_firsts(setting: DemandContext) -> float:
    """Return 1 if any first position is cached, else 0."""
    nodes = iterate_flow_nodes(setting.graph, setting.flow)
    clock = setting.flow.time_axis
    return float(
        any(
            is_first_position_slice(n, clock) and setting.resumes_from_state(n, r) for n, r in nodes
        )
    )


def _is_length_known(setting: DemandContext, needs: PositionNeeds, most: float) -> bool:
    """Return True if the length of a cached value determines how many earlier positions there
    are; `min(past + m, 3)` does not.
    """
    if most in (0.0, inf):
        return True
    tracks = (
        (setting.track(v, axis), need)
        for v in setting.kept
        for axis, need in needs.get(v, {}).items()
    )
    return any(
        track.prefix_length.number is not None and _count_chunks(setting, need, track) == most
        for track, need in tracks
    )


def _make_length_symbols(graph: Graph, most: float) -> tuple[Dim, Dim]:
    """Return unused symbols for the numbers of earlier and of new chunks."""
    inputs = graph.inputs.values()
    taken = {s for v in inputs for d in v.shape for s in d.symbols()}
    before = "past" if most == inf else "kept"
    base, new = (make_unused_name(n, {*taken, *graph.length_equations}) for n in (before, "new"))
    return Dim.symbol(base), Dim.symbol(new)


def make_unused_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with underscores appended while it is taken."""
    while name in taken:
        name += "_"
    return name


@dataclass
class StepDraft:
    """A step graph under construction. `now` maps values of the full graph to built ones, each with
    the earlier positions that `plan.needs` demands, then the new ones.
    """

    plan: StepPlan
    b: Builder = field(default_factory=Builder)
    now: dict[Value, Value] = field(default_factory=dict)

    def add(self, node: Node, op: Op, *args: Value | None) -> NodeResults:
        """Add a node with the scopes and spans of `node` of the full graph."""
        results = self.b.add_node(op, *args)
        known, maker = self.plan.graph.node_origins.get(node), results[0].node
        if known and maker:
            old = self.b.node_origins.get(maker, NodeOrigin())
            self.b.node_origins[maker] = old.merge(known)
        return results

    def slice_last(self, new: Value, value: Value, axis: int, has: float, need: float) -> Value:
        """Return the last positions of `new`, which stands for `value`: as many as are needed."""
        if has == need:
            return new
        assert need < has, f"{need} earlier positions are needed, {has} exist"
        track = self.plan.track(value, axis)
        return self.last(new, axis, self.plan.rows(has, track), self.plan.rows(need, track))

    def last(self, value: Value, axis: int, total: Dim, rows: Dim) -> Value:
        """Return the last `rows` of `total` positions."""
        if total == rows:
            return value
        return self.b.add_op(ops.Slice(axis, total - rows, total), value)

    def operands(
        self, node: Node, asked: Demand, without: Collection[int] = ()
    ) -> list[Value | None]:
        """Return the operands of a node, sliced to the demanded positions, but for `without`."""
        cut: list[Value | None] = []
        for n, (value, axes) in enumerate(zip(node.args, asked.operands, strict=True)):
            if value is None or n in without:
                cut.append(None)
                continue
            new = self.now[value]
            for axis, name in axes.items():
                has = self.plan.needs[value][axis]
                new = self.slice_last(new, value, axis, has, asked.rows[name])
            cut.append(new)
        return cut

    def output(self, value: Value, need: float) -> Value:
        """Return an output with the demanded positions of its first time axis; a second one,
        the keys of an attention map, stays whole.
        """
        new = self.now[value]
        for axis in self.plan.find_time_axes(value)[:1]:
            new = self.slice_last(new, value, axis, self.plan.needs[value][axis], need)
        return new


def resize_type(type: Type, lengths: Mapping[int, Dim]) -> Type:
    """Return a type with other lengths along some axes."""
    return Type(type.dtype, tuple(lengths.get(n, d) for n, d in enumerate(type.shape)))


def resize_op(plan: StepPlan, node: Node, results: NodeResults, asked: Demand) -> Op:
    """Return an op with the lengths in its attributes adapted to the demanded positions."""
    match op := node.op:
        case ops.Expand(axis) if axis in asked.results[0]:
            # The length to broadcast to is that of a time axis.
            track = plan.track(results[0], axis)
            need = asked.rows[asked.results[0][axis]]
            return ops.Expand(axis, plan.rows(need, track))
        case ops.StridedSlice(axis) if axis in asked.results[0]:
            # Every n-th of the available positions, which are whole strides.
            (x,) = node.operands
            need = asked.rows[asked.operands[0][axis]]
            stop = plan.rows(need, plan.track(x, axis))
            return replace(op, stop=stop)
    return op
