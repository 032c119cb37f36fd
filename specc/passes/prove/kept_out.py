"""What to write so that padded rows stay out of a result: the helps of W0601."""

from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.op import Op
from specc.passes.prove.rows import Dirt


def mend_of(graph: Graph, dirt: Dirt, keep: str) -> str:
    """What to write instead; nothing where nothing is known to help."""
    if dirt.shifted and not isinstance(dirt.node.op, LOOPS):
        lengths = ", ".join(map(str, graph.inputs[keep].type.shape))
        return f"declare `{keep}: keep[{lengths}] right`"
    if dirt.counted and not isinstance(dirt.node.op, LOOPS):
        return f"use `positions({keep})`"
    return _hidden(dirt.node.op, keep)


LOOPS = (ops.Rnn, ops.Gru, ops.Lstm, ops.Scan)


def _hidden(op: Op, keep: str) -> str:
    """How an op is told which rows exist; nothing where no way is known."""
    match op:
        case ops.Rnn() | ops.Gru() | ops.Lstm():
            return f"add `keep={keep}`"
        case ops.Scan():
            return f"add `keep {keep}`"
        case ops.Conv():
            # Behind a stride it is what the convolution before gives.
            return f"add `keep={keep}`, or the second result of the `conv` before"
        case ops.ConvTranspose():
            return _own_rows(op, keep)
        case ops.MaxPool():
            return f"hide them first: `where(insert({keep}, axis=2), x, -inf)`"
        case ops.Reduce() | ops.CumSum() | ops.Delay() | ops.AveragePool():
            return f"multiply by `{keep}` first"
        case ops.GroupNorm():
            return "normalize each row alone: `layer_norm(x, eps=1e-5) @ norm`"
        case ops.Stride(step=step):
            return f"let the slice run to the end of the axis: `x[:, ::{step}]`"
        case ops.Roll() | ops.Pad() | ops.Resize():
            return ""  # no mask is taken, and no zero would make a row unseen
    return f"use `& visible({keep})`"


def _own_rows(op: ops.ConvTranspose, keep: str) -> str:
    """When rows are made longer as they are alone, and how many of them."""
    rows = []
    for n, stride in enumerate(op.stride):
        reach = op.dilation[n] * (op.kernel[n] - 1) + 1
        more = reach - stride - op.before[n] - op.behind[n]
        many = "n" if stride == 1 else f"{stride} * n"
        rows.append(many if not more else f"{many} {'-+'[more > 0]} {abs(more)}")
    return (
        f"multiply by `{keep}` first: of n rows that exist the {' and '.join(rows)} are "
        "then as they are alone; which those are nothing says behind this"
    )
