"""A graph with casts around what is computed in 16 bits.

    y = linear(x, w)       →    y = linear(cast(x, f16), cast(w, f16))

Each value of f32 is one of three: *thin*, made in 16 bits; *wide*, made in 32; or
*neutral*: constants, tables of positions and weights, which are read in whatever width
the other operands have. Values whose names other programs know (inputs and results)
stay of f32, but for what one derived graph hands to another.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from specc.ir import ops
from specc.ir.derived import Derived, State
from specc.ir.graph import Builder, Graph, Node, Value
from specc.ir.op import Op
from specc.passes.narrow.kinds import (
    DECIDING,
    MOVES,
    PRODUCTS,
    TABLES,
    follows,
    passes_on,
)

Half: TypeAlias = Literal["f16", "bf16"]
Width: TypeAlias = Literal["thin", "wide", "neutral"]

LEAST: Mapping[Half, float] = {"f16": 6.104e-5, "bf16": 1.18e-38}
MOST: Mapping[Half, float] = {"f16": 65504.0, "bf16": 3.38e38}
"""The numbers between which a type of 16 bits has all of its digits."""

KEPT_THIN = ("key", "value")
"""States that are as long as the text: what attention reads at every step."""


def narrow(graph: Graph, half: Half) -> Graph:
    """`graph` computing in `half`; its inputs and results stay as they are."""
    return _narrowed(graph, half, {}, dict.fromkeys(graph.outputs, "f32"))[0]


def narrow_derived(derived: Derived, half: Half) -> Derived:
    """A graph taken apart, computing in `half`. Keys and values are kept in it, other
    states in f32; what `encode` hands on is as it was made.
    """
    states = tuple(_state(s, half) for s in derived.states)
    thin = {s.name for s in states if s.type.dtype == half}
    handed: dict[str, str] = {}
    encode = derived.encode
    if encode is not None:
        # what a state starts as has the state's type; else it goes on as it was made
        told = {s.initial: s.type.dtype for s in states if s.initial}
        open_ = set(derived.handed) - told.keys() - {derived.first}
        results = {n: told.get(n, "f32") for n in encode.outputs if n not in open_}
        encode, handed = _narrowed(encode, half, {}, results)
    given = {**dict.fromkeys(thin, half), **handed}
    nexts = {s.next: s.type.dtype for s in states}
    outputs = {n: nexts.get(n, "f32") for n in derived.step.outputs}
    step, _ = _narrowed(derived.step, half, given, outputs)
    return replace(derived, encode=encode, step=step, states=states)


def _state(state: State, half: Half) -> State:
    if state.role in KEPT_THIN and state.type.dtype == "f32":
        return replace(state, type=replace(state.type, dtype=half))
    return state


def _narrowed(
    graph: Graph, half: Half, given: Mapping[str, str], results: Mapping[str, str]
) -> tuple[Graph, dict[str, str]]:
    """The graph, and the types of results that have none in `results`: they are as they
    were made. `given` are types of inputs.
    """
    made = Builder()
    walk = _Walk(made=made, half=half, late=_late(graph, results))
    for name, value in graph.inputs.items():
        facts = graph.input_facts[name]
        if given.get(name) == half and facts.type.dtype == "f32":
            facts = replace(facts, type=replace(facts.type, dtype=half))
        walk.enter(value, made.input(name, facts))
    for name, value in graph.parameters.items():
        walk.enter(value, made.parameter(graph.parameter_facts[name]), "neutral")
    walk.nodes(graph)
    made.names = {n: walk.either(v) for n, v in graph.names.items()}
    outputs: dict[str, Value] = {}
    found: dict[str, str] = {}
    for name, value in graph.outputs.items():
        wanted = results.get(name)
        if wanted is None:
            outputs[name] = walk.either(value)
            found[name] = outputs[name].type.dtype
        else:
            outputs[name] = walk.thin(value) if wanted == half else walk.wide(value)
    return made.finish(graph.name, outputs, least=graph.least, facts=graph.facts), found


def _late(graph: Graph, results: Mapping[str, str]) -> set[Node]:
    """The products that results are, or that decide something, but for what moves and
    shifts them: logits, and the scores of experts. They are computed in f32.
    """
    read: set[Value] = set()
    late: set[Node] = set()
    shown = {v for n, v in graph.outputs.items() if results.get(n) == "f32"}
    # A product that another reads is no last one, whatever shows it too. From the end
    # on: whoever reads a value stands behind the node that makes it.
    for node, made in reversed(graph.nodes):
        final = not shown.isdisjoint(made) and read.isdisjoint(made)
        if isinstance(node.op, ops.Linear | ops.MatMul) and final:
            late.add(node)
        args = [a for a in node.args if a is not None]
        on = passes_on(node.op) or isinstance(node.op, ops.Softmax)
        if isinstance(node.op, DECIDING) or (final and on):
            shown.update(args)
        else:
            read.update(args)
    return late


@dataclass(kw_only=True)
class _Walk:
    """Writes nodes again, in the width that each is computed in."""

    made: Builder
    half: Half
    late: Collection[Node] = ()
    widths: dict[Value, Width] = field(default_factory=dict)
    wides: dict[Value, Value] = field(default_factory=dict)
    thins: dict[Value, Value] = field(default_factory=dict)

    def enter(self, old: Value, new: Value, width: Width = "wide") -> None:
        """A value that is there, as `new`."""
        thin = old.type.dtype == "f32" and new.type.dtype == self.half
        (self.thins if thin else self.wides)[old] = new
        self.widths[old] = "thin" if thin else width

    def wide(self, old: Value) -> Value:
        """A value as it was, in f32 if it has a fraction."""
        if old not in self.wides:
            self.wides[old] = self.made.one(ops.Cast("f32"), self.thins[old])
        return self.wides[old]

    def thin(self, old: Value) -> Value:
        """A value of f32 in 16 bits, any other as it was."""
        if old.type.dtype != "f32":
            return self.wide(old)
        if old not in self.thins:
            node = old.node
            neutral = self.widths[old] == "neutral"
            # A view of a weight stays one: whoever reads it looks for the weight.
            if node is not None and neutral and isinstance(node.op, MOVES):
                args = [a and self.thin(a) for a in node.args]
                self.thins[old] = self.made.add(node.op, *args)[old.index]
            else:
                self.thins[old] = self.made.one(ops.Cast(self.half), self.wide(old))
        return self.thins[old]

    def either(self, old: Value) -> Value:
        """A value as it was made."""
        return self.thins[old] if self.widths[old] == "thin" else self.wide(old)

    def nodes(self, graph: Graph) -> None:
        """Every node of a graph, in order."""
        for node, results in graph.nodes:
            width = self._width(node)
            new = self._written(node, width)
            for old, one in zip(results, new, strict=True):
                self.enter(old, one, "neutral" if width == "neutral" else "wide")
            known = graph.made.get(node)
            if known and new and new[0].node:
                self.made.made[new[0].node] = known

    def _written(self, node: Node, width: Width) -> tuple[Value, ...]:
        """The node again, its operands in its width."""
        if width != "thin":
            return self.made.add(node.op, *(a and self.wide(a) for a in node.args))
        op: Op = node.op
        if isinstance(op, ops.Route):
            op = replace(op, body=self._expert(op.body))
        return self.made.add(op, *(a and self.thin(a) for a in node.args))

    def _expert(self, body: Graph) -> Graph:
        """The body of experts, which takes and gives rows of 16 bits."""
        given = dict.fromkeys(body.inputs, self.half)
        results = dict.fromkeys(body.outputs, self.half)
        return _narrowed(body, self.half, given, results)[0]

    def _width(self, node: Node) -> Width:
        """In what a node is computed."""
        op = node.op
        if isinstance(op, PRODUCTS):
            return "wide" if node in self.late or not self._floats(node) else "thin"
        if isinstance(op, ops.Constant):
            return "neutral" if self._fits(op) else "wide"
        if isinstance(op, TABLES):
            return "neutral"
        if not follows(op):
            return "wide"
        # One wide operand makes the result wide: its digits would be lost in a sum.
        found = {self.widths[a] for a in self._floats(node)}
        if "wide" in found or not found:
            return "wide"
        return "thin" if "thin" in found else "neutral"

    def _floats(self, node: Node) -> list[Value]:
        return [a for a in node.args if a is not None and a.type.dtype == "f32"]

    def _fits(self, constant: ops.Constant) -> bool:
        """Whether a number is one of 16 bits too, but for digits."""
        size = abs(float(constant.value))
        return size == 0 or LEAST[self.half] <= size <= MOST[self.half]
