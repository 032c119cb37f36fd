"""WAV files: every coding that is read, and nothing that only looks like one."""

import struct

import numpy as np
import pytest

from specc.diagnostics.diagnostic import Failed
from specc.preprocessing.audio import parse_wav

SAMPLES = np.array([[0.5, -0.25], [-1.0, 0.75], [0.0, 0.125]])
EXACT = SAMPLES.mean(axis=1)


def coded(bits: int, floats: bool) -> bytes:
    """SAMPLES in this coding, all of them exact in 8 bits."""
    if floats:
        return SAMPLES.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return (SAMPLES * 128 + 128).astype(np.uint8).tobytes()
    whole = (SAMPLES * 2 ** (bits - 1)).astype("<i4")
    if bits == 24:
        return whole.reshape(-1, 1).view(np.uint8)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


def wav(
    bits: int = 16,
    floats: bool = False,
    *,
    extensible: bool = False,
    size: int | None = None,
    before: bytes = b"",
) -> bytes:
    """A file with two channels of 8000 samples a second."""
    data, coding = coded(bits, floats), 3 if floats else 1
    head = (2, 8000, 8000 * 2 * bits // 8, 2 * bits // 8, bits)
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else coding, *head)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 3, coding) + bytes(14)
    body = b"WAVE" + before + b"fmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def code_of(data: bytes) -> str:
    with pytest.raises(Failed) as caught:
        parse_wav(data, "x.wav")
    return caught.value.diagnostics[0].code


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("bits", "floats"), [(8, False), (16, False), (24, False), (32, False), (32, True), (64, True)]
)
def test_every_coding_gives_the_mean_of_its_channels(
    bits: int, floats: bool, extensible: bool
) -> None:
    made = parse_wav(wav(bits, floats, extensible=extensible), "x.wav")
    assert made.rate == 8000
    assert made.samples.dtype == np.float32
    assert (made.samples == EXACT).all()


def test_other_parts_are_passed_over_to_even_places() -> None:
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    assert (parse_wav(wav(before=odd), "x.wav").samples == EXACT).all()


def test_a_stream_goes_on_to_the_end_of_the_file() -> None:
    assert (parse_wav(wav(size=0xFFFFFFFF) + b"\1", "x.wav").samples == EXACT).all()


def test_what_is_cut_off_is_refused_wherever_it_ends() -> None:
    whole = wav()
    codes = {code_of(whole[:end]) for end in range(len(whole))}
    assert codes == {"E0840", "E0841"}


@pytest.mark.parametrize(
    "data",
    [
        wav(size=0),
        wav(size=5),
        wav().replace(struct.pack("<HH", 1, 2), struct.pack("<HH", 7, 2), 1),
        wav().replace(struct.pack("<HH", 1, 2), struct.pack("<HH", 1, 0), 1),
        wav().replace(struct.pack("<HH", 4, 16), struct.pack("<HH", 4, 12), 1),
        wav(32, True).replace(struct.pack("<f", 0.5), struct.pack("<f", np.nan), 1),
    ],
)
def test_what_is_not_in_order_is_refused(data: bytes) -> None:
    assert code_of(data) == "E0841"


@pytest.mark.parametrize("frame", [0, 3, 8, 65535])
def test_samples_in_wider_places_are_refused(frame: int) -> None:
    """Samples of 24 bits that stand in 32 would be read as others."""
    right, other = struct.pack("<HH", 6, 24), struct.pack("<HH", frame, 24)
    data = wav(24)
    assert data.count(right) == 1
    assert code_of(data.replace(right, other)) == "E0841"


def test_a_sample_that_float32_cannot_hold_is_no_warning() -> None:
    data = wav(64, True).replace(struct.pack("<d", 0.5), struct.pack("<d", 1e300), 1)
    assert code_of(data) == "E0841"


@pytest.mark.parametrize("data", [b"", b"ID3\4", b"fLaC", b"    ftypM4A ", b"RIFF1234AVI "])
def test_other_files_are_none(data: bytes) -> None:
    assert code_of(data) == "E0840"


def test_random_bytes_in_a_header_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(300):
        data = bytearray(wav())
        for at in rng.integers(12, 48, 3):
            data[at] = rng.integers(0, 256)
        found.add(outcome(bytes(data)))
    assert found <= {"", "E0840", "E0841"}


def outcome(data: bytes) -> str:
    """The code that a file fails with, or nothing."""
    try:
        parse_wav(data, "x.wav")
    except Failed as failed:
        return failed.diagnostics[0].code
    return ""
