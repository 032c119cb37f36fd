"""Which rows are being worked on, written down before they are: whoever comes after a
process that died knows what it died of.

Rows that a process died of twice together are done one by one; one that it died of
twice alone is given up, and nothing else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specc.files.json import parse
from specc.files.write import atomic_write

TWICE = 2


@dataclass
class Journal:
    """What processes died of in one block. `now` is what is being done."""

    path: Path
    died: dict[str, int] = field(default_factory=dict)
    now: str = ""

    @staticmethod
    def open(path: Path) -> "Journal":
        """The journal of a block, with the death that it tells of counted."""
        journal = Journal(path)
        try:
            found = parse(path.read_text("utf-8"))
        except (OSError, ValueError):
            return journal  # none, or one that was torn: then nobody died of anything
        if isinstance(found, dict):
            died, now = found.get("died"), found.get("now")
            told = died.items() if isinstance(died, dict) else ()
            journal.died = {k: n for k, n in told if isinstance(n, int)}
            if isinstance(now, str) and now:
                journal.died[now] = journal.died.get(now, 0) + 1
        return journal

    def begin(self, rows: Sequence[int]) -> None:
        """These rows are worked on from now."""
        self.now = key_of(rows)
        data = {"died": self.died, "now": self.now}
        atomic_write(self.path, [json.dumps(data).encode()])

    def fatal(self, rows: Sequence[int]) -> bool:
        """Whether processes died of these rows, twice."""
        return self.died.get(key_of(rows), 0) >= TWICE

    def close(self) -> None:
        """The block is done."""
        self.path.unlink(missing_ok=True)


def key_of(rows: Sequence[int]) -> str:
    """The numbers of some rows as one text."""
    return " ".join(map(str, rows))
