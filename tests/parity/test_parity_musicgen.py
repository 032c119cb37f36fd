"""MusicGen from directories saved by transformers: a decoder with one token per codebook and time
step, alone and with its T5 encoder, and the audio of the generated codebooks.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.hf_audio_cases import MUSICGEN, MUSICGEN_DECODER, MUSICGEN_SIZES, CodebookCase
from support.hf_cases import check_model_outputs

import specc
from specc.api import Model

pytestmark = pytest.mark.parity

STEPS = 14
STEREO = {"num_codebooks": 4, "audio_channels": 2}
WITH_TEXT = replace(MUSICGEN, weight_scale=2.0)
WITH_STEREO = replace(
    WITH_TEXT, codebooks=4, tiny={**MUSICGEN.tiny, "decoder": {**MUSICGEN_SIZES, **STEREO}}
)
CASES = {
    "decoder": MUSICGEN_DECODER,
    "decoder, body": replace(
        MUSICGEN_DECODER,
        model="MusicgenModel",
        results={"last_hidden_state": "seq"},
        tiny=MUSICGEN_SIZES | {"activation_function": "relu", "scale_embedding": True},
    ),
    "text": MUSICGEN,
    "text, same width": replace(
        MUSICGEN, tiny={**MUSICGEN.tiny, "decoder": {**MUSICGEN_SIZES, "hidden_size": 16}}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs(name: str, tmp_path: Path) -> None:
    check_model_outputs(CASES[name], tmp_path)


def save_checkpoint(case: CodebookCase, directory: Path, **settings: float) -> Any:
    """Save the checkpoint, and return the transformers model, whose `generate` returns codebooks."""
    hf_model = case.save_checkpoint(directory).double()
    hf_model.generation_config.update(
        pad_token_id=16,
        bos_token_id=16,
        decoder_start_token_id=16,
        num_return_sequences=1,
        **settings,
    )
    hf_model.generation_config.save_pretrained(directory)
    return hf_model


def load_package(directory: Path, **options: Any) -> Model:
    specc.compile(str(directory), directory / "package", graphs="step", **options)
    return specc.load(directory / "package", threads=1)


def generate_codebooks(hf_model: Any, **inputs: Any) -> Any:
    """Return the generated codebooks [batch, codebooks, frames] instead of their audio."""
    decode, found = hf_model.audio_encoder.decode, list[torch.Tensor]()

    def record_codebooks(codes: torch.Tensor, **_: Any) -> Any:
        found.append(codes[0])
        return SimpleNamespace(audio_values=codes[0].double())

    hf_model.audio_encoder.decode = record_codebooks
    hf_model.generate(**inputs, do_sample=False, max_new_tokens=STEPS, use_cache=True)
    hf_model.audio_encoder.decode = decode
    return torch.stack(found, dim=2).flatten(1, 2).numpy()


@pytest.mark.parametrize("target", ["onnx", "ort-cpu"])
def test_decoder_generates(target: str, tmp_path: Path) -> None:
    hf_model = save_checkpoint(replace(MUSICGEN_DECODER, weight_scale=3.0), tmp_path)
    start = torch.full((3, 1), 16)
    keep = torch.ones(1, 1).long()  # without it, the class masks the start tokens as padding
    expected = hf_model.generate(start, attention_mask=keep, do_sample=False, max_new_tokens=STEPS)
    result = load_package(tmp_path, target=target).generate(max_tokens=STEPS).results()[0][0]
    assert result.codebooks == tuple(map(tuple, expected[0].tolist()))
    assert len({*result.tokens}) > 3, "the tokens vary"


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
@pytest.mark.parametrize("case", [WITH_TEXT, WITH_STEREO], ids=["mono", "stereo"])
def test_text_generates(case: CodebookCase, guidance_scale: float, tmp_path: Path) -> None:
    hf_model = save_checkpoint(case, tmp_path, guidance_scale=guidance_scale)
    ours = load_package(tmp_path)
    for sample in (MUSICGEN.samples.get_sample(0), MUSICGEN.samples.make_batch()):
        inputs = {name: sample[name] for name in ("input_ids", "attention_mask")}
        expected = generate_codebooks(
            hf_model,
            input_ids=torch.tensor(inputs["input_ids"]),
            attention_mask=torch.tensor(inputs["attention_mask"]).long(),
        )
        results = ours.generate(**inputs, max_tokens=STEPS).results()
        assert [row[0].codebooks for row in results] == [
            tuple(map(tuple, codes)) for codes in expected.tolist()
        ]


def test_prompt_of_codes(tmp_path: Path) -> None:
    """A prompt has no delays; generation continues it, and the result contains only new frames."""
    hf_model = save_checkpoint(WITH_TEXT, tmp_path)
    ours = load_package(tmp_path)
    inputs = {"input_ids": np.array([[5, 9, 3]]), "attention_mask": np.ones((1, 3), bool)}
    prompt = np.random.default_rng(0).integers(0, 16, (1, 3, 5))
    expected = generate_codebooks(
        hf_model,
        input_ids=torch.tensor(inputs["input_ids"]),
        attention_mask=torch.ones(1, 3).long(),
        decoder_input_ids=torch.tensor(prompt[0]),
    )
    given = np.concatenate([np.full((1, 1, 3), 16), prompt.transpose(0, 2, 1)], axis=1)
    result = ours.generate(**inputs, decoder_input_ids=given, max_tokens=STEPS).results()[0][0]
    assert np.array_equal(expected[0, :, :5], prompt[0])
    assert result.codebooks == tuple(map(tuple, expected[0, :, 5:].tolist()))


@pytest.mark.parametrize("case", [WITH_TEXT, WITH_STEREO], ids=["mono", "stereo"])
def test_audio(case: CodebookCase, tmp_path: Path) -> None:
    hf_model = save_checkpoint(case, tmp_path)
    specc.compile(str(tmp_path), tmp_path / "audio.onnx", graph="audio_decoder")
    codes = np.random.default_rng(0).integers(0, 16, (2, case.codebooks, 9))
    channels = case.tiny["decoder"].get("audio_channels", 1)
    parts = [torch.tensor(codes[:, c::channels])[None] for c in range(channels)]
    with torch.no_grad():
        expected = [hf_model.audio_encoder.decode(p, [None, None]).audio_values for p in parts]
    actual = specc.load(tmp_path / "audio.onnx").run(audio_codes=codes)["audio_values"]
    np.testing.assert_allclose(actual, torch.cat(expected, dim=1).numpy(), rtol=0, atol=1e-5)
