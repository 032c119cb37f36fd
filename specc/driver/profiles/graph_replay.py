"""Rebuild graphs under new names and lengths."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.derived_graphs import DecodeState
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Node, Value
from specc.ir.op import Op
from specc.ir.symbol_substitution import substitute_graph_symbols
from specc.ir.types import Type


@dataclass(frozen=True)
class ProfiledGraphs:
    """Derived graphs under the names of a profile.

    `graphs` holds each by the stem of its file (`decoder_model` for
    `decoder_model.onnx`). `states` are those between steps, under the names they have
    there. `files` are JSON data to be written beside them, by file name.
    """

    graphs: Mapping[str, Graph]
    states: tuple[DecodeState, ...]
    files: Mapping[str, object] = field(default_factory=dict)


READERS = {
    "hf": "programs that read this form (Optimum, transformers.js)",
    "genai": "onnxruntime-genai",
}
"""Who reads what each profile writes, as a message says it."""


def fail_unsupported_profile(profile: str, why: str, notes: Iterable[str] = ()) -> NoReturn:
    """E0752: the model has something that the names of a profile have no place for."""
    raise_error(
        "E0752",
        f"this model cannot be written in the form `{profile}`: {why}",
        notes=notes,
        helps=[
            "`--names specc` writes every model: each state is an input and an output of its own"
        ],
    )


@dataclass
class GraphReplay:
    """A graph that is being put together. `now` maps values of the others to its own."""

    b: Builder = field(default_factory=Builder)
    now: dict[Value, Value] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Dim] = field(default_factory=dict)

    def _bring_parameters(self, graph: Graph, node: Node) -> None:
        names = {value: name for name, value in graph.parameters.items()}
        for a in node.args:
            if a in names and a not in self.now:
                self.now[a] = self.b.parameter(graph.parameter_facts[names[a]])

    def bring(self, graph: Graph, wanted: Iterable[Value]) -> None:
        """Play again what `wanted` values of `graph` are made of, as far as they are not known."""
        live = self._missing(wanted)
        for node, results in graph.nodes:
            if node not in live:
                continue
            self._bring_parameters(graph, node)
            made = self._add(node.op, tuple(a and self.now[a] for a in node.args))
            self.now.update(zip(results, made, strict=True))
            if (known := graph.made.get(node)) and made[0].node:
                self.b.made.setdefault(made[0].node, known)
        self.b.names |= {n: self.now[v] for n, v in graph.names.items() if v in self.now}
        self.least |= graph.least
        self.facts |= graph.facts

    def _missing(self, wanted: Iterable[Value]) -> set[Node]:
        live: set[Node] = set()
        todo = [v for v in wanted if v not in self.now]
        while todo:
            node = todo.pop().node
            if node and node not in live:
                live.add(node)
                todo += [a for a in node.args if a and a not in self.now]
        return live

    def _add(self, op: Op, args: tuple[Value | None, ...]) -> tuple[Value, ...]:
        """Nothing is joined to rows that are none."""
        if isinstance(op, ops.Concat):
            some = tuple(a for a in args if a and a.type.shape[op.axis] != 0)
            if len(some) == 1:
                return some
        return self.b.add(op, *args)

    def filled(self, type: Type, number: float | bool) -> Value:
        """The same number everywhere."""
        made = self.b.one(ops.Constant(number, type.dtype))
        for axis, length in enumerate(type.shape):
            made = self.b.one(ops.Insert(axis), made)
            made = self.b.one(ops.Expand(axis, length), made)
        return made

    def mask(self, name: str, type: Type) -> Value:
        """An input of whole numbers, 0 for padding, as truths."""
        given = self.b.input(name, Input(Type("i64", type.shape)))
        return self.b.one(ops.Compare("ne"), given, self.b.one(ops.Constant(0, "i64")))

    def finish(self, name: str, outputs: Mapping[str, Value]) -> Graph:
        """The graph, with the bounds of the symbols that are left in it."""
        symbols = _symbols(self.b.inputs.values())
        least = {n: m for n, m in self.least.items() if n in symbols}
        facts = {n: d for n, d in self.facts.items() if n in symbols}
        return self.b.finish(name, outputs, least=least, facts=facts)


def rename_lengths(graph: Graph, lengths: Mapping[str, Dim]) -> Graph:
    """`graph` with other symbols, or numbers, in place of some; one that is left and
    has a new name already yields.
    """
    symbols = _symbols(graph.inputs.values())
    taken = set().union(*(d.symbols() for d in lengths.values()))
    # A spec may call an axis `batch_size` that is not the batch: it becomes
    # `batch_size_` before the batch gets that name.
    clash = {s: Dim.symbol(f"{s}_") for s in (symbols - lengths.keys()) & taken}
    every = {**clash, **{s: d for s, d in lengths.items() if d.name != s}}

    def renamed(symbol: str) -> str:
        """The symbol now; empty where it has become a number or a sum."""
        return every[symbol].name or "" if symbol in every else symbol

    least = {renamed(s): rows for s, rows in graph.least.items() if renamed(s)}
    facts = {renamed(s): dim.substitute(every) for s, dim in graph.facts.items() if renamed(s)}
    return replace(substitute_graph_symbols(graph, every), least=least, facts=facts)


def _symbols(values: Iterable[Value]) -> set[str]:
    """The symbols among the lengths of some values."""
    return {s for v in values for d in v.type.shape for s in d.symbols()}
