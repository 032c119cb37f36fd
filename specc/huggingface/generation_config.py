"""Read the sampling, beam search and stopping settings in generation_config.json or config.json."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from specc.decode.setting_validation import find_spec_setting_errors
from specc.diagnostics.diagnostic import raise_error
from specc.huggingface.audio_and_ctc_processor_files import (
    find_repository_file,
    format_ignored_key_remark,
    get_list_or_empty,
    get_object_or_empty,
    read_json_object,
)
from specc.huggingface.tokenizer_config import drop_out_of_vocab_ids, find_out_of_vocab_token
from specc.io.safe_read import escape_text
from specc.ir.model_definition import ModelDefinition
from specc.library.spec_file_lookup import CONFIG_FILE_NAME

GENERATION_CONFIG_FILE = "generation_config.json"
GENERAL_KEYS: Mapping[str, str] = {
    "eos_token_id": "stop",
    "pad_token_id": "pad",
    "decoder_start_token_id": "start",
    "max_new_tokens": "max_tokens",
    "max_length": "max_length",
    "min_new_tokens": "min_tokens",
    **{
        key: key
        for key in (
            *("no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens"),
            *("forced_eos_token_id", "stop_strings", "guidance_scale"),
        )
    },
}
"""Keys of settings that apply to all strategies, and the names of these settings in specc."""
SAMPLING_KEYS = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("typical_p", "epsilon_cutoff", "eta_cutoff"),
)
BEAM_SEARCH_KEYS = (
    *("length_penalty", "early_stopping"),
    *("num_return_sequences", "renormalize_logits"),
)
STRATEGIES: Mapping[tuple[bool, bool], tuple[str, tuple[str, ...]]] = {
    (False, False): ("greedy", ()),
    (True, False): ("sample", SAMPLING_KEYS),
    (False, True): ("beam", (*BEAM_SEARCH_KEYS, "num_beams")),
}
"""Decoding strategy and config keys of its options, keyed by (uses sampling, uses several beams).
"""
WHISPER_KEYS = ("forced_decoder_ids", "lang_to_id", "no_timestamps_token_id")
"""Keys that select language and task, which only Whisper's generation_config.json contains."""
FORCED_BOS_KEY, FORCED_EOS_KEY = "forced_bos_token_id", "forced_eos_token_id"
DEFAULT_TOP_K = 50
"""Default `top_k` of sampling in transformers."""
SPECIAL_KEYS = {
    "the strategy": "do_sample num_beams repetition_penalty",
    "lengths and tokens": "min_length bad_words_ids forced_bos_token_id bos_token_id",
    "the tokens that transcription starts with": "forced_decoder_ids language task lang_to_id "
    "task_to_id is_multilingual return_timestamps no_timestamps_token_id",
}
"""Keys of generation configs that other specc functions read, grouped by topic."""
IGNORED_KEYS = {
    "metadata of the file": "_from_model_config transformers_version",
    "set by the prompt or another key": "prev_sot_token_id",
    "implementation choices": "use_cache cache_implementation cache_config "
    "low_memory disable_compile compile_config prefill_chunk_size trust_remote_code "
    "num_assistant_tokens num_assistant_tokens_schedule assistant_early_exit "
    "assistant_confidence_threshold assistant_lookbehind target_lookbehind "
    "is_assistant prompt_lookup_num_tokens max_matching_ngram_size token_healing",
    "additional outputs": "output_attentions output_hidden_states "
    "output_scores output_logits return_dict_in_generate return_legacy_cache",
    "timestamps, which are not generated": "max_initial_timestamp_index alignment_heads "
    "median_filter_width",
    "settings of chat programs": "chat_format max_window_size",
    "a time limit": "max_time",
    "NaN scores do not occur": "remove_invalid_values",
}
"""Keys of generation configs that do not affect generation, grouped by reason."""
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    **dict.fromkeys(("top_h", "sequence_bias", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("watermarking_config", "constraints", "force_words_ids", "dola_layers"), ()),
}
"""For each key of an unsupported feature, the values that disable the feature."""

