"""Tensor types with symbolic shapes, and intervals of position offsets.

An interval contains the offsets `t_result - t_operand` of the operand positions that a result
position reads.
"""

from math import inf

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import Dim, DimLike

DTYPES_BY_KIND: dict[str, tuple[str, ...]] = {
    "f": ("f32", "f64", "f16", "bf16"),
    "i": ("i64", "i32"),
    "b": ("bool",),
    "n": ("f32", "f64", "f16", "bf16", "i64", "i32"),
    "q": ("i8", "u8", "i4"),
    "a": ("f32", "f64", "f16", "bf16", "i64", "i32", "bool", "i8", "u8", "i4"),
}
"""The element types of each element kind in signatures (float, int, bool, number, quantized
weights, any).
"""

ALL_DTYPES = DTYPES_BY_KIND["a"]

KIND_BY_DTYPE = {dtype: kind for kind in "fibq" for dtype in DTYPES_BY_KIND[kind]}

KIND_DESCRIPTIONS = {"f": "numbers", "i": "integers", "q": "integers", "b": "booleans"}
"""The plural noun for elements of each element kind, for messages."""


FLOAT32_INTEGER_RANGES = {
    "i64": (-(2.0**63), 2.0**63 - 2.0**39),
    "i32": (-(2.0**31), 2.0**31 - 2.0**7),
}
"""For each integer type, the smallest and the largest integer that is exact in float32."""


@immutable_dataclass
class Type:
    """A tensor type: element type and symbolic shape, such as `f32[batch, seq, 768]`."""

    dtype: str
    shape: tuple[Dim, ...]

    @classmethod
    def of(cls, dtype: str, *shape: DimLike) -> "Type":
        """Create a type: `Type.of("f32", Dim.symbol("batch"), 768)`."""
        return cls(dtype, tuple(Dim.from_value(d) for d in shape))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@immutable_dataclass(slots=False)
class ShapeError(Exception):
    """The error for incompatible operands of an op.

    `title` is the message. `operands` are the indices of the conflicting operands, `dims` are the
    conflicting axis sizes, and `name` is the axis name in the signature.
    """

    title: str
    operands: tuple[int, ...] = ()
    dims: tuple[Dim, ...] = ()
    name: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return self.title


CAST_HINT = "`cast(x, to=float)` converts integers"
"""The help message if a float operand is required but the operand is an integer."""


@immutable_dataclass
class Interval:
    """A closed interval from `low` to `high`. The interval is empty if `low > high`."""

    low: float
    high: float

    @property
    def is_empty(self) -> bool:
        """Return True if the interval is empty."""
        return self.low > self.high

    def __add__(self, other: "Interval") -> "Interval":
        if self.is_empty or other.is_empty:
            return EMPTY_INTERVAL
        return Interval(self.low + other.low, self.high + other.high)

    def shift(self, offset: int) -> "Interval":
        """Return the interval shifted by `offset`."""
        return Interval(self.low + offset, self.high + offset)

    def scale(self, factor: int) -> "Interval":
        """Return the interval scaled by `factor`."""
        return Interval(self.low * factor, self.high * factor)

    def __or__(self, other: "Interval") -> "Interval":
        """Return the smallest interval that contains this interval and `other`."""
        if self.is_empty or other.is_empty:
            return self if other.is_empty else other
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def __and__(self, other: "Interval") -> "Interval":
        """Return the intersection of this interval and `other`."""
        intersection = Interval(max(self.low, other.low), min(self.high, other.high))
        return EMPTY_INTERVAL if intersection.is_empty else intersection

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __str__(self) -> str:
        return (
            "nothing"
            if self.is_empty
            else f"[{_format_endpoint(self.low)}, {_format_endpoint(self.high)}]"
        )


def _format_endpoint(endpoint: float) -> str:
    return {inf: "∞", -inf: "-∞"}.get(endpoint) or str(int(endpoint))


EMPTY_INTERVAL = Interval(inf, -inf)
FULL_INTERVAL = Interval(-inf, inf)
SAME_POSITION = Interval(0, 0)
PAST_POSITIONS = Interval(0, inf)
FUTURE_POSITIONS = Interval(-inf, 0)
