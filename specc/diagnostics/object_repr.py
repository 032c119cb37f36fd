"""`repr()` lines and notebook HTML tables of the public objects, and docstring summaries.
Text from files is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from specc.diagnostics.render import escape_control_characters

MAX_REPR_LENGTH = 199
"""Maximum number of characters of a line: a notebook shows the last value of a cell."""
MAX_TABLE_ROWS = 40
MAX_CELL_LENGTH = 500


def format_repr(text: str) -> str:
    """`<specc text>`, cut where it is long."""
    room = MAX_REPR_LENGTH - len("<specc >")
    return f"<specc {_truncate(escape_control_characters(text), room)}>"


def render_html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of HTML: what each value is called, and the value. Empty values are left
    out.
    """
    kept = [(name, text) for name, text in rows if text]
    more = len(kept) - MAX_TABLE_ROWS
    kept = [*kept[:MAX_TABLE_ROWS], *([("…", f"{more} more")] if more > 0 else [])]
    lines = "".join(
        f"<tr><th>{_escape_html_cell(name)}</th><td>{_escape_html_cell(text)}</td></tr>"
        for name, text in kept
    )
    return f"<table><caption>{_escape_html_cell(title)}</caption>{lines}</table>"


def format_port_types(types: Mapping[str, object]) -> str:
    """`pixels f32[batch, 3, 224, 224], keep bool[batch, seq]`."""
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def group_thousands(count: int) -> str:
    """A number with its thousands apart, as `85 798 656`."""
    return f"{count:,}".replace(",", " ")


def align_columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with every column as wide as its widest cell."""
    rows = [*rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _escape_html_cell(text: str) -> str:
    return escape(_truncate(escape_control_characters(text), MAX_CELL_LENGTH))


def _truncate(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def extract_docstring_summary(doc: str | None) -> str:
    """The first paragraph of a docstring on one line; nothing where there is none."""
    return " ".join((doc or "").strip().split("\n\n")[0].split())
