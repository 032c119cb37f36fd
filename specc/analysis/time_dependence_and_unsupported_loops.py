"""Data types for the time dependence of values: lattice elements, causality violations and captures
of loops. Find loops over other axes for which no decode step can be derived.

In a loop body, a mask that is computed before the loop is an input that no node computes.
`inline_loop_captures` replaces captures by the outer values, so that the analysis of the body finds
the definition of the mask.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from specc.analysis.masked_constants import find_masked_constants
from specc.analysis.time_axis_prefix_and_chunks import TimeAxis, is_prefix_slice
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, NodeResults, Value
from specc.ir.types import EMPTY_INTERVAL, Interval

ViolationReason = Literal["ahead", "all", "newest", "length", "captured", "shape", "first"]


@immutable_dataclass
class TimeDependence:
    """The lattice element of a value along the time axis. `axes` maps each time axis to its
    accumulated receptive field.

    A value without time axes may depend only on the last position (`is_last_position_only`), on all
    positions (`depends_on_all`), or only on the first position. `first_offsets` are the distances
    to the first position.
    """

    axes: Mapping[int, Interval] = field(default_factory=dict)
    is_last_position_only: bool = False
    depends_on_all: bool = False
    first_offsets: Interval = EMPTY_INTERVAL

    @property
    def is_time_dependent(self) -> bool:
        """True if the value depends on positions of the time axis."""
        return (
            bool(self.axes)
            or self.is_last_position_only
            or self.depends_on_all
            or not self.first_offsets.is_empty
        )

    @property
    def depends_only_on_first_position(self) -> bool:
        """True if the value depends only on the first position. A value that depends only on the
        first position does not change in later steps.
        """
        return not (
            self.axes
            or self.is_last_position_only
            or self.depends_on_all
            or self.first_offsets.is_empty
        )


@immutable_dataclass
class CausalityViolation:
    """A node that violates causality because a result position reads later positions. `reason` is
    one of these strings: `ahead` (the node reads up to `-offsets.low` positions ahead), `all` (it
    reads every position), `newest` (it combines the last position with earlier positions), `length`
    (it needs the final size of the time axis), `captured` (a loop captures a time-dependent value),
    `first` (prefix positions read the first position after the prefix), `shape` (a result axis
    contains other positions than the time axis). If the node is a loop, `body_violation` contains
    the loop body and the violation in it.
    """

    node: Node
    reason: ViolationReason
    operand: int | None = None
    offsets: Interval = EMPTY_INTERVAL
    body_violation: "tuple[Graph, CausalityViolation] | None" = None


@immutable_dataclass()
class TimeDataflow:
    """The lattice elements of all values along the time axis, and the causality violations in graph
    order. `inlined_loop_bodies` contains the dataflow of the body of every loop along another axis.
    """

    time_axis: TimeAxis
    states: dict[Value, TimeDependence] = field(default_factory=dict)
    violations: list[CausalityViolation] = field(default_factory=list)
    inlined_loop_bodies: dict[Node, Graph] = field(default_factory=dict)

    @property
    def time_symbol(self) -> str:
        """The symbolic dimension of the time axis."""
        return self.time_axis.symbol

    @property
    def dependent_symbols(self) -> frozenset[str]:
        """The symbolic dimension of the time axis, and all symbolic dimensions computed from it."""
        return self.time_axis.dependent_symbols

    def get_state(self, value: Value) -> TimeDependence:
        """Return the lattice element of a value. Parameters are constant."""
        return self.states.get(value, TimeDependence())

    def get_operand_states(self, node: Node) -> list[TimeDependence]:
        """Return the lattice elements of a node's operands."""
        return [self.get_state(a) if a else TimeDependence() for a in node.args]

    def find_time_axes(self, value: Value) -> list[int]:
        """Return the time axes of a value, with or without a prefix."""
        shape = value.shape
        return [n for n, d in enumerate(shape) if self.time_axis.get_prefix_length(d) is not None]

    def has_time_dependent_size(self, value: Value) -> bool:
        """Return True if the size of an axis other than a time axis contains the time symbol."""
        shape = value.shape
        return any(
            d.symbols() & self.dependent_symbols and self.time_axis.get_prefix_length(d) is None
            for d in shape
        )


