"""Define weight expressions, which compute parameters from the tensors of a checkpoint."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.weights.parameter_name_patterns import group_parameter_names


class WeightExpressionError(Exception):
    """Raised if a pattern or index does not fit a tensor. The message contains the reason."""


Shape: TypeAlias = tuple[int, ...]


class Expr:
    """A weight expression. `form` is a `str.format` template for the text of the expression, where
    `{0}` is the expression.
    """

    __slots__ = ()
    form: ClassVar[str]

    def __str__(self) -> str:
        return self.form.format(self)

    @property
    def operands(self) -> tuple["Expr", ...]:
        """The operands of the expression, or () for a tensor."""
        return ()

    def map_operands(self, transform: Callable[["Expr"], "Expr"]) -> "Expr":
        """Return a copy of the expression with `transform` applied to each operand."""
        return self


@immutable_dataclass
class TensorExpr(Expr):
    """A tensor in the weights file."""

    name: str

    form = "{0.name}"


@immutable_dataclass
class UnaryExpr(Expr):
    """Base class of expressions with one operand, `x`. If `is_rowwise` is True, row n of the result
    depends only on row n of the operand.
    """

    x: Expr
    is_rowwise: ClassVar[bool] = False

    @property
    def operands(self) -> tuple[Expr, ...]:
        """A 1-tuple of the operand `x`."""
        return (self.x,)

    def map_operands(self, transform: Callable[[Expr], Expr]) -> Expr:
        """Return a copy of the expression with `transform` applied to the operand."""
        return replace(self, x=transform(self.x))

    def infer_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result for an operand of shape `shape`. By default, the shape is
        `shape` itself. Raise WeightExpressionError if the expression does not fit the operand.
        """
        return shape


@immutable_dataclass
class VariadicExpr(Expr):
    """Base class of expressions with any number of operands, `parts`."""

    parts: tuple[Expr, ...]

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The operands of the expression, `parts`."""
        return self.parts

    def map_operands(self, transform: Callable[[Expr], Expr]) -> Expr:
        """Return a copy of the expression with `transform` applied to each operand."""
        return replace(self, parts=tuple(map(transform, self.parts)))


@immutable_dataclass
class TransposeExpr(UnaryExpr):
    """A tensor transposed to the axis order `axes`. By default, the last two axes are swapped. A
    tensor with the shape `exempt_shape` is not transposed.
    """

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

    def infer_shape(self, shape: Shape) -> Shape:
        """Return the permuted shape."""
        return tuple(shape[a] for a in self.get_permutation(shape))


@immutable_dataclass
class ReshapeExpr(UnaryExpr):
    """A reshaped tensor. The size of one axis may be -1, i.e. inferred from the other sizes."""

    shape: Shape

    def __str__(self) -> str:
        return f"reshape({self.x}, shape={list(self.shape)})"

    def infer_shape(self, shape: Shape) -> Shape:
        """Return the new shape, with the inferred size of the axis -1."""
        if self.shape.count(-1) > 1 or min(self.shape, default=0) < -1:
            raise WeightExpressionError(
                f"{list(self.shape)} is not a valid shape; one length may be -1"
            )
        count, inferred = math.prod(shape), self.shape
        if -1 in self.shape:
            axis, known_count = self.shape.index(-1), -math.prod(self.shape)
            # Infer the size. If another axis has size 0, the size cannot be inferred, because any
            # size would be valid.
            inferred_length = count // known_count if known_count else -1
            inferred = (*self.shape[:axis], inferred_length, *self.shape[axis + 1 :])
        if -1 in inferred or math.prod(inferred) != count:
            raise WeightExpressionError(
                f"{list(shape)} has {count} elements and cannot become {list(self.shape)}"
            )
        return inferred


@immutable_dataclass
class ConcatExpr(VariadicExpr):
    """Tensors concatenated along an axis."""

    axis: int = 0

    def __str__(self) -> str:
        return f"concat([{', '.join(map(str, self.parts))}], axis={self.axis})"

    def infer_shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the shape of the result for operands with the shapes `shapes`."""
        if not shapes:
            raise WeightExpressionError("nothing to concatenate")
        axis, total = self.axis, sum(_get_length(s, self.axis) for s in shapes)
        other_lengths = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
        if len(other_lengths) > 1:
            raise WeightExpressionError(
                f"{' and '.join(str(list(s)) for s in shapes)} differ along other axes than {axis}"
            )
        return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


