"""Read the JSON files next to the weights: the audio settings in preprocessor_config.json, and the
CTC vocabulary in vocab.json and tokenizer_config.json.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from specc.diagnostics.diagnostic import Span, raise_error
from specc.io.json_io import NO_LIMITS, get_exact_integer, parse_strict_json
from specc.io.safe_read import escape_text, read_required_file
from specc.syntax.parse import decode_spec

Settings: TypeAlias = Mapping[str, object]
"""A JSON object from a config file, or the options of a spec."""
MAX_FILE_BYTES = 16 * 2**20
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
MODULES_FILE = "modules.json"
SENTENCE_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the files with sentence-transformers' encoder settings, in order of precedence."""
SENTENCE_TRANSFORMERS_FILE = "config_sentence_transformers.json"
ENCODER_PART = "transformer"
"""Name of the encoder in the generated spec and config of a sentence-transformers model."""
VOCABULARY, TOKENIZER = "vocab.json", "tokenizer_config.json"
ADDED_TOKENS_FILE = "added_tokens.json"
MAX_VOCABULARY_SIZE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class _FeatureExtractor:
    """A feature extractor class. `keys` maps keys of the config file to options of the spec, and
    `required_values` maps keys to the only supported value.
    """

    name: str
    keys: Mapping[str, str]
    required_values: Settings


_WAVEFORM = _FeatureExtractor(
    name="Wav2Vec2FeatureExtractor",
    keys={"sampling_rate": "rate", "do_normalize": "normalize"},
    required_values={"feature_size": 1},
)
_LOG_MEL = _FeatureExtractor(
    name="WhisperFeatureExtractor",
    keys={
        "sampling_rate": "rate",
        "feature_size": "bins",
        "hop_length": "hop",
        "n_fft": "window",
        "chunk_length": "frames",
    },
    required_values={"dither": 0},
)
_FILTER_BANKS = _FeatureExtractor(
    name="ASTFeatureExtractor",
    keys={
        "sampling_rate": "rate",
        "num_mel_bins": "bins",
        "max_length": "frames",
        "mean": "mean",
        "std": "std",
        "do_normalize": "normalize",
    },
    required_values={"feature_size": 1},
)
FEATURE_EXTRACTORS = {"waveform": _WAVEFORM, "log_mel": _LOG_MEL, "filter_banks": _FILTER_BANKS}
REQUIRED_AUDIO_SETTINGS: Settings = {"padding_value": 0, "padding_side": "right"}
"""The only supported value of each audio setting that is common to all feature extractors."""
IGNORED_KEYS = {
    "processor_class": "names a class",
    "image_processor_type": "names a class",
    "feature_extractor_type": "is compared separately",
    "return_attention_mask": "the mask is always computed",
    "n_samples": "is derived",
    "nb_max_frames": "is derived",
    "mel_filters": "are derived",
}
DEFAULT_HOP_LENGTH = 160
"""Default hop length of a log-mel spectrogram in samples."""


def read_audio_options(
    kind: str, spec_options: Settings, directories: Sequence[Path], span: Span | None
) -> dict[str, object]:
    """Merge the audio preprocessing options of the spec (`spec_options`) and of the first
    `preprocessor_config.json` in `directories`. Raise E0844 if spec and file differ.
    """
    path, file = read_preprocessor_config(directories)
    if path is None:
        return dict(spec_options)
    file_options = _convert_options(FEATURE_EXTRACTORS[kind], file, path, span)
    for name, value in file_options.items():
        if name in spec_options and spec_options[name] != value:
            helps = [
                f"remove `{name}` from the `reading` section to use the value of the file",
                "or compile from a directory without this file",
            ]
            title = f"`{name}` is {spec_options[name]} in the spec, but {value} according to "
            raise_error("E0844", title + f"`{escape_text(path)}`", span, helps=helps)
    return {**file_options, **spec_options}


def list_audio_processor_files(kind: str, directories: Sequence[Path]) -> list[Path]:
    """Return the files that audio preprocessing of type `kind` reads."""
    names: tuple[str, ...] = (PREPROCESSOR, PROCESSOR) if kind in FEATURE_EXTRACTORS else ()
    if kind == "transcript":
        names = (VOCABULARY, TOKENIZER, ADDED_TOKENS_FILE)
    return find_repository_files(directories, names)


def list_unused_preprocessor_keys(kind: str, directories: Sequence[Path]) -> tuple[str, ...]:
    """Return the keys of the preprocessor config that are ignored."""
    _, file = read_preprocessor_config(directories)
    known_keys = {
        *FEATURE_EXTRACTORS[kind].keys,
        *FEATURE_EXTRACTORS[kind].required_values,
        *REQUIRED_AUDIO_SETTINGS,
        *IGNORED_KEYS,
    }
    return tuple(key for key in file if key not in known_keys)


