"""Collate training examples into batches of inputs and targets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple, NoReturn, cast

import numpy as np

from specc.decode.generation_settings import merge_caller_settings
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.ir.model_definition import GenerateSection, count_codebooks
from specc.preprocessing.image_tiles_and_patches import preprocess_image
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import (
    TEXT_CONFIGS,
    ClassificationOutput,
    ImageConfig,
    OutputFormat,
    TextOutput,
)
from specc.preprocessing.python_inputs import convert_input_value, convert_to_array, is_image
from specc.preprocessing.text_batches_and_windows import batch_sequences, find_mask_input
from specc.preprocessing.text_codec import encode_text_to_ids, pad_token_sequences
from specc.runtime.generation_request import find_text_tokenizer
from specc.runtime.model_inputs import ModelInputs, build_model_inputs

IGNORE_INDEX = -100
"""The target value at positions that the loss ignores (`ignore_index` of PyTorch's losses)."""


def make_training_inputs(
    graph: Graph, preprocessing: PreprocessingConfig, name: str, values: list[object]
) -> dict[str, object]:
    """Collate the values of one input into an array, with a mask if it is padded. Keep texts."""
    config = preprocessing.get_input_config(name)
    if isinstance(config, TEXT_CONFIGS) and all(isinstance(v, str) for v in values):
        return {name: values}
    if isinstance(config, ImageConfig):
        images = _convert_examples(values, partial(_read_image, config, name))
        return {name: np.concatenate(images)}
    arrays = _convert_examples(values, partial(_read_array, name))
    if len({array.shape for array in arrays}) == 1:
        return {name: np.stack(arrays)}
    if any(array.ndim != 1 for array in arrays):
        shapes = sorted({str(list(array.shape)) for array in arrays})
        raise_error(
            "E0912",
            f"the examples of `{name}` have different shapes: {', '.join(shapes[:4])}",
            helps=["pass examples of equal shape in one batch"],
        )
    return dict(batch_sequences(graph, name, arrays))


def _convert_examples(values: list[object], convert: Callable[[object], Array]) -> list[Array]:
    """Convert the value of each example to an array. Error messages contain the index of the
    example.
    """
    arrays: list[Array] = []
    for number, value in enumerate(values):
        try:
            arrays.append(convert(value))
        except SpeccError as failed:
            note = f"in row {number} of the batch"
            diagnostics = (replace(d, notes=(*d.notes, note)) for d in failed.diagnostics)
            raise SpeccError(*diagnostics) from None
    return arrays


def _read_image(config: ImageConfig, name: str, value: object) -> Array:
    """Convert an image file, PIL image or pixel array to [1, channels, height, width]."""
    if is_image(value):
        return preprocess_image(value, config, name).values[None]
    array = _read_array(name, value)
    return array if array.ndim == 4 else array[None]


def _read_array(name: str, value: object) -> Array:
    return convert_to_array(convert_input_value(value, name), name)


def make_training_targets(
    preprocessing: PreprocessingConfig, name: str, values: list[object]
) -> Array:
    """Collate the targets for the output `name` into an array, int64 or float32 [batch, …]."""
    config = dict(preprocessing.outputs).get(name)
    targets = _convert_examples(values, lambda value: _make_targets(name, value, config))
    if len({target.shape for target in targets}) == 1:
        # convert integers to floats if the batch also contains floats, e.g. 2 next to 0.5
        dtype = np.float32 if any(r.dtype.kind == "f" for r in targets) else np.int64
        return np.stack(targets).astype(dtype)
    if all(target.ndim == 1 and target.dtype.kind == "i" for target in targets):
        return pad_token_sequences(targets, IGNORE_INDEX)[0]
    raise_error("E0947", f"the targets of `{name}` have different shapes in one batch")


def make_causal_lm_targets(
    graph: Graph,
    preprocessing: PreprocessingConfig,
    generation: GenerateSection,
    values: list[object],
) -> tuple[dict[str, Array], Array]:
    """Return the inputs and the shifted targets that are computed from the generated input's
    values.
    """
    name, settings = generation.sequence_input, merge_caller_settings(generation.settings)
    if codebooks := count_codebooks(graph.inputs[name].type):
        raise_error(
            "E0947",
            f"`{name}` has {codebooks} codebooks, for which no targets are derived",
            helps=["build inputs and targets in your own code, and call the module with tensors"],
        )
    start, stop = list(settings.start), settings.stop
    inputs: list[Array] = []
    targets: list[Array] = []
    for number, encoded in enumerate(
        _convert_examples(values, partial(_encode_target, preprocessing, generation))
    ):
        ids = encoded.tolist()
        if start and ids[: len(start)] == start:
            # the tokenizer has already added the start tokens
            ids = ids[len(start) :]
        if stop and ids[-1:] and ids[-1] not in stop:
            ids.append(stop[0])
        sequence = [*start, *ids]
        if len(sequence) < 2:
            raise_error(
                "E0947",
                f"the text of example {number} has fewer than two tokens",
                notes=[f"`{name}` requires at least two tokens per example"],
                helps=["remove this example"],
            )
        shifted = [IGNORE_INDEX] * (len(start) - 1) + ids
        inputs.append(np.array(sequence[:-1], np.int64))
        targets.append(np.array(shifted if start else ids[1:], np.int64))
    mask_input = find_mask_input(graph, name)
    is_left_padded = bool(mask_input) and graph.input_facts[mask_input].padding_side == "left"
    # The model is causal, so right padding does not affect earlier positions even without a mask.
    ids, mask = pad_token_sequences(inputs, 0, pad_left=is_left_padded)
    padded_targets, _ = pad_token_sequences(targets, IGNORE_INDEX, pad_left=is_left_padded)
    return {name: ids, mask_input: mask} if mask_input else {name: ids}, padded_targets


def _encode_target(
    preprocessing: PreprocessingConfig, generation: GenerateSection, value: object
) -> Array:
    """Encode a target with the tokenizer of the output or, if there is none, of the input."""
    name = generation.sequence_input
    if not isinstance(value, str):
        return _read_array(name, value).astype(np.int64)
    tokenizer = find_text_tokenizer(preprocessing, generation)
    if tokenizer is None:
        _raise_no_tokenizer(name)
    return encode_text_to_ids(value, tokenizer)


def _make_targets(name: str, value: object, config: OutputFormat | None) -> Array:
    """Convert a target: a label to its index, text to token ids, any other value to an array."""
    if isinstance(value, str):
        if isinstance(config, TextOutput):
            return encode_text_to_ids(value, config.vocabulary)
        if not isinstance(config, ClassificationOutput):
            _raise_no_tokenizer(name)
        if value not in config.labels:
            known_labels = f"the labels are {', '.join(config.labels[:20]) or 'numbers'}"
            raise_error(
                "E0947",
                f"`{escape_text(value)[:60]}` is not a label of `{name}`",
                helps=suggest_similar_name(value, config.labels, known_labels),
            )
        return np.array(config.labels.index(value), np.int64)
    array = np.array(value) if isinstance(value, int | float) else convert_to_array(value, name)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _raise_no_tokenizer(name: str) -> NoReturn:
    raise_error(
        "E0947",
        f"`{name}` expects numbers, got a string",
        notes=["the spec's `reading` does not declare it as text or labels"],
        helps=["pass numbers", f"or add `show {name} = …` to the spec's `reading`"],
    )


TrainingExample = Mapping[str, object]


class TrainingBatch(NamedTuple):
    """The inputs and targets of a batch, keyed by name."""

    inputs: dict[str, Array]
    targets: dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class TrainingCollator:
    """A collator that forms batches of examples, like a data collator in transformers."""

    graph: Graph
    preprocessing: PreprocessingConfig
    defaults: Graph | None = None
    generation: GenerateSection | None = None

    @cached_property
    def input_signature(self) -> ModelInputs:
        """The inputs of the model with their preprocessing and defaults."""
        sequence_input = self.generation.sequence_input if self.generation else ""
        return build_model_inputs(self.graph, self.preprocessing, self.defaults, sequence_input)

    def make_batch(self, examples: Sequence[TrainingExample]) -> TrainingBatch:
        """Collate examples that have the same inputs and targets into a batch. Inputs are checked,
        and defaults are added. Targets are int64 or float32, with -100 at positions that the loss
        ignores.

        Raise E0946 or E0947 if examples are invalid, and E09xx if an input is invalid, as in `run`.
        """
        examples = check_training_examples(examples)
        names = self._read_names(examples)
        self._check_targets(names)
        columns = {name: [example[name] for example in examples] for name in names}
        targets = {
            name: make_training_targets(self.preprocessing, name, values)
            for name, values in columns.items()
            if name not in self.graph.inputs
        }
        inputs: dict[str, object] = {}
        for name in (name for name in names if name in self.graph.inputs):
            inputs_of_name: Mapping[str, object]
            if section := self._find_learned_section(name, names):
                inputs_of_name, targets[section.logits_output] = make_causal_lm_targets(
                    self.graph, self.preprocessing, section, columns[name]
                )
            else:
                inputs_of_name = make_training_inputs(
                    self.graph, self.preprocessing, name, columns[name]
                )
            # a mask in the examples takes precedence over the computed mask
            inputs |= {n: x for n, x in inputs_of_name.items() if n == name or n not in columns}
        return TrainingBatch(self.input_signature.prepare(inputs), targets)

    def _find_learned_section(self, name: str, names: Sequence[str]) -> GenerateSection | None:
        """Return the `generate` section if `name` is the generated input and the examples have no
        targets for the logits. Return None otherwise.
        """
        generation = self.generation
        if generation is None or generation.logits_output in names:
            return None
        return generation if name == generation.sequence_input else None

    def _check_targets(self, names: Sequence[str]) -> None:
        """Raise E0946 if the examples contain no targets."""
        outputs = self.graph.outputs
        if any(name in outputs or self._find_learned_section(name, names) for name in names):
            return
        helps = [f"add a target, one of: {', '.join(f'`{name}`' for name in outputs)}"]
        if self.generation is not None:
            helps = [
                f"pass complete sequences as `{self.generation.sequence_input}`; the targets "
                "are the next tokens"
            ]
        raise_error("E0946", "the examples contain no targets", helps=helps)

    def _read_names(self, examples: Sequence[TrainingExample]) -> list[str]:
        """Return the names of inputs and targets. Raise E0946 if names differ between examples."""
        if not examples:
            raise_error("E0946", "empty batch")
        for number, example in enumerate(examples):
            if not isinstance(example, Mapping):
                raise_error(
                    "E0946",
                    f"example {number} is {_describe_type(example)}, expected a mapping by name",
                    helps=[f"write {{{self._format_example()}}}"],
                )
        first = list(examples[0])
        for number, example in enumerate(examples):
            if set(example) != set(first):
                differing = sorted(map(repr, set(example) ^ set(first)))
                raise_error(
                    "E0946",
                    f"example {number} has different keys than example 0",
                    notes=[f"different: {escape_text(', '.join(differing))[:200]}"],
                    helps=["use the same keys in all examples of a batch"],
                )
        known = [*self.graph.inputs, *self.graph.outputs]
        for name in first:
            if name not in known:
                raise_error(
                    "E0946",
                    f"unknown input or output `{escape_text(name)}`",
                    helps=suggest_similar_name(
                        str(name), known, f"expected one of {', '.join(known)}"
                    ),
                )
        return first

    def _format_example(self) -> str:
        """Format an example of the expected data for an error message."""
        generation = self.generation
        target_name = generation.sequence_input if generation else next(iter(self.graph.outputs))
        names = [name for name in self.input_signature.required_inputs if name != target_name]
        return ", ".join(f'"{name}": …' for name in (*names, target_name))


def _describe_type(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def check_training_examples(examples: object) -> Sequence[TrainingExample]:
    """Check a collection of examples and return it as a sequence. Raise E0946 for a single example,
    a data frame, or a value that is not a collection.
    """
    if isinstance(examples, list | tuple):
        return examples
    methods, is_text = dir(type(examples)), isinstance(examples, str | bytes)
    helps = ["pass a list of mappings, one per example"]
    if isinstance(examples, Mapping) or "to_dict" in methods:
        helps = [
            "pass a list, e.g. of one example: [example]",
            'for a pandas DataFrame: frame.to_dict("records")',
        ]
    elif not is_text and {"__len__", "__getitem__"} <= {*methods}:
        # do not convert datasets of other libraries, which load items on demand
        return cast("Sequence[TrainingExample]", examples)
    elif not is_text and isinstance(examples, Iterable):
        return list(examples)
    raise_error(
        "E0946", f"expected a list of examples, got {_describe_type(examples)}", helps=helps
    )
