"""Rebuild graphs with other names, axis lengths and inputs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.derived_graphs import DecodeState
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Node, Value, substitute_graph_symbols
from specc.ir.op import Op
from specc.ir.types import Type


@dataclass(frozen=True)
class ProfiledGraphs:
    """Derived graphs with the names of a profile.

    `graphs` maps the file stem (`decoder_model` for `decoder_model.onnx`) to the graph.
    `states` are passed from step to step, with the profile's names. `files` is JSON
    content by file name, written next to the graphs.
    """

    graphs: Mapping[str, Graph]
    states: tuple[DecodeState, ...]
    files: Mapping[str, object] = field(default_factory=dict)


PROFILE_READERS = {
    "hf": "the reader of this profile (Optimum, transformers.js)",
    "genai": "onnxruntime-genai",
}
"""The programs that read each profile, as messages name them."""


def fail_unsupported_profile(profile: str, why: str, notes: Iterable[str] = ()) -> NoReturn:
    """Raise E0752: the profile has no names for something that the model needs."""
    raise_error(
        "E0752",
        f"this model does not fit the profile `{profile}`: {why}",
        notes=notes,
        helps=[
            "`--io-names specc` fits every model: each state is an input and an output of its own"
        ],
    )


@dataclass
class GraphReplay:
    """Graph under construction; `now` maps values of the source graphs to its values."""

    b: Builder = field(default_factory=Builder)
    now: dict[Value, Value] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Dim] = field(default_factory=dict)

    def _copy_parameters(self, graph: Graph, node: Node) -> None:
        names = {value: name for name, value in graph.parameters.items()}
        for a in node.args:
            if a in names and a not in self.now:
                self.now[a] = self.b.parameter(graph.parameter_facts[names[a]])

    def bring(self, graph: Graph, wanted: Iterable[Value]) -> None:
        """Copy the nodes that compute `wanted` values of `graph` and are not copied yet."""
        live = self._uncopied_nodes(wanted)
        for node, results in graph.nodes:
            if node not in live:
                continue
            self._copy_parameters(graph, node)
            made = self._add(node.op, tuple(a and self.now[a] for a in node.args))
            self.now.update(zip(results, made, strict=True))
            if (known := graph.made.get(node)) and made[0].node:
                self.b.made.setdefault(made[0].node, known)
        self.b.names |= {n: self.now[v] for n, v in graph.names.items() if v in self.now}
        self.least |= graph.least
        self.facts |= graph.facts

    def _uncopied_nodes(self, wanted: Iterable[Value]) -> set[Node]:
        live: set[Node] = set()
        todo = [v for v in wanted if v not in self.now]
        while todo:
            node = todo.pop().node
            if node and node not in live:
                live.add(node)
                todo += [a for a in node.args if a and a not in self.now]
        return live

    def _add(self, op: Op, args: tuple[Value | None, ...]) -> tuple[Value, ...]:
        """Add a node; a concatenation with zero-length operands drops these."""
        if isinstance(op, ops.Concat):
            some = tuple(a for a in args if a and a.type.shape[op.axis] != 0)
            if len(some) == 1:
                return some
        return self.b.add(op, *args)

    def filled(self, type: Type, number: float | bool) -> Value:
        """Return a constant tensor: `number` expanded to the shape of `type`."""
        made = self.b.one(ops.Constant(number, type.dtype))
        for axis, length in enumerate(type.shape):
            made = self.b.one(ops.Insert(axis), made)
            made = self.b.one(ops.Expand(axis, length), made)
        return made

    def mask(self, name: str, type: Type) -> Value:
        """Declare an int64 mask input (0 for padding) and return it as booleans."""
        given = self.b.input(name, Input(Type("i64", type.shape)))
        return self.b.one(ops.Compare("ne"), given, self.b.one(ops.Constant(0, "i64")))

    def finish(self, name: str, outputs: Mapping[str, Value]) -> Graph:
        """Return the finished graph with the length bounds of its remaining symbols."""
        symbols = _symbols(self.b.inputs.values())
        least = {n: m for n, m in self.least.items() if n in symbols}
        facts = {n: d for n, d in self.facts.items() if n in symbols}
        return self.b.finish(name, outputs, least=least, facts=facts)


def rename_lengths(graph: Graph, lengths: Mapping[str, Dim]) -> Graph:
    """Return `graph` with symbols replaced by other symbols or integers.

    An existing symbol that clashes with a new name is renamed with a trailing `_`.
    """
    symbols = _symbols(graph.inputs.values())
    taken = set().union(*(d.symbols() for d in lengths.values()))
    # A spec may call an axis `batch_size` that is not the batch: it becomes
    # `batch_size_` before the batch gets that name.
    clash = {s: Dim.symbol(f"{s}_") for s in (symbols - lengths.keys()) & taken}
    every = {**clash, **{s: d for s, d in lengths.items() if d.name != s}}

    def renamed(symbol: str) -> str:
        """Return the new name of a symbol; empty if it became an integer or a sum."""
        return every[symbol].name or "" if symbol in every else symbol

    least = {renamed(s): rows for s, rows in graph.least.items() if renamed(s)}
    facts = {renamed(s): dim.substitute(every) for s, dim in graph.facts.items() if renamed(s)}
    return replace(substitute_graph_symbols(graph, every), least=least, facts=facts)


def _symbols(values: Iterable[Value]) -> set[str]:
    """Return the symbols that occur in the shapes of values."""
    return {s for v in values for d in v.type.shape for s in d.symbols()}
