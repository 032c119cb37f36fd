"""What no row along the axis may be given: what loops begin with or take from outside
and that moves, and for rows of a head, the first row behind them.
"""

from collections.abc import Iterator, Sequence

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.heads import Clock
from specc.passes.prove.moving import Leak, State


def taken(node: Node, given: Sequence[State], clock: Clock) -> Iterator[Leak]:
    """What a loop along the axis begins with, or takes from outside, and must not."""
    match node.op:
        case ops.Scan() if runs_along(node, node.op, clock):
            starts = node.op.first + node.op.scanned
            captured = starts + node.op.carries
            # Carries and captures are the same for all rows of a loop: if they move, a
            # row sees rows that come later. What the first row tells is there for every
            # row, but not before the first.
            for n, state in enumerate(given[starts:], starts):
                if state.moves and not (n >= captured and state.latched):
                    yield Leak(node, "captured", n)
        case ops.Rnn() | ops.Gru() | ops.Lstm():
            # Of other moving states their own links tell.
            for place in (s.place for s in node.op.first_states):
                if place < len(given) and given[place].latched:
                    yield Leak(node, "captured", place)


def before_first(
    node: Node, results: Sequence[Value], given: Sequence[State], clock: Clock
) -> bool:
    """Whether rows of a head may read the first row, which is behind them."""
    if isinstance(node.op, ops.Extent) or not any(s.latched for s in given):
        return False
    if isinstance(node.op, ops.Scan) and not runs_along(node, node.op, clock):
        return False  # each op of its body is asked
    heads = (clock.head(d) for r in results for d in r.type.shape)
    return any(head is not None and head != 0 for head in heads)


def runs_along(node: Node, op: ops.Scan, clock: Clock) -> bool:
    """Whether a loop runs along what grows."""
    return clock.head(op.row(node).type.shape[op.axis]) is not None
