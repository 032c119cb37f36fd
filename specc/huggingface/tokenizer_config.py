"""Apply the settings in tokenizer_config.json to a tokenizer.json, like transformers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from specc.decode.setting_validation import VocabularySizes
from specc.frontend.generate_stream_and_reading_sections import get_vocabulary_sizes
from specc.huggingface.audio_and_ctc_processor_files import (
    SENTENCE_CONFIGS,
    TOKENIZER,
    Settings,
    find_first_file,
    format_ignored_key_remark,
    get_list_or_empty,
    get_object_or_empty,
    get_token_text,
    get_tokenizer_call_kwargs,
    get_tokenizer_init_kwargs,
    read_optional_json_object,
)
from specc.ir.model_definition import ModelDefinition

Part: TypeAlias = dict[str, Any]
"""A component of a tokenizer.json: normalizer, pre-tokenizer or post-processor."""
GENERIC_CLASSES = frozenset(("PreTrainedTokenizerFast", "TokenizersBackend"))
"""Tokenizer classes that do not change the normalizer in tokenizer.json."""
BERT_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Map keys of tokenizer_config.json to the BertNormalizer fields that they set."""
ADDED_TOKEN_KEYS = {"add_bos_token": "bos_token", "add_eos_token": "eos_token"}
"""Map each key that adds a special token at the beginning or end of texts to the key of this token.
"""
SPECIAL_TOKEN_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True)
class ConfiguredTokenizer:
    """A tokenizer.json with the settings of tokenizer_config.json applied, and the ignored keys."""

    tokenizer_json: str
    ignored_keys: tuple[str, ...] = ()


def apply_tokenizer_config(directory: Path, tokenizer_json: str) -> ConfiguredTokenizer:
    """Apply the tokenizer settings in `directory` to `tokenizer_json`, the content of a
    tokenizer.json.
    """
    path = find_first_file([directory], SENTENCE_CONFIGS)
    encoder_settings = read_optional_json_object(path) if path else {}
    settings = {
        **read_optional_json_object(directory / TOKENIZER),
        **get_tokenizer_init_kwargs(encoder_settings),
    }
    return apply_tokenizer_settings(
        tokenizer_json, settings, lowercases_text=encoder_settings.get("do_lower_case") is True
    )


def describe_ignored_settings(directory: Path, tokenizer_json: str) -> Iterator[str]:
    """Yield a note for each unsupported setting in tokenizer_config.json."""
    for key in apply_tokenizer_config(directory, tokenizer_json).ignored_keys:
        yield format_ignored_key_remark(key, directory / TOKENIZER)


def apply_tokenizer_settings(
    tokenizer_json: str, settings: Settings, *, lowercases_text: bool = False
) -> ConfiguredTokenizer:
    """Return a tokenizer.json with the settings of tokenizer_config.json. If `lowercases_text` is
    True (`do_lower_case` of sentence-transformers), the tokenizer also lowercases text.
    """
    content: Part = json.loads(tokenizer_json)
    original = json.dumps(content)
    ignored = [*_apply_end_tokens(content, settings), *_find_missing_tokens(content, settings)]
    if settings.get("split_special_tokens") is True:
        ignored.append("split_special_tokens")
    if settings.get("tokenizer_class") not in GENERIC_CLASSES:
        ignored += _apply_normalizer_settings(content, settings)
        ignored += _apply_prefix_space(content, settings.get("add_prefix_space"))
    normalizers = _list_parts(content.get("normalizer"))
    if lowercases_text and not any(map(_lowercases_text, normalizers)):
        steps = [{"type": "Lowercase"}, *normalizers]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    is_unchanged = json.dumps(content) == original
    return ConfiguredTokenizer(
        tokenizer_json if is_unchanged else json.dumps(content, ensure_ascii=False),
        tuple(dict.fromkeys(ignored)),
    )


def _list_parts(value: object) -> list[Part]:
    """Return the items of a `Sequence`, [component] for any other component, or [] for null."""
    if not isinstance(value, dict):
        return []
    items = next(
        (value[k] for k in ("normalizers", "pretokenizers", "processors") if k in value), None
    )
    return (
        [nested_part for part in items for nested_part in _list_parts(part)]
        if isinstance(items, list)
        else [value]
    )


def _lowercases_text(part: Part) -> bool:
    """Return True if a normalizer lowercases text."""
    return part.get("type") == "Lowercase" or part.get("lowercase") is True