TOKEN_KEYS = frozenset(("eos_token_id", "pad_token_id", "decoder_start_token_id"))
CONFIG_JSON_KEYS = TOKEN_KEYS | {
    *(*GENERAL_KEYS, *SAMPLING_KEYS, *BEAM_SEARCH_KEYS, *NEUTRAL_VALUES, FORCED_BOS_KEY),
    *("do_sample", "num_beams", "repetition_penalty", "min_length", "bad_words_ids"),
    "forced_decoder_ids",
}
"""Generation settings that a config.json may contain, including the token ids."""

KEY_TYPES: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(("do_sample", "return_timestamps"), (bool, "true or false")),
    **dict.fromkeys(("num_beams", "no_repeat_ngram_size"), (int, "an integer")),
    **dict.fromkeys(("max_length", "max_new_tokens"), (int, "an integer")),
    **dict.fromkeys(("min_length", "min_new_tokens"), (int, "an integer")),
    "pad_token_id": (int, "a token id"),
    "bad_words_ids": (list, "a list of token lists"),
    "forced_decoder_ids": (list, "a list of position and token pairs"),
    **dict.fromkeys(("lang_to_id", "task_to_id"), (dict, "a map of tokens")),
    **dict.fromkeys(("language", "task"), (str, "a string")),
}
"""The type of each key's non-null value, and a description of the type for error messages."""


@dataclass
class GenerationConfigFile:
    """The generation settings of a checkpoint in generation_config.json or config.json. `settings`
    contains the settings that have already been converted.
    """

    path: Path
    values: Mapping[str, object]
    settings: dict[str, object] = field(default_factory=dict)

    def get_value(self, key: str) -> object:
        """Return the value of a key, or None if the key is absent or null."""
        return self.values.get(key)

    def raise_unsupported(self, key: str, reason: str) -> NoReturn:
        """Raise E0847 at the position of `key`, or for the whole file if `key` is ""."""
        location = f"`{key}` in " if key else ""
        helps = (
            "remove the setting from the file if the generated sequences may differ",
            "or compile from a directory without this file",
        )
        raise_error("E0847", f"{location}`{escape_text(self.path)}` {reason}", helps=helps)


@dataclass(frozen=True)
class ConfiguredModelDefinition:
    """A model definition with the generation settings of a file, and remarks on the settings."""

    model_definition: ModelDefinition
    remarks: tuple[str, ...] = ()


def apply_generation_config(
    model: ModelDefinition, directories: Sequence[Path]
) -> ConfiguredModelDefinition:
    """Apply the generation settings from the first of `directories` that contains a generation
    config. Raise E0846 if the file is not a JSON object, and E0847 if a setting is not supported.
    """
    file = _open_config_file(directories) if model.generation else None
    if file is None or model.generation is None:
        return ConfiguredModelDefinition(model)
    _check_types(file)
    _read_general_settings(file)
    spec_settings = dict(model.generation.settings)
    _read_start_tokens(file, spec_settings)
    _read_strategy(file)
    if errors := find_spec_setting_errors(file.settings):
        file.raise_unsupported("", f"is invalid: {errors[0].title}")
    file_name = escape_text(file.path)
    token_remarks = [f"{r} in `{file_name}`" for r in drop_out_of_vocab_ids(model, file.settings)]
    settings = {**spec_settings, **file.settings}
    stop, has_own_file = settings.get("stop"), file.path.name == GENERATION_CONFIG_FILE
    if has_own_file and stop is not None and "stop" not in file.settings:
        token_remarks.append(
            f"sequences stop at token {escape_text(stop)}: without `eos_token_id` in "
            f"`{file_name}`, transformers does not stop"
        )
    if (unknown_token := find_out_of_vocab_token(model, settings))[0]:
        file.raise_unsupported(*unknown_token)
    new_model = replace(model, generation=replace(model.generation, settings=settings))
    return ConfiguredModelDefinition(new_model, (*_iterate_remarks(file), *token_remarks))


