"""What a value is along the axis that grows, and what is found out of a graph: the words
in which `flow` speaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.heads import Clock
from specc.ir.interval import EMPTY, Interval

Why = Literal["ahead", "all", "newest", "length", "captured", "shape", "first"]


@dataclass(frozen=True, slots=True)
class State:
    """What a value is along the symbol. `axes` maps each time axis to its accumulated reach.

    One without axes may hold the `newest` row, something of the `whole` axis, or only of
    its `first` row: then this is what any row that meets it reads.
    """

    axes: Mapping[int, Interval] = field(default_factory=dict)
    newest: bool = False
    whole: bool = False
    first: Interval = EMPTY

    @property
    def moves(self) -> bool:
        """Whether it depends on the axis at all."""
        return bool(self.axes) or self.newest or self.whole or not self.first.empty

    @property
    def latched(self) -> bool:
        """Whether it depends on the first row alone, and never changes behind that."""
        return not (self.axes or self.newest or self.whole or self.first.empty)


@dataclass(frozen=True, slots=True)
class Leak:
    """`node` reads rows that come after the one it makes.

    `why`: `ahead`, rows up to `-reach.lo` later; `all`, every row; `newest`, it mixes
    the newest row into earlier ones; `length`, it needs the final number of rows;
    `captured`, a loop takes from outside what moves; `first`, rows of a head read the
    first row behind them; `shape`, its result has an axis
    whose rows are no longer those of the symbol. `inside`: the leak in the body of the
    loop `node`, with that body.
    """

    node: Node
    why: Why
    operand: int | None = None
    reach: Interval = EMPTY
    inside: "tuple[Graph, Leak] | None" = None


@dataclass(frozen=True)
class Flow:
    """The state of every value along `symbol`, and the ops that leak, in the graph's
    order.

    `inside` holds the opened body of every loop over another axis, the values of which
    have states too.
    """

    clock: Clock
    states: Mapping[Value, State]
    leaks: tuple[Leak, ...]
    inside: Mapping[Node, Graph]

    @property
    def symbol(self) -> str:
        """The name of what grows."""
        return self.clock.symbol

    @property
    def related(self) -> frozenset[str]:
        """What grows, and the lengths that follow from it."""
        return self.clock.related

    def state(self, value: Value) -> State:
        """The state of a value; parameters are fixed."""
        return self.states.get(value, State())


@dataclass(frozen=True)
class Along:
    """The axis that is followed: its length, the symbols that follow from it, and what
    is known of values so far.
    """

    clock: Clock
    states: dict[Value, State]
    leaks: list[Leak]
    inside: dict[Node, Graph]

    @property
    def length(self) -> Dim:
        """The length that grows."""
        return self.clock.grows

    @property
    def related(self) -> frozenset[str]:
        """What grows, and the lengths that follow from it."""
        return self.clock.related

    def given(self, node: Node) -> list[State]:
        """The states of the operands of a node."""
        return [self.states.get(a, State()) if a else State() for a in node.args]

    def times(self, value: Value) -> list[int]:
        """The axes of this length, behind a head or none."""
        shape = value.type.shape
        return [n for n, d in enumerate(shape) if self.clock.head(d) is not None]

    def composite(self, value: Value) -> bool:
        """Whether an axis mentions the symbol and is no time axis."""
        shape = value.type.shape
        return any(
            d.symbols() & self.related and self.clock.head(d) is None for d in shape
        )
