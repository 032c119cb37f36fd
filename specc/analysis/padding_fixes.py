"""Suggest fixes for ops through which padded positions affect an output (W0601)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specc.analysis.causality_messages import find_node_span
from specc.analysis.padding_facts import NO_PADDING_FACTS, PaddingFacts, PaddingSource
from specc.analysis.value_ranges import find_op_behind_views, find_splat_value
from specc.diagnostics.diagnostic import Span
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op


@dataclass(frozen=True, kw_only=True)
class PaddingViolation:
    """A violation of padding invariance: positions that the mask `mask_name` excludes affect the
    output `output` of `graph` through `padding_source`. `states` are the padding properties of all
    values. If `is_nonfinite` is True, padding affects the output only through NaN or infinity.
    """

    graph: Graph
    mask_name: str
    output: str
    padding_source: PaddingSource
    states: Mapping[Value, PaddingFacts]
    is_nonfinite: bool

    @property
    def node(self) -> Node:
        """The op that reads padded positions."""
        return self.padding_source.node

    def find_nonfinite_source(self) -> Node:
        """Return the op that first produces NaN or infinity at padded positions."""
        node = self.node
        while nonfinite_nodes := [
            a.node
            for a in node.operands
            if a.node and not isinstance(a.op, ops.Constant) and not self.get_facts(a).is_finite
        ]:
            node = nonfinite_nodes[0]
        return node

    def get_output_position_order(self) -> str:
        """Return "sorted" or "reverse" for an output in this order, or "" for other outputs."""
        value = self.graph.outputs[self.output]
        if not self.padding_source.is_count_only or self.node is not value.node:
            return ""
        facts = self.get_facts(value)
        return "sorted" if facts.sorted_axes else "reverse" if facts.reversed_axes else ""

    def has_interior_padding(self) -> bool:
        """Return True if padding is between always-valid positions and other valid positions."""
        padded_use = self.padding_source.use
        return padded_use is not None and (
            padded_use.has_interior_padding or padded_use.result_has_interior_padding
        )

    def is_padded(self, value: Value) -> bool:
        """Return True if a value's shape contains the symbolic dimension of the padded axis."""
        symbols = self.graph.inputs[self.mask_name].shape[-1].symbols()
        return any(symbols & d.symbols() for d in value.shape)

    def find_padded_operand(self, node: Node) -> Value | None:
        """Return the first operand of `node` with padded positions, or None if there is none."""
        return next((a for a in node.operands if self.is_padded(a)), None)

    def find_upstream_node(self, node: Node | None, predicate: Callable[[Op], bool]) -> Node | None:
        """Return the nearest node, starting at `node` and following padded operands upstream, whose
        op satisfies `predicate`. Return None if there is none.
        """
        while node is not None and not predicate(node.op):
            value = self.find_padded_operand(node)
            node = value.node if value else None
        return node

    def find_axis_extending_node(self) -> Node | None:
        """Return the op, if any, that added always-valid positions next to the padding."""
        joining = ops.Pad | ops.Concat | ops.Merge
        return self.find_upstream_node(self.node, lambda op: isinstance(op, joining))

    def find_position_id_op(self) -> Op:
        """Return the op that computes the position ids among the operands of `node`."""
        node = self.node
        while counting_nodes := [
            a.node for a in node.operands if a.node and self.get_facts(a).padding_count != {}
        ]:
            node = counting_nodes[0]
        return node.op

    def get_facts(self, value: Value | None) -> PaddingFacts:
        """Return the properties of a value along the padded axis."""
        return self.states.get(value, NO_PADDING_FACTS) if value else NO_PADDING_FACTS

    def get_unmasked_operand(self) -> Value | None:
        """Return the operand that the op reads at padded positions, or the first operand with
        padded positions.
        """
        padded_use = self.padding_source.use
        if padded_use is not None:
            return self.node.args[padded_use.dependence.operand]
        return self.find_padded_operand(self.node)

    def get_padded_axis(self, value: Value | None) -> int:
        """Return the axis that the op reads, the last axis with the size of the mask, or 1."""
        padded_use, shape = self.padding_source.use, value.shape if value else ()
        if padded_use is not None and value is self.get_unmasked_operand():
            return padded_use.axis
        mask_length = self.graph.inputs[self.mask_name].shape[-1]
        return max((n for n, d in enumerate(shape) if d == mask_length), default=1)

    def format_mask(self, value: Value | None) -> str:
        """Format the padding mask of a value as a spec expression, flipped if the value is flipped.
        Return the placeholder `mask` if the mask and the value's axis have different sizes.
        """
        axis, shape = self.get_padded_axis(value), value.shape if value else ()
        if self.graph.inputs[self.mask_name].shape[-1] not in shape[axis : axis + 1]:
            return "mask"
        is_reversed = axis in self.get_facts(value).reversed_axes
        return f"flip({self.mask_name}, axis=1)" if is_reversed else self.mask_name

    def format_broadcast_mask(self, value: Value | None) -> str:
        """Format the padding mask, with axes inserted so that the mask broadcasts with `value`."""
        mask, axis = self.format_mask(value), self.get_padded_axis(value)
        for n in range(1, value.rank if value else 0):
            if n != axis:
                mask = f"insert({mask}, axis={n})"
        return mask

    def has_size_operand(self) -> bool:
        """Return True if the op reads an axis size that includes padded positions."""
        return any(isinstance(find_op_behind_views(a, ops.Cast), ops.Size) for a in self.node.args)

    def has_reversed_operand(self) -> bool:
        """Return True if the op reads an axis that `flip` reversed."""
        return any(self.get_facts(a).reversed_axes for a in self.node.args)

    def get_span(self, node: Node) -> Span | None:
        """Return the source span of a node."""
        return find_node_span(self.padding_source.loop_body or self.graph, node)

    def find_call_site_result(self, node: Node) -> Value | None:
        """Return the result of the call in the user's spec that created a node."""
        graph, span = self.padding_source.loop_body or self.graph, self.get_span(node)
        call = span and (span.caller or span)
        for other, results in reversed(graph.nodes):
            if call in [s.caller or s for s in graph.get_origin(other).spans]:
                return results[0]
        return None

    def suggest_padding_side(self, side: str) -> str:
        """Return the help text that suggests padding on `side`, or "" if `side` is already
        declared.
        """
        if self.graph.input_facts[self.mask_name].padding_side == side:
            return ""
        lengths = ", ".join(map(str, self.graph.inputs[self.mask_name].shape))
        declaration = f"`{self.mask_name}: keep[{lengths}] {side}`"
        return f"if all padding is on the {side}, declare it: {declaration}"


