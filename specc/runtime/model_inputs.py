"""Inputs of a graph: names, types, lengths, defaults; masks and position ids during generation."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

import numpy as np

from specc import backend
from specc.analysis.time_axis import find_padding_strides
from specc.artifact.generation_facts import find_length_bounds
from specc.decode.token_choice import Bools, Ints
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc.ir.ir_text import parse_dim
from specc.ir.model import extract_tokenwise_default, find_default_sources, resolve_absent_inputs
from specc.ir.types import Type
from specc.preprocessing.array_files import cast_exactly
from specc.preprocessing.images import is_multi_image_input, merge_images, split_images
from specc.preprocessing.input_checks import InputSpec, LengthBound, check_inputs
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.python_values import convert_image_lists, convert_input, convert_to_array
from specc.preprocessing.text_batches import encode_text_inputs, find_mask_input, is_left_padded


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
    def mask(self) -> str:
        """The padding mask of the input `growing`; "" if there is none."""
        return find_mask_input(self.graph, self.growing)

    @property
    def batch(self) -> Dim:
        """The batch size: the first length of the input `growing`."""
        return self.graph.inputs[self.growing].type.shape[0]

    @property
    def length(self) -> Dim:
        """The length of the time axis: the second length of the input `growing`."""
        return self.graph.inputs[self.growing].type.shape[1]

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
        checked = check_inputs(specs, given, bounds=dict(self.bounds), evaluate_dim=_solve_lengths)
        whole = {**self._fill_defaults(checked), **checked}
        for name in self.strides.keys() & whole.keys():
            _check_strides(name, whole[name], self.strides[name])
        return whole

    def _convert_value(self, name: str, value: object) -> object:
        """Convert the value of an input: an array, texts, or lists of numbers unchanged."""
        several = is_multi_image_input(self.graph, self.reading, name)
        texts = convert_image_lists(self.reading, name, value) if several else []
        if texts:
            return merge_images(self.graph, name, texts)
        return convert_input(self.reading, name, value)

    def _fill_defaults(self, given: Arrays) -> dict[str, Array]:
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
        return {
            name: cast_exactly(np.asarray(value), inputs[name].type.dtype, name)
            for name, value in made.items()
            if name in inputs
        }


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


def _check_strides(name: str, keep: Array, stride: int) -> None:
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


@dataclass(kw_only=True)
class PerTokenInputs:
    """The inputs along the time axis other than tokens, extended during generation.

    The caller's values are for the prompt. For generated tokens an input with a default is
    recomputed from the whole sequence. A padding mask is true there if it has no default or
    declares a side. Other inputs are errors. `given` has all positions, the newest `count` being
    new, `once` the other inputs, `tokens` i64[batch n] the sequences; `tables` cache token-wise
    defaults. For `finished` sequences, bool[batch], the mask is false.
    """

    input_signature: ModelInputs
    given: dict[str, Array]
    once: dict[str, Array]
    tokens: Ints
    count: int = 0
    tables: dict[str, Array] = field(default_factory=dict)
    finished: Bools | None = None

    @classmethod
    def of(cls, input_signature: ModelInputs, prepared: Arrays) -> "PerTokenInputs":
        """Create from prepared inputs. Raise E0912 for a prompt with padding on the right."""
        growing, inputs = input_signature.growing, input_signature.graph.inputs
        length = input_signature.length
        # inputs with one position per token grow with the tokens
        long = {n for n, v in inputs.items() if length in v.type.shape} - {growing}
        names = [name for name in inputs if name in long & prepared.keys()]
        facts = input_signature.graph.input_facts
        for name in (n for n in names if facts[n].keep == "right"):
            if not np.all(prepared[name]):
                _fail_behind_padding(name, growing)
        given = {n: prepared[n] for n in names}
        once = {n: v for n, v in prepared.items() if n not in names and n != growing}
        return cls(
            input_signature=input_signature,
            given=given,
            once=once,
            tokens=prepared[growing],
            count=prepared[growing].shape[1],
        )

    def extend(self, tokens: Ints) -> None:
        """Append inputs for new tokens; the first call, with the prompt, has them already."""
        self.tokens = np.concatenate([self.tokens, tokens], axis=1)
        inputs = self.input_signature.graph.inputs
        count = self.count = tokens.shape[1]
        for name, axes in self._order_inputs:
            whole = self._append_positions(name, axes, tokens)
            # A finished sequence is continued next to the others with padded positions.
            if self.finished is not None and inputs[name].type.dtype == "bool":
                whole[self.finished, -count:] = False
            self.given[name] = whole

    def newest(self, name: str) -> Array:
        """Return the newest positions of an input, along the first of its time axes."""
        value, axis = self.given[name], dict(self._order_inputs)[name][0]
        first = value.shape[axis] - self.count
        return np.take(value, np.arange(first, value.shape[axis]), axis)

    def _append_positions(self, name: str, axes: Sequence[int], tokens: Ints) -> Array:
        """Extend an input along `axes` for new tokens; earlier values stay, whatever its default
        would compute now.
        """
        old, count = self.given[name], tokens.shape[1]
        before = tuple(map(slice, old.shape))
        # An input without a known value for generated positions: they are valid.
        if name not in self._compute_inputs:
            sizes = [n + count if axis in axes else n for axis, n in enumerate(old.shape)]
            whole: Array = np.ones(sizes, np.bool_)
            whole[before] = old
            return whole
        # a default that reads one token at a time: from a table of all tokens
        each = self._compute_inputs[name]
        if each is not None:
            new = self._of_tokens(name, each, tokens).astype(old.dtype)
            return np.concatenate([old, new], axis=1)
        whole = self._compute_defaults(name).astype(old.dtype)
        whole[before] = old
        return whole

    @cached_property
    def _compute_inputs(self) -> dict[str, Graph | None]:
        """Inputs computed for generated tokens, with the token-wise graph if there is one. E0944
        for one without a default.
        """
        defaults, growing = self.input_signature.defaults, self.input_signature.growing
        found: dict[str, Graph | None] = {}
        for name in self.given:
            keep = self.input_signature.graph.input_facts[name].keep
            if defaults is not None and name in defaults.outputs:
                if keep in ("", "any"):
                    found[name] = extract_tokenwise_default(defaults, name, growing)
            elif not keep:
                raise_error(
                    "E0944",
                    f"`{name}` has no value for generated positions of `{growing}`",
                    notes=[f"`{name}` has one value per position of `{growing}`"],
                    helps=[f"add a default in the spec: `{name}: … = expression of {growing}`"],
                )
        return found

    def _of_tokens(self, name: str, each: Graph, tokens: Ints) -> Array:
        """Look up a token-wise default in a table over the vocabulary so far."""
        most = int(tokens.max(initial=0))
        if most >= len(self.tables.get(name, ())):
            every = np.arange(2 * most + 2)[None]
            made = backend.load_reference().evaluate_graph(
                each, {self.input_signature.growing: every}, {}
            )
            self.tables[name] = made[name][0]
        return self.tables[name][tokens]

    @property
    def empty(self) -> Bools:
        """Sequences without a token so far, bool[batch]; padding does not count."""
        known = self.given.get(self.input_signature.mask)
        if known is None:
            return np.full(len(self.tokens), not self.tokens.shape[1])
        return np.array(~known.any(axis=1))

    def reorder(self, rows: Ints) -> None:
        """Reorder batch elements: r becomes `rows[r]`."""
        inputs, batch = self.input_signature.graph.inputs, self.input_signature.batch
        self.tokens = self.tokens[rows]
        for held in (self.given, self.once):
            for name, value in held.items():
                if (axis := batch_axis(inputs[name].type, batch)) is not None:
                    held[name] = np.take(value, rows, axis)

    @cached_property
    def _order_inputs(self) -> list[tuple[str, list[int]]]:
        """The inputs with a time axis in dependency order, each with its time axes."""
        inputs, length = self.input_signature.graph.inputs, self.input_signature.length
        return [
            (name, [n for n, d in enumerate(inputs[name].type.shape) if d == length])
            for name in _in_order(self.given, self.input_signature.defaults, self._compute_inputs)
        ]

    def _compute_defaults(self, name: str) -> Array:
        """Compute the default of an input for the whole sequence."""
        defaults, growing = self.input_signature.defaults, self.input_signature.growing
        assert defaults is not None, "a computed input has a default"
        known = {**self.once, **self.given, growing: self.tokens}
        alone = resolve_absent_inputs(defaults, (name,))
        # values that are not read may not have grown yet
        used = {*self.once, growing} | find_default_sources(alone, name)
        inputs = {n: known[n] for n in alone.inputs if n in used and n in known}
        return np.array(backend.load_reference().evaluate_graph(alone, inputs, {})[name])


def split_new_positions(rows: PerTokenInputs, size: int) -> Iterator[PerTokenInputs]:
    """Yield `rows` up to each `size` new positions, which are the new ones; the last piece may be
    shorter. A size of 0 yields all new positions at once.
    """
    inputs, length = rows.input_signature.graph.inputs, rows.input_signature.length
    end = rows.tokens.shape[1]
    start = end - rows.count
    while size and end - start > size:
        stop = start = start + size
        given = {
            name: value[tuple(slice(stop if d == length else None) for d in shape)]
            for name, value in rows.given.items()
            for shape in (inputs[name].type.shape,)
        }
        yield replace(rows, given=given, tokens=rows.tokens[:, :stop], count=size)
    yield replace(rows, count=end - start)


def _in_order(names: Iterable[str], defaults: Graph | None, following: Container[str]) -> list[str]:
    """Sort inputs topologically by the dependencies of their defaults."""
    waiting = [*names]
    follows = {
        n: find_default_sources(defaults, n) - {n} if defaults and n in following else set()
        for n in waiting
    }
    made: list[str] = []
    while waiting:
        ready = (n for n in waiting if not follows[n] & {*waiting})
        made.append(next(ready, waiting[0]))
        waiting.remove(made[-1])
    return made


def batch_axis(type: Type, batch: Dim) -> int | None:
    """Return the batch axis, or None."""
    return next((n for n, d in enumerate(type.shape) if d == batch), None)


def _fail_behind_padding(name: str, growing: str) -> NoReturn:
    raise_error(
        "E0912",
        f"cannot generate after padding, and `{name}` is padded on the right",
        notes=[f"new positions of `{growing}` are appended there"],
        helps=[
            f"declare `{name}` as `keep[…] left`, or as `keep[…]`",
            "or batch prompts of equal length",
        ],
    )
