"""WAV files: every supported sample format, and malformed files."""

import struct

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.audio import parse_wav

SAMPLES = np.array([[0.5, -0.25], [-1.0, 0.75], [0.0, 0.125]])
EXACT = SAMPLES.mean(axis=1)


def encode_samples(bits: int, floats: bool) -> bytes:
    """Encode SAMPLES, which are exact in 8 bits."""
    if floats:
        return SAMPLES.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return (SAMPLES * 128 + 128).astype(np.uint8).tobytes()
    whole = (SAMPLES * 2 ** (bits - 1)).astype("<i4")
    if bits == 24:
        return whole.reshape(-1, 1).view(np.uint8)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


def make_wav(
    bits: int = 16,
    floats: bool = False,
    *,
    extensible: bool = False,
    size: int | None = None,
    before: bytes = b"",
) -> bytes:
    """Return a file with two channels at 8000 samples per second."""
    data, coding = encode_samples(bits, floats), 3 if floats else 1
    head = (2, 8000, 8000 * 2 * bits // 8, 2 * bits // 8, bits)
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else coding, *head)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 3, coding) + bytes(14)
    body = b"WAVE" + before + b"fmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def get_error_code(data: bytes) -> str:
    with pytest.raises(SpeccError) as caught:
        parse_wav(data, "x.wav")
    return caught.value.diagnostics[0].code


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("bits", "floats"), [(8, False), (16, False), (24, False), (32, False), (32, True), (64, True)]
)
def test_channels_are_averaged_in_every_format(bits: int, floats: bool, extensible: bool) -> None:
    made = parse_wav(make_wav(bits, floats, extensible=extensible), "x.wav")
    assert made.sample_rate == 8000
    assert made.samples.dtype == np.float32
    assert (made.samples == EXACT).all()


def test_other_chunks_are_skipped_with_padding() -> None:
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    assert (parse_wav(make_wav(before=odd), "x.wav").samples == EXACT).all()


def test_unknown_data_size_reads_to_the_end() -> None:
    assert (parse_wav(make_wav(size=0xFFFFFFFF) + b"\1", "x.wav").samples == EXACT).all()


def test_truncated_files() -> None:
    whole = make_wav()
    codes = {get_error_code(whole[:end]) for end in range(len(whole))}
    assert codes == {"E0840", "E0841"}


@pytest.mark.parametrize(
    "data",
    [
        make_wav(size=0),
        make_wav(size=5),
        make_wav().replace(struct.pack("<HH", 1, 2), struct.pack("<HH", 7, 2), 1),
        make_wav().replace(struct.pack("<HH", 1, 2), struct.pack("<HH", 1, 0), 1),
        make_wav().replace(struct.pack("<HH", 4, 16), struct.pack("<HH", 4, 12), 1),
        make_wav(32, True).replace(struct.pack("<f", 0.5), struct.pack("<f", np.nan), 1),
    ],
)
def test_malformed_files(data: bytes) -> None:
    assert get_error_code(data) == "E0841"


@pytest.mark.parametrize("frame", [0, 3, 8, 65535])
def test_wrong_frame_size(frame: int) -> None:
    """24-bit samples in 32-bit containers would be decoded wrongly."""
    right, other = struct.pack("<HH", 6, 24), struct.pack("<HH", frame, 24)
    data = make_wav(24)
    assert data.count(right) == 1
    assert get_error_code(data.replace(right, other)) == "E0841"


def test_float32_overflow_is_an_error() -> None:
    data = make_wav(64, True).replace(struct.pack("<d", 0.5), struct.pack("<d", 1e300), 1)
    assert get_error_code(data) == "E0841"


@pytest.mark.parametrize("data", [b"", b"ID3\4", b"fLaC", b"    ftypM4A ", b"RIFF1234AVI "])
def test_other_formats(data: bytes) -> None:
    assert get_error_code(data) == "E0840"


def test_random_header_bytes() -> None:
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(300):
        data = bytearray(make_wav())
        for at in rng.integers(12, 48, 3):
            data[at] = rng.integers(0, 256)
        found.add(get_outcome(bytes(data)))
    assert found <= {"", "E0840", "E0841"}


def get_outcome(data: bytes) -> str:
    """Return the error code, or an empty string."""
    try:
        parse_wav(data, "x.wav")
    except SpeccError as failed:
        return failed.diagnostics[0].code
    return ""
