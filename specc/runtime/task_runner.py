"""Run a model for its task: preprocess texts, questions or images, and postprocess the outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.array import Array, Arrays
from specc.ir.graph import select_entries
from specc.preprocessing.predictions import (
    AGGREGATION_STRATEGIES,
    Prediction,
    TaskResults,
    make_predictions,
)
from specc.preprocessing.preprocessing_records import TEXT_CONFIGS, ImageConfig, TextConfig
from specc.preprocessing.python_inputs import convert_input_value
from specc.preprocessing.tasks import PROBABILITY_FUNCTIONS, Options, Task
from specc.preprocessing.text_batches_and_windows import (
    TokenizedText,
    batch_encodings,
    encode_text,
    find_mask_input,
    split_into_context_windows,
    truncate_encoding,
)
from specc.preprocessing.text_codec import pad_token_sequences
from specc.runtime.single_model_file import LoadedModel

POOLING_MASK = "pooling_mask"
"""Name of the pooling mask input of encoders whose pooling excludes the prompt."""
OPTION_CHOICES: Mapping[str, Sequence[str]] = {
    "aggregation_strategy": AGGREGATION_STRATEGIES,
    "function_to_apply": ("", *PROBABILITY_FUNCTIONS),
}


class Predictions(dict[str, Array]):
    """The outputs of a model by name, and the predictions for its task.

    `task` is the name of the task in `transformers.pipeline`. `predictions` contains one JSON value
    per text, as printed by `specc run --format json`. `truncated` is the number of texts that
    exceeded the model's maximum length.
    """

    def __init__(
        self, results: Arrays, task: str, predictions: list[Prediction], truncated: int = 0
    ) -> None:
        super().__init__(results)
        self.task = task
        self.predictions = predictions
        self.truncated = truncated


@dataclass
class _EncodedBatch:
    """The encoded inputs of one run, with the text index of each encoding, the task inputs as
    lists, and the numbers of truncated texts and prompt tokens.
    """

    encodings: list[TokenizedText]
    text_indices: list[int]
    texts: dict[str, list[Any]]
    truncated_count: int = 0
    prompt_length: int = 0


def has_task_inputs(model: LoadedModel, inputs: Mapping[str, object]) -> bool:
    """Return True if the names of `inputs` are task inputs rather than graph inputs."""
    task = model.manifest.preprocessing.task
    names = {task_input.name for task_input in task.inputs} if task else set()
    return bool(names & inputs.keys() - model.manifest.graph.inputs.keys())


def run_task(model: LoadedModel, inputs: Mapping[str, object]) -> Predictions:
    """Run a model for its task. `inputs` contain task inputs and options by name. Raise E0906,
    E0910 or E0912 if an input is invalid.
    """
    task = model.manifest.preprocessing.task
    assert task is not None, "checked by `is_for_task`"
    options = _read_options(task, inputs)
    task_inputs = select_entries(inputs, {s.name for s in task.inputs})
    _check_required_inputs(task, task_inputs)
    preprocessing, graph = model.manifest.preprocessing, model.manifest.graph
    text_config = preprocessing.get_input_config(task.text_input)
    assert isinstance(text_config, TEXT_CONFIGS), "every task has a text input"
    encode_batch: Callable[..., _EncodedBatch] = BATCH_ENCODERS.get(task.kind, _read_texts)
    batch = encode_batch(task, text_config, task_inputs, options)
    graph_inputs = select_entries(inputs, graph.inputs)
    if "image" in task_inputs:
        image = next(name for name, r in preprocessing.inputs if isinstance(r, ImageConfig))
        graph_inputs[image] = task_inputs["image"]
    if graph_inputs or _can_batch(model, task, batch):
        results = model.run(**_make_arrays(model, task, batch) | graph_inputs)
    else:
        arrays_per_text = [
            _make_arrays(model, task, replace(batch, encodings=[row])) for row in batch.encodings
        ]
        # axis 0 indexes texts, and axis 1 indexes choices if there are any
        axis = graph.inputs[task.text_input].rank - 2
        results = _stack_results([model.run(**arrays) for arrays in arrays_per_text], axis)
    padded_left = model.input_signature.is_left_padded(task.text_input)
    task_results = TaskResults(
        task=task,
        results=results,
        text_config=text_config,
        encodings=batch.encodings,
        text_indices=batch.text_indices,
        inputs=batch.texts,
        options={**options, "padded_left": padded_left},
    )
    return Predictions(results, task.kind, make_predictions(task_results), batch.truncated_count)


def _can_batch(model: LoadedModel, task: Task, batch: _EncodedBatch) -> bool:
    """Return True if texts can form a batch: they have equal lengths or the model has a mask."""
    has_equal_lengths = len({len(row.ids) for row in batch.encodings}) <= 1
    return has_equal_lengths or bool(find_mask_input(model.manifest.graph, task.text_input))


def _stack_results(results_per_text: Sequence[Arrays], axis: int) -> dict[str, Array]:
    """Concatenate the outputs for each text along `axis`, zero-padded along other axes."""
    stacked: dict[str, Array] = {}
    for name in results_per_text[0]:
        arrays = [results[name] for results in results_per_text]
        longest = np.max([array.shape for array in arrays], axis=0)
        pad_widths = [
            [
                (0, 0 if dimension == axis else longest[dimension] - length)
                for dimension, length in enumerate(a.shape)
            ]
            for a in arrays
        ]
        padded = [np.pad(a, width) for a, width in zip(arrays, pad_widths, strict=True)]
        stacked[name] = np.concatenate(padded, axis)
    return stacked


def _make_arrays(model: LoadedModel, task: Task, batch: _EncodedBatch) -> dict[str, object]:
    """Return the text input, the padding mask and the token type ids as arrays or lists."""
    graph, sequence_input = model.manifest.graph, model.input_signature.sequence_input
    rank = graph.inputs[task.text_input].rank
    arrays = batch_encodings(
        graph,
        task.text_input,
        batch.encodings,
        with_token_types=task.uses_token_types,
        generated_input=sequence_input,
    )
    if POOLING_MASK in graph.inputs:
        masks = [np.ones(len(row.ids), np.int64) for row in batch.encodings]
        for mask in masks:
            mask[: batch.prompt_length] = 0
        is_left_padded = model.input_signature.is_left_padded(task.text_input)
        arrays[POOLING_MASK] = pad_token_sequences(masks, 0, pad_left=is_left_padded)[0]
    if rank == 3:  # the batch is a single text with all of its choices
        return {name: array[None] for name, array in arrays.items()}
    return dict(arrays)


def _read_options(task: Task, inputs: Mapping[str, object]) -> dict[str, object]:
    """Return task options with defaults. Raise E0910 (unknown name) or E0753 (invalid value)."""
    input_names = [task_input.name for task_input in task.inputs]
    options = dict(task.options)
    for name, value in inputs.items():
        if name in input_names:
            continue
        if name not in options:
            known = [*input_names, *options]
            raise_error(
                "E0910",
                f"unknown input `{escape_text(name)}` of the task `{task.kind}`",
                helps=suggest_similar_name(name, known, f"expected one of {', '.join(known)}"),
            )
        choices = OPTION_CHOICES.get(name)
        if (choices and value not in choices) or type(value) is not type(options[name]):
            choice_text = ", ".join(filter(None, choices or ()))
            expected = choice_text or type(options[name]).__name__
            raise_error(
                "E0753",
                f"invalid value {escape_text(repr(value))[:60]} of `{name}`",
                helps=[f"expected {expected}"],
            )
        options[name] = value
    return options


def _check_required_inputs(task: Task, inputs: Mapping[str, object]) -> None:
    """Raise E0910 if a task input is missing."""
    required = (task_input.name for task_input in task.inputs if not task_input.is_optional)
    for name in required:
        if name not in inputs:
            raise_error(
                "E0910",
                f"missing input `{name}` of the task `{task.kind}`",
                notes=[f"inputs of the task: {', '.join(i.name for i in task.inputs)}"],
                helps=[f"pass {name}=…"],
            )


def _list_texts(name: str, value: object) -> list[str]:
    """Convert a string, list or dataset column to a list of strings, or raise E0906."""
    items = convert_input_value(value, name)
    values = [items] if isinstance(items, str) else items
    items_to_check = values if isinstance(values, list | tuple) and values else [value]
    texts = [item for item in items_to_check if isinstance(item, str)]
    if items_to_check is not values or len(texts) < len(items_to_check):
        invalid = next((item for item in items_to_check if not isinstance(item, str)), value)
        type_name = type(invalid).__name__ if invalid not in ([], ()) else "an empty list"
        raise_error(
            "E0906",
            f"`{name}` must be a string or a list of strings, got {type_name}",
            helps=[f'{name}="a text"', f'{name}=["one", "two"]'],
        )
    return texts


def _broadcast_texts(inputs: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Repeat single texts to the length of the longest list. Raise E0912 if lengths differ."""
    longest = max(map(len, inputs.values()))
    for name, texts in inputs.items():
        if len(texts) not in (1, longest):
            raise_error(
                "E0912",
                f"`{name}` has {len(texts)} texts, expected {longest}",
                notes=[f"{n}: {len(t)}" for n, t in inputs.items()],
                helps=["pass the same number of texts, or one text for all"],
            )
    return {n: t * longest if len(t) == 1 else t for n, t in inputs.items()}


