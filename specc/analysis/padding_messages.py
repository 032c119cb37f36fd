"""W0601: which op reads padded positions."""

from specc.analysis.causality import format_op_name
from specc.analysis.padding_fixes import PaddingLeak, suggest_finite_padding, suggest_padding_fix
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.ir import ops
from specc.ir.graph import Node


def make_padding_diagnostic(leak: PaddingLeak) -> Diagnostic:
    """Return the warning W0601."""
    node = leak.origin() if leak.not_finite else leak.node
    how, what = _describe_not_finite(leak, node) if leak.not_finite else _describe_read(leak)
    fix = suggest_finite_padding(leak, node) if leak.not_finite else suggest_padding_fix(leak)
    return Diagnostic(
        "W0601",
        f"padded positions reach `{leak.output}`: {how}",
        Label.at(leak.span(node), what),
        _label_added_positions(leak, node),
        helps=(fix,) if fix else (),
        severity="warning",
    )


def _label_added_positions(leak: PaddingLeak, node: Node) -> tuple[Label, ...]:
    """Return a label of the op that added positions next to those that are read, where it is on
    another line.
    """
    if leak.not_finite or not leak.is_moved():
        return ()
    here, there = leak.span(node), leak.span(leak.find_joining_op() or node)
    if here is None or there is None or here.line == there.line:
        return ()
    return (Label(there, "positions are added here"),)


def _describe_not_finite(leak: PaddingLeak, node: Node) -> tuple[str, str]:
    """Describe the source of NaN, and return its label."""
    reader = format_op_name(leak.node.op)
    match node.op:
        case ops.Where():
            what = "this is infinite at padded positions"
        case ops.Arith() | ops.Pointwise():
            what = f"`{format_op_name(node.op)}` of zero at padded positions is not finite"
        case _:
            what = "this can be NaN at padded positions"
    return f"`{reader}` reads NaN or infinity there, and NaN times zero is NaN", what


def _describe_read(leak: PaddingLeak) -> tuple[str, str]:
    """Describe which padded positions an op reads, and return the label."""
    called, reading = format_op_name(leak.node.op), leak.padding_source.reading
    if order := leak.order():
        how = ", those that are not padded first" if order == "sorted" else ""
        what = f"positions are in {order} order"
        return f"its {what}{how}", f"these {what}"
    if leak.padding_source.counted:
        return _describe_count(leak)
    if leak.padding_source.shifted:
        sliced = isinstance(leak.node.op, ops.Stride)
        which = "a slice with a step" if sliced else f"the stride of `{called}`"
        return (
            f"with padding on the left, its length decides which positions {which} selects",
            "this selects every n-th position, counted from the first",
        )
    if reading is None:
        order = "flipped" if leak.has_reversed() else "sorted"
        return f"`{called}` combines {order} positions with others", "this combines both orders"
    where = ""
    if reading.link.kind == "window":
        where = " before each position" if reading.link.lo >= 0 else " next to each position"
    elif leak.is_moved():
        where = " next to positions that `pad` or `concat` added"
    return (f"`{called}` reads them{where}, without a mask", "this reads padded positions")


def _describe_count(leak: PaddingLeak) -> tuple[str, str]:
    """Describe what counts padded positions."""
    if leak.has_length():
        called = format_op_name(leak.node.op)
        return f"`{called}` reads a length that includes padding", "this reads the length"
    return (
        "a position is counted from the start of the sequence, padding included",
        "this takes a position index that counts padding",
    )
