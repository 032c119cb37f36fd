"""Results as a page of sections, each of which is replaced when its part is measured
anew, and a table of goals.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

MARK = re.compile(r"^<!-- (\w+) -->\n", re.MULTILINE)
"""Stands before a section and says its part; readers of the page do not see it."""


def replaced(page: str, sections: Mapping[str, str], order: Iterable[str]) -> str:
    """The page with some sections in place of those of former runs. Parts that `order`
    does not have, and what stands before the first mark, are gone.
    """
    pieces = MARK.split(page)[1:]
    known = dict(zip(pieces[::2], pieces[1::2], strict=True)) | dict(sections)
    found = [f"<!-- {n} -->\n{known[n].strip()}\n" for n in order if n in known]
    return "# Results\n\n" + "\n".join(found)


@dataclass(frozen=True)
class Goal:
    """What was promised of a number, and what it is."""

    title: str
    wanted: float
    found: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the number is as it should be."""
        if self.at_most:
            return self.found <= self.wanted
        return self.found >= self.wanted

    def __str__(self) -> str:
        side = "at most" if self.at_most else "at least"
        word = "reached" if self.reached else "not reached"
        return f"| {self.title} | {side} {self.wanted:.3g} | {self.found:.3g} | {word} |"


def goals(given: Iterable[Goal]) -> Iterator[str]:
    """A table of them, if there are any."""
    lines = [str(goal) for goal in given]
    if lines:
        yield from ("| goal | | measured | |", "|---|---|---|---|", *lines, "")
