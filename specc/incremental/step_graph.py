"""Derive encoder graph, decode step and states from a graph over whole sequences
(docs/derivation.md).

`position_demand` says how many positions of each value a step needs, `state_selection` which of
them it keeps; this module builds the step.

Position ids start at the first demanded position. A concatenation that adds prefix positions
passes the new positions through, and adds the prefix again if earlier positions are demanded.
Explicit lengths are those of the current step.

Only folds have an incremental form. Every other op runs unchanged on the new positions and
the earlier ones in its receptive field; positions that no consumer needs are dropped.

The delay runs on the cached position and the new ones; its first result, which belongs to the
cached position, is dropped. The running sum is a fold: it sums the new positions and adds the
sum in the state; its last position is the next state:

    $ step x y=new
    graph "g"
    input "x" %0: f32[b, n, 4]
    %1: f32[b, n, 4] = delay(%0) {axis=1, steps=1, fill_value=0.0}
    %2: f32[b, n, 4] = cum_sum(%1) {axis=1}
    output "y" %2
    end
    gives
    graph "g step"
    least new 1
    input "x" %0: f32[b, new, 4]
    input "past.x" %1: f32[b, kept, 4]
    input "past.cum_sum" %2: f32[b, 4]
    %3: f32[b, kept + new, 4] = concat(%1, %0) {axis=1}
    %4: f32[b, min(1, kept + new), 4] = slice(%3) {axis=1, start=<kept - min(1, kept + new) + new>, stop=<kept + new>}
    %5: f32[b, kept + new, 4] = delay(%3) {axis=1, steps=1, fill_value=0.0}
    %6: f32[b, new, 4] = slice(%5) {axis=1, start=<kept>, stop=<kept + new>}
    %7: f32[b, new, 4] = cum_sum(%6) {axis=1}
    %8: f32[b, 1, 4] = insert(%2) {axis=1}
    %9: f32[b, new, 4] = arith(%7, %8) {fn="add"}
    %10: f32[b, 4] = last(%9) {axis=1}
    output "y" %9
    output "next.x" %4
    output "next.cum_sum" %10
    end
"""  # noqa: E501 (a graph is printed with one node per line)

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from specc.analysis.causality import find_time_symbol
from specc.incremental.cross_axis_loop_steps import build_loop_step
from specc.incremental.encoder_graph import (
    InitialValue,
    build_encoder_graph,
    has_first_result,
    pad_topk_keys,
)
from specc.incremental.graph_boundary import (
    add_length_inputs,
    find_batch_blocks,
    remove_unused_inputs,
)
from specc.incremental.position_demand import compute_node_demand, is_fixed_prefix_slice
from specc.incremental.position_demand_types import (
    NEWEST_ONLY,
    CrossAxisLoop,
    Demand,
    get_stateful_operand,
)
from specc.incremental.state_selection import select_encoder_values
from specc.incremental.step_plan import (
    OutputPositions,
    StepDraft,
    StepPlan,
    make_unused_name,
    resize_op,
    resize_type,
)
from specc.incremental.step_states import StateNames, StepStates, select_first_position
from specc.ir import ops
from specc.ir.graph import Graph, Input, Node, NodeResults, Value
from specc.ir.model import DecodeState, DerivedGraphs

SPLICE_OPS = (ops.Concat, ops.Slice, ops.Pad)
"""Ops that prepend or remove positions at the start of a time axis."""


def build_position_ids(states: StepStates, node: Node, result: Value, asked: Demand) -> NodeResults:
    """Build position ids; they start at 0 only if all positions are present."""
    draft, plan = states.draft, states.draft.plan
    (name,) = asked.results[0].values()
    need, track = asked.rows[name], plan.track(result, 0)
    rows = draft.add(node, ops.Range(plan.rows(need, track)))
    if plan.most == inf and need == inf:
        return rows
    return draft.add(node, ops.Arith("add"), *rows, states.first_row(need, track))


