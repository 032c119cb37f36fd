"""How a parameter is made from tensors of a file, as data.

An expression is a tree of the frozen classes below over names of tensors.
`specc.weights.shape` says what it gives before any data is read; `specc.weights.apply`
computes it. Its text is what a spec's `load` says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from specc.weights.names import grouped
from specc.weights.rearrange import Unfit

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Transpose:
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
                raise Unfit(f"a tensor of rank {rank} has no two axes to exchange")
            return (*range(rank - 2), rank - 1, rank - 2)
        if sorted(self.axes) != list(range(rank)):
            raise Unfit(
                f"axes={list(self.axes)} does not name each of the {rank} axes once"
            )
        return self.axes


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in the same order under other lengths; one of them may be -1."""

    x: "Expr"
    shape: Shape

    def __str__(self) -> str:
        return f"reshape({self.x}, shape={list(self.shape)})"


@dataclass(frozen=True, slots=True)
class Concat:
    """Tensors one after the other along an axis."""

    parts: tuple["Expr", ...]
    axis: int = 0

    def __str__(self) -> str:
        return f"concat([{', '.join(map(str, self.parts))}], axis={self.axis})"


@dataclass(frozen=True, slots=True)
class Stack:
    """Tensors of one shape as rows of a new first axis: what many experts have each."""

    parts: tuple["Expr", ...]

    def __str__(self) -> str:
        return f"stack([{', '.join(grouped(map(str, self.parts)))}])"


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start` up to, not including, `stop` along an axis."""

    x: "Expr"
    axis: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"slice({self.x}, axis={self.axis}, from={self.start}, to={self.stop})"


@dataclass(frozen=True, slots=True)
class Part:
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
                raise Unfit(f"an axis of {length} has no {self.parts} equal parts")
            sizes: tuple[int, ...] = (length // self.parts,) * self.parts
        else:
            sizes = self.parts
        if min(sizes, default=0) < 0 or sum(sizes) != length:
            raise Unfit(f"parts of {list(sizes)} do not make up an axis of {length}")
        if not 0 <= self.index < len(sizes):
            raise Unfit(
                f"there is no part {self.index} of {len(sizes)}; the first is 0"
            )
        start = sum(sizes[: self.index])
        return start, start + sizes[self.index]


@dataclass(frozen=True, slots=True)
class PermutePairs:
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
class Negate:
    """Every element with the other sign."""

    x: "Expr"

    def __str__(self) -> str:
        return f"negate({self.x})"


@dataclass(frozen=True, slots=True)
class Cast:
    """The elements as another type."""

    x: "Expr"
    dtype: str

    def __str__(self) -> str:
        return f"cast({self.x}, to={self.dtype})"


@dataclass(frozen=True, slots=True)
class AddNumber:
    """A number added to every element; 16-bit elements become f32, where the sum is not coarse."""

    x: "Expr"
    number: float

    def __str__(self) -> str:
        return f"add({self.x}, {self.number!r})"


@dataclass(frozen=True, slots=True)
class ResizeGrid:
    """A square table of positions for a grid of `rows` by `columns`; `prefix` rows
    before it are kept.
    """

    x: "Expr"
    rows: int
    columns: int
    prefix: int = 0

    def __str__(self) -> str:
        return (
            f"resize_grid({self.x}, rows={self.rows}, columns={self.columns}, "
            f"prefix={self.prefix})"
        )


@dataclass(frozen=True, slots=True)
class FirstPresent:
    """The first of several expressions whose tensors the file has."""

    options: tuple["Expr", ...]

    def __str__(self) -> str:
        return f"first_present({', '.join(map(str, self.options))})"


@dataclass(frozen=True, slots=True)
class Rearrange:
    """Axes split, moved and merged by a pattern."""

    x: "Expr"
    pattern: str
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = "".join(f", {n}={v}" for n, v in self.sizes)
        return f'rearrange({self.x}, "{self.pattern}"{sizes})'


Expr: TypeAlias = (
    Tensor
    | Transpose
    | Reshape
    | Concat
    | Stack
    | Slice
    | Part
    | PermutePairs
    | Negate
    | Cast
    | AddNumber
    | ResizeGrid
    | FirstPresent
    | Rearrange
)


OfOne: TypeAlias = (
    Transpose
    | Reshape
    | Slice
    | Part
    | PermutePairs
    | Negate
    | Cast
    | AddNumber
    | ResizeGrid
    | Rearrange
)
"""Expressions of one other, `x`."""


def tensors_of(expr: Expr) -> Iterator[str]:
    """The names an expression mentions, in the order it does."""
    match expr:
        case Tensor(name):
            yield name
        case Concat(parts=inner) | Stack(parts=inner) | FirstPresent(options=inner):
            for part in inner:
                yield from tensors_of(part)
        case _:
            yield from tensors_of(expr.x)


def renamed(expr: Expr, rename: Callable[[str], str]) -> Expr:
    """The same expression over other tensors."""
    match expr:
        case Tensor(name):
            return Tensor(rename(name))
        case Concat(parts=parts) | Stack(parts=parts):
            return replace(expr, parts=tuple(renamed(p, rename) for p in parts))
        case FirstPresent(options=options):
            return replace(expr, options=tuple(renamed(o, rename) for o in options))
        case _:
            # All others are of one tensor or expression, which is called `x` in each.
            return replace(expr, x=renamed(expr.x, rename))


def chosen(expr: Expr, present: Callable[[str], bool]) -> Expr:
    """The expression without choices: of each `first_present` the option that counts,
    or its last.
    """
    match expr:
        case Tensor():
            return expr
        case Concat(parts=parts) | Stack(parts=parts):
            return replace(expr, parts=tuple(chosen(p, present) for p in parts))
        case FirstPresent(options=options):
            decided = [chosen(o, present) for o in options]
            return next(
                (o for o in decided if all(map(present, tensors_of(o)))), decided[-1]
            )
        case _:
            return replace(expr, x=chosen(expr.x, present))


def pieces(expr: Expr) -> Iterator[Expr]:
    """Expressions whose elements, one after the other, are those of `expr`: none of them
    need be in memory together.
    """
    match expr:
        case Stack(parts=parts) | Concat(parts=parts, axis=0):
            for part in parts:
                yield from pieces(part)
        case _:
            yield expr
