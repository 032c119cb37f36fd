"""What to write so that padded positions stay out of a result: the helps of W0601."""

from specc.analysis.grid_constants import find_uniform_value
from specc.analysis.padding_leak import PaddingLeak
from specc.ir import ops
from specc.ir.graph import Node

SEQUENCE_LOOP_OPS = (ops.Rnn, ops.Gru, ops.Lstm, ops.Scan)
MASKED_OPS = (ops.Attend, ops.MaskedSoftmax, ops.Hard, ops.Share)
"""Ops that take a mask."""

IDENTITY_LITERALS = {"max": "-inf", "min": "inf", "any": "false", "all": "true"}
"""What a reduction passes over; a sum, zeros."""


def suggest_padding_fix(leak: PaddingLeak) -> str:
    """Say what to write so that padding stays out; "" where nothing is known to help."""
    op = leak.node.op
    if isinstance(op, SEQUENCE_LOOP_OPS):
        scan = isinstance(op, ops.Scan)
        return f"add `keep {leak.keep}`" if scan else f"add `keep={leak.keep}`"
    if leak.dirt.shifted:
        return leak.declared("right")
    if leak.dirt.counted:
        return f"use `positions({leak.keep})`"
    if isinstance(op, ops.Conv) and not leak.is_moved():
        # Behind a stride it is what the convolution before gives.
        return f"add `keep={leak.keep}`, or the second result of the `conv` before"
    return _suggest_number(leak) or _suggest_other(leak)


def suggest_finite_padding(leak: PaddingLeak, node: Node) -> str:
    """Say how to keep values at padded positions finite."""
    bound = ""
    match node.op:
        case ops.Arith(fn="div" | "floordiv" | "mod"):
            bound = ", or bound the divisor: `max(z, 1e-6)`"
        case ops.Where():
            bound = ", or fill with a finite number"
    return f"replace it there: `where({leak.mask(node)}, y, 0.0)`{bound}"


def _suggest_number(leak: PaddingLeak) -> str:
    """Say which number to put at padded positions; "" where none helps."""
    if leak.is_moved():
        return _suggest_added_number(leak)
    fill = _get_neutral_number(leak)
    mask = leak.mask(leak.node)
    return f"replace them first: `where({mask}, x, {fill})`" if fill else ""


def _suggest_added_number(leak: PaddingLeak) -> str:
    """Say how positions that were added hold the same as padded ones, or how padding
    stands on the other side.
    """
    made = leak.joining()
    match made and made.op:
        case ops.Pad(mode="constant", value=value):
            numbers: set[float | None] = {float(value)}
        case ops.Concat() if made is not None:
            parts = [a for a in made.args if a and not leak.is_padded(a)]
            numbers = {find_uniform_value(a) for a in parts}
        case _:
            return ""
    number = numbers.pop() if len(numbers) == 1 else None
    if number is None:
        return leak.declared(_get_other_side(leak, made))
    mask = leak.mask(made or leak.node)
    return f"replace them before it: `where({mask}, x, {number})`"


def _get_other_side(leak: PaddingLeak, node: Node | None) -> str:
    """Return the side of padding that keeps added positions next to valid ones."""
    after = node is not None and node.args[0] and leak.is_padded(node.args[0])
    return "left" if after else "right"


def _get_neutral_number(leak: PaddingLeak) -> str:
    """Return the number at padded positions that makes no difference to the op."""
    match leak.node.op:
        case ops.Reduce(fn="mean"):
            return ""
        case ops.Reduce(fn=fn):
            return IDENTITY_LITERALS.get(fn, "0.0")
        case ops.MaxPool():
            return "-inf"
        case ops.Delay(first=first):
            return str(float(first))
        case ops.Pad(mode="constant", value=value):
            return str(float(value))
        case ops.Softmax() | ops.ArgMax():
            return "-inf"
        case ops.AveragePool(counted=False, pads=pads) if any(pads):
            return ""
        case ops.CumSum() | ops.AveragePool():
            return "0.0"
    return ""


def _suggest_other(leak: PaddingLeak) -> str:
    """Say what helps for ops that no number at padded positions helps."""
    keep = leak.keep
    match op := leak.node.op:
        case ops.Reduce(fn="mean"):
            return f"use `masked_mean_pool(x, {keep})`"
        case ops.Last():
            return f"use `last_token(x, {keep})`"
        case ops.Index(at=at) if at == 0:
            return leak.declared("right")
        case ops.ConvTranspose():
            return _format_transposed_conv_help(op, keep)
        case ops.GroupNorm():
            return "normalize each position: `layer_norm(x, eps=1e-5) @ norm`"
        case ops.Stride(step=step):
            return f"let the slice run to the end of the axis: `x[:, ::{step}]`"
        case ops.Weigh() | ops.MatMul() | ops.Einsum():
            return f"multiply one factor by `{keep}` first: `where(mask, w, 0.0)`"
    return f"use `& visible({keep})`" if isinstance(op, MASKED_OPS) else ""


def _format_transposed_conv_help(op: ops.ConvTranspose, keep: str) -> str:
    """Say how many positions of a transposed convolution are as they are alone."""
    rows = []
    for n, stride in enumerate(op.stride):
        reach = op.dilation[n] * (op.kernel[n] - 1) + 1
        more = reach - stride - op.before[n] - op.behind[n]
        many = "n" if stride == 1 else f"{stride} * n"
        rows.append(many if not more else f"{many} {'-+'[more > 0]} {abs(more)}")
    return (
        f"multiply by `{keep}` first: of n positions that exist the "
        f"{' and '.join(rows)} are then as they are alone; which those are nothing says "
        "behind this"
    )
