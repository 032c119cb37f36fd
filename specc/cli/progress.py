"""How far long work is: one line on a terminal, nothing elsewhere."""

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from specc.cli.messages import manner
from specc.files.watch import WATCH

Item = TypeVar("Item")

OFTEN = 0.1
"""Seconds between two lines."""
PATIENCE = 0.5
"""Work that is done sooner says nothing."""


@dataclass
class Line:
    """A count of bytes, its speed and the time left, at most ten times a second."""

    what: str
    total: int = 0
    count: int = 0
    begun: float = field(default_factory=time.monotonic)
    shown: float = 0.0

    def expect(self, size: int) -> None:
        """So many bytes come."""
        self.total += size

    def wrote(self, size: int) -> None:
        """So many more are done."""
        self.count += size
        now = time.monotonic()
        if now - self.begun > PATIENCE and now - self.shown > OFTEN:
            self._show(now)

    def end(self) -> None:
        """The last count stays, if there was one before it."""
        if self.shown:
            self._show(time.monotonic())
            sys.stderr.write("\n")

    def _show(self, now: float) -> None:
        self.shown = now
        # back to the beginning, and what stood there is erased
        sys.stderr.write(f"\r\x1b[K{self.text(now - self.begun)}")
        sys.stderr.flush()

    def text(self, seconds: float) -> str:
        """`writing weights: 1.20 of 4.00 GB, 300 MB a second, 0:09 left`."""
        rate = self.count / seconds if seconds > 0 else 0.0
        done = f"{self.count / 1e9:.2f} GB"
        parts = [done, f"{rate / 1e6:.0f} MB a second"]
        if self.total > self.count and rate:
            left = int((self.total - self.count) / rate)
            parts[0] = f"{self.count / 1e9:.2f} of {self.total / 1e9:.2f} GB"
            parts.append(f"{left // 60}:{left % 60:02} left")
        return f"{self.what}: {', '.join(parts)}"


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show how far writing is while this lasts, where a person looks on."""
    if manner().quiet or manner().for_programs or not sys.stderr.isatty():
        yield
        return
    line = Line(what)
    before = WATCH.set(line)
    try:
        yield
    finally:
        WATCH.reset(before)
        line.end()


def counted(lines: Iterator[Item], what: str) -> Iterator[Item]:
    """Lines, or what becomes one, as they come; a terminal says between them how many
    there are.
    """
    if manner().quiet or manner().for_programs or not sys.stderr.isatty():
        yield from lines
        return
    for count in itertools.count():
        sys.stderr.write(f"\r\x1b[K{what}, {count} done …")
        sys.stderr.flush()
        line = next(lines, None)
        # what is said next begins a line of its own
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
        if line is None:
            return
        yield line
