"""Elementwise ops, reductions, and ops that reshape, pad or move elements."""

from specc.ir.dim import Dim, multiply_dims, sum_dims
from specc.ir.op import Op, Operand
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ALL_DTYPES, CAST_HINT, ShapeError, Type

POINTWISE_FUNCTIONS = (
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "gelu", "gelu_tanh"),
    *("log", "log1p", "neg", "quick_gelu", "reciprocal", "relu", "relu2", "round"),
    *("sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "tanh"),
)
"""The names of the `Pointwise` functions. `specc_numpy` contains the reference implementations."""

ARITH_FUNCTIONS = ("add", "sub", "mul", "div", "pow", "min", "max", "floordiv", "mod")
COMPARE_FUNCTIONS = ("eq", "ne", "lt", "le", "gt", "ge", "same_group")
REDUCE_FUNCTIONS = ("sum", "mean", "max", "min", "any", "all")


class Constant(Op, sig="-> a[]", is_view=True):
    """A scalar constant, broadcast to every position."""

    value: float | int | bool
    dtype: str

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.dtype in ALL_DTYPES, self.dtype
        axes.dtypes["a"] = self.dtype


class Range(Op, sig="-> i[n]", is_view=True):
    """The integers `0, 1, …, length - 1`. For a dynamic axis, use `Extent`."""

    length: Dim

    def infer_result_axes(self, axes: AxisBindings) -> None:
        axes["n"] = self.length


class Extent(Op, sig="a[*a t@ *b] -> i[t]", is_view=True):
    """The position ids `0, 1, …` along axis `axis` of the operand. The elements of the operand are
    not read.
    """

    axis: int


class Size(Op, sig="-> i[]", is_view=True):
    """The size of an axis, as an integer scalar. During generation, the size of the time axis is
    unknown.
    """

    length: Dim


class Pointwise(Op, sig="n[*s] -> n[*s]", is_elementwise=True):
    """An elementwise unary function. `gelu` is exact (erf), and `gelu_tanh` approximates `gelu`."""

    fn: str

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.fn in POINTWISE_FUNCTIONS, self.fn
        if axes.dtypes["n"] in ("i64", "i32") and self.fn not in ("abs", "neg", "sign"):
            raise ShapeError("expected floats, got integers", (0,), hint=CAST_HINT)


class Arith(Op, sig="n[#*s], n[#*s] -> n[*s]", is_elementwise=True):
    """An elementwise binary function: `add sub mul div pow min max floordiv mod`.

    `mod` has the sign of the divisor. Integer division by 0 returns 0. The exponent of an integer
    `pow` must be a non-negative constant.
    """

    left, right = Operand(0), Operand(1)

    fn: str

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.fn in ARITH_FUNCTIONS, self.fn
        if self.fn == "div" and axes.dtypes["n"] in ("i64", "i32"):
            raise ShapeError("integers are divided with `//`", (0, 1))


class Compare(Op, sig="n[#*s], n[#*s] -> b[*s]", is_elementwise=True):
    """Elementwise comparison `eq ne lt le gt ge`, or `same_group` (true if the group ids are equal
    and positive). In generation, one decode step must process all positions of a group.
    """

    left, right = Operand(0), Operand(1)

    fn: str

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.fn in COMPARE_FUNCTIONS, self.fn


class And(Op, sig="b[#*s], b[#*s] -> b[*s]", is_elementwise=True):
    """Elementwise logical AND."""

    left, right = Operand(0), Operand(1)


class Or(Op, sig="b[#*s], b[#*s] -> b[*s]", is_elementwise=True):
    """Elementwise logical OR."""

    left, right = Operand(0), Operand(1)


class Not(Op, sig="b[*s] -> b[*s]", is_elementwise=True):
    """Elementwise logical NOT."""


class Where(Op, sig="b[#*s], a[#*s], a[#*s] -> a[*s]", is_elementwise=True):
    """Select the second operand where the first is true, and the third elsewhere."""

    condition, x, y = Operand(0), Operand(1), Operand(2)


