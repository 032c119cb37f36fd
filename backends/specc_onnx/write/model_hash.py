"""The hash of a model file inside the file.

It is a text among the model's metadata, 64 digits of SHA-256 over the file as it is
with zeros in their place. Others ignore it.
"""

import hashlib
import mmap
import os
from pathlib import Path

from specc.io.safe_read import UnreadableFile, open_regular_file

HASH_KEY = "specc.seal"
BLANK_HASH = "0" * 64
_HASH_PREFIX = bytes([0x0A, len(HASH_KEY)]) + HASH_KEY.encode() + bytes([0x12, len(BLANK_HASH)])
"""How protobuf writes the key and the length of the text."""


def insert_model_hash(data: bytes) -> list[bytes | memoryview]:
    """The bytes of a model with a blank seal, with the seal filled in; nothing large is copied."""
    at = data.rindex(_HASH_PREFIX + BLANK_HASH.encode()) + len(_HASH_PREFIX)
    view = memoryview(data)
    return [view[:at], hashlib.sha256(data).hexdigest().encode(), view[at + len(BLANK_HASH) :]]


def has_valid_hash(path: Path) -> bool:
    """Whether a file is as it was written. A file without a seal is not."""
    try:
        with (
            os.fdopen(open_regular_file(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            at = data.rfind(_HASH_PREFIX) + len(_HASH_PREFIX)
            if at < len(_HASH_PREFIX):
                return False
            with memoryview(data) as view:
                digest = hashlib.sha256(view[:at])
                digest.update(BLANK_HASH.encode())
                digest.update(view[at + len(BLANK_HASH) :])
            return data[at : at + len(BLANK_HASH)] == digest.hexdigest().encode()
    except (UnreadableFile, OSError, ValueError):
        return False