IDENTITY_LITERALS = {"max": "-inf", "min": "inf", "any": "false", "all": "true"}
"""The identity element of each reduction, as a literal of the spec language."""


MASK_ARGUMENTS: Mapping[type[object], str] = {
    ops.Attend: "use `& visible({})`",
    ops.AttentionNormalizer: "use `& visible({})`",
    ops.Scan: "add `keep {}`",
    ops.RecurrentLayer: "add `keep={}`",
    ops.Conv: "add `keep={}`",
    ops.Last: "use `last_token(x, {})`",
}
"""Format strings of the help texts that suggest a padding mask argument, keyed by op class."""

NEUTRAL_NUMBERS: Mapping[type[Op], str] = {
    **dict.fromkeys((ops.MaxPool, ops.Softmax, ops.ArgMax), "-inf"),
    **dict.fromkeys(
        (ops.CumSum, ops.AveragePool, ops.ConvTranspose, ops.WeightedSum, ops.MatMul, ops.Einsum),
        "0.0",
    ),
}
"""For each op, the value at padded positions that does not change the op's result."""


def suggest_padding_fix(violation: PaddingViolation) -> str:
    """Return a fix that excludes padding, or "" if no fix is known."""
    if violation.get_output_position_order() == "reverse":
        return "flip it back: `flip(y, axis=1)`"
    if violation.padding_source.is_shifted or violation.get_output_position_order():
        return violation.suggest_padding_side("right")
    if violation.padding_source.is_count_only:
        return _suggest_count(violation)
    if violation.padding_source.use is None:
        return _suggest_order(violation)
    value = violation.get_unmasked_operand()
    return (
        _suggest_slice(violation, value)
        or _explain_mask(violation, value, _suggest_mask(violation, value))
        or _explain_mask(violation, value, _suggest_number(violation, value))
        or _suggest_op_specific_fix(violation)
    )


