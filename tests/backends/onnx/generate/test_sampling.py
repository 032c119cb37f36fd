"""Sampling in ONNX selects the same tokens as `specc.decode.token_selection`."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import EmittedModel

from specc.decode.decode_loop import select_next_tokens
from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import (
    Floats,
    LogitsProcessorInputs,
    make_prompt_mask,
    make_prompt_vocab_mask,
)
from specc_onnx.generate import generator_logits_processors, generator_sampling
from specc_onnx.generate.generator_inputs import SAMPLING_INPUTS
from specc_onnx.lower.onnx_values import OnnxValue

VOCABULARY = 60
INPUTS = {"logits": ("f32", 2), "seed": ("i64", 0), "rows": ("i64", 0), "step": ("i64", 0)}


def build_sampling_model(vocabulary: int = VOCABULARY) -> EmittedModel:
    """Build a model that samples a token per sequence from logits and all settings."""

    def emit_graph(x: Mapping[str, OnnxValue]) -> Sequence[OnnxValue]:
        s = generator_sampling.emit_sampler_settings(x["seed"], x["rows"], vocabulary, x)
        seen = generator_logits_processors.emit_prompt_vocabulary_mask(
            x["prompt"], x["keep"], vocabulary
        )
        logits = generator_logits_processors.emit_repetition_penalty(
            x["logits"], seen, x["penalty"]
        )
        return [generator_sampling.emit_sampled_tokens(s, logits, x["step"])]

    setting_inputs = {name: (dtype, 0) for name, dtype in SAMPLING_INPUTS.items()}
    return EmittedModel(
        emit_graph,
        INPUTS
        | setting_inputs
        | {"prompt": ("i64", 2), "keep": ("bool", 2), "penalty": ("f32", 0)},
    )


def sample_tokens(
    model: EmittedModel,
    logits: Floats,
    settings: GenerationSettings,
    step: int,
    prompt: NDArray[np.int64],
    keep: NDArray[np.bool_],
) -> list[int]:
    found = model.run(
        logits=logits,
        seed=np.int64(settings.seed),
        rows=np.int64(len(logits)),
        step=np.int64(step),
        temperature=np.float32(settings.temperature),
        top_k=np.int64(settings.top_k),
        top_p=np.float32(settings.top_p),
        min_p=np.float32(settings.min_p),
        penalty=np.float32(settings.repetition_penalty),
        prompt=prompt,
        keep=keep,
    )
    return [int(token) for token in found[0]]


SETTINGS = (
    GenerationSettings(strategy="sample", seed=1),
    GenerationSettings(strategy="sample", seed=2, temperature=0.6),
    GenerationSettings(strategy="sample", seed=3, top_k=5),
    GenerationSettings(strategy="sample", seed=4, top_p=0.7),
    GenerationSettings(strategy="sample", seed=5, min_p=0.2, temperature=1.5),
    GenerationSettings(
        strategy="sample",
        seed=6,
        top_k=20,
        top_p=0.9,
        min_p=0.02,
        temperature=0.8,
        repetition_penalty=1.3,
    ),
    GenerationSettings(strategy="sample", seed=7, top_k=1000, repetition_penalty=0.7),
)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: str(s.seed))
def test_samples_match_python(settings: GenerationSettings) -> None:
    model, rng = build_sampling_model(), np.random.default_rng(settings.seed)
    for step in range(40):
        logits = (3 * rng.standard_normal((16, VOCABULARY))).astype(np.float32)
        prompt = rng.integers(-1, VOCABULARY + 2, (16, 6))
        keep = rng.random((16, 6)) < 0.7
        place = LogitsProcessorInputs(
            step=step, prompt_lengths=make_prompt_mask(prompt, keep).sum(axis=1)
        )
        wanted = select_next_tokens(
            logits, make_prompt_vocab_mask(prompt, VOCABULARY, keep), settings, place
        )
        assert sample_tokens(model, logits, settings, step, prompt, keep) == wanted.tolist(), (
            f"step {step}"
        )


def test_equal_logits_are_ordered_by_id() -> None:
    """Of three equal best tokens, top-k 2 keeps the first two: both are sampled, the third never."""
    logits = np.zeros((64, VOCABULARY), np.float32)
    logits[:, [9, 4, 30]] = 5
    nothing = np.zeros((64, 1), np.int64), np.zeros((64, 1), bool)
    found = sample_tokens(
        build_sampling_model(), logits, GenerationSettings(strategy="sample", top_k=2), 0, *nothing
    )
    assert set(found) == {4, 9}


def test_temperature_zero_selects_the_most_likely_token() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((8, VOCABULARY)).astype(np.float32)
    nothing = np.zeros((8, 1), np.int64), np.zeros((8, 1), bool)
    found = sample_tokens(
        build_sampling_model(),
        logits,
        GenerationSettings(strategy="sample", temperature=0.0),
        0,
        *nothing,
    )
    assert found == logits.argmax(axis=1).tolist()


def test_top_p_considers_at_most_1000_candidates() -> None:
    """With top-p 0.999 and equal logits only the first 1000 tokens are sampled; without top-p, all."""
    size = 4000
    logits, model = np.zeros((200, size), np.float32), build_sampling_model(size)
    nothing = np.zeros((200, 1), np.int64), np.zeros((200, 1), bool)
    cut = sample_tokens(
        model, logits, GenerationSettings(strategy="sample", top_p=0.999), 0, *nothing
    )
    every = sample_tokens(model, logits, GenerationSettings(strategy="sample"), 0, *nothing)
    assert max(cut) < generator_sampling.MAX_SAMPLED_CANDIDATES < max(every)
