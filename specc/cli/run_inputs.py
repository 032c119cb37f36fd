"""Parse the inputs on the command line of `specc run`, including the images of `--image`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import exists, splitext
from pathlib import Path

import numpy as np

from specc.cli.run_task_inputs import (
    ARRAY_FILE_SUFFIXES,
    AUDIO_READINGS,
    parse_json_values,
    print_unused_file_note,
    raise_extra_argument_error,
    raise_missing_file_error,
    read_text_lines,
    reject_text_file,
)
from specc.cli.terminal import STDIN_NAME
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.io.json_io import NO_LIMITS, parse_strict_json
from specc.io.safe_read import MAX_IMAGE_BYTES, MAX_TEXT_BYTES, escape_text, read_input_file
from specc.ir.array import Array
from specc.preprocessing.array_files import convert_lists_to_array, load_strict_json, read_arrays
from specc.preprocessing.audio import read_audio
from specc.preprocessing.image_prompts import (
    can_take_multiple_images,
    find_image_input,
    find_image_prompt_inputs,
    get_image_placeholder,
    prepare_images,
)
from specc.preprocessing.images import ImageSize, decode_image
from specc.preprocessing.preprocessing_records import (
    TEXT_CONFIGS,
    DetectionOutput,
    ImageConfig,
    WaveformConfig,
)
from specc.preprocessing.tasks import Task
from specc.preprocessing.text_batches_and_windows import batch_sequences
from specc.preprocessing.text_codec import encode_text_to_ids
from specc.runtime.generation_request import find_chat_tokenizer
from specc.runtime.model_inputs import ModelInputs


@dataclass(frozen=True)
class ParsedInputs:
    """Parsed inputs: an array per model input, the files read, and the size of each image."""

    inputs: Mapping[str, Array]
    files: tuple[str, ...] = ()
    sizes: tuple[ImageSize, ...] = ()


@dataclass
class _BatchElements:
    """The values of a model input, one per batch element: texts, token ids, waveforms, image
    paths.
    """

    elements: Sequence[Array | str | Path | list[Path]]


ArgumentValue = Array | _BatchElements
"""The value of one command-line argument: an array, or a list of batch elements."""


@dataclass
class _InputCollector:
    """A collector of command-line inputs: values by input name, files read, and image sizes."""

    model: ModelInputs
    values_by_input: dict[str, list["ArgumentValue"]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    sizes: list[ImageSize] = field(default_factory=list)

    def add_argument(self, name: str, argument: str) -> None:
        """Assign an argument to a model input. A file may contain arrays of several inputs."""
        record = self.model.preprocessing.get_input_config(name)
        if argument.startswith("@") and not isinstance(record, TEXT_CONFIGS):
            reject_text_file(name, argument)
        # an argument with the suffix of an array file is a file name, even if the file does not
        # exist
        if argument.lower().endswith(ARRAY_FILE_SUFFIXES):
            return self._read_arrays(name, argument)
        if isinstance(record, TEXT_CONFIGS):
            return self._add_value(name, self._read_text(argument))
        if isinstance(record, ImageConfig):
            return self._add_value(name, self._collect_images(name, argument, record))
        if isinstance(record, AUDIO_READINGS):
            self.files.append(argument)
            audio = read_audio(argument, record)
            # waveforms of a batch may differ in length
            is_waveform = isinstance(record, WaveformConfig)
            return self._add_value(name, _BatchElements([audio]) if is_waveform else audio[None])
        # without a tokenizer, the value consists of token ids or other numbers
        numbers = _read_numbers(argument, name, self.model)
        if numbers is None:
            return self._read_arrays(name, argument)
        return self._add_value(name, numbers)

    def _add_value(self, name: str, value: "ArgumentValue") -> None:
        self.values_by_input.setdefault(name, []).append(value)

    def _read_arrays(self, name: str, argument: str) -> None:
        """Assign each named array of a file to the input of the same name, and an unnamed array to
        `name`.
        """
        self.files.append(argument)
        try:
            arrays = dict(_read_values(argument))
        except SpeccError as failed:
            record = self.model.preprocessing.get_input_config(name)
            if failed.diagnostics[0].code != "E0802" or not isinstance(record, TEXT_CONFIGS):
                raise
            raise_missing_file_error(argument)
        has_value = name in arrays
        # file keys that are names of inputs take precedence over `name`
        for key in [k for k in arrays if k in self.model.graph.inputs]:
            self._add_value(key, self._parse_file_value(key, arrays.pop(key), argument))
        if len(arrays) + has_value > 1:
            helps = [f"the inputs of the model are {', '.join(self.model.graph.inputs)}"]
            raise_error(
                "E0910",
                f"`{escape_text(argument)}` contains arrays that are not inputs of the model: "
                f"{escape_text(', '.join(arrays))}",
                helps=helps,
            )
        for value in arrays.values():
            self._add_value(name, self._parse_file_value(name, value, argument))

    def _parse_file_value(self, name: str, value: object, argument: str) -> "ArgumentValue":
        """Convert a value from a file to an array, or to lists of token ids for a text input."""
        record = self.model.preprocessing.get_input_config(name)
        if isinstance(record, TEXT_CONFIGS) and isinstance(value, list):
            return _BatchElements(_parse_sequences(value, escape_text(argument)))
        array = value
        if not isinstance(array, np.ndarray):
            pad_left = self.model.is_left_padded(name)
            array = convert_lists_to_array(
                value, f"the JSON text in {escape_text(argument)}", pad_left=pad_left
            )
        # token ids are batch elements, which are padded to a common length, but any other array is
        # a complete batch
        is_token_ids = array.dtype.kind in "iu" and array.ndim in (1, 2)
        if not isinstance(record, TEXT_CONFIGS) or not is_token_ids:
            return array
        return _BatchElements([array] if array.ndim == 1 else list(array))

    def _read_text(self, argument: str) -> _BatchElements:
        """Parse a text argument: `-`, `@file` (one text per line), a JSON list, or plain text."""
        if argument == STDIN_NAME or argument.startswith("@"):
            return _BatchElements(self._read_lines(argument))
        items = parse_json_values(argument, ("[",))
        if items is None:
            print_unused_file_note(argument)
            return _BatchElements([argument])
        return _BatchElements(_parse_sequences(items, escape_text(argument)[:60]))

    def _collect_images(self, name: str, argument: str, config: ImageConfig) -> _BatchElements:
        """Return the path of one image, or the paths in a JSON list of images for one prompt."""
        is_multi_image = can_take_multiple_images(self.model.graph, name, config)
        items = parse_json_values(argument, ("[",)) if is_multi_image else None
        paths = [argument] if items is None else _check_image_paths(items, name, argument)
        self.files += paths
        output_formats = dict(self.model.preprocessing.outputs).values()
        if any(isinstance(format, DetectionOutput) for format in output_formats):
            images = [decode_image(read_input_file(path, MAX_IMAGE_BYTES), path) for path in paths]
            self.sizes += [(pixels.shape[0], pixels.shape[1]) for pixels in images]
        image_paths = [*map(Path, paths)]
        return _BatchElements(image_paths if items is None else [image_paths])

    def _read_lines(self, argument: str) -> list[str]:
        if argument == STDIN_NAME and STDIN_NAME in self.files:
            raise_error("E0910", "`-` (stdin) can be passed to one input only")
        lines = read_text_lines(argument)
        self.files.append(argument.removeprefix("@"))
        return lines


def _check_image_paths(values: Sequence[object], name: str, argument: str) -> list[str]:
    """Return the image paths in a JSON list. Raise E0906 unless the list contains only paths."""
    paths = [path for path in values if isinstance(path, str)]
    if not paths or len(paths) < len(values):
        raise_error(
            "E0906",
            f"`{escape_text(argument)[:60]}` is not a list of image paths",
            helps=[f'write {name}=\'["a.png", "b.png"]\' for two images of one prompt'],
        )
    return paths


def parse_input_arguments(model: ModelInputs, arguments: Sequence[str]) -> ParsedInputs:
    """Parse `NAME=VALUE` and positional arguments. Several values of an input form a batch."""
    names = [s.name for s in model.input_specs]
    collector = _InputCollector(model)
    has_text = any(
        isinstance(model.preprocessing.get_input_config(name), TEXT_CONFIGS) for name in names
    )
    named_arguments = [_split_name(argument, names, has_text) for argument in arguments]
    assigned_names = {name for name, _ in named_arguments}
    missing = [name for name in model.required_inputs if name not in assigned_names]
    # if a single input has no value, all positional texts form its batch
    batch_input = missing[0] if len(missing) == 1 else ""
    remaining = iter(missing)
    for name, argument in named_arguments:
        target = name or next(remaining, batch_input)
        if not target or not (name or _fits_input(model, target, argument)):
            raise_extra_argument_error(argument, model.required_inputs, is_batch=len(missing) > 1)
        collector.add_argument(target, argument)
    return ParsedInputs(
        _batch_inputs(model, collector.values_by_input),
        tuple(collector.files),
        tuple(collector.sizes),
    )


def _fits_input(model: ModelInputs, target: str, argument: str) -> bool:
    """Return True if a positional argument can be the value of an input. Text is not assigned to a
    generated input without a tokenizer if an earlier input accepts text.
    """
    if target != model.sequence_input or isinstance(
        model.preprocessing.get_input_config(target), TEXT_CONFIGS
    ):
        return True
    earlier_inputs = model.required_inputs[: model.required_inputs.index(target)]
    configs = [*map(model.preprocessing.get_input_config, earlier_inputs)]
    has_text_input = any(isinstance(config, TEXT_CONFIGS) for config in configs)
    is_file = argument.lower().endswith(ARRAY_FILE_SUFFIXES) or exists(argument)
    return not has_text_input or is_file or argument.startswith("[")


def _batch_inputs(
    model: ModelInputs, values_by_input: Mapping[str, Sequence[ArgumentValue]]
) -> dict[str, Array]:
    """Return one array per input. A mask passed by the user replaces the computed mask."""
    elements = {name: _list_elements(values) for name, values in values_by_input.items()}
    prepared = prepare_images(model.graph, model.preprocessing, elements)
    arrays = {n: value for n, value in prepared.items() if isinstance(value, np.ndarray)}
    for name in [name for name in values_by_input if name not in arrays]:
        input_arrays = [
            value for value in values_by_input[name] if not isinstance(value, _BatchElements)
        ]
        input_elements = prepared[name]
        assert isinstance(input_elements, list)
        for key, array in _batch_values(model, name, input_arrays, input_elements).items():
            if key == name or key not in arrays:
                arrays[key] = array
    return arrays


def _list_elements(values: Sequence[ArgumentValue]) -> list[object]:
    """Return the batch elements in those `values` that are not arrays. If an input contains both
    images and lists of images, each single image becomes a list of one image.
    """
    elements = [x for value in values if isinstance(value, _BatchElements) for x in value.elements]
    if not any(isinstance(x, list) for x in elements):
        return [*elements]
    return [[x] if isinstance(x, Path) else x for x in elements]


def _split_name(argument: str, names: Sequence[str], has_text: bool) -> tuple[str, str]:
    """Split `name=value` into name and value. Raise E0910 if an input name is misspelled, or if it
    is unknown and the model has no text inputs.
    """
    name, equals, value = argument.partition("=")
    if equals and name in names:
        return name, value
    # text may contain `=`, so report an error for text only if the name is similar to an input name
    looks_like_name = equals and name.isidentifier() and len(name) < 100
    suggestion = find_similar_name(name, names) if looks_like_name else None
    if (suggestion or (looks_like_name and not has_text)) and not exists(argument):
        list_help = f"the inputs of the model are {', '.join(names)}"
        helps = [format_suggestion(suggestion) if suggestion else list_help]
        if has_text:
            helps.append("if this is text, write it to a file and pass @FILE")
        raise_error("E0910", f"the model has no input `{escape_text(name)}`", helps=helps)
    return "", argument


def _batch_values(
    model: ModelInputs, name: str, arrays: Sequence[Array], elements: Sequence[object]
) -> dict[str, Array]:
    """Concatenate `arrays` along the batch axis. If there are no arrays, tokenize the texts in
    `elements`, pad all elements to the same length, and compute the padding mask. Raise E0912 if
    the shapes differ.
    """
    if not arrays:
        record = model.preprocessing.get_input_config(name)
        sequences = [
            encode_text_to_ids(element, record)
            if isinstance(element, str) and isinstance(record, TEXT_CONFIGS)
            else np.asarray(element)
            for element in elements
        ]
        if len(sequences) == 1:
            return {name: sequences[0][None]}
        return batch_sequences(model.graph, name, sequences, generated_input=model.sequence_input)
    shapes = sorted({a.shape[1:] for a in arrays})
    if elements or (len(arrays) > 1 and (len(shapes) > 1 or not all(a.ndim for a in arrays))):
        # arrays are mixed with text, differ in shape, or lack a batch axis
        shape_texts = " and ".join(str(list(shape)) for shape in shapes[:4])
        raise_error(
            "E0912",
            f"the values of `{name}` have different shapes and cannot be batched",
            notes=[f"shapes after the batch axis: {shape_texts}"],
        )
    return {name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays)}


def _parse_sequences(values: Sequence[object], description: str) -> Sequence[Array | str]:
    """Return texts unchanged, or convert one or several lists of token ids to arrays."""
    texts = [item for item in values if isinstance(item, str)]
    if values and len(texts) == len(values):
        return texts
    if values and all(isinstance(item, list) for item in values):
        return [convert_lists_to_array(item, f"the list {description}") for item in values]
    return [convert_lists_to_array(values, f"the list {description}")]


def _read_values(path: str) -> Mapping[str, object]:
    """Return the arrays or JSON values in a file, by name. An unnamed value has the name ""."""
    if not path.lower().endswith(".json"):
        return dict(read_arrays(path))
    value = load_strict_json(read_input_file(path, MAX_TEXT_BYTES), path)
    return value if isinstance(value, dict) else {"": value}


def _read_numbers(argument: str, name: str, model: ModelInputs) -> Array | None:
    """Parse a JSON number or a JSON list of numbers. Return None if the argument is a file name.
    Raise E0906 if the argument is neither numbers nor a file name.
    """
    try:
        value = parse_strict_json(argument, NO_LIMITS)
        if isinstance(value, list | int | float):
            pad_left = model.is_left_padded(name)
            return convert_lists_to_array(value, f"the JSON text in {name}", pad_left=pad_left)
    except ValueError:
        pass
    # an argument with a file suffix or an existing path is a file name
    if not argument.startswith("[") and (splitext(argument)[1] or exists(argument)):
        return None
    text_helps = model.suggest_tokenizer(name)
    raise_error(
        "E0906",
        f"the input `{name}` expects numbers, but `{escape_text(argument)[:60]}` is neither a "
        "file nor a list of numbers",
        notes=[f"the model was compiled without a tokenizer for `{name}`"] if text_helps else [],
        helps=[
            'pass numbers, "[[1, 2, 3]]", or an array in a file (.npy, .npz, .json)',
            *text_helps,
        ],
    )


def add_image_arguments(task: Task, images: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return a task's arguments, with the images of `--image` added as named arguments."""
    has_image = any(task_input.name == "image" for task_input in task.inputs)
    return [*(f"image={path}" for path in images if has_image), *arguments]


