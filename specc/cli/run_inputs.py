"""Parse the inputs on the command line of `specc run`, including the images of `--image`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import exists, splitext
from pathlib import Path
from typing import NoReturn

import numpy as np

from specc.cli.run_task_inputs import (
    ARRAY_FILE_SUFFIXES,
    AUDIO_READINGS,
    parse_json_values,
    raise_missing_file,
    raise_too_many_arguments,
    read_lines,
)
from specc.cli.terminal import STDIN_NAME
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.io.json_io import NO_LIMITS, parse_strict_json
from specc.io.safe_read import MAX_IMAGE_BYTES, MAX_TEXT_BYTES, escape_text, read_bytes
from specc.ir.array import Array
from specc.preprocessing.array_files import convert_nested_lists, load_strict_json, read_arrays
from specc.preprocessing.audio import read_audio
from specc.preprocessing.image_prompts import (
    find_image_input,
    find_placeholder,
    find_prompt_inputs,
    has_several_images,
    prepare_images,
)
from specc.preprocessing.images import ImageSize, decode_image
from specc.preprocessing.preprocessing_records import (
    TEXT_CONFIGS,
    DetectionOutput,
    ImageConfig,
    Waveform,
)
from specc.preprocessing.task_kinds import Task
from specc.preprocessing.text_batches import batch_sequences
from specc.preprocessing.text_codec import encode_text_ids
from specc.runtime.generation_request import has_chat_template
from specc.runtime.model_inputs import ModelInputs


@dataclass(frozen=True)
class ParsedInputs:
    """The array of each input, the files that were read, and the height and width of each image."""

    inputs: Mapping[str, Array]
    files: tuple[str, ...] = ()
    sizes: tuple[ImageSize, ...] = ()


@dataclass
class _BatchElements:
    """Values of an input, one per batch element: texts, token ids, waveforms, or image paths."""

    rows: Sequence[Array | str | Path | list[Path]]


Piece = Array | _BatchElements
"""The value of one command-line argument: an array, or one value per batch element."""


@dataclass
class _InputCollector:
    """Collects the command-line inputs: the values of each input, the files read, and the height
    and width of each image.
    """

    model: ModelInputs
    pieces: dict[str, list["Piece"]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    sizes: list[ImageSize] = field(default_factory=list)

    def add_argument(self, name: str, word: str) -> None:
        """Assign an argument to an input; a file of named arrays may contain several inputs."""
        record = self.model.preprocessing.get_input_config(name)
        # only the suffix decides, whether or not the file exists
        if word.lower().endswith(ARRAY_FILE_SUFFIXES):
            return self._read_arrays(name, word)
        if isinstance(record, TEXT_CONFIGS):
            return self._add_value(name, self._read_text(word))
        if isinstance(record, ImageConfig):
            return self._add_value(name, self._collect_images(name, word, record))
        if isinstance(record, AUDIO_READINGS):
            self.files.append(word)
            audio = read_audio(word, record)
            # waveforms of a batch may differ in length
            is_waveform = isinstance(record, Waveform)
            return self._add_value(name, _BatchElements([audio]) if is_waveform else audio[None])
        input_type = self.model.graph.inputs[name].type
        # token ids: text input requires a `reading` section in the spec
        ids = input_type.dtype == "i64" and len(input_type.shape) == 2
        text_hint = READ_AS_TEXT.format(name) if ids else ""
        left = self.model.is_left_padded(name)
        numbers = _read_numbers(word, name, text_hint, pad_left=left)
        if numbers is None:
            return self._read_arrays(name, word)
        return self._add_value(name, numbers)

    def _add_value(self, name: str, piece: "Piece") -> None:
        self.pieces.setdefault(name, []).append(piece)

    def _read_arrays(self, name: str, word: str) -> None:
        """Assign each named array of a file to the input of the same name, and an unnamed array to
        `name`.
        """
        self.files.append(word)
        try:
            arrays_found = dict(_read_values(word))
        except Failed as failed:
            if failed.diagnostics[0].code != "E0802" or not isinstance(
                self.model.preprocessing.get_input_config(name), TEXT_CONFIGS
            ):
                raise
            raise_missing_file(word)
        # keys that are names of inputs take precedence over `name`
        for key in [k for k in arrays_found if k in self.model.graph.inputs]:
            self._add_value(key, self._read_piece(key, arrays_found.pop(key), word))
        if len(arrays_found) > 1:
            helps = [f"the inputs of the model are {', '.join(self.model.graph.inputs)}"]
            raise_error(
                "E0910",
                f"`{escape_text(word)}` contains arrays that are not inputs of the model: "
                f"{escape_text(', '.join(arrays_found))}",
                helps=helps,
            )
        for value in arrays_found.values():
            self._add_value(name, self._read_piece(name, value, word))

    def _read_piece(self, name: str, value: object, word: str) -> "Piece":
        """Convert a value from a file to an array or, for a text input, to lists of token ids."""
        record = self.model.preprocessing.get_input_config(name)
        if isinstance(record, TEXT_CONFIGS) and isinstance(value, list):
            return _BatchElements(_parse_sequences(value, escape_text(word)))
        array = value
        if not isinstance(array, np.ndarray):
            pad_left = self.model.is_left_padded(name)
            array = convert_nested_lists(
                value, f"the JSON text in {escape_text(word)}", pad_left=pad_left
            )
        # token ids are one sequence of a batch, padded to a common length; any other array is a
        # batch
        of_ids = array.dtype.kind in "iu" and array.ndim in (1, 2)
        if not isinstance(record, TEXT_CONFIGS) or not of_ids:
            return array
        return _BatchElements([array] if array.ndim == 1 else list(array))

    def _read_text(self, word: str) -> _BatchElements:
        """Parse `-`, `@file` (one text per line), a JSON list of ids or of texts, or the text
        itself.
        """
        if word == STDIN_NAME or word.startswith("@"):
            return _BatchElements(self._read_lines(word))
        listed = parse_json_values(word, ("[",))
        if listed is None:
            return _BatchElements([word])
        return _BatchElements(_parse_sequences(listed, escape_text(word)[:60]))

    def _collect_images(self, name: str, word: str, record: ImageConfig) -> _BatchElements:
        """Return the path of one image, or the paths in a JSON list of images of one prompt."""
        several = has_several_images(self.model.graph, name, record)
        listed = parse_json_values(word, ("[",)) if several else None
        paths = [word] if listed is None else _check_image_paths(listed, name, word)
        self.files += paths
        if any(isinstance(shown, DetectionOutput) for _, shown in self.model.preprocessing.outputs):
            decoded = [decode_image(read_bytes(path, MAX_IMAGE_BYTES), path) for path in paths]
            self.sizes += [(pixels.shape[0], pixels.shape[1]) for pixels in decoded]
        images = [*map(Path, paths)]
        return _BatchElements(images if listed is None else [images])

    def _read_lines(self, word: str) -> list[str]:
        if word == STDIN_NAME and STDIN_NAME in self.files:
            raise_error("E0910", "`-` (stdin) can be passed to one input only")
        arrays_found = read_lines(word)
        self.files.append(word.removeprefix("@"))
        return arrays_found


def _check_image_paths(values: Sequence[object], name: str, word: str) -> list[str]:
    """Return the image paths in a JSON list. Raise E0906 if the list is empty or contains values
    other than strings.
    """
    paths = [path for path in values if isinstance(path, str)]
    if not paths or len(paths) < len(values):
        raise_error(
            "E0906",
            f"`{escape_text(word)[:60]}` is not a list of image paths",
            helps=[f'write {name}=\'["a.png", "b.png"]\' for two images of one prompt'],
        )
    return paths


def parse_input_arguments(model: ModelInputs, arguments: Sequence[str]) -> ParsedInputs:
    """Parse `NAME=VALUE` arguments, and values in the order of the inputs. Several values for the
    same input form a batch.
    """
    names = [s.name for s in model.input_specs]
    collector = _InputCollector(model)
    named = [_split_name(word, names) for word in arguments]
    named_inputs = {name for name, _ in named}
    missing = [name for name in model.required_inputs if name not in named_inputs]
    # several positional texts form a batch if only one input is missing
    batch = missing[0] if len(missing) == 1 else ""
    remaining = iter(missing)
    for name, word in named:
        target = name or next(remaining, batch)
        if not target or not (name or _fits_input(model, target, word)):
            raise_too_many_arguments(word, model.required_inputs, is_batch=len(missing) > 1)
        collector.add_argument(target, word)
    return ParsedInputs(
        _batch_inputs(model, collector.pieces), tuple(collector.files), tuple(collector.sizes)
    )


def _fits_input(model: ModelInputs, target: str, word: str) -> bool:
    """Return True if a positional argument can be the value of an input. Text is not assigned to
    the generated input if this input has no tokenizer and an earlier input takes text.
    """
    if target != model.sequence_input or isinstance(
        model.preprocessing.get_input_config(target), TEXT_CONFIGS
    ):
        return True
    before = model.required_inputs[: model.required_inputs.index(target)]
    texts = any(
        isinstance(model.preprocessing.get_input_config(name), TEXT_CONFIGS) for name in before
    )
    file = word.lower().endswith(ARRAY_FILE_SUFFIXES) or exists(word)
    return not texts or file or word.startswith("[")


def _batch_inputs(model: ModelInputs, pieces: Mapping[str, Sequence[Piece]]) -> dict[str, Array]:
    """Return one array per input. A mask that the user passes replaces the computed padding
    mask.
    """
    rows = {name: _list_rows(parts) for name, parts in pieces.items()}
    prepared = prepare_images(model.graph, model.preprocessing, rows)
    arrays_found = {n: value for n, value in prepared.items() if isinstance(value, np.ndarray)}
    for name in [name for name in pieces if name not in arrays_found]:
        arrays = [piece for piece in pieces[name] if not isinstance(piece, _BatchElements)]
        texts = prepared[name]
        assert isinstance(texts, list)
        for key, array in _batch_values(model, name, arrays, texts).items():
            if key == name or key not in arrays_found:
                arrays_found[key] = array
    return arrays_found


def _list_rows(pieces: Sequence[Piece]) -> list[object]:
    """Return the batch elements of all `pieces` that are not arrays. If some elements are lists of
    images, a single image becomes a list of one image.
    """
    rows = [row for piece in pieces if isinstance(piece, _BatchElements) for row in piece.rows]
    if not any(isinstance(row, list) for row in rows):
        return [*rows]
    return [[row] if isinstance(row, Path) else row for row in rows]


def _split_name(word: str, names: Sequence[str]) -> tuple[str, str]:
    """Split `name=value`. Raise E0910 if an input name is misspelled."""
    name, equals, rest = word.partition("=")
    if equals and name in names:
        return name, rest
    # text may contain `=`: report an error only if the name is similar to an input name
    looks_like_name = equals and name.isidentifier() and len(name) < 100
    suggestion = find_similar_name(name, names) if looks_like_name else None
    if suggestion and not exists(word):
        helps = [
            format_suggestion(suggestion),
            "if this is text, write it to a file and pass @FILE",
        ]
        raise_error("E0910", f"the model has no input `{escape_text(name)}`", helps=helps)
    return "", word


def _batch_values(
    model: ModelInputs, name: str, arrays: Sequence[Array], rows: Sequence[object]
) -> dict[str, Array]:
    """Concatenate `arrays` along the batch axis, or encode and pad the texts and other batch
    elements in `rows`. Add a padding mask if there is padding. Raise E0912 if their shapes differ.
    """
    if not arrays:
        record = model.preprocessing.get_input_config(name)
        encoded = [
            encode_text_ids(row, record)
            if isinstance(row, str) and isinstance(record, TEXT_CONFIGS)
            else np.asarray(row)
            for row in rows
        ]
        if len(encoded) == 1:
            return {name: encoded[0][None]}
        return batch_sequences(model.graph, name, encoded, generated_input=model.sequence_input)
    shapes = sorted({a.shape[1:] for a in arrays})
    if rows or (len(arrays) > 1 and (len(shapes) > 1 or not all(a.ndim for a in arrays))):
        _raise_unbatchable(name, shapes)
    return {name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays)}


def _raise_unbatchable(name: str, shapes: Sequence[tuple[int, ...]]) -> NoReturn:
    """Raise E0912 because the values of an input cannot be batched: arrays are mixed with text,
    differ in shape, or have no batch axis.
    """
    shown_shapes = " and ".join(str(list(shape)) for shape in shapes[:4])
    raise_error(
        "E0912",
        f"the values of `{name}` have different shapes and cannot be batched",
        notes=[f"shapes after the batch axis: {shown_shapes}"],
    )


def _parse_sequences(values: Sequence[object], description: str) -> Sequence[Array | str]:
    """Convert a list of texts, a list of token id lists, or one list of token ids to batch
    elements; token ids become arrays.
    """
    texts = [item for item in values if isinstance(item, str)]
    if values and len(texts) == len(values):
        return texts
    if values and all(isinstance(item, list) for item in values):
        return [convert_nested_lists(item, f"the list {description}") for item in values]
    return [convert_nested_lists(values, f"the list {description}")]


def _read_values(path: str) -> Mapping[str, object]:
    """Return the arrays or JSON values in a file by name. The name of a single unnamed value is
    "".
    """
    if not path.lower().endswith(".json"):
        return dict(read_arrays(path))
    value = load_strict_json(read_bytes(path, MAX_TEXT_BYTES), path)
    return value if isinstance(value, dict) else {"": value}


READ_AS_TEXT = "or declare in the spec how text is tokenized: `reading {{ {} = text(bytes()) }}`"


def _read_numbers(word: str, name: str, text_hint: str, *, pad_left: bool = False) -> Array | None:
    """Parse a JSON number or a JSON list of numbers; return None if the argument is a file name.
    Raise E0906 if it is neither, with `text_hint` as additional help.
    """
    try:
        arrays_found = parse_strict_json(word, NO_LIMITS)
        if isinstance(arrays_found, list | int | float):
            return convert_nested_lists(arrays_found, f"the JSON text in {name}", pad_left=pad_left)
    except ValueError:
        pass
    # an argument with a suffix or an existing path is a file
    if not word.startswith("[") and (splitext(word)[1] or exists(word)):
        return None
    raise_error(
        "E0906",
        f"the input `{name}` expects numbers, but `{escape_text(word)[:60]}` is neither a "
        "file nor a list of numbers",
        notes=[f"the spec does not declare `{name}` as text"],
        helps=[
            'pass numbers, "[[1, 2, 3]]", or an array in a file (.npy, .npz, .json)',
            *([text_hint] if text_hint else []),
        ],
    )


def add_task_images(task: Task, images: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a task, with the images of `--image` added by name."""
    named = [f"image={path}" for path in images if any(s.name == "image" for s in task.slots)]
    return [*named, *arguments]


