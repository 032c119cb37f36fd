"""Parse WAV files and compute audio features: waveforms, log-mel spectrograms, filter banks."""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text, read_input_file
from specc.preprocessing.preprocessing_records import (
    AudioConfig,
    FilterBankConfig,
    LogMelConfig,
    WaveformConfig,
)

Floats: TypeAlias = NDArray[np.float32]

PCM, IEEE_FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
WAV_ENCODINGS = {2: "ADPCM", 6: "A-law", 7: "µ-law", 17: "ADPCM", 49: "GSM", 85: "MP3"}
STREAMED_SIZE = 0xFFFFFFFF
"""The chunk size that streaming programs write if a chunk extends to the end of the WAV file."""
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
    """Mono audio: samples (float32 [length], from -1 to 1) and the sample rate in Hz."""

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
    """Return the samples of a WAV file, averaged over channels. Raise E0840 if the data is not a
    WAV file, and E0841 if the file is corrupted or has an unsupported encoding.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        _raise_not_wav(data, name)
    wav_format, offset = None, 12
    while offset + 8 <= len(data):
        chunk_id, size = struct.unpack_from("<4sI", data, offset)
        offset += 8
        if chunk_id == b"fmt ":
            wav_format = _read_format(data[offset : offset + size], name)
        if chunk_id == b"data":
            if wav_format is None:
                _raise_invalid_wav(name, "its data chunk comes before its format chunk")
            return AudioRecording(
                _read_samples(data, offset, size, wav_format, name), wav_format.sample_rate
            )
        offset += size + size % 2  # every chunk of a WAV file begins at an even offset
    _raise_invalid_wav(name, "the data chunk is missing")


def _read_format(chunk: bytes, name: str) -> _WavFormat:
    """Parse the `fmt ` chunk. Raise E0841 if the encoding is not supported. In the extensible
    format, the encoding follows the other fields.
    """
    if len(chunk) < 16:
        _raise_invalid_wav(name, "its format chunk is truncated")
    encoding, channels, sample_rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", chunk)
    if encoding == EXTENSIBLE and len(chunk) >= 26:
        (encoding,) = struct.unpack_from("<H", chunk, 24)
    supported_bits = {PCM: (8, 16, 24, 32), IEEE_FLOAT: (32, 64)}
    if encoding not in supported_bits:
        _raise_invalid_wav(
            name, f"its samples are encoded as {WAV_ENCODINGS.get(encoding, encoding)}"
        )
    if bits not in supported_bits[encoding]:
        _raise_invalid_wav(name, f"its samples have {bits} bits")
    if not channels or not sample_rate:
        _raise_invalid_wav(name, f"unsupported format: {channels} channels at {sample_rate} Hz")
    wav_format = _WavFormat(encoding, channels, sample_rate, bits)
    # reject padded samples, e.g. 24-bit samples in 32-bit containers
    if frame_bytes != wav_format.frame_bytes:
        expected = (
            f"{channels} channels of {bits} bits require {wav_format.frame_bytes} bytes per frame"
        )
        reason = f"{expected}, got {frame_bytes}"
        _raise_invalid_wav(name, reason)
    return wav_format


def _read_samples(data: bytes, offset: int, size: int, wav_format: _WavFormat, name: str) -> Floats:
    """Decode `size` bytes at `offset` to mono samples, float32 [length] in the range [-1, 1]."""
    available = len(data) - offset
    if size == STREAMED_SIZE:
        size = available - available % wav_format.frame_bytes
    if size > available:
        _raise_invalid_wav(name, f"it is truncated: {available} of {size} bytes of samples")
    if not size or size % wav_format.frame_bytes:
        problem = "no samples" if not size else "an incomplete sample at its end"
        _raise_invalid_wav(name, f"the file contains {problem}")
    samples = _decode_samples(data[offset : offset + size], wav_format)
    if not np.isfinite(samples).all():
        _raise_invalid_wav(name, "samples are NaN or infinite")
    mono: Floats = samples.reshape(-1, wav_format.channel_count).mean(axis=1, dtype=np.float32)
    return mono


def _decode_samples(frames: bytes, wav_format: _WavFormat) -> Floats:
    """Decode interleaved samples to float32. 8-bit samples are unsigned, so 128 is silence."""
    if wav_format.encoding == IEEE_FLOAT:
        # suppress the overflow warning, because values outside the range of float32 may become
        # infinite
        with np.errstate(over="ignore"):
            return np.frombuffer(frames, f"<f{wav_format.bits_per_sample // 8}").astype(np.float32)
    if wav_format.bits_per_sample == 8:
        return (np.frombuffer(frames, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if wav_format.bits_per_sample == 24:
        # copy the three bytes to the upper bytes of an int32, which preserves the sign
        padded_bytes = np.zeros((len(frames) // 3, 4), np.uint8)
        padded_bytes[:, 1:] = np.frombuffer(frames, np.uint8).reshape(-1, 3)
        integers = padded_bytes.reshape(-1).view("<i4")
        return (integers / 2.0**31).astype(np.float32)
    scale = 2.0 ** (wav_format.bits_per_sample - 1)
    integers = np.frombuffer(frames, f"<i{wav_format.bits_per_sample // 8}").astype(np.float64)
    return (integers / scale).astype(np.float32)


def _raise_not_wav(data: bytes, name: str) -> NoReturn:
    """Raise E0840. The message contains the detected format of the file."""
    formats = (name for start, name in OTHER_SIGNATURES.items() if data.startswith(start))
    format_name = "an MP4 file" if data[4:8] == b"ftyp" else next(formats, "not a WAV file")
    reason = f"it is {format_name}" if data else "the file is empty"
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

MAX_AUDIO_BYTES = 512 << 20
VARIANCE_EPSILON = 1e-7
"""Epsilon that is added to the variance of a waveform before normalization, as in transformers."""
MEL_FLOOR = 1e-10
DYNAMIC_RANGE = 8.0
"""Log-mel values (log10) are clipped from below to the maximum minus this value."""
MAX_MEL_FREQUENCY = 8000.0
"""Upper frequency of Whisper's mel filters in Hz, for any sampling rate."""
KALDI_WINDOW, KALDI_HOP, KALDI_FFT = 400, 160, 512
KALDI_MIN_FREQUENCY = 20.0
KALDI_FLOOR = float(np.finfo(np.float32).eps)
PREEMPHASIS = 0.97
"""Preemphasis coefficient of Kaldi filter banks."""