def read_preprocessor_config(directories: Sequence[Path]) -> tuple[Path | None, dict[str, object]]:
    """Read the preprocessor config or, if there is none, the audio section of a processor config.
    Return the path and content of the config, or (None, {}) if there is no config.
    """
    path = find_repository_file(directories, PREPROCESSOR)
    if path is not None:
        return path, read_json_object(path)
    path = find_repository_file(directories, PROCESSOR)
    part = read_json_object(path).get("feature_extractor") if path else None
    return (path, part) if isinstance(part, dict) else (None, {})


def _convert_options(
    extractor: _FeatureExtractor, file: Settings, path: Path, span: Span | None
) -> dict[str, object]:
    """Convert the keys of a file to preprocessing options. Raise E0844 if the file belongs to
    another feature extractor or contains an unsupported setting.
    """
    class_name = file.get("feature_extractor_type")
    if class_name not in (None, extractor.name):
        reason = f"is for {escape_text(class_name)}, but the model uses "
        _raise_unsupported_settings(path, reason + extractor.name, span)
    for key, expected in {**REQUIRED_AUDIO_SETTINGS, **extractor.required_values}.items():
        if file.get(key, expected) != expected:
            _raise_unsupported_settings(
                path, f"has `{key}` {file[key]}, which is not supported", span
            )
    options = {name: file[key] for key, name in extractor.keys.items() if file.get(key) is not None}
    for value in options.values():
        if not isinstance(value, bool | int | float):
            _raise_unsupported_settings(path, f"has {str(value)[:40]!r}, expected a number", span)
    if extractor is _LOG_MEL and "frames" in options:
        options["frames"] = _count_frames(options, path, span)
    return options


def _count_frames(options: Settings, path: Path, span: Span | None) -> int:
    """Return the number of spectrogram frames in `chunk_length` seconds."""
    seconds, rate = options["frames"], options.get("rate", 16_000)
    hop = options.get("hop", DEFAULT_HOP_LENGTH)
    if isinstance(seconds, int) and isinstance(rate, int) and isinstance(hop, int):
        frames, remainder = divmod(seconds * rate, max(hop, 1))
        if hop > 0 and not remainder:
            return frames
    _raise_unsupported_settings(
        path, "has a `chunk_length` that is not an integer number of frames", span
    )


def _raise_unsupported_settings(path: Path, reason: str, span: Span | None) -> NoReturn:
    raise_error(
        "E0844",
        f"`{escape_text(path)}` {reason[:300]}",
        span,
        helps=[
            "download the file that belongs to the weights, or compile from a directory without it"
        ],
    )


def find_word_vocabulary_file(directories: Sequence[Path], span: Span | None = None) -> Path | None:
    """Return the path of the vocabulary in the first directory that contains one, or None if none
    does. `specc convert` writes such a file next to word vectors. Raise E0203 if there are several
    vocabularies.
    """
    for directory in directories:
        paths = sorted(directory.glob("*.vocab"))
        if len(paths) > 1:
            names = " and ".join(f"`{escape_text(path.name)}`" for path in paths[:2])
            raise_error(
                "E0203",
                f"`words()` requires one vocabulary next to the weights, found {len(paths)}",
                span,
                notes=[f"found {names}"],
                helps=['name one next to the spec, `words("x.vocab")`, or keep only one'],
            )
        if paths:
            return paths[0]
    return None


def read_ctc_transcript_options(
    directories: Sequence[Path], span: Span | None, language: str = ""
) -> dict[str, object] | None:
    """Read the options of `transcript` from `vocab.json` and `tokenizer_config.json` in the first
    directory with a `vocab.json`. Return None if there is no such directory. `language` overrides
    the language in `tokenizer_config.json`. Raise E0845 if the files are invalid.
    """
    path = find_repository_file(directories, VOCABULARY)
    if path is None:
        return None
    config = read_optional_json_object(path.parent / TOKENIZER)
    if language:
        config["target_lang"] = language
    ids = dict(
        _iterate_ids(_select_vocabulary(read_json_object(path), config, path, span), path, span)
    )
    for number, token in _iterate_added_tokens(path.parent, config):
        ids.setdefault(number, token)
    unknown = get_token_text(config.get("unk_token"), "<unk>")
    if not ids or max(ids) >= MAX_VOCABULARY_SIZE:
        _raise_invalid_vocabulary(path, "has no tokens, or ids that are too large", span)
    vocab = [ids.get(number, unknown) for number in range(max(ids) + 1)]
    blank = get_token_text(config.get("pad_token"), "<pad>")
    options: dict[str, object] = {
        "vocab": vocab,
        "unknown": unknown,
        "delimiter": get_token_text(config.get("word_delimiter_token"), "|"),
        "space": get_token_text(config.get("replace_word_delimiter_char"), " "),
        "lower": config.get("do_lower_case") is True,
    }
    return {**options, "blank": vocab.index(blank)} if blank in vocab else options


