"""Audio preprocessing matches transformers' feature extractors."""

import numpy as np
import pytest
from support.elaborated_specs import assert_arrays_close
from transformers import ASTFeatureExtractor, Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

from specc.preprocessing.audio import AudioRecording, compute_audio_features
from specc.preprocessing.preprocessing_records import (
    AudioConfig,
    FilterBankConfig,
    LogMelConfig,
    WaveformConfig,
)

pytestmark = pytest.mark.parity


def recordings() -> dict[str, np.ndarray]:
    """Return noise, a fading tone, silence with a click, and a short signal."""
    rng = np.random.default_rng(0)
    time = np.arange(24_001) / 16_000
    click = np.zeros(9000)
    click[4000] = 0.7
    made = {
        "noise": 0.1 * rng.standard_normal(16_123),
        "tone": np.sin(2 * np.pi * 440 * time) * np.exp(-3 * time),
        "click": click,
        "short": 0.3 * rng.standard_normal(400),
        "long": 0.2 * rng.standard_normal(170_000),
    }
    return {name: sound.astype(np.float32) for name, sound in made.items()}


RECORDINGS = recordings()


def ours(name: str, record: AudioConfig) -> np.ndarray:
    return compute_audio_features(
        AudioRecording(RECORDINGS[name], record.sample_rate), record, name
    )


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("normalize", [True, False])
def test_waveforms(name: str, normalize: bool) -> None:
    theirs = Wav2Vec2FeatureExtractor(do_normalize=normalize)
    wanted = theirs(RECORDINGS[name], sampling_rate=16_000)["input_values"][0]
    assert_arrays_close(ours(name, WaveformConfig(do_normalize=normalize)), wanted, name, 1e-5)


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize(("bins", "seconds"), [(80, 30), (128, 30), (16, 2)])
def test_log_mel(name: str, bins: int, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the NumPy path, which is float64: the float32 path differs from it by 3e-5 for
    a pure tone.
    """
    monkeypatch.setattr(
        "transformers.models.whisper.feature_extraction_whisper.is_torch_available", lambda: False
    )
    theirs = WhisperFeatureExtractor(feature_size=bins, chunk_length=seconds)
    wanted = theirs(RECORDINGS[name], sampling_rate=16_000)["input_features"][0]
    record = LogMelConfig(num_mel_bins=bins, num_frames=seconds * 100, do_truncate=True)
    assert_arrays_close(ours(name, record), np.asarray(wanted), name, 1e-5)


@pytest.mark.filterwarnings("ignore:At least one mel filter")
@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize(("bins", "frames"), [(128, 1024), (20, 50)])
@pytest.mark.parametrize("normalize", [True, False])
def test_filter_banks(name: str, bins: int, frames: int, normalize: bool) -> None:
    theirs = ASTFeatureExtractor(num_mel_bins=bins, max_length=frames, do_normalize=normalize)
    wanted = theirs(RECORDINGS[name], sampling_rate=16_000)["input_values"][0]
    record = FilterBankConfig(num_mel_bins=bins, num_frames=frames, do_normalize=normalize)
    assert_arrays_close(ours(name, record), np.asarray(wanted), name, 1e-5)
