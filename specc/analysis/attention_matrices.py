"""Track the query axis and the key axis of attention scores, masks and attention weights through
views and broadcasts, and solve recursive analyses of these matrices with an explicit stack.

An attention matrix is a value together with the indices of its query axis and its key axis. A view
permutes, inserts or removes axes, so its operand has the same elements with different axis indices.
For example, `insert` at axis 0 moves axes 0 and 1 of a value [n, n] to axes 1 and 2.

Recursive rules are generators. A rule yields subproblems, receives their results, and returns its
own result. `solve_memoized` evaluates the rules on an explicit stack, so the depth of a graph is
not limited. Each subproblem is evaluated once, up to a limit on the number of subproblems. A chain
of 30 `where` nodes, each with two uses of its predecessor, requires 30 evaluations instead of 2^30.
"""

from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from specc.analysis.time_axis_prefix_and_chunks import TimeAxis
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.op import Op

AxisSide: TypeAlias = Literal["keys", "queries"]
"""The axis (keys or queries) on which only times >= 0 are considered."""


@dataclass(frozen=True, slots=True)
class AttentionMatrix:
    """Attention scores, a mask or attention weights, with the indices of the query axis and the key
    axis. The index of a missing axis is None.

    If `time_axis` is not None, positions are counted from the end of the prefix (times). Positions
    before time 0 on the axis `side` are ignored.
    """

    value: Value
    query_axis: int | None
    key_axis: int | None
    time_axis: TimeAxis | None = field(default=None, compare=False)
    side: AxisSide = field(default="keys", compare=False)

    def make_operand_matrix(
        self, operand: Value, query_axis: int | None, key_axis: int | None
    ) -> "AttentionMatrix":
        """Return an operand with the axes `query_axis` and `key_axis`, without axes of size 1."""
        return replace(
            self,
            value=operand,
            query_axis=_drop_broadcast_axis(operand, query_axis),
            key_axis=_drop_broadcast_axis(operand, key_axis),
        )

    def restore_removed_axis(self, operand: Value, axis: int) -> "AttentionMatrix":
        """Return the operand of an op that removes `axis`, such as a reduction along `axis`."""
        return self.map_axes(operand, lambda a: a + (a >= axis))

    def map_axes(self, operand: Value, map_axis: Callable[[int], int | None]) -> "AttentionMatrix":
        """Return an operand whose axis `map_axis(a)` corresponds to axis `a` of this matrix."""
        axes = (self.query_axis, self.key_axis)
        return self.make_operand_matrix(
            operand, *(None if a is None else map_axis(a) for a in axes)
        )

    def align_operands(self) -> list["AttentionMatrix"]:
        """Return the op's operands, with their axes aligned from the right as in broadcasting."""
        node = self.value.node
        return [align_broadcast_operand(self, a) for a in node.operands] if node else []

    def get_prefix_length(self, axis: int) -> Dim | None:
        """Return the prefix length along `axis`, or None if `axis` is not a time axis."""
        if self.time_axis is None:
            return Dim.from_value(0)
        return self.time_axis.get_prefix_length(self.value.shape[axis])


def has_equal_downsampling_rates(qk: AttentionMatrix) -> bool:
    """Return True if both axes have the same positions per chunk, so that `q - k` is defined."""
    if qk.time_axis is None:
        return True
    axes, shape = (qk.query_axis, qk.key_axis), qk.value.shape
    rates = {qk.time_axis.get_positions_per_chunk(shape[axis]) for axis in axes if axis is not None}
    return len(rates - {0}) < 2


def make_attention_matrix(
    value: Value, query_axis: int | None, key_axis: int | None, time_axis: TimeAxis | None = None
) -> AttentionMatrix:
    """Return the attention matrix of a value with axes `query_axis` and `key_axis`. The index of an
    axis of size 1 is dropped.
    """
    return AttentionMatrix(value, None, None, time_axis).make_operand_matrix(
        value, query_axis, key_axis
    )


