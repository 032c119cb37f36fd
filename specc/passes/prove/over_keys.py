"""What is said of an op that reads all keys of a grid, where hidden ones do not hold what
makes no difference to it.
"""

from math import inf

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.passes.prove.beyond import beyond
from specc.passes.prove.flow import Flow, Leak
from specc.passes.prove.said import BY_MASK, MASK, Said

NEUTRAL = {"sum": 0.0, "max": -inf, "min": inf, "any": 0.0, "all": 1.0}
"""What hidden keys must hold for these reductions."""


def over_keys(leak: Leak, found: Flow) -> Said | None:
    """What is said, with the mend; None where the op reads no keys of a grid."""
    node = leak.node
    x = node.args[leak.operand] if leak.operand is not None else None
    op, wanted = _wanted(node)
    if x is None or leak.why != "all" or not op or len(found.state(x).axes) < 2:
        return None
    if op == "mean":
        return _said(
            "this mean counts keys that are not there yet",
            "divide a sum by how many the mask shows: "
            f"`sum(x, axis=-1) / sum(float({MASK}), axis=-1)`",
        )
    neutral, held = _written(wanted, x), _held(x, found)
    mend = f"`where({MASK}, x, {neutral})`{BY_MASK}"
    if held is None:
        what = f"this {op} goes over keys, later ones too"
        return _said(what, f"hide them first: {mend}")
    if held == wanted:
        return None
    return _said(
        f"this {op} goes over keys, and the hidden ones hold {_written(held, x)}, "
        f"not {neutral}: with more of them it may change",
        f"hide them by {neutral}: {mend}",
    )


def _said(what: str, mend: str) -> Said:
    return Said("E0711", what, helps=(mend,))


def _wanted(node: Node) -> tuple[str, float]:
    """What the op is called, and what it skips; nothing for other ops."""
    match node.op:
        case ops.Reduce(fn=fn):
            return fn, NEUTRAL.get(fn, 0.0)
        case ops.ArgMax():
            return "argmax", -inf
        case ops.Softmax():
            return "softmax", -inf
        case ops.Sort(descending=descending):
            return "sort", -inf if descending else inf
        case ops.TopK(largest=largest):
            return "topk", -inf if largest else inf
    return "", 0.0


def _held(x: Value, found: Flow) -> float | None:
    """The number that hidden keys hold, where none is shown that comes later."""
    times = sorted(found.state(x).axes)
    for query in times:
        for key in times:
            if query != key:
                for number, reach in beyond(x, query, key, found.clock).items():
                    if reach.lo >= 0:
                        return number
    return None


def _written(number: float, x: Value) -> str:
    """A number as a spec writes it."""
    if x.type.dtype == "bool":
        return "true" if number else "false"
    return f"{number:g}" if number else "0.0"