def read_audio(path: str, config: AudioConfig) -> Floats:
    """Read a WAV file, and return the waveform (float32 [samples]) or spectrogram that `config`
    specifies. Raise E0802, E0840 to E0843 or E0904 if the file is invalid.
    """
    return compute_audio_features(
        parse_wav(read_input_file(path, MAX_AUDIO_BYTES), path), config, path
    )


def compute_audio_features(recording: AudioRecording, config: AudioConfig, name: str) -> Floats:
    """Compute the input features of a recording: waveform, log-mel spectrogram or filter banks.
    Raise E0842 for a wrong sampling rate, and E0843 for a wrong duration.
    """
    if recording.sample_rate != config.sample_rate:
        raise_error(
            "E0842",
            f"`{escape_text(name)}` has a sampling rate of {recording.sample_rate} Hz, "
            f"but the model expects {config.sample_rate} Hz",
            notes=["the model requires the sampling rate of its training data"],
            helps=[f"convert it: ffmpeg -i FILE -ar {config.sample_rate} -ac 1 sound.wav"],
        )
    samples = recording.samples
    match config:
        case WaveformConfig():
            if not config.do_normalize:
                return samples
            # normalize the waveform to mean 0 and variance 1
            waveform = samples.astype(np.float64)
            std = np.sqrt(waveform.var() + VARIANCE_EPSILON)
            return np.asarray((waveform - waveform.mean()) / std, np.float32)
        case LogMelConfig():
            if len(samples) > config.num_samples and not config.do_truncate:
                _raise_too_long(name, len(samples), config.num_samples, config.sample_rate)
            padded = np.zeros(config.num_samples, np.float32)
            padded[: len(samples)] = samples[: config.num_samples]
            return compute_log_mel_spectrogram(padded, config)
        case FilterBankConfig():
            max_samples = (config.num_frames - 1) * KALDI_HOP + KALDI_WINDOW
            # Ignore an incomplete hop at the end of the audio.
            sample_limit = max_samples + KALDI_HOP - 1
            if len(samples) > sample_limit and not config.do_truncate:
                _raise_too_long(name, len(samples), max_samples, config.sample_rate)
            return compute_kaldi_filter_banks(samples[:sample_limit], config)


