"""WAV files and audio features: waveforms, log-mel spectrograms, Kaldi filter banks."""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text, read_bytes
from specc.preprocessing.preprocessing_records import FilterBanks, LogMel, Sound, Waveform

Floats: TypeAlias = NDArray[np.float32]

WHOLE, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
WAV_ENCODINGS = {2: "ADPCM", 6: "A-law", 7: "µ-law", 17: "ADPCM", 49: "GSM", 85: "MP3"}
STREAMED_SIZE = 0xFFFFFFFF
"""Chunk size written by streaming programs, which means "up to the end of the file"."""
OTHER_SIGNATURES = {
    b"ID3": "an MP3 file",
    b"\xff\xfb": "an MP3 file",
    b"\xff\xf3": "an MP3 file",
    b"fLaC": "a FLAC file",
    b"OggS": "an Ogg file",
    b"FORM": "an AIFF file",
    b"RF64": "a WAV file of more than 4 GiB",
    b"RIFX": "a big-endian WAV file",
}


@dataclass(frozen=True, slots=True)
class AudioRecording:
    """Mono audio: samples (float32 [length], from -1 to 1), and the sample rate."""

    samples: Floats
    sample_rate: int


@dataclass(frozen=True, slots=True)
class _WavFormat:
    encoding: int
    channel_count: int
    sample_rate: int
    bits_per_sample: int

    @property
    def frame_bytes(self) -> int:
        """Return the size of a frame (one sample per channel) in bytes."""
        return self.channel_count * (self.bits_per_sample // 8)


def parse_wav(data: bytes, name: str) -> AudioRecording:
    """Return the samples of a WAV file, averaged over channels. Raise E0840 if it is not a WAV
    file, and E0841 if it is corrupted or its encoding is not supported.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        _raise_not_wav(data, name)
    found, at = None, 12
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if kind == b"fmt ":
            found = _read_format(data[at : at + size], name)
        if kind == b"data":
            if found is None:
                _raise_invalid_wav(name, "its data chunk comes before its format chunk")
            return AudioRecording(_read_samples(data, at, size, found, name), found.sample_rate)
        at += size + size % 2  # chunks begin at even offsets
    _raise_invalid_wav(name, "the data chunk is missing")


def _read_format(part: bytes, name: str) -> _WavFormat:
    """Parse the `fmt ` chunk. The extensible format stores the encoding at its end."""
    if len(part) < 16:
        _raise_invalid_wav(name, "its format chunk is truncated")
    coding, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", part)
    if coding == EXTENSIBLE and len(part) >= 26:
        (coding,) = struct.unpack_from("<H", part, 24)
    known = {WHOLE: (8, 16, 24, 32), FLOAT: (32, 64)}
    if coding not in known:
        _raise_invalid_wav(name, f"its samples are coded as {WAV_ENCODINGS.get(coding, coding)}")
    if bits not in known[coding]:
        _raise_invalid_wav(name, f"its samples have {bits} bits")
    if not channels or not rate:
        _raise_invalid_wav(name, f"unsupported format: {channels} channels at {rate} Hz")
    found = _WavFormat(coding, channels, rate, bits)
    # 24-bit samples may be stored in 32 bits, and must not be decoded as 32-bit samples
    if frame != found.frame_bytes:
        needed = f"{channels} channels of {bits} bits need {found.frame_bytes} bytes per frame"
        reason = f"{needed}, got {frame}"
        _raise_invalid_wav(name, reason)
    return found


def _read_samples(data: bytes, offset: int, size: int, wav_format: _WavFormat, name: str) -> Floats:
    """Decode the bytes from `offset` on to mono samples, float32 [length], from -1 to 1."""
    available = len(data) - offset
    if size == STREAMED_SIZE:
        size = available - available % wav_format.frame_bytes
    if size > available:
        _raise_invalid_wav(name, f"it is truncated: {available} of {size} bytes of samples")
    if not size or size % wav_format.frame_bytes:
        what = "no samples" if not size else "an incomplete sample at its end"
        _raise_invalid_wav(name, f"the file contains {what}")
    numbers = _decode_samples(data[offset : offset + size], wav_format)
    if not np.isfinite(numbers).all():
        _raise_invalid_wav(name, "samples are NaN or infinite")
    made: Floats = numbers.reshape(-1, wav_format.channel_count).mean(axis=1, dtype=np.float32)
    return made


def _decode_samples(part: bytes, wav_format: _WavFormat) -> Floats:
    """Decode interleaved samples to float32. 8-bit samples are unsigned; 128 is silence."""
    if wav_format.encoding == FLOAT:
        # values outside the float32 range become infinite, without a warning
        with np.errstate(over="ignore"):
            return np.frombuffer(part, f"<f{wav_format.bits_per_sample // 8}").astype(np.float32)
    if wav_format.bits_per_sample == 8:
        return (np.frombuffer(part, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if wav_format.bits_per_sample == 24:
        # the three bytes become the upper three bytes of an int32, which preserves the sign
        wide = np.zeros((len(part) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(part, np.uint8).reshape(-1, 3)
        whole = wide.reshape(-1).view("<i4")
        return (whole / 2.0**31).astype(np.float32)
    scale = 2.0 ** (wav_format.bits_per_sample - 1)
    whole = np.frombuffer(part, f"<i{wav_format.bits_per_sample // 8}").astype(np.float64)
    return (whole / scale).astype(np.float32)


def _raise_not_wav(data: bytes, name: str) -> NoReturn:
    """Raise E0840, with the format that the file seems to have."""
    kind = next((k for begin, k in OTHER_SIGNATURES.items() if data.startswith(begin)), "")
    if data[4:8] == b"ftyp":
        kind = "an MP4 file"
    reason = "the file is empty" if not data else f"it is {kind or 'not a WAV file'}"
    raise_error(
        "E0840",
        f"cannot read `{escape_text(name)}` as audio: {reason}",
        helps=[
            "convert it: ffmpeg -i FILE -ac 1 -c:a pcm_s16le sound.wav",
            "pass prepared features as `NAME=FILE.npy`",
        ],
    )


def _raise_invalid_wav(name: str, reason: str) -> NoReturn:
    raise_error(
        "E0841",
        f"cannot read the WAV file `{escape_text(name)}`: {reason}",
        notes=[
            "supported: integer samples with 8, 16, 24 or 32 bits, float samples with 32 or 64 bits"
        ],
        helps=["convert it to 16-bit PCM: ffmpeg -i FILE -c:a pcm_s16le sound.wav"],
    )


Doubles: TypeAlias = NDArray[np.float64]

MAX_SOUND_BYTES = 512 << 20
VARIANCE_EPSILON = 1e-7
"""Epsilon added to the variance when a waveform is normalized, as in transformers."""
MEL_FLOOR = 1e-10
DYNAMIC_RANGE = 8.0
"""Number of powers of ten below the maximum to which log-mel values are clipped."""
MAX_MEL_FREQUENCY = 8000.0
"""Upper frequency of Whisper's mel filters in Hz, for any sampling rate."""
KALDI_WINDOW, KALDI_HOP, KALDI_FFT = 400, 160, 512
KALDI_LOWEST = 20.0
KALDI_FLOOR = float(np.finfo(np.float32).eps)
PREEMPHASIS = 0.97
"""Preemphasis coefficient."""


def read_audio(path: str, record: Sound) -> Floats:
    """Return the waveform (float32 [samples]) or the spectrogram of a WAV file. Raise E0802, E0840
    to E0843 or E0904 if the file is invalid.
    """
    return compute_audio_features(parse_wav(read_bytes(path, MAX_SOUND_BYTES), path), record, path)


def compute_audio_features(recording: AudioRecording, record: Sound, name: str) -> Floats:
    """Compute the input features of a recording (waveform, log-mel spectrogram or filter banks).
    Raise E0842 or E0843 if the recording does not match the preprocessing.
    """
    if recording.sample_rate != record.sample_rate:
        raise_error(
            "E0842",
            f"`{escape_text(name)}` has a sampling rate of {recording.sample_rate} Hz, "
            f"but the model expects {record.sample_rate} Hz",
            notes=["audio must have the sampling rate on which the model was trained"],
            helps=[f"convert it: ffmpeg -i FILE -ar {record.sample_rate} -ac 1 sound.wav"],
        )
    samples = recording.samples
    match record:
        case Waveform():
            if not record.do_normalize:
                return samples
            # normalize to mean 0 and variance 1
            whole = samples.astype(np.float64)
            spread = np.sqrt(whole.var() + VARIANCE_EPSILON)
            return np.asarray((whole - whole.mean()) / spread, np.float32)
        case LogMel():
            if len(samples) > record.sample_count and not record.do_truncate:
                _raise_too_long(name, len(samples), record.sample_count, record.sample_rate)
            padded = np.zeros(record.sample_count, np.float32)
            padded[: len(samples)] = samples[: record.sample_count]
            return compute_log_mel_spectrogram(padded, record)
        case FilterBanks():
            longest = (record.num_frames - 1) * KALDI_HOP + KALDI_WINDOW
            # A remainder shorter than a frame is ignored.
            most = longest + KALDI_HOP - 1
            if len(samples) > most and not record.do_truncate:
                _raise_too_long(name, len(samples), longest, record.sample_rate)
            return compute_kaldi_filter_banks(samples[:most], record)


def compute_log_mel_spectrogram(samples: Floats, record: LogMel) -> Floats:
    """Return the log-mel spectrogram float32 [bins, frames] with centered windows."""
    half = record.window_length // 2
    framed = _frame_samples(
        np.pad(samples.astype(np.float64), half, mode="reflect"),
        record.window_length,
        record.hop_length,
    )
    hann = np.hanning(record.window_length + 1)[:-1]
    power = np.abs(np.fft.rfft(framed[: record.num_frames] * hann)) ** 2
    filters = make_slaney_filters(record.num_mel_bins, record.window_length, record.sample_rate)
    loud = np.log10(np.maximum(power @ filters, MEL_FLOOR))
    made = (np.maximum(loud, loud.max() - DYNAMIC_RANGE) + 4.0) / 4.0
    return np.ascontiguousarray(made.T, np.float32)


def compute_kaldi_filter_banks(samples: Floats, record: FilterBanks) -> Floats:
    """Compute Kaldi filter banks float32 [frames, bins], over windows that are completely inside
    the audio.
    """
    whole = np.zeros((record.num_frames, record.num_mel_bins), np.float32)
    if len(samples) >= KALDI_WINDOW:
        framed = _frame_samples(samples.astype(np.float64), KALDI_WINDOW, KALDI_HOP)
        framed = framed - framed.mean(axis=1, keepdims=True)
        before = np.concatenate([framed[:, :1], framed[:, :-1]], axis=1)
        framed = (framed - PREEMPHASIS * before) * np.hanning(KALDI_WINDOW)
        power = np.abs(np.fft.rfft(framed, KALDI_FFT)) ** 2
        loud = np.log(
            np.maximum(
                power @ make_kaldi_filters(record.num_mel_bins, record.sample_rate), KALDI_FLOOR
            )
        )
        whole[: len(loud)] = loud[: record.num_frames]
    if not record.do_normalize:
        return whole
    scaled = (whole.astype(np.float64) - record.mean) / (2.0 * record.std)
    return scaled.astype(np.float32)


@lru_cache(maxsize=8)
def make_slaney_filters(bins: int, window: int, rate: int) -> Doubles:
    """Return triangular filters on Slaney's mel scale, normalized by area:
    float64 [frequencies, bins].
    """
    # The mel scale is linear up to 1000 Hz, and logarithmic above (27 steps per factor of 6.4).
    highest = 15.0 + np.log(MAX_MEL_FREQUENCY / 1000.0) * 27.0 / np.log(6.4)
    mels = np.linspace(0.0, highest, bins + 2)
    corners = np.where(
        mels >= 15.0, 1000.0 * np.exp(np.log(6.4) / 27.0 * (mels - 15.0)), 200.0 * mels / 3.0
    )
    made = _make_triangular_filters(np.linspace(0, rate // 2, window // 2 + 1), corners)
    return made * (2.0 / (corners[2:] - corners[:-2]))


@lru_cache(maxsize=8)
def make_kaldi_filters(bins: int, rate: int) -> Doubles:
    """Return triangular filters, linear on Kaldi's mel scale: float64 [frequencies, bins]."""
    corners = np.linspace(
        _convert_to_kaldi_mel(KALDI_LOWEST), _convert_to_kaldi_mel(rate // 2), bins + 2
    )
    hertz = np.arange(KALDI_FFT // 2 + 1, dtype=np.float64) * (rate / KALDI_FFT)
    return _make_triangular_filters(_convert_to_kaldi_mel(hertz), corners)


def _convert_to_kaldi_mel(hertz: float | Doubles) -> Doubles:
    return np.asarray(1127.0 * np.log1p(np.asarray(hertz, np.float64) / 700.0))


def _make_triangular_filters(frequencies: Doubles, corners: Doubles) -> Doubles:
    """Return triangular filters float64 [frequencies, len(corners) - 2]. Filter i rises from corner
    i to corner i + 1 and falls to corner i + 2.
    """
    widths = np.diff(corners)
    rising = (frequencies[:, None] - corners[:-2]) / widths[:-1]
    falling = (corners[2:] - frequencies[:, None]) / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling))


def _frame_samples(samples: Doubles, window: int, hop: int) -> Doubles:
    """Return a view float64 [frames, window] with a frame at every `hop`-th sample."""
    return np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]


def _raise_too_long(name: str, sample_count: int, max_samples: int, rate: int) -> NoReturn:
    seconds = f"{max_samples / rate:g}"
    raise_error(
        "E0843",
        f"`{escape_text(name)}` lasts {sample_count / rate:.4g} s, but the model takes {seconds} s",
        helps=[
            f"split it: ffmpeg -i FILE -f segment -segment_time {seconds} part%03d.wav",
            "or truncate it: `cut=true` in the `reading` section of the spec",
        ],
    )
