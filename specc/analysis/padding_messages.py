"""W0601: which op reads padded positions, and a fix that `specc check` accepts."""

from specc.analysis.causality import find_node_span, format_op_name
from specc.analysis.padding_fixes import suggest_finite_padding, suggest_padding_fix
from specc.analysis.padding_leak import PaddingLeak
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.ir import ops
from specc.ir.graph import Node


def make_padding_diagnostic(leak: PaddingLeak) -> Diagnostic:
    """Return the warning W0601."""
    if leak.not_finite:
        node = leak.origin()
        how, what = _describe_not_finite(leak, node)
        fix = suggest_finite_padding(leak, node)
    else:
        node = leak.node
        how, what = _describe_read(leak)
        fix = suggest_padding_fix(leak)
    span = find_node_span(leak.dirt.inside or leak.graph, node)
    return Diagnostic(
        "W0601",
        f"padded positions reach `{leak.output}`: {how}",
        Label(span, what) if span else None,
        helps=(fix,) if fix else (),
        severity="warning",
    )


def _describe_not_finite(leak: PaddingLeak, node: Node) -> tuple[str, str]:
    """Say where NaN comes from, and mark it."""
    reader = format_op_name(leak.node.op)
    match node.op:
        case ops.Where():
            what = "this is infinite at padded positions"
        case ops.Arith() | ops.Pointwise():
            what = f"`{format_op_name(node.op)}` of zero at padded positions is not finite"
        case _:
            what = "this can be NaN at padded positions"
    return f"`{reader}` reads NaN or infinity there, which times zero is NaN", what


def _describe_read(leak: PaddingLeak) -> tuple[str, str]:
    """Say which padded positions an op reads, and mark it."""
    called, link = (format_op_name(leak.node.op), leak.dirt.reading and leak.dirt.reading.link)
    if leak.dirt.counted:
        return (
            "a position is counted from the start of the sequence, padding included",
            "this takes the number of a position, padding included",
        )
    if leak.dirt.shifted:
        sliced = isinstance(leak.node.op, ops.Stride)
        which = "a slice with a step" if sliced else f"the stride of `{called}`"
        return (
            f"where padding stands on the left, its length decides which positions {which} takes",
            "this takes every so many positions, counted from the first",
        )
    where = ""
    if link and link.kind == "window":
        where = " before each position" if link.lo >= 0 else " next to each position"
    elif leak.is_moved():
        where = " next to positions that `pad` or `concat` added"
    return (f"`{called}` reads them{where}, no mask stands between", "this reads padded positions")