def _open_config_file(directories: Sequence[Path]) -> GenerationConfigFile | None:
    """Open generation_config.json or, if it does not exist, the generation settings in config.json,
    as transformers does. Return None if config.json is missing or sets only token ids.
    """
    if path := find_repository_file(directories, GENERATION_CONFIG_FILE):
        return GenerationConfigFile(path, read_json_object(path))
    path = find_repository_file(directories, CONFIG_FILE_NAME)
    config = read_json_object(path) if path else {}
    values = {k: config[k] for k in config.keys() & CONFIG_JSON_KEYS if config[k] is not None}
    if path is None or values.keys() <= TOKEN_KEYS:
        return None
    return GenerationConfigFile(path, values)


def _check_types(file: GenerationConfigFile) -> None:
    """Raise E0847 if a value has the wrong type."""
    for key, (type, expected) in KEY_TYPES.items():
        value = file.get_value(key)
        # exclude booleans from integers, because True is an integer in Python
        has_type = isinstance(value, type) and isinstance(value, bool) is (type is bool)
        if value is not None and not has_type:
            file.raise_unsupported(key, f"is {escape_text(value)[:60]}, expected {expected}")
    beams = file.get_value("num_beams")
    if isinstance(beams, int) and beams < 1:
        file.raise_unsupported("num_beams", f"is {escape_text(beams)[:60]}, expected at least 1")


def _iterate_remarks(file: GenerationConfigFile) -> Iterator[str]:
    yield f"generation settings are from `{escape_text(file.path)}`"
    for feature in _iterate_unsupported(file):
        yield f"generated sequences may differ from transformers: {feature} is not supported"
    key_lists = (*SPECIAL_KEYS.values(), *IGNORED_KEYS.values())
    known_keys = {*GENERAL_KEYS, *SAMPLING_KEYS, *BEAM_SEARCH_KEYS, *NEUTRAL_VALUES}
    known_keys |= {key for key_list in key_lists for key in key_list.split()}
    for key in sorted(file.values.keys() - known_keys):
        yield format_ignored_key_remark(key, file.path)


def _read_general_settings(file: GenerationConfigFile) -> None:
    """Read the settings that apply to all decoding strategies."""
    for key, name in GENERAL_KEYS.items():
        value = file.get_value(key)
        if value is not None and value != []:
            file.settings[name] = value
    pad = file.settings.get("pad")
    if isinstance(pad, int) and pad < 0:  # -1 means that there is no padding token
        del file.settings["pad"]
    _read_forced_eos_token(file)
    # if both lengths are set, transformers uses the length that excludes the prompt
    if file.get_value("max_new_tokens") is not None:
        file.settings.pop("max_length", None)
    if "max_length" in file.settings:
        file.settings.setdefault("max_tokens", file.settings["max_length"])
    _read_banned_tokens(file)


def _read_forced_eos_token(file: GenerationConfigFile) -> None:
    """Read `forced_eos_token_id`. If the value is a list, use the lowest id that is not suppressed,
    because greedy search in transformers gives all tokens of the list the same score.
    """
    forced_tokens = {
        key: _convert_to_token_list(file.get_value(key)) for key in (FORCED_BOS_KEY, FORCED_EOS_KEY)
    }
    suppressed = _convert_to_token_list(file.get_value("suppress_tokens"))
    for key, tokens in forced_tokens.items():
        if tokens and all(token in suppressed for token in tokens):
            file.raise_unsupported(key, "is suppressed by its `suppress_tokens`")
    allowed = [token for token in forced_tokens[FORCED_EOS_KEY] if token not in suppressed]
    if isinstance(file.get_value(FORCED_EOS_KEY), list) and allowed:
        ids = [token for token in allowed if isinstance(token, int)]
        file.settings[FORCED_EOS_KEY] = min(ids) if ids == allowed else allowed[0]


