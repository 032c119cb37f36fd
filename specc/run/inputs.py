"""What a caller may give a model: names, types and lengths of its inputs, checked and
completed before it runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specc import backend
from specc.artifact.bounds import bounds_of
from specc.data.arrays import exact
from specc.data.batch import encode_each, pads_left, with_texts
from specc.data.check import Bound, InputSpec, check_inputs
from specc.data.reading import Reading
from specc.data.record import TEXT
from specc.data.several import in_one, shared_out, takes_several
from specc.data.taken import as_array, of_texts, taken
from specc.ir.array import Array
from specc.ir.defaults import closed, reads
from specc.ir.dim import DimError
from specc.ir.dim_text import parse_dim
from specc.ir.graph import Graph
from specc.passes.measure.strides import strides_before
from specc.text.brief import brief
from specc.text.diagnostic import Diagnostic, fail


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """The inputs of `graph`, how `reading` reads them and how `defaults` computes those
    that are absent.

    `growing` is the input that grows, where one does; `bounds` says what each length
    may be, `strides` of how many rows padding in front consists, where an input says
    which rows exist. `unread` are inputs that nothing reads, which may be left out.
    """

    graph: Graph
    reading: Reading
    defaults: Graph | None = None
    growing: str = ""
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    strides: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return brief(f"entrance of {self.graph.signed()}")

    @property
    def specs(self) -> tuple[InputSpec, ...]:
        """What is checked of each input."""
        absent = {*self.unread, *(self.defaults.outputs if self.defaults else ())}
        made = []
        for name, value in self.graph.inputs.items():
            facts = self.graph.input_facts.get(name)
            dims = tuple(
                d.number if d.number is not None else str(d) for d in value.type.shape
            )
            below = facts.below.number if facts and facts.below is not None else None
            made.append(InputSpec(name, value.type.dtype, dims, below, name in absent))
        return tuple(made)

    @property
    def asked(self) -> list[str]:
        """The inputs that have no default, in order: what stands without a name is
        meant for these.
        """
        return [
            n
            for n in self.graph.inputs
            if self.defaults is None or n not in self.defaults.outputs
        ]

    def pads_left(self, name: str) -> bool:
        """Whether what is too short for an input is padded in front of it."""
        return name in self.graph.inputs and pads_left(self.graph, name, self.growing)

    def encode_each(
        self, name: str, texts: Sequence[object]
    ) -> list[Array | Diagnostic]:
        """The ids i64[length] of each text for the input `name`, or what is wrong with
        it: a bad text fails no other. E0906 for an input that reads no text.
        """
        record = self.reading.of_input(name)
        if not isinstance(record, TEXT):
            fail(
                "E0906",
                f"the input `{name}` is not read as text",
                helps=["say in the spec's `reading` how a text becomes ids"],
            )
        return encode_each(texts, record)

    def prepared(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Arrays for every input from arrays, nested lists and texts, defaults filled
        in. Fails with E09xx.
        """
        specs = self.specs
        kinds = {s.name: s for s in specs}
        # of what is no input the name alone is told, whatever it holds
        given = {name: np.empty(0) for name in inputs if name not in kinds}
        seen = {
            name: self._seen(name, value)
            for name, value in inputs.items()
            if name in kinds
        }
        for name, value in with_texts(
            self.graph, self.reading, seen, self.growing
        ).items():
            array = as_array(value, name, left=self.pads_left(name))
            given[name] = exact(array, kinds[name].dtype, name)
        given = shared_out(self.graph, self.reading, given)
        checked = check_inputs(specs, given, bounds=dict(self.bounds), solve=_solve)
        whole = {**self._filled(checked), **checked}
        for name in self.strides.keys() & whole.keys():
            _in_strides(name, whole[name], self.strides[name])
        return whole

    def _seen(self, name: str, value: object) -> object:
        """What is given as an input: an array, texts, or lists of numbers as they are."""
        several = takes_several(self.graph, self.reading, name)
        texts = of_texts(self.reading, name, value) if several else []
        if texts:
            return in_one(self.graph, name, texts)
        return taken(self.reading, name, value)

    def _filled(self, given: Mapping[str, Array]) -> dict[str, Array]:
        if self.defaults is None:
            return {}
        known_names = {*given, *self.unread}
        absent = tuple(n for n in self.defaults.outputs if n not in known_names)
        if not absent:
            return {}
        # Only what they need is run: other defaults may read inputs that are absent.
        defaults = closed(self.defaults, absent)
        known = {n: v for n, v in given.items() if n in defaults.inputs}
        made = backend.reference().run(defaults, known, {})
        inputs = self.graph.inputs
        asked = {name: value for name, value in made.items() if name in inputs}
        return {
            n: exact(np.asarray(v), inputs[n].type.dtype, n) for n, v in asked.items()
        }


def entrance_of(
    graph: Graph, reading: Reading, defaults: Graph | None, growing: str
) -> Entrance:
    """What may be given to a whole graph, as it says itself."""
    return Entrance(
        graph=graph,
        reading=reading,
        defaults=defaults,
        growing=growing,
        bounds=bounds_of(graph),
        strides=strides_before(graph),
    )


def _in_strides(name: str, keep: Array, stride: int) -> None:
    """E0325 where rows stand behind padding that is no whole number of strides."""
    before = np.where(keep.any(-1), keep.argmax(-1), 0).reshape(-1)
    odd = np.flatnonzero(before % stride)
    if odd.size:
        row, count = int(odd[0]), int(before[odd[0]])
        rows = "1 row" if count == 1 else f"{count} rows"
        fail(
            "E0325",
            f"`{name}` has {rows} of padding in front, and the model takes every "
            f"{stride} rows as one",
            notes=[f"in row {row}: with other padding other rows would be taken"],
            helps=[f"pad on the right, or on the left by a multiple of {stride}"],
        )


def unread_of(
    graph: Graph, defaults: Graph | None, read: Iterable[str]
) -> frozenset[str]:
    """The inputs of `graph` that are not `read`, nor by the default of one that is."""
    todo, found = list(read), set[str]()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += (
                reads(defaults, name) if defaults and name in defaults.outputs else ()
            )
    return frozenset(graph.inputs.keys() - found)


def _solve(text: str, env: Mapping[str, int]) -> int | None:
    try:
        return parse_dim(text).at(env)
    except DimError:
        return None
