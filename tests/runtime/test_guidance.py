"""Classifier-free guidance: packages and full forward passes select the tokens of guided logits that
are computed separately, with and without the condition; unsupported combinations are rejected.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model
from specc.artifact.manifest import FIXED_SETTINGS, SCALAR_SETTINGS, UNSUPPORTED_SETTINGS
from specc.decode.setting_names_and_limits import GENERATION_OPTIONS
from specc.diagnostics.diagnostic import SpeccError

SCALE, STEPS = 2.5, 6
PROMPTS = [[5, 9, 3], [7], [2, 4, 11, 6]]
SOURCES = [[5, 9, 3], [7, 2, 4]]
NO_MASK = (
    "specc 1\nmodel m\ndims batch, n\n"
    "graph g(ids: int[batch, n]) -> (logits: float[batch, n, 5]) {\n"
    "  return embedding(ids, size=5, dim=5) @ e\n}\n"
    "generate text of ids from logits { }\n"
)

FEATURES = (
    "specc 1\nmodel m\ndims batch, n, m\n"
    "graph g(ids: int[batch, n], features: float[batch, m], seen: keep[batch, m],\n"
    "        keep: keep[batch, n] = ids >= 0) -> (logits: float[batch, n, 7]) {\n"
    "  x = embedding(ids, size=7, dim=8) @ e\n"
    "  x = x + (attention(x, heads=2, mask=causal & visible(keep)) @ attn)\n"
    "  total = sum(where(seen, features, 0.0), axis=1)\n"
    "  return linear(x * insert(insert(total, axis=1), axis=2), out=7) @ head\n}\n"
    "generate text of ids from logits { }\n"
)


@pytest.fixture(scope="module")
def full_forward(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return {
        name: compile_model(name, tmp_path_factory.mktemp(name) / "m.onnx")
        for name in ("llama", "t5", "musicgen")
    }


def compile_model(name: str, path: Path, **options: Any) -> Model:
    specc.compile(name, path, init=3, set=SMALL_CONFIGS[name], **options)
    return specc.load(path, threads=1)


def run_last(model: Model, **inputs: Any) -> np.ndarray[Any, Any]:
    """Return the logits of the last position, [vocab] or [codebooks, vocab]."""
    arrays = {name: np.array([value]) for name, value in inputs.items()}
    return np.asarray(model.run(**arrays)["logits"][0, -1], np.float64)


def guide(conditional: Any, unconditional: Any) -> np.ndarray[Any, Any]:
    guided: np.ndarray[Any, Any] = unconditional + SCALE * (conditional - unconditional)
    return guided


@pytest.mark.parametrize("is_package", [False, True])
def test_prompts_are_the_condition(
    full_forward: dict[str, Model], tmp_path: Path, is_package: bool
) -> None:
    model = reference = full_forward["llama"]
    if is_package:
        model = compile_model("llama", tmp_path / "package", graphs="step")
    results = model.generate(PROMPTS, max_tokens=STEPS, guidance_scale=SCALE).results()
    for prompt, [result] in zip(PROMPTS, results, strict=True):
        tokens = list(prompt)
        for token in result.tokens:
            logits = guide(
                run_last(reference, input_ids=tokens),
                run_last(reference, input_ids=tokens[len(prompt) - 1 :]),
            )
            assert token == logits.argmax()
            tokens.append(token)
    assert results != model.generate(PROMPTS, max_tokens=STEPS).results()
    assert [row[0] for row in results] == list(
        model.generate_each(PROMPTS, max_tokens=STEPS, guidance_scale=SCALE)
    )


@pytest.mark.parametrize("strategy", ["greedy", "beam"])
def test_encoder_input_is_the_condition(full_forward: dict[str, Model], strategy: str) -> None:
    model = full_forward["t5"]
    settings = {"max_tokens": STEPS, "strategy": strategy, "guidance_scale": SCALE}
    [[result, *_], _] = model.generate(SOURCES, **settings, log_probs=True).results()
    tokens, scores = [0], list[float]()
    for token in result.tokens:
        inputs: dict[str, Any] = {"source": SOURCES[0], "target": tokens}
        logits = guide(
            run_last(model, **inputs, source_keep=[True] * 3),
            run_last(model, **inputs, source_keep=[False] * 3),
        )
        if strategy == "greedy":
            assert token == logits.argmax()
        scores.append(
            float(logits[token] - np.log(np.exp(logits - logits.max()).sum()) - logits.max())
        )
        tokens.append(token)
    np.testing.assert_allclose(np.array(result.log_probs), np.array(scores), atol=1e-4)


def test_mask_of_a_model_without_start_token(tmp_path: Path) -> None:
    """The features of a decoder-only model, such as those of images, are not the condition."""
    specc.compile(FEATURES, tmp_path / "m.onnx", init=0)
    model = specc.load(tmp_path / "m.onnx", threads=1)
    given = {"features": [1.0, 2.0, 4.0], "seen": [True, True, False]}
    batch = {name: [value] for name, value in given.items()}
    prompt = [3, 1, 5]
    settings = {"max_tokens": STEPS, "guidance_scale": SCALE, "log_probs": True}
    [[result]] = model.generate(ids=[prompt], **batch, **settings).results()
    tokens, scores = list(prompt), list[float]()
    for token in result.tokens:
        logits = guide(
            run_last(model, ids=tokens, **given), run_last(model, ids=tokens[2:], **given)
        )
        scores.append(float(logits[token] - np.log(np.exp(logits).sum())))
        tokens.append(token)
    np.testing.assert_allclose(np.array(result.log_probs), np.array(scores), atol=1e-5)


def test_codebooks(full_forward: dict[str, Model]) -> None:
    model = full_forward["musicgen"]
    stream = model.generate(input_ids=SOURCES, max_tokens=STEPS, guidance_scale=SCALE)
    steps = [step.tokens[1] for step in stream]
    prompt = [np.full(3, 16)]
    inputs: dict[str, Any] = {"input_ids": SOURCES[1]}
    for number, tokens in enumerate(steps):
        inputs["decoder_input_ids"] = np.array(prompt + steps[:number])
        logits = guide(
            run_last(model, **inputs, attention_mask=[True] * 3),
            run_last(model, **inputs, attention_mask=[False] * 3),
        )
        chosen = range(min(number + 1, 3)) if number < STEPS - 2 else range(number - 3, 3)
        assert [tokens[k] for k in chosen] == [logits[k].argmax() for k in chosen]


def test_model_without_padding_mask(tmp_path: Path) -> None:
    specc.compile(NO_MASK, tmp_path / "m.onnx", init=0)
    with pytest.raises(SpeccError, match="requires a padding mask"):
        specc.load(tmp_path / "m.onnx").generate([[1]], guidance_scale=2).results()


@pytest.mark.parametrize(
    "setting", [{"typical_p": 0.5}, {"eta_cutoff": 0.1}, {"guidance_scale": 2}]
)
def test_standalone_generator_rejects_setting(setting: dict[str, float], tmp_path: Path) -> None:
    """A setting that the graph cannot apply is an error, at compile time and at run time."""
    options: dict[str, Any] = {"graphs": "generate", "generation_config": {"strategy": "sample"}}
    model = compile_model("llama", tmp_path / "m.onnx", **options)
    with pytest.raises(SpeccError, match="E0733"):
        model.generate([[1]], **setting)


def test_settings_of_standalone_generators_are_classified() -> None:
    """A standalone generator applies every setting, or rejects it."""
    applied = {*FIXED_SETTINGS, *SCALAR_SETTINGS, "stop_strings", "max_length", "log_probs"}
    # a model with several codebooks has no standalone generator
    rejected = {*UNSUPPORTED_SETTINGS, "delay_pattern"}
    assert not applied & rejected
    assert {option.name for option in GENERATION_OPTIONS} == applied | rejected
