"""Build the parts of causality messages that concern windows, reductions over keys, and masks that
are not provably causal.

A subexpression of a mask that compares no position ids cannot be proved causal:

    pre[i] & pre[j] | j <= i      `pre[i]` compares no position ids
    j >= i                        certain: the mask includes later positions
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import permutations
from math import inf
from typing import NamedTuple

from specc.analysis.affine_indices import find_affine_index
from specc.analysis.mask_bands import find_mask_band, find_one_sided_band
from specc.analysis.masked_constants import find_masked_constants
from specc.analysis.query_key_constants import NEUTRAL_ELEMENTS
from specc.analysis.query_key_tensors import (
    QueryKeyTensor,
    TraversalBudget,
    has_equal_chunk_rates,
    make_query_key_tensor,
    solve_memoized,
    split_concat,
    unwrap_view,
)
from specc.analysis.time_axis import TimeAxis
from specc.analysis.time_dataflow_facts import CausalityViolation, TimeDataflow
from specc.diagnostics.diagnostic import Label
from specc.ir import ops
from specc.ir.dependence_marks import MASK_OPERANDS
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.loop_dependence import find_dependences

MASK_TERM, SCORES_TERM = "seen", "s > -inf"
CAUSAL_MASK_SUFFIX = (
    ", with `seen = grid(causal, y, y)`, [batch, 1, length, length], for a sequence `y`"
)
"""Spec expressions in help texts. `MASK_TERM` (outside a normalizer) and `SCORES_TERM` (inside a
normalizer) are true for visible keys; `CAUSAL_MASK_SUFFIX` defines `MASK_TERM`.
"""


@dataclass(frozen=True, slots=True)
class CausalityMessage:
    """The code, text, notes and fixes of an error message about a causality violation."""

    code: str
    text: str
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()


def format_zero_keys_help(rank: int, keys: int) -> str:
    """Return the help text that suggests setting the attention weights of later keys to 0. `keys`
    is the index of the key axis, and `rank` is the number of axes.
    """
    mask = "grid(causal, x, x)"
    if rank == 3:
        mask = f"squeeze({mask}, axis=1)"
    order = "" if keys == rank - 1 else " while they are [batch, heads, query, key]"
    return (
        f"set the weights of later keys to 0: `where({mask}, w, 0.0)`, with the weights "
        f"as `w`{order} and the sequence [batch, length, features] as `x`"
    )


def rephrase_for_normalizer(message: CausalityMessage, label: Label | None) -> CausalityMessage:
    """Convert the message for an op inside a normalizer into E0723, which names the normalizer."""
    name = label.span.normalizer if label else ""
    if not name:
        return message
    text = f"the normalizer `{name}` is not causal: {message.text}"
    note = "the scores (`s` here) are -inf at masked positions"
    # the op has no mask operand, so its scores determine which keys are masked out
    helps = (
        h.removesuffix(CAUSAL_MASK_SUFFIX).replace(MASK_TERM, SCORES_TERM) for h in message.helps
    )
    notes = (*message.notes, note)
    return replace(message, code="E0723", text=text, notes=notes, helps=tuple(helps))


CAUSAL_PADDING_HELP = ("write `padding=causal`",)
UNCOUNTED_PADDING_HELP = ("write `padding=causal, counted=false`",)


def describe_window_violation(
    op: ops.Conv | ops.ConvTranspose | ops.MaxPool | ops.AveragePool,
    later_text: str,
    is_all: bool,
    chunk_size: int,
) -> tuple[str, tuple[str, ...]]:
    """Return the error text and the fixes for a convolution or pooling window that reads later
    positions, which `later_text` describes. If `is_all` is True, the result has another number of
    positions than the time axis. `chunk_size` exceeds 1 only in streaming inference.
    """
    help_text = UNCOUNTED_PADDING_HELP if isinstance(op, ops.AveragePool) else CAUSAL_PADDING_HELP
    op_name = "convolution" if isinstance(op, ops.Conv | ops.ConvTranspose) else "pool"
    if not is_all:
        return f"this {op_name} reads {later_text}", help_text
    if isinstance(op, ops.ConvTranspose):
        return "a time axis cannot be lengthened", ()
    if op.stride[0] > 1 and chunk_size > 1:
        # the number of complete chunks would not match the strides
        text = f"this {op_name} does not return one position per {op.stride[0]} input positions"
        return text, help_text
    if op.stride[0] > 1:
        # a decode step would have to wait for `stride` positions
        text = f"this {op_name} reads {op.stride[0]} new positions, but a step has one"
        return text, ("keep every position along the generated axis: `stride=1`",)
    return f"this {op_name} changes the number of positions", help_text


def describe_reduction_violation(
    violation: CausalityViolation, flow: TimeDataflow
) -> CausalityMessage | None:
    """Return the message for a reduction that includes later keys, or None for other ops."""
    node = violation.node
    value = node.args[violation.operand] if violation.operand is not None else None
    op_name, neutral_element = _get_neutral_element(node)
    if (
        value is None
        or violation.reason != "all"
        or not op_name
        or len(flow.get_state(value).axes) < 2
    ):
        return None
    if op_name == "mean":
        return _make_reduction_message(
            "this mean counts keys of later positions",
            "divide a sum by the number of visible keys: "
            f"`sum(x, axis=-1) / sum(float({MASK_TERM}), axis=-1)`",
        )
    neutral_literal = _format_literal(neutral_element, value)
    masked_value = _find_masked_number(value, flow)
    help_text = f"`where({MASK_TERM}, x, {neutral_literal})`{CAUSAL_MASK_SUFFIX}"
    if masked_value is None:
        text = f"this {op_name} includes later keys"
        return _make_reduction_message(text, f"mask them first: {help_text}")
    if masked_value == neutral_element:
        return None
    return _make_reduction_message(
        f"this {op_name} reduces over keys, and masked keys have the value "
        f"{_format_literal(masked_value, value)}, not {neutral_literal}: more masked keys may "
        "change the result",
        f"mask them with {neutral_literal}: {help_text}",
    )


def _make_reduction_message(text: str, help_text: str) -> CausalityMessage:
    return CausalityMessage("E0711", text, helps=(help_text,))


def _get_neutral_element(node: Node) -> tuple[str, float]:
    """Return the name of a reduction and its neutral element, or "" and 0 for other ops."""
    match node.op:
        case ops.Reduce(fn):
            return fn, NEUTRAL_ELEMENTS.get(fn, 0.0)
        case ops.ArgMax():
            return "argmax", -inf
        case ops.Softmax():
            return "softmax", -inf
        case ops.Sort(descending=descending):
            return "sort", -inf if descending else inf
        case ops.TopK(largest=largest):
            return "topk", -inf if largest else inf
    return "", 0.0


def _find_masked_number(value: Value, flow: TimeDataflow) -> float | None:
    """Return the constant that replaces all later keys because they are masked out, or None."""
    for query_axis, key_axis in permutations(sorted(flow.get_state(value).axes), 2):
        constants = find_masked_constants(value, query_axis, key_axis, flow.time_axis)
        for constant, interval in constants.items():
            if interval.low >= 0:
                return constant
    return None


def _format_literal(constant: float, value: Value) -> str:
    """Format a constant as a literal of the spec language, for the element type of `value`."""
    if value.dtype == "bool":
        return "true" if constant else "false"
    return f"{constant:g}" if constant else "0.0"


MAX_QUOTED_LENGTH = 40
"""Maximum number of characters of spec source that a note quotes."""

MAX_INSPECTED_VALUES = 500
"""Maximum number of values to inspect in the search for a named value."""


@dataclass(frozen=True, slots=True)
class UnprovenMask:
    """A mask that is not provably causal. Either the search budget was exhausted
    (`is_budget_exhausted`), or `value` is the first subexpression of the mask that does not compare
    position ids.
    """

    is_budget_exhausted: bool
    value: Value


def find_unproven_mask(qk: QueryKeyTensor | None) -> UnprovenMask | None:
    """Return the subexpression of a mask, or of attention weights, that does not provably mask out
    later positions. Return None if comparisons of position ids prove that the mask includes later
    positions.
    """
    if qk is None:
        return None
    # values that were not analyzed must not be reported as errors
    if find_mask_band(qk.value, qk.query_axis, qk.key_axis, qk.time_axis).is_budget_exhausted:
        return UnprovenMask(True, qk.value)
    budget, default = TraversalBudget(MAX_INSPECTED_VALUES), _UnprovenMaskTerm(None, False)
    term = solve_memoized(qk, _solve_unproven_mask_term, {}, budget, default)
    return UnprovenMask(False, term.value) if term.value else None


def has_different_chunk_rates(qk: QueryKeyTensor | None) -> bool:
    """Return True if keys and queries have different numbers of positions per chunk, so that their
    position ids are not comparable.
    """
    return qk is not None and not has_equal_chunk_rates(qk)


def find_non_causal_prefix_length(qk: QueryKeyTensor | None) -> Dim | None:
    """Return the prefix length if only prefix positions attend to later positions, or None."""
    if qk is None or qk.query_axis is None or find_one_sided_band(qk).low >= 0:
        return None
    prefix_length = qk.get_prefix_length(qk.query_axis)
    query_band = find_one_sided_band(replace(qk, side="queries"))
    return prefix_length if prefix_length not in (None, 0) and query_band.low >= 0 else None


def find_key_selection_mask(node: Node, time_axis: TimeAxis) -> QueryKeyTensor | None:
    """Return the attention mask of a node, or contraction weights that select keys."""
    operand = MASK_OPERANDS.get(type(node.op))
    mask = operand(node) if operand else None
    for dependence in find_dependences(node):
        for gate in dependence.gates:
            if mask is not None and operand is not None and gate.operand == operand.index:
                return make_query_key_tensor(mask, gate.query_axis, gate.key_axis, time_axis)
    return None


class _UnprovenMaskTerm(NamedTuple):
    """The first subexpression of a mask that does not compare position ids. `is_whole_mask` is true
    if no subexpression compares position ids.
    """

    value: Value | None
    is_whole_mask: bool


def _solve_unproven_mask_term(
    qk: QueryKeyTensor,
) -> Generator[QueryKeyTensor, _UnprovenMaskTerm, _UnprovenMaskTerm]:
    """Return the first subexpression of a mask that does not compare position ids. If no term
    compares position ids, as in `pre[i] & pre[j]`, return the complete mask. Yield the subproblems
    for the operands to `solve_memoized`.
    """
    node = qk.value.node
    operands = _list_mask_operands(qk, node) if node else None
    if operands is None:
        return _UnprovenMaskTerm(qk.value, True)
    first_unproven, is_all = None, bool(operands)
    # report the first term that is not bounded, or the whole expression if all terms are bounded
    for operand in operands:
        term = yield operand
        first_unproven = first_unproven or term.value
        is_all = is_all and term.is_whole_mask
    return _UnprovenMaskTerm(qk.value if is_all else first_unproven, is_all)


def _list_mask_operands(qk: QueryKeyTensor, node: Node) -> list[QueryKeyTensor] | None:
    """Return the mask operands to search, [] for compared position ids, or None for other ops."""
    if (inner := unwrap_view(qk)) is not None:
        return [inner]
    if (parts := split_concat(qk)) is not None:
        return parts
    operands = qk.align_operands()
    match node.op:
        case ops.Constant():
            return []
        case ops.And() | ops.Or() | ops.Not():
            return operands
        case ops.Where() if qk.value.dtype == "bool":
            return operands
        case ops.Compare():
            # Affine functions of positions are analyzed; the result of any other comparison is
            # unknown.
            compared = [
                solve_memoized(o, find_affine_index, {}, TraversalBudget(), None) for o in operands
            ]
            return None if None in compared else []
    return None


def get_source_text(graph: Graph, value: Value) -> str:
    """Return the source text of a value as one line, or "" if unknown."""
    if spans := graph.get_origin(value.node).spans:
        text = " ".join(spans[0].text.split())
        return text if len(text) <= MAX_QUOTED_LENGTH else f"{text[:MAX_QUOTED_LENGTH]}…"
    return next((n for n, v in graph.inputs.items() if v is value), "")
