"""Who is told of long writing while it goes on. Nobody, unless a command says so."""

from contextvars import ContextVar
from typing import Protocol


class Watch(Protocol):
    """Is told how many bytes are to be written, and of every piece that is."""

    def expect(self, size: int) -> None:
        """So many bytes come."""

    def wrote(self, size: int) -> None:
        """So many more are on the disk."""


WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)