def _select_vocabulary(
    file: dict[str, object], config: Settings, path: Path, span: Span | None
) -> dict[str, object]:
    """Return the vocabulary or, in a multilingual file, the vocabulary of `target_lang`."""
    if not any(isinstance(vocabulary, dict) for vocabulary in file.values()):
        return file
    language = config.get("target_lang")
    vocabulary = file.get(language) if isinstance(language, str) else None
    if not isinstance(vocabulary, dict):
        if isinstance(language, str) and language in file:
            reason = f"has no token map for `{escape_text(language)[:40]}`"
            _raise_invalid_vocabulary(path, reason, span)
        languages = ", ".join(list(file)[:10])
        reason = f"has a vocabulary for each language ({languages}), and `target_lang` selects none"
        _raise_invalid_vocabulary(path, reason, span)
    return vocabulary


def _iterate_ids(vocabulary: Settings, path: Path, span: Span | None) -> Iterator[tuple[int, str]]:
    for token, value in vocabulary.items():
        number = get_exact_integer(value)
        if number is None or number < 0:
            _raise_invalid_vocabulary(path, f"has no id for `{escape_text(token)[:40]}`", span)
        yield number, token


def _iterate_added_tokens(directory: Path, config: Settings) -> Iterator[tuple[int, str]]:
    """Yield the id and text of each token in `added_tokens_decoder` and in added_tokens.json."""
    for key, value in get_object_or_empty(config, "added_tokens_decoder").items():
        if key.isascii() and key.isdigit() and len(key) < 10:
            yield int(key), get_token_text(value)
    for token, number in read_optional_json_object(directory / ADDED_TOKENS_FILE).items():
        if isinstance(number, int) and 0 <= number < MAX_VOCABULARY_SIZE:
            yield number, token


def get_token_text(value: object, default: str = "") -> str:
    """Return the text of a token, which config files store as a string or under `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else default


def _raise_invalid_vocabulary(path: Path, reason: str, span: Span | None) -> NoReturn:
    raise_error(
        "E0845",
        f"the vocabulary `{escape_text(path)}` {reason[:300]}",
        span,
        helps=[
            "download the files that belong to the weights, or compile from a directory "
            "without them"
        ],
    )


def get_object_or_empty(settings: Settings, key: str) -> dict[str, Any]:
    """Return the object under a key, or {} if the value is absent or has another type."""
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def get_list_or_empty(settings: Settings, key: str) -> list[Any]:
    """Return the list under a key, or [] if the value is absent or has another type."""
    value = settings.get(key)
    return value if isinstance(value, list) else []


def format_ignored_key_remark(key: str, path: Path | None) -> str:
    """Format a remark that says that a key in a config file has no effect."""
    return f"`{escape_text(key)[:60]}` in `{escape_text(path)}` has no effect"


def find_repository_file(directories: Sequence[Path], name: str) -> Path | None:
    """Return the file `name` in the first directory that contains it, or None if none does."""
    return next((f / name for f in directories if os.path.lexists(f / name)), None)


def find_repository_files(directories: Sequence[Path], names: Sequence[str]) -> list[Path]:
    """Return the existing files in `names`, each from the first directory that contains the
    file.
    """
    return [p for name in names if (p := find_repository_file(directories, name))]


def get_tokenizer_init_kwargs(settings: Settings) -> dict[str, Any]:
    """Return the arguments that sentence-transformers passes to the tokenizer's constructor:
    `processor_kwargs`, or `tokenizer_args` in older files. These arguments override keys of
    tokenizer_config.json.
    """
    key = "processor_kwargs" if "processor_kwargs" in settings else "tokenizer_args"
    return get_object_or_empty(settings, key)


def get_tokenizer_call_kwargs(settings: Settings) -> dict[str, Any]:
    """Return the arguments with which sentence-transformers calls the tokenizer."""
    return get_object_or_empty(get_object_or_empty(settings, "processing_kwargs"), "text")


def find_first_file(directories: Sequence[Path], names: Sequence[str]) -> Path | None:
    """Return the first file in `names` that exists in a directory, or None if none exists."""
    return next(iter(find_repository_files(directories, names)), None)


def read_optional_json_object(path: Path | None) -> dict[str, object]:
    """Return the JSON object in a file, or {} if `path` is None."""
    return read_json_object(path) if path is not None and os.path.lexists(path) else {}


def read_json_object(path: Path) -> dict[str, object]:
    """Return the JSON object in a file. Raise E0802 (unreadable) or E0846 (not an object)."""
    data = read_required_file(path, MAX_FILE_BYTES)
    try:
        value = parse_strict_json(decode_spec(data, str(path)).text, NO_LIMITS)
    except ValueError as error:
        _raise_not_object(path, escape_text(error)[:200])
    if not isinstance(value, dict):
        _raise_not_object(path, "expected an object")
    return dict(value)


def _raise_not_object(path: Path, reason: str) -> NoReturn:
    raise_error(
        "E0846",
        f"`{escape_text(path)}` is not a JSON object: {reason}",
        helps=["download the file again"],
    )
