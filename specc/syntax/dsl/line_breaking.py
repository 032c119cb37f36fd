"""Break long lines of printed specs at the best places."""

from dataclasses import dataclass

MAX_LINE_WIDTH = 110
CONTINUATION_INDENT = 4
"""Indentation of a continued line that is not aligned with an opening bracket, in columns."""

BRACKET_DEPTH_PENALTY = 30
"""Columns that may stay unused to avoid breaking one bracket deeper."""


@dataclass(frozen=True, slots=True)
class LineBreak:
    """A possible line break; `join_pieces` prints `flat` instead. `bonus` is the number of columns
    worth sacrificing for it.
    """

    flat: str = " "
    bonus: int = 0


SPACE_BREAK = LineBreak(" ")
SECTION_BREAK = LineBreak(" ", 80)
"""A break between the parts of a header: before `->` and `where`."""

Pieces = list[str | LineBreak]


@dataclass(frozen=True, slots=True)
class BreakPoint:
    """A break on the line being filled: its index, how good it is, the columns of the
    brackets open there.
    """

    index: int
    score: int
    open: tuple[int, ...]


def join_pieces(pieces: Pieces) -> str:
    """Join everything on one line."""
    return "".join(p if isinstance(p, str) else p.flat for p in pieces)


def break_lines(pieces: Pieces, indent: int, width: int = MAX_LINE_WIDTH) -> list[str]:
    """Break into lines, the first indented by `indent` columns."""
    if indent + sum(len(p) if isinstance(p, str) else len(p.flat) for p in pieces) <= width:
        return [" " * indent + join_pieces(pieces)]
    # greedy: fill the line, and at the first break that would pass the width go back to
    # the best break on it, which is the one least deep in brackets
    chunk = measure_chunks(pieces)
    done: list[str] = []
    line = [" " * indent]
    column = indent
    opened: tuple[int, ...] = (indent + CONTINUATION_INDENT,)
    places: list[BreakPoint] = []
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
                    column if column <= width * 0.6 else indent + CONTINUATION_INDENT * len(opened),
                )
            elif piece in (")", "]", "}"):
                opened = opened[:-1]
        else:
            places.append(
                BreakPoint(n, column + piece.bonus - BRACKET_DEPTH_PENALTY * len(opened), opened)
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


def measure_chunks(pieces: Pieces) -> list[int]:
    """Return, for each index in `pieces`, the columns up to the next break."""
    # from the end, so that each place knows what follows it
    length = [0] * (len(pieces) + 1)
    for n in range(len(pieces) - 1, -1, -1):
        piece = pieces[n]
        length[n] = len(piece) + length[n + 1] if isinstance(piece, str) else 0
    return length
