"""Parse the command-line inputs of a model with a task, and report misplaced arguments."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from os.path import exists, isfile
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from specc.cli.terminal import STDIN_NAME, print_note, read_standard_input
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.io.json_io import NO_LIMITS, parse_strict_json
from specc.io.safe_read import MAX_TEXT_BYTES, escape_text, quote_argument, read_input_file
from specc.preprocessing.array_files import load_strict_json
from specc.preprocessing.preprocessing_records import (
    TEXT_CONFIGS,
    FilterBankConfig,
    ImageConfig,
    LogMelConfig,
    WaveformConfig,
)
from specc.preprocessing.tasks import Task, TaskInput
from specc.runtime.model_inputs import ModelInputs

AUDIO_READINGS = (WaveformConfig, LogMelConfig, FilterBankConfig)
ARRAY_FILE_SUFFIXES = (".json", ".npy", ".npz")
"""File name suffixes of array files."""


def raise_extra_argument_error(
    argument: str, input_names: Sequence[str], *, is_batch: bool
) -> NoReturn:
    """Raise E0910 for a positional argument that matches no model input."""
    helps = [f"the inputs of the model are {', '.join(input_names)}"]
    if is_batch:
        helps.append(
            f"to pass a batch, name the input each time: {input_names[0]}=… {input_names[0]}=…"
        )
    raise_error("E0910", f"unexpected extra argument `{escape_text(argument)[:200]}`", helps=helps)


def reject_text_file(name: str, argument: str) -> None:
    """Raise E0906 for `@file` as the value of an input that is not text, unless the file exists."""
    if not exists(argument):
        raise_error(
            "E0906",
            f"`{escape_text(argument)}` passes the lines of a text file, but the input `{name}` "
            "is not text",
            helps=[f"write `{escape_text(argument[1:]) or 'FILE'}` to pass the file itself"],
        )


def raise_missing_file_error(argument: str) -> NoReturn:
    """Raise E0802 for an unreadable file. The help explains how to pass text that starts with
    `@`.
    """
    path = argument.removeprefix("@")
    argument_kind = (
        "an argument that starts with `@`"
        if argument.startswith("@")
        else f"an argument that ends in {', '.join(ARRAY_FILE_SUFFIXES)}"
    )
    raise_error(
        "E0802",
        f"cannot read `{escape_text(path)}`: file not found, or not readable",
        notes=[f"{argument_kind} is a file name"],
        helps=[
            "check the path, which is relative to the working directory",
            f"to pass the argument as text, use stdin: echo '{escape_text(argument)}' | specc run "
            "MODEL -",
        ],
    )


def print_unused_file_note(argument: str) -> None:
    """Print a note if a text argument is a file path, because the file is not read."""
    if isfile(argument):
        path = escape_text(argument)
        print_note(f"`{path}` is the text itself; to read the lines of the file, write `@{path}`")


MAX_TEXT = 2**20
"""Maximum size in bytes of a text file or stdin."""


def read_text_lines(argument: str) -> list[str]:
    """Return the lines of stdin or `@FILE`. Raise E0802 on failure, E0112 for invalid UTF-8."""
    if argument == STDIN_NAME:
        data = read_standard_input(MAX_TEXT)
    else:
        try:
            data = read_input_file(argument[1:], MAX_TEXT)
        except SpeccError as failed:
            if failed.diagnostics[0].code != "E0802":
                raise
            raise_missing_file_error(argument)
    name = "stdin" if argument == STDIN_NAME else f"`{escape_text(argument[1:])}`"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise_error("E0112", f"{name} is not UTF-8 text")
    # a newline at the end of a file ends the last line and does not start a new one
    return [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]


NUMPY_SUFFIXES = (".npy", ".npz")
Value: TypeAlias = Any
"""A value of a task input: a string, a path, or any JSON value."""
ValuesByInput: TypeAlias = dict[str, list[Value]]
PAIR_LENGTH = 2


def has_array_arguments(task: Task, arguments: Sequence[str], input_names: Sequence[str]) -> bool:
    """Return True if an argument supplies a graph input's array directly, without tokenization."""
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if (equals and name in input_names) or argument.lower().endswith(NUMPY_SUFFIXES):
            return True
        if _is_number_list(parse_json_values(argument)):
            return True
    return not arguments


def read_task_inputs(task: Task, arguments: Sequence[str]) -> tuple[ValuesByInput, list[Path]]:
    """Parse the arguments of a task: `NAME=VALUE`, or values in the order of the task inputs. The
    last input gets all remaining values. Return the values by input, and the files that were read.
    Raise E0910 if there are too many arguments.
    """
    files: list[Path] = []
    values: ValuesByInput = {}
    inputs = {task_input.name: task_input for task_input in task.inputs}
    named_arguments = [_split_named_inputs(argument, inputs) for argument in arguments]
    remaining = [i for i in task.inputs if i.name not in {n for n, _ in named_arguments}]
    for name, argument in named_arguments:
        task_input = inputs[name] if name else _find_next_input(remaining, values)
        if task_input is None:
            raise_extra_argument_error(argument, [*inputs], is_batch=True)
        argument_values = [*_iterate_values(task_input, argument, files)]
        records = [dict(_assign_value(task_input, value, inputs)) for value in argument_values]
        if any(isinstance(value, dict | list) for value in argument_values):
            records = [_fill_optional_inputs(record, task) for record in records]
        for key, item in chain.from_iterable(record.items() for record in records):
            values.setdefault(key, []).append(item)
    return values, files


