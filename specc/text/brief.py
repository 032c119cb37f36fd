"""What a value says of itself where people look at it: a line of fewer than 200 characters,
and in a notebook a small table.

Nothing that comes from a file reaches a terminal or a page as it is: control characters
are shown, and what HTML would read is escaped. The table has no script and no style.
"""

from collections.abc import Iterable, Mapping
from html import escape

from specc.text.characters import escaped

MOST = 199
"""Characters of a line; a notebook shows the last value of a cell, whatever it is."""
MOST_ROWS = 40
MOST_CELL = 500


def brief(text: str) -> str:
    """`<specc text>`, cut where it is long."""
    room = MOST - len("<specc >")
    return f"<specc {_cut(escaped(text), room)}>"


def card(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of HTML: what each value is called, and the value. Empty values are left
    out.
    """
    kept = [(name, text) for name, text in rows if text]
    more = len(kept) - MOST_ROWS
    kept = [*kept[:MOST_ROWS], *([("…", f"{more} more")] if more > 0 else [])]
    lines = "".join(
        f"<tr><th>{_plain(name)}</th><td>{_plain(text)}</td></tr>"
        for name, text in kept
    )
    return f"<table><caption>{_plain(title)}</caption>{lines}</table>"


def ports(types: Mapping[str, object]) -> str:
    """`pixels f32[batch, 3, 224, 224], keep bool[batch, seq]`."""
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def number(count: int) -> str:
    """A number with its thousands apart, as `85 798 656`."""
    return f"{count:,}".replace(",", " ")


def _plain(text: str) -> str:
    return escape(_cut(escaped(text), MOST_CELL))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
