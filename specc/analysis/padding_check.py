"""Check whether padded positions can affect an output of a graph (lint W0601).

The input is a graph with padding masks, i.e. inputs declared as `keep[batch, seq]`. For each axis
with a padding mask, the analysis checks whether a value at a valid position can depend on padded
positions. The result is a list of warnings, one for each op that makes a valid position depend on
padded positions.

An op is unaffected in three cases. The values at padded positions are provably neutral: zero, or
the masked fill value for a maximum (see `padding_zeros`). A mask that implies `keep` masks out
padded positions. The op reads no positions on the padded side of the axis. Position ids count
earlier padded positions, so only differences of position ids are unaffected.

Right padding comes after all valid positions, so a cumulative sum does not read padding, but a mean
over the axis does:

    $ padding
    graph "g"
    input "x" %0: f32[b, n, 4]
    input "keep" %1: bool[b, n] keep="right"
    %2: f32[b, n, 4] = cum_sum(%0) {axis=1}
    %3: f32[b, 4] = reduce(%2) {fn="mean", axis=1}
    output "sums" %2
    output "mean" %3
    end
    gives
    W0601 padded positions affect `mean`: `mean` reads them without a mask
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from specc.analysis.causality_messages import format_op_name
from specc.analysis.padding_dataflow import make_padding_dataflow
from specc.analysis.padding_facts import NO_PADDING_FACTS, PaddedUse, PaddingFacts, PaddingSource
from specc.analysis.padding_fixes import (
    PaddingViolation,
    suggest_finite_padding,
    suggest_padding_fix,
)
from specc.analysis.padding_order_and_windows import is_output_order_changed
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value

PaddingSide: TypeAlias = Literal["left", "right"]
SIDES: tuple[PaddingSide, ...] = ("left", "right")


def check_padding(graph: Graph) -> list[Diagnostic]:
    """Return W0601 for each op and mask through which padding affects an output, in graph order."""
    warnings: dict[tuple[Node, str], Diagnostic] = {}
    for mask_name, (states, always_true_masks) in _infer_all_states(graph).items():
        affected_outputs = dict(_iterate_reached_outputs(graph, mask_name, states))
        # infinity or NaN at padded positions may affect an output that finite values do not affect
        assumes_finite = (
            _infer_states(graph, mask_name, always_true_masks, assumes_finite=True)
            if affected_outputs
            else {}
        )
        finite_effects = dict(_iterate_reached_outputs(graph, mask_name, assumes_finite))
        for output, padding_source in affected_outputs.items():
            cause = finite_effects.get(output, padding_source)
            if (cause.node, mask_name) not in warnings:
                violation = PaddingViolation(
                    graph=graph,
                    mask_name=mask_name,
                    output=output,
                    padding_source=cause,
                    states=states,
                    is_nonfinite=output not in finite_effects,
                )
                warnings[cause.node, mask_name] = make_padding_diagnostic(violation)
    return list(warnings.values())


def can_padding_reach_outputs(graph: Graph, mask_name: str, outputs: Collection[str]) -> bool:
    """Return True if positions masked out by `mask_name` may affect any of `outputs`."""
    states, _ = _infer_all_states(graph)[mask_name]
    return any(
        output in outputs for output, _ in _iterate_reached_outputs(graph, mask_name, states)
    )


_AllStates: TypeAlias = Mapping[str, tuple[Mapping[Value, PaddingFacts], frozenset[Value]]]


def _infer_all_states(graph: Graph) -> _AllStates:
    """Map the name of each padding mask to the padding properties of every value, and to the masks
    that were assumed to be true. Positions that the assumed masks exclude do not affect the
    outputs.
    """
    all_states: dict[str, tuple[Mapping[Value, PaddingFacts], frozenset[Value]]] = {}
    always_true_masks, pending = frozenset[Value](), list(graph.input_facts)
    while pending:
        all_states.update(
            (n, (_infer_states(graph, n, always_true_masks), always_true_masks)) for n in pending
        )
        exposed = [n for n in pending if any(_iterate_reached_outputs(graph, n, all_states[n][0]))]
        if len(exposed) == len(pending):
            break
        always_true_masks |= {
            graph.inputs[n] for n in pending if n not in exposed and all_states[n][0]
        }
        pending = exposed
    return all_states


def _infer_states(
    graph: Graph,
    mask_name: str,
    always_true_masks: frozenset[Value],
    *,
    assumes_finite: bool = False,
) -> Mapping[Value, PaddingFacts]:
    """Return the padding properties of every value along the axis of the padding mask `mask_name`.
    Return {} if `mask_name` is not a padding mask over a dynamic axis. If `assumes_finite` is True,
    all values are assumed to be finite.
    """
    side, padding_mask = graph.input_facts[mask_name].padding_side, graph.inputs[mask_name]
    if not side or not padding_mask.rank or padding_mask.shape[-1].number is not None:
        return {}
    dataflow = make_padding_dataflow(graph, padding_mask, side, always_true_masks, assumes_finite)
    return dataflow.infer_graph_facts(graph)


def _iterate_reached_outputs(
    graph: Graph, mask_name: str, states: Mapping[Value, PaddingFacts]
) -> Iterator[tuple[str, PaddingSource]]:
    """Yield each output that padding may affect, with the op through which padding affects it."""
    for output, value in graph.outputs.items():
        facts = states.get(value, NO_PADDING_FACTS)
        source = facts.padding_source or next(iter(facts.rolled_axes.values()), None)
        has_changed_positions = facts.depends_on_padding_amount or is_output_order_changed(
            graph, mask_name, value, facts
        )
        if not source and value.node and has_changed_positions:
            source = PaddingSource(value.node, is_count_only=True)
        if source:
            yield output, source


def make_padding_diagnostic(violation: PaddingViolation) -> Diagnostic:
    """Return the warning W0601 for a violation of padding invariance, with a fix if known."""
    node = violation.find_nonfinite_source() if violation.is_nonfinite else violation.node
    if violation.is_nonfinite:
        description, label_text = _describe_not_finite(violation, node)
        fix = suggest_finite_padding(violation, node)
    else:
        description, label_text = _describe_read(violation)
        fix = suggest_padding_fix(violation)
    fix = _choose_clean_side(violation, fix)
    return Diagnostic(
        "W0601",
        f"padded positions affect `{violation.output}`: {description}",
        Label.from_span(violation.get_span(node), label_text),
        _label_added_positions(violation, node),
        helps=(fix,) if fix else (),
        severity="warning",
    )


def _choose_clean_side(violation: PaddingViolation, fix: str) -> str:
    """Return `fix`, unless `fix` declares a padding side on which padding also affects the op. In
    that case, return a fix that declares the other side, or "" if padding on either side affects
    the op.
    """
    helps = {side: violation.suggest_padding_side(side) for side in SIDES}
    if not fix or fix not in helps.values():
        return fix
    preferred_first = sorted(SIDES, key=lambda side: helps[side] != fix)
    clean_helps = (helps[s] for s in preferred_first if helps[s] and _is_side_clean(violation, s))
    return next(clean_helps, "")


def _is_side_clean(violation: PaddingViolation, side: PaddingSide) -> bool:
    """Return True if padding on `side` does not affect valid positions through the violating op."""
    graph, name = violation.graph, violation.mask_name
    facts = replace(graph.input_facts[name], padding_side=side)
    changed_graph = replace(graph, input_facts={**graph.input_facts, name: facts})
    states = _infer_states(changed_graph, name, frozenset())
    sources = dict(_iterate_reached_outputs(changed_graph, name, states)).values()
    return all(source.node != violation.node for source in sources)


def _label_added_positions(violation: PaddingViolation, node: Node) -> tuple[Label, ...]:
    """Return a label for the op, if any, that added always-valid positions next to padding."""
    if violation.is_nonfinite or not violation.has_interior_padding():
        return ()
    op_span = violation.get_span(node)
    joining_span = violation.get_span(violation.find_axis_extending_node() or node)
    if op_span is None or joining_span is None or op_span.line == joining_span.line:
        return ()
    return (Label(joining_span, "positions are added here"),)


def _describe_not_finite(violation: PaddingViolation, node: Node) -> tuple[str, str]:
    """Return the message and label text for a node with NaN or infinity at padded positions."""
    reader = format_op_name(violation.node.op)
    match node.op:
        case ops.Where():
            label_text = "this is infinite at padded positions"
        case ops.Arith() | ops.Pointwise():
            label_text = f"`{format_op_name(node.op)}` of zero at padded positions is not finite"
        case _:
            label_text = "this can be NaN at padded positions"
    return f"`{reader}` reads NaN or infinity there, and NaN times zero is NaN", label_text


def _describe_read(violation: PaddingViolation) -> tuple[str, str]:
    """Return the message and label text for the padded positions that the violating op reads."""
    op_name, padded_use = format_op_name(violation.node.op), violation.padding_source.use
    if order := violation.get_output_position_order():
        suffix = ", with padded positions last" if order == "sorted" else ""
        order_text = f"positions are in {order} order"
        return f"the {order_text}{suffix}", f"these {order_text}"
    if violation.padding_source.is_count_only:
        if violation.has_size_operand():
            return f"`{op_name}` reads a length that includes padding", "this reads the length"
        return (
            "position ids count from the start of the sequence, including padding",
            "this reads a position id that includes padding",
        )
    if violation.padding_source.is_shifted:
        is_slice = isinstance(violation.node.op, ops.StridedSlice)
        selection = "a slice with a step" if is_slice else f"the stride of `{op_name}`"
        amount = "with left padding, the amount of padding determines"
        return (
            f"{amount} which positions {selection} selects",
            "this selects every n-th position, counted from the first",
        )
    if padded_use is None:
        order = "flipped" if violation.has_reversed_operand() else "sorted"
        return f"`{op_name}` combines {order} positions with others", "this combines both orders"
    location = _describe_position(violation, padded_use)
    return (f"`{op_name}` reads them{location} without a mask", "this reads padded positions")


def _describe_position(violation: PaddingViolation, padded_use: PaddedUse) -> str:
    """Return a phrase that locates the padding an op reads, or "" if it may be anywhere."""
    if padded_use.dependence.kind == "window":
        is_before = padded_use.dependence.min_offset >= 0
        return f" {'before' if is_before else 'next to'} each position"
    if violation.has_interior_padding():
        return " next to positions that `pad` or `concat` added"
    return ""
