"""Weight expressions: how a parameter is built from tensors of a file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from specc.weights.parameter_names import group_names
from specc.weights.rearrange_pattern import PatternMismatch

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorExpr:
    """A tensor of the file."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TransposeExpr:
    """Axes in the order `axes`; without it the last two change places."""

    x: "Expr"
    axes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return (
            f"transpose({self.x})"
            if self.axes is None
            else f"transpose({self.x}, axes={list(self.axes)})"
        )

    def order(self, rank: int) -> tuple[int, ...]:
        """Which axis comes where. Raises Unfit."""
        if self.axes is None:
            if rank < 2:  # a vector has nothing to exchange
                raise PatternMismatch(f"a tensor of rank {rank} has no two axes to exchange")
            return (*range(rank - 2), rank - 1, rank - 2)
        if sorted(self.axes) != list(range(rank)):
            raise PatternMismatch(
                f"axes={list(self.axes)} does not name each of the {rank} axes once"
            )
        return self.axes


@dataclass(frozen=True, slots=True)
class ReshapeExpr:
    """The same elements in the same order under other lengths; one of them may be -1."""

    x: "Expr"
    shape: Shape

    def __str__(self) -> str:
        return f"reshape({self.x}, shape={list(self.shape)})"


@dataclass(frozen=True, slots=True)
class ConcatExpr:
    """Tensors one after the other along an axis."""

    parts: tuple["Expr", ...]
    axis: int = 0

    def __str__(self) -> str:
        return f"concat([{', '.join(map(str, self.parts))}], axis={self.axis})"


@dataclass(frozen=True, slots=True)
class StackExpr:
    """Tensors of one shape as rows of a new first axis: what many experts have each."""

    parts: tuple["Expr", ...]

    def __str__(self) -> str:
        return f"stack([{', '.join(group_names(map(str, self.parts)))}])"


@dataclass(frozen=True, slots=True)
class SliceExpr:
    """Rows `start` up to, not including, `stop` along an axis."""

    x: "Expr"
    axis: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"slice({self.x}, axis={self.axis}, from={self.start}, to={self.stop})"


