"""Define weight expressions, which compute a parameter from the tensors of a checkpoint."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.signature import AxisGroup, RearrangePatternError, parse_rearrange_pattern
from specc.weights.parameter_names import group_names

if TYPE_CHECKING:  # avoid importing NumPy, because checking a spec does not need it
    from specc.ir.array import Array


class WeightExpressionError(Exception):
    """Raised if a pattern or index does not fit a tensor; the message contains the reason."""


Shape: TypeAlias = tuple[int, ...]


class _Formatted:
    """An expression formatted with the template `form`, in which `{0}` is the expression."""

    __slots__ = ()
    form: ClassVar[str]

    def __str__(self) -> str:
        return self.form.format(self)


@immutable_dataclass(slots=True)
class TensorExpr:
    """A tensor of the weights file."""

    name: str

    def __str__(self) -> str:
        return self.name


@immutable_dataclass(slots=True)
class TransposeExpr:
    """A tensor transposed to the axis order `axes`, by default with its last two axes swapped. A
    tensor with the shape `exempt_shape` is not transposed.
    """

    x: "Expr"
    axes: tuple[int, ...] | None = None
    exempt_shape: Shape = ()

    def __str__(self) -> str:
        axes = "" if self.axes is None else f", axes={list(self.axes)}"
        unless = f", unless={list(self.exempt_shape)}" if self.exempt_shape else ""
        return f"transpose({self.x}{axes}{unless})"

    def get_permutation(self, shape: Shape) -> tuple[int, ...]:
        """Return the axis permutation. Raise WeightExpressionError if the rank does not match."""
        rank = len(shape)
        if shape == self.exempt_shape:
            return tuple(range(rank))
        if self.axes is None:
            if rank < 2:  # a vector cannot be transposed
                raise WeightExpressionError(
                    f"cannot transpose a tensor of rank {rank}, which has fewer than two axes"
                )
            return (*range(rank - 2), rank - 1, rank - 2)
        if sorted(self.axes) != list(range(rank)):
            raise WeightExpressionError(
                f"axes={list(self.axes)} is not a permutation of the {rank} axes"
            )
        return self.axes


@immutable_dataclass(slots=True)
class ReshapeExpr:
    """A reshaped tensor. The size of one axis may be -1 (inferred)."""

    x: "Expr"
    shape: Shape

    def __str__(self) -> str:
        return f"reshape({self.x}, shape={list(self.shape)})"


@immutable_dataclass(slots=True)
class ConcatExpr:
    """Tensors concatenated along an axis."""

    parts: tuple["Expr", ...]
    axis: int = 0

    def __str__(self) -> str:
        return f"concat([{', '.join(map(str, self.parts))}], axis={self.axis})"


@immutable_dataclass(slots=True)
class StackExpr:
    """Tensors of equal shape stacked along a new first axis, such as the weights of experts."""

    parts: tuple["Expr", ...]

    def __str__(self) -> str:
        return f"stack([{', '.join(group_names(map(str, self.parts)))}])"


@immutable_dataclass(slots=True)
class SliceExpr(_Formatted):
    """A slice of a tensor: indices `start` to `stop` (exclusive) along an axis."""

    x: "Expr"
    axis: int
    start: int
    stop: int

    form = "slice({0.x}, axis={0.axis}, from={0.start}, to={0.stop})"


@immutable_dataclass(slots=True)
class SplitPartExpr:
    """Chunk `index` of a tensor that is split along an axis into equal `parts` or listed sizes."""

    x: "Expr"
    axis: int
    index: int
    parts: int | tuple[int, ...]

    def __str__(self) -> str:
        parts = self.parts if isinstance(self.parts, int) else list(self.parts)
        return f"split({self.x}, axis={self.axis}, into={parts})[{self.index}]"

    def get_bounds(self, length: int) -> tuple[int, int]:
        """Return the index range of the chunk. Raise WeightExpressionError for a missing chunk."""
        if isinstance(self.parts, int):
            if self.parts < 1 or length % self.parts:
                raise WeightExpressionError(f"an axis of {length} has no {self.parts} equal parts")
            sizes: tuple[int, ...] = (length // self.parts,) * self.parts
        else:
            sizes = self.parts
        if min(sizes, default=0) < 0 or sum(sizes) != length:
            raise WeightExpressionError(
                f"parts {list(sizes)} do not add up to an axis of length {length}"
            )
        if not 0 <= self.index < len(sizes):
            raise WeightExpressionError(
                f"part {self.index} is out of range for {len(sizes)} parts; the first is 0"
            )
        start = sum(sizes[: self.index])
        return start, start + sizes[self.index]


@immutable_dataclass(slots=True)
class PermuteRopeExpr(_Formatted):
    """A query or key projection whose rows are permuted per head between RoPE layouts. `to="half"`
    converts interleaved pairs (0, 1), (2, 3), … to the half-split layout: all first elements, then
    all second elements. `to="interleaved"` is the inverse.
    """

    x: "Expr"
    to: Literal["half", "interleaved"]
    heads: int

    form = "permute_pairs({0.x}, to={0.to}, heads={0.heads})"


@immutable_dataclass(slots=True)
class NegateExpr(_Formatted):
    """A tensor with all elements negated."""

    x: "Expr"

    form = "negate({0.x})"


@immutable_dataclass(slots=True)
class CastExpr(_Formatted):
    """A tensor cast to another dtype."""

    x: "Expr"
    dtype: str

    form = "cast({0.x}, to={0.dtype})"


@immutable_dataclass(slots=True)
class AddNumberExpr(_Formatted):
    """A tensor plus a constant. 16-bit elements are first converted to f32 for accuracy."""

    x: "Expr"
    number: float

    form = "add({0.x}, {0.number!r})"


@immutable_dataclass(slots=True)
class ResizeGridExpr(_Formatted):
    """Position embeddings of a square grid, resized to `rows` by `columns`. The first `prefix`
    embeddings are unchanged.
    """

    x: "Expr"
    rows: int
    columns: int
    prefix: int = 0

    form = "resize_grid({0.x}, rows={0.rows}, columns={0.columns}, prefix={0.prefix})"


@immutable_dataclass(slots=True)
class FirstPresentExpr:
    """The first of several expressions whose tensors are all in the file."""

    options: tuple["Expr", ...]

    def __str__(self) -> str:
        return f"first_present({', '.join(map(str, self.options))})"


@immutable_dataclass(slots=True)
class RearrangeExpr:
    """A tensor whose axes are split, permuted and merged by an einops pattern."""

    x: "Expr"
    pattern: str
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = "".join(f", {n}={v}" for n, v in self.sizes)
        return f'rearrange({self.x}, "{self.pattern}"{sizes})'


UnaryExpr: TypeAlias = (
    TransposeExpr
    | ReshapeExpr
    | SliceExpr
    | SplitPartExpr
    | PermuteRopeExpr
    | NegateExpr
    | CastExpr
    | AddNumberExpr
    | ResizeGridExpr
    | RearrangeExpr
)
"""Expressions with one operand, the field `x`."""

Expr: TypeAlias = TensorExpr | ConcatExpr | StackExpr | FirstPresentExpr | UnaryExpr


def iterate_tensor_names(expr: Expr) -> Iterator[str]:
    """Yield the names of the tensors that an expression reads, in order."""
    match expr:
        case TensorExpr(name):
            yield name
        case ConcatExpr(parts=inner) | StackExpr(parts=inner) | FirstPresentExpr(options=inner):
            for part in inner:
                yield from iterate_tensor_names(part)
        case _:
            yield from iterate_tensor_names(expr.x)


def _map_operands(expr: Expr, transform: Callable[[Expr], Expr]) -> Expr:
    """Return a copy of an expression with `transform` applied to each operand."""
    match expr:
        case TensorExpr():
            return expr
        case ConcatExpr(parts=parts) | StackExpr(parts=parts):
            return replace(expr, parts=tuple(map(transform, parts)))
        case FirstPresentExpr(options=options):
            return replace(expr, options=tuple(map(transform, options)))
        case _:
            return replace(expr, x=transform(expr.x))


def rename_tensors(expr: Expr, rename: Callable[[str], str]) -> Expr:
    """Return a copy of an expression with its tensors renamed by `rename`."""
    if isinstance(expr, TensorExpr):
        return TensorExpr(rename(expr.name))
    return _map_operands(expr, lambda operand: rename_tensors(operand, rename))


def resolve_alternatives(expr: Expr, is_present: Callable[[str], bool]) -> Expr:
    """Replace each `first_present` with its first option whose tensors exist, or with its last
    option.
    """
    resolved = _map_operands(expr, lambda operand: resolve_alternatives(operand, is_present))
    if not isinstance(resolved, FirstPresentExpr):
        return resolved
    complete = (o for o in resolved.options if all(map(is_present, iterate_tensor_names(o))))
    return next(complete, resolved.options[-1])


def contains_first_present(expr: Expr) -> bool:
    """Return True if an expression contains `first_present`."""
    return resolve_alternatives(expr, lambda _: True) != expr


def split_concatenation(expr: Expr) -> Iterator[Expr]:
    """Split a concatenation or stack into the expressions whose values are concatenated."""
    match expr:
        case StackExpr(parts=parts) | ConcatExpr(parts=parts, axis=0):
            for part in parts:
                yield from split_concatenation(part)
        case _:
            yield expr


@immutable_dataclass(slots=True)
class RearrangePlan:
    """The steps of a rearrange for known sizes: reshape to `split_shape`, permute, reshape."""

    split_shape: tuple[int, ...]
    permutation: tuple[int, ...]
    merged_shape: tuple[int, ...]

    def rearrange(self, x: "Array") -> "Array":
        """Apply the rearrange to the array `x`."""
        return x.reshape(self.split_shape).transpose(self.permutation).reshape(self.merged_shape)


def plan_rearrange(
    pattern_text: str, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> RearrangePlan:
    """Plan a rearrange of an array with `shape`. Raise WeightExpressionError on a mismatch."""
    try:
        pattern = parse_rearrange_pattern(pattern_text)
    except RearrangePatternError as error:
        raise WeightExpressionError(str(error)) from None
    for side in (pattern.left_names, pattern.right_names):
        _check_distinct(side)
    if unbalanced_names := pattern.find_one_sided_axis_names():
        raise WeightExpressionError(f"`{unbalanced_names[0]}` is on only one side of the pattern")
    if len(pattern.left) != len(shape):
        axes = f"the pattern is for {len(pattern.left)} axes"
        raise WeightExpressionError(f"{axes}, the tensor has {len(shape)}: {list(shape)}")
    lengths: dict[str, int] = {}
    for axis, length in zip(pattern.left, shape, strict=True):
        _infer_group_lengths(axis, length, sizes, lengths)
    return RearrangePlan(
        tuple(lengths[n] for n in pattern.left_names),
        pattern.find_permutation(),
        tuple(math.prod(lengths[n] for n in axis) for axis in pattern.right),
    )


def _check_distinct(side: list[str]) -> None:
    """Raise WeightExpressionError if one side of a pattern repeats an axis name."""
    for name in side:
        if side.count(name) > 1:
            raise WeightExpressionError(f"duplicate `{name}` on one side of the pattern")


def _infer_group_lengths(
    group: AxisGroup, length: int, sizes: Mapping[str, int], lengths: dict[str, int]
) -> None:
    """Add the sizes of all names in an axis `group` of size `length` to `lengths`. At most one of
    the names may be missing in `sizes`. Raise WeightExpressionError if the sizes do not fit.
    """
    known_sizes = {n: sizes[n] for n in group if n in sizes}
    unknown = [n for n in group if n not in known_sizes]
    product, text = math.prod(known_sizes.values()), " ".join(group)
    # one unknown size can be computed, but of two unknown sizes only the product is known
    if len(unknown) > 1:
        raise WeightExpressionError(
            f"give the length of `{unknown[0]}` or `{unknown[1]}`: both are unknown in `({text})`"
        )
    if unknown and (product == 0 or length % product):
        raise WeightExpressionError(
            f"an axis of {length} cannot be split as `({text})`: {product} does not divide it"
        )
    if not unknown and product != length:
        raise WeightExpressionError(
            f"an axis of {length} cannot be split as `({text})`, which needs {product}"
        )
    lengths |= known_sizes | dict.fromkeys(unknown, length // max(product, 1))
