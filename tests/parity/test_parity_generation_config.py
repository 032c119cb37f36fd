"""A `generation_config.json` next to the weights has the effect that it has in transformers'
`generate`, for packages and standalone generators.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.hf_cases import ModelCase

import specc

pytestmark = pytest.mark.parity

BART = {
    "vocab_size": 31, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 40,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
GPT2 = {
    "vocab_size": 31, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40, "bos_token_id": 2, "eos_token_id": 2,
}  # fmt: skip
RUNS = [[a, b] for a in range(31) for b in range(31) if (3 * a + b) % 4 == 0 and b != 2]
"""Of two tokens each, many enough that some would be written."""
SOURCE = np.array([[5, 9, 3, 17, 8, 22, 11]])
CONFIGS = {
    "a summary": {
        "num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "min_length": 6, "max_length": 14,
        "no_repeat_ngram_size": 3, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
    },
    "every rule over runs": {
        "num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "min_length": 9, "max_length": 20,
        "no_repeat_ngram_size": 2, "bad_words_ids": [[4], *RUNS], "renormalize_logits": True, "forced_eos_token_id": 2,
    },
    "every rule over runs, greedy": {
        "min_length": 9, "max_length": 20, "no_repeat_ngram_size": 3, "bad_words_ids": [[4], [5, 6, 7], *RUNS],
    },
    "a translation": {
        "num_beams": 3, "forced_bos_token_id": 7, "max_length": 12, "bad_words_ids": [[1], [4]],
        "repetition_penalty": 1.3,
    },
    "greedy": {
        "max_new_tokens": 12, "min_new_tokens": 8, "suppress_tokens": [3, 5, 30], "begin_suppress_tokens": [n for n in range(31) if n % 9],
        "forced_eos_token_id": [2], "eos_token_id": [2, 9],
    },
    "the lowest of several forced tokens": {
        "max_new_tokens": 5, "min_new_tokens": 5, "forced_eos_token_id": [9, 7, 2], "suppress_tokens": [2],
    },
    "no start but that of texts": {"decoder_start_token_id": None, "bos_token_id": 3, "max_new_tokens": 12},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_encoder_decoder(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    case = ModelCase(
        config="BartConfig",
        model="BartForConditionalGeneration",
        tiny=BART,
        weight_scale=2.0,
        seed=1,
    )
    theirs = case.save_checkpoint(tmp_path)
    # texts would end as soon as they may
    theirs.final_logits_bias[0, 2] += 3
    theirs.save_pretrained(tmp_path)
    theirs.double()
    wanted = published(theirs, torch.tensor(SOURCE), config, tmp_path)
    # the first is what the text starts with, and not written
    wanted = wanted[1:]
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    assert written(tmp_path / "package", source=SOURCE) == wanted
    specc.compile(str(tmp_path), tmp_path / "m.onnx", graphs="generate")
    assert written(tmp_path / "m.onnx", source=SOURCE) == wanted


def test_settings_in_config_json(tmp_path: Path) -> None:
    """A checkpoint without generation_config.json, as older versions of transformers wrote it."""
    case = ModelCase(
        config="BartConfig",
        model="BartForConditionalGeneration",
        tiny=BART,
        weight_scale=2.0,
        seed=1,
    )
    case.save_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | CONFIGS["every rule over runs"]))
    theirs = transformers.BartForConditionalGeneration.from_pretrained(tmp_path).double()
    with torch.no_grad():
        wanted = theirs.generate(torch.tensor(SOURCE))[0].tolist()[1:]
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    assert written(tmp_path / "package", source=SOURCE) == wanted


@pytest.mark.parametrize(
    "config",
    [
        {"min_length": 15, "max_length": 20, "no_repeat_ngram_size": 2},
        {"num_beams": 4, "max_new_tokens": 9, "no_repeat_ngram_size": 2, "min_length": 12},
        {"max_new_tokens": 12, "bad_words_ids": RUNS},
        {"num_beams": 3, "max_new_tokens": 12, "bad_words_ids": RUNS, "repetition_penalty": 1.4, "renormalize_logits": True},
    ],
)  # fmt: skip
def test_decoder_with_prompt(config: Mapping[str, Any], tmp_path: Path) -> None:
    """Lengths include the prompt."""
    case = ModelCase(config="GPT2Config", model="GPT2LMHeadModel", tiny=GPT2, weight_scale=2.0)
    theirs = case.save_checkpoint(tmp_path).double()
    wanted = published(theirs, torch.tensor(SOURCE), config, tmp_path)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    specc.compile(str(tmp_path), tmp_path / "m.onnx", graphs="generate")
    for made in ("package", "m.onnx"):
        assert written(tmp_path / made, SOURCE) == wanted[SOURCE.shape[1] :], made


def published(
    theirs: Any, ids: torch.Tensor, config: Mapping[str, Any], directory: Path
) -> list[int]:
    """Return what transformers generates with the config that it then saves."""
    for key, value in config.items():
        setattr(theirs.generation_config, key, value)
    with torch.no_grad():
        row = theirs.generate(ids, attention_mask=torch.ones_like(ids))[0].tolist()
    theirs.generation_config.save_pretrained(directory)
    return row


def written(model: Path, *given: Any, **inputs: Any) -> list[int]:
    made = specc.load(model, threads=1).generate(*given, **inputs)
    return list(made.results()[0][0].tokens)


WHISPER = {
    "vocab_size": 41, "d_model": 24, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "num_mel_bins": 8, "max_source_positions": 12,
    "max_target_positions": 24, "pad_token_id": 30, "bos_token_id": 30, "eos_token_id": 30, "decoder_start_token_id": 31,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
DICTATED = {
    "lang_to_id": {"<|en|>": 32, "<|de|>": 33, "<|fr|>": 34},
    "task_to_id": {"transcribe": 35, "translate": 36},
    "is_multilingual": True,
    "no_timestamps_token_id": 37,
    "return_timestamps": False,
    "suppress_tokens": [1, 2, 7, *range(31, 41)],
    "begin_suppress_tokens": [5, 30],
    "max_length": 20,
}
SAYINGS: dict[str, dict[str, Any]] = {
    "any language": {"forced_decoder_ids": [[1, None], [2, 35]]},
    "german": {"language": "<|de|>", "task": "translate"},
    "english only": {"forced_decoder_ids": [[1, 37]], "lang_to_id": None, "task_to_id": None},
}  # fmt: skip


@pytest.mark.parametrize("name", SAYINGS)
@pytest.mark.parametrize("seed", [0, 3])
def test_whisper(name: str, seed: int, tmp_path: Path) -> None:
    """The language, given or detected; the task; suppressed tokens."""
    case = ModelCase(
        config="WhisperConfig",
        model="WhisperForConditionalGeneration",
        tiny=WHISPER,
        weight_scale=2.0,
        seed=seed,
    )
    theirs = case.save_checkpoint(tmp_path).double()
    for key, value in {**DICTATED, **SAYINGS[name]}.items():
        if value is not None:
            setattr(theirs.generation_config, key, value)
    rng = np.random.default_rng(seed)
    heard = rng.standard_normal((2, 8, 24)).astype(np.float32)
    with torch.no_grad():
        rows = theirs.generate(torch.tensor(heard).double(), return_timestamps=False)
    theirs.generation_config.save_pretrained(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    specc.compile(str(tmp_path), tmp_path / "m.onnx", graphs="generate")
    own = {30, *range(31, 38)}
    wanted = [[t for t in row if t not in own] for row in rows.tolist()]
    for path in (tmp_path / "package", tmp_path / "m.onnx"):
        made = specc.load(path, threads=1).generate(input_features=heard).results()
        got = [[t for t in row[0].tokens if t not in own] for row in made]
        assert got == wanted, path.name
    assert any(wanted)
