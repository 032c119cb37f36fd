"""Attention maps as data: weights with labeled axes."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.drawing.drawing_marks import Bytes, Doubles

Role: TypeAlias = Literal["generated", "input", "audio", "image", "unnamed"]
"""The role of the positions of an axis: generated tokens, input tokens, audio frames, patches, or
unknown.
"""

UNITS_BY_ROLE: dict[Role, str] = {
    "generated": "tokens",
    "input": "tokens",
    "audio": "steps",
    "image": "patches",
    "unnamed": "positions",
}


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """The grid of image patches, which come after `prefix_tokens` such as a class token."""

    rows: int
    columns: int
    prefix_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class MapAxis:
    """The query or key axis of a map, with a label per position, the duration of audio in seconds,
    and the patch grid of an image.
    """

    role: Role
    labels: tuple[str, ...]
    duration_seconds: float | None = None
    grid: PatchGrid | None = None

    @property
    def caption(self) -> str:
        """Format the caption of the axis, e.g. `generated, 14 tokens`."""
        # tokens before the patches are not patches
        count = len(self.labels) - (self.grid.prefix_tokens if self.grid else 0)
        name = "" if self.role == "unnamed" else f"{self.role}, "
        unit = UNITS_BY_ROLE[self.role]
        one = unit.removesuffix("es" if unit == "patches" else "s")
        seconds = f", {self.duration_seconds:.3g} s" if self.duration_seconds is not None else ""
        number = f"{count:,}".replace(",", " ")
        return f"{name}{number} {one if count == 1 else unit}{seconds}"


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """The weights `f[heads, query, key]` of one attention for one batch element; `is_masked` is a
    boolean array of the same shape, `heads` are the indices of the heads.
    """

    scope: str
    weights: Doubles
    is_masked: NDArray[np.bool_]
    heads: tuple[int, ...]
    query_axis: MapAxis
    key_axis: MapAxis

    @property
    def layer(self) -> int | None:
        """Return the layer index, which is the first number in the scope, or None if the scope has
        no number.
        """
        numbers = [part for part in self.scope.split(".") if part.isdecimal()]
        return int(numbers[0]) if numbers else None

    def get_masked_weights(self) -> Doubles:
        """Return the weights, with -inf where a zero weight is masked."""
        # nonzero weights are shown even at masked positions
        return np.where(self.is_masked & (self.weights == 0), -np.inf, self.weights)

    def with_heads(
        self, weights: Doubles, is_masked: NDArray[np.bool_], heads: tuple[int, ...]
    ) -> "AttentionMap":
        """Return a copy with only the given heads."""
        return replace(self, weights=weights, is_masked=is_masked, heads=heads)


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """The attention maps of one input, and the image `u8[height, width, 3]` if there is one."""

    model_name: str
    input_text: str
    maps: tuple[AttentionMap, ...]
    image: Bytes | None = None


def max_pool_map(values: Doubles, max_side: int) -> tuple[Doubles, int]:
    """Max-pool maps `f[heads, query, key]` to at most `max_side` cells per side; return the maps
    and the block size.
    """
    step = max(1, -(-max(values.shape[1:]) // max_side))
    if step == 1:
        return values, 1
    heads, rows, columns = values.shape
    row_blocks, column_blocks = -(-rows // step), -(-columns // step)
    # padding is never the maximum of a block, so the last block may be smaller
    padded = np.full((heads, row_blocks * step, column_blocks * step), -np.inf)
    padded[:, :rows, :columns] = values
    return padded.reshape(heads, row_blocks, step, column_blocks, step).max((2, 4)), step
