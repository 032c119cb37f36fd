"""Read the task of a checkpoint (pipeline, labels, special token ids) from its config files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.frontend.generate_stream_and_reading_sections import list_graph_blocks
from specc.frontend.json_parser_with_spans import JsonObject
from specc.frontend.spec_modules import Program
from specc.huggingface.audio_and_ctc_processor_files import (
    ENCODER_PART,
    MODULES_FILE,
    SENTENCE_CONFIGS,
    SENTENCE_TRANSFORMERS_FILE,
    TOKENIZER,
    find_first_file,
    find_repository_file,
    get_object_or_empty,
    get_token_text,
    get_tokenizer_call_kwargs,
    get_tokenizer_init_kwargs,
    read_optional_json_object,
)
from specc.huggingface.tokenizer_config import map_tokens_to_ids
from specc.io.safe_read import escape_text
from specc.ir.model_definition import ModelDefinition
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import TEXT_CONFIGS, ImageConfig, TextConfig
from specc.preprocessing.tasks import TASKS, Task, find_matching_task
from specc.preprocessing.text_batches_and_windows import TOKEN_TYPES
from specc.preprocessing.tokenizer_files import HfTokenizer

Config: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = dict[str, Any]
"""A JSON object from a file next to the weights, or the fields of a task."""
SPECIAL_TOKENS = "special_tokens_map.json"
SPECIAL_TOKENS_BY_FIELD = {
    "mask_token_id": ("mask_token", "[MASK]", "<mask>"),
    "cls_token_id": ("cls_token", "[CLS]", "<s>"),
    "unknown_token_id": ("unk_token", "[UNK]", "<unk>"),
    "pad_token_id": ("pad_token", "[PAD]", "<pad>"),
}
"""For each task field with a special token, the config key and default names of the token."""
NEXT_SENTENCE_LABELS = ("IsNext", "NotNext")
UNLIMITED_LENGTH = 2**31
"""Maximum lengths greater than or equal to this value mean that there is no limit."""
SIGLIP_LENGTH = 64
"""The number of tokens to which SigLIP pads text, i.e. the default of `max_position_embeddings`."""
TOKENIZERS_WITH_TOKEN_TYPE_IDS = ("Bert", "Electra", "Deberta")
"""Tokenizer classes that return `token_type_ids` by default."""
MODEL_TYPES_WITH_TOKEN_TYPE_IDS = ("bert", "electra", "deberta-v2")
"""Model types whose default tokenizer class returns `token_type_ids`."""


def add_pipeline_task(
    preprocessing: PreprocessingConfig,
    program: Program,
    model: ModelDefinition,
    config_json: JsonObject | None,
    directories: Sequence[Path],
) -> PreprocessingConfig:
    """Add the graph's task to the preprocessing config if the graph has a text input."""
    text_inputs = [(n, r) for n, r in preprocessing.inputs if isinstance(r, TEXT_CONFIGS)]
    text_input = next(((n, r) for n, r in text_inputs if n in model.graph.inputs), None)
    blocks = [b for b in list_graph_blocks(program) if b.name == model.graph.name]
    classes = tuple(name for block in blocks for name in block.architectures)
    task = find_matching_task(classes, tuple(model.graph.outputs))
    if text_input is None or not task:
        return preprocessing
    name, record = text_input
    if not _can_preprocess(task, record, preprocessing):
        return preprocessing
    config: Fields = config_json.to_python() if config_json is not None else {}
    encoder_config = config.get(ENCODER_PART)
    config = encoder_config if isinstance(encoder_config, dict) else config
    task_record = _build_task(task, name, record, config, directories)
    return replace(preprocessing, task=task_record)


def _can_preprocess(kind: str, text: TextConfig, preprocessing: PreprocessingConfig) -> bool:
    """Return True if the model has the text or image preprocessing that a task requires."""
    if TASKS[kind].needs_tokenizer and not isinstance(text, HfTokenizer):
        return False
    takes_image = any(item.name == "image" for item in TASKS[kind].inputs)
    return not takes_image or any(isinstance(r, ImageConfig) for _, r in preprocessing.inputs)


def _build_task(
    task: str, name: str, tokenizer: TextConfig, config: Config, directories: Sequence[Path]
) -> Task:
    """Build a task from the checkpoint's config files."""
    tokenizer_config = _read_tokenizer_config(directories)
    fields: Fields = {
        "labels": _read_labels(config),
        "score_function": _read_function(
            {**_read_optional_file(SENTENCE_TRANSFORMERS_FILE, directories), **config}
        ),
        "uses_token_types": _uses_token_types(tokenizer_config, config),
    }
    if task == "next-sentence-prediction":
        fields |= {"labels": NEXT_SENTENCE_LABELS, "score_function": "softmax"}
    if task == "sentence-similarity":
        fields |= _read_sentence_task(config, tokenizer_config, directories)
    if task == "zero-shot-image-classification":
        fields |= _read_image_text_settings(config)
    if isinstance(tokenizer, HfTokenizer):
        # use the padding token of config.json if no tokenizer file sets one
        fields |= _find_special_ids(
            map_tokens_to_ids(json.loads(tokenizer.file.json_text)), tokenizer_config
        )
    return Task(kind=task, text_input=name, **fields)


def _read_labels(config: Config) -> tuple[str, ...]:
    """Return the class names by class index. A missing name becomes `LABEL_n`."""
    labels = get_object_or_empty(config, "id2label")
    label_by_index = {int(k): str(v) for k, v in labels.items() if str(k).isdecimal()}
    return tuple(label_by_index.get(i, f"LABEL_{i}") for i in range(len(label_by_index)))