def add_prompt_images(
    model: ModelInputs, images: Sequence[str], arguments: Sequence[str], chat: str | None
) -> tuple[list[str], str | None]:
    """Return the arguments of a run, with the images of `--image` added by name, and the user
    message. If a prompt has no image placeholders, it becomes a user message if the model has a
    chat template; otherwise the placeholders are inserted before it. Raise E0910 if the model has
    no image input.
    """
    if not images or chat is not None:
        return [*arguments], chat
    image_input = find_image_input(model.graph, model.preprocessing)
    named = [f"{image_input}={path}" for path in images]
    prompts = find_prompt_inputs(model.graph, model.preprocessing)
    if not prompts or len(arguments) != 1 or not _is_text_argument(arguments[0]):
        return [*named, *arguments], None
    (text_input, record), (argument,) = prompts[0], arguments
    text = argument.removeprefix(f"{text_input}=")
    placeholder = find_placeholder(record)
    if placeholder in text:
        return [*named, *arguments], None
    if has_chat_template(model):
        return [], text
    return [*named, f"{text_input}={placeholder * len(images)}{text}"], None


def _is_text_argument(word: str) -> bool:
    """Return True if an argument is text, rather than a file or a list."""
    is_file = word.startswith("@") or word.lower().endswith(ARRAY_FILE_SUFFIXES)
    return word != STDIN_NAME and not is_file and not word.startswith("[")
