"""What is derived from a graph that generates: what to compute once, one step, and the states between steps."""

from dataclasses import dataclass
from typing import Literal

from specc.ir.graph import Graph
from specc.ir.types import Type

Role = Literal["key", "value", "carry", "rows"]


@dataclass(frozen=True, slots=True)
class State:
    """A value that one step hands to the next.

    `name` is the input of the step graph, `next` the output that takes its place. `batch` is its batch axis,
    None where it has none. `rows` is the axis that grows, None for a carry of fixed shape; at most `most`
    rows are kept. `initial` names the output of `encode` that it starts as; empty, it starts as zeros, without
    rows where it has an axis of them. `role` and `layer` say whose it is: keys or values of an
    attention, the carry of a loop or a running sum, or other rows; the layer counts within the role.
    """

    name: str
    next: str
    type: Type
    batch: int | None
    rows: int | None
    most: float
    initial: str
    role: Role
    layer: int


@dataclass(frozen=True)
class Derived:
    """A graph taken apart along the axis that grows.

    `encode` is computed once; None where there is nothing to compute. `step` takes the new rows of `growing`,
    what `handed` names (results of `encode`, or inputs of the spec, the same at every step), inputs along the growing
    axis (those in `whole` with the rows of before and the new ones, others with the new rows), and the states.
    """

    encode: Graph | None
    step: Graph
    states: tuple[State, ...]
    handed: tuple[str, ...]
    whole: tuple[str, ...]
    growing: str


OFFSET = "past.rows"
"""The input that says how many rows there were: a state where no other input tells, the caller's beside buffers."""