def _apply_normalizer_settings(content: Part, settings: Settings) -> Iterator[str]:
    """Set the fields of each BertNormalizer. If there is no BertNormalizer, yield `do_lower_case`
    if the other normalizers contradict its value.
    """
    normalizers = _list_parts(content.get("normalizer"))
    bert_normalizers = [part for part in normalizers if part.get("type") == "BertNormalizer"]
    for part in bert_normalizers:
        part.update({n: settings[k] for k, n in BERT_NORMALIZER.items() if k in settings})
    lowercases = settings.get("do_lower_case")
    if (
        not bert_normalizers
        and isinstance(lowercases, bool)
        and lowercases != any(map(_lowercases_text, normalizers))
    ):
        yield "do_lower_case"


def _apply_prefix_space(content: Part, prefix: object) -> Iterator[str]:
    """Set `add_prefix_space` of byte-level BPE. Yield the key if Metaspace has a different
    setting.
    """
    if not isinstance(prefix, bool):
        return
    for part in _list_parts(content.get("pre_tokenizer")):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = prefix
        elif prefix == (part.get("prepend_scheme") == "never"):
            yield "add_prefix_space"


def _apply_end_tokens(content: Part, settings: Settings) -> Iterator[str]:
    """Apply `add_bos_token` and `add_eos_token`. Yield the keys if a token is unknown."""
    keys = [key for key in ADDED_TOKEN_KEYS if isinstance(settings.get(key), bool)]
    names = [get_token_text(settings.get(ADDED_TOKEN_KEYS[key])) for key in ADDED_TOKEN_KEYS]
    if not keys or not _collect_added_tokens(content) <= {*names}:
        return
    ids = map_tokens_to_ids(content)
    bos, eos = (
        n if settings.get(k) is True else "" for k, n in zip(ADDED_TOKEN_KEYS, names, strict=True)
    )
    if {bos, eos} - {"", *ids}:
        yield from keys
        return
    content["post_processor"] = _make_template(bos, eos, ids)


def _collect_added_tokens(content: Part) -> set[str]:
    """Return the tokens that the post-processor adds, or {"?"} for BERT and RoBERTa."""
    parts = _list_parts(content.get("post_processor"))
    processors = [part for part in parts if part.get("type") != "ByteLevel"]
    return {str(name) for part in processors for name in part.get("special_tokens", ("?",))}


def _make_template(bos: str, eos: str, ids: Mapping[str, int]) -> Part:
    """Build a post-processor that adds the tokens `bos` and `eos` to every text."""

    def make_sequence(name: str, type_id: int) -> list[Part]:
        text = {"Sequence": {"id": name, "type_id": type_id}}
        start, end = (
            [{"SpecialToken": {"id": token, "type_id": type_id}}] if token else []
            for token in (bos, eos)
        )
        return [*start, text, *end]

    special_tokens = {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (bos, eos) if t}
    return {
        "type": "TemplateProcessing",
        "single": make_sequence("A", 0),
        "pair": [*make_sequence("A", 0), *make_sequence("B", 1)],
        "special_tokens": special_tokens,
    }


def map_tokens_to_ids(content: Part) -> dict[str, int]:
    """Map each token of a tokenizer.json to its id."""
    vocab = get_object_or_empty(content, "model").get("vocab")
    pieces = vocab if isinstance(vocab, list) else []
    pairs = vocab if isinstance(vocab, dict) else {p[0]: i for i, p in enumerate(pieces)}
    added_tokens = content.get("added_tokens") or ()
    return {**pairs, **{token["content"]: token["id"] for token in added_tokens}}


def _find_missing_tokens(content: Part, settings: Settings) -> Iterator[str]:
    """Yield the keys of special tokens that the tokenizer.json lacks."""
    ids = map_tokens_to_ids(content)
    yield from (
        key
        for key in SPECIAL_TOKEN_KEYS
        if (name := get_token_text(settings.get(key))) and name not in ids
    )
    token_lists = {
        "additional_special_tokens": get_list_or_empty(settings, "additional_special_tokens"),
        "added_tokens_decoder": get_object_or_empty(settings, "added_tokens_decoder").values(),
    }
    for key, tokens in token_lists.items():
        if any(get_token_text(token) not in ids for token in tokens):
            yield key


FILTERING_SETTINGS: Mapping[str, str] = {
    "stop": "eos_token_id",
    "pad": "pad_token_id",
    "suppress_tokens": "suppress_tokens` or `bad_words_ids",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "bad_words_ids": "bad_words_ids",
}
"""Settings that ignore token ids outside the vocabulary, with the config key of each setting."""
GENERATED_SETTINGS: Mapping[str, str] = {
    "start": "decoder_start_token_id",
    "begin": "forced_bos_token_id",
    "forced_eos_token_id": "forced_eos_token_id",
}
"""Settings with tokens that the model reads or generates, with the config key of each setting."""