def _suggest_count(violation: PaddingViolation) -> str:
    """Suggest a fix for an op that reads position ids or lengths in which padding is counted."""
    if violation.has_size_operand():
        return f"use `sum(float({violation.mask_name}), axis=1)`, the number of valid positions"
    span = violation.get_span(violation.node)
    is_user_op = span is not None and span.caller is None
    if is_user_op and isinstance(violation.find_position_id_op(), ops.Extent | ops.Range):
        return f"use `positions({violation.mask_name})`"
    return violation.suggest_padding_side("right")


def _suggest_order(violation: PaddingViolation) -> str:
    """Suggest a fix for an op that combines axes whose positions are ordered differently (reversed,
    sorted).
    """
    if not violation.has_reversed_operand():
        return violation.suggest_padding_side("right")
    is_elementwise = not isinstance(
        violation.node.op, ops.Attend | ops.AttentionNormalizer | ops.Extent
    )
    flip_help = f"flip the other operands as well: `flip({violation.mask_name}, axis=1)`"
    return flip_help if is_elementwise else "do it before `flip`"


def _suggest_slice(violation: PaddingViolation, value: Value | None) -> str:
    """Suggest declaring the padding side for which a slice drops only padded positions."""
    producer = value.node if value else None
    slice_node = violation.find_upstream_node(producer, lambda op: isinstance(op, ops.Slice))
    match slice_node and slice_node.op:
        case ops.Slice(start=start) if violation.format_mask(value) == "mask":
            return violation.suggest_padding_side("right" if start != 0 else "left")
    return ""


def _explain_mask(violation: PaddingViolation, value: Value | None, fix: str) -> str:
    """Append an explanation to a fix that contains the placeholder `mask`."""
    if not re.search("[(= ]mask[,)`]", fix) or violation.format_mask(value) != "mask":
        return fix
    same_ops = "after the same slices, windows and concatenations"
    return f"{fix}, where `mask` is `{violation.mask_name}` {same_ops}"


def _suggest_mask(violation: PaddingViolation, value: Value | None) -> str:
    """Suggest passing a padding mask to the op, or return "" if the op takes no mask."""
    mask, fill_axes = violation.format_mask(value), violation.get_facts(value).masked_fill_axes
    op, span = violation.node.op, violation.get_span(violation.node)
    in_normalizer = span is not None and bool(span.normalizer)
    if isinstance(op, ops.Softmax) and value and op.axis in fill_axes and op.axis == value.rank - 1:
        condition = "s > -inf" if in_normalizer else violation.format_broadcast_mask(value)
        return f"use `masked_softmax(x, {condition})`"
    if in_normalizer:
        return f"use `& visible({mask})` in the mask of the attention"
    return _get_mask_argument_help(violation).format(mask)


def _get_mask_argument_help(violation: PaddingViolation) -> str:
    """Return the help for an op that takes a mask argument, with a placeholder for the mask."""
    op = violation.node.op
    takes_mask = not (isinstance(op, ops.Conv) and violation.has_interior_padding())
    fixes = (fix for kind, fix in MASK_ARGUMENTS.items() if isinstance(op, kind) and takes_mask)
    mean_help = "use `masked_mean_pool(x, {})`" if op.get_attributes().get("fn") == "mean" else ""
    return next(fixes, mean_help)


def suggest_finite_padding(violation: PaddingViolation, node: Node) -> str:
    """Suggest a fix that makes values at padded positions finite."""
    alternative = ""
    match node.op:
        case ops.Arith("div" | "floordiv" | "mod"):
            alternative = ", or bound the divisor: `max(z, 1e-6)`"
        case ops.Where():
            alternative = ", or fill with a finite number"
    value = violation.find_call_site_result(node)
    mask = violation.format_broadcast_mask(value)
    fix = f"replace padded results: `where({mask}, y, 0.0)`{alternative}"
    return _explain_mask(violation, value, fix)