def _split_pairs(inputs: Mapping[str, object]) -> dict[str, object]:
    """Split `text=[("a", "b"), …]` or records `{"text": …, "text_pair": …}` into two lists. As in
    the pipelines of transformers, an empty `text_pair` of a record or single text counts as missing
    and becomes None.
    """
    items, pair = inputs.get("text"), inputs.get("text_pair")
    if pair is None or (isinstance(items, str) and pair == ""):
        inputs = {n: v for n, v in inputs.items() if n != "text_pair"}
    items = [items] if isinstance(items, dict) else items
    if "text_pair" in inputs or not isinstance(items, list | tuple):
        return dict(inputs)
    pairs = [_read_pair(item) for item in items]
    if not pairs or any(pair is None for pair in pairs):
        return dict(inputs)
    first, second = zip(*filter(None, pairs), strict=True)
    return {"text": [*first], "text_pair": [*second]}


def _read_pair(item: object) -> tuple[object, object] | None:
    """Return both texts of a record or a pair, or None for any other value."""
    if isinstance(item, dict) and "text" in item and item.keys() <= {"text", "text_pair"}:
        return item["text"], item.get("text_pair") or None
    return (item[0], item[1]) if isinstance(item, list | tuple) and len(item) == 2 else None


def _list_second_texts(value: object) -> Sequence[str | None]:
    """Convert the second texts of pairs to a list, in which None stands for a missing text."""
    if not isinstance(value, list | tuple) or None not in value:
        return _list_texts("text_pair", value)
    listed = _list_texts("text_pair", [item or "" for item in value])
    return [None if item is None else text for item, text in zip(value, listed, strict=True)]