def drop_out_of_vocab_ids(model: ModelDefinition, settings: dict[str, object]) -> Iterator[str]:
    """Remove ids outside the vocabulary from `FILTERING_SETTINGS`. Yield a remark for each changed
    key.
    """
    vocabulary = _read_vocabulary(model)
    for name, key in FILTERING_SETTINGS.items():
        value = settings.get(name)
        items = value if isinstance(value, list) else [value]
        unknown = [i for i in items if vocabulary.find_token_id_error(name, [i])]
        if value is None or not unknown:
            continue
        # if the file's only stop token is unknown, sequences have no stop token, even if the spec
        # declares one
        settings[name] = [item for item in items if item not in unknown]
        if name == "pad":
            del settings[name]
        yield f"`{key}` has {_format_value(unknown)}, which is not in the vocabulary; ignored"


def find_out_of_vocab_token(model: ModelDefinition, settings: Settings) -> tuple[str, str]:
    """Return the key and description of a generated token outside the vocabulary, or ("", "")."""
    vocabulary = _read_vocabulary(model)
    for name, key in GENERATED_SETTINGS.items():
        value = settings.get(name)
        if value is not None and (error := vocabulary.find_token_id_error(name, value)):
            return key, f"is invalid: {error.title}"
    return "", ""


def _read_vocabulary(model: ModelDefinition) -> VocabularySizes:
    generation = model.generation
    assert generation is not None
    if generation.logits_output not in model.graph.outputs:
        return VocabularySizes()
    return get_vocabulary_sizes(model.graph, generation.sequence_input, generation.logits_output)


def _format_value(items: Sequence[object]) -> str:
    """Format the first three items of a list, each truncated to 60 characters."""
    text = ", ".join(str(item)[:60] for item in items[:3])
    return text if len(items) <= 3 else f"{text}, …"


ENCODER_SETTINGS: Mapping[str, Sequence[object]] = dict.fromkeys(
    (
        *("max_seq_length", "do_lower_case", "transformer_task"),
        *("modality_config", "module_output_name"),
        *("processor_kwargs", "tokenizer_args", "processing_kwargs"),
    ),
    (),
)
SUPPORTED_SETTINGS: Mapping[str, Sequence[object]] = {
    **dict.fromkeys(("prompts", "default_prompt_name", "__version__"), ()),
    "similarity_fn_name": (None, "cosine"),
    "model_type": (None, "SentenceTransformer"),
}
"""Supported values of each key that specc reads or that does not affect embeddings. () means
all.
"""


def _iterate_ignored_keys(
    path: Path | None, supported_values: Mapping[str, Sequence[object]]
) -> Iterator[str]:
    """Yield a remark for each ignored key in a config file."""
    for key, value in read_optional_json_object(path).items():
        values = supported_values.get(key, (None, {}, False))
        if values and value not in values:
            yield format_ignored_key_remark(key, path)


SUPPORTED_TOKENIZER_ARGUMENTS = frozenset(
    ("model_max_length", "truncation_side", "use_fast", *BERT_NORMALIZER)
)
"""Tokenizer arguments that specc supports or that do not change embeddings."""


def _iterate_ignored_arguments(path: Path | None) -> Iterator[str]:
    """Yield a remark for each ignored argument of the tokenizer or of a tokenizer call."""
    settings = read_optional_json_object(path)
    for key in get_tokenizer_init_kwargs(settings):
        if key not in SUPPORTED_TOKENIZER_ARGUMENTS:
            yield format_ignored_key_remark(key, path)
    call_arguments = get_tokenizer_call_kwargs(settings)
    for key, value in call_arguments.items():
        if key != "max_length" and (key, value) not in (("truncation", True), ("padding", True)):
            yield format_ignored_key_remark(key, path)
    # arguments for processors of modalities other than text
    for key, value in get_object_or_empty(settings, "processing_kwargs").items():
        if key != "text" and value:
            yield format_ignored_key_remark(key, path)


def iterate_ignored_settings(encoder_path: Path | None, model_path: Path) -> Iterator[str]:
    """Yield a remark for each ignored setting of a sentence-transformers model or its encoder."""
    yield from _iterate_ignored_keys(encoder_path, ENCODER_SETTINGS)
    yield from _iterate_ignored_arguments(encoder_path)
    yield from _iterate_ignored_keys(model_path, SUPPORTED_SETTINGS)