def _fill_optional_inputs(record: Mapping[str, Value], task: Task) -> dict[str, Value]:
    """Add None for each optional value that a record lacks, to keep all value lists aligned."""
    return {**dict.fromkeys(i.name for i in task.inputs if i.is_optional), **record}


def _split_named_inputs(argument: str, inputs: Mapping[str, TaskInput]) -> tuple[str, str]:
    """Split `NAME=VALUE` if NAME is a task input, otherwise return "" and the argument."""
    name, equals, value = argument.partition("=")
    return (name, value) if equals and name in inputs else ("", argument)


def _find_next_input(remaining: Sequence[TaskInput], values: ValuesByInput) -> TaskInput | None:
    """Return the first required task input that accepts another value, or None if there is none."""
    for task_input in remaining:
        is_free = task_input.is_variadic or task_input.name not in values
        if is_free and not task_input.is_optional:
            return task_input
    return None


def _iterate_values(task_input: TaskInput, argument: str, files: list[Path]) -> Iterator[Value]:
    """Yield the values of an argument: one path, or several lines, JSON items or texts."""
    if task_input.name == "image":
        files.append(Path(argument))
        yield Path(argument)
    elif argument == STDIN_NAME or argument.startswith("@"):
        if argument != STDIN_NAME:
            files.append(Path(argument[1:]))
        yield from read_text_lines(argument)
    elif argument.lower().endswith(".json"):
        files.append(Path(argument))
        items = load_strict_json(read_input_file(argument, MAX_TEXT_BYTES), argument)
        yield from items if isinstance(items, list) else [items]
    else:
        items = parse_json_values(argument)
        if items is None:
            print_unused_file_note(argument)
        yield from [argument] if items is None else items


def parse_json_values(argument: str, prefixes: tuple[str, ...] = ("[", "{")) -> list[Value] | None:
    """Return the items of a JSON list, a single JSON object as a list, or None for other text."""
    if not argument.startswith(prefixes):
        return None
    try:
        items = parse_strict_json(argument, NO_LIMITS)
    except ValueError:
        return None
    return items if isinstance(items, list) else [items]


def _is_number_list(value: object) -> bool:
    """Return True if a value is a (possibly nested) list of numbers."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, int | float) and not isinstance(value, bool)


def _assign_value(
    task_input: TaskInput, value: Value, inputs: Mapping[str, TaskInput]
) -> Iterator[tuple[str, Value]]:
    """Yield the task inputs that a value sets, with their values. `value` is a string, a pair
    `["one", "two"]`, or an object `{"text": …, "text_pair": …}`. Raise E0906 for other types.
    """
    names = [*inputs]
    if isinstance(value, dict) and value and value.keys() <= inputs.keys():
        yield from ((n, v) for n, v in value.items() if v or not inputs[n].is_optional)
    elif isinstance(value, list) and len(value) == PAIR_LENGTH == len(names):
        yield from zip(names, value, strict=True)
    elif isinstance(value, str | Path):
        yield task_input.name, value
    else:
        raise_error(
            "E0906",
            f"`{escape_text(value)[:60]}` is not text for `{task_input.name}`",
            helps=[
                'pass a string, a list of strings, ["one", "two"] for a pair, '
                f"or an object with {', '.join(names)}"
            ],
        )


INPUT_EXAMPLES = {
    "question": '"Who lives there?"',
    "context": '"Sarah lives in London."',
    "image": "image.png",
    "candidate_labels": '"a cat" "a dog"',
    "choices": '"one" "another"',
}
"""Example command-line values of task inputs. Inputs not listed here have a text example."""


def add_example_to_error(
    error: SpeccError, path: str, model: ModelInputs, task: Task | None
) -> SpeccError:
    """Return the error, adding an example command line to diagnostics about missing inputs."""
    if task:
        arguments = [
            INPUT_EXAMPLES.get(s.name, '"a text"') for s in task.inputs if not s.is_optional
        ]
    else:
        readings = dict(model.preprocessing.inputs).values()
        computed_names = {r.shape_input for r in readings if isinstance(r, ImageConfig)}
        titles = [d.title for d in error.diagnostics]
        if not any(f"`{model.sequence_input}`" in title for title in titles):
            computed_names.add(model.sequence_input)  # the model generates the sequence input
        names = [name for name in model.required_inputs if name not in computed_names]
        arguments = [_make_example_argument(model, name) for name in names]
    example = f"example: `specc run {quote_argument(path)} {' '.join(arguments)}`"
    return SpeccError(
        *(replace(d, helps=(example,)) if d.code == "E0910" else d for d in error.diagnostics)
    )


def _make_example_argument(model: ModelInputs, name: str) -> str:
    """Return an example command-line argument for a graph input."""
    record, input_type = model.preprocessing.get_input_config(name), model.graph.inputs[name].type
    if isinstance(record, TEXT_CONFIGS):
        return '"a text"'
    if isinstance(record, ImageConfig):
        return f"{name}=image.png"
    if isinstance(record, AUDIO_READINGS):
        return f"{name}=audio.wav"
    return (
        f'{name}="[[1, 2, 3]]"'
        if input_type.dtype == "i64" and input_type.rank == 2
        else f"{name}=x.npy"
    )
