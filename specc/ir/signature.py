"""Shape signatures of ops, such as `f[*s i], f[o i], f[o]? -> f[*s o]`.

The letter before the brackets is an element kind: `f` float, `i` int, `b` bool, `n` number, `q`
bytes of quantized weights, `a` any. Terms with the same letter have the same element type. A name
denotes an axis and its size, and `*s` denotes any number of axes. `#d` is an axis whose size may
also be 1. The axes `#*s` are aligned from the right, and may have size 1 or be missing. `?` after
an operand makes the operand optional, and `...` allows any number of such operands. In a term with
two variadic groups, `*a t *b`, the op's attribute `axis` is the number of axes of the first group.

Marks on operand axes declare which operand positions a result position reads
(`dependence_marks.py`). Without a mark, position t of a result reads position t. With `t[a:b]`, a
result reads positions `t - b` to `t - a`. With `t[a:b:s:u]`, position u of the result axis `u`
reads positions `s · u - b` to `s · u - a`. `t>` reads all positions up to t, `k|q` the positions of
`k` that `q` attends to, `t$` the last position, `t@` only the size, and `t~` all positions. If no
result has the operand axis, all positions of the axis are read. The same signature is used for
shape inference, checks, messages, dependence analysis and generated test inputs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import Dim
from specc.ir.types import CAST_HINT, DTYPES_BY_KIND, ShapeError, Type

_AXIS_GROUP_PATTERN = re.compile(r"\s*(?:\(([^()]*)\)|([A-Za-z_]\w*|1))")

AxisGroup: TypeAlias = tuple[str, ...]
"""The names of the axes that are merged into one axis, in row-major order. `1` is ()."""


class RearrangePatternError(Exception):
    """The error for an invalid rearrange pattern, such as a pattern without `->`."""


@immutable_dataclass
class RearrangePattern:
    """The axes of a tensor before (`left`) and after (`right`) a rearrange."""

    left: tuple[AxisGroup, ...]
    right: tuple[AxisGroup, ...]

    @property
    def left_names(self) -> list[str]:
        """The axis names on the left side, ignoring parentheses."""
        return [name for axis in self.left for name in axis]

    @property
    def right_names(self) -> list[str]:
        """The axis names on the right side, ignoring parentheses."""
        return [name for axis in self.right for name in axis]

    def find_unmatched_axis_names(self) -> list[str]:
        """Return the axis names that do not occur exactly once on each side."""
        left_names, right_names = self.left_names, self.right_names
        names = {*left_names, *right_names}
        return sorted(n for n in names if left_names.count(n) != 1 or right_names.count(n) != 1)

    def find_permutation(self) -> tuple[int, ...]:
        """Return the axis permutation of a pattern whose axis names occur once on each side."""
        left_names = self.left_names
        return tuple(left_names.index(name) for name in self.right_names)


def parse_rearrange_pattern(text: str) -> RearrangePattern:
    """Parse a pattern such as `b t (h d) -> b h t d`, or raise RearrangePatternError."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise RearrangePatternError("the pattern has no `->`")
    return RearrangePattern(_parse_side(left), _parse_side(right))


def _parse_side(text: str) -> tuple[AxisGroup, ...]:
    """Parse one side of a rearrange pattern, such as `(h d) i 1`, to a tuple ((h, d), (i,), ())."""
    axes: list[AxisGroup] = []
    offset = 0
    while text[offset:].strip():
        match = _AXIS_GROUP_PATTERN.match(text, offset)
        if not match:
            raise RearrangePatternError(
                f"the pattern cannot be read at `{text[offset:].strip()[:20]}`"
            )
        names = match[1].split() if match[1] is not None else [match[2]]
        if invalid_names := [n for n in names if not (n.isidentifier() or n == "1")]:
            raise RearrangePatternError(f"`{invalid_names[0]}` is not an axis name")
        axes.append(tuple(n for n in names if n != "1"))
        offset = match.end()
    return tuple(axes)


