"""A model's seal: the hash of its file inside the file, so that one changed byte
anywhere is noticed.

It is a text among the model's metadata, 64 digits of SHA-256 over the file as it is
with zeros in their place. Others ignore it.
"""

import hashlib
import mmap
import os
from pathlib import Path

from specc.files.read import Unreadable, open_regular

KEY = "specc.seal"
BLANK = "0" * 64
_BEFORE = bytes([0x0A, len(KEY)]) + KEY.encode() + bytes([0x12, len(BLANK)])
"""How protobuf writes the key and the length of the text."""


def closed(data: bytes) -> list[bytes | memoryview]:
    """The bytes of a model with a blank seal, with the seal filled in; nothing large is copied."""
    at = data.rindex(_BEFORE + BLANK.encode()) + len(_BEFORE)
    view = memoryview(data)
    return [
        view[:at],
        hashlib.sha256(data).hexdigest().encode(),
        view[at + len(BLANK) :],
    ]


def unbroken(path: Path) -> bool:
    """Whether a file is as it was written. A file without a seal is not."""
    try:
        with (
            os.fdopen(open_regular(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            at = data.rfind(_BEFORE) + len(_BEFORE)
            if at < len(_BEFORE):
                return False
            with memoryview(data) as view:
                digest = hashlib.sha256(view[:at])
                digest.update(BLANK.encode())
                digest.update(view[at + len(BLANK) :])
            return data[at : at + len(BLANK)] == digest.hexdigest().encode()
    except (Unreadable, OSError, ValueError):
        return False
