"""Derive the encoder graph, the decode step and its states from the full-forward graph
(docs/derivation.md).

`position_demand` computes how many positions of each value a step needs, and `state_selection`
selects the values that it caches; this module builds the graph of the step.

Position ids start at the first demanded position. A concatenation that adds positions before the
first token returns only the new positions; the prefix is added again if earlier positions are
demanded. Axis sizes in attributes refer to the current step.

Only stateful ops have an incremental form. All other ops run unchanged on the new positions and on
the earlier positions in their receptive field; result positions that are not needed are dropped.

In this example, the delay runs on the cached and the new positions; its first result, which belongs
to the cached position, is dropped. The cumulative sum is stateful: it sums the new positions and
adds the state; its last position is the next state:

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
from specc.incremental.encoder_graph import (
    InitialValue,
    build_encoder_graph,
    has_first_result,
    pad_top_k_keys,
)
from specc.incremental.graph_boundary import (
    add_length_inputs,
    find_folded_batch_axis,
    remove_unused_inputs,
)
from specc.incremental.non_time_axis_loops import build_loop_step
from specc.incremental.position_demand import compute_node_demand, is_fixed_prefix_slice
from specc.incremental.position_demand_types import (
    NEWEST_ONLY,
    Demand,
    NonTimeAxisLoop,
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
"""Ops that add or remove positions at the start of a time axis."""


def add_position_ids(states: StepStates, node: Node, result: Value, demand: Demand) -> NodeResults:
    """Build the demanded position ids. They start at 0 only if all positions are present."""
    draft, plan = states.draft, states.draft.plan
    (name,) = demand.result_axes[0].values()
    need, track = demand.positions[name], plan.get_axis_layout(result, 0)
    ids = draft.add_node(node, ops.Range(plan.count_positions(need, track)))
    if plan.max_cached_chunks == inf and need == inf:
        return ids
    return draft.add_node(node, ops.Arith("add"), *ids, states.build_first_position_id(need, track))


def build_spliced_positions(draft: StepDraft, node: Node, result: Value, demand: Demand) -> Value:
    """Build an op that adds or removes positions at the start of the time axis. New positions pass
    unchanged; if earlier positions are demanded, the prefix is added again.
    """
    plan = draft.plan
    assert isinstance(node.op, SPLICE_OPS), "no other op splices positions"
    axis = node.op.axis
    need = demand.positions[demand.result_axes[0][axis]]
    track = plan.get_axis_layout(result, axis)
    grows = next(n for n, axes in enumerate(demand.operand_axes) if axis in axes)
    put_before = [n for n in range(len(node.args)) if n != grows and need <= 0]
    operands = draft.slice_operands(node, demand, excluded=put_before)
    made = operands[grows]
    assert made is not None, "its positions are demanded"
    before = plan.get_axis_layout(node.get_operand(grows), axis)
    total = plan.count_positions(demand.positions[demand.operand_axes[grows][axis]], before)
    if need > 0 and not isinstance(node.op, ops.Slice):
        # If only some positions of `x` are demanded, positions after the prefix may be missing. In
        # this case, the last positions include no prefix positions.
        (made,) = draft.add_node(node, node.op, *operands)
        total += track.prefix_length - before.prefix_length
    return draft.select_last_positions(made, axis, total, plan.count_positions(need, track))


class StepGraphBuilder:
    """Builds the graph of a decode step. `loop_invariant_inputs` maps inputs of the step to values
    that `encode` or the caller computes once per sequence.
    """

    def __init__(self, plan: StepPlan, names: StateNames | None = None) -> None:
        self.plan = plan
        self.names = names or StateNames.from_graph(plan.graph, plan.flow.loop_body_dataflows)
        self.draft = StepDraft(plan)
        self.states = StepStates(draft=self.draft, names=self.names)
        self.loop_invariant_inputs: dict[str, Value] = {}

    def build_graph(self) -> Graph:
        """Build the inputs, the live nodes in graph order, the outputs, and the next states."""
        plan, graph = self.plan, self.plan.graph
        self._declare_inputs()
        for node, results in graph.nodes:
            if node in plan.live_nodes:
                self.build_node(node, results)
        outputs = {}
        for name, rows in plan.outputs.items():
            need = NEWEST_ONLY if rows == "newest" else 0.0
            outputs[name] = self.draft.slice_output(graph.outputs[name], need)
        self.states.update_chunk_count()
        least, facts = plan.get_known_lengths()
        least[str(plan.new_chunks)] = 1
        outputs |= self.states.next_states()
        name = f"{graph.name} step"
        builder = self.draft.builder
        return builder.build_graph(name, outputs, min_lengths=least, length_equations=facts)

    def _declare_inputs(self) -> None:
        """Declare the inputs of a step: new positions, weights, and states."""
        plan, draft, facts = self.plan, self.draft, self.plan.graph.input_facts
        for name, value in plan.graph.inputs.items():
            wanted = name == plan.time_axis_input or value in plan.needs
            if plan.depends_on_time(value) and wanted:
                self._add_time_axis_input(name, value, facts[name])
        for name, value in plan.graph.parameters.items():
            draft.new_values[value] = draft.builder.add_parameter(plan.graph.parameter_facts[name])
        own = {v: facts[n] for n, v in plan.graph.inputs.items()}
        used = _iterate_constant_operands(plan)
        for value in select_encoder_values(plan.graph, plan.flow, used):
            name = self.names.name_value(value)
            self.loop_invariant_inputs[name] = value
            # An input of the spec keeps its batch axis; it is not split.
            blocks = None if value in own else find_folded_batch_axis(value.type, plan.batch_size)
            type = blocks.split_batch_of_type(value.type) if blocks else value.type
            given = draft.builder.add_input(name, own.get(value, Input(type)))
            given = blocks.merge_batch_axes(draft.builder, given) if blocks else given
            draft.new_values[value] = given

    def _add_time_axis_input(self, name: str, value: Value, facts: Input) -> None:
        """Add an input with a time axis. If its earlier positions are read, it contains all
        positions; otherwise it contains the new positions, which are appended to the cached ones.
        """
        plan, draft = self.plan, self.draft
        times = plan.find_time_axes(value)
        need = inf if name in plan.full_inputs else 0.0
        lengths = {a: plan.count_positions(need, plan.get_axis_layout(value, a)) for a in times}
        type = resize_type(value.type, lengths)
        rows = draft.builder.add_input(
            name, Input(type, facts.padding_side, facts.upper_bound, facts.span)
        )
        if name == plan.time_axis_input and value in plan.cached_values:
            draft.new_values[value] = self.states.append_to_cache(value, rows)
            return
        draft.new_values[value] = rows
        plan.needs[value] = dict.fromkeys(times, need)

    def _build_constant(self, node: Node, results: NodeResults) -> None:
        """Compute a node without the time axis in the step, unless `encode` passes its results or
        only `encode` needs them.
        """
        now = self.draft.new_values
        if all(r in now for r in results) or is_fixed_prefix_slice(node, self.plan.flow):
            return
        if any(a and a not in now for a in node.args):
            if isinstance(node.op, ops.Extent):  # only the axis size is read
                (length,) = results[0].shape
                now[results[0]] = self.draft.add_node(node, ops.Range(length))[0]
            return
        again = self.draft.add_node(node, node.op, *(a and now[a] for a in node.args))
        for old, new in zip(results, again, strict=True):
            now.setdefault(old, new)

    def build_node(self, node: Node, results: NodeResults) -> None:
        """Build the results of a node in the step."""
        moves = self.plan.depends_on_time(results[0])
        (self._build_time_axis_node if moves else self._build_constant)(node, results)

    def _build_time_axis_node(self, node: Node, results: NodeResults) -> None:
        """Build a node with a time axis for the demanded positions. Slice each result to the needed
        positions, or append it to the cached positions.
        """
        plan = self.plan
        demand = compute_node_demand(plan, node, results, plan.needs)
        folds = plan.resumes_from_state(node, results)
        work = self._resume_op if folds else self._copy_op
        built = work(node, results, demand)
        for axes, old, new in zip(demand.result_axes, results, built, strict=True):
            # Of a cached value, only the new positions are computed; earlier positions are a state.
            kept = old in plan.cached_values
            needs = plan.needs.get(old, {})
            for axis, name in axes.items():
                need = 0.0 if kept else needs.get(axis, NEWEST_ONLY)
                new = self.draft.slice_last_positions(new, old, axis, demand.positions[name], need)
            self.draft.new_values[old] = self.states.append_to_cache(old, new) if kept else new

    def _copy_op(self, node: Node, results: NodeResults, demand: Demand) -> NodeResults:
        """Apply the op of the full graph to the demanded positions."""
        counted = _build_counted_op(self.states, node, results, demand)
        if counted is not None:
            return counted
        if node in self.plan.flow.loop_body_dataflows:
            loop = NonTimeAxisLoop.from_node(self.plan, node)
            inner = StepGraphBuilder(self.plan.make_body_plan(loop.body), self.names)
            return build_loop_step(self, inner, loop, demand, results)
        assert not isinstance(node.op, ops.Scan), "a loop along the time axis resumes from a state"
        op = resize_op(self.plan, node, results, demand)
        return self.draft.add_node(node, op, *self.draft.slice_operands(node, demand))

    def _resume_op(self, node: Node, results: NodeResults, demand: Demand) -> NodeResults:
        """Resume a stateful op from its state; only the new positions are processed."""
        draft = self.draft
        if isinstance(node.op, ops.Slice | ops.Index):
            (rows,) = (x for x in draft.slice_operands(node, demand) if x)
            return select_first_position(self.states, node, results[0], rows)
        if isinstance(node.op, ops.CumSum):
            (sums,) = draft.add_node(node, node.op, *draft.slice_operands(node, demand))
            axis = get_stateful_operand(node)[1]
            return self.states.build_running_sum(node, axis, results[0], sums)
        starts = _map_state_operands(self.plan, node, results)
        operands = draft.slice_operands(node, demand, excluded=starts)
        # Initial states that the node has no operands for become additional operands.
        operands += [None] * (max(starts, default=-1) + 1 - len(operands))
        held = {}
        for operand, r in starts.items():
            first = node.args[operand] if operand < len(node.args) else None
            held[r], operands[operand] = self.states.make_loop_state(node, results[r], first)
        built = draft.add_node(node, node.op, *operands)
        self.states.next_values |= {state.next_output: built[r] for r, state in held.items()}
        return built


def _build_counted_op(
    states: StepStates, node: Node, results: NodeResults, demand: Demand
) -> NodeResults | None:
    """Build an op that counts or selects positions, or return None for other ops."""
    match node.op:
        case ops.Extent() | ops.Range():
            return add_position_ids(states, node, results[0], demand)
        case ops.Concat(n) | ops.Slice(n) | ops.Pad(n) if n in demand.result_axes[0]:
            return (build_spliced_positions(states.draft, node, results[0], demand),)
        case ops.TopK(n) as op if n in demand.operand_axes[0]:
            (keys,) = (x for x in states.draft.slice_operands(node, demand) if x)
            return states.draft.add_node(node, op, pad_top_k_keys(states.draft.builder, op, keys))
    return None


def _iterate_constant_operands(plan: StepPlan) -> Iterable[Value]:
    """Yield the values without the time axis that a step uses, except initial values of stateful
    ops (which resume from a state) and values of which only the size is read.
    """
    for node, results in plan.graph.nodes:
        used = node in plan.live_nodes and plan.depends_on_time(results[0])
        if used and not isinstance(node.op, ops.Extent):
            skipped = {*_map_state_operands(plan, node, results)}
            if _is_passed_through(plan, node, results):
                skipped = {*range(len(node.args))}
            for n, a in enumerate(node.args):
                if a and n not in skipped and not plan.depends_on_time(a):
                    yield a


def _is_passed_through(plan: StepPlan, node: Node, results: NodeResults) -> bool:
    """Return True if a concatenation in a step returns the new positions without the prefix."""
    if not isinstance(node.op, ops.Concat) or node.op.axis not in plan.find_time_axes(results[0]):
        return False
    demand = compute_node_demand(plan, node, results, plan.needs)
    return demand.positions[demand.result_axes[0][node.op.axis]] <= 0


def _map_state_operands(plan: StepPlan, node: Node, results: NodeResults) -> Mapping[int, int]:
    """Map each initial-state operand of a stateful op to the result with the next state."""
    if not plan.resumes_from_state(node, results):
        return {}
    if isinstance(node.op, ops.Scan):
        first = node.op.first_body_operand + node.op.scanned_count
        return {first + n: n for n in range(node.op.carry_count)}
    if isinstance(node.op, ops.RecurrentLayer):
        # The first result has all positions, followed by the final states.
        states = enumerate(node.op.initial_states, start=1)
        return {state.index: result for result, state in states}
    return {}


@dataclass(frozen=True, kw_only=True)
class DecodeGraph:
    """A decode step without the encoder graph, which computes invariant inputs and initial states.

    `loop_invariant_inputs` maps inputs of the step to values of the full graph that are the same in
    every step; `initial_values` maps states to initial values. `first_token_logits` is the output
    from which the first token can be sampled if the prompt is empty, or "".
    """

    plan: StepPlan
    graph: Graph
    states: tuple[DecodeState, ...]
    loop_invariant_inputs: Mapping[str, Value]
    initial_values: Mapping[str, InitialValue]
    first_token_logits: str = ""


def derive_step_graph(
    graph: Graph,
    time_axis_input: str,
    outputs: Mapping[str, OutputPositions],
    *,
    evicts_positions: bool = True,
    first_token_logits: str = "",
    chunk_length: int = 1,
) -> DecodeGraph:
    """Derive the decode step of `graph` for these outputs. `time_axis_input` is generated.

    A step returns all new positions of each output, or only its last position. Unless
    `evicts_positions`, sliding-window attention keeps positions outside the window. For the output
    named by `first_token_logits`, `encode` returns the last position before the first token, if
    there is one. A step takes a multiple of `chunk_length` positions. `graph` must have been proved
    causal for the outputs (`specc.analysis.causality.check_causality`).
    """
    symbol = find_time_symbol(graph, time_axis_input, chunk_length)
    assert symbol is not None, f"{time_axis_input} has no axis to grow along"
    options = (evicts_positions, chunk_length)
    plan = StepPlan.from_graph(graph, symbol, time_axis_input, outputs, *options)
    built = StepGraphBuilder(plan)
    if first_token_logits and not has_first_result(graph, plan.flow, first_token_logits):
        first_token_logits = ""
    # A state remains an input even if no node reads it, because the runtime always passes it.
    step = remove_unused_inputs(built.build_graph(), frozenset(s.name for s in built.states.states))
    fixed = {n: v for n, v in graph.inputs.items() if not plan.depends_on_time(v)}
    step = add_length_inputs(step, graph, fixed)
    return DecodeGraph(
        plan=plan,
        graph=step,
        states=tuple(built.states.states),
        loop_invariant_inputs={
            n: v for n, v in {**fixed, **built.loop_invariant_inputs}.items() if n in step.inputs
        },
        initial_values=built.states.initial_values,
        first_token_logits=first_token_logits,
    )


def add_encoder_graph(step: DecodeGraph) -> DerivedGraphs:
    """Add the encoder graph to a decode step."""
    inputs = set(step.plan.graph.inputs.values())
    # A static input of the spec is also an input of the step; `encode` returns the others.
    once = {n: InitialValue(v) for n, v in step.loop_invariant_inputs.items() if v not in inputs}
    first = _make_first_result(step, {*once, *step.initial_values})
    return DerivedGraphs(
        encode=build_encoder_graph(step.plan, {**once, **step.initial_values, **first}),
        step=step.graph,
        states=step.states,
        loop_invariant_inputs=tuple(step.loop_invariant_inputs),
        full_length_inputs=tuple(n for n in step.plan.full_inputs if n in step.graph.inputs),
        sequence_input=step.plan.time_axis_input,
        initial_logits_output=next(iter(first), ""),
    )


def _make_first_result(step: DecodeGraph, taken_names: Collection[str]) -> dict[str, InitialValue]:
    """Return the value, by output name, from whose last position the first token is sampled."""
    if not step.first_token_logits:
        return {}
    name = make_unused_name(f"first.{step.first_token_logits}", taken_names)
    value = step.plan.graph.outputs[step.first_token_logits]
    axis = next(iter(step.plan.find_time_axes(value)), None)
    return {name: InitialValue(value, axis, is_last_position=axis is not None)}
