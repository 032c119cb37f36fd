"""Audio features against the equations, one window at a time;
`tests/parity/test_parity_feature_extractors.py` compares them with transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.preprocessing_records import parse_input_record, parse_output_record

from specc.diagnostics.diagnostic import SpeccError
from specc.huggingface.audio_and_ctc_processor_files import (
    list_unused_preprocessor_keys,
    read_audio_options,
    read_ctc_transcript_options,
)
from specc.preprocessing.audio import (
    AudioRecording,
    compute_audio_features,
    compute_log_mel_spectrogram,
    make_slaney_mel_filters,
)
from specc.preprocessing.predictions import decode_ctc_path
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import (
    AudioConfig,
    CtcOutput,
    FilterBankConfig,
    LogMelConfig,
    WaveformConfig,
)
from specc.preprocessing.result_formatting import format_results

RNG = np.random.default_rng(3)
SMALL = LogMelConfig(
    num_mel_bins=3, num_frames=5, window_length=8, hop_length=4, sample_rate=16_000
)


def sample_audio(length: int) -> np.ndarray:
    return RNG.standard_normal(length).astype(np.float32)


def get_error_code(action) -> str:
    with pytest.raises(SpeccError) as caught:
        action()
    return caught.value.diagnostics[0].code


def test_normalized_waveform() -> None:
    made = compute_audio_features(
        AudioRecording(3 + 2 * sample_audio(999), 16_000), WaveformConfig(), "x"
    )
    assert abs(made.mean()) < 1e-6
    assert abs(made.var() - 1) < 1e-5


def test_log_mel_spectrogram_equation() -> None:
    """Transform each window by the DFT definition instead of an FFT."""
    given = sample_audio(20)
    padded = np.pad(given.astype(np.float64), 4, mode="reflect")
    turn = np.exp(-2j * np.pi * np.outer(np.arange(5), np.arange(8)) / 8)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(8) / 8)
    rows = []
    for frame in range(5):
        power = np.abs(turn @ (padded[frame * 4 : frame * 4 + 8] * hann)) ** 2
        rows.append(np.log10(np.maximum(make_slaney_mel_filters(3, 8, 16_000).T @ power, 1e-10)))
    wanted = np.stack(rows, axis=1)
    wanted = (np.maximum(wanted, wanted.max() - 8) + 4) / 4
    np.testing.assert_allclose(compute_log_mel_spectrogram(given, SMALL), wanted, rtol=1e-5)


def test_short_audio_is_padded_and_long_audio_rejected() -> None:
    short = sample_audio(9)
    whole = np.concatenate([short, np.zeros(11, np.float32)])
    made = compute_audio_features(AudioRecording(short, 16_000), SMALL, "x")
    assert (made == compute_log_mel_spectrogram(whole, SMALL)).all()
    assert (
        get_error_code(
            lambda: compute_audio_features(AudioRecording(sample_audio(21), 16_000), SMALL, "x")
        )
        == "E0843"
    )
    cut = LogMelConfig(
        num_mel_bins=3, num_frames=5, window_length=8, hop_length=4, do_truncate=True
    )
    long = np.concatenate([whole, sample_audio(9)])
    assert (
        compute_audio_features(AudioRecording(long, 16_000), cut, "x")
        == compute_log_mel_spectrogram(whole, SMALL)
    ).all()


def test_audio_shorter_than_a_window() -> None:
    made = compute_audio_features(
        AudioRecording(sample_audio(399), 16_000),
        FilterBankConfig(num_frames=3, num_mel_bins=4, std=1),
        "x",
    )
    assert (made == np.float32(4.2677393 / 2)).all()


@pytest.mark.parametrize("record", [WaveformConfig(), LogMelConfig(), FilterBankConfig()])
def test_wrong_sampling_rate(record: AudioConfig) -> None:
    assert (
        get_error_code(
            lambda: compute_audio_features(AudioRecording(sample_audio(9), 8000), record, "x")
        )
        == "E0842"
    )


@pytest.mark.parametrize(
    "record",
    [
        WaveformConfig(sample_rate=8000, do_normalize=False),
        SMALL,
        FilterBankConfig(num_mel_bins=7, num_frames=3, mean=0.5, std=2.0, do_truncate=False),
    ],
)
def test_input_records_round_trip(record: AudioConfig) -> None:
    assert parse_input_record(json.loads(json.dumps(record.to_json()))) == record


SPOKEN = CtcOutput(vocab=("-", "|", "a", "b"), mask_output="there", do_lower_case=True)


def test_transcript_record_round_trip() -> None:
    assert parse_output_record(json.loads(json.dumps(SPOKEN.to_json()))) == SPOKEN


def test_ctc_decoding_merges_repeated_tokens() -> None:
    """Padded frames are ignored."""
    ids = [1, 2, 2, 0, 2, 3, 1, 1, 9, 0, 1]
    assert decode_ctc_path(ids, SPOKEN) == "aab <unk>"
    scores = np.eye(4, dtype=np.float32)[[[2, 2, 3, 2], [3, 0, 3, 3]]]
    there = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
    preprocessing = PreprocessingConfig(outputs=(("y", SPOKEN),))
    assert format_results(preprocessing, {"y": scores, "there": there}).lines == ("ab", "bb")


def test_options_of_preprocessor_config(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"sampling_rate": 8000, "chunk_length": 2, "odd": 1}')
    made = read_audio_options("log_mel", {"frames": 100}, [tmp_path], None)
    assert made == {"frames": 100, "rate": 8000}
    assert list_unused_preprocessor_keys("log_mel", [tmp_path]) == ("odd",)
    whole = {"feature_extractor": {"do_normalize": False}, "tokenizer": 1}
    file.unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert read_audio_options("waveform", {}, [tmp_path], None) == {"normalize": False}


def test_vocabulary_of_the_target_language(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"eng": {"a": 0, "<pad>": 2}, "deu": {}}')
    (tmp_path / "tokenizer_config.json").write_text('{"target_lang": "eng"}')
    (tmp_path / "added_tokens.json").write_text('{"<s>": 3}')
    told = read_ctc_transcript_options([tmp_path], None)
    assert told is not None
    assert told["vocab"] == ["a", "<unk>", "<pad>", "<s>"]
    assert told["blank"] == 2
