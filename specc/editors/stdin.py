"""What an editor sends, bounded: a header that promises more than any text has is not
waited for, nor is memory taken for it.
"""

import io
from typing import BinaryIO

MOST_BYTES = 64 << 20
"""Bytes of one message."""
LONGEST_HEADER = 1 << 12


class Bounded(io.BytesIO):
    """A stream that ends where a message is too long: what follows could not be told
    from what was promised. `heard` says whether a message ever came.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream = stream
        self.ended = False
        self.heard = False

    def readline(self, size: int | None = -1, /) -> bytes:
        """A line of a header; nothing behind the end."""
        return b"" if self.ended else self.stream.readline(LONGEST_HEADER)

    def read(self, size: int | None = -1, /) -> bytes:
        """The body of a message; nothing for one that is too long."""
        wanted = -1 if size is None else size
        if not 0 <= wanted <= MOST_BYTES:
            self.ended = True
        self.heard = True
        return b"" if self.ended else self.stream.read(wanted)
