"""Facts of the time dataflow: state of a value, causality leaks, captures of loops.

A mask computed before a loop is an input of its body, where its definition is not visible.
Captures are therefore replaced by the outer values, so that the analysis of the body sees
`causal` as outside.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.interval import EMPTY_INTERVAL, Interval
from specc.ir.time_axis import TimeAxis

LeakReason = Literal["ahead", "all", "newest", "length", "captured", "shape", "first"]


@dataclass(frozen=True, slots=True)
class TimeState:
    """The state of a value along the time axis. `axes` maps each time axis to its accumulated
    receptive field.

    A value without time axes may hold the `newest` position, something of the `whole` axis, or
    only its `first` position; every position that reads it then depends on that.
    """

    axes: Mapping[int, Interval] = field(default_factory=dict)
    newest: bool = False
    whole: bool = False
    first: Interval = EMPTY_INTERVAL

    @property
    def moves(self) -> bool:
        """True if the value depends on the time axis."""
        return bool(self.axes) or self.newest or self.whole or not self.first.is_empty

    @property
    def latched(self) -> bool:
        """True if the value depends on the first position only and never changes afterwards."""
        return not (self.axes or self.newest or self.whole or self.first.is_empty)


@dataclass(frozen=True, slots=True)
class Leak:
    """`node` reads positions after the one it computes.

    `why`: `ahead`, positions up to `-reach.lo` later; `all`, every position; `newest`, it mixes
    the newest position into earlier ones; `length`, it needs the final length; `captured`, a
    loop captures a moving value; `first`, prefix positions read the first position after them;
    `shape`, the result has an axis whose positions are no longer those of the time axis.
    `inside`: the leak in the body of the loop `node`, with that body.
    """

    node: Node
    why: LeakReason
    operand: int | None = None
    reach: Interval = EMPTY_INTERVAL
    inside: "tuple[Graph, Leak] | None" = None


@dataclass(frozen=True)
class TimeFlow:
    """The state of every value along `symbol`, and the ops that leak, in graph order. `inside`
    holds the body of every loop over another axis, whose values have states too.
    """

    clock: TimeAxis
    states: Mapping[Value, TimeState]
    leaks: tuple[Leak, ...]
    inside: Mapping[Node, Graph]

    @property
    def symbol(self) -> str:
        """The symbol of the time axis."""
        return self.clock.symbol

    @property
    def related(self) -> frozenset[str]:
        """The symbol of the time axis and those of lengths derived from it."""
        return self.clock.dependent_symbols

    def state(self, value: Value) -> TimeState:
        """Return the state of a value; parameters are constant."""
        return self.states.get(value, TimeState())


@dataclass(frozen=True)
class FlowContext:
    """The time axis, the symbols derived from it, and the states of values so far."""

    clock: TimeAxis
    states: dict[Value, TimeState]
    leaks: list[Leak]
    inside: dict[Node, Graph]

    @property
    def length(self) -> Dim:
        """The length of the time axis."""
        return self.clock.length

    @property
    def related(self) -> frozenset[str]:
        """The symbol of the time axis and those of lengths derived from it."""
        return self.clock.dependent_symbols

    def given(self, node: Node) -> list[TimeState]:
        """Return the states of the operands of a node."""
        return [self.states.get(a, TimeState()) if a else TimeState() for a in node.args]

    def find_time_axes(self, value: Value) -> list[int]:
        """Return the time axes of a value, with or without a prefix."""
        shape = value.type.shape
        return [n for n, d in enumerate(shape) if self.clock.get_prefix_length(d) is not None]

    def composite(self, value: Value) -> bool:
        """Return True if an axis contains the symbol but is not a time axis."""
        shape = value.type.shape
        return any(
            d.symbols() & self.related and self.clock.get_prefix_length(d) is None for d in shape
        )


def iterate_capture_leaks(
    node: Node, given: Sequence[TimeState], clock: TimeAxis
) -> Iterator[Leak]:
    """Yield the initial values and captures of a time loop that depend on time and must not."""
    match node.op:
        case ops.Scan() if is_time_loop(node, node.op, clock):
            starts = node.op.first_body_operand + node.op.scanned
            captured = starts + node.op.carries
            # Carries and captures are the same at all positions of a loop: if they depend on time,
            # a position sees later ones. What the first position determines is available at every
            # position, but not before the first.
            for n, state in enumerate(given[starts:], starts):
                if state.moves and not (n >= captured and state.latched):
                    yield Leak(node, "captured", n)
        case ops.RecurrentLayer():
            # Dependences of other time-dependent states describe themselves.
            for place in (s.index for s in node.op.initial_states):
                if place < len(given) and given[place].latched:
                    yield Leak(node, "captured", place)


def has_prefix_leak(
    node: Node, results: Sequence[Value], given: Sequence[TimeState], clock: TimeAxis
) -> bool:
    """Return True if prefix positions may read the first position, which comes after them."""
    if isinstance(node.op, ops.Extent) or not any(s.latched for s in given):
        return False
    if isinstance(node.op, ops.Scan) and not is_time_loop(node, node.op, clock):
        return False  # each op of its body is checked
    heads = (clock.get_prefix_length(d) for r in results for d in r.type.shape)
    return any(head is not None and head != 0 for head in heads)


def is_time_loop(node: Node, op: ops.Scan, clock: TimeAxis) -> bool:
    """Return True if a loop runs along the time axis."""
    return clock.get_prefix_length(op.get_first_scanned(node).type.shape[op.axis]) is not None


def inline_loop_captures(node: Node, op: ops.Scan) -> Graph:
    """Return the body of a loop with captures replaced by the values of the outer graph; its
    inputs are scanned elements and carries.
    """
    inner, outer = op.split_body_inputs(), op.split_operands(node.args)
    now: dict[Value, Value | None] = {v: v for v in (*inner.scanned, *inner.initial_carries)}
    now.update(zip(inner.captured, outer.captured, strict=True))
    nodes, made = [], {}
    for old, results in op.body.nodes:
        new = Node(old.op, tuple(a and now[a] for a in old.args))
        fresh = tuple(Value(r.type, new, r.index) for r in results)
        now.update(zip(results, fresh, strict=True))
        nodes.append((new, fresh))
        if old in op.body.node_origins:
            made[new] = op.body.node_origins[old]
    named = [*op.body.inputs.items()][: op.scanned + op.carries]
    outputs = {name: now[v] for name, v in op.body.outputs.items()}
    return Graph(
        name=op.body.name,
        inputs=dict(named),
        input_facts={name: op.body.input_facts[name] for name, _ in named},
        parameters={},
        parameter_facts={},
        nodes=tuple(nodes),
        outputs={name: v for name, v in outputs.items() if v is not None},
        node_origins=made,
    )


def find_length_use(body: Graph, related: frozenset[str]) -> Node | None:
    """Return the first node of a body with the length in an attribute."""
    for node, _ in body.nodes:
        if any(_mentions_symbol(v, related) for v in _iterate_attributes(node)):
            return node
    return None


def _iterate_attributes(node: Node) -> Iterator[object]:
    """Yield the attributes of a node; for a loop, those of the nodes in its body."""
    if isinstance(node.op, ops.Scan):
        for inner, _ in node.op.body.nodes:
            yield from _iterate_attributes(inner)
    else:
        yield from node.op.attributes().values()


def has_time_axis_length(node: Node, clock: TimeAxis) -> bool:
    """Return True if an op uses the length itself, other than to make an axis of that length or to
    drop prefix positions.
    """
    match node.op:
        case ops.Range(length=dim) | ops.Expand(length=dim):
            rows = clock.get_prefix_length(dim) is not None
        case ops.Slice(axis=axis, start=start, stop=stop):
            rows = _is_axis_end(node, axis, stop) and not _mentions_symbol(
                start, clock.dependent_symbols
            )
        case ops.Stride(axis=axis, start=start, stop=stop, step=step):
            rows = _is_axis_end(node, axis, stop) and not any(
                _mentions_symbol(d, clock.dependent_symbols) for d in (start, step)
            )
        case ops.Resize():
            return False  # every position is read, which implies this
        case ops.Scan():
            return False
        case _:
            rows = False
    said = node.op.attributes().values()
    return not rows and any(_mentions_symbol(v, clock.dependent_symbols) for v in said)


def _mentions_symbol(value: object, related: frozenset[str]) -> bool:
    if isinstance(value, tuple):
        return any(_mentions_symbol(v, related) for v in value)
    return isinstance(value, Dim) and bool(value.symbols() & related)


def _is_axis_end(node: Node, axis: int, stop: Dim) -> bool:
    """Return True if `stop` is the end of the axis."""
    return node.first is not None and stop == node.first.type.shape[axis]
