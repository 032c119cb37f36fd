"""Settings read from `generation_config.json`, key by key;
`tests/parity/test_parity_generation_config.py` compares them with transformers."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from specc.decode.generation_settings import merge_caller_settings
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.huggingface import generation_config
from specc.huggingface.generation_config import (
    KEY_TYPES,
    ConfiguredModelDefinition,
    apply_generation_config,
)
from specc.ir.graph import Graph
from specc.ir.model_definition import GenerateSection, ModelDefinition

NOTHING = Graph(
    name="g", inputs={}, input_facts={}, parameters={}, parameter_facts={}, nodes=(), outputs={},
)  # fmt: skip


def apply_config(directory: Path, said: dict[str, Any], **keys: Any) -> ConfiguredModelDefinition:
    (directory / "generation_config.json").write_text(json.dumps(keys))
    generation = GenerateSection("text", "ids", "logits", said)
    model = ModelDefinition(name="m", doc="", graph=NOTHING, generation=generation)
    return apply_generation_config(model, [directory])


def read_settings(directory: Path, said: dict[str, Any], **keys: Any) -> dict[str, Any]:
    generation = apply_config(directory, said, **keys).model_definition.generation
    assert generation
    merge_caller_settings(generation.settings)
    return dict(generation.settings)


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"eos_token_id": [2, 3]}, {"stop": [2, 3]}),
        ({"pad_token_id": -1, "eos_token_id": 2}, {"stop": 2}),
        ({"max_length": 9}, {"max_length": 9, "max_tokens": 9}),
        ({"max_length": 9, "max_new_tokens": 5}, {"max_tokens": 5}),
        ({"min_length": 9, "min_new_tokens": 5}, {"min_tokens": 5}),
        ({"min_length": 9}, {"min_length": 9}),
        (
            {"min_length": 9, "decoder_start_token_id": 1},
            {"start": 1, "min_tokens": 8},
        ),
        ({"do_sample": True, "temperature": 0.5}, {"strategy": {"kind": "sample", "temperature": 0.5, "top_k": 50}}),
        ({"do_sample": False, "temperature": 0.5}, {"strategy": {"kind": "greedy"}}),
        ({"num_beams": 3, "length_penalty": 2}, {"strategy": {"kind": "beam", "length_penalty": 2, "num_beams": 3}}),
        ({"repetition_penalty": 1.1}, {"strategy": {"kind": "greedy", "repetition_penalty": 1.1}}),
        ({"bad_words_ids": [[4]], "suppress_tokens": [5]}, {"suppress_tokens": [5, 4]}),
        ({"bad_words_ids": [[4, 6], [7], [2]], "eos_token_id": 2}, {"stop": 2, "suppress_tokens": [7], "bad_words_ids": [[4, 6]]}),
        (
            {"forced_bos_token_id": 0, "forced_eos_token_id": [2, 3], "decoder_start_token_id": 1},
            {"begin": [0], "forced_eos_token_id": 2, "start": 1},
        ),
        ({"forced_bos_token_id": 0}, {}),
        ({"forced_eos_token_id": [3, 2]}, {"forced_eos_token_id": 2}),
        (
            {"forced_eos_token_id": [3, 2], "suppress_tokens": [2]},
            {"forced_eos_token_id": 3, "suppress_tokens": [2]},
        ),
        (
            {"forced_eos_token_id": 5, "bad_words_ids": [[4], [5]]},
            {"forced_eos_token_id": 5, "suppress_tokens": [4], "bad_words_ids": [[5]]},
        ),
        ({"typical_p": 1.0, "guidance_scale": None, "use_cache": False}, {}),
        ({"guidance_scale": 3.0}, {"guidance_scale": 3.0}),
    ],
)  # fmt: skip
def test_keys(keys: dict[str, Any], wanted: dict[str, Any], tmp_path: Path) -> None:
    assert read_settings(tmp_path, {}, **keys) == wanted


def test_file_overrides_the_spec(tmp_path: Path) -> None:
    said = {"stop": 7, "start": 1, "max_tokens": 4}
    made = read_settings(tmp_path, said, eos_token_id=2)
    assert made == {**said, "stop": 2}


def test_unknown_keys_are_reported(tmp_path: Path) -> None:
    assert "`odd`" in apply_config(tmp_path, {}, odd=1).remarks[-1]


def test_default_start_token(tmp_path: Path) -> None:
    """`bos_token_id` is the start token only if the spec has a start token; a decoder-only model
    begins with its prompt."""
    assert read_settings(tmp_path, {"start": 4}, bos_token_id=0)["start"] == 0
    both = {"bos_token_id": 0, "decoder_start_token_id": 2}
    assert read_settings(tmp_path, {"start": 4}, **both)["start"] == 2
    assert "start" not in read_settings(tmp_path, {}, bos_token_id=0)


def test_forced_bos_token(tmp_path: Path) -> None:
    """transformers forces it after exactly one token; a prompt has any number of tokens."""
    assert read_settings(tmp_path, {"start": 1}, forced_bos_token_id=4)["begin"] == [4]
    made = apply_config(tmp_path, {}, forced_bos_token_id=4)
    assert "`forced_bos_token_id` 4 after a prompt of one token" in made.remarks[1]


def test_ignored_settings_are_reported(tmp_path: Path) -> None:
    made = apply_config(tmp_path, {}, encoder_no_repeat_ngram_size=3, penalty_alpha=0.6)
    assert "`penalty_alpha` 0.6 is not supported" in made.remarks[1]
    assert "`encoder_no_repeat_ngram_size` 3" in made.remarks[2]


@pytest.mark.parametrize(
    "keys",
    [
        {"do_sample": True, "num_beams": 2},
        {"bad_words_ids": [[]]},
        {"forced_eos_token_id": [5, 2], "suppress_tokens": [2, 5, 9]},
        {"forced_bos_token_id": 5, "decoder_start_token_id": 1, "suppress_tokens": [5]},
        {"do_sample": True, "typical_p": 0},
        {"max_new_tokens": 0},
        {"decoder_start_token_id": 1, "forced_decoder_ids": [[2, 3]]},
        {"decoder_start_token_id": 1, "lang_to_id": {"<|en|>": 3}, "language": "xx"},
    ],
)
def test_unsupported_settings(keys: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="E0847"):
        apply_config(tmp_path, {}, **keys)


ODD: list[Any] = [True, 0, 3, 2**70, 0.5, "", "5", [], [3], [[3, 4]], {}, {"3": 4}]


@pytest.mark.parametrize("key", KEY_TYPES)
def test_wrong_types(key: str, tmp_path: Path) -> None:
    """Ignoring a wrong value would silently generate other tokens."""
    kind, _ = KEY_TYPES[key]
    for value in ODD:
        if type(value) is not kind:
            with pytest.raises(SpeccError, match=f"E0847(.|\n)*{key}"):
                apply_config(tmp_path, {}, **{key: value})


@pytest.mark.parametrize("beams", [0, -1, -(2**70)])
def test_invalid_num_beams(beams: int, tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="E0847"):
        apply_config(tmp_path, {}, num_beams=beams)


def test_forced_language_tokens(tmp_path: Path) -> None:
    """Without a language the model chooses among all."""
    keys = {
        "decoder_start_token_id": 9,
        "lang_to_id": {"<|de|>": 3, "<|en|>": 2},
        "task_to_id": {"transcribe": 5, "translate": 6},
        "no_timestamps_token_id": 7,
    }
    forced = {"forced_decoder_ids": [[1, None], [2, 5]]}
    assert read_settings(tmp_path, {}, **keys, **forced)["begin"] == [[2, 3], 5, 7]
    assert read_settings(tmp_path, {}, **keys, language="de")["start"] == [9, 3, 5, 7]
    english = read_settings(tmp_path, {}, **keys, language="<|en|>", task="translate")
    assert english["start"] == [9, 2, 6, 7]


LISTS = ("eos_token_id", "suppress_tokens", "begin_suppress_tokens")
TINY = {
    "model_type": "llama", "vocab_size": 31, "hidden_size": 16, "num_attention_heads": 2,
    "num_hidden_layers": 1, "intermediate_size": 24,
}  # fmt: skip
BEYOND = st.one_of(st.integers(31, 200), st.just(10**9))
KNOWN = st.integers(3, 30)


def apply_config_with_vocabulary(
    directory: Path, keys: dict[str, Any]
) -> ConfiguredModelDefinition:
    (directory / "config.json").write_text(json.dumps(TINY))
    (directory / "generation_config.json").write_text(json.dumps(keys))
    model = elaborate_spec(open_spec("llama", config=str(directory)), "")
    return apply_generation_config(model, [directory])


@given(st.sets(BEYOND, min_size=1, max_size=3), st.sets(KNOWN, max_size=3), st.data())
@settings_of_test(max_examples=25, deadline=None)
def test_tokens_beyond_the_vocabulary_are_ignored_and_reported(
    beyond: set[int], known: set[int], data: st.DataObject
) -> None:
    """For each key, the settings equal those of the file without such ids."""
    key = data.draw(st.sampled_from(sorted({*LISTS, "bad_words_ids"})))
    mixed = data.draw(st.permutations([*beyond, *known]))
    value: list[Any] = mixed
    clean: list[Any] = [token for token in mixed if token in known]
    if key == "bad_words_ids":
        value, clean = ([[1, token] for token in tokens] for tokens in (mixed, clean))
    with TemporaryDirectory() as directory:
        made = apply_config_with_vocabulary(Path(directory), {key: value})
        due = apply_config_with_vocabulary(Path(directory), {key: clean} if clean else {})
    assert made.model_definition.generation
    assert due.model_definition.generation
    word = generation_config.GENERAL_KEYS.get(key, "bad_words_ids")
    wanted = {**due.model_definition.generation.settings, **({} if clean else {word: []})}
    assert made.model_definition.generation.settings == wanted
    (said,) = set(made.remarks) - set(due.remarks)
    assert f"`{key}`" in said
    assert any(str(token) in said for token in beyond)


@pytest.mark.parametrize("key", ["forced_eos_token_id", "decoder_start_token_id"])
def test_tokens_beyond_the_vocabulary_cannot_be_generated(key: str, tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match=f"E0847.*{key}"):
        apply_config_with_vocabulary(tmp_path, {key: 10**9})


def test_config_json_is_read_without_the_file(tmp_path: Path) -> None:
    """Only generation settings, and not the tokens alone, which the spec reads."""
    generation = GenerateSection("text", "ids", "logits", {"start": 1, "stop": 2})
    model = ModelDefinition(name="m", doc="", graph=NOTHING, generation=generation)
    config = {"eos_token_id": 2, "bos_token_id": 7, "hidden_size": 4, "num_beams": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert apply_generation_config(model, [tmp_path]) == ConfiguredModelDefinition(model)
    config |= {"num_beams": 3, "min_length": 5, "bad_words_ids": [[2], [4]], "task": {"a": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = apply_generation_config(model, [tmp_path])
    assert found.model_definition.generation
    assert found.model_definition.generation.settings == {
        "start": 1, "stop": 2, "min_tokens": 4, "suppress_tokens": [4],
        "strategy": {"kind": "beam", "num_beams": 3},
    }  # fmt: skip
    (tmp_path / "generation_config.json").write_text("{}")
    found = apply_generation_config(model, [tmp_path])
    assert found.model_definition == model
    assert any("transformers does not stop" in remark for remark in found.remarks)