def _drop_broadcast_axis(value: Value, axis: int | None) -> int | None:
    if axis is None or not 0 <= axis < value.rank or value.shape[axis] == 1:
        return None
    return axis


def unwrap_view(qk: AttentionMatrix) -> AttentionMatrix | None:
    """Return the operand of a view, with the query axis and key axis of the operand. Return None if
    the op is not a view, or if the op reshapes the query axis or the key axis.
    """
    node = qk.value.node
    operand = node.first_operand if node is not None else None
    if node is None or operand is None:
        return None
    match node.op:
        case ops.Insert(axis):
            return qk.map_axes(operand, lambda a: None if a == axis else a - (a > axis))
        case ops.Squeeze(axis) | ops.Index(axis) | ops.Last(axis):
            return qk.restore_removed_axis(operand, axis)
        case ops.Transpose(order):
            return qk.map_axes(operand, lambda a: order[a])
        case ops.Expand(axis):
            # Along a broadcast axis, all result positions read the operand's single position.
            return _view_without_axis(qk, operand, axis)
        case ops.Split(axis, sizes):
            return _unwrap_reshape(qk, operand, axis, len(sizes), 1)
        case ops.Merge(axis, count):
            return _unwrap_reshape(qk, operand, axis, 1, count)
    is_transparent = _is_transparent_view(qk, node.op, operand)
    return qk.map_axes(operand, lambda a: a) if is_transparent else None


def _view_without_axis(qk: AttentionMatrix, operand: Value, axis: int) -> AttentionMatrix:
    """Return `operand` with the query and key axis indices of `qk`, except `axis`."""
    return qk.map_axes(operand, lambda a: None if a == axis else a)


def is_transposed_pair(left: AttentionMatrix, right: AttentionMatrix) -> bool:
    """Return True if one operand depends on the query position, and the other is the same value at
    the key position, as in `segment[:, i] == segment[:, j]`. The two operands are equal where `i ==
    j`.
    """
    a, b = unwrap_all_views(left), unwrap_all_views(right)
    are_on_different_axes = (a.query_axis is None) != (a.key_axis is None)
    return (
        a.value is b.value
        and (a.query_axis, a.key_axis) == (b.key_axis, b.query_axis)
        and are_on_different_axes
    )


def unwrap_all_views(qk: AttentionMatrix) -> AttentionMatrix:
    """Return the attention matrix that `qk` views, after following all nested views."""
    while (inner := unwrap_view(qk)) is not None:
        qk = inner
    return qk


def _unwrap_reshape(
    qk: AttentionMatrix, operand: Value, axis: int, result_count: int, operand_count: int
) -> AttentionMatrix | None:
    """Return `operand` as an attention matrix, for a reshape that converts `operand_count` axes at
    `axis` to `result_count` axes. Return None if the reshape changes the query axis or the key
    axis.
    """
    reshaped_axes = range(axis, axis + result_count)
    if qk.query_axis in reshaped_axes or qk.key_axis in reshaped_axes:
        return None
    shift = operand_count - result_count
    return qk.map_axes(operand, lambda a: a if a < axis else a + shift)


def _is_transparent_view(qk: AttentionMatrix, op: Op, operand: Value) -> bool:
    """Return True if a slice or cast preserves the values at each query and key position."""
    match op:
        case ops.Slice(axis) | ops.StridedSlice(axis) if axis not in (qk.query_axis, qk.key_axis):
            return True
        case ops.Slice(axis, _, stop) if qk.time_axis and stop == operand.shape[axis]:
            # A slice that drops only prefix positions preserves times. The axes of the operand and
            # of the result must have a prefix, and their sizes must differ by the number of dropped
            # positions.
            lengths = operand.shape[axis], qk.value.shape[axis]
            return None not in [qk.time_axis.get_prefix_length(n) for n in lengths]
        case ops.Cast(to):
            # a cast to integers truncates floats: 0.5 becomes 0, i.e. false
            return not (operand.dtype.startswith(("f", "bf")) and to in ("i64", "i32"))
    return False