def compute_log_mel_spectrogram(samples: Floats, config: LogMelConfig) -> Floats:
    """Compute a log-mel spectrogram, float32 [bins, frames], with centered windows."""
    padding = config.window_length // 2
    frames = _frame_samples(
        np.pad(samples.astype(np.float64), padding, mode="reflect"),
        config.window_length,
        config.hop_length,
    )
    window = np.hanning(config.window_length + 1)[:-1]
    power = np.abs(np.fft.rfft(frames[: config.num_frames] * window)) ** 2
    filters = make_slaney_mel_filters(config.num_mel_bins, config.window_length, config.sample_rate)
    log_mel = np.log10(np.maximum(power @ filters, MEL_FLOOR))
    scaled = (np.maximum(log_mel, log_mel.max() - DYNAMIC_RANGE) + 4.0) / 4.0
    return np.ascontiguousarray(scaled.T, np.float32)


def compute_kaldi_filter_banks(samples: Floats, config: FilterBankConfig) -> Floats:
    """Compute Kaldi filter banks, float32 [frames, bins], from windows that lie entirely inside the
    audio.
    """
    features = np.zeros((config.num_frames, config.num_mel_bins), np.float32)
    if len(samples) >= KALDI_WINDOW:
        frames = _frame_samples(samples.astype(np.float64), KALDI_WINDOW, KALDI_HOP)
        frames = frames - frames.mean(axis=1, keepdims=True)
        previous = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        frames = (frames - PREEMPHASIS * previous) * np.hanning(KALDI_WINDOW)
        power = np.abs(np.fft.rfft(frames, KALDI_FFT)) ** 2
        log_energies = np.log(
            np.maximum(
                power @ make_kaldi_mel_filters(config.num_mel_bins, config.sample_rate), KALDI_FLOOR
            )
        )
        features[: len(log_energies)] = log_energies[: config.num_frames]
    if not config.do_normalize:
        return features
    normalized = (features.astype(np.float64) - config.mean) / (2.0 * config.std)
    return normalized.astype(np.float32)


@lru_cache(maxsize=8)
def make_slaney_mel_filters(num_mel_bins: int, window_length: int, sample_rate: int) -> Doubles:
    """Return area-normalized Slaney mel filters, float64 [frequencies, bins]."""
    # The mel scale is linear up to 1000 Hz and logarithmic above (27 steps per factor of 6.4).
    max_mel = 15.0 + np.log(MAX_MEL_FREQUENCY / 1000.0) * 27.0 / np.log(6.4)
    mels = np.linspace(0.0, max_mel, num_mel_bins + 2)
    corners = np.where(
        mels >= 15.0, 1000.0 * np.exp(np.log(6.4) / 27.0 * (mels - 15.0)), 200.0 * mels / 3.0
    )
    filters = _make_triangular_filters(
        np.linspace(0, sample_rate // 2, window_length // 2 + 1), corners
    )
    return filters * (2.0 / (corners[2:] - corners[:-2]))


@lru_cache(maxsize=8)
def make_kaldi_mel_filters(num_mel_bins: int, sample_rate: int) -> Doubles:
    """Return triangular filters, linear on Kaldi's mel scale: float64 [frequencies, bins]."""
    corners = np.linspace(
        _convert_to_kaldi_mel(KALDI_MIN_FREQUENCY),
        _convert_to_kaldi_mel(sample_rate // 2),
        num_mel_bins + 2,
    )
    hertz = np.arange(KALDI_FFT // 2 + 1, dtype=np.float64) * (sample_rate / KALDI_FFT)
    return _make_triangular_filters(_convert_to_kaldi_mel(hertz), corners)


def _convert_to_kaldi_mel(hertz: float | Doubles) -> Doubles:
    return np.asarray(1127.0 * np.log1p(np.asarray(hertz, np.float64) / 700.0))


def _make_triangular_filters(frequencies: Doubles, corners: Doubles) -> Doubles:
    """Return triangular filters, float64 [frequencies, len(corners) - 2]. Filter i rises from
    corner i to corner i + 1 and falls to corner i + 2.
    """
    widths = np.diff(corners)
    rising = (frequencies[:, None] - corners[:-2]) / widths[:-1]
    falling = (corners[2:] - frequencies[:, None]) / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling))


def _frame_samples(samples: Doubles, window: int, hop: int) -> Doubles:
    """Return a view, float64 [frames, window], of overlapping frames that start `hop` samples
    apart.
    """
    return np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]


def _raise_too_long(name: str, num_samples: int, max_samples: int, rate: int) -> NoReturn:
    seconds = f"{max_samples / rate:g}"
    raise_error(
        "E0843",
        f"`{escape_text(name)}` lasts {num_samples / rate:.4g} s, but the maximum is {seconds} s",
        helps=[
            f"split it: ffmpeg -i FILE -f segment -segment_time {seconds} part%03d.wav",
            "or truncate it: `cut=true` in the `reading` section of the spec",
        ],
    )
