"""The words for an op that leaks: what it does that cannot be while a text is written, and
what to write instead.

What the proof did not find out is said to be so: that a mask shows later positions is
said only where a comparison of row numbers says it.
"""

from collections.abc import Mapping

from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.interval import Interval
from specc.ir.marks import GATE
from specc.ir.op import Op
from specc.passes.prove.doubt import at_two_paces, doubt_of, head_ahead, text_of
from specc.passes.prove.flow import Flow, Leak
from specc.passes.prove.once import MOST_STEPS
from specc.passes.prove.over_keys import over_keys
from specc.passes.prove.said import Said, of_rows, zero_later_keys
from specc.passes.prove.windows import window_words

UNBOUNDED = float("inf")

NORM = Said(
    "E0711",
    "this norm takes its statistics over every position",
    helps=("normalize the features, or use a running sum",),
)
NEAREST = "use `last(x)` for the newest row, `delay(x, by=1)` for the row before"
PICKED = Said(
    "E0711",
    "of the rows of a growing axis none but the first can be picked by number",
    ("row 0 would read the others, which are not there when it is made",),
    (
        NEAREST,
        "the first, `x[:, 0:1]`, may go into all; several first rows are shown by a "
        "mask such as `j < 4 & j <= i`",
    ),
)
APART = Said("E0711", "a growing axis can be neither split nor merged")
CHOSEN = Said(
    "E0711",
    "this picks among every position",
    helps=("weigh them with `attend(...)`",),
)
PACES = Said(
    "E0712",
    "its keys come at another pace than its queries, which row numbers do not compare",
    ("behind a stride there is one row where there were several before it",),
    (
        "attend among rows behind the same strides: of what is longer take the last row "
        "of every two, `x[:, 1::2]`",
    ),
)
AND_CAUSAL = "add `& causal` to the mask"
SPENT = f"{MOST_STEPS:,} values were looked at".replace(",", " ")


def said_of(graph: Graph, leak: Leak, found: Flow) -> Said:
    """The words for a leak in a graph; those for the op inside, where it is in a loop."""
    # What the user can mend is the op in the body, not the loop.
    if leak.inside:
        return said_of(*leak.inside, found)
    symbol = found.symbol
    match leak.why:
        case "length":
            return Said(
                "E0714",
                f"this is the final length of `{symbol}`, which is not known while generating",
                helps=("use the row numbers, `positions(x)`, or what is `last(x)`",),
            )
        case "newest":
            return Said(
                "E0713",
                "the newest position is added back to earlier ones",
                helps=("take `last(...)` at the end, or use a running sum",),
            )
        case "captured" if _begins(leak):
            return Said(
                "E0715",
                f"what this loop begins with depends on `{symbol}`",
                helps=(
                    "begin with what is there before any row, as zeros are; what the "
                    "first row tells may be read inside",
                ),
            )
        case "captured":
            return Said(
                "E0715",
                f"what this loop takes from outside depends on `{symbol}`",
                helps=("pass it as a scanned input",),
            )
        case "first":
            return Said(
                "E0713",
                f"the first row of `{symbol}` goes into rows that stand before it",
                helps=("mix it into what grows, before `concat` puts rows in front",),
            )
        case "shape":
            return Said(
                "E0711", f"the rows of its result are no longer the rows of `{symbol}`"
            )
    return over_keys(leak, found) or _reads(graph, leak, found)


def _begins(leak: Leak) -> bool:
    """Whether a loop begins with what it must not, rather than takes it from outside."""
    op = leak.node.op
    if not isinstance(op, ops.Scan):
        return True
    starts = op.first + op.scanned
    return leak.operand is not None and starts <= leak.operand < starts + op.carries


FIXED: Mapping[type[Op], Said] = {
    ops.Softmax: Said(
        "E0711",
        "this softmax divides by a sum over every position",
        helps=("to weigh keys use `attend(...)`",),
    ),
    ops.LayerNorm: NORM,
    ops.RMSNorm: NORM,
    ops.Flip: Said("E0711", "this turns the sequence around"),
    ops.Split: APART,
    ops.Merge: APART,
    ops.ArgMax: CHOSEN,
    ops.Sort: CHOSEN,
    ops.Gather: CHOSEN,
    ops.TopK: Said(
        "E0711",
        "this takes as many of every position, which at first there are not",
        helps=(
            "among keys, `weights_by(topk(8), z, mask=causal)` weighs the greatest, and "
            "`sort(z, axis=-1, descending=true)` has them first",
        ),
    ),
}
"""The words for ops of which there is one thing to say."""


def _reads(graph: Graph, leak: Leak, found: Flow) -> Said:
    """The words for an op that reads rows ahead."""
    ahead, every = _count(leak.reach), leak.why == "all"
    match leak.node.op:
        case ops.Attend() | ops.MaskedSoftmax() | ops.Hard() | ops.Share():
            return _mask(graph, leak, found)
        case ops.Weigh() | ops.MatMul() | ops.Einsum():
            return _weighed(leak, found)
        case ops.Reduce(fn=fn) if every:
            return Said(
                "E0711",
                f"this {fn} reads every position",
                helps=("use `last(x)`, or a running sum, `cumsum(x)`",),
            )
        case ops.Scan(reverse=True):
            forward = "scan forward along a growing axis"
            return Said("E0715", "this scan runs backwards", helps=(forward,))
        case ops.Rnn(reverse=True) | ops.Gru(reverse=True) | ops.Lstm(reverse=True):
            return Said(
                "E0715",
                "this layer runs backwards",
                helps=("use `direction=forward` along a growing axis",),
            )
        case ops.Conv() | ops.MaxPool() | ops.AveragePool() | ops.ConvTranspose():
            words, helps = window_words(leak.node.op, ahead, every, found.clock.chunk)
            return Said("E0711", words, helps=helps)
    if (said := _spliced(leak, found)) is not None:
        return said
    what = "this reads every position" if every else f"this lets position t see {ahead}"
    return FIXED.get(type(leak.node.op)) or of_rows(leak.node.op, what)