def build_spliced_positions(draft: StepDraft, node: Node, result: Value, asked: Demand) -> Value:
    """Lower a splice, which adds or removes prefix positions: new positions pass unchanged, and if
    earlier positions are demanded the prefix is added again.
    """
    plan = draft.plan
    assert isinstance(node.op, SPLICE_OPS), "no other op splices positions"
    axis = node.op.axis
    need = asked.rows[asked.results[0][axis]]
    track = plan.track(result, axis)
    grows = next(n for n, axes in enumerate(asked.operands) if axis in axes)
    put_before = [n for n in range(len(node.args)) if n != grows and need <= 0]
    operands = draft.operands(node, asked, without=put_before)
    made = operands[grows]
    assert made is not None, "its positions are demanded"
    before = plan.track(node.get_operand(grows), axis)
    total = plan.rows(asked.rows[asked.operands[grows][axis]], before)
    if need > 0 and not isinstance(node.op, ops.Slice):
        # If not all positions of `x` are demanded, some may be missing between the head and them;
        # then the last ones include none of the head.
        (made,) = draft.add(node, node.op, *operands)
        total += track.prefix_length - before.prefix_length
    return draft.last(made, axis, total, plan.rows(need, track))


class StepGraphBuilder:
    """Builds a step graph. `static_inputs` maps inputs of the step to values that `encode` or the
    caller computes once.
    """

    def __init__(self, plan: StepPlan, names: StateNames | None = None) -> None:
        self.plan = plan
        self.names = names or StateNames.of(plan.graph, plan.flow.loop_bodies)
        self.draft = StepDraft(plan)
        self.states = StepStates(draft=self.draft, names=self.names)
        self.static_inputs: dict[str, Value] = {}

    def build(self) -> Graph:
        """Build inputs, live nodes in order, outputs and next states."""
        plan, graph = self.plan, self.plan.graph
        self._declare_inputs()
        for node, results in graph.nodes:
            if node in plan.live:
                self.node(node, results)
        outputs = {}
        for name, rows in plan.outputs.items():
            need = NEWEST_ONLY if rows == "newest" else 0.0
            outputs[name] = self.draft.output(graph.outputs[name], need)
        self.states.count_new_rows()
        least, facts = plan.known_lengths()
        least[str(plan.new)] = 1
        outputs |= self.states.next_states()
        name = f"{graph.name} step"
        return self.draft.b.build_graph(name, outputs, min_lengths=least, length_equations=facts)

    def _declare_inputs(self) -> None:
        """Declare the inputs of a step: new positions, weights, and states."""
        plan, draft, facts = self.plan, self.draft, self.plan.graph.input_facts
        for name, value in plan.graph.inputs.items():
            wanted = name == plan.growing or value in plan.needs
            if plan.depends_on_time(value) and wanted:
                self._moving_input(name, value, facts[name])
        for name, value in plan.graph.parameters.items():
            draft.now[value] = draft.b.add_parameter(plan.graph.parameter_facts[name])
        own = {v: facts[n] for n, v in plan.graph.inputs.items()}
        used = _iterate_constant_operands(plan)
        for value in select_encoder_values(plan.graph, plan.flow, used):
            name = self.names.name_value(value)
            self.static_inputs[name] = value
            # An input of the spec is passed as it is.
            blocks = None if value in own else find_batch_blocks(value.type, plan.batch)
            type = blocks.split_batch_of_type(value.type) if blocks else value.type
            given = draft.b.add_input(name, own.get(value, Input(type)))
            draft.now[value] = blocks.merge_batch_axes(draft.b, given) if blocks else given

    def _moving_input(self, name: str, value: Value, facts: Input) -> None:
        """Add an input with a time axis: whole if earlier positions are read, else its new
        positions, after the cached ones.
        """
        plan, draft = self.plan, self.draft
        times = plan.find_time_axes(value)
        need = inf if name in plan.whole else 0.0
        rows_of = {axis: plan.rows(need, plan.track(value, axis)) for axis in times}
        type = resize_type(value.type, rows_of)
        rows = draft.b.add_input(
            name, Input(type, facts.padding_side, facts.upper_bound, facts.span)
        )
        if name == plan.growing and value in plan.kept:
            draft.now[value] = self.states.keep(value, rows)
            return
        draft.now[value] = rows
        plan.needs[value] = dict.fromkeys(times, need)

    def _build_constant(self, node: Node, results: NodeResults) -> None:
        """Compute a constant in the step, unless the encoder passes it or alone needs it."""
        now = self.draft.now
        if all(r in now for r in results) or is_fixed_prefix_slice(node, self.plan.flow):
            return
        if any(a and a not in now for a in node.args):
            if isinstance(node.op, ops.Extent):  # only the length is read
                (length,) = results[0].shape
                now[results[0]] = self.draft.add(node, ops.Range(length))[0]
            return
        again = self.draft.add(node, node.op, *(a and now[a] for a in node.args))
        for old, new in zip(results, again, strict=True):
            now.setdefault(old, new)

    def node(self, node: Node, results: NodeResults) -> None:
        """Build the results of a node in the step."""
        moves = self.plan.depends_on_time(results[0])
        (self._build_moving if moves else self._build_constant)(node, results)

    def _build_moving(self, node: Node, results: NodeResults) -> None:
        """Build a node on the time axis for the demanded positions; then slice each result to
        what is needed, or append it to the cached positions.
        """
        plan = self.plan
        asked = compute_node_demand(plan, node, results, plan.needs)
        folds = plan.resumes_from_state(node, results)
        work = self._resume_op if folds else self._copy_plain
        built = work(node, results, asked)
        for axes, old, new in zip(asked.results, results, built, strict=True):
            # Of a cached value only the new positions are computed: earlier ones are a state.
            kept = old in plan.kept
            needs = plan.needs.get(old, {})
            for axis, name in axes.items():
                need = 0.0 if kept else needs.get(axis, NEWEST_ONLY)
                new = self.draft.slice_last(new, old, axis, asked.rows[name], need)
            self.draft.now[old] = self.states.keep(old, new) if kept else new

    def _copy_plain(self, node: Node, results: NodeResults, asked: Demand) -> NodeResults:
        """Apply the same op to the demanded positions."""
        counted = _build_counted_op(self.states, node, results, asked)
        if counted is not None:
            return counted
        if node in self.plan.flow.loop_bodies:
            loop = CrossAxisLoop.of(self.plan, node)
            inner = StepGraphBuilder(self.plan.make_body_plan(loop.body), self.names)
            return build_loop_step(self, inner, loop, asked, results)
        assert not isinstance(node.op, ops.Scan), "a loop along the time axis resumes from a state"
        op = resize_op(self.plan, node, results, asked)
        return self.draft.add(node, op, *self.draft.operands(node, asked))

    def _resume_op(self, node: Node, results: NodeResults, asked: Demand) -> NodeResults:
        """Resume a stateful op from its state; `asked` is the new positions."""
        draft = self.draft
        if isinstance(node.op, ops.Slice | ops.Index):
            (rows,) = (x for x in draft.operands(node, asked) if x)
            return select_first_position(self.states, node, results[0], rows)
        if isinstance(node.op, ops.CumSum):
            (sums,) = draft.add(node, node.op, *draft.operands(node, asked))
            return self.states.running_sum(node, get_stateful_operand(node)[1], results[0], sums)
        starts = _map_start_operands(self.plan, node, results)
        operands = draft.operands(node, asked, without=starts)
        # Initial states that the node lacks are appended to its operands.
        operands += [None] * (max(starts, default=-1) + 1 - len(operands))
        held = {}
        for operand, r in starts.items():
            first = node.args[operand] if operand < len(node.args) else None
            held[r], operands[operand] = self.states.make_loop_state(node, results[r], first)
        built = draft.add(node, node.op, *operands)
        self.states.after |= {state.next_output: built[r] for r, state in held.items()}
        return built


