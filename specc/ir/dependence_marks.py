"""Derive the dependences of an op from the marks in its signature.

A signature such as `f[*s q k|q] -> f[*s q d]` assigns a name, and optionally a mark, to each
operand axis. An operand axis corresponds to the result axis of the same name. The mark of an
operand axis determines which positions of the axis each result position reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.op import Op, Operand, OptionalOperand
from specc.ir.ops import (
    Attend,
    Einsum,
    Extent,
    MaskedHardmax,
    MaskedL1Normalization,
    MaskedSoftmax,
    MatMul,
    WeightedSum,
)
from specc.ir.signature import SignatureAxis, assign_operand_axes, assign_result_axes
from specc.ir.types import (
    EMPTY_INTERVAL,
    FULL_INTERVAL,
    PAST_POSITIONS,
    SAME_POSITION,
    Interval,
    Type,
)

DependenceKind = Literal["same", "window", "strided", "band", "newest", "extent", "all"]


@immutable_dataclass
class DependenceMask:
    """A mask operand that limits a dependence to positions where the mask may be true or nonzero.
    The mask's `query_axis` corresponds to `result_axis`, and its `key_axis` to the dependence's
    operand axis.
    """

    operand: int
    query_axis: int
    key_axis: int
    result_axis: int


@immutable_dataclass(kw_only=True)
class Dependence:
    """The dependence of the result `result` on the axis `operand_axis` of the operand `operand`.

    `kind` determines the operand positions that position t of `result_axis` reads. With `same`,
    position t of the result reads position t of the operand. `window` reads positions `t -
    max_offset` to `t - min_offset`. `strided` reads positions `t · stride - max_offset` to `t ·
    stride - min_offset`. `band` reads positions where all `masks` may be nonzero. `newest` applies
    to a result that lacks the operand axis: the result reads the last position and, if `max_offset`
    > 0, also earlier positions. `extent` reads only the size of the axis, not its positions, and
    `all` reads all positions.
    """

    operand: int
    operand_axis: int
    result: int
    result_axis: int | None
    kind: DependenceKind
    offsets: Interval = FULL_INTERVAL
    masks: tuple[DependenceMask, ...] = ()
    stride: int = 1

    @property
    def min_offset(self) -> float:
        """The minimum of `t_result - t_operand`. The minimum is negative if the result reads later
        positions.
        """
        return self.offsets.low

    @property
    def max_offset(self) -> float:
        """The maximum of `t_result - t_operand` over the read positions, i.e. the look-back."""
        return self.offsets.high


def make_dependence(
    operand: int,
    operand_axis: int,
    result: int,
    result_axis: int | None,
    kind: DependenceKind,
    offsets: Interval = FULL_INTERVAL,
) -> Dependence:
    """Make a dependence without masks."""
    return Dependence(
        operand=operand,
        operand_axis=operand_axis,
        result=result,
        result_axis=result_axis,
        kind=kind,
        offsets=offsets,
    )


MASK_OPERANDS: Mapping[type[Op], Operand | OptionalOperand] = {
    Attend: Attend.mask,
    MaskedSoftmax: MaskedSoftmax.mask,
    MaskedHardmax: MaskedHardmax.mask,
    MaskedL1Normalization: MaskedL1Normalization.mask,
    WeightedSum: WeightedSum.weights,
    MatMul: MatMul.left,
}
"""The operand of each op that limits which keys a query reads: a mask or attention weights."""


AxisMarks: TypeAlias = Sequence[tuple[SignatureAxis, range]]
"""The axis marks of one operand, each paired with the range of axes that its axis name covers."""


ResultAxes: TypeAlias = Mapping[str, range]
"""The range of result axes that each axis name covers."""


def _find_axis(axes: ResultAxes, name: str) -> int | None:
    """Return the index of the result axis `name`, or None if the result has no such axis."""
    return axes[name].start if name in axes else None


def iterate_op_dependences(
    op: Op, args: Sequence[Type | None], results: Sequence[Type]
) -> Iterator[Dependence]:
    """Yield all dependences between the operands and the results of an op."""
    signature = op.get_signature()
    operand_marks: list[AxisMarks] = [
        assign_operand_axes(term, arg.rank, op.count_leading_axes(), n) if arg else ()
        for n, (term, arg) in enumerate(signature.match_operands_to_terms(args))
    ]
    # the operands determine how many result axes a variadic group covers
    variadic_axes = [
        (m, dims)
        for p in operand_marks
        for m, dims in p
        if m.is_variadic and not m.is_broadcastable
    ]
    widths = {m.name: len(dims) for m, dims in variadic_axes}
    for result, (term, type) in enumerate(zip(signature.results, results, strict=True)):
        result_axes = assign_result_axes(term, type.rank, widths)
        for operand_axis in _iterate_operand_axes(op, operand_marks, result_axes, result):
            arg = args[operand_axis.operand]
            assert arg is not None, "an absent operand has no axes"
            yield _build_dependence(operand_axis, arg, type)


def _iterate_operand_axes(
    op: Op, operand_marks: Sequence[AxisMarks], result_axes: ResultAxes, result: int
) -> Iterator["_OperandAxis"]:
    """Yield the operand axes that the result with index `result` may read."""
    for n, axis_marks in enumerate(operand_marks):
        if isinstance(op, Attend) and (n, result) == (op.value.index, op.weights_result):
            continue  # attention weights do not depend on the value operand
        for mark, dims in axis_marks:
            if isinstance(op, Extent) and mark.mark != "@":
                continue  # an `Extent` op reads the size of an axis, but none of its elements
            for axis in dims:
                yield _OperandAxis(
                    op=op,
                    operand_marks=operand_marks,
                    result_axes=result_axes,
                    mark=mark,
                    named_axes=dims,
                    axis=axis,
                    operand=n,
                    result=result,
                )


@immutable_dataclass(kw_only=True)
class _OperandAxis:
    """A pair of an operand axis and a result, for which a dependence is derived. `mark` is the name
    and mark of the axis in the signature. `named_axes` are all axes that the axis name covers.
    `operand_marks` are the marks of all operands, and `result_axes` are the axes of the result.
    """

    op: Op
    operand_marks: Sequence[AxisMarks]
    result_axes: ResultAxes
    mark: SignatureAxis
    named_axes: range
    axis: int
    operand: int
    result: int

    def find_result_axis(self) -> int | None:
        """Return the result axis with the same name as this axis, or None if there is none."""
        result_axes = self.result_axes.get(self.mark.name)
        if result_axes is None:
            return None
        # broadcast axes are aligned from the right
        if self.mark.is_broadcastable:
            return result_axes.stop - (self.named_axes.stop - self.axis)
        return result_axes.start + self.axis - self.named_axes.start

    def make_dependence(
        self,
        result_axis: int | None,
        kind: DependenceKind,
        offsets: Interval = FULL_INTERVAL,
        masks: tuple[DependenceMask, ...] = (),
        stride: int = 1,
    ) -> Dependence:
        """Make a dependence from this axis to the result axis `result_axis`."""
        location = self.operand, self.axis, self.result, result_axis
        return replace(make_dependence(*location, kind, offsets), masks=masks, stride=stride)


def _build_dependence(operand_axis: _OperandAxis, arg: Type, result: Type) -> Dependence:
    """Return the dependence of a result on an operand axis, as declared by the mark of the axis in
    the op's signature. Without a mark, the dependence is `same` if the result has the axis.
    """
    result_axis, mark = operand_axis.find_result_axis(), operand_axis.mark
    is_repeated = mark.is_broadcastable and arg.shape[operand_axis.axis] == 1
    if is_repeated and result_axis is not None and result.shape[result_axis] != 1:
        # an axis of size 1 is broadcast, so all result positions read its only position
        return operand_axis.make_dependence(None, "all")
    if mark.mark:
        return _interpret_mark(operand_axis, result_axis)
    if result_axis is not None:
        return operand_axis.make_dependence(result_axis, "same", SAME_POSITION)
    # a result without the axis reads all positions, except in a contraction, where it reads only
    # the positions at which no factor is zero
    if isinstance(operand_axis.op, Einsum) and (masks := _find_contraction_masks(operand_axis)):
        return operand_axis.make_dependence(masks[0].result_axis, "band", FULL_INTERVAL, masks)
    return operand_axis.make_dependence(None, "all")


def _interpret_mark(operand_axis: _OperandAxis, result_axis: int | None) -> Dependence:
    """Return the dependence that the mark of an operand axis declares (`specc.ir.signature`)."""
    mark = operand_axis.mark.mark
    match mark[0]:
        case "@":
            return operand_axis.make_dependence(None, "extent", EMPTY_INTERVAL)
        case "$":
            return operand_axis.make_dependence(None, "newest", SAME_POSITION)
        case "~":
            return operand_axis.make_dependence(None, "all")
        case ">":
            # a result position reads all positions up to itself, or all positions if the result
            # lacks the axis
            return operand_axis.make_dependence(
                result_axis, "newest" if result_axis is None else "window", PAST_POSITIONS
            )
        case "[":
            return _interpret_window_mark(operand_axis, result_axis)
    assert mark[0] == "|", f"no such mark: {mark}"
    query_axis = _find_axis(operand_axis.result_axes, mark[1:])
    masks = _find_masks(operand_axis, mark[1:], query_axis)
    return operand_axis.make_dependence(query_axis, "band", FULL_INTERVAL, masks)


def _interpret_window_mark(operand_axis: _OperandAxis, result_axis: int | None) -> Dependence:
    """Return the dependence that a mark `[low:high]` or `[low:high:stride:axis]` declares."""
    low, high, *stride_and_axis = operand_axis.mark.mark[1:-1].split(":")
    offsets = Interval(
        _evaluate_bound(operand_axis.op, low), _evaluate_bound(operand_axis.op, high)
    )
    if not stride_and_axis:
        return operand_axis.make_dependence(result_axis, "window", offsets)
    stride, result_name = stride_and_axis
    return operand_axis.make_dependence(
        _find_axis(operand_axis.result_axes, result_name),
        "strided",
        offsets,
        stride=_evaluate_bound(operand_axis.op, stride),
    )


def _evaluate_bound(op: Op, text: str) -> int:
    """Evaluate a bound in a mark, which is an integer or the name of an attribute of the op."""
    if text.lstrip("-").isdecimal():
        return int(text)
    value: object = getattr(op, text)
    assert isinstance(value, int), f"{op.name}.{text} is not a number of positions"
    return value


def _find_masks(
    operand_axis: _OperandAxis, query: str, result_axis: int | None
) -> tuple[DependenceMask, ...]:
    """Return the masks that limit which positions of an operand axis each position of the axis
    `query` reads, or () if each position reads all of them.
    """
    mask_operand, key = MASK_OPERANDS[type(operand_axis.op)].index, operand_axis.mark.name
    # without a mask or a query axis in the result, all keys are read
    if mask_operand >= len(operand_axis.operand_marks) or result_axis is None:
        return ()
    mask_axes = {m.name: d.start for m, d in operand_axis.operand_marks[mask_operand]}
    if key not in mask_axes or query not in mask_axes:
        return ()
    return (DependenceMask(mask_operand, mask_axes[query], mask_axes[key], result_axis),)


def _find_contraction_masks(operand_axis: _OperandAxis) -> tuple[DependenceMask, ...]:
    """Return a mask for each contraction operand that may be zero outside a band of the axis."""
    key, result_axes = operand_axis.mark.name, operand_axis.result_axes
    masks = []
    for operand, axis_marks in enumerate(operand_axis.operand_marks):
        axes = {m.name: d.start for m, d in axis_marks}
        masks += [
            DependenceMask(operand, axis, axes[key], result_axes[name].start)
            for name, axis in axes.items()
            if key in axes and name in result_axes
        ]
    return tuple(masks)