def iterate_captured_value_violations(
    node: Node, operand_states: Sequence[TimeDependence], time_axis: TimeAxis
) -> Iterator[CausalityViolation]:
    """Yield a violation for each initial value or capture of a time loop that depends on time."""
    match node.op:
        case ops.Scan() if is_time_loop(node, node.op, time_axis):
            yield from _iterate_loop_violations(node, node.op, operand_states)
        case ops.RecurrentLayer():
            # Other reads of time-dependent values are checked through their dependences.
            for operand in node.op.initial_states:
                state = operand.get_entry(operand_states)
                if state and state.depends_only_on_first_position:
                    yield CausalityViolation(node, "captured", operand.index)


def _iterate_loop_violations(
    node: Node, op: ops.Scan, operand_states: Sequence[TimeDependence]
) -> Iterator[CausalityViolation]:
    starts = op.first_body_operand_index + op.scanned_count
    captured = starts + op.carry_count
    # Initial values and captures are the same in all iterations. If one of them depends on time, a
    # position may depend on later positions. A value that depends only on the first position is
    # available at all positions.
    for n, state in enumerate(operand_states[starts:], starts):
        if state.is_time_dependent and not (n >= captured and state.depends_only_on_first_position):
            yield CausalityViolation(node, "captured", n)


def violates_prefix_causality(
    node: Node,
    results: Sequence[Value],
    operand_states: Sequence[TimeDependence],
    time_axis: TimeAxis,
) -> bool:
    """Return True if prefix positions may depend on the position after the prefix (time 0)."""
    if isinstance(node.op, ops.Extent) or not any(
        s.depends_only_on_first_position for s in operand_states
    ):
        return False
    if isinstance(node.op, ops.Scan) and not is_time_loop(node, node.op, time_axis):
        return False  # ops of the loop body are checked separately
    prefix_lengths = (time_axis.get_prefix_length(d) for r in results for d in r.shape)
    return any(prefix_length not in (None, 0) for prefix_length in prefix_lengths)


def is_time_loop(node: Node, op: ops.Scan, time_axis: TimeAxis) -> bool:
    """Return True if a loop runs along the time axis."""
    return (
        time_axis.get_prefix_length(op.get_first_scanned_operand(node).shape[op.axis]) is not None
    )


def inline_loop_captures(loop: Node, op: ops.Scan) -> Graph:
    """Return the body of a loop with captures replaced by the values of the outer graph. The inputs
    of the returned graph are the scanned elements and the loop-carried values.
    """
    inner, outer = op.split_body_inputs(), op.split_operands(loop.args)
    new_values: dict[Value, Value | None] = {v: v for v in (*inner.scanned, *inner.initial_carries)}
    new_values.update(zip(inner.captured, outer.captured, strict=True))
    nodes, node_origins = [], {}
    for node, results in op.body.nodes:
        copy, copied_results = _copy_node(node, results, new_values)
        new_values.update(zip(results, copied_results, strict=True))
        nodes.append((copy, copied_results))
        if node in op.body.node_origins:
            node_origins[copy] = op.body.node_origins[node]
    inputs = [*op.body.inputs.items()][: op.scanned_count + op.carry_count]
    outputs = {name: new_values[v] for name, v in op.body.outputs.items()}
    return Graph(
        name=op.body.name,
        inputs=dict(inputs),
        input_facts={name: op.body.input_facts[name] for name, _ in inputs},
        parameters={},
        parameter_facts={},
        nodes=tuple(nodes),
        outputs={name: v for name, v in outputs.items() if v is not None},
        node_origins=node_origins,
    )


def _copy_node(
    node: Node, results: NodeResults, new_values: Mapping[Value, Value | None]
) -> tuple[Node, NodeResults]:
    """Return a copy of a node with replaced operands, and its results."""
    copy = Node(node.op, tuple(a and new_values[a] for a in node.args))
    return copy, tuple(Value(r.type, copy, r.index) for r in results)


def find_length_dependent_node(body: Graph, dependent_symbols: frozenset[str]) -> Node | None:
    """Return the first node of a loop body that has one of `dependent_symbols` in an attribute. A
    nested loop matches if its body contains such a node. Return None if no node depends on
    `dependent_symbols`.
    """
    for node, _ in body.nodes:
        has_nested_use = isinstance(node.op, ops.Scan) and find_length_dependent_node(
            node.op.body, dependent_symbols
        )
        if has_nested_use or _has_symbol(node.op.iterate_attribute_dims(), dependent_symbols):
            return node
    return None


