"""Build messages and source labels for causality errors. A message states which positions an op
reads, and suggests spec code that avoids the violation.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from specc.analysis.attention_causality_messages import (
    CAUSAL_MASK_SUFFIX,
    MASK_TERM,
    SCORES_TERM,
    CausalityErrorMessage,
    describe_noncausal_contraction,
    describe_noncausal_mask,
    describe_noncausal_reduction,
    format_position_count,
)
from specc.analysis.time_dependence_and_unsupported_loops import CausalityViolation, TimeDataflow
from specc.diagnostics.diagnostic import Diagnostic, Label, Span
from specc.ir import ops
from specc.ir.graph import Graph, Input, Node, Value
from specc.ir.op import Op

NORM_MESSAGE = CausalityErrorMessage(
    "E0711",
    "this norm computes its statistics over all positions",
    helps=("normalize the features, or use a running sum",),
)
DELAY_HELP = ("use `delay(x, by=1)` to shift a sequence by one position",)
NEAREST_HELP = "use `last(x)` for the newest position, `delay(x, by=1)` for the position before"
INDEX_MESSAGE = CausalityErrorMessage(
    "E0711",
    "only the first position of a time axis can be selected by its index",
    ("position 0 would read later positions, which do not exist yet when it is computed",),
    (
        NEAREST_HELP,
        "read only the first position, `x[:, 0:1]`; to make several first positions visible, "
        "use a mask such as `j < 4 & j <= i`",
    ),
)
RESHAPE_MESSAGE = CausalityErrorMessage("E0711", "a time axis cannot be split or merged")
SELECTION_MESSAGE = CausalityErrorMessage(
    "E0711", "this selects from all positions", helps=("weight them with `attend(...)`",)
)


def describe_causality_violation(
    graph: Graph, violation: CausalityViolation, flow: TimeDataflow
) -> CausalityErrorMessage:
    """Return the message for a causality violation whose op may be inside a loop body."""
    # the loop body must be fixed, not the loop
    if violation.body_violation:
        return describe_causality_violation(*violation.body_violation, flow)
    symbol = flow.time_symbol
    match violation.reason:
        case "length":
            return CausalityErrorMessage(
                "E0714",
                f"this is the final length of `{symbol}`, which is unknown during generation",
                helps=("use position indices, `positions(x)`, or `last(x)`",),
            )
        case "newest":
            return CausalityErrorMessage(
                "E0713",
                "earlier positions depend on the newest position",
                helps=("use `last(...)` at the end, or use a running sum",),
            )
        case "captured" if _is_initial_value(violation):
            return CausalityErrorMessage(
                "E0715",
                f"the initial value of this loop depends on `{symbol}`",
                helps=(
                    "use an initial value that does not depend on it, such as zeros; the "
                    "first position may be read inside the loop",
                ),
            )
        case "captured":
            return CausalityErrorMessage(
                "E0715",
                f"a capture of this loop depends on `{symbol}`",
                helps=("pass it to the loop as a scanned input",),
            )
        case "first":
            return CausalityErrorMessage(
                "E0713",
                f"the first position of `{symbol}` is read by prefix positions before it",
                helps=("add it to the sequence before `concat` prepends the prefix",),
            )
        case "shape":
            return CausalityErrorMessage(
                "E0711", f"the positions of the result differ from those of `{symbol}`"
            )
    return describe_noncausal_reduction(violation, flow) or _describe_read(graph, violation, flow)


def _is_initial_value(violation: CausalityViolation) -> bool:
    """Return True if a loop violates causality through an initial value, not through a capture."""
    op = violation.node.op
    if not isinstance(op, ops.Scan):
        return True
    starts = op.first_body_operand_index + op.scanned_count
    return violation.operand is not None and starts <= violation.operand < starts + op.carry_count


FIXED_MESSAGES: Mapping[type[Op], CausalityErrorMessage] = {
    ops.Softmax: CausalityErrorMessage(
        "E0711",
        "this softmax divides by a sum over every position",
        helps=("use `attend(...)` to weight keys",),
    ),
    ops.LayerNorm: NORM_MESSAGE,
    ops.RMSNorm: NORM_MESSAGE,
    ops.Flip: CausalityErrorMessage("E0711", "this reverses the sequence"),
    ops.Split: RESHAPE_MESSAGE,
    ops.Merge: RESHAPE_MESSAGE,
    ops.ArgMax: SELECTION_MESSAGE,
    ops.Sort: SELECTION_MESSAGE,
    ops.Gather: SELECTION_MESSAGE,
    ops.GroupNorm: replace(
        NORM_MESSAGE, helps=("normalize only the features: `layer_norm(x, eps=1e-5) @ norm`",)
    ),
    ops.Pad: CausalityErrorMessage(
        "E0711", "padding of a time axis would move with every new position", helps=DELAY_HELP
    ),
    ops.Resize: CausalityErrorMessage(
        "E0711", "every new position changes the resampled values at all positions"
    ),
    ops.GridSample: CausalityErrorMessage(
        "E0711", "this reads the whole feature map at every point"
    ),
    ops.Roll: CausalityErrorMessage(
        "E0711",
        "this shifts positions from the end to the start, but the end does not exist yet",
        helps=DELAY_HELP,
    ),
    ops.TopK: CausalityErrorMessage(
        "E0711",
        "this selects a fixed number of positions, but early steps have fewer positions",
        helps=(
            "to select keys, use `weights_by(topk(8), z, mask=causal)`; to sort keys, use "
            "`sort(z, axis=-1, descending=true)`",
        ),
    ),
}
"""The messages for ops that can violate causality in exactly one way, keyed by op."""


def _describe_read(
    graph: Graph, violation: CausalityViolation, flow: TimeDataflow
) -> CausalityErrorMessage:
    """Return the message for an op that reads later positions."""
    later_text, is_all = format_position_count(violation.offsets), violation.reason == "all"
    match violation.node.op:
        case ops.Attend() | ops.AttentionNormalizer():
            return describe_noncausal_mask(graph, violation, flow)
        case ops.WeightedSum() | ops.MatMul() | ops.Einsum():
            return describe_noncausal_contraction(violation, flow)
        case ops.Reduce(fn) if is_all:
            return CausalityErrorMessage(
                "E0711",
                f"this {fn} reads every position",
                helps=("use `last(x)`, or a running sum, `cumsum(x)`",),
            )
        case ops.Scan(reverse=True):
            forward = "scan forward along a time axis"
            return CausalityErrorMessage("E0715", "this scan runs backwards", helps=(forward,))
        case ops.RecurrentLayer(reverse=True):
            return CausalityErrorMessage(
                "E0715",
                "this layer runs backwards",
                helps=("use `direction=forward` along a time axis",),
            )
        case ops.Conv() | ops.MaxPool() | ops.AveragePool() | ops.ConvTranspose():
            window_text, helps = describe_noncausal_window(
                violation.node.op, later_text, is_all, flow.time_axis.chunk_size
            )
            return CausalityErrorMessage("E0711", window_text, helps=helps)
        case ops.StridedSlice(step=step):
            return CausalityErrorMessage(
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
    return FIXED_MESSAGES.get(type(violation.node.op)) or CausalityErrorMessage("E0711", text)


def _describe_concat_or_slice(
    violation: CausalityViolation, flow: TimeDataflow
) -> CausalityErrorMessage | None:
    """Return the message if an op adds or selects positions of the time axis, otherwise None."""
    symbol, time_axis, node = flow.time_symbol, flow.time_axis, violation.node
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
        return CausalityErrorMessage("E0711", text, helps=(fix,))
    text = f"this selects positions of the time axis `{symbol}` by index"
    return CausalityErrorMessage(
        "E0711", text, (f"the first {prefix_length} positions are a prefix",), (NEAREST_HELP,)
    )


def _describe_concat(
    violation: CausalityViolation, flow: TimeDataflow, axis: int
) -> CausalityErrorMessage:
    """Return the message for operands that are concatenated along the time axis."""
    lengths = (a.shape[axis] for a in violation.node.operands)
    time_lengths = [n for n in lengths if flow.time_axis.get_prefix_length(n) is not None]
    # both operands grow with time, so a new position could be in either operand
    if len(time_lengths) > 1:
        return CausalityErrorMessage(
            "E0711",
            f"this concatenates two tensors that grow along `{flow.time_symbol}`",
            helps=("attend to each part separately, or add them position by position",),
        )
    return CausalityErrorMessage(
        "E0711",
        f"this appends fixed positions after the time axis `{flow.time_symbol}`: their "
        "positions would change in every step",
        helps=("prepend them: `concat([memory, x], axis=1)`",),
    )


def convert_to_normalizer_message(
    message: CausalityErrorMessage, label: Label | None
) -> CausalityErrorMessage:
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


def describe_noncausal_window(
    op: ops.Conv | ops.ConvTranspose | ops.MaxPool | ops.AveragePool,
    later_text: str,
    reads_all: bool,
    chunk_size: int,
) -> tuple[str, tuple[str, ...]]:
    """Return the error text and the fixes for a convolution or pooling window that reads later
    positions. `later_text` describes these later positions. If `reads_all` is True, the result and
    the time axis have different numbers of positions. `chunk_size` exceeds 1 only in streaming
    inference.
    """
    help_text = UNCOUNTED_PADDING_HELP if isinstance(op, ops.AveragePool) else CAUSAL_PADDING_HELP
    op_name = "convolution" if isinstance(op, ops.Conv | ops.ConvTranspose) else "pool"
    if not reads_all:
        return f"this {op_name} reads {later_text}", help_text
    if isinstance(op, ops.ConvTranspose):
        return "a time axis cannot be lengthened", ()
    if op.stride[0] > 1 and chunk_size > 1:
        # the windows are not aligned with complete chunks
        text = f"this {op_name} does not return one position per {op.stride[0]} input positions"
        return text, help_text
    if op.stride[0] > 1:
        # a decode step would have to wait for `stride` positions
        text = f"this {op_name} reads {op.stride[0]} new positions, but a step has only one"
        return text, ("keep every position along the generated axis: `stride=1`",)
    return f"this {op_name} changes the number of positions", help_text


def find_node_span(graph: Graph, node: Node | None) -> Span | None:
    """Return the source span of a node, or of the nearest upstream node that has one, if any."""
    worklist, visited = [node], set()
    while worklist:
        candidate = worklist.pop(0)
        if candidate is None or candidate in visited:
            continue
        visited.add(candidate)
        if spans := graph.get_origin(candidate).spans:
            return spans[0]
        worklist += [a.node for a in candidate.operands]
    return None


def format_op_name(op: Op) -> str:
    """Return the spec-language name of an op, for use in messages."""
    fn = op.get_attributes().get("fn")
    return fn if isinstance(fn, str) else op.spec_name


def make_violation_labels(
    graph: Graph, violation: CausalityViolation, flow: TimeDataflow
) -> tuple[Label | None, tuple[Label, ...]]:
    """Return the label of the op that violates causality, and the labels of the op's operand. The
    label of the op is None if the op has no source location. If the node is a loop, label the
    violating op in the loop body.
    """
    containing_graph, cause = graph, violation
    while cause.body_violation:
        containing_graph, cause = cause.body_violation
    span = find_node_span(containing_graph, cause.node) or find_node_span(graph, violation.node)
    text = describe_causality_violation(containing_graph, cause, flow).text
    primary = Label.from_span(span, f"`{format_op_name(cause.node.op)}`: {text}")
    operand = cause.node.args[cause.operand] if cause.operand is not None else None
    read_span = find_node_span(containing_graph, operand.node) if operand else None
    labels = (
        (Label(read_span, f"the positions that are read along `{flow.time_symbol}`"),)
        if read_span and read_span != span
        else ()
    )
    return primary, labels


def make_violation_error(
    graph: Graph, flow: TimeDataflow, violation: CausalityViolation, output: str, time_input: str
) -> Diagnostic:
    """Return the error for an op through which `output` depends on later positions."""
    message = describe_causality_violation(graph, violation, flow)
    primary, secondary = make_violation_labels(graph, violation, flow)
    message = convert_to_normalizer_message(message, primary)
    title = f"`{output}` cannot be generated along `{flow.time_symbol}`: {message.text}"
    secondary += make_time_axis_labels(graph.input_facts.get(time_input), flow.time_symbol)
    notes = message.notes
    if (
        violation.reason == "ahead"
        and violation.offsets.low > -inf
        and _is_compensated_later(flow, graph.outputs.get(output))
    ):
        notes = (*notes, LATER_DELAY_NOTE)
    return Diagnostic(message.code, title, primary, secondary, notes, message.helps)


LATER_DELAY_NOTE = (
    "a later `delay` compensates for this, but the position does not exist yet during generation"
)


def _is_compensated_later(flow: TimeDataflow, output: Value | None) -> bool:
    """Return True if the accumulated receptive field of `output` is causal, i.e. if a later op
    compensates for the look-ahead of an earlier op.
    """
    axes = flow.get_state(output).axes.values() if output else ()
    return bool(axes) and all(r.low >= 0 for r in axes)


def make_time_axis_labels(input_facts: Input | None, symbol: str) -> tuple[Label, ...]:
    """Return a label that points at the declaration of the time axis."""
    if input_facts is None or input_facts.span is None:
        return ()
    return (Label(input_facts.span, f"`{symbol}` is the time axis"),)
