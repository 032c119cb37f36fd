"""What an editor sends, bounded: a header that promises more than any text has is not
waited for.
"""

import io
from typing import BinaryIO

MOST_BYTES = 64 << 20
"""Bytes of one message."""
LONGEST_HEADER = 1 << 12


class Bounded(io.BytesIO):
    """A stream that ends where a message is too long."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream = stream

    def readline(self, size: int | None = -1, /) -> bytes:
        """A line of a header."""
        return self.stream.readline(LONGEST_HEADER)

    def read(self, size: int | None = -1, /) -> bytes:
        """The body of a message; nothing for one that is too long."""
        if size is None or not 0 <= size <= MOST_BYTES:
            self.stream.close()
            return b""
        return self.stream.read(size)