def _spliced(leak: Leak, found: Flow) -> Said | None:
    """The words for rows that are put beside what grows, or picked from it by number."""
    symbol, clock, node = found.symbol, found.clock, leak.node
    x = node.args[leak.operand or 0]
    match node.op:
        case ops.Concat(axis=axis):
            grow = [
                a for a in node.args if a and clock.head(a.type.shape[axis]) is not None
            ]
            # Which of two growing parts a new row belongs to nobody can say.
            if len(grow) > 1:
                return Said(
                    "E0711",
                    f"two parts that grow along `{symbol}` are put one behind the other",
                    helps=("weigh both apart, or add them row by row",),
                )
            return Said(
                "E0711",
                f"this puts fixed rows behind what grows along `{symbol}`: they would "
                "move with every new row",
                helps=("put them in front: `concat([memory, x], axis=1)`",),
            )
        case ops.Slice(axis=axis, start=start) if x is not None:
            head = clock.head(x.type.shape[axis])
            whole = node.op.stop == x.type.shape[axis]
        case ops.Index(axis=axis, at=start) if x is not None:
            head, whole = clock.head(x.type.shape[axis]), False
        case _:
            return None
    if head is None or head == 0:
        return PICKED
    if whole:
        what = f"this leaves away rows that grow along `{symbol}`, from row {start} on"
        mend = f"only the first {head} rows stand before what grows: `x[:, {head}:]`"
        return Said("E0711", what, helps=(mend,))
    what = f"this reads rows that grow along `{symbol}` by their numbers"
    return Said(
        "E0711", what, (f"the first {head} rows stand before them",), (NEAREST,)
    )


def _mask(graph: Graph, leak: Leak, found: Flow) -> Said:
    """An attention whose mask is absent or too wide, or of which nothing is proved."""
    op = leak.node.op
    if isinstance(op, ops.Attend) and op.mask(leak.node) is None:
        return Said(
            "E0712",
            "without a mask a position sees every later one",
            helps=("write `mask=causal`",),
        )
    if at_two_paces(leak.node, GATE[type(op)].place, found.clock):
        return PACES
    head = head_ahead(leak.node, GATE[type(op)].place, found.clock)
    if head is not None:
        return Said(
            "E0712",
            "a row of the head sees rows that are not there yet",
            (f"the head is the {head} rows that stand before what grows",),
            ("let it see itself alone: `j < m | j <= i`, with `m` its length",),
        )
    # A number of rows ahead was found, so the mask was understood: it is too wide.
    if leak.reach.lo > -UNBOUNDED and leak.why != "all":
        what = f"its mask lets a position see {_count(leak.reach)}"
        return Said("E0712", what, _low(leak.reach), (AND_CAUSAL,))
    doubt = doubt_of(leak.node, GATE[type(op)].place, found.clock)
    # Nothing in it is open: the comparisons themselves show later positions.
    if doubt is None:
        return Said(
            "E0712",
            "its mask lets a position see every later one",
            helps=(AND_CAUSAL,),
        )
    if doubt.spent:
        what = f"it was not found out whether its mask hides later positions: {SPENT}"
        return Said("E0712", what, helps=(AND_CAUSAL,))
    text = text_of(graph, doubt.value)
    return Said(
        "E0712",
        "nothing shows that its mask hides later positions",
        (f"`{text}` does not compare row numbers",) if text else (),
        (AND_CAUSAL,),
    )


def _weighed(leak: Leak, found: Flow) -> Said:
    """A sum of products of which nothing shows that later positions are left out."""
    helps = _masking(leak, found)
    gate = GATE.get(type(leak.node.op))
    if gate and at_two_paces(leak.node, gate.place, found.clock):
        return PACES
    doubt = doubt_of(leak.node, gate.place, found.clock) if gate else None
    if leak.reach.lo == -UNBOUNDED and doubt and doubt.spent:
        what = f"it was not found out whether it leaves out later positions: {SPENT}"
        return Said("E0712", what, helps=helps)
    return Said(
        "E0712", "its rows hold values for later positions", _low(leak.reach), helps
    )


SUMMED = (
    "sum earlier positions alone: `cumsum(x, axis=1)`, or weighted, "
    "`attend(x, x, x, mask=causal)`",
)


def _masking(leak: Leak, found: Flow) -> tuple[str, ...]:
    """What sets the weights of later keys to 0, as the rank of the weights has it."""
    grids = [a for a in leak.node.args if a and len(found.state(a).axes) > 1]
    if not grids:
        return SUMMED
    keys = max(found.state(grids[0]).axes)
    return (
        zero_later_keys(grids[0].type.rank, keys),
        "or mask them where they are made: `attend(..., mask=causal)`, `masked_softmax`",
    )


def _low(reach: Interval) -> tuple[str, ...]:
    if reach.empty or reach.lo == -UNBOUNDED:
        return ()
    return (f"q - k can be as low as {int(reach.lo)} here",)


def _count(reach: Interval) -> str:
    if reach.empty or reach.lo == -UNBOUNDED:
        return "every later one"
    return f"{-int(reach.lo)} later position{'s' if reach.lo < -1 else ''}"
