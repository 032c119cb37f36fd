"""Inputs that grow with the sequence next to the token ids: masks, position ids."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

import numpy as np

from specc import backend
from specc.decode.token_choice import Bools, Ints
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model import extract_tokenwise_default, find_default_sources, resolve_absent_inputs
from specc.ir.types import Type
from specc.preprocessing.text_batches import find_mask_input
from specc.runtime.model_inputs import ModelInputs


@dataclass(kw_only=True)
class PerTokenInputs:
    """The inputs along the time axis other than tokens, extended during generation.

    The caller's values are for the prompt. For generated tokens an input with a default is
    recomputed from the whole sequence. A padding mask is true there if it has no default or
    declares a side. Other inputs are errors. `given` has all positions, the newest `count` being
    new, `once` the other inputs, `tokens` i64[batch n] the sequences; `tables` cache token-wise
    defaults. For finished sequences `over`, bool[batch], the mask is false.
    """

    input_signature: ModelInputs
    given: dict[str, Array]
    once: dict[str, Array]
    tokens: Ints
    count: int = 0
    tables: dict[str, Array] = field(default_factory=dict)
    over: Bools | None = None

    @classmethod
    def of(cls, input_signature: ModelInputs, prepared: Mapping[str, Array]) -> "PerTokenInputs":
        """Create from prepared inputs. Raise E0912 for a prompt with padding on the right."""
        growing, inputs = input_signature.growing, input_signature.graph.inputs
        length = inputs[growing].type.shape[1]
        # inputs with one position per token grow with the tokens
        long = {n for n, v in inputs.items() if length in v.type.shape} - {growing}
        names = [name for name in inputs if name in long & prepared.keys()]
        facts = input_signature.graph.input_facts
        for name in (n for n in names if facts[n].keep == "right"):
            if not np.all(prepared[name]):
                _behind_padding(name, growing)
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
            if self.over is not None and inputs[name].type.dtype == "bool":
                whole[self.over, -count:] = False
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
                _fail_unknown(name, growing)
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
        keep = find_mask_input(self.input_signature.graph, self.input_signature.growing)
        known = self.given.get(keep) if keep else None
        if known is None:
            return np.full(len(self.tokens), not self.tokens.shape[1])
        return np.array(~known.any(axis=1))

    def reorder(self, rows: Ints) -> None:
        """Reorder batch elements: r becomes `rows[r]`."""
        inputs = self.input_signature.graph.inputs
        batch = inputs[self.input_signature.growing].type.shape[0]
        self.tokens = self.tokens[rows]
        for held in (self.given, self.once):
            for name, value in held.items():
                if (axis := batch_axis(inputs[name].type, batch)) is not None:
                    held[name] = np.take(value, rows, axis)

    @cached_property
    def _order_inputs(self) -> list[tuple[str, list[int]]]:
        """The inputs with a time axis in dependency order, each with its time axes."""
        inputs = self.input_signature.graph.inputs
        length = inputs[self.input_signature.growing].type.shape[1]
        return [
            (name, [n for n, d in enumerate(inputs[name].type.shape) if d == length])
            for name in _in_order(self.given, self.input_signature.defaults, self._compute_inputs)
        ]

    def _compute_defaults(self, name: str) -> Array:
        """Compute the default of an input for the whole sequence."""
        defaults, growing = self.input_signature.defaults, self.input_signature.growing
        assert defaults is not None, "a computed input has a default"
        known = {**self.once, **self.given, growing: self.tokens}
        return _compute_default(defaults, name, known, {*self.once, growing})


def split_new_positions(rows: PerTokenInputs, size: int) -> Iterator[PerTokenInputs]:
    """Yield `rows` up to each `size` new positions, which are the new ones; the last piece may be
    shorter. A size of 0 yields all new positions at once.
    """
    inputs, end = rows.input_signature.graph.inputs, rows.tokens.shape[1]
    length = inputs[rows.input_signature.growing].type.shape[1]
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


def _compute_default(
    defaults: Graph, name: str, known: Mapping[str, Array], whole: set[str]
) -> Array:
    """Evaluate a default on all known inputs, among them `whole`."""
    alone = resolve_absent_inputs(defaults, (name,))
    # values that are not read may not have grown yet
    used = whole | find_default_sources(alone, name)
    found = {n: known[n] for n in alone.inputs if n in used and n in known}
    return np.array(backend.load_reference().evaluate_graph(alone, found, {})[name])


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


def _fail_unknown(name: str, growing: str) -> NoReturn:
    raise_error(
        "E0944",
        f"`{name}` has no value for generated positions of `{growing}`",
        notes=[f"`{name}` has one value per position of `{growing}`"],
        helps=[f"add a default in the spec: `{name}: … = expression of {growing}`"],
    )


def _behind_padding(name: str, growing: str) -> NoReturn:
    raise_error(
        "E0912",
        f"cannot generate after padding, and `{name}` is padded on the right",
        notes=[f"new positions of `{growing}` are appended there"],
        helps=[
            f"declare `{name}` as `keep[…] left`, or as `keep[…]`",
            "or batch prompts of equal length",
        ],
    )
