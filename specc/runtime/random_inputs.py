"""Generate random inputs of a graph with the requested axis sizes, and past states of a step
graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from specc import backend
from specc.analysis.length_limits import find_max_lengths, find_min_lengths
from specc.analysis.valid_axis_sizes import find_total_strides, find_valid_dim_sizes
from specc.artifact.generation_metadata import GenerationMetadata
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim
from specc.ir.graph import Graph, collect_shape_symbols
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph, find_default_inputs
from specc.ir.model_definition import PAST_LENGTH_INPUT
from specc.runtime.decoder_sessions import NUMPY_DTYPES
from specc.runtime.index_ranges import find_constants_compared_to_inputs, find_valid_id_ranges

SampleInputs: TypeAlias = Callable[
    [Graph, Mapping[str, int], np.random.Generator, float], dict[str, Array]
]
"""A function that samples the inputs of a graph for given dimension sizes and a given probability
of True in booleans."""

DIM_SIZES = (1, 2, 3, 5, 7, 11, 13)
MAX_PLAIN_INT = 10
PLAIN_INT_BOUNDS = (3, MAX_PLAIN_INT)
"""Exclusive upper bounds of random integers that are not used as indices."""
SPECIAL_ID_SHARE = 0.3
"""Fraction of ids that are sampled from the constants (e.g. image token ids) to which the graph
compares ids.
"""
DEFAULT_DENSITY = 0.7
"""Default probability of True in random booleans."""
BOOLEAN_DENSITIES = (DEFAULT_DENSITY, 1.0, 0.02)
"""Probabilities of True in random booleans: default, dense and sparse."""


def _add_derived_lengths(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of all symbolic dimensions, including those defined by equations."""
    env = dict(sizes)
    for name, dim in graph.length_equations.items():
        env[name] = dim.evaluate(env)
    return env