def _suggest_number(violation: PaddingViolation, value: Value | None) -> str:
    """Suggest filling padding with the op's neutral element, or return "" if the op has none."""
    if violation.has_interior_padding():
        return _suggest_added_number(violation)
    if not (fill := _get_neutral_number(violation)):
        return ""
    mask = violation.format_broadcast_mask(value)
    return f"replace padded values first: `where({mask}, x, {fill})`"


def _suggest_added_number(violation: PaddingViolation) -> str:
    """Suggest a fix for padding between valid positions and positions that `pad` or `concat` added.
    The fix uses the same constant for both, or moves the padding to the other side.
    """
    joining_node = violation.find_axis_extending_node()
    if joining_node is None:
        return ""
    number = _get_added_number(violation, joining_node)
    padded = violation.find_padded_operand(joining_node)
    padded_value = violation.get_facts(padded).get_padding_value(violation.get_padded_axis(padded))
    if number is None or padded_value == float(number) or (padded and padded.dtype == "bool"):
        return violation.suggest_padding_side(_get_other_side(violation, joining_node))
    mask = violation.format_broadcast_mask(padded)
    return f"replace padded values before extending the axis: `where({mask}, x, {number})`"


def _get_added_number(violation: PaddingViolation, node: Node) -> str | None:
    """Return the constant, as a literal, of the positions that `node` adds next to padding, or None
    if it is unknown. For merged axes, return the neutral element of the op that reads the axes.
    """
    match node.op:
        case ops.Merge():
            return _get_neutral_number(violation) or None
        case ops.Pad(mode="constant", value=value):
            return str(float(value))
    numbers = {find_splat_value(a) for a in node.operands if not violation.is_padded(a)}
    number = numbers.pop() if len(numbers) == 1 else None
    return None if number is None else str(number)


def _get_other_side(violation: PaddingViolation, node: Node) -> str:
    """Return the padding side on which added positions are adjacent to valid positions."""
    return "left" if node.args[0] is violation.find_padded_operand(node) else "right"


def _get_neutral_number(violation: PaddingViolation) -> str:
    """Return the op's neutral element as a literal, i.e. the constant that has no effect at padded
    positions. Return "" if there is none.
    """
    match op := violation.node.op:
        case ops.Reduce(fn):
            return IDENTITY_LITERALS.get(fn, "0.0")
        case ops.Delay(fill_value=number) | ops.Pad(mode="constant", value=number):
            return str(float(number))
        case ops.Sort(descending=is_descending) | ops.TopK(largest=is_descending):
            return "-inf" if is_descending else "inf"
        case ops.AveragePool(count_include_pad=False, pads=pads) if any(pads):
            return ""
    return NEUTRAL_NUMBERS.get(type(op), "")


def _suggest_op_specific_fix(violation: PaddingViolation) -> str:
    """Suggest a fix for an op for which no constant at padded positions is neutral."""
    match op := violation.node.op:
        case ops.Index(index=index) if index == 0:
            return violation.suggest_padding_side("right")
        case ops.Concat():
            return violation.suggest_padding_side(_get_other_side(violation, violation.node))
        case ops.Resize():
            return _suggest_repeated_positions(op, violation)
        case ops.GroupNorm():
            return "normalize each position: `layer_norm(x, eps=1e-5) @ norm`"
        case ops.StridedSlice(step=step):
            return f"let the slice run to the end of the axis: `x[:, ::{step}]`"
        case ops.Roll(shift=shift) if (shift.number or 0) > 0:
            return f"use `delay(x, by={shift})`"
    return ""


def _suggest_repeated_positions(op: ops.Resize, violation: PaddingViolation) -> str:
    """Suggest a nearest-neighbor resize, which repeats positions, in place of an interpolation."""
    value = violation.node.get_operand()
    axis = violation.get_padded_axis(value)
    sizes = [str(s) for s in op.sizes]
    sizes[axis - op.axis] = str(value.shape[axis] * max(2, round(max((0.0, *op.factors)))))
    call = f"resize(x, size=[{', '.join(sizes)}], mode=nearest, axis={op.axis})"
    return f"use `{call}`, which repeats positions without interpolation"
