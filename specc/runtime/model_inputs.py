"""Prepare the inputs of a graph, and extend masks and position ids during generation."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from specc import backend
from specc.analysis.padding_loops import find_right_padded_masks
from specc.analysis.padding_offsets import find_padding_mask_strides
from specc.artifact.generation_metadata import find_length_bounds
from specc.decode.token_selection import Bools, Ints
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph, select_entries
from specc.ir.input_shapes_and_defaults import (
    build_input_defaults_graph,
    extract_per_token_default,
    find_default_inputs,
)
from specc.ir.ir_printer_and_lexer import parse_dim
from specc.ir.types import Type
from specc.preprocessing.array_files import cast_input_array
from specc.preprocessing.image_prompts import (
    group_images_by_text,
    is_multi_image_input,
    prepare_images,
    stack_image_groups,
)
from specc.preprocessing.input_checks import (
    InputSpec,
    LengthBound,
    check_inputs,
    check_left_padding,
    check_right_padding,
    make_input_spec,
)
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import TEXT_CONFIGS
from specc.preprocessing.python_inputs import (
    convert_image_arrays,
    convert_input_value,
    convert_to_array,
    suggest_tokenizer,
)
from specc.preprocessing.text_batches_and_windows import (
    encode_text_inputs,
    find_mask_input,
    is_left_padded,
)


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The inputs of `graph`, their `preprocessing`, and the graph `defaults` that computes omitted
    inputs. `sequence_input` is the generated input, if any. `length_bounds` are the bounds of each
    symbolic dimension. The size of left padding must be a multiple of `padding_strides`. Masks in
    `right_padded_masks` can only be padded on the right. `unused_inputs` have no consumer.
    `spec_sources` are the spec files of the model, keyed by name.
    """

    graph: Graph
    preprocessing: PreprocessingConfig
    defaults: Graph | None = None
    sequence_input: str = ""
    length_bounds: Mapping[str, LengthBound] = field(default_factory=dict)
    unused_inputs: frozenset[str] = frozenset()
    padding_strides: Mapping[str, int] = field(default_factory=dict)
    right_padded_masks: frozenset[str] = frozenset()
    spec_sources: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return format_repr(f"inputs of {self.graph.format_signature()}")

    @property
    def mask_input(self) -> str:
        """The name of the sequence input's padding mask, or "" if there is none."""
        return find_mask_input(self.graph, self.sequence_input, 2) if self.sequence_input else ""

    @property
    def batch_size(self) -> Dim:
        """The symbolic batch size: the first dimension of the sequence input."""
        return self.graph.inputs[self.sequence_input].shape[0]

    @property
    def sequence_length(self) -> Dim:
        """The symbolic sequence length: the second dimension of the sequence input."""
        return self.graph.inputs[self.sequence_input].shape[1]

    @property
    def input_specs(self) -> tuple[InputSpec, ...]:
        """The expected dtype and shape of each input."""
        optional_names = self.unused_inputs | self._default_names
        return tuple(
            make_input_spec(
                name,
                value.type,
                self.graph.input_facts.get(name),
                is_optional=name in optional_names,
                accepts_text=isinstance(self.preprocessing.get_input_config(name), TEXT_CONFIGS),
            )
            for name, value in self.graph.inputs.items()
        )

    @property
    def required_inputs(self) -> list[str]:
        """The names of inputs without a default, in the order of positional arguments."""
        return [name for name in self.graph.inputs if name not in self._default_names]

    @property
    def _default_names(self) -> Set[str]:
        """The names of the inputs with a default."""
        return self.defaults.outputs.keys() if self.defaults else frozenset()

    def is_left_padded(self, name: str) -> bool:
        """Return True if an input is padded on the left when a batch is formed."""
        return name in self.graph.inputs and is_left_padded(self.graph, name, self.sequence_input)

    def suggest_tokenizer(self, name: str) -> list[str]:
        """Return the help texts for passing text to an input that has no tokenizer, or []."""
        return suggest_tokenizer(name, self.graph.inputs[name].type, self.spec_sources)

    def prepare(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return checked arrays for every input, including computed defaults."""
        kinds = {s.name: s for s in self.input_specs}
        # check the input names first, to report unknown names before invalid values
        arrays = {name: np.empty(0) for name in inputs if name not in kinds}
        converted = {
            name: self._convert_value(name, value)
            for name, value in prepare_images(self.graph, self.preprocessing, inputs).items()
            if name in kinds
        }
        for name, value in encode_text_inputs(
            self.graph, self.preprocessing, converted, self.sequence_input
        ).items():
            pad_left = self.is_left_padded(name)
            array = convert_to_array(
                value, name, pad_left=pad_left, suggest_tokenizer=self.suggest_tokenizer
            )
            arrays[name] = cast_input_array(array, kinds[name].dtype, name)
        arrays = group_images_by_text(self.graph, self.preprocessing, arrays)
        checked = check_inputs(
            tuple(kinds.values()), arrays, bounds=self.length_bounds, evaluate_dim=_solve_lengths
        )
        prepared = {**self._fill_defaults(checked), **checked}
        for name in self.padding_strides.keys() & prepared.keys():
            check_left_padding(name, prepared[name], self.padding_strides[name])
        # `PerTokenInputs.from_prompt` checks the padding of prompts
        for name in sorted(self.right_padded_masks & prepared.keys() - {self.mask_input}):
            check_right_padding(name, prepared[name])
        return prepared

    def _convert_value(self, name: str, value: object) -> object:
        """Convert an input value to an array or to strings. Keep a list of numbers unchanged."""
        is_multiple = is_multi_image_input(self.graph, self.preprocessing, name)
        if images_by_text := convert_image_arrays(value, name) if is_multiple else []:
            return stack_image_groups(self.graph, name, images_by_text)
        return convert_input_value(value, name)

    def _fill_defaults(self, values: Arrays) -> dict[str, Array]:
        known_names = {*values, *self.unused_inputs}
        absent = tuple(name for name in self._default_names if name not in known_names)
        if self.defaults is None or not absent:
            return {}
        # compute only the required defaults, because other defaults may depend on omitted inputs
        defaults = build_input_defaults_graph(self.defaults, absent)
        default_inputs = select_entries(values, defaults.inputs)
        computed = backend.load_reference_backend().evaluate_graph(defaults, default_inputs, {})
        inputs = self.graph.inputs
        return {
            name: cast_input_array(np.asarray(value), inputs[name].dtype, name)
            for name, value in computed.items()
            if name in inputs
        }


def build_model_inputs(
    graph: Graph,
    preprocessing: PreprocessingConfig,
    defaults: Graph | None,
    sequence_input: str,
    spec_sources: Mapping[str, str] = {},
) -> ModelInputs:
    """Build the input description of a full-forward graph, including bounds and strides."""
    return ModelInputs(
        graph=graph,
        preprocessing=preprocessing,
        defaults=defaults,
        sequence_input=sequence_input,
        length_bounds=find_length_bounds(graph),
        padding_strides=find_padding_mask_strides(graph),
        right_padded_masks=find_right_padded_masks(graph),
        spec_sources=spec_sources,
    )


def _solve_lengths(text: str, env: Mapping[str, int]) -> int | None:
    try:
        return parse_dim(text).evaluate(env)
    except DimError:
        return None


@dataclass(kw_only=True)
class PerTokenInputs:
    """The inputs with a time axis, except the tokens. Generation extends them.

    The caller provides the values for the prompt. For generated tokens, a default is recomputed
    from the whole sequence, and a padding mask is true if it has no default or declares a padding
    side. Any other input without a default raises E0944. `arrays` contains the values at all
    positions, of which the last `new_position_count` are new. `constant_inputs` have no time axis.
    `tokens` are int64 [batch, n]. `default_tables` caches token-wise defaults. The padding mask is
    false at new positions of finished sequences (`is_finished`, bool [batch]).
    """

    input_signature: ModelInputs
    arrays: dict[str, Array]
    constant_inputs: dict[str, Array]
    tokens: Ints
    new_position_count: int = 0
    default_tables: dict[str, Array] = field(default_factory=dict)
    is_finished: Bools | None = None

    @classmethod
    def from_prompt(cls, input_signature: ModelInputs, prepared: Arrays) -> "PerTokenInputs":
        """Create per-token inputs from prepared inputs. Raise E0912 for a right-padded prompt."""
        sequence_input, inputs = input_signature.sequence_input, input_signature.graph.inputs
        length = input_signature.sequence_length
        # inputs with one position per token are extended together with the tokens
        extended = {n for n, v in inputs.items() if length in v.shape} - {sequence_input}
        names = [name for name in inputs if name in extended & prepared.keys()]
        facts = input_signature.graph.input_facts
        for name in names:
            if facts[name].padding_side == "right" and not np.all(prepared[name]):
                raise_error(
                    "E0912",
                    f"`{name}` is padded on the right, so no position can be generated after it",
                    notes=[f"new positions of `{sequence_input}` are appended after the padding"],
                    helps=[
                        f"declare `{name}` as `keep[…] left`, or as `keep[…]`",
                        "or batch prompts of equal length",
                    ],
                )
        return cls(
            input_signature=input_signature,
            arrays={name: prepared[name] for name in names},
            constant_inputs=select_entries(prepared, prepared.keys() - {*names, sequence_input}),
            tokens=prepared[sequence_input],
            new_position_count=prepared[sequence_input].shape[1],
        )

    def append_tokens(self, tokens: Ints) -> None:
        """Append new tokens, and extend all other inputs to the positions of the new tokens."""
        self.tokens = np.concatenate([self.tokens, tokens], axis=1)
        inputs = self.input_signature.graph.inputs
        count = self.new_position_count = tokens.shape[1]
        for name, axes in self._ordered_inputs:
            extended = self._extend_input(name, axes, tokens)
            # a finished sequence is padded while other sequences of the batch are generated
            if self.is_finished is not None and inputs[name].dtype == "bool":
                extended[self.is_finished, -count:] = False
            self.arrays[name] = extended

    def get_new_positions(self, name: str) -> Array:
        """Return the values of an input at the new positions along its first time axis."""
        axis = dict(self._ordered_inputs)[name][0]
        return np.take(self.arrays[name], np.arange(-self.new_position_count, 0), axis)

    def _extend_input(self, name: str, axes: Sequence[int], tokens: Ints) -> Array:
        """Extend an input along `axes` for new tokens, without changing earlier positions."""
        value, count = self.arrays[name], tokens.shape[1]
        # look up a token-wise default in a table over all token ids
        if (token_graph := self._computed_inputs.get(name)) is not None:
            new_values = self._look_up_defaults(name, token_graph, tokens).astype(value.dtype)
            return np.concatenate([value, new_values], axis=1)
        if name in self._computed_inputs:
            extended = self._compute_defaults(name).astype(value.dtype)
        else:
            # an input without a default is a padding mask, which is true at generated positions
            sizes = [n + count if axis in axes else n for axis, n in enumerate(value.shape)]
            extended = np.ones(sizes, np.bool_)
        extended[tuple(map(slice, value.shape))] = value
        return extended

    @cached_property
    def _computed_inputs(self) -> dict[str, Graph | None]:
        """The inputs to compute for generated tokens. A token-wise default is given as a graph.
        Raise E0944 if an input has no default.
        """
        defaults, tokens = self.input_signature.defaults, self.input_signature.sequence_input
        graphs: dict[str, Graph | None] = {}
        for name in self.arrays:
            padding_side = self.input_signature.graph.input_facts[name].padding_side
            if defaults is not None and name in defaults.outputs:
                if padding_side in ("", "any"):
                    graphs[name] = extract_per_token_default(defaults, name, tokens)
            elif not padding_side:
                raise_error(
                    "E0944",
                    f"`{name}` has no value for generated positions of `{tokens}`",
                    notes=[f"`{name}` has one value per position of `{tokens}`"],
                    helps=[f"add a default in the spec: `{name}: … = expression of {tokens}`"],
                )
        return graphs

    def _look_up_defaults(self, name: str, table_graph: Graph, tokens: Ints) -> Array:
        """Look up the token-wise default of an input in a table with one entry per token id."""
        max_id = int(tokens.max(initial=0))
        if max_id >= len(self.default_tables.get(name, ())):
            ids = np.arange(2 * max_id + 2)[None]
            results = backend.load_reference_backend().evaluate_graph(
                table_graph, {self.input_signature.sequence_input: ids}, {}
            )
            self.default_tables[name] = results[name][0]
        return self.default_tables[name][tokens]

    @property
    def is_all_padding(self) -> Bools:
        """Return a bool array [batch], which is true for sequences without a valid token so far."""
        mask = self.arrays.get(self.input_signature.mask_input)
        if mask is None:
            return np.full(len(self.tokens), not self.tokens.shape[1])
        return np.array(~mask.any(axis=1))

    def reorder(self, indices: Ints) -> None:
        """Reorder batch elements: new element i is old element `indices[i]`."""
        inputs, batch = self.input_signature.graph.inputs, self.input_signature.batch_size
        self.tokens = self.tokens[indices]
        for arrays in (self.arrays, self.constant_inputs):
            for name, value in arrays.items():
                if (axis := find_axis_of_length(inputs[name].type, batch)) is not None:
                    arrays[name] = np.take(value, indices, axis)

    @cached_property
    def _ordered_inputs(self) -> list[tuple[str, list[int]]]:
        """The inputs with a time axis in dependency order, each with a list of its time axes."""
        inputs, length = self.input_signature.graph.inputs, self.input_signature.sequence_length
        return [
            (name, [n for n, d in enumerate(inputs[name].shape) if d == length])
            for name in _sort_by_dependency(
                self.arrays, self.input_signature.defaults, self._computed_inputs
            )
        ]

    def _compute_defaults(self, name: str) -> Array:
        """Compute the default of an input for the whole sequence."""
        defaults, tokens = self.input_signature.defaults, self.input_signature.sequence_input
        assert defaults is not None, "only inputs with a default are computed"
        values = {**self.constant_inputs, **self.arrays, tokens: self.tokens}
        graph = build_input_defaults_graph(defaults, (name,))
        # an input without a consumer may lack the new positions
        sources = {*self.constant_inputs, tokens} | find_default_inputs(graph, name)
        inputs = {n: values[n] for n in graph.inputs if n in sources and n in values}
        return np.array(backend.load_reference_backend().evaluate_graph(graph, inputs, {})[name])


def split_prefill_chunks(inputs: PerTokenInputs, chunk_size: int) -> Iterator[PerTokenInputs]:
    """Split the new positions into chunks of `chunk_size` positions. The last chunk may be shorter.
    With a `chunk_size` of 0, there is a single chunk.
    """
    signature = inputs.input_signature
    graph_inputs, length = signature.graph.inputs, signature.sequence_length
    end = inputs.tokens.shape[1]
    start = end - inputs.new_position_count
    while chunk_size and end - start > chunk_size:
        stop = start = start + chunk_size
        arrays = {
            name: value[tuple(slice(stop if d == length else None) for d in shape)]
            for name, value in inputs.arrays.items()
            for shape in (graph_inputs[name].shape,)
        }
        yield replace(
            inputs, arrays=arrays, tokens=inputs.tokens[:, :stop], new_position_count=chunk_size
        )
    yield replace(inputs, new_position_count=end - start)


def _sort_by_dependency(
    names: Iterable[str], defaults: Graph | None, computed: Container[str]
) -> list[str]:
    """Sort inputs topologically by the dependencies between their defaults."""
    remaining = [*names]
    dependencies = {
        n: find_default_inputs(defaults, n) - {n} if defaults and n in computed else set()
        for n in remaining
    }
    ordered: list[str] = []
    while remaining:
        ready = (n for n in remaining if not dependencies[n] & {*remaining})
        ordered.append(next(ready, remaining[0]))
        remaining.remove(ordered[-1])
    return ordered


def find_axis_of_length(type: Type, length: Dim) -> int | None:
    """Return the index of the first axis with the size `length`, or None if there is none."""
    return next((n for n, d in enumerate(type.shape) if d == length), None)