def _read_texts(
    task: Task, tokenizer: TextConfig, inputs: Mapping[str, object], options: Options
) -> _EncodedBatch:
    """Encode the texts or text pairs of a task."""
    task_inputs = _split_pairs(inputs)
    texts_by_name: dict[str, list[Any]] = {"text": _list_texts("text", task_inputs["text"])}
    if "text_pair" in task_inputs:
        texts_by_name["text_pair"] = [*_list_second_texts(task_inputs["text_pair"])]
    texts_by_name = _broadcast_texts(texts_by_name)
    texts, pairs = texts_by_name["text"], texts_by_name.get("text_pair")
    prompt = _read_prompt(task, options)
    encodings = [
        encode_text(prompt + text, pairs[i] if pairs else None, tokenizer)
        for i, text in enumerate(texts)
    ]
    truncated = [truncate_encoding(row, task.max_length, task.truncates_left) for row in encodings]
    truncated_count = sum(
        len(a.ids) < len(b.ids) for a, b in zip(truncated, encodings, strict=True)
    )
    prompt_length = 0
    if prompt:
        encoding = encode_text(prompt, None, tokenizer)
        # exclude the final special token from the prompt, as in sentence-transformers
        prompt_length = len(encoding.ids) - bool(
            encoding.special_tokens_mask and encoding.special_tokens_mask[-1]
        )
    return _EncodedBatch(
        truncated, [*range(len(encodings))], texts_by_name, truncated_count, prompt_length
    )