def list_concat_operands(qk: AttentionMatrix) -> list[AttentionMatrix] | None:
    """Return the operands of a concatenation along the query or key axis, or None for other ops. In
    the operand that has the time axis, every position keeps its time. Prefix operands have no query
    or key axis, because their positions have no time. Prefix operands along the axis `side` are
    omitted.
    """
    node = qk.value.node
    if node is None or not isinstance(node.op, ops.Concat) or qk.time_axis is None:
        return None
    axis = node.op.axis
    if axis not in (qk.query_axis, qk.key_axis):
        return None
    is_prefix_ignored = axis == (qk.key_axis if qk.side == "keys" else qk.query_axis)
    parts = []
    for part in node.operands:
        if qk.time_axis.get_prefix_length(part.shape[axis]) is not None:
            parts.append(qk.make_operand_matrix(part, qk.query_axis, qk.key_axis))
        elif not is_prefix_ignored:
            parts.append(_view_without_axis(qk, part, axis))
    return parts


def align_broadcast_operand(qk: AttentionMatrix, operand: Value) -> AttentionMatrix:
    """Return an operand with its axes aligned from the right, as in broadcasting."""
    shift = qk.value.rank - operand.rank
    return qk.map_axes(operand, lambda a: a - shift)


MAX_TRAVERSAL_STEPS = 50_000
"""Maximum number of subproblems per analyzed value, after which an analysis returns a default."""

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")
TraversalRule: TypeAlias = Callable[[Q], Generator[Q, A, A]]


@dataclass
class TraversalBudget:
    """A budget that limits how many subproblems one analysis evaluates."""

    remaining_steps: int = MAX_TRAVERSAL_STEPS

    @property
    def is_exhausted(self) -> bool:
        """True if more subproblems were requested than the limit allows."""
        return self.remaining_steps < 0

    def consume_step(self) -> bool:
        """Count a subproblem against the limit, and return True if it may be evaluated."""
        self.remaining_steps -= 1
        return not self.is_exhausted


def solve_memoized(
    problem: Q, rule: TraversalRule[Q, A], results: dict[Q, A], budget: TraversalBudget, default: A
) -> A:
    """Solve `problem`, and store the results of all subproblems in `results`. Subproblems beyond
    the limit of `budget` have the result `default`, which must be valid for every value.
    """
    if problem in results:
        return results[problem]
    if not budget.consume_step():
        return default
    # The stack contains unfinished subproblems. Each subproblem is above the one that waits for its
    # result. `result` is sent to the generator at the top of the stack, and None is sent to a new
    # generator.
    stack = [(problem, rule(problem))]
    result, is_new = default, True
    while stack:
        current, generator = stack[-1]
        try:
            subproblem = next(generator) if is_new else generator.send(result)
        except StopIteration as finished:
            results[current] = result = finished.value
            stack.pop()
            is_new = False
            continue
        is_new = subproblem not in results and budget.consume_step()
        if is_new:
            stack.append((subproblem, rule(subproblem)))
        else:
            result = results.get(subproblem, default)
    return results[problem]


def collect_subproblem_results(subproblems: Iterable[Q]) -> Generator[Q, A, list[A]]:
    """Yield each subproblem, and return the list of results."""
    results: list[A] = []
    for subproblem in subproblems:
        results.append((yield subproblem))
    return results


def is_any_subproblem_true(subproblems: Iterable[Q]) -> Generator[Q, bool, bool]:
    """Return True at the first subproblem whose result is True, and False if there is none."""
    for subproblem in subproblems:
        if (yield subproblem):
            return True
    return False


def are_all_subproblems_true(subproblems: Iterable[Q]) -> Generator[Q, bool, bool]:
    """Return False at the first subproblem whose result is False, and True if there is none."""
    for subproblem in subproblems:
        if not (yield subproblem):
            return False
    return True
