"""Derive the encoder graph, the decode step and the states of the step (docs/derivation.md).

`demanded_positions` computes the number of positions of each value that a step needs.
`state_selection` selects the values that a step caches. This module builds the graph of the decode
step.

Position ids start at the first position that the step computes. A concatenation that adds positions
before the first token returns only the new positions. The prefix is added again if earlier
positions are needed. Axis sizes in op attributes are replaced by the axis sizes in the step.

Only stateful ops have an incremental form. All other ops run unchanged on the new positions and on
the earlier positions in their receptive field. Result positions that later nodes do not need are
dropped.

In this example, the delay runs on the cached and the new positions. The first result position of
the delay corresponds to the cached position and is dropped. The cumulative sum is stateful: it sums
the new positions and adds the state. The last position of the cumulative sum becomes the next
state:

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
from specc.incremental.demand_propagation import (
    PerStepLoop,
    compute_node_demand,
    is_fixed_prefix_slice,
)
from specc.incremental.demanded_positions import (
    NEWEST_ONLY,
    DemandedPositions,
    get_stateful_operand,
)
from specc.incremental.encoder_graph import (
    InitialStateValue,
    build_encoder_graph,
    has_position_before_first_token,
    pad_top_k_keys,
)
from specc.incremental.graph_boundary import (
    add_shape_only_inputs,
    find_folded_batch_axis,
    remove_unused_inputs,
    uniquify_name,
)
from specc.incremental.loop_step_graph import build_loop_decode_step
from specc.incremental.state_selection import select_encoder_outputs
from specc.incremental.step_plan import (
    OutputPositions,
    StepGraphRewriter,
    StepPlan,
    adapt_size_attributes,
    replace_axis_sizes,
)
from specc.incremental.step_states import (
    StateNameGenerator,
    StepStateBuilder,
    add_position_ids,
    build_first_position_slice,
    map_state_operands,
)
from specc.ir import ops
from specc.ir.graph import Graph, Input, Node, NodeResults, Value, select_entries
from specc.ir.model_definition import DecodeState, DerivedGraphs

PREFIX_OPS = (ops.Concat, ops.Slice, ops.Pad)
"""Ops that add or remove positions at the start of a time axis."""


def build_prefix_op(
    rewriter: StepGraphRewriter, node: Node, result: Value, demand: DemandedPositions
) -> Value:
    """Build the step's version of an op that adds or removes positions at the start of the time
    axis. New positions are unchanged. If earlier positions are needed, the prefix is included
    again.
    """
    plan = rewriter.plan
    assert isinstance(node.op, PREFIX_OPS)
    axis = node.op.axis
    need = demand.positions[demand.result_axes[0][axis]]
    result_layout = plan.get_axis_layout(result, axis)
    time_operand = next(n for n, axes in enumerate(demand.operand_axes) if axis in axes)
    prefix_operands = [n for n in range(len(node.args)) if n != time_operand and need <= 0]
    operands = rewriter.slice_operands(node, demand, excluded=prefix_operands)
    positions = operands[time_operand]
    assert positions is not None, "its positions are needed"
    operand_layout = plan.get_axis_layout(node.get_operand(time_operand), axis)
    operand_need = demand.positions[demand.operand_axes[time_operand][axis]]
    total = plan.count_positions(operand_need, operand_layout)
    if need > 0 and not isinstance(node.op, ops.Slice):
        # If only some positions of the operand are needed, positions after the prefix may be
        # missing. In this case, the last positions include no prefix positions.
        (positions,) = rewriter.add_node(node, node.op, *operands)
        total += result_layout.prefix_length - operand_layout.prefix_length
    count = plan.count_positions(need, result_layout)
    return rewriter.select_last_positions(positions, axis, total, count)


class StepGraphBuilder:
    """A builder of the graph of a decode step. `loop_invariant_inputs` maps inputs of the step to
    values that `encode` or the caller computes once per sequence.
    """

    def __init__(self, plan: StepPlan, names: StateNameGenerator | None = None) -> None:
        self.plan = plan
        self.names = names or StateNameGenerator.from_graph(
            plan.graph, plan.flow.inlined_loop_bodies
        )
        self.rewriter = StepGraphRewriter(plan)
        self.states = StepStateBuilder(rewriter=self.rewriter, names=self.names)
        self.loop_invariant_inputs: dict[str, Value] = {}

    def build_graph(self) -> Graph:
        """Build and return the step graph, with its inputs, nodes, outputs and next states."""
        plan, graph = self.plan, self.plan.graph
        self._declare_inputs()
        for node, results in graph.nodes:
            if node in plan.live_nodes:
                self.build_node(node, results)
        needs = {n: NEWEST_ONLY if p == "newest" else 0.0 for n, p in plan.outputs.items()}
        outputs = {n: self.rewriter.slice_output(graph.outputs[n], d) for n, d in needs.items()}
        self.states.update_chunk_count()
        minima, equations = plan.get_length_constraints()
        minima[str(plan.new_chunk_count)] = 1
        outputs |= self.states.build_next_states()
        name, build = f"{graph.name} step", self.rewriter.builder.build_graph
        return build(name, outputs, min_lengths=minima, length_equations=equations)

    def _declare_inputs(self) -> None:
        """Declare the inputs of a step: new positions, weights and states."""
        plan, rewriter, facts = self.plan, self.rewriter, self.plan.graph.input_facts
        for name, value in plan.graph.inputs.items():
            is_used = name == plan.time_axis_input or value in plan.needs
            if plan.depends_on_time(value) and is_used:
                self._add_time_axis_input(name, value, facts[name])
        for name, value in plan.graph.parameters.items():
            parameter = plan.graph.parameter_facts[name]
            rewriter.new_values[value] = rewriter.builder.add_parameter(parameter)
        input_facts = {v: facts[n] for n, v in plan.graph.inputs.items()}
        used_values = _iterate_constant_operands(plan)
        for value in select_encoder_outputs(plan.graph, plan.flow, used_values):
            name = self.names.make_value_name(value)
            self.loop_invariant_inputs[name] = value
            # An input of the spec keeps its type, so its folded batch axis is not split.
            batch_size = None if value in input_facts else plan.batch_size
            folded = find_folded_batch_axis(value.type, batch_size)
            type = folded.unfold_type(value.type) if folded else value.type
            new_value = rewriter.builder.add_input(name, input_facts.get(value, Input(type)))
            new_value = folded.fold_value(rewriter.builder, new_value) if folded else new_value
            rewriter.new_values[value] = new_value

    def _add_time_axis_input(self, name: str, value: Value, facts: Input) -> None:
        """Add an input with a time axis. If the step reads earlier positions of the input, the
        input has all positions. Otherwise, the input has only the new positions, which are appended
        to the cached positions, if any.
        """
        plan, rewriter = self.plan, self.rewriter
        time_axes = plan.find_time_axes(value)
        need = inf if name in plan.full_inputs else 0.0
        lengths = {a: plan.count_positions(need, plan.get_axis_layout(value, a)) for a in time_axes}
        type = replace_axis_sizes(value.type, lengths)
        new_facts = Input(type, facts.padding_side, facts.upper_bound, facts.span)
        new_input = rewriter.builder.add_input(name, new_facts)
        if name == plan.time_axis_input and value in plan.cached_values:
            rewriter.new_values[value] = self.states.append_to_cache(value, new_input)
            return
        rewriter.new_values[value] = new_input
        plan.needs[value] = dict.fromkeys(time_axes, need)

    def _build_constant(self, node: Node, results: NodeResults) -> None:
        """Build a node that does not depend on the time axis. Skip the node if the encoder graph
        passes its results to the step, or if only the encoder graph needs its results.
        """
        new_values = self.rewriter.new_values
        if all(r in new_values for r in results) or is_fixed_prefix_slice(node, self.plan.flow):
            return
        if any(a and a not in new_values for a in node.args):
            if isinstance(node.op, ops.Extent):  # time-dependent nodes read only the axis size
                (length,) = results[0].shape
                new_values[results[0]] = self.rewriter.add_node(node, ops.Range(length))[0]
            return
        operands = (a and new_values[a] for a in node.args)
        new_results = self.rewriter.add_node(node, node.op, *operands)
        for value, new_value in zip(results, new_results, strict=True):
            new_values.setdefault(value, new_value)

    def build_node(self, node: Node, results: NodeResults) -> None:
        """Build the results of a node in the step."""
        on_time_axis = self.plan.depends_on_time(results[0])
        (self._build_time_axis_node if on_time_axis else self._build_constant)(node, results)

    def _build_time_axis_node(self, node: Node, results: NodeResults) -> None:
        """Build a node for the needed positions, and slice its results or append them to caches."""
        plan = self.plan
        demand = compute_node_demand(plan, node, results, plan.needs)
        build = self._resume_op if plan.is_computed_from_state(node, results) else self._copy_op
        new_results = build(node, results, demand)
        for axes, value, new_value in zip(demand.result_axes, results, new_results, strict=True):
            # Only the new positions of a cached value are computed, because earlier positions are a
            # state.
            is_cached = value in plan.cached_values
            needs = plan.needs.get(value, {})
            for axis, name in axes.items():
                need = 0.0 if is_cached else needs.get(axis, NEWEST_ONLY)
                available = demand.positions[name]
                new_value = self.rewriter.slice_to_demand(new_value, value, axis, available, need)
            new_value = self.states.append_to_cache(value, new_value) if is_cached else new_value
            self.rewriter.new_values[value] = new_value

    def _copy_op(self, node: Node, results: NodeResults, demand: DemandedPositions) -> NodeResults:
        """Build a stateless node by applying its op to the needed positions."""
        if (counted := _build_counted_op(self.states, node, results, demand)) is not None:
            return counted
        if node in self.plan.flow.inlined_loop_bodies:
            loop = PerStepLoop.from_node(self.plan, node)
            body_builder = StepGraphBuilder(self.plan.make_loop_body_plan(loop.body), self.names)
            return build_loop_decode_step(self, body_builder, loop, demand, results)
        assert not isinstance(node.op, ops.Scan), "a loop along the time axis resumes from a state"
        op = adapt_size_attributes(self.plan, node, results, demand)
        return self.rewriter.add_node(node, op, *self.rewriter.slice_operands(node, demand))

    def _resume_op(
        self, node: Node, results: NodeResults, demand: DemandedPositions
    ) -> NodeResults:
        """Build a stateful node by applying its op to the state and the new positions."""
        rewriter = self.rewriter
        if isinstance(node.op, ops.Slice | ops.Index):
            (rows,) = (x for x in rewriter.slice_operands(node, demand) if x)
            return build_first_position_slice(self.states, node, results[0], rows)
        if isinstance(node.op, ops.CumSum):
            (sums,) = rewriter.add_node(node, node.op, *rewriter.slice_operands(node, demand))
            axis = get_stateful_operand(node)[1]
            return self.states.build_running_sum(node, axis, results[0], sums)
        state_operands = map_state_operands(self.plan, node, results)
        operands = rewriter.slice_operands(node, demand, excluded=state_operands)
        # If the node has no operands for initial states, they become additional operands.
        operands += [None] * (max(state_operands, default=-1) + 1 - len(operands))
        states = {}
        for operand, r in state_operands.items():
            initial = node.args[operand] if operand < len(node.args) else None
            states[r], operands[operand] = self.states.make_loop_state(node, results[r], initial)
        new_results = rewriter.add_node(node, node.op, *operands)
        self.states.next_values |= {s.next_output: new_results[r] for r, s in states.items()}
        return new_results


def _build_counted_op(
    states: StepStateBuilder, node: Node, results: NodeResults, demand: DemandedPositions
) -> NodeResults | None:
    """Build an op that creates position ids, adds or removes positions, or selects keys."""
    match node.op:
        case ops.Extent() | ops.Range():
            return add_position_ids(states, node, results[0], demand)
        case ops.Concat(n) | ops.Slice(n) | ops.Pad(n) if n in demand.result_axes[0]:
            return (build_prefix_op(states.rewriter, node, results[0], demand),)
        case ops.TopK(n) as op if n in demand.operand_axes[0]:
            (keys,) = (x for x in states.rewriter.slice_operands(node, demand) if x)
            padded_keys = pad_top_k_keys(states.rewriter.builder, op, keys)
            return states.rewriter.add_node(node, op, padded_keys)
    return None


def _iterate_constant_operands(plan: StepPlan) -> Iterable[Value]:
    """Yield the time-independent operands that time-dependent nodes read in a step. Skip initial
    values of stateful ops, which resume from a state, and values of which only the size is used.
    """
    for node, results in plan.graph.nodes:
        is_built = node in plan.live_nodes and plan.depends_on_time(results[0])
        has_reads = not (isinstance(node.op, ops.Extent) or _is_prefix_dropped(plan, node, results))
        if is_built and has_reads:
            skipped = map_state_operands(plan, node, results)
            operands = (a for n, a in enumerate(node.args) if n not in skipped)
            yield from (a for a in operands if a and not plan.depends_on_time(a))


def _is_prefix_dropped(plan: StepPlan, node: Node, results: NodeResults) -> bool:
    """Return True if a concatenation in a step returns only new positions, without the prefix."""
    if not isinstance(node.op, ops.Concat) or node.op.axis not in plan.find_time_axes(results[0]):
        return False
    demand = compute_node_demand(plan, node, results, plan.needs)
    return demand.positions[demand.result_axes[0][node.op.axis]] <= 0


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """A decode step, and the values that the encoder graph must compute for the step.

    `loop_invariant_inputs` maps inputs of the step to values of the full-forward graph that are the
    same in every step. `initial_values` maps outputs of the encoder graph to initial values of
    states. With an empty prompt, the first token is sampled from `first_token_logits` ("" if
    unsupported).
    """

    plan: StepPlan
    graph: Graph
    states: tuple[DecodeState, ...]
    loop_invariant_inputs: Mapping[str, Value]
    initial_values: Mapping[str, InitialStateValue]
    first_token_logits: str = ""


def derive_step_graph(
    graph: Graph,
    time_axis_input: str,
    outputs: Mapping[str, OutputPositions],
    *,
    evicts_positions: bool = True,
    first_token_logits: str = "",
    chunk_length: int = 1,
) -> DecodeStep:
    """Derive the decode step of `graph`, which must have been proved causal for `outputs`
    (`specc.analysis.causality.check_causality`).

    `time_axis_input` is the generated input. The number of positions of `time_axis_input` per step
    is a multiple of `chunk_length`. `outputs` maps each output to the positions that a step
    returns: all new positions or only the last position. Unless `evicts_positions` is True,
    sliding-window attention keeps positions outside the window. For `first_token_logits`, the
    encoder graph returns the last position before the first token, if any.
    """
    symbol = find_time_symbol(graph, time_axis_input, chunk_length)
    assert symbol is not None, f"{time_axis_input} has no axis to grow along"
    options = (evicts_positions, chunk_length)
    plan = StepPlan.from_graph(graph, symbol, time_axis_input, outputs, *options)
    builder = StepGraphBuilder(plan)
    if first_token_logits and not has_position_before_first_token(
        graph, plan.flow, first_token_logits
    ):
        first_token_logits = ""
    # Keep the input of a state even if no node reads it, because the runtime always passes it.
    step, states = builder.build_graph(), tuple(builder.states.states)
    step = remove_unused_inputs(step, frozenset(state.name for state in states))
    invariants = {n: v for n, v in graph.inputs.items() if not plan.depends_on_time(v)}
    step = add_shape_only_inputs(step, graph, invariants)
    invariants |= builder.loop_invariant_inputs
    return DecodeStep(
        plan=plan,
        graph=step,
        states=states,
        loop_invariant_inputs=select_entries(invariants, step.inputs),
        initial_values=builder.states.initial_values,
        first_token_logits=first_token_logits,
    )


def build_encoder_and_step_graphs(step: DecodeStep) -> DerivedGraphs:
    """Build the encoder graph of `step`. Return the encoder graph, the step and the states."""
    inputs, invariants = step.plan.graph.inputs.values(), step.loop_invariant_inputs.items()
    # An input of the spec without a time axis is passed to the step directly. All other values of
    # the step are outputs of `encode`.
    targets = {n: InitialStateValue(v) for n, v in invariants if v not in inputs}
    targets |= step.initial_values
    first_result = _make_first_result(step, targets)
    return DerivedGraphs(
        encode=build_encoder_graph(step.plan, {**targets, **first_result}),
        step=step.graph,
        states=step.states,
        loop_invariant_inputs=tuple(step.loop_invariant_inputs),
        full_length_inputs=tuple(n for n in step.plan.full_inputs if n in step.graph.inputs),
        sequence_input=step.plan.time_axis_input,
        initial_logits_output=next(iter(first_result), ""),
    )


def _make_first_result(step: DecodeStep, names: Collection[str]) -> dict[str, InitialStateValue]:
    """Return the encoder output, by name, whose last position contains the first token's logits."""
    if not step.first_token_logits:
        return {}
    name = uniquify_name(f"first.{step.first_token_logits}", names)
    value = step.plan.graph.outputs[step.first_token_logits]
    axis = next(iter(step.plan.find_time_axes(value)), None)
    return {name: InitialStateValue(value, axis, is_last_position=axis is not None)}
