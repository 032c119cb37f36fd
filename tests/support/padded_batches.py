"""Samples of different lengths: each alone, or together in one batch with padding on either side.

Padding contains random values, so that a model which reads padding fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Side = Literal["left", "right"]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TokenIds:
    """Token ids below `below` along the axis `dim`."""

    dim: str
    below: int


@dataclass(frozen=True)
class CodebookIds:
    """Token ids below `below` of each codebook at each position of the axis `dim`."""

    dim: str
    below: int
    codebooks: int

    def shape(self, length: int) -> tuple[int, ...]:
        """Return the shape for a length."""
        return (length, self.codebooks)


@dataclass(frozen=True)
class PaddingMask:
    """The padding mask of the axis `dim`."""

    dim: str


@dataclass(frozen=True)
class FixedValues:
    """Float values of a fixed shape, without padding; `uniform` values are in [0, 1)."""

    shape: tuple[int, ...]
    uniform: bool = False


@dataclass(frozen=True)
class Signal:
    """Float values along the axis `dim`, or `width` features per position."""

    dim: str
    width: int = 0

    def shape(self, length: int) -> tuple[int, ...]:
        """Return the shape for a length."""
        return (length, self.width) if self.width else (length,)


@dataclass(frozen=True)
class PositionValues:
    """Float values of an inner shape at each position of the axis `dim`."""

    dim: str
    inner: tuple[int, ...]

    def shape(self, length: int) -> tuple[int, ...]:
        """Return the shape for a length."""
        return (length, *self.inner)


@dataclass(frozen=True)
class BoundingBoxes:
    """Bounding boxes (left, upper, right, lower) along the axis `dim`, with coordinates below
    `below`.
    """

    dim: str
    below: int

    def shape(self, length: int) -> tuple[int, ...]:
        """Return the shape for a length."""
        return (length, 4)


Field = TokenIds | CodebookIds | PaddingMask | FixedValues | Signal | PositionValues | BoundingBoxes


@dataclass(frozen=True)
class Samples:
    """Samples of a batch, each with its own lengths."""

    fields: Mapping[str, Field]
    rows: tuple[Arrays, ...]
    lengths: tuple[Mapping[str, int], ...]
    seed: int

    def get_sample(self, row: int) -> Arrays:
        """Return one sample as a batch of 1 without padding."""
        made = {}
        for name, field in self.fields.items():
            kept = isinstance(field, PaddingMask)
            made[name] = (
                np.ones((1, self.lengths[row][field.dim]), bool)
                if kept
                else self.rows[row][name][None]
            )
        return made

    def make_batch(self, side: Side = "right", extra: int = 1) -> Arrays:
        """Return all samples in one batch; even the longest has `extra` padding positions."""
        rng = np.random.default_rng(self.seed + 1)
        made = {}
        for name, field in self.fields.items():
            if isinstance(field, FixedValues):
                made[name] = np.stack([r[name] for r in self.rows])
                continue
            width = max(n[field.dim] for n in self.lengths) + extra
            one = (
                field.shape(width)
                if isinstance(field, CodebookIds | Signal | PositionValues | BoundingBoxes)
                else (width,)
            )
            array = _behind(field, (len(self.rows), *one), rng)
            for row in range(len(self.rows)):
                array[row, self.get_positions(row, field.dim, width, side)] = self.get_sample(row)[
                    name
                ][0]
            made[name] = array
        return made

    def get_positions(self, row: int, dim: str, width: int, side: Side) -> slice:
        """Return the slice of a sample's positions in the batch."""
        length = self.lengths[row][dim]
        return slice(0, length) if side == "right" else slice(width - length, width)


def make_samples(
    fields: Mapping[str, Field], lengths: Mapping[str, tuple[int, ...]], seed: int = 0
) -> Samples:
    """Return one random sample for each length of the axes."""
    rng = np.random.default_rng(seed)
    count = len(next(iter(lengths.values()), (1, 1, 1)))
    per_row = tuple({dim: many[row] for dim, many in lengths.items()} for row in range(count))
    rows = []
    for row in range(count):
        made: Arrays = {}
        for name, field in fields.items():
            if isinstance(field, TokenIds):
                made[name] = rng.integers(0, field.below, per_row[row][field.dim])
            elif isinstance(field, CodebookIds):
                made[name] = rng.integers(0, field.below, field.shape(per_row[row][field.dim]))
            elif isinstance(field, BoundingBoxes):
                shape = field.shape(per_row[row][field.dim])
                made[name] = _sample_boxes(rng, shape, field.below)
            elif isinstance(field, Signal | PositionValues):
                drawn = rng.standard_normal(field.shape(per_row[row][field.dim]))
                made[name] = drawn.astype(np.float32)
            elif isinstance(field, FixedValues):
                made[name] = (
                    rng.random(field.shape) if field.uniform else rng.standard_normal(field.shape)
                )
                made[name] = made[name].astype(np.float32)
        rows.append(made)
    return Samples(fields, tuple(rows), per_row, seed)


def _behind(
    field: TokenIds | CodebookIds | PaddingMask | Signal | PositionValues | BoundingBoxes,
    shape: tuple[int, ...],
    rng: np.random.Generator,
) -> NDArray[Any]:
    """Return the values of padding, on which no output may depend."""
    match field:
        case PaddingMask():
            return np.zeros(shape, bool)
        case Signal() | PositionValues():
            return rng.standard_normal(shape).astype(np.float32)
        case BoundingBoxes():
            return _sample_boxes(rng, shape, field.below)
    return rng.integers(0, field.below, shape)


def _sample_boxes(rng: np.random.Generator, shape: tuple[int, ...], below: int) -> NDArray[Any]:
    """Return non-empty boxes of shape [..., 4]."""
    corners = rng.integers(0, below, (*shape[:-1], 2, 2))
    return np.sort(corners, axis=-2).reshape(shape)