@immutable_dataclass
class StackExpr(VariadicExpr):
    """Tensors of equal shape stacked along a new first axis, such as the weights of experts."""

    def __str__(self) -> str:
        return f"stack([{', '.join(group_parameter_names(map(str, self.parts)))}])"

    def infer_shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the shape of the result for operands with the shapes `shapes`."""
        if not shapes:
            raise WeightExpressionError("nothing to stack")
        if len(set(shapes)) > 1:
            differ = sorted({str(list(s)) for s in shapes})
            raise WeightExpressionError(f"cannot stack {' and '.join(differ)}")
        return (len(shapes), *shapes[0])


@immutable_dataclass
class CoalesceExpr(VariadicExpr):
    """The first expression in `parts` whose tensors are all in the file."""

    def __str__(self) -> str:
        return f"first_present({', '.join(map(str, self.parts))})"


@immutable_dataclass
class BaseSliceExpr(UnaryExpr):
    """Base class of expressions that select a range of indices along an axis. If `axis` is not the
    first axis, all rows are kept.
    """

    axis: int
    is_rowwise = True

    def get_bounds(self, length: int) -> tuple[int, int]:
        """Return the start and the end (exclusive) of the range for an axis of size `length`. Raise
        WeightExpressionError if the range does not fit.
        """
        raise NotImplementedError

    def infer_shape(self, shape: Shape) -> Shape:
        """Return the shape of the selected range."""
        start, stop = self.get_bounds(_get_length(shape, self.axis))
        return (*shape[: self.axis], stop - start, *shape[self.axis + 1 :])


@immutable_dataclass
class SliceExpr(BaseSliceExpr):
    """A slice of a tensor: indices `start` to `stop` (exclusive) along an axis."""

    start: int
    stop: int

    form = "slice({0.x}, axis={0.axis}, from={0.start}, to={0.stop})"

    def get_bounds(self, length: int) -> tuple[int, int]:
        """Return `start` and `stop`. Raise WeightExpressionError if the range exceeds `length`."""
        if not 0 <= self.start <= self.stop <= length:
            raise WeightExpressionError(
                f"slice {self.start}:{self.stop} is out of range for an axis of length {length}"
            )
        return self.start, self.stop


@immutable_dataclass
class ChunkExpr(BaseSliceExpr):
    """Chunk `index` of a tensor that is split along an axis into equal `parts` or listed sizes."""

    index: int
    parts: int | tuple[int, ...]

    def __str__(self) -> str:
        parts = self.parts if isinstance(self.parts, int) else list(self.parts)
        return f"split({self.x}, axis={self.axis}, into={parts})[{self.index}]"

    def get_bounds(self, length: int) -> tuple[int, int]:
        """Return the chunk's start and end. Raise WeightExpressionError if there is no chunk."""
        if isinstance(self.parts, int):
            if self.parts < 1 or length % self.parts:
                raise WeightExpressionError(
                    f"an axis of {length} cannot be split into {self.parts} equal parts"
                )
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


