"""The messages of W0601: which op lets padded positions in, and which it reads."""

from specc.ir import ops
from specc.ir.graph import Node
from specc.passes.prove.causality import span_of, spoken
from specc.passes.prove.padding_fixes import suggest_finite, suggest_fix
from specc.passes.prove.padding_leak import Leak
from specc.text.diagnostic import Diagnostic, Label


def leak_diagnostic(leak: Leak) -> Diagnostic:
    """Return the warning W0601."""
    if leak.not_finite:
        node = leak.origin()
        how, what = _describe_not_finite(leak, node)
        fix = suggest_finite(leak, node)
    else:
        node = leak.node
        how, what = _describe_read(leak)
        fix = suggest_fix(leak)
    span = span_of(leak.dirt.inside or leak.graph, node)
    return Diagnostic(
        "W0601",
        f"padded positions reach `{leak.output}`: {how}",
        Label(span, what) if span else None,
        helps=(fix,) if fix else (),
        severity="warning",
    )


def _describe_not_finite(leak: Leak, node: Node) -> tuple[str, str]:
    """Say where NaN comes from, and mark it."""
    reader = spoken(leak.node.op)
    match node.op:
        case ops.Where():
            what = "this is infinite at padded positions"
        case ops.Arith() | ops.Pointwise():
            what = f"`{spoken(node.op)}` of zero at padded positions is not finite"
        case _:
            what = "this can be NaN at padded positions"
    return f"`{reader}` reads NaN or infinity there, which times zero is NaN", what


def _describe_read(leak: Leak) -> tuple[str, str]:
    """Say which padded positions an op reads, and mark it."""
    called, link = (
        spoken(leak.node.op),
        leak.dirt.reading and leak.dirt.reading.link,
    )
    if leak.dirt.counted:
        return (
            "a position is counted from the start of the sequence, padding included",
            "this takes the number of a position, padding included",
        )
    if leak.dirt.shifted:
        sliced = isinstance(leak.node.op, ops.Stride)
        which = "a slice with a step" if sliced else f"the stride of `{called}`"
        return (
            "where padding stands on the left, its length decides which positions "
            f"{which} takes",
            "this takes every so many positions, counted from the first",
        )
    where = ""
    if link and link.kind == "window":
        where = " before each position" if link.lo >= 0 else " next to each position"
    elif leak.is_moved():
        where = " next to positions that `pad` or `concat` added"
    return (
        f"`{called}` reads them{where}, no mask stands between",
        "this reads padded positions",
    )
