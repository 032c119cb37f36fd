"""A folder as transformers saves it, and a WAV file: `specc run` prints what transformers
hears in it.
"""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.families import Case

import specc
from specc.cli.main import main

pytestmark = pytest.mark.parity

HEARD: dict[str, Any] = {
    "vocab_size": 14, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "conv_dim": [6, 7, 8], "conv_kernel": [10, 8, 4], "conv_stride": [5, 4, 4], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "conv_bias": True, "pad_token_id": 3,
}  # fmt: skip
TOKENS = ["<s>", "</s>", "<unk>", "[PAD]", "|", *"ETAONHS'"]


def clip(path: Path, seconds: float, seed: int, rate: int = 16_000) -> np.ndarray:
    """A WAV file of 16 bits, and its samples as floats."""
    rng = np.random.default_rng(seed)
    count = int(seconds * rate)
    loud = (
        rng.standard_normal(count)
        * np.repeat(rng.random(count // 400 + 1), 400)[:count]
    )
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
def test_what_a_recording_says(
    lower: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One alone, and three of different lengths; tokens that stand behind the vocabulary
    are named by the tokenizer's config.
    """
    case = Case(config="Wav2Vec2Config", model="Wav2Vec2ForCTC", tiny=HEARD)
    theirs = case.saved(tmp_path)
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
    sounds = [clip(paths[n], s, n) for n, s in enumerate((0.4, 0.21, 0.33))]
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