def _read_prompt(task: Task, options: Options) -> str:
    """Return the prompt prefix of all texts. Raise E0910 if the prompt name is unknown."""
    if options.get("prompt"):
        return str(options["prompt"])
    prompt_name = options.get("prompt_name") or task.prompt
    prompts = dict(task.prompts)
    if prompt_name and prompt_name not in prompts:
        known = ", ".join(prompts) or "none"
        helps = suggest_similar_name(str(prompt_name), prompts, f"expected one of {known}")
        raise_error("E0910", f"unknown prompt `{escape_text(prompt_name)}`", helps=helps)
    return prompts.get(prompt_name, "")


def _read_questions(
    task: Task, tokenizer: TextConfig, inputs: Mapping[str, object], options: Options
) -> _EncodedBatch:
    """Encode questions with their contexts. Long contexts are split into windows."""
    texts_by_name = _broadcast_texts(
        {name: _list_texts(name, value) for name, value in inputs.items()}
    )
    batch = _EncodedBatch([], [], texts_by_name)
    max_length = int(options["max_seq_len"])
    pairs = zip(texts_by_name["question"], texts_by_name["context"], strict=True)
    for number, (question, context) in enumerate(pairs):
        encoding = encode_text(question, context, tokenizer)
        windows = split_into_context_windows(encoding, max_length)
        batch.encodings += windows
        batch.text_indices += [number] * len(windows)
    return batch


def _read_choices(
    task: Task, tokenizer: TextConfig, inputs: Mapping[str, object], options: Options
) -> _EncodedBatch:
    """Encode a single text with each of its choices."""
    texts = _list_texts("text", inputs["text"])
    if len(texts) > 1:
        helps = ["pass one text at a time"]
        raise_error("E0912", "choices must be passed with a single text, got several", helps=helps)
    choices = _list_texts("choices", inputs["choices"])
    encodings = [encode_text(texts[0], choice, tokenizer) for choice in choices]
    return _EncodedBatch(encodings, [0] * len(encodings), {"text": texts, "choices": choices})


def _read_images(
    task: Task, tokenizer: TextConfig, inputs: Mapping[str, object], options: Options
) -> _EncodedBatch:
    """Insert the candidate labels into the hypothesis template, and encode the resulting texts."""
    labels = _list_texts("candidate_labels", inputs["candidate_labels"])
    template = str(options["hypothesis_template"])
    if "{}" not in template:
        helps = ['write `{}` where the label is inserted: "This is a photo of {}."']
        raise_error("E0753", "the hypothesis template does not contain `{}`", helps=helps)
    encodings = [encode_text(template.replace("{}", t), None, tokenizer) for t in labels]
    if task.padded_length:
        fill = task.pad_token_id or 0
        encodings = [row.pad_to_length(task.padded_length, fill) for row in encodings]
    return _EncodedBatch(encodings, [*range(len(encodings))], {"candidate_labels": labels})


BATCH_ENCODERS: Mapping[str, Callable[..., _EncodedBatch]] = {
    "question-answering": _read_questions,
    "multiple-choice": _read_choices,
    "zero-shot-image-classification": _read_images,
}
"""Functions that encode the inputs of a task, keyed by task. `_read_texts` encodes the inputs of
all other tasks.
"""
