"""How many rows before the new ones each value must have, so that the next rows can be
computed.

On entry: a graph that is causal along a symbol, and its `Flow`, which says which axes
of each value are rows of that symbol ("time axes"). Nothing is built here.

A need is a number of rows: 0 for the new rows alone, `inf` for all that were ever
there, and `NEWEST` where even of the new rows only the last is wanted. Needs flow
backwards, from the results that are asked for to the inputs: an op that looks back `hi`
rows adds `hi`. All consumers of a value are joined before anything is built.

A text of which only the newest result is asked for, through an average over a window of
three. The convolution looks back 2 rows, so the map before it is wanted for 2 rows more
than the newest, and the query beside it for the newest alone:

    $ demand x y=newest
    graph "g"
    input "x" %0: f32[b, n, 4]
    parameter "w" %1: f32[4, 4] initial="zeros" made_by="linear"
    parameter "k" %2: f32[4, 4, 3] initial="zeros" made_by="conv"
    %3: f32[b, n, 4] = linear(%0, %1)
    %4: f32[b, n, 4] = conv(%3, %2) {kernel=(3), stride=(1), dilation=(1), pads=(2, 0), groups=<1>}
    %5: f32[b, n, 4] = pointwise(%3) {fn="tanh"}
    %6: f32[b, n, 4] = arith(%4, %5) {fn="mul"}
    output "y" %6
    end
    gives
    %0 axis 1: 2 more
    %3 axis 1: 2 more
    %4 axis 1: the newest row
    %5 axis 1: the newest row
    %6 axis 1: the newest row
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil, inf

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value, needed
from specc.ir.heads import Clock, Track
from specc.ir.reach import Link, links
from specc.passes.derive.asked import (
    NEWEST,
    Asked,
    Axis,
    Needs,
    Setting,
    along,
    whole_chunks,
)
from specc.passes.derive.axes import axis_names
from specc.passes.derive.crossed import Crossed
from specc.passes.prove.flow import Flow, resolve
from specc.passes.prove.spliced import HEAD, from_head
from specc.passes.prove.strides import ahead_of


def demand(
    setting: Setting, outputs: Mapping[Value, float]
) -> dict[Value, dict[int, float]]:
    """The need of every live value along each of its time axes, for these needs of the
    outputs' rows.

    A second time axis of an output, the keys of an attention map, is wanted whole.
    """
    # From the last node to the first: when a node is met, all that use its results have
    # said what they need.
    needs: dict[Value, dict[int, float]] = {}
    for value, rows in outputs.items():
        for n, axis in enumerate(setting.times(value)):
            _join(needs, value, axis, inf if n else rows)
    live = wanted(outputs, setting.flow)
    _backwards(setting, setting.graph, live, needs)
    return needs


def _backwards(
    setting: Setting,
    graph: Graph,
    live: Collection[Node],
    needs: dict[Value, dict[int, float]],
) -> None:
    """Join into `needs` what the nodes of a graph, or of a body, ask of their operands."""
    for node, results in reversed(graph.nodes):
        if node not in live or picks_fixed(node, setting.flow):
            continue
        if node in setting.flow.inside:
            _inside(setting, node, results, needs)
        asked = ask(setting, node, results, needs)
        for operand, axes in zip(node.args, asked.operands, strict=True):
            for axis, name in axes.items():
                if operand is not None:
                    _join(needs, operand, axis, asked.rows[name])


def _inside(
    setting: Setting,
    node: Node,
    results: tuple[Value, ...],
    needs: dict[Value, dict[int, float]],
) -> None:
    """Join into `needs` what the body of a loop over another axis needs of its own values,
    and of those of the graph around it.
    """
    loop = Crossed.of(setting, node)
    live = wanted(loop.outputs, setting.flow)
    before: list[Mapping[int, float]] = []
    while True:
        rows = loop.rows(results, needs)
        for value, axes in zip(loop.outputs, rows, strict=True):
            for axis, need in axes.items():
                _join(needs, value, axis, need)
        # What a turn needs of a carry, the turn before it must give: again, until
        # nothing is added.
        if rows == before:
            return
        before = rows
        _backwards(setting, loop.body, live, needs)


def wanted(values: Iterable[Value], flow: Flow) -> set[Node]:
    """Every node that `values` are made from in a step. What an `extent` only measures is
    not looked at, nor what rows of a head were picked from, which a step cannot make.
    """
    return needed(values, reads=lambda node: not _elsewhere(node, flow))


def _elsewhere(node: Node, flow: Flow) -> bool:
    """Whether a step does not read the operands of a node."""
    return isinstance(node.op, ops.Extent) or picks_fixed(node, flow)


def picks_fixed(node: Node, flow: Flow) -> bool:
    """Whether a node makes what stays the same of what grows, from rows of its head."""
    if not from_head(node, flow.clock):
        return False
    x = node.first
    return x is not None and len(flow.state(x).axes) == 1


def ask(
    setting: Setting, node: Node, results: tuple[Value, ...], needs: Needs
) -> Asked:
    """The rows that a node works on, by axis name, to give what is needed of its results."""
    if node in setting.flow.inside:
        return Crossed.of(setting, node).asked(results, needs)
    names = axis_names(node, results)
    if isinstance(node.op, ops.Extent):
        # What is measured is not read: no rows of it are wanted.
        names = [{}], names[1]
    operands = _time_names(setting, node.args, names[0])
    made = _time_names(setting, results, names[1])
    rows = _given(setting, results, made, needs)
    for axes in operands:
        for name in axes.values():
            rows.setdefault(name, NEWEST)
    fold = setting.folds(node, results)
    tracks = _tracks(setting, node.args, operands)
    # What is asked of the results, before any operand has been joined: a link adds its
    # reach to that, not to what another link asked for.
    given = dict(rows)
    for link in links(node, results):
        name = operands[link.operand].get(link.operand_axis)
        if name is None or link.kind == "extent":
            continue
        asked = _through(node, link, made, given, fold, setting.flow.clock)
        if asked > 0 and link.kind in ("band", "all") and not setting.bounded:
            asked = inf
        rows[name] = max(rows[name], whole_chunks(asked, tracks[name]))
        rows |= _windows(link, made, rows[name], tracks[name])
    if fold and "rows" in rows:
        # It goes on from a state: never more than the new rows, never fewer.
        rows["rows"] = 0.0
    return Asked(rows, operands, made)


def _time_names(
    setting: Setting,
    values: Sequence[Value | None],
    names: Sequence[Mapping[int, Axis]],
) -> tuple[dict[int, Axis], ...]:
    """Of the names of all axes those of time axes, value by value."""
    found = []
    for value, axes in zip(values, names, strict=True):
        times = setting.times(value)
        found.append({axis: name for axis, name in axes.items() if axis in times})
    return tuple(found)


def _tracks(
    setting: Setting,
    values: Sequence[Value | None],
    names: Sequence[Mapping[int, Axis]],
) -> dict[Axis, Track]:
    """The rows that the axes of operands have, by their names."""
    return {
        name: setting.track(value, axis)
        for value, axes in zip(values, names, strict=True)
        for axis, name in axes.items()
        if value is not None
    }


def _given(
    setting: Setting,
    results: Sequence[Value],
    names: Sequence[Mapping[int, Axis]],
    needs: Needs,
) -> dict[Axis, float]:
    """The rows that the results are to have; of one that is kept the new rows are made,
    those of before are there.
    """
    rows: dict[Axis, float] = {}
    for value, axes in zip(results, names, strict=True):
        for axis, name in axes.items():
            need = needs.get(value, {}).get(axis, NEWEST)
            need = 0.0 if value in setting.kept else need
            rows[name] = max(rows.get(name, NEWEST), need)
    return rows


def _through(
    node: Node,
    link: Link,
    made: tuple[Mapping[int, Axis], ...],
    given: Mapping[Axis, float],
    fold: bool,
    clock: Clock,
) -> float:
    """What a link asks of its operand's rows."""
    if fold and along(node, link.operand) == link.operand_axis:
        return 0.0  # it goes on from a state
    to, reach = resolve(node, link, clock)
    if (to, reach) == HEAD:
        return inf  # rows of the head are there only where all are
    # A link to no time axis of the result, as of `last`, is asked for the newest row.
    name = made[link.result].get(to) if to is not None else None
    need = given[name] if name is not None else NEWEST
    if link.kind == "strided":
        return _of_windows(node, link, need, clock)
    if reach.empty or reach.hi <= 0:
        return need
    # Row t is made of rows down to t - hi. That is counted from the first of the new
    # rows, also where the newest alone is wanted: how many are new is not known here.
    return max(need, 0.0) + reach.hi


def _windows(
    link: Link, made: tuple[Mapping[int, Axis], ...], rows: float, track: Track
) -> dict[Axis, float]:
    """How many rows windows with a stride make of so many: of those that are not asked
    for the oldest are dropped. Nothing where rows stay as many as they were.
    """
    if link.kind != "strided" or link.result_axis is None:
        return {}
    head = track.head.number or 0
    return {made[link.result][link.result_axis]: (rows - head) / link.stride}


def _of_windows(node: Node, link: Link, need: float, clock: Clock) -> float:
    """The rows that windows are made of: with every row that is needed `stride` more,
    and as many windows more in front as reach before the first of them.
    """
    head = ahead_of(node, link, clock)
    assert head is not None, "what has a step has rows in whole chunks"
    return (max(need, 0.0) + ceil(link.hi / link.stride)) * link.stride + head


def _join(
    needs: dict[Value, dict[int, float]], value: Value, axis: int, rows: float
) -> None:
    axes = needs.setdefault(value, {})
    axes[axis] = max(axes.get(axis, NEWEST), rows)