def is_length_dependent(node: Node, time_axis: TimeAxis) -> bool:
    """Return True if the result of an op depends on the size of the time axis. Return False for ops
    that create a time axis or drop prefix positions.
    """
    lengths = list(node.op.iterate_attribute_dims())
    match node.op:
        case ops.Range(dim) | ops.Expand(length=dim) if (
            time_axis.get_prefix_length(dim) is not None
        ):
            return False
        case ops.Slice(axis, _, stop) | ops.StridedSlice(axis, _, stop) if (
            stop == node.get_operand().shape[axis]
        ):
            lengths.remove(stop)
        case ops.Resize() | ops.Scan():
            return False  # the dependences of `Resize` account for the axis size
    return _has_symbol(lengths, time_axis.dependent_symbols)


def _has_symbol(lengths: Iterable[Dim], dependent_symbols: frozenset[str]) -> bool:
    return any(d.symbols() & dependent_symbols for d in lengths)


POSITION_IDS_REASON = "position ids are computed inside this loop and would restart in every step"
PREFIX_REASON = "this loop over another axis selects fixed positions of a prefix"
MISSING_AXES_REASON = (
    "the state of a value in this loop has too few axes to be stacked along the loop axis"
)
UNSUPPORTED_NODE_HELPS = (
    "loop along the time axis itself, or combine the two axes with attention",
    "use `repeat n in 6 { … }` for a constant number of iterations",
)
STATE_SIZE_REASON = "the state of a running sum would need one entry per position"


@immutable_dataclass
class UnsupportedNode:
    """A node that a decode step cannot compute, with its graph or loop body and the reason."""

    graph: Graph
    node: Node
    reason: str


def iterate_unsupported_nodes(
    graph: Graph,
    flow: TimeDataflow,
    live_nodes: Collection[Node] | None = None,
    scan_axis: int | None = None,
) -> Iterator[UnsupportedNode]:
    """Yield each node in `live_nodes` (all nodes if None) that a decode step cannot compute. For a
    loop, yield the first such node in its body. `scan_axis` is the scan axis of the loop whose body
    is `graph`.
    """
    for node, results in graph.nodes:
        if live_nodes is not None and node not in live_nodes:
            continue
        inner_node = None
        if node in flow.inlined_loop_bodies and isinstance(node.op, ops.Scan):
            body = flow.inlined_loop_bodies[node]
            inner_node = next(iterate_unsupported_nodes(body, flow, None, node.op.axis), None)
        if inner_node is not None:
            yield inner_node
        elif reason := _explain_unsupported_node(node, results, scan_axis, flow):
            yield UnsupportedNode(graph, node, reason)


def _explain_running_sum(node: Node, flow: TimeDataflow) -> str:
    """Return why a cumulative sum has no fixed-size decode state, or "" if it has one."""
    if not isinstance(node.op, ops.CumSum):
        return ""
    time_axes, axis = flow.get_state(node.get_operand()).axes, node.op.axis
    if axis not in time_axes or _is_key_sum(node.get_operand(), time_axes, axis, flow.time_axis):
        return ""
    return STATE_SIZE_REASON


def _is_key_sum(x: Value, time_axes: Iterable[int], axis: int, time_axis: TimeAxis) -> bool:
    """Return True if a decode step can compute the cumulative sum of `x` along `axis`. The sum must
    have no time axis other than `axis`, or it must sum over keys whose later positions are masked
    out.
    """
    return all(
        any(reach.low >= 0 for reach in find_masked_constants(x, query, axis, time_axis).values())
        for query in time_axes
        if query != axis
    )


def _explain_unsupported_node(
    node: Node, results: NodeResults, scan_axis: int | None, flow: TimeDataflow
) -> str:
    """Return the reason why a decode step cannot compute a node, or "" if it can. `scan_axis` is
    the scan axis of the loop that contains the node, if any.
    """
    if scan_axis is not None:
        if _is_position_id_source(node, flow.time_axis):
            return POSITION_IDS_REASON
        if is_prefix_slice(node, flow.time_axis):
            return PREFIX_REASON
        # Decode states are stacked along the loop axis.
        if any(flow.get_state(r).axes and r.rank < scan_axis for r in results):
            return MISSING_AXES_REASON
    return _explain_running_sum(node, flow)


def _is_position_id_source(node: Node, time_axis: TimeAxis) -> bool:
    """Return True if a node computes position ids of the time axis."""
    match node.op:
        case ops.Range(length):
            pass
        case ops.Extent(axis):
            length = node.get_operand().shape[axis]
        case _:
            return False
    return time_axis.get_prefix_length(length) is not None