def _build_counted_op(
    states: StepStates, node: Node, results: NodeResults, asked: Demand
) -> NodeResults | None:
    """Build an op that counts or selects positions; None for other ops."""
    match node.op:
        case ops.Extent() | ops.Range():
            return build_position_ids(states, node, results[0], asked)
        case ops.Concat(n) | ops.Slice(n) | ops.Pad(n) if n in asked.results[0]:
            return (build_spliced_positions(states.draft, node, results[0], asked),)
        case ops.TopK(n) as op if n in asked.operands[0]:
            (keys,) = (x for x in states.draft.operands(node, asked) if x)
            return states.draft.add(node, op, pad_topk_keys(states.draft.b, op, keys))
    return None


def _iterate_constant_operands(plan: StepPlan) -> Iterable[Value]:
    """Yield the constant values that a step uses, except initial values of stateful ops, which
    resume from a state, and values of which only the length is read.
    """
    for node, results in plan.graph.nodes:
        used = node in plan.live and plan.depends_on_time(results[0])
        if used and not isinstance(node.op, ops.Extent):
            skipped = {*_map_start_operands(plan, node, results)}
            if _is_passed_through(plan, node, results):
                skipped = {*range(len(node.args))}
            for n, a in enumerate(node.args):
                if a and n not in skipped and not plan.depends_on_time(a):
                    yield a


