"""Build messages for causality errors of attention: masks, attention weights and reductions over
keys.

If comparisons of position ids prove that a mask includes later positions, the message says so.
Otherwise, the message says that causality could not be proved. A subexpression of a mask cannot be
proved causal if it does not compare position ids:

    pre[i] & pre[j] | j <= i      `pre[i]` compares no position ids
    j >= i                        certain: the mask includes later positions
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import permutations
from math import inf
from typing import NamedTuple

from specc.analysis.affine_indices import find_affine_index
from specc.analysis.attention_matrices import (
    MAX_TRAVERSAL_STEPS,
    AttentionMatrix,
    TraversalBudget,
    has_equal_downsampling_rates,
    list_concat_operands,
    make_attention_matrix,
    solve_memoized,
    unwrap_view,
)
from specc.analysis.mask_bands import find_mask_band, find_one_sided_band
from specc.analysis.masked_constants import find_masked_constants
from specc.analysis.query_key_products import NEUTRAL_ELEMENTS
from specc.analysis.time_axis_prefix_and_chunks import TimeAxis
from specc.analysis.time_dependence_and_unsupported_loops import CausalityViolation, TimeDataflow
from specc.ir import ops
from specc.ir.dependence_marks import MASK_OPERANDS
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.loop_dependence import find_dependences
from specc.ir.types import Interval

MASK_TERM, SCORES_TERM = "seen", "s > -inf"
CAUSAL_MASK_SUFFIX = (
    ", with `seen = grid(causal, y, y)`, [batch, 1, length, length], for a sequence `y`"
)
"""Expressions of the spec language that appear in help texts. `MASK_TERM` (outside a normalizer)
and `SCORES_TERM` (inside a normalizer) are true for visible keys. The text in `CAUSAL_MASK_SUFFIX`
defines `MASK_TERM`.
"""


@dataclass(frozen=True, slots=True)
class CausalityErrorMessage:
    """The error code, text, notes and fixes of a message about a causality violation."""

    code: str
    text: str
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()


def format_zero_attention_weights_help(rank: int, key_axis: int) -> str:
    """Return the help text that suggests setting the attention weights of later keys to 0.
    `key_axis` is the index of the key axis, and `rank` is the number of axes.
    """
    mask = "grid(causal, x, x)"
    if rank == 3:
        mask = f"squeeze({mask}, axis=1)"
    order = "" if key_axis == rank - 1 else " in the layout [batch, heads, query, key]"
    return (
        f"set the weights of later keys to 0: `where({mask}, w, 0.0)`, with the weights "
        f"as `w`{order} and the sequence [batch, length, features] as `x`"
    )


def describe_noncausal_reduction(
    violation: CausalityViolation, flow: TimeDataflow
) -> CausalityErrorMessage | None:
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
            "this mean includes keys of later positions",
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


def _make_reduction_message(text: str, help_text: str) -> CausalityErrorMessage:
    return CausalityErrorMessage("E0711", text, helps=(help_text,))


def _get_neutral_element(node: Node) -> tuple[str, float]:
    """Return the name and the neutral element of a reduction, or ("", 0) for other ops."""
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
    """Return the constant that replaces all masked later keys, or None if there is none."""
    for query_axis, key_axis in permutations(sorted(flow.get_state(value).axes), 2):
        constants = find_masked_constants(value, query_axis, key_axis, flow.time_axis)
        for constant, interval in constants.items():
            if interval.low >= 0:
                return constant
    return None


def _format_literal(constant: float, value: Value) -> str:
    """Format a constant as a spec-language literal of the element type of `value`."""
    if value.dtype == "bool":
        return "true" if constant else "false"
    return f"{constant:g}" if constant else "0.0"


MAX_QUOTED_LENGTH = 40
"""Maximum number of characters of spec source code in a note."""

MAX_INSPECTED_VALUES = 500
"""Maximum number of values visited by the search for a named value."""


@dataclass(frozen=True, slots=True)
class UnprovenCausalMask:
    """A mask that is not provably causal. Either the search budget was exhausted
    (`is_budget_exhausted`), or `value` is the first subexpression of the mask that does not compare
    position ids.
    """

    is_budget_exhausted: bool
    value: Value


def find_unproven_causal_mask(qk: AttentionMatrix | None) -> UnprovenCausalMask | None:
    """Return the subexpression of a mask, or of attention weights, that does not provably mask out
    later positions. Return None if comparisons of position ids prove that the mask includes later
    positions.
    """
    if qk is None:
        return None
    # values that were not analyzed must not be reported as errors
    if find_mask_band(qk.value, qk.query_axis, qk.key_axis, qk.time_axis).is_budget_exhausted:
        return UnprovenCausalMask(True, qk.value)
    budget, default = TraversalBudget(MAX_INSPECTED_VALUES), _UnprovenCausalMaskTerm(None, False)
    term = solve_memoized(qk, _solve_unproven_causal_mask_term, {}, budget, default)
    return UnprovenCausalMask(False, term.value) if term.value else None


def has_different_downsampling_rates(qk: AttentionMatrix | None) -> bool:
    """Return True if keys and queries are downsampled differently, i.e. have different numbers of
    positions per chunk. In this case, the position ids of keys cannot be compared with those of
    queries.
    """
    return qk is not None and not has_equal_downsampling_rates(qk)


def find_non_causal_prefix_length(qk: AttentionMatrix | None) -> Dim | None:
    """Return the prefix length if only prefix positions attend to later positions, else None."""
    if qk is None or qk.query_axis is None or find_one_sided_band(qk).low >= 0:
        return None
    prefix_length = qk.get_prefix_length(qk.query_axis)
    query_band = find_one_sided_band(replace(qk, side="queries"))
    return prefix_length if prefix_length not in (None, 0) and query_band.low >= 0 else None


def find_key_selection_mask(node: Node, time_axis: TimeAxis) -> AttentionMatrix | None:
    """Return the operand of a node that masks keys, such as an attention mask, if any."""
    operand = MASK_OPERANDS.get(type(node.op))
    mask = operand(node) if operand else None
    for dependence in find_dependences(node):
        for item in dependence.masks:
            if mask is not None and operand is not None and item.operand == operand.index:
                return make_attention_matrix(mask, item.query_axis, item.key_axis, time_axis)
    return None


class _UnprovenCausalMaskTerm(NamedTuple):
    """The first subexpression of a mask that does not compare position ids. `is_whole_mask` is true
    if no subexpression of the mask compares position ids.
    """

    value: Value | None
    is_whole_mask: bool


def _solve_unproven_causal_mask_term(
    qk: AttentionMatrix,
) -> Generator[AttentionMatrix, _UnprovenCausalMaskTerm, _UnprovenCausalMaskTerm]:
    """Return the first subexpression of a mask that does not compare position ids. If no term
    compares position ids, as in `pre[i] & pre[j]`, return the complete mask. Yield one subproblem
    per operand to `solve_memoized`.
    """
    node = qk.value.node
    operands = _list_mask_operands(qk, node) if node else None
    if operands is None:
        return _UnprovenCausalMaskTerm(qk.value, True)
    first_unproven, is_all = None, bool(operands)
    # report the first unbounded term, or the whole expression if all terms are bounded
    for operand in operands:
        term = yield operand
        first_unproven = first_unproven or term.value
        is_all = is_all and term.is_whole_mask
    return _UnprovenCausalMaskTerm(qk.value if is_all else first_unproven, is_all)


def _list_mask_operands(qk: AttentionMatrix, node: Node) -> list[AttentionMatrix] | None:
    """Return the mask operands to search, [] for a comparison of position ids, or None for other
    ops.
    """
    if (inner := unwrap_view(qk)) is not None:
        return [inner]
    if (parts := list_concat_operands(qk)) is not None:
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
            # Only comparisons of affine functions of positions are analyzed. All other values are
            # unknown.
            compared = [
                solve_memoized(o, find_affine_index, {}, TraversalBudget(), None) for o in operands
            ]
            return None if None in compared else []
    return None


def get_source_text(graph: Graph, value: Value) -> str:
    """Return the source text of a value on one line, or "" if it is unknown."""
    if spans := graph.get_origin(value.node).spans:
        text = " ".join(spans[0].text.split())
        return text if len(text) <= MAX_QUOTED_LENGTH else f"{text[:MAX_QUOTED_LENGTH]}…"
    return next((n for n, v in graph.inputs.items() if v is value), "")


RATE_MISMATCH_MESSAGE = CausalityErrorMessage(
    "E0712",
    "keys and queries have different total strides, so their positions cannot be compared",
    ("after a strided op, one position represents several input positions",),
    (
        "attend between positions with equal strides: take every second position of the longer "
        "sequence, `x[:, 1::2]`",
    ),
)


CAUSAL_MASK_HELP = "add `& causal` to the mask"


BUDGET_NOTE = f"{MAX_TRAVERSAL_STEPS:,} values were visited".replace(",", " ")


def describe_noncausal_mask(
    graph: Graph, violation: CausalityViolation, flow: TimeDataflow
) -> CausalityErrorMessage:
    """Return the message for attention whose mask is missing or not provably causal."""
    op = violation.node.op
    if isinstance(op, ops.Attend) and op.mask(violation.node) is None:
        return CausalityErrorMessage(
            "E0712",
            "without a mask, positions attend to later positions",
            helps=("write `mask=causal`",),
        )
    mask = find_key_selection_mask(violation.node, flow.time_axis)
    if has_different_downsampling_rates(mask):
        return RATE_MISMATCH_MESSAGE
    prefix_length = find_non_causal_prefix_length(mask)
    if prefix_length is not None:
        return CausalityErrorMessage(
            "E0712",
            "a prefix position attends to positions that do not exist yet",
            (f"the prefix consists of the first {prefix_length} positions",),
            ("let the prefix attend only to itself: `j < m | j <= i`, where `m` is its length",),
        )
    # the band has a finite lower end below 0, so the mask includes some later positions
    if violation.offsets.low > -inf and violation.reason != "all":
        description = (
            f"the mask lets a position attend to {format_position_count(violation.offsets)}"
        )
        return CausalityErrorMessage(
            "E0712", description, format_min_qk_offset(violation.offsets), (CAUSAL_MASK_HELP,)
        )
    unproven = find_unproven_causal_mask(mask)
    # all subexpressions compare position ids, so the mask provably includes later positions
    if unproven is None:
        return CausalityErrorMessage(
            "E0712",
            "the mask lets positions attend to all later positions",
            helps=(CAUSAL_MASK_HELP,),
        )
    if unproven.is_budget_exhausted:
        description = f"the analysis of the mask did not finish: {BUDGET_NOTE}"
        return CausalityErrorMessage("E0712", description, helps=(CAUSAL_MASK_HELP,))
    text = get_source_text(graph, unproven.value)
    return CausalityErrorMessage(
        "E0712",
        "the mask cannot be proved to exclude later positions",
        (f"`{text}` does not compare positions",) if text else (),
        (CAUSAL_MASK_HELP,),
    )


def describe_noncausal_contraction(
    violation: CausalityViolation, flow: TimeDataflow
) -> CausalityErrorMessage:
    """Return the message for a contraction that does not provably exclude later positions."""
    helps = _list_zero_key_helps(violation, flow)
    weights = find_key_selection_mask(violation.node, flow.time_axis)
    if has_different_downsampling_rates(weights):
        return RATE_MISMATCH_MESSAGE
    unproven = find_unproven_causal_mask(weights)
    if violation.offsets.low == -inf and unproven and unproven.is_budget_exhausted:
        text = f"the analysis of the weights did not finish: {BUDGET_NOTE}"
        return CausalityErrorMessage("E0712", text, helps=helps)
    return CausalityErrorMessage(
        "E0712",
        "the result contains values for later positions",
        format_min_qk_offset(violation.offsets),
        helps,
    )


EARLIER_SUM_HELPS = (
    "sum only earlier positions: `cumsum(x, axis=1)`, or a weighted sum: "
    "`attend(x, x, x, mask=causal)`",
)


def _list_zero_key_helps(violation: CausalityViolation, flow: TimeDataflow) -> tuple[str, ...]:
    """Return fixes that set the attention weights of later keys to 0."""
    weights = [a for a in violation.node.operands if len(flow.get_state(a).axes) > 1]
    if not weights:
        return EARLIER_SUM_HELPS
    key_axis = max(flow.get_state(weights[0]).axes)
    return (
        format_zero_attention_weights_help(weights[0].rank, key_axis),
        "or mask them where they are computed: `attend(..., mask=causal)`, `masked_softmax`",
    )


def format_min_qk_offset(offsets: Interval) -> tuple[str, ...]:
    """Return a note that states the minimum offset `q - k`, or () if the offset is unbounded."""
    if offsets.is_empty or offsets.low == -inf:
        return ()
    return (f"q - k can be as low as {int(offsets.low)} here",)


def format_position_count(offsets: Interval) -> str:
    """Format the number of later positions that an op reads, e.g. `2 later positions`."""
    if offsets.is_empty or offsets.low == -inf:
        return "every later position"
    return f"{-int(offsets.low)} later position{'s' if offsets.low < -1 else ''}"
