"""Two ways to go on with a text: a step graph with its states, or the whole graph
again.

Both are steppers (`specc.decode.stepper`): they are fed new tokens and give the logits
behind the last. What a step graph keeps stays with the runtime, on its device; only
tokens and logits come and go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

import numpy as np

from specc import backend
from specc.artifact.facts import Facts
from specc.backend import Computing, Held, Session
from specc.data.batch import keep_of
from specc.decode.stepper import Bools, Floats, Ints
from specc.ir.array import Array
from specc.ir.defaults import closed, of_each_token, reads
from specc.ir.derived import OFFSET
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc.run.elements import NUMPY, zeros_of
from specc.run.inputs import Entrance
from specc.text.diagnostic import fail

SHORTEST = 64
"""Rows of a buffer at first."""


@dataclass(kw_only=True)
class Rows:
    """The inputs along the growing axis beside the growing one, as the text grows.

    What a caller gives is for the prompt. For what is written, an input with a default
    is computed, from all that is there. One that says which rows exist is true where it
    has none, or declares a side: padding can stand only there. For any other nothing
    can be known. `given` has all rows, `fresh` the newest, `once` the other inputs,
    `tokens` i64[batch n] the text; `tables` tell what defaults make of each token. Of
    texts that are `over`, bool[batch], nothing that is fed exists.
    """

    entrance: Entrance
    given: dict[str, Array]
    once: dict[str, Array]
    tokens: Ints
    fresh: dict[str, Array] = field(default_factory=dict)
    tables: dict[str, Array] = field(default_factory=dict)
    over: Bools | None = None

    @classmethod
    def of(cls, entrance: Entrance, prepared: Mapping[str, Array]) -> "Rows":
        """From prepared inputs. E0912 for a prompt with padding on the right, behind
        which nothing can be written.
        """
        growing, inputs = entrance.growing, entrance.graph.inputs
        length = inputs[growing].type.shape[1]
        # what has a row for each token grows with them
        long = {n for n, v in inputs.items() if length in v.type.shape} - {growing}
        names = [name for name in inputs if name in long & prepared.keys()]
        facts = entrance.graph.input_facts
        for name in (n for n in names if facts[n].keep == "right"):
            if not np.all(prepared[name]):
                _behind_padding(name, growing)
        given = {n: prepared[n] for n in names}
        once = {n: v for n, v in prepared.items() if n not in names and n != growing}
        return cls(
            entrance=entrance,
            given=given,
            once=once,
            tokens=prepared[growing],
            fresh=dict(given),
        )

    def extend(self, tokens: Ints) -> None:
        """New rows behind those that there are: the first call, with the prompt, has
        them already.
        """
        self.tokens = np.concatenate([self.tokens, tokens], axis=1)
        inputs, count = self.entrance.graph.inputs, tokens.shape[1]
        length = inputs[self.entrance.growing].type.shape[1]
        for name in self._in_order():
            axes = [n for n, d in enumerate(inputs[name].type.shape) if d == length]
            old, last = self.given[name], axes[0]
            shape = [
                size + count if n in axes else size for n, size in enumerate(old.shape)
            ]
            # An input of which nothing is known for rows that are written: they exist.
            if name not in self._following:
                whole = np.ones(shape, np.bool_)
                whole[tuple(slice(size) for size in old.shape)] = old
            # a default that looks at one token at a time: from a table of all tokens
            elif (each := self._following[name]) is not None:
                new = self._of_tokens(name, each, tokens).astype(old.dtype)
                whole = np.concatenate([old, new], axis=1)
            else:
                whole = self._computed(name).astype(old.dtype)
                whole[tuple(slice(size) for size in old.shape)] = old
            if self.over is not None and inputs[name].type.dtype == "bool":
                whole[self.over, -count:] = False
            self.given[name] = whole
            rows = np.arange(shape[last] - count, shape[last])
            self.fresh[name] = np.take(whole, rows, last)

    @cached_property
    def _following(self) -> dict[str, Graph | None]:
        """The inputs whose written rows are computed: by what makes one of each token
        alone, where it is so. E0944 for one that has no default.
        """
        defaults, growing = self.entrance.defaults, self.entrance.growing
        found: dict[str, Graph | None] = {}
        for name in self.given:
            keep = self.entrance.graph.input_facts[name].keep
            if defaults is not None and name in defaults.outputs:
                if keep in ("", "any"):
                    found[name] = of_each_token(defaults, name, growing)
            elif not keep:
                _unknown(name, growing)
        return found

    def _of_tokens(self, name: str, each: Graph, tokens: Ints) -> Array:
        """What a default says of tokens, looked up in what it says of all so far."""
        most = int(tokens.max(initial=0))
        if most >= len(self.tables.get(name, ())):
            every = np.arange(2 * most + 2)[None]
            made = backend.reference().run(each, {self.entrance.growing: every}, {})
            self.tables[name] = made[name][0]
        return self.tables[name][tokens]

    @property
    def empty(self) -> Bools:
        """Which texts have no token yet, bool[rows]: padding is none."""
        keep = keep_of(self.entrance.graph, self.entrance.growing)
        known = self.given.get(keep) if keep else None
        if known is None:
            return np.full(len(self.tokens), not self.tokens.shape[1])
        return np.array(~known.any(axis=1))

    def reorder(self, rows: Ints) -> None:
        """Row r becomes what row `rows[r]` was."""
        inputs = self.entrance.graph.inputs
        batch = inputs[self.entrance.growing].type.shape[0]
        self.tokens = self.tokens[rows]
        for held in (self.given, self.once):
            for name, value in held.items():
                if (axis := batch_axis(inputs[name].type, batch)) is not None:
                    held[name] = np.take(value, rows, axis)

    def _in_order(self) -> list[str]:
        """The inputs with the growing axis, each behind those that it follows from."""
        defaults, waiting = self.entrance.defaults, [*self.given]
        follows = {
            n: reads(defaults, n) - {n} if defaults and n in self._following else set()
            for n in waiting
        }
        made: list[str] = []
        while waiting:
            ready = (n for n in waiting if not follows[n] & {*waiting})
            made.append(next(ready, waiting[0]))
            waiting.remove(made[-1])
        return made

    def _computed(self, name: str) -> Array:
        """The default of an input, for the whole text."""
        defaults, growing = self.entrance.defaults, self.entrance.growing
        assert defaults is not None, "what is computed has a default"
        alone = closed(defaults, (name,))
        # what is not read may not have grown yet
        used = {*self.once, growing, *reads(alone, name)}
        known = {**self.once, **self.given, growing: self.tokens}
        found = {n: known[n] for n in alone.inputs if n in used and n in known}
        return np.array(backend.reference().run(alone, found, {})[name])


class FullStepper:
    """Runs the whole graph on everything written so far: n tokens cost n full passes."""

    def __init__(
        self,
        session: Computing,
        entrance: Entrance,
        source: str,
        prepared: Mapping[str, Array],
    ) -> None:
        self.session, self.entrance, self.source = session, entrance, source
        self.rows = Rows.of(entrance, prepared)
        self.started = False
        self.results: dict[str, Array] = {}

    def step(self, tokens: Ints) -> Floats:
        """i64[rows n] → f32[rows vocab]."""
        if self.started:
            self.rows.extend(tokens)
        begins, self.started = not self.started, True
        self.results = self.session.run(
            {
                **self.rows.once,
                **self.rows.given,
                self.entrance.growing: self.rows.tokens,
            }
        )
        made = self.results[self.source]
        count = self.rows.tokens.shape[1]
        # Behind the last row that stands before a text its first token is drawn.
        if begins and made.ndim == 3 and made.shape[1] > count:
            return _begun(_newest(made), made[:, -1 - count], self.rows.empty)
        return _newest(made)

    def reorder(self, rows: Ints) -> None:
        """Row r goes on from what row `rows[r]` was."""
        self.rows.reorder(rows)


class StateStepper:
    """Runs a step graph: new rows in, logits out, states handed on."""

    def __init__(
        self,
        facts: Facts,
        entrance: Entrance,
        encode: Session | None,
        step: Session,
        graph: Graph,
        prepared: Mapping[str, Array],
    ) -> None:
        self.facts, self.entrance, self.run, self.graph = facts, entrance, step, graph
        self.rows = Rows.of(entrance, prepared)
        self.started = False
        self.batch = entrance.graph.inputs[entrance.growing].type.shape[0]
        growing = prepared[entrance.growing]
        made: dict[str, Held] = {}
        if encode is not None:
            given = {
                n: prepared[n] if n != entrance.growing else growing[:, :0]
                for n in encode.inputs
            }
            made = encode.tensors(given)
        env = lengths(entrance.graph, prepared)
        self.handed = {
            n: made[n] if n in made else step.tensor(prepared[n]) for n in facts.handed
        }
        self.states = {
            s.name: made[s.initial] if s.initial else step.tensor(zeros_of(s, env))
            for s in facts.states
        }
        self.first = _newest(made[facts.first].numpy()) if facts.first else None
        self.results: dict[str, Array] = {}
        self.buffers = tuple(s for s in facts.states if s.name in facts.in_place)
        self.past = 0

    def step(self, tokens: Ints) -> Floats:
        """i64[rows n] → f32[rows vocab]; of no token, what a text begins with."""
        begins = None if self.started else self.first
        if begins is not None and not tokens.shape[1]:
            self.started = True
            return begins
        if self.buffers and self.past and min(tokens.shape) > 1:
            # the kernel takes several rows at once only at the beginning, or for one
            # text
            return [self.step(tokens[:, n : n + 1]) for n in range(tokens.shape[1])][-1]
        if self.started:
            self.rows.extend(tokens)
        self.started = True
        given = self._given(tokens)
        into = {s.next: self.states[s.name] for s in self.buffers}
        results = self.run.tensors({**given, **self.handed, **self.states}, into)
        self.past += tokens.shape[1]
        after = {s.name: results.pop(s.next) for s in self.facts.states}
        # a buffer is what it was: the runtime does not own its memory, so what it gives
        # back must not be kept instead
        buffers = {s.name: self.states[s.name] for s in self.buffers}
        self.states = {**after, **buffers}
        self.results = {name: value.numpy() for name, value in results.items()}
        made = _newest(self.results[self.facts.generation.source])
        return made if begins is None else _begun(made, begins, self.rows.empty)

    def _given(self, tokens: Ints) -> dict[str, Array | Held]:
        """What is fed beside the states: the new tokens, and of inputs along their axis
        the new rows, or all where the step looks at all of them (a padding mask).
        """
        given: dict[str, Array | Held] = {self.entrance.growing: tokens}
        for name, every in self.rows.given.items():
            if name in self.run.inputs:
                whole = name in self.facts.whole
                given[name] = every if whole else self.rows.fresh[name]
        if self.buffers:
            self._make_room(tokens.shape[1])
            given[OFFSET] = np.array(self.past, np.int64)
        return given

    def _make_room(self, count: int) -> None:
        """Buffers for so many more rows: twice as long as long as they are too short."""
        wanted = self.past + count
        for state in self.buffers:
            old = self.states[state.name]
            shape = old.shape()
            if shape[2] >= wanted:
                continue
            length = max(shape[2], SHORTEST)
            while length < wanted:
                length *= 2
            # what is behind the filled rows is never read, but may not be NaN
            sizes = (*shape[:2], length - shape[2], shape[3])
            more = self.run.tensor(np.zeros(sizes, NUMPY[state.type.dtype]))
            self.states[state.name] = self.run.joined([old, more], 2)

    def reorder(self, rows: Ints) -> None:
        """Row r goes on from what row `rows[r]` was, caches and all."""
        self.rows.reorder(rows)
        axes = {s.name: s.batch for s in self.facts.states}
        self.states = {
            n: self._picked(v, axes[n], rows) for n, v in self.states.items()
        }
        for name, value in self.handed.items():
            self.handed[name] = self._picked(
                value, batch_axis(self.graph.inputs[name].type, self.batch), rows
            )

    def _picked(self, value: Held, axis: int | None, rows: Ints) -> Held:
        if axis is None:
            return value
        if value.shape()[axis] == len(rows) and np.array_equal(
            rows, np.arange(len(rows))
        ):
            return value
        return self.run.rows_of(value, axis, rows)


def _newest(logits: Array) -> Floats:
    """f32[rows vocab] of f32[rows n vocab], or of a result that is the newest row alone."""
    made: Floats = logits if logits.ndim == 2 else logits[:, -1]
    return made


def _begun(logits: Floats, first: Floats, empty: Bools) -> Floats:
    """Logits f32[rows vocab] behind prompts, and where there is none, behind what stands
    before it.
    """
    made: Floats = np.where(empty[:, None], first, logits)
    return made


def batch_axis(type: Type, batch: Dim) -> int | None:
    """The axis whose length is that of the batch."""
    return next((n for n, d in enumerate(type.shape) if d == batch), None)


def lengths(graph: Graph, prepared: Mapping[str, Array]) -> dict[str, int]:
    """Every length that the shapes of inputs tell by themselves."""
    return {
        d.name: size
        for name, value in graph.inputs.items()
        if name in prepared
        for d, size in zip(value.type.shape, np.shape(prepared[name]), strict=True)
        if d.name
    }


def _unknown(name: str, growing: str) -> NoReturn:
    fail(
        "E0944",
        f"nothing says what `{name}` is for the rows of `{growing}` that are written",
        notes=[f"`{name}` has a value for every row of `{growing}`"],
        helps=[f"give it a default in the spec: `{name}: … = expression of {growing}`"],
    )


def _behind_padding(name: str, growing: str) -> NoReturn:
    fail(
        "E0912",
        f"nothing can be written behind padding, and `{name}` has it on the right",
        notes=[f"`{growing}` grows there"],
        helps=[
            f"declare `{name}` as `keep[…] left`, or as `keep[…]`",
            "or write texts of one length together",
        ],
    )