def add_prompt_images(
    model: ModelInputs, images: Sequence[str], arguments: Sequence[str], chat: str | None
) -> tuple[list[str], str | None]:
    """Return the input arguments, including the images of `--image` by name, and the chat message.
    If the model has a chat template, a prompt without image placeholders becomes the chat message.
    If the model has no chat template, image placeholders are inserted before the prompt. Raise
    E0910 if the model has no image input.
    """
    if not images or chat is not None:
        return [*arguments], chat
    image_input = find_image_input(model.graph, model.preprocessing)
    image_arguments = [f"{image_input}={path}" for path in images]
    prompts = find_image_prompt_inputs(model.graph, model.preprocessing)
    if not prompts or len(arguments) != 1 or not _is_text_argument(arguments[0]):
        return [*image_arguments, *arguments], None
    (text_input, record), (argument,) = prompts[0], arguments
    text = argument.removeprefix(f"{text_input}=")
    placeholder = get_image_placeholder(record)
    if placeholder in text:
        return [*image_arguments, *arguments], None
    if find_chat_tokenizer(model):
        return [], text
    return [*image_arguments, f"{text_input}={placeholder * len(images)}{text}"], None


def _is_text_argument(argument: str) -> bool:
    """Return True if an argument is text, i.e. neither a file nor a list."""
    is_file = argument.startswith("@") or argument.lower().endswith(ARRAY_FILE_SUFFIXES)
    return argument != STDIN_NAME and not is_file and not argument.startswith("[")
