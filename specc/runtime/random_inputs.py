"""Random inputs of a graph for given lengths, and of a step graph after a prefix."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from specc import backend
from specc.analysis.length_limits import find_max_lengths, find_min_lengths
from specc.analysis.value_ranges import find_constant_fraction, skip_views
from specc.artifact.generation_facts import GenerationFacts
from specc.ir import ops
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.length_constraints import find_total_strides, find_valid_lengths
from specc.ir.model import PAST_LENGTH_INPUT
from specc.runtime.steppers import NUMPY_DTYPES

DrawInputs: TypeAlias = Callable[
    [Graph, Mapping[str, int], np.random.Generator, float], dict[str, Array]
]
"""Draws the inputs of a graph for given lengths and a density of booleans."""

DIM_SIZES = (1, 2, 3, 5, 7, 11, 13)
MAX_PLAIN_INT = 10
PLAIN_INT_BOUNDS = (3, MAX_PLAIN_INT)
"""Upper bounds of random integers that are not indices."""
SPECIAL_ID_SHARE = 0.3
"""Share of ids drawn from those that the graph compares them with, as with an image token."""
DEFAULT_DENSITY = 0.7
"""Default probability of true in random booleans."""
BOOLEAN_DENSITIES = (DEFAULT_DENSITY, 1.0, 0.02)
"""Probabilities of true in random booleans: default, dense and sparse."""


def _find_symbols(values: Iterable[Value]) -> set[str]:
    """Return the dynamic lengths of values."""
    return {symbol for v in values for dim in v.type.shape for symbol in dim.symbols()}


def _add_derived_lengths(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return lengths with those that follow from them."""
    env = dict(sizes)
    for name, dim in graph.length_equations.items():
        env[name] = dim.evaluate(env)
    return env


def sizes_for(graph: Graph, turn: int, most: Mapping[str, int] | None = None) -> dict[str, int]:
    """Choose a length for every symbol: the smallest first, then distinct primes, so that swapped
    axes are detected.

    Lengths respect position tables and `most`. If the graph is undefined at these, the nearest
    valid lengths are used.
    """
    above = find_max_lengths(graph)
    above |= most or {}
    least = find_min_lengths(graph)
    sizes, rows = {}, {}
    # A length with a fact follows from others.
    free = _find_symbols(graph.inputs.values()) - graph.length_equations.keys()
    for n, symbol in enumerate(sorted(free)):
        wanted = rows[symbol] = 1 if turn == 0 else DIM_SIZES[(n + turn) % len(DIM_SIZES)]
        sizes[symbol] = max(
            min(wanted, above.get(symbol, wanted)),
            graph.min_lengths.get(symbol, 1),
            least.get(symbol, 1),
        )
    found = find_valid_lengths(graph, sizes, above)
    if found is None:
        return sizes
    strides, has_empty = find_total_strides(graph), _has_empty_input(graph, found)
    longer = {
        symbol: _with_stride(max(found[symbol], stride * has_empty), rows[symbol], stride, turn)
        for symbol, stride in strides.items()
        if symbol in found
    }
    return find_valid_lengths(graph, found | longer, above) or found


