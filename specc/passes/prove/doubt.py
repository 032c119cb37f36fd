"""Why nothing is proved of a mask: what in it compares no row numbers, or that it was not
looked through.

    pre[i] & pre[j] | j <= i      `pre[i]` compares no row numbers
    j >= i                        no doubt: it shows later positions
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import NamedTuple

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.heads import Clock
from specc.ir.reach import known
from specc.passes.prove.affine import affine
from specc.passes.prove.bands import found_band, side_of
from specc.passes.prove.grids import Grid, aligned, grid_of, joined, one_pace, through
from specc.passes.prove.once import Budget, answered

MOST_TEXT = 40
"""Characters of a user's text that a note repeats."""

LOOKED_AT = 500
"""How many values are looked at for one to name."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """`spent`: there was more to look at than is looked at. Else `value` is the first
    part of the mask that is no comparison of row numbers.
    """

    spent: bool
    value: Value


def doubt_of(node: Node, operand: int, clock: Clock) -> Doubt | None:
    """What leaves it open whether `operand`, a mask or weights, hides later positions;
    None where comparisons of row numbers say that it does not.
    """
    grid = _gate(node, operand, clock)
    if grid is None:
        return None
    # What was not looked through must not be called wrong.
    if found_band(grid.value, grid.query, grid.key, clock).spent:
        return Doubt(True, grid.value)
    open_ = answered(grid, _open, {}, Budget(LOOKED_AT), _Open(None, False))
    return Doubt(False, open_.value) if open_.value else None


def at_two_paces(node: Node, operand: int, clock: Clock) -> bool:
    """Whether keys come with other chunks than queries do, so that row numbers of the
    two tell nothing of what is there.
    """
    grid = _gate(node, operand, clock)
    return grid is not None and not one_pace(grid.value, grid.query, grid.key, clock)


def head_ahead(node: Node, operand: int, clock: Clock) -> Dim | None:
    """The rows of the head, if they alone are shown later positions."""
    grid = _gate(node, operand, clock)
    if grid is None or grid.query is None or side_of(grid).lo >= 0:
        return None
    head = grid.head(grid.query)
    behind = side_of(replace(grid, side="queries"))
    return head if head not in (None, 0) and behind.lo >= 0 else None


def _gate(node: Node, operand: int, clock: Clock) -> Grid | None:
    """The grid of a mask, or of weights, by which keys are read."""
    mask = node.args[operand]
    if mask is None:
        return None
    given = tuple(a.type if a else None for a in node.args)
    for link in known(node.op, given, node.op.infer(*given)):
        for gate in link.gates:
            if gate.operand == operand:
                return grid_of(mask, gate.query, gate.key, clock)
    return None


class _Open(NamedTuple):
    """The first part that compares no row numbers, and whether no part does."""

    value: Value | None
    all: bool


def _open(grid: Grid) -> Generator[Grid, _Open, _Open]:
    """Of a mask whose parts compare nothing the whole is named, `pre[i] & pre[j]`."""
    node = grid.value.node
    inside = _inside(grid, node) if node else None
    if inside is None:
        return _Open(grid.value, True)
    first, every = None, bool(inside)
    # The first that is open is named; where all are, the whole of it.
    for part in inside:
        found = yield part
        first = first or found.value
        every = every and found.all
    return _Open(grid.value if every else first, every)


def _inside(grid: Grid, node: Node) -> list[Grid] | None:
    """What a part is made of; nothing where it compares row numbers, None where it does
    not and is made of nothing that is followed.
    """
    if (inner := through(grid)) is not None:
        return [inner]
    if (parts := joined(grid)) is not None:
        return parts
    operands = [aligned(grid, a) for a in node.args if a]
    match node.op:
        case ops.Constant():
            return []
        case ops.And() | ops.Or() | ops.Not():
            return operands
        case ops.Where() if grid.value.type.dtype == "bool":
            return operands
        case ops.Compare():
            # Row numbers with factors and distances are followed; a comparison of
            # anything else tells nothing.
            compared = [answered(o, affine, {}, Budget(), None) for o in operands]
            return None if None in compared else []
    return None


def text_of(graph: Graph, value: Value) -> str:
    """The user's text for a value, on one line; empty where none is known."""
    made = graph.made.get(value.node) if value.node else None
    if made and made.spans:
        text = " ".join(made.spans[0].text.split())
        return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
    return next((n for n, v in graph.inputs.items() if v is value), "")