def _read_function(config: Config) -> str:
    """Return the activation function that transformers or sentence-transformers applies to the
    logits to compute scores.
    """
    activation = get_object_or_empty(config, "sentence_transformers").get("activation_fn")
    activation = activation or config.get("activation_fn")
    activation = activation or config.get("sbert_ce_default_activation_function")
    if isinstance(activation, str):
        return {"Sigmoid": "sigmoid", "Softmax": "softmax"}.get(
            activation.rpartition(".")[2], "none"
        )
    problem = config.get("problem_type")
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if problem == "regression":
        return "none"
    is_independent = count == 1 or problem == "multi_label_classification"
    return "sigmoid" if is_independent else "softmax"


def _read_image_text_settings(config: Config) -> Fields:
    """Read the settings of image-text models. SigLIP pads texts and scores labels independently."""
    if "siglip" not in str(config.get("model_type")):
        return {"score_function": "softmax"}
    settings = get_object_or_empty(config, "text_config")
    length = settings.get("max_position_embeddings", SIGLIP_LENGTH)
    return {
        "score_function": "sigmoid",
        "padded_length": min(int(length), SIGLIP_LENGTH),
        "pad_token_id": int(settings.get("pad_token_id", 1)),
    }


def _read_optional_file(name: str, directories: Sequence[Path]) -> Fields:
    """Read the JSON file `name`, or return {} if there is no such file."""
    return read_optional_json_object(find_repository_file(directories, name))


def _read_max_length(
    config: Config, tokenizer_config: Config, encoder_settings: Config
) -> int | None:
    """Return the maximum number of tokens per text (0: no truncation), or None if it is invalid."""
    lengths = [tokenizer_config.get("model_max_length"), config.get("max_position_embeddings")]
    limits = [n for n in lengths if isinstance(n, int) and 0 < n < UNLIMITED_LENGTH]
    max_length = (
        get_tokenizer_call_kwargs(encoder_settings).get("max_length")
        or get_tokenizer_init_kwargs(encoder_settings).get("model_max_length")
        or encoder_settings.get("max_seq_length")
        or min(limits, default=0)
    )
    return max_length if type(max_length) is int and max_length >= 0 else None


def _read_sentence_task(
    config: Config, tokenizer_config: Config, directories: Sequence[Path]
) -> Fields:
    """Read the text settings of a sentence-transformers directory. Return {} for other models."""
    if find_repository_file(directories, MODULES_FILE) is None:
        return {}
    path = find_first_file(directories, SENTENCE_CONFIGS)
    encoder_settings = read_optional_json_object(path)
    settings = _read_optional_file(SENTENCE_TRANSFORMERS_FILE, directories)
    prompt_texts = get_object_or_empty(settings, "prompts")
    max_length = _read_max_length(config, tokenizer_config, encoder_settings)
    if max_length is None:
        _raise_invalid_setting(path, "max_seq_length", "an integer")
    if not all(isinstance(text, str | None) for text in prompt_texts.values()):
        _raise_invalid_setting(
            find_repository_file(directories, SENTENCE_TRANSFORMERS_FILE),
            "prompts",
            "an object of strings",
        )
    return {
        "max_length": max_length,
        "truncates_left": tokenizer_config.get("truncation_side") == "left",
        "prompts": tuple((str(name), text or "") for name, text in prompt_texts.items()),
        "prompt": settings.get("default_prompt_name") or "",
    }


def _raise_invalid_setting(path: Path | None, key: str, expected: str) -> NoReturn:
    """Raise E0427 because the setting `key` has the wrong type."""
    title = f"`{escape_text(path)}`: `{key}` is not {expected}"
    raise_error("E0427", title, helps=["correct the file, or download it again"])


def _read_tokenizer_config(directories: Sequence[Path]) -> Fields:
    """Merge special_tokens_map.json, tokenizer_config.json and the tokenizer arguments of
    sentence-transformers. Later files take precedence.
    """
    encoder_settings = read_optional_json_object(find_first_file(directories, SENTENCE_CONFIGS))
    files = {
        **_read_optional_file(SPECIAL_TOKENS, directories),
        **_read_optional_file(TOKENIZER, directories),
    }
    return {**files, **get_tokenizer_init_kwargs(encoder_settings)}


def _uses_token_types(tokenizer_config: Config, config: Config) -> bool:
    """Return True if the tokenizer of the model returns `token_type_ids`."""
    input_names, tokenizer_class = (
        tokenizer_config.get("model_input_names"),
        tokenizer_config.get("tokenizer_class"),
    )
    if isinstance(input_names, list):
        return TOKEN_TYPES in input_names
    if isinstance(tokenizer_class, str):
        return tokenizer_class.startswith(TOKENIZERS_WITH_TOKEN_TYPE_IDS)
    return config.get("model_type") in MODEL_TYPES_WITH_TOKEN_TYPE_IDS


def _find_special_ids(ids: Mapping[str, object], tokenizer_config: Config) -> Fields:
    """Return the ids of a tokenizer's special tokens, keyed by task field."""
    fields: Fields = {}
    for field, (key, *defaults) in SPECIAL_TOKENS_BY_FIELD.items():
        token = get_token_text(tokenizer_config.get(key))
        candidates = [ids[name] for name in ([token] if token else defaults) if name in ids]
        if candidates and isinstance(candidates[0], int) and candidates[0] >= 0:
            fields[field] = candidates[0]
    return fields