def choose_dim_sizes(
    graph: Graph, round_index: int, max_lengths: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Choose a size for every symbolic dimension. Sizes are minimal in the first round, and
    distinct primes in later rounds. With distinct sizes, tests detect swapped axes.

    Sizes do not exceed the size of position embeddings or `max_lengths`. If the graph is not
    defined for the chosen sizes, the nearest valid sizes are returned.
    """
    maxima = find_max_lengths(graph)
    maxima |= max_lengths or {}
    minima = find_min_lengths(graph)
    sizes, counts = {}, {}
    # If a symbolic dimension is defined by an equation, its size follows from other sizes.
    free_symbols = collect_shape_symbols(graph.inputs.values()) - graph.length_equations.keys()
    for index, symbol in enumerate(sorted(free_symbols)):
        size = counts[symbol] = (
            1 if round_index == 0 else DIM_SIZES[(index + round_index) % len(DIM_SIZES)]
        )
        sizes[symbol] = max(
            min(size, maxima.get(symbol, size)),
            graph.min_lengths.get(symbol, 1),
            minima.get(symbol, 1),
        )
    valid_sizes = find_valid_dim_sizes(graph, sizes, maxima)
    if valid_sizes is None:
        return sizes
    strides, has_empty = find_total_strides(graph), _has_empty_input(graph, valid_sizes)
    strided_sizes = {
        symbol: _apply_stride(
            max(valid_sizes[symbol], stride * has_empty), counts[symbol], stride, round_index
        )
        for symbol, stride in strides.items()
        if symbol in valid_sizes
    }
    return find_valid_dim_sizes(graph, valid_sizes | strided_sizes, maxima) or valid_sizes


def _has_empty_input(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Return True if an input is empty, e.g. because a stride exceeds the axis size."""
    env = _add_derived_lengths(graph, sizes)
    return any(d.evaluate(env) < 1 for v in graph.inputs.values() for d in v.shape)


def _apply_stride(length: int, rows: int, stride: int, round_index: int) -> int:
    """Return an axis size that a strided op reduces to the size `rows`. The op reduces an axis of
    size `length` to one position. In every second round, the size is not a multiple of the stride.
    """
    has_remainder = round_index > 0 and round_index % 2 == 0
    if length > rows:
        return length + (rows - 1 + has_remainder) * stride - has_remainder
    return length if round_index % 2 == 0 else -(-length // stride) * stride


def make_random_inputs(
    graph: Graph,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    density: float = DEFAULT_DENSITY,
) -> dict[str, Array]:
    """Generate random inputs. Ids are within the embedding table, padding is on the declared side,
    floats are around zero, and booleans are true with probability `density`.

    `density` also applies to padding masks: 1 means no padding, and a value near 0 means mostly
    padding.
    """
    env = _add_derived_lengths(graph, sizes)
    ranges, compared = find_valid_id_ranges(graph, env), find_constants_compared_to_inputs(graph)
    inputs: dict[str, Array] = {}
    for name, value in graph.inputs.items():
        shape = tuple(d.evaluate(env) for d in value.shape)
        facts = graph.input_facts[name]
        if facts.padding_side:
            inputs[name] = _sample_mask(shape, facts.padding_side, rng, density)
        elif value.dtype == "bool":
            inputs[name] = rng.random(shape) < density
        elif value.dtype in ("i64", "i32"):
            special = compared.get(value, ())
            ids = _sample_ids(shape, facts.upper_bound, ranges.get(value), special, rng, density)
            inputs[name] = ids.astype("i8" if value.dtype == "i64" else "i4")
        else:
            inputs[name] = rng.normal(size=shape).astype("f4")
    return inputs


def _sample_ids(
    shape: tuple[int, ...],
    upper_bound: Dim | None,
    index_range: range | None,
    special_ids: Sequence[int],
    rng: np.random.Generator,
    density: float,
) -> Array:
    """Sample integers below a bound or in `index_range`, including some of `special_ids`."""
    bound = upper_bound.number if upper_bound is not None else None
    # ids that are modified before a lookup have an index range instead of a declared bound
    if index_range:
        id_range = index_range[:MAX_PLAIN_INT]
    else:
        id_range = range(int(rng.choice(PLAIN_INT_BOUNDS)))
    id_range = range(bound) if bound else id_range
    ids = rng.integers(id_range.start, id_range.stop, shape)
    if ids.size > 1:  # include both the first and the last valid id
        ids.flat[0], ids.flat[-1] = id_range.stop - 1, id_range.start
    if upper_bound is None and density < DEFAULT_DENSITY:
        ids *= rng.random(shape) < density  # include zeros, because an integer input may be a mask
    limits = range(bound) if bound else index_range
    if specials := [n for n in special_ids if not limits or n in limits]:
        ids = np.where(rng.random(shape) < SPECIAL_ID_SHARE, rng.choice(specials, shape), ids)
    return ids


def _sample_mask(
    shape: tuple[int, ...], side: str, rng: np.random.Generator, density: float
) -> Array:
    """Sample a padding mask. Every batch element except the first has padding.

    A density of 1 means no padding, and a density near 0 means mostly padding. If the mask declares
    no padding side, left and right padding alternate.
    """
    length = shape[-1]
    # at the default density, at least half of each sequence is valid
    shortest = length // 2 if density == DEFAULT_DENSITY else int(length * density)
    lengths = (
        rng.integers(max(1, shortest), length + 1, shape[:-1])
        if length
        else np.zeros(shape[:-1], int)
    )
    if density == DEFAULT_DENSITY:
        lengths = np.minimum(lengths, max(1, length - 1))
    if density >= DEFAULT_DENSITY:
        lengths.reshape(-1)[:1] = length
    else:
        lengths = np.minimum(lengths, max(1, shortest))
    positions = np.arange(length)
    left, right = positions >= (length - lengths[..., None]), positions < lengths[..., None]
    if side != "any":
        return left if side == "left" else right
    is_left = np.arange(lengths.size).reshape(lengths.shape) % 2 == 1
    return np.where(is_left[..., None], left, right)


def move_padding_to_declared_side(
    inputs: Mapping[str, Array], graph: Graph, defaults: Graph | None
) -> dict[str, Array]:
    """Permute the positions of inputs such that each mask computed by `defaults` is padded on the
    declared side.

    Masks that are computed from random ids may have padding at any position. The output of a model
    is only defined for padding on the declared side: an LSTM with `keep[batch, src] right` runs
    over as many positions as the mask has true elements.
    """
    moved_inputs = dict(inputs)
    for name in defaults.outputs if defaults is not None else ():
        side = graph.input_facts[name].padding_side if name in graph.inputs else ""
        if defaults is None or side not in ("left", "right") or name in inputs:
            continue
        shape = graph.inputs[name].shape
        sources = find_default_inputs(defaults, name)
        if not sources <= moved_inputs.keys():
            continue
        mask_graph = build_input_defaults_graph(defaults, (name,))
        mask = backend.load_reference_backend().evaluate_graph(
            mask_graph, {n: moved_inputs[n] for n in sources}, {}
        )[name]
        order = np.argsort(mask != (side == "right"), axis=-1, kind="stable")
        for source in sources:
            if graph.inputs[source].shape[: len(shape)] == shape:
                array = moved_inputs[source]
                indices = order.reshape(*order.shape, *[1] * (array.ndim - order.ndim))
                moved_inputs[source] = np.take_along_axis(array, indices, axis=order.ndim - 1)
    return moved_inputs


@dataclass(frozen=True)
class StepInputSampler:
    """A sampler of step graph inputs, with states from the encoder and from a previous step."""

    metadata: GenerationMetadata
    weights: Arrays
    encoder: Graph | None = None
    encoder_weights: Arrays | None = None

    def sample_step_inputs(
        self,
        step: Graph,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        density: float = DEFAULT_DENSITY,
    ) -> dict[str, Array]:
        """Sample step graph inputs with the axis sizes `sizes`, which include the past length."""
        new = self._find_new_symbol(step)
        past = self._find_past_symbol(step, new)
        # If no state's size is the past length, an integer input contains the past length.
        default_past = (
            self.get_max_lengths(step).get(PAST_LENGTH_INPUT, 3)
            if PAST_LENGTH_INPUT in step.inputs
            else 0
        )
        count = sizes.get(past, default_past)
        # the previous step and the sampled step use the same encoder outputs
        inputs = make_random_inputs(step, sizes, rng, density)
        encoded = self._sample_encoder_outputs(inputs, sizes, rng)
        inputs |= {n: encoded[n] for n in self.metadata.loop_invariant_inputs if n in encoded}
        # The new positions of the previous step are the past positions of the sampled step. Inputs
        # that contain all positions are sliced.
        first = {**inputs, **make_random_inputs(step, {**sizes, new: count, past: 0}, rng, density)}
        first |= {n: inputs[n] for n in self.metadata.loop_invariant_inputs}
        first_length = count * self._chunk_size
        first |= {n: inputs[n][:, :first_length] for n in self.metadata.full_inputs}
        for state in self.metadata.states:
            zeros = np.zeros(first[state.name].shape, NUMPY_DTYPES[state.type.dtype])
            start = encoded[state.initial_output] if state.initial_output else zeros
            # the initial state remains an input of the sampled step only if the past length is 0
            first[state.name] = inputs[state.name] = start
        if PAST_LENGTH_INPUT in step.inputs:
            first[PAST_LENGTH_INPUT], inputs[PAST_LENGTH_INPUT] = np.array(0), np.array(count)
        outputs = {s.name: s.next_output for s in self.metadata.states}
        return inputs | _run_first_step(step, first, self.weights, outputs) if count else inputs

    @property
    def _chunk_size(self) -> int:
        """The number of input positions that form one position of the step graph."""
        return self.metadata.chunk_config.step_length if self.metadata.chunk_config else 1

    def get_max_lengths(self, step: Graph) -> dict[str, int]:
        """Return the maximum lengths of symbolic dimensions. If a position embedding limits the sum
        of past and new length, each of them gets half of the limit.
        """
        bounds = {n: b.high for n, b in self.metadata.length_bounds.items() if b.high is not None}
        if self.metadata.max_context is None:
            return bounds
        new = self._find_new_symbol(step)
        past = self._find_past_symbol(step, new) or PAST_LENGTH_INPUT
        limit = self.metadata.max_context // self._chunk_size
        # limit each length to half of the position embedding, so that both lengths can vary
        return {**bounds, past: limit // 2, new: limit - limit // 2}

    def _find_new_symbol(self, step: Graph) -> str:
        """Return the symbolic dimension of the new positions (or chunks) of a step graph."""
        new_length = step.inputs[self.metadata.generation.sequence_input].shape[1]
        return next(iter(new_length.symbols()))

    def _find_past_symbol(self, step: Graph, new: str) -> str:
        """Return the symbolic dimension of the past length, or "" if there is none."""
        lengths = [s.type.shape[a] for s in self.metadata.states if (a := s.time_axis) is not None]
        lengths += [step.inputs[n].shape[1] for n in self.metadata.full_inputs]
        # the axis size of a state may also depend on the input lengths of the encoder
        encoder_inputs = self.encoder.inputs.values() if self.encoder else ()
        others = {new, *collect_shape_symbols(encoder_inputs)}
        symbols = [symbol for d in lengths for symbol in sorted(d.symbols())]
        return next((symbol for symbol in symbols if symbol not in others), "")

    def _sample_encoder_outputs(
        self, step_inputs: Arrays, sizes: Mapping[str, int], rng: np.random.Generator
    ) -> dict[str, Array]:
        """Run the encoder on random inputs and on the inputs it shares with the step."""
        if self.encoder is None:
            return {}
        symbols = collect_shape_symbols(self.encoder.inputs.values())
        inputs = make_random_inputs(self.encoder, {**dict.fromkeys(symbols, 1), **sizes}, rng)
        shared = self.encoder.inputs.keys() & {*self.metadata.loop_invariant_inputs}
        inputs |= {n: step_inputs[n] for n in shared}
        # the generated input is empty when the encoder runs, so only its other axis sizes matter
        if (name := self.metadata.generation.sequence_input) in inputs:
            inputs[name] = inputs[name][:, :0]
        weights = self.encoder_weights or {}
        results = backend.load_reference_backend().evaluate_graph(self.encoder, inputs, weights)
        outputs = self.encoder.outputs
        return {n: _convert_dtype(v, outputs[n].dtype) for n, v in results.items()}


def _convert_dtype(value: Array, dtype: str) -> Array:
    """Convert an array to the NumPy dtype of the element type `dtype`."""
    return np.asarray(value).astype(NUMPY_DTYPES[dtype])


PAST, PRESENT = "past_key_values.", "present."
"""Name prefixes of the states before and after a step, as in Optimum and onnxruntime-genai."""


def find_past_key_value_states(step: Graph) -> dict[str, str]:
    """Map each state of another exporter's step graph to the output that updates the state.
    Constant states (cross-attention keys and values) are omitted.
    """
    output_names = {name: PRESENT + name.removeprefix(PAST) for name in step.inputs}
    return {
        name: result
        for name, result in output_names.items()
        if name.startswith(PAST) and result in step.outputs
    }


def make_step_input_sampler(weights: Arrays) -> SampleInputs:
    """Return a function that samples inputs for the step graph of another exporter. The function
    runs the step once with empty states and uses the resulting states.
    """

    def sample(
        step: Graph,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        density: float = DEFAULT_DENSITY,
    ) -> dict[str, Array]:
        inputs = make_random_inputs(step, sizes, rng, density)
        states = find_past_key_value_states(step)
        new, past = _find_length_symbols(step, states)
        count = sizes.get(past, 0)
        if not count:  # a step without past positions has empty states
            return inputs
        first = make_random_inputs(step, {**sizes, new: count, past: 0}, rng, density)
        for name, value in step.inputs.items():
            symbols = collect_shape_symbols([value])
            if past in symbols and new in symbols:
                # a mask over all positions must begin with the mask of the first step
                inputs[name][..., :count] = first[name]
            elif not {past, new} & symbols:
                first[name] = inputs[name]
        return inputs | _run_first_step(step, first, weights, states)

    return sample


def _run_first_step(
    step: Graph, first_inputs: Arrays, weights: Arrays, outputs: Mapping[str, str]
) -> dict[str, Array]:
    """Run a first step and return the resulting states. `outputs` maps states to outputs."""
    results = backend.load_reference_backend().evaluate_graph(step, first_inputs, weights)
    return {
        name: _convert_dtype(results[output], step.inputs[name].dtype)
        for name, output in outputs.items()
    }


def _find_length_symbols(step: Graph, states: Mapping[str, str]) -> tuple[str, str]:
    """Find the symbolic dimensions of the new and the past length in a state that grows."""
    for name, result in states.items():
        past_shape, present_shape = step.inputs[name].shape, step.outputs[result].shape
        for past, present in zip(past_shape, present_shape, strict=True):
            new_symbols = sorted((present - past).symbols()) if past != present else []
            if len(new_symbols) == 1 and len(past.symbols()) == 1:
                return new_symbols[0], str(past)
    return "", ""
