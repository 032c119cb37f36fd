"""WAV files."""

import struct
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text

Floats: TypeAlias = NDArray[np.float32]

WHOLE, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CODINGS = {2: "ADPCM", 6: "A-law", 7: "µ-law", 17: "ADPCM", 49: "GSM", 85: "MP3"}
OPEN_END = 0xFFFFFFFF
"""A part of this size goes on to the end of the file, as programs write that stream."""
OTHERS = {
    b"ID3": "an MP3 file",
    b"\xff\xfb": "an MP3 file",
    b"\xff\xf3": "an MP3 file",
    b"fLaC": "a FLAC file",
    b"OggS": "an Ogg file",
    b"FORM": "an AIFF file",
    b"RF64": "a WAV file of more than 4 GiB",
    b"RIFX": "a WAV file with its bytes the other way around",
}


@dataclass(frozen=True, slots=True)
class AudioRecording:
    """Samples `f32[length]` from -1 to 1, all channels as one, and how many make a second."""

    samples: Floats
    rate: int


@dataclass(frozen=True, slots=True)
class _Format:
    coding: int
    channels: int
    rate: int
    bits: int

    @property
    def frame(self) -> int:
        """Bytes of one sample of all channels."""
        return self.channels * (self.bits // 8)


def parse_wav(data: bytes, name: str) -> AudioRecording:
    """What a WAV file holds; several channels become their mean, as published loaders
    have it.

    Fails with E0840 for what is no WAV file, and E0841 for one that is damaged or coded
    in another way.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        _other(data, name)
    found, at = None, 12
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if kind == b"fmt ":
            found = _format(data[at : at + size], name)
        if kind == b"data":
            if found is None:
                _damaged(name, "its samples stand before what says how they are coded")
            return AudioRecording(_samples(data, at, size, found, name), found.rate)
        at += size + size % 2  # parts begin at even places
    _damaged(name, "it ends before its samples")


def _format(part: bytes, name: str) -> _Format:
    """What `fmt ` says. In the extensible form the coding stands at its end."""
    if len(part) < 16:
        _damaged(name, "the part that says how samples are coded is cut off")
    coding, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", part)
    if coding == EXTENSIBLE and len(part) >= 26:
        (coding,) = struct.unpack_from("<H", part, 24)
    known = {WHOLE: (8, 16, 24, 32), FLOAT: (32, 64)}
    if coding not in known:
        _damaged(name, f"its samples are coded as {CODINGS.get(coding, coding)}")
    if bits not in known[coding]:
        _damaged(name, f"its samples have {bits} bits")
    if not channels or not rate:
        _damaged(name, f"it has {channels} channels of {rate} samples a second")
    found = _Format(coding, channels, rate, bits)
    # samples of 24 bits may stand in 32, and are not to be read as something else
    if frame != found.frame:
        why = f"{channels} times {bits} bits fill {found.frame} bytes, and it says {frame}"
        _damaged(name, why)
    return found


def _samples(data: bytes, at: int, size: int, found: _Format, name: str) -> Floats:
    """f32[length]: the bytes from `at` on as numbers from -1 to 1."""
    there = len(data) - at
    if size == OPEN_END:
        size = there - there % found.frame
    if size > there:
        _damaged(name, f"it is cut off: of {size} bytes of samples there are {there}")
    if not size or size % found.frame:
        what = "no samples" if not size else "a part of a sample at its end"
        _damaged(name, f"it has {what}")
    numbers = _numbers(data[at : at + size], found)
    if not np.isfinite(numbers).all():
        _damaged(name, "it has samples that are no numbers")
    made: Floats = numbers.reshape(-1, found.channels).mean(axis=1, dtype=np.float32)
    return made


def _numbers(part: bytes, found: _Format) -> Floats:
    """f32[samples of all channels]. Those of 8 bits have no sign, and 128 is silence."""
    if found.coding == FLOAT:
        # one that float32 cannot hold is looked for as what it becomes
        with np.errstate(over="ignore"):
            return np.frombuffer(part, f"<f{found.bits // 8}").astype(np.float32)
    if found.bits == 8:
        return (np.frombuffer(part, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if found.bits == 24:
        # the three bytes stand above a fourth, so that the sign comes along
        wide = np.zeros((len(part) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(part, np.uint8).reshape(-1, 3)
        whole = wide.reshape(-1).view("<i4")
        return (whole / 2.0**31).astype(np.float32)
    scale = 2.0 ** (found.bits - 1)
    whole = np.frombuffer(part, f"<i{found.bits // 8}").astype(np.float64)
    return (whole / scale).astype(np.float32)


def _other(data: bytes, name: str) -> NoReturn:
    """E0840, with what the file seems to be."""
    kind = next((k for begin, k in OTHERS.items() if data.startswith(begin)), "")
    if data[4:8] == b"ftyp":
        kind = "an MP4 file"
    why = "the file is empty" if not data else f"it is {kind or 'no WAV file'}"
    raise_error(
        "E0840",
        f"cannot read `{escape_text(name)}` as sound: {why}",
        helps=[
            "convert it: ffmpeg -i FILE -ac 1 -c:a pcm_s16le sound.wav",
            "numbers that are already prepared are given as `NAME=FILE.npy`",
        ],
    )


def _damaged(name: str, why: str) -> NoReturn:
    raise_error(
        "E0841",
        f"cannot read the WAV file `{escape_text(name)}`: {why}",
        notes=["samples have 8, 16, 24 or 32 bits, or are floats of 32 or 64"],
        helps=["write it again: ffmpeg -i FILE -c:a pcm_s16le sound.wav"],
    )
