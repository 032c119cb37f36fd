"""Attention maps as data: weights with labeled axes."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.drawing.colormap import Bytes, Doubles

Role: TypeAlias = Literal["written", "read", "heard", "seen", "rows"]
"""What the rows of an axis are: tokens of the text that grows or of one that is given,
pieces of a recording, patches of a picture, or nothing that has a name.
"""

UNITS: dict[Role, str] = {
    "written": "tokens",
    "read": "tokens",
    "heard": "steps",
    "seen": "patches",
    "rows": "rows",
}


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """Patches of a picture as rows and columns, behind `lead` tokens that are no patch."""

    rows: int
    columns: int
    lead: int = 0


@dataclass(frozen=True, kw_only=True)
class MapAxis:
    """The queries or the keys of a map: a label for each, and what they are.

    `lasts` is how many seconds they take together, of a recording; `grid` how they lie,
    of a picture.
    """

    role: Role
    labels: tuple[str, ...]
    lasts: float | None = None
    grid: PatchGrid | None = None

    @property
    def caption(self) -> str:
        """`written, 14 tokens`."""
        # a token in front of the patches is none of them
        count = len(self.labels) - (self.grid.lead if self.grid else 0)
        name = "" if self.role == "rows" else f"{self.role}, "
        unit = UNITS[self.role]
        one = unit.removesuffix("es" if unit == "patches" else "s")
        seconds = f", {self.lasts:.3g} s" if self.lasts is not None else ""
        number = f"{count:,}".replace(",", " ")
        return f"{name}{number} {one if count == 1 else unit}{seconds}"


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """The weights `f[heads, query, key]` of one attention for one row of the batch.

    `hidden` bool[heads, query, key] says where the mask let nothing through; `heads` are
    the numbers of the heads that `weights` holds.
    """

    scope: str
    weights: Doubles
    hidden: NDArray[np.bool_]
    heads: tuple[int, ...]
    queries: MapAxis
    keys: MapAxis

    @property
    def layer(self) -> int | None:
        """The first number in the scope, which is that of the layer; None without one."""
        numbers = [part for part in self.scope.split(".") if part.isdecimal()]
        return int(numbers[0]) if numbers else None

    def marked(self) -> Doubles:
        """The weights, minus infinity where the mask hides what is zero."""
        # what a model gave is shown even where its mask says otherwise
        return np.where(self.hidden & (self.weights == 0), -np.inf, self.weights)

    def with_heads(
        self, weights: Doubles, hidden: NDArray[np.bool_], heads: tuple[int, ...]
    ) -> "AttentionMap":
        """The same attention with the weights of some of its heads."""
        return AttentionMap(
            scope=self.scope,
            weights=weights,
            hidden=hidden,
            heads=heads,
            queries=self.queries,
            keys=self.keys,
        )


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Where a model looked on one input: every map, and the picture `u8[rows, columns, 3]`
    that it saw, if it saw one.
    """

    model: str
    given: str
    maps: tuple[AttentionMap, ...]
    picture: Bytes | None = None


def max_pool_map(values: Doubles, most: int) -> tuple[Doubles, int]:
    """Maps `f[heads, query, key]` with sides of at most `most` cells, and how many old
    cells a side of a new one has: the greatest weight of a block stands for it.
    """
    step = max(1, -(-max(values.shape[1:]) // most))
    if step == 1:
        return values, 1
    heads, rows, columns = values.shape
    down, across = -(-rows // step), -(-columns // step)
    # what is added is never the greatest of a block, so the last may be smaller
    padded = np.full((heads, down * step, across * step), -np.inf)
    padded[:, :rows, :columns] = values
    return padded.reshape(heads, down, step, across, step).max((2, 4)), step