def _is_passed_through(plan: StepPlan, node: Node, results: NodeResults) -> bool:
    """Return True if a step passes on new positions without the prefix that precedes them."""
    if not isinstance(node.op, ops.Concat) or node.op.axis not in plan.find_time_axes(results[0]):
        return False
    asked = compute_node_demand(plan, node, results, plan.needs)
    return asked.rows[asked.results[0][node.op.axis]] <= 0


def _map_start_operands(plan: StepPlan, node: Node, results: NodeResults) -> Mapping[int, int]:
    """Map each operand that is the initial state of a fold to the result that is the next state."""
    if not plan.resumes_from_state(node, results):
        return {}
    if isinstance(node.op, ops.Scan):
        first = node.op.first_body_operand + node.op.scanned_count
        return {first + n: n for n in range(node.op.carry_count)}
    if isinstance(node.op, ops.RecurrentLayer):
        # The first result is all positions; the final states follow it.
        states = enumerate(node.op.initial_states, start=1)
        return {state.index: result for result, state in states}
    return {}


@dataclass(frozen=True, kw_only=True)
class DerivedStep:
    """A decode step whose inputs are not computed by an encoder graph yet.

    `static_inputs` maps inputs of the step to values of the full graph that are the same at every
    step; `starts` are the initial values of states. `source` names the output from which the first
    token of an empty sequence can be sampled; empty if there is none.
    """

    plan: StepPlan
    graph: Graph
    states: tuple[DecodeState, ...]
    static_inputs: Mapping[str, Value]
    starts: Mapping[str, InitialValue]
    source: str = ""


def derive_step_graph(
    graph: Graph,
    growing: str,
    outputs: Mapping[str, OutputPositions],
    *,
    bounded: bool = True,
    begins: str = "",
    chunk: int = 1,
) -> DerivedStep:
    """Derive the decode step of `graph` for these outputs; `growing` is the generated input.

    Of each output a step returns all new positions or the newest one. Unless `bounded`,
    sliding-window attention keeps positions outside of the window. For the output named by
    `begins`, `encode` returns the last position before the first token, if there is one. The step
    takes `chunk` positions at a time. `graph` must have been proved causal for the outputs
    (`specc.analysis.causality.check_causality`).
    """
    symbol = find_time_symbol(graph, growing, chunk)
    assert symbol is not None, f"{growing} has no axis to grow along"
    plan = StepPlan.of(graph, symbol, growing, outputs, bounded, chunk)
    built = StepGraphBuilder(plan)
    # A state stays an input even if no node reads it: the runtime passes it anyway.
    step = remove_unused_inputs(built.build(), frozenset(s.name for s in built.states.declared))
    fixed = {n: v for n, v in graph.inputs.items() if not plan.depends_on_time(v)}
    step = add_length_inputs(step, graph, fixed)
    return DerivedStep(
        plan=plan,
        graph=step,
        states=tuple(built.states.declared),
        static_inputs={
            n: v for n, v in {**fixed, **built.static_inputs}.items() if n in step.inputs
        },
        starts=built.states.starts,
        source=begins if begins and has_first_result(graph, plan.flow, begins) else "",
    )


def add_encoder_graph(half: DerivedStep) -> DerivedGraphs:
    """Add the encoder graph to a decode step."""
    inputs = set(half.plan.graph.inputs.values())
    # An unchanging input of the spec is an input of the step; any other unchanging value is a
    # result of `encode`.
    once = {n: InitialValue(v) for n, v in half.static_inputs.items() if v not in inputs}
    first = _make_first_result(half, {*once, *half.starts})
    return DerivedGraphs(
        encode=build_encoder_graph(half.plan, {**once, **half.starts, **first}),
        step=half.graph,
        states=half.states,
        static_inputs=tuple(half.static_inputs),
        full_length_inputs=tuple(n for n in half.plan.whole if n in half.graph.inputs),
        sequence_input=half.plan.growing,
        initial_logits_output=next(iter(first), ""),
    )


def _make_first_result(half: DerivedStep, taken: Collection[str]) -> dict[str, InitialValue]:
    """Return the position that the first token of an empty sequence is chosen from, by name."""
    if not half.source:
        return {}
    name = make_unused_name(f"first.{half.source}", taken)
    value = half.plan.graph.outputs[half.source]
    axis = next(iter(half.plan.find_time_axes(value)), None)
    return {name: InitialValue(value, axis, newest=axis is not None)}