def _read_banned_tokens(file: GenerationConfigFile) -> None:
    """Read `bad_words_ids`. Suppress single tokens except stop tokens, like transformers."""
    # transformers applies forced tokens before `bad_words_ids` and after suppressed tokens
    forced_tokens = (file.settings.get("forced_eos_token_id"), file.get_value(FORCED_BOS_KEY))
    single_tokens, banned_sequences = list[object](), list[object]()
    for sequence in _read_token_lists(file):
        if len(sequence) > 1 or sequence[0] in forced_tokens:
            banned_sequences.append(sequence)
        else:
            single_tokens.append(sequence[0])
    if single_tokens:
        suppressed = file.settings.get("suppress_tokens", [])
        tokens = suppressed if isinstance(suppressed, list) else [suppressed]
        file.settings["suppress_tokens"] = [*tokens, *single_tokens]
    if banned_sequences:
        file.settings["bad_words_ids"] = banned_sequences


def _read_token_lists(file: GenerationConfigFile) -> list[list[object]]:
    """Return `bad_words_ids` without sequences that consist of a single stop token."""
    sequences = file.get_value("bad_words_ids")
    if not isinstance(sequences, list):
        return []  # the key is absent or null
    if not all(isinstance(sequence, list) and sequence for sequence in sequences):
        file.raise_unsupported("bad_words_ids", "is not a list of token lists")
    stop_tokens = _convert_to_token_list(file.get_value("eos_token_id"))
    return [
        sequence for sequence in sequences if len(sequence) > 1 or sequence[0] not in stop_tokens
    ]


def _read_start_tokens(file: GenerationConfigFile, spec_settings: Mapping[str, object]) -> None:
    """Read the decoder start tokens and the forced first tokens."""
    start = file.settings.get("start", spec_settings.get("start"))
    # without a start token in the file, the start token is `bos_token_id`
    bos = file.get_value("bos_token_id")
    if start is not None and "start" not in file.settings and bos is not None:
        start = file.settings["start"] = bos
    start_tokens = _convert_to_token_list(start)
    forced_bos = file.get_value(FORCED_BOS_KEY)
    # transformers forces `forced_bos_token_id` only after exactly one token, i.e. after a start
    # token but not after a longer prompt
    forced_tokens = [forced_bos] if forced_bos is not None and start_tokens else []
    if "decoder_start_token_id" in file.values and not file.values.keys().isdisjoint(WHISPER_KEYS):
        forced_tokens = _split_forced_tokens(file, start_tokens)
    if len(start_tokens) > 1:
        file.settings["start"] = start_tokens
    if forced_tokens:
        file.settings["begin"] = forced_tokens
    _read_min_length(file, len(start_tokens))


def _convert_to_token_list(value: object) -> list[object]:
    """Convert a token id or a list of token ids to a list."""
    tokens = list(value) if isinstance(value, list | tuple) else [value]
    return [token for token in tokens if token is not None]


def _read_min_length(file: GenerationConfigFile, start_token_count: int) -> None:
    """Read `min_length`, which includes the start tokens."""
    min_length = file.get_value("min_length")
    is_set = file.get_value("min_new_tokens") is not None
    if is_set or not isinstance(min_length, int) or min_length <= 0:
        return
    if start_token_count:
        file.settings.setdefault("min_tokens", max(min_length - start_token_count, 0))
    else:
        file.settings["min_length"] = min_length


