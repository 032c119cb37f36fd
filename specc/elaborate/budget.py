"""How much work the reading of a spec may take, whatever comes of it: a short text can
ask for very much.

A *step* is an expression worked out, a turn of a loop, a part of a mask; what costs
more counts more. Steps are counted where they are done, so that nothing that multiplies
can hide: definitions used twice, blocks calling blocks, loops in loops, lists of lists.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from sys import _getframe, getrecursionlimit, setrecursionlimit
from threading import Lock

from specc.elaborate.values import Known, Record
from specc.text.diagnostic import fail
from specc.text.source import Span

SPENT = "E0223"
MOST_STEPS = 600_000
"""Steps of one reading of a spec; the symbolic readings of a check share as many. E0223 past it."""

EXPANDING = 10
"""Steps that expanding a definition takes, besides those of what it holds."""

OPERATING = 3
"""Steps that one sum or product takes, besides those of its sides."""

MOST_CELLS = 1 << 26
"""Numbers in one tensor that follows from the spec alone: a mask of 8192 rows and
columns. E0224 past it.
"""

DEEP = 8000
"""Python frames that elaboration may use: 64 blocks inside each other, each with
expressions 64 deep.
"""


@dataclass
class Steps:
    """The steps that were taken."""

    taken: int = 0

    def left(self, count: int) -> bool:
        """Whether so many more may be taken."""
        return self.taken + count <= MOST_STEPS

    def expect(self, count: int, span: Span | None) -> None:
        """E0223 where steps that are sure to follow would go past the limit."""
        if not self.left(count):
            self.take(count, span, "this takes more than there are left")

    def take(
        self,
        count: int,
        span: Span | None,
        label: str = "the last of them is here",
    ) -> None:
        """Count steps that are about to be done. E0223 past the limit."""
        self.taken += count
        if self.taken > MOST_STEPS:
            fail(
                SPENT,
                f"this spec takes more than {MOST_STEPS} steps to work out",
                span,
                label,
                notes=[
                    "what is used twice by something used twice is worked out four times, and so on"
                ],
                helps=[
                    "use fewer turns of `repeat` inside `repeat`, or bind to a name "
                    "what is used several times"
                ],
            )


def held_in(value: Known, most: int) -> int:
    """How many items a list or record holds, those of the lists in it counted with
    them, as far as `most`.
    """
    counted = 0
    rest: list[Iterator[Known]] = [iter((value,))]
    while rest and counted <= most:
        # in portions: a list of millions is not walked when thousands are too many
        items = list(islice(rest[-1], 1000))
        if not items:
            rest.pop()
            continue
        counted += len(items)
        for item in items:
            if isinstance(item, tuple):
                rest.append(iter(item))
            elif isinstance(item, Record):
                rest.append(iter(item.fields.values()))
    return counted


class _Depth:
    """Who works deep inside other calls at this moment, over all threads, and the limit
    that was there before.
    """

    lock = Lock()
    inside = 0
    usual = 0


@contextmanager
def deep(span: Span | None = None) -> Iterator[None]:
    """Room for `DEEP` frames above where we stand, as long as anyone needs it. E0110
    where that is not enough.
    """
    with _Depth.lock:
        # the limit is one of the whole process: the first raises it, the last puts it
        # back
        if not _Depth.inside:
            _Depth.usual = getrecursionlimit()
        _Depth.inside += 1
        setrecursionlimit(max(getrecursionlimit(), _height() + DEEP))
    try:
        yield
    except RecursionError:
        fail(
            "E0110",
            "the blocks and expressions of this spec stand too deep inside each other",
            span,
        )
    finally:
        with _Depth.lock:
            _Depth.inside -= 1
            # Python refuses a limit below the depth that is in use at this moment
            if not _Depth.inside and _height() < _Depth.usual:
                setrecursionlimit(_Depth.usual)


def _height() -> int:
    """The frames that are active."""
    count, frame = 0, _getframe().f_back
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count