@dataclass(frozen=True, slots=True)
class PartExpr:
    """Part `index` of a tensor cut along an axis into `parts` equal parts, or into
    parts of those lengths.
    """

    x: "Expr"
    axis: int
    index: int
    parts: int | tuple[int, ...]

    def __str__(self) -> str:
        parts = self.parts if isinstance(self.parts, int) else list(self.parts)
        return f"split({self.x}, axis={self.axis}, into={parts})[{self.index}]"

    def bounds(self, length: int) -> tuple[int, int]:
        """First row and the one after the last. Raises Unfit."""
        if isinstance(self.parts, int):
            if self.parts < 1 or length % self.parts:
                raise PatternMismatch(f"an axis of {length} has no {self.parts} equal parts")
            sizes: tuple[int, ...] = (length // self.parts,) * self.parts
        else:
            sizes = self.parts
        if min(sizes, default=0) < 0 or sum(sizes) != length:
            raise PatternMismatch(f"parts of {list(sizes)} do not make up an axis of {length}")
        if not 0 <= self.index < len(sizes):
            raise PatternMismatch(f"there is no part {self.index} of {len(sizes)}; the first is 0")
        start = sum(sizes[: self.index])
        return start, start + sizes[self.index]


@dataclass(frozen=True, slots=True)
class PermutePairsExpr:
    """Rows of each head in the other order of rotary pairs.

    `to="half"` takes rows (0, 1), (2, 3), … of each head as pairs and puts the first of
    each pair before all the second ones; `to="interleaved"` is the inverse.
    """

    x: "Expr"
    to: Literal["half", "interleaved"]
    heads: int

    def __str__(self) -> str:
        return f"permute_pairs({self.x}, to={self.to}, heads={self.heads})"


@dataclass(frozen=True, slots=True)
class NegateExpr:
    """Every element with the other sign."""

    x: "Expr"

    def __str__(self) -> str:
        return f"negate({self.x})"


@dataclass(frozen=True, slots=True)
class CastExpr:
    """The elements as another type."""

    x: "Expr"
    dtype: str

    def __str__(self) -> str:
        return f"cast({self.x}, to={self.dtype})"


@dataclass(frozen=True, slots=True)
class AddNumberExpr:
    """A number added to every element; 16-bit elements become f32, where the sum is not coarse."""

    x: "Expr"
    number: float

    def __str__(self) -> str:
        return f"add({self.x}, {self.number!r})"


@dataclass(frozen=True, slots=True)
class ResizeGridExpr:
    """A square table of positions for a grid of `rows` by `columns`; `prefix` rows
    before it are kept.
    """

    x: "Expr"
    rows: int
    columns: int
    prefix: int = 0

    def __str__(self) -> str:
        return (
            f"resize_grid({self.x}, rows={self.rows}, columns={self.columns}, prefix={self.prefix})"
        )


@dataclass(frozen=True, slots=True)
class FirstPresentExpr:
    """The first of several expressions whose tensors the file has."""

    options: tuple["Expr", ...]

    def __str__(self) -> str:
        return f"first_present({', '.join(map(str, self.options))})"


@dataclass(frozen=True, slots=True)
class RearrangeExpr:
    """Axes split, moved and merged by a pattern."""

    x: "Expr"
    pattern: str
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = "".join(f", {n}={v}" for n, v in self.sizes)
        return f'rearrange({self.x}, "{self.pattern}"{sizes})'


Expr: TypeAlias = (
    TensorExpr
    | TransposeExpr
    | ReshapeExpr
    | ConcatExpr
    | StackExpr
    | SliceExpr
    | PartExpr
    | PermutePairsExpr
    | NegateExpr
    | CastExpr
    | AddNumberExpr
    | ResizeGridExpr
    | FirstPresentExpr
    | RearrangeExpr
)


OfOne: TypeAlias = (
    TransposeExpr
    | ReshapeExpr
    | SliceExpr
    | PartExpr
    | PermutePairsExpr
    | NegateExpr
    | CastExpr
    | AddNumberExpr
    | ResizeGridExpr
    | RearrangeExpr
)
"""Expressions of one other, `x`."""


def list_tensors(expr: Expr) -> Iterator[str]:
    """The names an expression mentions, in the order it does."""
    match expr:
        case TensorExpr(name):
            yield name
        case ConcatExpr(parts=inner) | StackExpr(parts=inner) | FirstPresentExpr(options=inner):
            for part in inner:
                yield from list_tensors(part)
        case _:
            yield from list_tensors(expr.x)


def rename_tensors(expr: Expr, rename: Callable[[str], str]) -> Expr:
    """The same expression over other tensors."""
    match expr:
        case TensorExpr(name):
            return TensorExpr(rename(name))
        case ConcatExpr(parts=parts) | StackExpr(parts=parts):
            return replace(expr, parts=tuple(rename_tensors(p, rename) for p in parts))
        case FirstPresentExpr(options=options):
            return replace(expr, options=tuple(rename_tensors(o, rename) for o in options))
        case _:
            # All others are of one tensor or expression, which is called `x` in each.
            return replace(expr, x=rename_tensors(expr.x, rename))


def resolve_alternatives(expr: Expr, present: Callable[[str], bool]) -> Expr:
    """The expression without choices: of each `first_present` the option that counts,
    or its last.
    """
    match expr:
        case TensorExpr():
            return expr
        case ConcatExpr(parts=parts) | StackExpr(parts=parts):
            return replace(expr, parts=tuple(resolve_alternatives(p, present) for p in parts))
        case FirstPresentExpr(options=options):
            decided = [resolve_alternatives(o, present) for o in options]
            return next((o for o in decided if all(map(present, list_tensors(o)))), decided[-1])
        case _:
            return replace(expr, x=resolve_alternatives(expr.x, present))


def split_expression(expr: Expr) -> Iterator[Expr]:
    """Expressions whose elements, one after the other, are those of `expr`: none of them
    need be in memory together.
    """
    match expr:
        case StackExpr(parts=parts) | ConcatExpr(parts=parts, axis=0):
            for part in parts:
                yield from split_expression(part)
        case _:
            yield expr