class Cast(Op, sig="a[*s] -> n[*s]", is_elementwise=True):
    """Convert the elements to another element type. True becomes 1. Floats are truncated to
    integers: NaN becomes 0, and a value out of range becomes the nearest integer that float32
    represents.
    """

    to: str

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.to in ALL_DTYPES, self.to
        axes.dtypes["n"] = self.to


class Transpose(Op, sig="a[*s] -> a[*t]", is_view=True):
    """Permute the axes: result axis `n` is operand axis `order[n]`."""

    order: tuple[int, ...]

    def get_signature(self) -> Signature:
        operand_axes = " ".join(f"s{n}" for n in range(len(self.order)))
        return Signature.parse(f"a[{operand_axes}] -> a[{' '.join(f's{n}' for n in self.order)}]")


class Split(Op, sig="a[*a t *b] -> a[*a *u *b]", is_view=True):
    """Split an axis into several axes in row-major order: `[…, h·d, …]` to `[…, h, d, …]`."""

    axis: int
    sizes: tuple[Dim, ...]

    def infer_result_axes(self, axes: AxisBindings) -> None:
        length, size_product = axes["t"], multiply_dims(self.sizes)
        if size_product != length:
            title = f"an axis of {length} cannot be split into {' · '.join(map(str, self.sizes))}"
            raise ShapeError(title, (0,), (length, size_product), "t")
        axes["u"] = self.sizes


class Merge(Op, sig="a[*a t *b] -> a[*a u *b]", is_view=True):
    """Merge `count` adjacent axes from `axis` on, row-major: `[…, h, d, …]` to `[…, h·d, …]`."""

    axis: int
    count: int

    def get_signature(self) -> Signature:
        merged = " ".join(f"t{n}" for n in range(self.count))
        return Signature.parse(f"a[*a {merged} *b] -> a[*a u *b]")

    def infer_result_axes(self, axes: AxisBindings) -> None:
        axes["u"] = multiply_dims(axes[f"t{n}"] for n in range(self.count))


class Insert(Op, sig="a[*a *b] -> a[*a one *b]", is_view=True):
    """Insert an axis of size 1 before axis `axis` (unsqueeze)."""

    axis: int

    def infer_result_axes(self, axes: AxisBindings) -> None:
        axes["one"] = Dim.from_value(1)


def _check_single_position(axes: AxisBindings, participle: str) -> None:
    """Raise ShapeError unless axis `one` has size 1. `participle` is e.g. "squeezed"."""
    if (length := axes["one"]) != 1:
        title = f"only an axis of length 1 can be {participle}, got an axis of length {length}"
        raise ShapeError(title, (0,))


class Squeeze(Op, sig="a[*a one *b] -> a[*a *b]", is_view=True):
    """Remove axis `axis`, which has size 1."""

    axis: int

    def infer_result_axes(self, axes: AxisBindings) -> None:
        _check_single_position(axes, "squeezed")


class Expand(Op, sig="a[*a one *b] -> a[*a t *b]", is_view=True):
    """Broadcast axis `axis`, which has size 1, to size `length`."""

    axis: int
    length: Dim

    def infer_result_axes(self, axes: AxisBindings) -> None:
        _check_single_position(axes, "expanded")
        axes["t"] = self.length


class Concat(Op, sig="a[*a t *b]... -> a[*a u *b]"):
    """Concatenate operands along axis `axis`. The sizes of all other axes must be equal."""

    axis: int

    def infer_result_types(self, *args: Type | None) -> tuple[Type, ...]:
        lengths = [a.shape[self.axis] for a in args if a is not None]
        # set the concatenated axis to size 0: only the other axes are compared
        empty_types = (
            a
            and Type(a.dtype, (*a.shape[: self.axis], Dim.from_value(0), *a.shape[self.axis + 1 :]))
            for a in args
        )
        axes = self.signature.bind_axes(tuple(empty_types), self.axis)
        axes["u"] = sum_dims(lengths)
        return self.signature.build_results(axes)


class Flip(Op, sig="a[*a t~ *b] -> a[*a t *b]", is_selection=True):
    """Reverse axis `axis`."""

    axis: int


