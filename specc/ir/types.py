"""Tensor types: an element type and a symbolic length per axis."""

from dataclasses import dataclass

from specc.ir.dim import Dim, DimLike

DTYPES_BY_KIND: dict[str, tuple[str, ...]] = {
    "f": ("f32", "f64", "f16", "bf16"),
    "i": ("i64", "i32"),
    "b": ("bool",),
    "n": ("f32", "f64", "f16", "bf16", "i64", "i32"),
    "q": ("i8", "u8", "i4"),
    "a": ("f32", "f64", "f16", "bf16", "i64", "i32", "bool", "i8", "u8", "i4"),
}
"""The element types of each letter of a signature: float, int, bool, number, quantized weights,
any."""

ALL_DTYPES = DTYPES_BY_KIND["a"]

KIND_BY_DTYPE = {dtype: kind for kind in "fibq" for dtype in DTYPES_BY_KIND[kind]}

KIND_DESCRIPTIONS = {"f": "numbers", "i": "integers", "q": "integers", "b": "booleans"}
"""Names of the values of each kind in messages."""


FLOAT32_INTEGER_RANGES = {
    "i64": (-(2.0**63), 2.0**63 - 2.0**39),
    "i32": (-(2.0**31), 2.0**31 - 2.0**7),
}
"""The minimum and maximum integer of each type that float32 represents."""


@dataclass(frozen=True, slots=True)
class Type:
    """`f32[batch, seq, 768]`."""

    dtype: str
    shape: tuple[Dim, ...]

    @classmethod
    def of(cls, dtype: str, *shape: DimLike) -> "Type":
        """Make a type: `Type.of("f32", Dim.symbol("batch"), 768)`."""
        return cls(dtype, tuple(Dim.of(d) for d in shape))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ShapeError(Exception):
    """Incompatible operands of an operation. `title` is a complete message; the rest is evidence.

    `operands` are the indices of the clashing operands, `dims` the clashing lengths; `name` is the
    axis letter of the signature.
    """

    title: str
    operands: tuple[int, ...] = ()
    dims: tuple[Dim, ...] = ()
    name: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return self.title