TERM_PATTERN = re.compile(r"\s*([fibnqa])\[([^\]]*(?:\[[^\]]*\][^\]]*)*)\](\?|\.\.\.)?\s*(?:,|$)")
AXIS_PATTERN = re.compile(r"(#?)(\*?)([A-Za-z_]\w*)(\|\w+|\[[^\]]*\]|[>$@~])?$")
SOLVED_OPERAND = -1
"""The operand index of axis sizes that `Op.infer_result_axes` sets, instead of an operand."""


@immutable_dataclass
class SignatureAxis:
    """An axis in a term of a signature, such as `#k|q`. `mark` is the text after the axis name."""

    name: str
    mark: str = ""
    is_variadic: bool = False
    is_broadcastable: bool = False


@immutable_dataclass
class SignatureTerm:
    """An operand or result in a signature, such as `f[*s d]`."""

    kind: str
    axes: tuple[SignatureAxis, ...]
    is_optional: bool = False
    is_repeated: bool = False


@dataclass
class AxisBindings:
    """The axis sizes and element types that the operands of an op determine. `dims` maps each axis
    name of the signature to the axis sizes and the index of the first operand with this axis.
    """

    dims: dict[str, tuple[tuple[Dim, ...], int]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    broadcastable: dict[str, list[tuple[tuple[Dim, ...], int]]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Dim:
        """Return the size of the axis `name`, which must not be variadic."""
        (dim,) = self.dims[name][0]
        return dim

    def __setitem__(self, name: str, dims: Dim | tuple[Dim, ...]) -> None:
        """Set the sizes of the result axes `name`, which no operand determines."""
        assert name not in self.dims, f"`{name}` is already bound by the operands"
        self.dims[name] = dims if isinstance(dims, tuple) else (dims,), SOLVED_OPERAND

    def bind_axis(self, name: str, dims: tuple[Dim, ...], operand: int) -> None:
        """Assign sizes to axis `name`. Raise ShapeError if an earlier operand's sizes differ."""
        bound_dims, first_operand = self.dims.setdefault(name, (dims, operand))
        if bound_dims == dims:
            return
        if len(bound_dims) != len(dims):
            title = (
                f"operand {first_operand + 1} has {len(bound_dims)} axes where operand "
                f"{operand + 1} has {len(dims)}"
            )
            raise ShapeError(title, (first_operand, operand), name=name)
        mismatch = next((a, b) for a, b in zip(bound_dims, dims, strict=True) if a != b)
        raise make_length_mismatch_error(name, mismatch[0], first_operand, mismatch[1], operand)

    def broadcast_axes(self) -> None:
        """Broadcast axes that have the mark `#`. Raise ShapeError if sizes other than 1 differ."""
        for name, operand_dims in self.broadcastable.items():
            if fixed_dims := self.dims.get(name):
                # operands without `#` determine the axis sizes
                fixed_lengths = [(d, fixed_dims[1]) for d in fixed_dims[0]]
                _broadcast_variadic_axes(name, operand_dims, fixed_lengths, is_rank_fixed=True)
                continue
            # if all operands have `#`, the rank is the largest operand rank, as in NumPy
            # broadcasting
            rank = max(len(dims) for dims, _ in operand_dims)
            broadcast_lengths = _broadcast_variadic_axes(
                name, operand_dims, [(Dim.from_value(1), SOLVED_OPERAND)] * rank
            )
            self.dims[name] = tuple(d for d, _ in broadcast_lengths), operand_dims[0][1]


def _broadcast_variadic_axes(
    name: str,
    operand_lengths: Sequence[tuple[tuple[Dim, ...], int]],
    broadcast_lengths: list[tuple[Dim, int]],
    *,
    is_rank_fixed: bool = False,
) -> list[tuple[Dim, int]]:
    """Broadcast the axes of all operands. Return each axis size with the index of the operand that
    determines it. If `is_rank_fixed` is True, the operands cannot change `broadcast_lengths`.
    """
    rank = len(broadcast_lengths)
    for dims, operand in operand_lengths:
        if len(dims) > rank:
            title = f"operand {operand + 1} has {len(dims)} axes, expected at most {rank}"
            raise ShapeError(title, (operand,), name=name)
        for n, dim in enumerate(dims, start=rank - len(dims)):
            if dim not in (1, broadcast_lengths[n][0]):
                _broadcast_length(name, broadcast_lengths, n, (dim, operand), is_rank_fixed)
    return broadcast_lengths


def _broadcast_length(
    name: str,
    broadcast_lengths: list[tuple[Dim, int]],
    index: int,
    length_and_operand: tuple[Dim, int],
    is_rank_fixed: bool,
) -> None:
    """Broadcast an axis size of one operand. Size 1 broadcasts to any size. Raise ShapeError if two
    sizes other than 1 differ, or if `is_rank_fixed` is True and the sizes differ.
    """
    length, first_operand = broadcast_lengths[index]
    if length != 1 or is_rank_fixed:
        raise make_length_mismatch_error(name, length, first_operand, *length_and_operand)
    broadcast_lengths[index] = length_and_operand


def make_length_mismatch_error(
    name: str, first_dim: Dim, first_operand: int, second_dim: Dim, second_operand: int
) -> ShapeError:
    """Create the error for two different axis sizes that must be equal."""
    title = (
        f"axis `{name}` is {first_dim} in operand {first_operand + 1} but {second_dim} in operand "
        f"{second_operand + 1}"
    )
    return ShapeError(title, (first_operand, second_operand), (first_dim, second_dim), name)


@immutable_dataclass
class Signature:
    """A parsed op signature. The signature is the shape rule of the op."""

    text: str
    operands: tuple[SignatureTerm, ...]
    results: tuple[SignatureTerm, ...]

    @classmethod
    def parse(cls, text: str) -> "Signature":
        """Parse a signature such as `f[*s d~], f[d] -> f[*s d]`."""
        return _parse_signature(text)

    def match_operands_to_terms(
        self, args: Sequence[Type | None]
    ) -> list[tuple[SignatureTerm, Type | None]]:
        """Pair each operand with its term in the signature. A repeated term is paired with all
        remaining operands. Raise ShapeError if the number of operands does not match.
        """
        terms = list(self.operands)
        if terms and terms[-1].is_repeated:
            terms[-1:] = [terms[-1]] * (len(args) - len(terms) + 1)
        # trailing optional operands may be omitted
        while len(terms) > len(args) and terms[-1].is_optional:
            terms.pop()
        if len(terms) != len(args):
            raise ShapeError(f"expected {len(terms)} operands, got {len(args)}")
        return list(zip(terms, args, strict=True))

    def bind_axes(
        self, args: Sequence[Type | None], leading_axis_count: int | None
    ) -> AxisBindings:
        """Bind axis names to the axes of operands. Raise ShapeError if operands do not match."""
        axes = AxisBindings()
        for n, (term, arg) in enumerate(self.match_operands_to_terms(args)):
            if arg is None:
                if not term.is_optional:
                    raise ShapeError(f"operand {n + 1} is missing", (n,))
                continue
            _bind_dtype(axes, term, arg, n)
            for mark, dims in assign_operand_axes(term, arg.rank, leading_axis_count, n):
                lengths = tuple(arg.shape[i] for i in dims)
                if mark.is_broadcastable:
                    axes.broadcastable.setdefault(mark.name, []).append((lengths, n))
                else:
                    axes.bind_axis(mark.name, lengths, n)
        axes.broadcast_axes()
        return axes

    def build_results(self, axes: AxisBindings) -> tuple[Type, ...]:
        """Return the result types for the axis sizes in `axes`."""
        return tuple(_build_type(term, axes) for term in self.results)


@lru_cache(maxsize=4096)
def _parse_signature(text: str) -> Signature:
    left, right = text.split("->")
    return Signature(text, tuple(_parse_terms(left)), tuple(_parse_terms(right)))


@lru_cache(maxsize=4096)
def assign_operand_axes(
    term: SignatureTerm, rank: int, leading_axis_count: int | None, operand: int
) -> tuple[tuple[SignatureAxis, range], ...]:
    """Return the range of a tensor's axes that each axis of `term` covers. `rank` is the rank of
    the tensor.
    """
    variadic_count = sum(a.is_variadic for a in term.axes)
    named_count = len(term.axes) - variadic_count
    # the total number of axes that the variadic groups cover
    variadic_width = rank - named_count
    if variadic_width < 0 or (variadic_width and not variadic_count):
        minimum = "at least " if variadic_count else ""
        title = f"operand {operand + 1} has {rank} axes, expected {minimum}{named_count}"
        raise ShapeError(title, (operand,))
    # the attribute `axis` is the index of the axis between the two variadic groups
    if variadic_count == 2 and (
        leading_axis_count is None or not 0 <= leading_axis_count <= variadic_width
    ):
        title = f"operand {operand + 1} has {rank} axes, no axis {leading_axis_count}"
        raise ShapeError(title, (operand,))
    first = leading_axis_count or 0
    return _assign_consecutive_axes(
        term, [first, variadic_width - first] if variadic_count == 2 else [variadic_width]
    )


def _assign_consecutive_axes(
    term: SignatureTerm, variadic_axis_counts: Sequence[int]
) -> tuple[tuple[SignatureAxis, range], ...]:
    """Return the range of axes that each axis of `term` covers. `variadic_axis_counts` contains the
    number of axes of each variadic group.
    """
    widths = iter(variadic_axis_counts)
    assignments, start = [], 0
    for mark in term.axes:
        width = next(widths) if mark.is_variadic else 1
        assignments.append((mark, range(start, start + width)))
        start += width
    return tuple(assignments)


def assign_result_axes(
    term: SignatureTerm, rank: int, variadic_axis_counts: Mapping[str, int]
) -> dict[str, range]:
    """Return the axes of a result of rank `rank` that each axis name covers. `variadic_axis_counts`
    contains the number of axes of each variadic group. A group without an entry covers the
    remaining axes.
    """
    known_width = sum(
        variadic_axis_counts.get(a.name, 0) if a.is_variadic else 1 for a in term.axes
    )
    axes: dict[str, range] = {}
    start = 0
    for a in term.axes:
        width = variadic_axis_counts.get(a.name, rank - known_width) if a.is_variadic else 1
        axes[a.name] = range(start, start + width)
        start += width
    return axes


def _bind_dtype(axes: AxisBindings, term: SignatureTerm, operand_type: Type, operand: int) -> None:
    """Bind the element kind of `term` to an operand's element type. Raise ShapeError if the type is
    of another kind or differs from an earlier operand's type.
    """
    if operand_type.dtype not in DTYPES_BY_KIND[term.kind]:
        kind_names = {"f": "floats", "i": "integers", "b": "booleans", "n": "numbers"}
        expected = kind_names.get(term.kind, "values")
        title = f"operand {operand + 1} is {operand_type.dtype}, expected {expected}"
        raise ShapeError(title, (operand,), hint=CAST_HINT if term.kind == "f" else "")
    if (bound_dtype := axes.dtypes.setdefault(term.kind, operand_type.dtype)) != operand_type.dtype:
        raise ShapeError(
            f"operand {operand + 1} is {operand_type.dtype}, an earlier one is {bound_dtype}",
            (operand,),
        )


def _build_type(term: SignatureTerm, axes: AxisBindings) -> Type:
    """Return the type of the result `term` for the axis sizes in `axes`. If no operand determines
    the element type of a kind, the type is f32, i64 or bool.
    """
    default_dtypes = {"f": "f32", "i": "i64", "b": "bool"}
    dtype = axes.dtypes.get(term.kind) or default_dtypes[term.kind]
    return Type(dtype, tuple(d for a in term.axes for d in axes.dims[a.name][0]))


def _parse_terms(side: str) -> Iterator[SignatureTerm]:
    """Parse the comma-separated terms on one side of a signature."""
    offset = 0
    while side[offset:].strip():
        match = TERM_PATTERN.match(side, offset)
        assert match, f"not a signature: {side!r} at {offset}"
        kind, axes, suffix = match.groups()
        yield SignatureTerm(
            kind, tuple(map(_parse_axis, axes.split())), suffix == "?", suffix == "..."
        )
        offset = match.end()


def _parse_axis(text: str) -> SignatureAxis:
    """Parse an axis in a term of a signature, such as `#*s` or `k|q`."""
    match = AXIS_PATTERN.match(text)
    assert match, f"not an axis of a signature: {text!r}"
    broadcast_mark, variadic_mark, name, mark = match.groups()
    return SignatureAxis(name, mark or "", bool(variadic_mark), bool(broadcast_mark))
