"""Build messages for causality errors, which state the positions that an op reads and the spec code
to write instead.

If comparisons of position ids prove that a mask includes later positions, the message states this
fact; otherwise, the message states that causality could not be proved.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from specc.analysis.causality_message_helpers import (
    CausalityMessage,
    describe_reduction_violation,
    describe_window_violation,
    find_key_selection_mask,
    find_non_causal_prefix_length,
    find_unproven_mask,
    format_zero_keys_help,
    get_source_text,
    has_different_chunk_rates,
)
from specc.analysis.query_key_tensors import MAX_TRAVERSAL_STEPS
from specc.analysis.time_dataflow_facts import CausalityViolation, TimeDataflow
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.op import Op
from specc.ir.types import Interval

NORM_MESSAGE = CausalityMessage(
    "E0711",
    "this norm computes its statistics over all positions",
    helps=("normalize the features, or use a running sum",),
)
DELAY_HELP = ("use `delay(x, by=1)` to shift a sequence by one position",)
NEAREST_HELP = "use `last(x)` for the newest position, `delay(x, by=1)` for the position before"
INDEX_MESSAGE = CausalityMessage(
    "E0711",
    "only the first position of a time axis can be selected by its index",
    ("position 0 would read later positions, which do not exist yet when it is computed",),
    (
        NEAREST_HELP,
        "read only the first position, `x[:, 0:1]`; to make several first positions visible "
        "use a mask such as `j < 4 & j <= i`",
    ),
)
RESHAPE_MESSAGE = CausalityMessage("E0711", "a time axis can be neither split nor merged")
SELECTION_MESSAGE = CausalityMessage(
    "E0711", "this selects among all positions", helps=("weight them with `attend(...)`",)
)
RATE_MISMATCH_MESSAGE = CausalityMessage(
    "E0712",
    "keys and queries have different rates, so their positions cannot be compared",
    ("after a strided op, one position represents several input positions",),
    (
        "attend between positions with equal strides: take every second position of the longer "
        "sequence, `x[:, 1::2]`",
    ),
)
CAUSAL_MASK_HELP = "add `& causal` to the mask"
BUDGET_NOTE = f"{MAX_TRAVERSAL_STEPS:,} values were visited".replace(",", " ")


def describe_causality_violation(
    graph: Graph, violation: CausalityViolation, flow: TimeDataflow
) -> CausalityMessage:
    """Return the message for a causality violation. For a loop, describe the op in its body."""
    # the loop body must be changed, not the loop
    if violation.body_violation:
        return describe_causality_violation(*violation.body_violation, flow)
    symbol = flow.symbol
    match violation.reason:
        case "length":
            return CausalityMessage(
                "E0714",
                f"this is the final length of `{symbol}`, which is unknown during generation",
                helps=("use position indices, `positions(x)`, or `last(x)`",),
            )
        case "newest":
            return CausalityMessage(
                "E0713",
                "the newest position is added back to earlier ones",
                helps=("take `last(...)` at the end, or use a running sum",),
            )
        case "captured" if _is_initial_value(violation):
            return CausalityMessage(
                "E0715",
                f"the initial value of this loop depends on `{symbol}`",
                helps=(
                    "use an initial value that does not depend on it, such as zeros; the "
                    "first position may be read inside the loop",
                ),
            )
        case "captured":
            return CausalityMessage(
                "E0715",
                f"a capture of this loop depends on `{symbol}`",
                helps=("pass it to the loop as a scanned input",),
            )
        case "first":
            return CausalityMessage(
                "E0713",
                f"the first position of `{symbol}` is read by prefix positions before it",
                helps=("add it to the sequence before `concat` prepends the prefix",),
            )
        case "shape":
            return CausalityMessage(
                "E0711", f"the positions of the result differ from those of `{symbol}`"
            )
    return describe_reduction_violation(violation, flow) or _describe_read(graph, violation, flow)


def _is_initial_value(violation: CausalityViolation) -> bool:
    """Return True if a loop violates causality through an initial value, not through a capture."""
    op = violation.node.op
    if not isinstance(op, ops.Scan):
        return True
    starts = op.first_body_operand + op.scanned_count
    return violation.operand is not None and starts <= violation.operand < starts + op.carry_count


FIXED_MESSAGES: Mapping[type[Op], CausalityMessage] = {
    ops.Softmax: CausalityMessage(
        "E0711",
        "this softmax divides by a sum over every position",
        helps=("use `attend(...)` to weight keys",),
    ),
    ops.LayerNorm: NORM_MESSAGE,
    ops.RMSNorm: NORM_MESSAGE,
    ops.Flip: CausalityMessage("E0711", "this reverses the sequence"),
    ops.Split: RESHAPE_MESSAGE,
    ops.Merge: RESHAPE_MESSAGE,
    ops.ArgMax: SELECTION_MESSAGE,
    ops.Sort: SELECTION_MESSAGE,
    ops.Gather: SELECTION_MESSAGE,
    ops.GroupNorm: replace(
        NORM_MESSAGE, helps=("normalize only the features: `layer_norm(x, eps=1e-5) @ norm`",)
    ),
    ops.Pad: CausalityMessage(
        "E0711", "padding of a time axis would move with every new position", helps=DELAY_HELP
    ),
    ops.Resize: CausalityMessage(
        "E0711", "every new position changes the resampled values at all positions"
    ),
    ops.GridSample: CausalityMessage("E0711", "this reads the whole feature map at every point"),
    ops.Roll: CausalityMessage(
        "E0711",
        "this shifts positions from the end to the start, but the end does not exist yet",
        helps=DELAY_HELP,
    ),
    ops.TopK: CausalityMessage(
        "E0711",
        "this selects a fixed number of positions, which do not exist at first",
        helps=(
            "for keys, `weights_by(topk(8), z, mask=causal)` weights the largest, and "
            "`sort(z, axis=-1, descending=true)` sorts them",
        ),
    ),
}
"""The messages for ops that can violate causality in only one way."""


def _describe_read(
    graph: Graph, violation: CausalityViolation, flow: TimeDataflow
) -> CausalityMessage:
    """Return the message for an op that reads later positions."""
    later_text, is_all = _format_position_count(violation.offsets), violation.reason == "all"
    match violation.node.op:
        case ops.Attend() | ops.MaskedWeights():
            return _describe_mask(graph, violation, flow)
        case ops.WeightedSum() | ops.MatMul() | ops.Einsum():
            return _describe_product(violation, flow)
        case ops.Reduce(fn) if is_all:
            return CausalityMessage(
                "E0711",
                f"this {fn} reads every position",
                helps=("use `last(x)`, or a running sum, `cumsum(x)`",),
            )
        case ops.Scan(reverse=True):
            forward = "scan forward along a time axis"
            return CausalityMessage("E0715", "this scan runs backwards", helps=(forward,))
        case ops.RecurrentLayer(reverse=True):
            return CausalityMessage(
                "E0715",
                "this layer runs backwards",
                helps=("use `direction=forward` along a time axis",),
            )
        case ops.Conv() | ops.MaxPool() | ops.AveragePool() | ops.ConvTranspose():
            window_text, helps = describe_window_violation(
                violation.node.op, later_text, is_all, flow.time_axis.chunk_size
            )
            return CausalityMessage("E0711", window_text, helps=helps)
        case ops.StridedSlice(step=step):
            return CausalityMessage(
                "E0711",
                f"this keeps one of every {step} positions, but a step computes every position",
                helps=(
                    "keep all positions and mask the others where they are read: "
                    f"`mask some = j % {step} == 0`, then `mask=causal & some`",
                ),
            )
    if (message := _describe_concat_or_slice(violation, flow)) is not None:
        return message
    text = (
        "this reads every position" if is_all else f"this makes position t depend on {later_text}"
    )
    return FIXED_MESSAGES.get(type(violation.node.op)) or CausalityMessage("E0711", text)


def _describe_concat_or_slice(
    violation: CausalityViolation, flow: TimeDataflow
) -> CausalityMessage | None:
    """Return the message for an op that adds or indexes positions of the time axis, or None."""
    symbol, time_axis, node = flow.symbol, flow.time_axis, violation.node
    match node.op:
        case ops.Concat(axis):
            return _describe_concat(violation, flow, axis)
        case ops.Slice(axis, start) | ops.Index(axis=axis, start=start):
            length = node.get_operand().shape[axis]
        case _:
            return None
    prefix_length = time_axis.get_prefix_length(length)
    if prefix_length is None or prefix_length == 0:
        return INDEX_MESSAGE
    if isinstance(node.op, ops.Slice) and node.op.stop == length:
        text = f"this drops positions of the time axis `{symbol}`, from position {start} on"
        fix = f"slice off exactly the {prefix_length} prefix positions: `x[:, {prefix_length}:]`"
        return CausalityMessage("E0711", text, helps=(fix,))
    text = f"this selects positions of the time axis `{symbol}` by index"
    return CausalityMessage(
        "E0711", text, (f"the first {prefix_length} positions are a prefix",), (NEAREST_HELP,)
    )


def _describe_concat(
    violation: CausalityViolation, flow: TimeDataflow, axis: int
) -> CausalityMessage:
    """Return the message for operands that are concatenated along the time axis."""
    lengths = (a.shape[axis] for a in violation.node.operands)
    time_lengths = [n for n in lengths if flow.time_axis.get_prefix_length(n) is not None]
    # both operands grow with time, so a new position could be in either operand
    if len(time_lengths) > 1:
        return CausalityMessage(
            "E0711",
            f"this concatenates two parts that grow along `{flow.symbol}`",
            helps=("attend to each part separately, or add them position by position",),
        )
    return CausalityMessage(
        "E0711",
        f"this appends fixed positions after the time axis `{flow.symbol}`: they would "
        "move with every new position",
        helps=("prepend them: `concat([memory, x], axis=1)`",),
    )


def _describe_mask(
    graph: Graph, violation: CausalityViolation, flow: TimeDataflow
) -> CausalityMessage:
    """Return the message for attention whose mask is missing or not provably causal."""
    op = violation.node.op
    if isinstance(op, ops.Attend) and op.mask(violation.node) is None:
        return CausalityMessage(
            "E0712",
            "without a mask positions attend to later positions",
            helps=("write `mask=causal`",),
        )
    mask = find_key_selection_mask(violation.node, flow.time_axis)
    if has_different_chunk_rates(mask):
        return RATE_MISMATCH_MESSAGE
    prefix_length = find_non_causal_prefix_length(mask)
    if prefix_length is not None:
        return CausalityMessage(
            "E0712",
            "a prefix position attends to positions that do not exist yet",
            (f"the prefix is the {prefix_length} positions before the time axis",),
            ("let the prefix attend only to itself: `j < m | j <= i`, where `m` is its length",),
        )
    # the band contains later positions, so the mask is too wide
    if violation.offsets.low > -inf and violation.reason != "all":
        description = (
            f"the mask lets a position attend to {_format_position_count(violation.offsets)}"
        )
        return CausalityMessage(
            "E0712", description, _format_window_help(violation.offsets), (CAUSAL_MASK_HELP,)
        )
    unproven = find_unproven_mask(mask)
    # all subexpressions are bounded, so the comparisons include later positions
    if unproven is None:
        return CausalityMessage(
            "E0712",
            "the mask lets positions attend to all later positions",
            helps=(CAUSAL_MASK_HELP,),
        )
    if unproven.is_budget_exhausted:
        description = f"the analysis of the mask did not finish: {BUDGET_NOTE}"
        return CausalityMessage("E0712", description, helps=(CAUSAL_MASK_HELP,))
    text = get_source_text(graph, unproven.value)
    return CausalityMessage(
        "E0712",
        "the mask is not proved to exclude later positions",
        (f"`{text}` does not compare positions",) if text else (),
        (CAUSAL_MASK_HELP,),
    )


def _describe_product(violation: CausalityViolation, flow: TimeDataflow) -> CausalityMessage:
    """Return the message for a contraction that does not provably exclude later positions."""
    helps = _list_zero_key_helps(violation, flow)
    weights = find_key_selection_mask(violation.node, flow.time_axis)
    if has_different_chunk_rates(weights):
        return RATE_MISMATCH_MESSAGE
    unproven = find_unproven_mask(weights)
    if violation.offsets.low == -inf and unproven and unproven.is_budget_exhausted:
        text = f"the analysis of the weights did not finish: {BUDGET_NOTE}"
        return CausalityMessage("E0712", text, helps=helps)
    return CausalityMessage(
        "E0712",
        "the result contains values for later positions",
        _format_window_help(violation.offsets),
        helps,
    )


EARLIER_SUM_HELPS = (
    "sum only earlier positions: `cumsum(x, axis=1)`, or weighted, `attend(x, x, x, mask=causal)`",
)


def _list_zero_key_helps(violation: CausalityViolation, flow: TimeDataflow) -> tuple[str, ...]:
    """Return fixes that set the attention weights of later keys to 0."""
    weights = [a for a in violation.node.operands if len(flow.get_state(a).axes) > 1]
    if not weights:
        return EARLIER_SUM_HELPS
    key_axis = max(flow.get_state(weights[0]).axes)
    return (
        format_zero_keys_help(weights[0].rank, key_axis),
        "or mask them where they are computed: `attend(..., mask=causal)`, `masked_softmax`",
    )


def _format_window_help(offsets: Interval) -> tuple[str, ...]:
    if offsets.is_empty or offsets.low == -inf:
        return ()
    return (f"q - k can be as low as {int(offsets.low)} here",)


def _format_position_count(offsets: Interval) -> str:
    if offsets.is_empty or offsets.low == -inf:
        return "every later position"
    return f"{-int(offsets.low)} later position{'s' if offsets.low < -1 else ''}"
