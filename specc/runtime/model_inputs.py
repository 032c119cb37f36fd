"""Inputs of a graph: names, types, lengths, defaults."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from specc import backend
from specc.analysis.time_axis import find_padding_strides
from specc.artifact.generation_facts import find_length_bounds
from specc.diagnostics.diagnostic import Diagnostic, raise_error
from specc.diagnostics.render import format_repr
from specc.ir.array import Array
from specc.ir.dim import DimError
from specc.ir.graph import Graph
from specc.ir.ir_text import parse_dim
from specc.ir.model import DecodeState, find_default_sources, resolve_absent_inputs
from specc.preprocessing.array_files import cast_exactly
from specc.preprocessing.images import is_multi_image_input, merge_images, split_images
from specc.preprocessing.input_checks import InputSpec, LengthBound, check_inputs
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.python_values import convert_input, convert_to_array, images_per_text
from specc.preprocessing.records import TEXT_READINGS
from specc.preprocessing.text_batches import encode_each, encode_text_inputs, is_left_padded

NUMPY_DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "bool": np.dtype(np.bool_),
}
"""NumPy dtype of the element types of states and prompts."""


def initial_state(state: DecodeState, env: Mapping[str, int]) -> Array:
    """Return the initial state: zeros, with length 0 along the time axis."""
    shape = [0 if n == state.time_axis else d.evaluate(env) for n, d in enumerate(state.type.shape)]
    return np.zeros(shape, NUMPY_DTYPES[state.type.dtype])


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The inputs of `graph`, their preprocessing `reading` and the graph `defaults` of absent ones.
    `growing` is the autoregressive input, if any; `bounds` are the limits of each length, `strides`
    the multiples that left padding must have. `unread` inputs have no consumer and may be omitted.
    """

    graph: Graph
    reading: PreprocessingConfig
    defaults: Graph | None = None
    growing: str = ""
    bounds: Mapping[str, LengthBound] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    strides: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return format_repr(f"entrance of {self.graph.format_signature()}")

    @property
    def specs(self) -> tuple[InputSpec, ...]:
        """The expected dtype and shape of each input."""
        absent = {*self.unread, *(self.defaults.outputs if self.defaults else ())}
        made = []
        for name, value in self.graph.inputs.items():
            facts = self.graph.input_facts.get(name)
            dims = tuple(d.number if d.number is not None else str(d) for d in value.type.shape)
            below = facts.below.number if facts and facts.below is not None else None
            made.append(InputSpec(name, value.type.dtype, dims, below, name in absent))
        return tuple(made)

    @property
    def asked(self) -> list[str]:
        """The inputs without a default, in order; positional arguments are assigned to these."""
        return [
            n for n in self.graph.inputs if self.defaults is None or n not in self.defaults.outputs
        ]

    def pads_left(self, name: str) -> bool:
        """Return whether short values of an input are left-padded."""
        return name in self.graph.inputs and is_left_padded(self.graph, name, self.growing)

    def encode_each(self, name: str, texts: Sequence[object]) -> list[Array | Diagnostic]:
        """Tokenize each text for the input `name`: ids i64[length], or a diagnostic for that text
        alone. E0906 if the input has no tokenizer.
        """
        record = self.reading.of_input(name)
        if not isinstance(record, TEXT_READINGS):
            raise_error(
                "E0906",
                f"the input `{name}` is not read as text",
                helps=["declare its tokenizer in the spec's `reading`"],
            )
        return encode_each(texts, record)

    def prepared(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return checked arrays for every input, defaults filled in. Raise E09xx."""
        specs = self.specs
        kinds = {s.name: s for s in specs}
        # for unknown inputs only the name is reported, whatever the value
        given = {name: np.empty(0) for name in inputs if name not in kinds}
        seen = {
            name: self._convert_value(name, value)
            for name, value in inputs.items()
            if name in kinds
        }
        for name, value in encode_text_inputs(self.graph, self.reading, seen, self.growing).items():
            array = convert_to_array(value, name, left=self.pads_left(name))
            given[name] = cast_exactly(array, kinds[name].dtype, name)
        given = split_images(self.graph, self.reading, given)
        checked = check_inputs(specs, given, bounds=dict(self.bounds), solve=_solve_lengths)
        whole = {**self._fill_defaults(checked), **checked}
        for name in self.strides.keys() & whole.keys():
            _in_strides(name, whole[name], self.strides[name])
        return whole

    def _convert_value(self, name: str, value: object) -> object:
        """Convert the value of an input: an array, texts, or lists of numbers unchanged."""
        several = is_multi_image_input(self.graph, self.reading, name)
        texts = images_per_text(self.reading, name, value) if several else []
        if texts:
            return merge_images(self.graph, name, texts)
        return convert_input(self.reading, name, value)

    def _fill_defaults(self, given: Mapping[str, Array]) -> dict[str, Array]:
        if self.defaults is None:
            return {}
        known_names = {*given, *self.unread}
        absent = tuple(n for n in self.defaults.outputs if n not in known_names)
        if not absent:
            return {}
        # Only the needed ones are run: other defaults may read absent inputs.
        defaults = resolve_absent_inputs(self.defaults, absent)
        known = {n: v for n, v in given.items() if n in defaults.inputs}
        made = backend.load_reference().evaluate_graph(defaults, known, {})
        inputs = self.graph.inputs
        asked = {name: value for name, value in made.items() if name in inputs}
        return {n: cast_exactly(np.asarray(v), inputs[n].type.dtype, n) for n, v in asked.items()}


def model_inputs_of(
    graph: Graph, reading: PreprocessingConfig, defaults: Graph | None, growing: str
) -> ModelInputs:
    """Return the inputs of a full-forward graph with its declared bounds and strides."""
    return ModelInputs(
        graph=graph,
        reading=reading,
        defaults=defaults,
        growing=growing,
        bounds=find_length_bounds(graph),
        strides=find_padding_strides(graph),
    )


def _in_strides(name: str, keep: Array, stride: int) -> None:
    """Raise E0325 if left padding is not a multiple of the stride."""
    before = np.where(keep.any(-1), keep.argmax(-1), 0).reshape(-1)
    odd = np.flatnonzero(before % stride)
    if odd.size:
        row, count = int(odd[0]), int(before[odd[0]])
        rows = "1 row" if count == 1 else f"{count} rows"
        raise_error(
            "E0325",
            f"`{name}` has {rows} of left padding, but the model merges every {stride} positions",
            notes=[f"in row {row}: the padding determines which positions are merged"],
            helps=[f"pad on the right, or on the left by a multiple of {stride}"],
        )


def find_unread_inputs(graph: Graph, defaults: Graph | None, read: Iterable[str]) -> frozenset[str]:
    """Return the inputs of `graph` that neither `read` contains nor a default of these reads."""
    todo, found = list(read), set[str]()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += (
                find_default_sources(defaults, name)
                if defaults and name in defaults.outputs
                else ()
            )
    return frozenset(graph.inputs.keys() - found)


def _solve_lengths(text: str, env: Mapping[str, int]) -> int | None:
    try:
        return parse_dim(text).evaluate(env)
    except DimError:
        return None
