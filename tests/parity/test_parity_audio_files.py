"""Audio files: `specc run` of a directory saved by transformers prints what the transformers model
predicts for a WAV file.
"""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from support.hf_cases import ModelCase

import specc
from specc.cli.main import main

pytestmark = pytest.mark.parity

HEARD: dict[str, Any] = {
    "vocab_size": 14, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "conv_dim": [6, 7, 8], "conv_kernel": [10, 8, 4], "conv_stride": [5, 4, 4], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "conv_bias": True, "pad_token_id": 3,
}  # fmt: skip
TOKENS = ["<s>", "</s>", "<unk>", "[PAD]", "|", *"ETAONHS'"]


def make_wav_file(path: Path, seconds: float, seed: int, rate: int = 16_000) -> np.ndarray:
    """Return a 16-bit WAV file, and its samples as floats."""
    rng = np.random.default_rng(seed)
    count = int(seconds * rate)
    loud = rng.standard_normal(count) * np.repeat(rng.random(count // 400 + 1), 400)[:count]
    whole = np.clip(loud * 6000, -32768, 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return (whole / 32768).astype(np.float32)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["run", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("lower", [False, True])
def test_transcription_with_ctc(
    lower: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One audio file, and three of different lengths; tokens beyond the vocabulary have the names
    of the tokenizer's config.
    """
    case = ModelCase(config="Wav2Vec2Config", model="Wav2Vec2ForCTC", tiny=HEARD)
    theirs = case.save_checkpoint(tmp_path)
    vocabulary = tmp_path / "words.json"
    vocabulary.write_text(json.dumps({t: i for i, t in enumerate(TOKENS)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(
        str(vocabulary), pad_token="[PAD]", do_lower_case=lower
    )
    tokenizer.add_tokens(["<X>"])
    tokenizer.save_pretrained(tmp_path)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=lower)
    extractor.save_pretrained(tmp_path)
    paths = [tmp_path / f"{n}.wav" for n in range(3)]
    sounds = [make_wav_file(paths[n], s, n) for n, s in enumerate((0.4, 0.21, 0.33))]
    inputs = [extractor(s, sampling_rate=16_000)["input_values"][0] for s in sounds]
    given = [torch.tensor(np.asarray(i))[None] for i in inputs]
    with torch.no_grad():
        # what is said is to depend on what is heard: without what all rows share
        shared = theirs.wav2vec2(given[0]).last_hidden_state.mean((0, 1))
        theirs.lm_head.bias.copy_(-theirs.lm_head.weight @ shared)
        wanted = [tokenizer.decode(theirs(g).logits.argmax(-1)[0]) for g in given]
    theirs.save_pretrained(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "m.onnx")
    assert len(set("".join(wanted))) > 3, "the model says nothing: take another seed"
    model = str(tmp_path / "m.onnx")
    for path, text in zip(paths, wanted, strict=True):
        assert printed(capsys, model, str(path)) == [text]
    assert printed(capsys, model, *map(str, paths)) == wanted


WHISPER: dict[str, Any] = {
    "vocab_size": 41, "d_model": 24, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "num_mel_bins": 16, "max_source_positions": 50,
    "max_target_positions": 30, "pad_token_id": 30, "bos_token_id": 30, "eos_token_id": 30, "decoder_start_token_id": 31,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip


def test_transcription_with_whisper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One second of two audio files: the language is selected, and its token is not part of the
    text.
    """
    case = ModelCase(
        config="WhisperConfig",
        model="WhisperForConditionalGeneration",
        tiny=WHISPER,
        weight_scale=2.0,
    )
    theirs = case.save_checkpoint(tmp_path)
    own = theirs.generation_config
    own.lang_to_id, own.is_multilingual = {"<|en|>": 32, "<|de|>": 33}, True
    own.task_to_id = {"transcribe": 34, "translate": 35}
    own.no_timestamps_token_id, own.suppress_tokens = 36, [3, *range(31, 41)]
    own.forced_decoder_ids, own.max_length = [[1, None], [2, 34]], 12
    own.return_timestamps = False
    own.save_pretrained(tmp_path)
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    extractor.save_pretrained(tmp_path)
    words = {f"w{i}": i for i in range(41)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
    tokenizer.add_special_tokens([f"w{i}" for i in range(30, 41)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    for n, seconds in enumerate((0.4, 0.9)):
        sound = make_wav_file(tmp_path / f"{n}.wav", seconds, n)
        heard = extractor(sound, sampling_rate=16_000, return_tensors="pt")
        with torch.no_grad():
            made = theirs.generate(heard.input_features)[0].tolist()
        wanted = tokenizer.decode(made)
        assert wanted
        got = printed(capsys, str(tmp_path / "package"), str(tmp_path / f"{n}.wav"))
        assert got == [wanted]


def test_audio_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The most probable class of an audio file that is shorter than the input length of the model."""
    tiny = {
        "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40, "patch_size": 8,
        "frequency_stride": 5, "time_stride": 6, "max_length": 40, "num_mel_bins": 20,
        "id2label": {0: "dog", 1: "rain", 2: "bell"},
    }  # fmt: skip
    case = ModelCase(config="ASTConfig", model="ASTForAudioClassification", tiny=tiny)
    theirs = case.save_checkpoint(tmp_path)
    extractor = transformers.ASTFeatureExtractor(num_mel_bins=20, max_length=40, mean=-3.0, std=3.5)
    extractor.save_pretrained(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "m.onnx")
    sound = make_wav_file(tmp_path / "a.wav", 0.31, 0)
    given = extractor(sound, sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        best = theirs(**given).logits.argmax(-1)[0]
    shown = printed(capsys, str(tmp_path / "m.onnx"), str(tmp_path / "a.wav"))
    assert shown[0].split()[0] == tiny["id2label"][int(best)]