class Delay(Op, sig="a[*a t[steps:steps] *b] -> a[*a t *b]"):
    """Shift right along axis `axis` by `steps` positions: position t of the result is position `t -
    steps` of the operand. The first `steps` positions contain `fill_value`.
    """

    axis: int
    steps: int
    fill_value: float | int | bool

    def infer_result_axes(self, axes: AxisBindings) -> None:
        if self.steps < 0:
            raise ShapeError(f"a delay by {self.steps} would read later positions", (0,))


class CumSum(Op, sig="n[*a t> *b] -> n[*a t *b]"):
    """Inclusive cumulative sum along axis `axis`."""

    axis: int


class Reduce(Op, sig="a[*a t *b] -> a[*a *b]"):
    """Reduce axis `axis` with `sum mean max min` (numeric) or `any all` (booleans). For an empty
    axis, `sum` and `mean` return 0, `max` returns -inf, and `min` returns inf.
    """

    fn: str
    axis: int

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.fn in REDUCE_FUNCTIONS, self.fn
        if (axes.dtypes["a"] == "bool") != (self.fn in ("any", "all")):
            raise ShapeError(f"`{self.fn}` is not defined for {axes.dtypes['a']}", (0,))
        if self.fn == "mean" and axes.dtypes["a"] in ("i64", "i32"):
            raise ShapeError("the mean of integers is not an integer", (0,), hint=CAST_HINT)


class ArgMax(Op, sig="n[*a t *b] -> i[*a *b]"):
    """The index of the maximum along axis `axis` (the first among equal values)."""

    axis: int


class OneHot(Op, sig="i[*s] -> f[*s n]"):
    """One-hot encoding: 1 at the given index, 0 at all others."""

    size: Dim

    def infer_result_axes(self, axes: AxisBindings) -> None:
        axes["n"] = self.size


class MatMul(Op, sig="f[#*s m k|m], f[#*s k|m n] -> f[*s m n]", is_compute_intensive=True):
    """Matrix multiplication over the last two axes. Positions at which the left operand is zero do
    not affect the result.
    """

    left, right = Operand(0), Operand(1)


class Einsum(Op, sig="f[*s] -> f[*t]", is_compute_intensive=True):
    """Sum of products over the axes that are not in the result: `b i d, b j d -> b i j`."""

    equation: str

    def get_signature(self) -> Signature:
        left, right = self.equation.split("->")
        terms = ", ".join(f"f[{t.strip()}]" for t in left.split(","))
        return Signature.parse(f"{terms} -> f[{right.strip()}]")


PAD_MODES = ("constant", "reflect", "edge")


class Roll(Op, sig="a[*a t~ *b] -> a[*a t *b]", is_selection=True):
    """Roll axis `axis` by `shift` positions: position t of the result is position `(t - shift) mod
    n` of the operand.
    """

    axis: int
    shift: Dim


class Pad(Op, sig="a[*a t~ *b] -> a[*a u *b]"):
    """Pad axis `axis` with `padding_before` and `padding_after` positions.

    `constant` pads with `value`, `edge` repeats the first and last position, and `reflect` mirrors
    the axis without repeating its first and last position.
    """

    axis: int
    padding_before: Dim
    padding_after: Dim
    mode: str = "constant"
    value: float | int | bool = 0

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.mode in PAD_MODES, self.mode
        length = axes["t"]
        if any(d.is_negative for d in self.list_nonnegative_dims(length)):
            raise ShapeError(
                f"cannot pad an axis of length {length} with {self.padding_before} positions "
                f"before and {self.padding_after} after in mode {self.mode}",
                (0,),
            )
        axes["u"] = self.padding_before + length + self.padding_after

    def list_nonnegative_dims(self, length: Dim) -> tuple[Dim, ...]:
        """Return the dimensions that must be non-negative when padding an axis of size `length`."""
        ends = self.padding_before, self.padding_after
        if self.mode == "constant" or self.padding_before == 0 == self.padding_after:
            return ends
        if self.mode == "edge":
            return *ends, length - 1
        return *ends, *(length - 1 - end for end in ends)