def _split_forced_tokens(file: GenerationConfigFile, start_tokens: list[object]) -> list[object]:
    """Append Whisper's leading forced tokens to `start_tokens`, up to the first token that the
    model chooses. Return the remaining forced tokens.
    """
    forced_tokens = _read_transcription_tokens(file)
    while forced_tokens and not isinstance(forced_tokens[0], list):
        start_tokens.append(forced_tokens.pop(0))
    # `max_length` in published Whisper files includes the prompt
    max_length = file.settings.pop("max_length", None)
    if isinstance(max_length, int) and file.get_value("max_new_tokens") is None:
        file.settings["max_tokens"] = max_length + len(forced_tokens)
    return forced_tokens


def _read_transcription_tokens(file: GenerationConfigFile) -> list[object]:
    """Return the tokens after Whisper's start token (arXiv:2212.04356, fig. 1): the language
    (chosen by the model if it is not set), the task, and the no-timestamps token.
    """
    if file.get_value("return_timestamps") is True:
        file.raise_unsupported("return_timestamps", "requests timestamps, which are not supported")
    # the settings `language` and `task` override the token ids in older files
    has_names = any(file.get_value(key) is not None for key in ("language", "task"))
    tokens = _read_named_tokens(file) if has_names else _read_forced_tokens(file)
    languages = get_object_or_empty(file.values, "lang_to_id")
    if languages and not any(tokens[:1]):
        tokens[:1] = [sorted(languages.values(), key=str)]
    no_timestamps = file.get_value("no_timestamps_token_id")
    if no_timestamps is not None and tokens[-1:] != [no_timestamps]:
        tokens.append(no_timestamps)
    return [token for token in tokens if token is not None]


def _read_named_tokens(file: GenerationConfigFile) -> list[object]:
    """Return the language token, or None if no language is set, and the task token."""
    language, tasks = file.get_value("language"), get_object_or_empty(file.values, "task_to_id")
    language_token = None
    if language is not None:
        languages = get_object_or_empty(file.values, "lang_to_id")
        language_token = languages.get(str(language), languages.get(f"<|{language}|>"))
        if language_token is None:
            file.raise_unsupported("language", "is not in its `lang_to_id`")
    task = tasks.get(str(file.get_value("task") or "transcribe"))
    return [language_token] if task is None else [language_token, task]


def _read_forced_tokens(file: GenerationConfigFile) -> list[object]:
    """Return the tokens of `forced_decoder_ids` in order, with None for unspecified tokens."""
    tokens: list[object] = []
    for number, pair in enumerate(get_list_or_empty(file.values, "forced_decoder_ids"), 1):
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] != number:
            file.raise_unsupported("forced_decoder_ids", "does not force consecutive tokens")
        tokens.append(pair[1])
    return tokens


def _read_strategy(file: GenerationConfigFile) -> None:
    """Read the decoding strategy and its options, if the file sets a strategy."""
    uses_sampling, beams = file.get_value("do_sample") is True, file.get_value("num_beams")
    has_beams = isinstance(beams, int) and beams > 1
    if (uses_sampling, has_beams) not in STRATEGIES:
        reason = "requests sampling with beam search, which is not supported"
        file.raise_unsupported("do_sample", reason)
    strategy, keys = STRATEGIES[uses_sampling, has_beams]
    values = {key: file.get_value(key) for key in (*keys, "repetition_penalty")}
    options = {key: value for key, value in values.items() if value is not None}
    if uses_sampling:
        options.setdefault("top_k", DEFAULT_TOP_K)
    if options or "do_sample" in file.values or "num_beams" in file.values:
        file.settings["strategy"] = {"kind": strategy, **options}


def _iterate_unsupported(file: GenerationConfigFile) -> Iterator[str]:
    """Yield the key and value of each unsupported feature that the file enables."""
    for key, neutral_values in NEUTRAL_VALUES.items():
        value = file.get_value(key)
        if value is not None and value not in neutral_values and value != []:
            yield f"`{key}` {escape_text(value)[:60]}"
    if file.get_value(FORCED_BOS_KEY) is not None and "begin" not in file.settings:
        yield f"`{FORCED_BOS_KEY}` {file.get_value(FORCED_BOS_KEY)} after a prompt of one token"