def _has_empty_input(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Return True if an input has no elements, as results of a stride longer than the axis."""
    env = _add_derived_lengths(graph, sizes)
    return any(d.evaluate(env) < 1 for v in graph.inputs.values() for d in v.type.shape)


def _with_stride(length: int, rows: int, stride: int, turn: int) -> int:
    """Return a length that gives `rows` positions after a stride, in every other round with a
    remainder. `length` gives at least one, in which nothing can be exchanged.
    """
    part = turn > 0 and turn % 2 == 0
    if length > rows:
        return length + (rows - 1 + part) * stride - part
    return length if turn % 2 == 0 else -(-length // stride) * stride


def random_inputs(
    graph: Graph,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    density: float = DEFAULT_DENSITY,
) -> dict[str, Array]:
    """Generate random inputs: ids inside their tables, padding on the declared side, values around
    zero, booleans true with probability `density`.

    It also sets how dense padding masks are: no padding at 1, almost all padding near 0.
    """
    env = _add_derived_lengths(graph, sizes)
    looked_up, compared = shortest_tables(graph, env), find_compared_ids(graph)
    made: dict[str, Array] = {}
    for name, value in graph.inputs.items():
        shape = tuple(d.evaluate(env) for d in value.type.shape)
        facts = graph.input_facts[name]
        if facts.keep:
            made[name] = _draw_mask(shape, facts.keep, rng, density)
        elif value.type.dtype == "bool":
            made[name] = rng.random(shape) < density
        elif value.type.dtype in ("i64", "i32"):
            special = compared.get(value, ())
            ids = _draw_ids(shape, facts.below, looked_up.get(value), special, rng, density)
            made[name] = ids.astype("i8" if value.type.dtype == "i64" else "i4")
        else:
            made[name] = rng.normal(size=shape).astype("f4")
    return made


def shortest_tables(graph: Graph, sizes: Mapping[str, int]) -> dict[Value, int]:
    """Return, for each integer input that indexes a table (even transformed), the rows of the
    smallest such table.

    `embedding(max(ids, 0))` bounds `ids`, though `ids` itself is no index. Loop bodies are skipped:
    scanned inputs have their own bound there.
    """
    reached = {v: {v} for v in graph.inputs.values() if _is_whole(v)}
    shortest: dict[Value, int] = {}
    for node, results in graph.nodes:
        if table := _table_of(node):
            ids, rows = table[0], table[1].evaluate(sizes)
            for value in reached.get(ids, ()):
                shortest[value] = min(shortest.get(value, rows), rows)
        # Floats are not ids, whatever they were computed from.
        sources = set().union(*(reached.get(a, ()) for a in node.args if a))
        reached |= {result: sources for result in results if _is_whole(result)}
    return shortest


def find_compared_ids(graph: Graph) -> dict[Value, list[int]]:
    """Return the numbers that a graph compares integer inputs with for equality."""
    found: dict[Value, list[int]] = {}
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Compare) and node.op.fn in ("eq", "ne"):
            for operand, other in (node.args, node.args[::-1]):
                ids, number = skip_views(operand, ops.Cast), find_constant_fraction(other)
                if ids is not None and ids.node is None and number is not None:
                    found.setdefault(ids, []).append(int(number))
    return found


def _is_whole(value: Value) -> bool:
    return value.type.dtype in ("i64", "i32")


def _table_of(node: Node) -> tuple[Value, Dim] | None:
    """Return the ids of a table lookup and the table's rows."""
    match node.op:
        case ops.Embedding():
            return node.op.ids(node), node.op.table(node).type.shape[0]
        case ops.Gather(axis=axis):
            return node.op.ids(node), node.op.table(node).type.shape[axis]
    return None


def _draw_ids(
    shape: tuple[int, ...],
    below: Dim | None,
    rows: int | None,
    special: Sequence[int],
    rng: np.random.Generator,
    density: float,
) -> Array:
    """Sample ids or other integers: below a declared bound, or as indices of a table of `rows`,
    among them the `special` ones.
    """
    bound = below.number if below is not None else None
    # ids that are modified on their way to a table have no bound of their own
    plain = min(rows, MAX_PLAIN_INT) if rows else int(rng.choice(PLAIN_INT_BOUNDS))
    highest = bound or plain
    ids = rng.integers(0, highest, shape)
    if ids.size > 1:  # among them the last and the first
        ids.flat[0], ids.flat[-1] = highest - 1, 0
    if below is None and density < DEFAULT_DENSITY:
        ids *= rng.random(shape) < density  # a mask of integers
    if valid := [n for n in special if n < (bound or rows or n + 1)]:
        ids = np.where(rng.random(shape) < SPECIAL_ID_SHARE, rng.choice(valid, shape), ids)
    return ids


def _draw_mask(
    shape: tuple[int, ...], side: str, rng: np.random.Generator, density: float
) -> Array:
    """Generate a padding mask: the first batch element is full, all others have some padding.

    Density 1 means no padding, near 0 mostly padding. Without a declared side, left and right
    padding alternate.
    """
    length = shape[-1]
    # from half of the default density up: between half of a row and all of it
    least = length // 2 if density == DEFAULT_DENSITY else int(length * density)
    lengths = (
        rng.integers(max(1, least), length + 1, shape[:-1]) if length else np.zeros(shape[:-1], int)
    )
    if density == DEFAULT_DENSITY:
        lengths = np.minimum(lengths, max(1, length - 1))
    if density >= DEFAULT_DENSITY:
        lengths.reshape(-1)[:1] = length
    else:
        lengths = np.minimum(lengths, max(1, least))
    row = np.arange(length)
    left, right = row >= (length - lengths[..., None]), row < lengths[..., None]
    if side != "any":
        return left if side == "left" else right
    turns = np.arange(lengths.size).reshape(lengths.shape) % 2 == 1
    return np.where(turns[..., None], left, right)


@dataclass(frozen=True)
class StepInputs:
    """Random inputs of a step graph, computed by the reference from `encode` and the step."""

    facts: GenerationFacts
    weights: Arrays
    encode: Graph | None = None
    encode_weights: Arrays | None = None

    def draw(
        self,
        step: Graph,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        density: float = DEFAULT_DENSITY,
    ) -> dict[str, Array]:
        """Sample inputs for lengths of the step graph, after as many past positions as the lengths
        say.
        """
        new = self._find_new_symbol(step)
        past = self._find_past_symbol(step, new)
        # A step without a state of the past length gets it as a number.
        default_past = (
            self.most(step).get(PAST_LENGTH_INPUT, 3) if PAST_LENGTH_INPUT in step.inputs else 0
        )
        count = sizes.get(past, default_past)
        # values from `encode` are the same for the first call and the next
        made = random_inputs(step, sizes, rng, density)
        once = self._draw_encoder_outputs(made, sizes, rng)
        made |= {n: once[n] for n in self.facts.static_inputs if n in once}
        # The first call has as many new positions as precede those of the next one; of inputs that
        # cover all positions it gets the first ones.
        first = {**made, **random_inputs(step, {**sizes, new: count, past: 0}, rng, density)}
        first |= {n: made[n] for n in self.facts.static_inputs}
        rows = count * self._get_chunk_size
        first |= {n: made[n][:, :rows] for n in self.facts.whole}
        for state in self.facts.states:
            zeros = np.zeros(first[state.name].shape, NUMPY_DTYPES[state.type.dtype])
            start = once[state.initial_output] if state.initial_output else zeros
            # the next call keeps these only if there is no first one
            first[state.name] = made[state.name] = start
        if PAST_LENGTH_INPUT in step.inputs:
            first[PAST_LENGTH_INPUT], made[PAST_LENGTH_INPUT] = (np.array(0), np.array(count))
        outputs = {s.name: s.next_output for s in self.facts.states}
        return made | _run_first_step(step, first, self.weights, outputs) if count else made

    @property
    def _get_chunk_size(self) -> int:
        """Number of input positions per step position."""
        return self.facts.chunks.step_length if self.facts.chunks else 1

    def most(self, step: Graph) -> dict[str, int]:
        """Return the maximum past and new lengths, where a position table bounds their sum."""
        bounds = {n: b.high for n, b in self.facts.bounds.items() if b.high is not None}
        if self.facts.max_context is None:
            return bounds
        new = self._find_new_symbol(step)
        past = self._find_past_symbol(step, new) or PAST_LENGTH_INPUT
        most = self.facts.max_context // self._get_chunk_size
        # half of the table for either, so that both can be tried
        rows = {past: most // 2, new: most - most // 2}
        return {**bounds, **rows}

    def _find_new_symbol(self, step: Graph) -> str:
        """Return the symbol of the new positions (or chunks) of a step."""
        length = step.inputs[self.facts.generation.growing].type.shape[1]
        return next(iter(length.symbols()))

    def _find_past_symbol(self, step: Graph, new: str) -> str:
        """Return the symbol of the past length; "" if no dimension has it."""
        lengths = [s.type.shape[s.time_axis] for s in self.facts.states if s.time_axis is not None]
        lengths += [step.inputs[n].type.shape[1] for n in self.facts.whole]
        symbols = [symbol for d in lengths for symbol in sorted(d.symbols())]
        return next((symbol for symbol in symbols if symbol != new), "")

    def _draw_encoder_outputs(
        self, made: Arrays, sizes: Mapping[str, int], rng: np.random.Generator
    ) -> dict[str, Array]:
        """Return random outputs of `encode`; inputs shared with the step are the same for both."""
        if self.encode is None:
            return {}
        symbols = _find_symbols(self.encode.inputs.values())
        given = random_inputs(self.encode, {**dict.fromkeys(symbols, 1), **sizes}, rng)
        given |= {n: made[n] for n in self.encode.inputs if n in self.facts.static_inputs}
        # Only its lengths are read: no position exists when `encode` runs.
        growing = self.facts.generation.growing
        if growing in given:
            given[growing] = given[growing][:, :0]
        results = backend.load_reference().evaluate_graph(
            self.encode, given, self.encode_weights or {}
        )
        return {n: _convert_dtype(v, self.encode.outputs[n].type.dtype) for n, v in results.items()}


def _convert_dtype(value: Array, dtype: str) -> Array:
    """Convert values to the model's dtype."""
    return np.asarray(value).astype(NUMPY_DTYPES[dtype])


PAST, PRESENT = "past_key_values.", "present."
"""Prefixes of a state before and after a step in Optimum's and onnxruntime-genai's models."""


def states_by_name(step: Graph) -> dict[str, str]:
    """Return the states of a step named as in other exporters, each with the output that updates
    it. Constant states (the cross-attention keys) have none.
    """
    after = {name: PRESENT + name.removeprefix(PAST) for name in step.inputs}
    return {
        name: result
        for name, result in after.items()
        if name.startswith(PAST) and result in step.outputs
    }


def sample_step_inputs(weights: Arrays) -> DrawInputs:
    """Return a sampler for steps named as in other exporters: it runs the step on a prefix from an
    empty state and uses the resulting states.
    """

    def draw(
        step: Graph,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        density: float = DEFAULT_DENSITY,
    ) -> dict[str, Array]:
        made = random_inputs(step, sizes, rng, density)
        states = states_by_name(step)
        new, past = _find_length_symbols(step, states)
        count = sizes.get(past, 0)
        if not count:  # a step without past positions has no computed state
            return made
        first = random_inputs(step, {**sizes, new: count, past: 0}, rng, density)
        for name, value in step.inputs.items():
            symbols = _find_symbols([value])
            if past in symbols and new in symbols:
                # a mask over all positions must repeat its earlier values
                made[name][..., :count] = first[name]
            elif not {past, new} & symbols:
                first[name] = made[name]
        return made | _run_first_step(step, first, weights, states)

    return draw


def _run_first_step(
    step: Graph, first: Arrays, weights: Arrays, outputs: Mapping[str, str]
) -> dict[str, Array]:
    """Return the states after a first call of the step, given the output of each."""
    after = backend.load_reference().evaluate_graph(step, first, weights)
    return {
        name: _convert_dtype(after[output], step.inputs[name].type.dtype)
        for name, output in outputs.items()
    }


def _find_length_symbols(step: Graph, states: Mapping[str, str]) -> tuple[str, str]:
    """Return the symbols of the new and the past length, from a state that grows."""
    for name, result in states.items():
        before, behind = step.inputs[name].type.shape, step.outputs[result].type.shape
        for a, b in zip(before, behind, strict=True):
            more = sorted((b - a).symbols()) if a != b else []
            if len(more) == 1 and len(a.symbols()) == 1:
                return more[0], str(a)
    return "", ""
