"""One long line → lines of at most 110 columns.

A piece of text is a list of words, signs and places where it may be broken. The result
depends on the pieces only, so that writing what was read from it gives the same lines
again.
"""

from dataclasses import dataclass

WIDTH = 110
INDENT = 4
"""Columns that a continued line is moved in, where it does not stand under an opening bracket."""

DEPTH_PRICE = 30
"""Columns of a line that are given up rather than broken one bracket deeper."""


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a line may end; `flat` stands there if it does not. `bonus` are
    columns worth giving up for it.
    """

    flat: str = " "
    bonus: int = 0


SPACE = Break(" ")
SECTION = Break(" ", 80)
"""Between the parts of a first line: before `->` and `where`."""

Pieces = list[str | Break]


@dataclass(frozen=True, slots=True)
class Place:
    """A break on the line being filled: its index, how good it is, the columns of the
    brackets open there.
    """

    index: int
    score: int
    open: tuple[int, ...]


def flat(pieces: Pieces) -> str:
    """Everything on one line."""
    return "".join(p if isinstance(p, str) else p.flat for p in pieces)


def lines(pieces: Pieces, indent: int, width: int = WIDTH) -> list[str]:
    """The lines, the first moved in by `indent` columns."""
    if (
        indent + sum(len(p) if isinstance(p, str) else len(p.flat) for p in pieces)
        <= width
    ):
        return [" " * indent + flat(pieces)]
    # greedy: fill the line, and at the first break that would pass the width go back to
    # the best break on it, which is the one least deep in brackets
    chunk = chunks(pieces)
    done: list[str] = []
    line = [" " * indent]
    column = indent
    opened: tuple[int, ...] = (indent + INDENT,)
    places: list[Place] = []
    first = 0
    n = 0
    while n < len(pieces):
        piece = pieces[n]
        if isinstance(piece, str):
            line.append(piece)
            column += len(piece)
            if piece in ("(", "[", "{"):
                opened = (
                    *opened,
                    column if column <= width * 0.6 else indent + INDENT * len(opened),
                )
            elif piece in (")", "]", "}"):
                opened = opened[:-1]
        else:
            places.append(
                Place(n, column + piece.bonus - DEPTH_PRICE * len(opened), opened)
            )
            if column + len(piece.flat) + chunk[n + 1] > width:
                best = max(places, key=lambda p: p.score)
                # what was filled behind it begins the next line
                line = line[: best.index - first + 1]
                done.append("".join(line).rstrip())
                opened, n = best.open, best.index + 1
                column = opened[-1]
                line, places, first = [" " * column], [], n
                continue
            line.append(piece.flat)
            column += len(piece.flat)
        n += 1
    return [*done, "".join(line).rstrip()]


def chunks(pieces: Pieces) -> list[int]:
    """For each place in `pieces`: how many columns follow before the next break."""
    # from the end, so that each place knows what follows it
    length = [0] * (len(pieces) + 1)
    for n in range(len(pieces) - 1, -1, -1):
        piece = pieces[n]
        length[n] = len(piece) + length[n + 1] if isinstance(piece, str) else 0
    return length