@immutable_dataclass
class PermuteRopeExpr(UnaryExpr):
    """A query or key projection whose rows are permuted per head between RoPE layouts. `to="half"`
    converts interleaved pairs (0, 1), (2, 3), … to the half-split layout: all first elements, then
    all second elements. `to="interleaved"` performs the inverse conversion.
    """

    to: Literal["half", "interleaved"]
    heads: int

    form = "permute_pairs({0.x}, to={0.to}, heads={0.heads})"

    def infer_shape(self, shape: Shape) -> Shape:
        """Return `shape`. Raise WeightExpressionError if a head has an odd number of rows."""
        rows = _get_length(shape, 0)
        if self.heads < 1 or rows % (2 * self.heads):
            reason = f"{rows} rows cannot be split into {self.heads} heads of pairs"
            raise WeightExpressionError(reason)
        return shape


@immutable_dataclass
class NegateExpr(UnaryExpr):
    """A tensor with all elements negated."""

    form, is_rowwise = "negate({0.x})", True


@immutable_dataclass
class CastExpr(UnaryExpr):
    """A tensor cast to another dtype."""

    dtype: str

    form, is_rowwise = "cast({0.x}, to={0.dtype})", True


@immutable_dataclass
class AddScalarExpr(UnaryExpr):
    """A tensor plus a scalar. 16-bit elements are first converted to f32 for accuracy."""

    scalar: float

    form = "add({0.x}, {0.scalar!r})"


@immutable_dataclass
class ResizeGridExpr(UnaryExpr):
    """Position embeddings of a square grid, resized to `rows` by `columns`. The first `prefix`
    embeddings are unchanged.
    """

    rows: int
    columns: int
    prefix: int = 0

    form = "resize_grid({0.x}, rows={0.rows}, columns={0.columns}, prefix={0.prefix})"

    def infer_shape(self, shape: Shape) -> Shape:
        """Return the shape of the resized embeddings."""
        if len(shape) < 2:
            raise WeightExpressionError(
                f"a position embedding requires rank >= 2, got shape {list(shape)}"
            )
        points = shape[-2] - self.prefix
        if self.prefix < 0 or points < 1 or math.isqrt(points) ** 2 != points:
            raise WeightExpressionError(
                f"{shape[-2]} positions minus {self.prefix} prefix positions are not a square grid"
            )
        if self.rows < 1 or self.columns < 1:
            raise WeightExpressionError("the new grid must have at least one row and one column")
        return (*shape[:-2], self.prefix + self.rows * self.columns, shape[-1])


@immutable_dataclass
class RearrangeExpr(UnaryExpr):
    """A tensor whose axes are split, permuted and merged by an einops pattern."""

    pattern: str
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = "".join(f", {n}={v}" for n, v in self.sizes)
        return f'rearrange({self.x}, "{self.pattern}"{sizes})'


def _get_length(shape: Shape, axis: int) -> int:
    if not 0 <= axis < len(shape):
        raise WeightExpressionError(
            f"axis {axis} is out of range for shape {list(shape)}; the first axis is 0"
        )
    return shape[axis]


def iterate_tensor_names(expr: Expr) -> Iterator[str]:
    """Yield the names of the tensors that an expression reads, in order."""
    if isinstance(expr, TensorExpr):
        yield expr.name
    for operand in expr.operands:
        yield from iterate_tensor_names(operand)


def rename_tensors(expr: Expr, rename: Callable[[str], str]) -> Expr:
    """Return a copy of an expression with its tensors renamed by `rename`."""
    if isinstance(expr, TensorExpr):
        return TensorExpr(rename(expr.name))
    return expr.map_operands(lambda operand: rename_tensors(operand, rename))


def resolve_coalesce(expr: Expr, is_present: Callable[[str], bool]) -> Expr:
    """Replace each `first_present` with its first option whose tensors exist, or else its last
    option.
    """
    resolved = expr.map_operands(lambda operand: resolve_coalesce(operand, is_present))
    if not isinstance(resolved, CoalesceExpr):
        return resolved
    complete = (o for o in resolved.parts if all(map(is_present, iterate_tensor_names(o))))
    return next(complete, resolved.parts[-1])


def contains_coalesce(expr: Expr) -> bool:
    """Return True if an expression contains `first_present`."""
    return resolve_coalesce(expr, lambda _: True) != expr
