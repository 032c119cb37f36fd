"""A model that decodes itself: what is computed once, then an ONNX `Loop` around the step; tokens in, tokens out.

The step is lowered by the same rules as any graph, into the loop's body: the first time round it takes the whole
prompt, then one token a row. Caches grow as carries (a loop copies none, and nothing in a body is updated in place,
so buffers of fixed size would be copied whole at every token). Weights, what `encode` hands over and what follows from
these alone stay in the main graph, where the body sees them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from onnx import GraphProto, TensorProto

from specc.ir import ops
from specc.ir.derived import Derived, State
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node
from specc.ir.types import Type
from specc.text.diagnostic import fail
from specc_onnx import legal
from specc_onnx.arrange import cast, full, typed, unsqueeze
from specc_onnx.build import Built, enter_parameters, finished
from specc_onnx.deciding import Carry, Decision, Start, Strategy, strategy
from specc_onnx.decoding import MAX_TOKENS
from specc_onnx.elements import CODE
from specc_onnx.emit import Emitter, Site, Tensor, declare, graph_of, unique
from specc_onnx.guards import without_padding
from specc_onnx.ingredients import Generating
from specc_onnx.lengths import Lengths
from specc_onnx.names import live
from specc_onnx.table import lower_nodes
from specc_onnx.targets import Target


def build_generating(
    whole: Generating,
    target: Target,
    opset: int = legal.USUAL,
    stored: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> Built:
    """The model that decodes itself; `stored` and `ties` as `specc_onnx.build` takes them.

    Its inputs are those of `whole.inputs`, of which those of `whole.optional` may be left out, then
    `whole.decoding.scalars`; its outputs `tokens` and `log_probs`, or `tokens` and `scores` for beam search. One whose
    name is taken by an input of the spec is numbered: `tokens_2`.
    """
    legal.check_opset(opset)
    return _Writer(whole, target, opset, stored or {}, ties or {}).run()


class _Writer:
    """Writes the main graph, then the loop.

    In beam search the prompt is read once a text, and rows fan out behind it, unless something with a row for each
    text is handed over, which does not change its shape: then every row is there `repeats` times from the start.
    """

    def __init__(
        self, whole: Generating, target: Target, opset: int, stored: Mapping[str, str], ties: Mapping[str, str]
    ) -> None:
        self.whole, self.derived, self.decoding = whole, whole.derived, whole.decoding
        graph = whole.graph
        self.types = dict(whole.inputs)
        taken = set(self.types)
        self.scalars = {name: unique(name, taken) for name in self.decoding.scalars}
        told = {n: t for n, t in self.types.items() if n not in whole.optional}
        lengths = Lengths(told, graph.facts, graph.least)
        self.g = Emitter(target, opset, lengths, {*self.types, *self.scalars.values()})
        self.outer = {n: Tensor(n, t) for n, t in self.types.items()}
        self.weights = enter_parameters(self.g, whole.parameters, stored, ties)
        shape = graph.inputs[self.derived.growing].type.shape
        assert len(shape) == 2, f"{self.derived.growing} is no row of tokens for each text"
        self.batch = shape[0]
        beams = self.decoding.beams if self.decoding.strategy == "beam" else 1
        inputs = (self.derived.step.inputs[n].type for n in self.derived.handed)
        fixed = any(self.batch in t.shape for t in inputs)
        self.repeats = beams if fixed else 1
        self.rows = self.batch * self.repeats

    def run(self) -> Built:
        g = self.g
        for name in self._sides():
            if not self.whole.graph.input_facts[name].keep:
                _unknown(name, self.derived.growing)
        self._once()
        feed = [self._feed(), *map(self._side, self._sides())]
        states = [self._state(s) for s in self.derived.states]
        handed = {n: self._handed(n) for n in self.derived.handed}
        logits = self.derived.step.outputs[self.decoding.source].type
        vocabulary = logits.shape[-1].number
        assert vocabulary is not None, "the number of tokens is known"
        g.site = Site(("choose",))
        prompt = cast(g, feed[0].first, feed[0].type.dtype, "i64")
        start = Start(self.batch, vocabulary, self.rows, self.scalars, prompt, self._keep())
        chooser = strategy(g, self.decoding, start)
        carries = [*feed, *states, *chooser.carries]
        hoisted = self._hoist(handed)
        body = self._body(carries, len(feed), handed, hoisted, chooser)
        g.site = Site(("generate",))
        some = g.node("Greater", g.dim(self.batch), g.constant(0, "i64"))
        firsts = (c.first for c in carries)
        last = g.nodes("Loop", len(carries), self.scalars[MAX_TOKENS], some, *firsts, body=body)
        outputs = chooser.outputs(g, last[len(feed) + len(states) :])
        inputs = {**self.types, **{self.scalars[n]: Type(t, ()) for n, t in self.decoding.scalars.items()}}
        taken = set(inputs)
        named = {unique(n, taken): t for n, t in outputs.items()}
        return finished(g, self.whole.graph, inputs, named, self.weights)

    # The main graph: what is computed once, and what the first step is given.

    def _once(self) -> None:
        """The first row, absent inputs, and `encode`."""
        g = self.g
        begun = self._begin() if self.whole.started else None
        for graph in (*self.whole.computed, self.derived.encode):
            if graph is None:
                continue
            self._enter(graph, self.outer)
            lower_nodes(g, graph)
            for name, value in graph.outputs.items():
                made = g.tensors[value]
                if begun and name in self.whole.keeps:  # the first row exists, even if it is the pad's token
                    made = replace(made, name=g.node("Or", made.name, begun), value=None)
                self.outer[name] = made

    def _begin(self) -> str:
        """The first row where no prompt is given, and that it exists; whether that is so, bool[1]."""
        g = self.g
        g.site = Site(("start",))
        batch, growing = g.shape([self.batch]), self.derived.growing
        type = self.types[growing]
        given = self._given(growing)
        absent = g.node("Equal", g.node("Shape", given, start=1, end=2), g.vector(0))
        made = g.node("Concat", batch, cast(g, absent, "bool", "i64"), axis=0)
        start = g.node("Expand", g.constant(self.decoding.start, type.dtype), made)
        rows = g.node("Concat", start, given, axis=1)
        self.outer[growing] = Tensor(rows, type)
        g.lengths = replace(g.lengths, inputs={**g.lengths.inputs, rows: type})
        for name in self.whole.optional:
            if name != growing:
                known = self._given(name)
                more = g.node("Sub", g.node("Shape", rows, start=1, end=2), g.node("Shape", known, start=1, end=2))
                exist = g.node("Expand", g.constant(True, "bool"), g.node("Concat", batch, more, axis=0))
                self.outer[name] = Tensor(g.node("Concat", exist, known, axis=1), self.types[name])
        return absent

    def _given(self, name: str) -> str:
        """An input that may be left out, which is then as if it had no rows: `[batch, n]`."""
        g = self.g
        g.constants[name] = TensorProto(name=name, data_type=CODE[self.types[name].dtype], dims=[1, 0])
        return g.node("Expand", name, g.node("Concat", g.shape([self.batch]), g.vector(1), axis=0))

    def _enter(self, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
        """Inputs and weights of a graph that is lowered next."""
        g = self.g
        read = {a for node, _ in graph.nodes for a in node.args} | set(graph.outputs.values())
        for name, value in graph.inputs.items():
            if name in tensors or value in read:
                g.tensors[value] = Tensor(tensors[name].name, value.type, value)
                g.padded[value] = graph.input_facts[name].keep
        for name, value in graph.parameters.items():
            g.tensors[value] = g.parameters[name]

    def _feed(self) -> Carry:
        growing = self.derived.growing
        ids = self.outer[growing]
        for name in (n for made in self.whole.computed for n in made.outputs if n in self.whole.keeps):
            ids = Tensor(without_padding(self.g, ids, self.outer[name]), ids.type)
        return Carry(growing, self.derived.step.inputs[growing].type, self._spread(ids))

    def _sides(self) -> list[str]:
        """The step's inputs along the growing axis, the growing one apart."""
        own = {self.derived.growing, *self.derived.handed, *(s.name for s in self.derived.states)}
        return [n for n in self.derived.step.inputs if n not in own]

    def _side(self, name: str) -> Carry:
        return Carry(name, self.derived.step.inputs[name].type, self._spread(self.outer[name]))

    def _state(self, state: State) -> Carry:
        if state.initial:
            return Carry(state.name, state.type, self._spread(self.outer[state.initial], state.batch))
        lengths = {str(self.batch): self.rows}
        shape = [Dim.of(0) if n == state.rows else d.substitute(lengths) for n, d in enumerate(state.type.shape)]
        self.g.site = Site(("states",))
        return Carry(state.name, state.type, full(self.g, 0, state.type.dtype, shape))

    def _handed(self, name: str) -> Tensor:
        type = self.derived.step.inputs[name].type
        return Tensor(self._spread(typed(self.outer[name].name, type.dtype, type.shape)), type)

    def _spread(self, x: Tensor, axis: int | None = None) -> str:
        """`x` with each row of the batch as often as steps have it."""
        if axis is None:
            axis = next((n for n, d in enumerate(x.type.shape) if d == self.batch), None)
        if axis is None or self.repeats == 1:
            return x.name
        g = self.g
        g.site = Site(("beams",))
        numbers = g.node("Range", g.constant(0, "i64"), g.dim(self.rows), g.constant(1, "i64"))
        return g.node("Gather", x.name, g.node("Div", numbers, g.constant(self.repeats, "i64")), axis=axis)

    def _keep(self) -> str | None:
        """Which tokens of the prompt are no padding, bool[rows, n], where that is known."""
        graph = self.whole.graph
        shape = graph.inputs[self.derived.growing].type.shape
        for name, value in graph.inputs.items():
            if graph.input_facts[name].keep and value.type.shape == shape and name in self.outer:
                return self._spread(self.outer[name])
        return None

    def _hoist(self, handed: Mapping[str, Tensor]) -> set[Node]:
        """Lower the step's nodes that are the same at every step into the main graph; gives them."""
        step, g = self.derived.step, self.g
        fixed = set(fixed_nodes(step, handed))
        inputs = {t.name: t.type for t in handed.values()}
        self._enter(replace(step, inputs={n: step.inputs[n] for n in handed}, outputs={}), handed)
        known, g.lengths = g.lengths, Lengths(inputs, step.facts, self.whole.graph.least)
        types, before = g.bodies[0].types, set(g.bodies[0].types)
        lower_nodes(g, step, fixed)
        for name in types.keys() - before:  # the step's batch is all rows, which out here have a length of their own
            shape = tuple(d.substitute({str(self.batch): self.rows}) for d in types[name].shape)
            types[name] = Type(types[name].dtype, shape)
        g.lengths = known
        return fixed

    # The loop's body: the step, then the choice.

    def _body(
        self,
        carries: Sequence[Carry],
        fed: int,
        handed: Mapping[str, Tensor],
        hoisted: set[Node],
        chooser: Strategy,
    ) -> GraphProto:
        g, step = self.g, self.derived.step
        stateful = fed + len(self.derived.states)
        with g.body() as opened:
            g.site = Site(("step",))
            iteration, going = (Tensor(g.unique(g.place(n)), Type(t, ())) for n, t in (("i", "i64"), ("go", "bool")))
            names = [Tensor(g.unique(g.place(c.wish)), c.type) for c in carries]
            inner = {c.wish: t for c, t in zip(carries[:stateful], names, strict=False)}
            told = {t.name: t.type for t in (*inner.values(), *handed.values())}
            least = {**step.least, str(self.batch): 1}
            with g.rooted(Lengths(told, step.facts, least)):
                self._enter(step, {**inner, **handed})
                lower_nodes(g, step, {node for node, _ in step.nodes} - hoisted)
                g.site = Site(("choose",))
                decision = chooser.step(g, self._logits(), iteration.name, [t.name for t in names[stateful:]])
                after = [
                    self._next_feed(decision),
                    *(self._next_side(n, inner[n], decision) for n in self._sides()),
                    *(self._next_state(s, decision) for s in self.derived.states),
                    *decision.after,
                ]
            results = _own(g, [decision.more, *after])
            opened.nodes = live(opened.nodes, results)
        inputs = [declare(t.name, t.type) for t in (iteration, going, *names)]
        return graph_of("step", opened, results, [Type("bool", ()), *(_after(c) for c in carries)], inputs)

    def _logits(self) -> str:
        """The newest row's, f32[rows, vocabulary]."""
        value = self.derived.step.outputs[self.decoding.source]
        tensor, g = self.g.tensors[value], self.g
        name = tensor.name if tensor.type.rank == 2 else g.node("Squeeze", tensor.name, g.vector(1))
        return cast(g, name, tensor.type.dtype, "f32")

    def _next_feed(self, decision: Decision) -> str:
        dtype = self.derived.step.inputs[self.derived.growing].type.dtype
        return cast(self.g, unsqueeze(self.g, decision.tokens, 1), "i64", dtype)

    def _next_side(self, name: str, x: Tensor, decision: Decision) -> str:
        grown = self._grown(name, x)
        axis = next((n for n, d in enumerate(x.type.shape) if d == self.batch), None)
        if decision.parents is None or axis is None or self.repeats > 1:  # else the rows of a text are all the same
            return grown
        return self.g.node("Gather", grown, decision.parents, axis=axis)

    def _grown(self, name: str, x: Tensor) -> str:
        """An input that says which rows exist for the next step: one more row, which does."""
        g, whole = self.g, name in self.derived.whole
        axis = _growing_axis(x.type, self.derived)
        newest = g.node("Slice", x.name, g.vector(-1), g.vector(2**31 - 1), g.vector(axis))
        newest = g.node("Expand", g.constant(True, "bool"), g.node("Shape", newest))
        return g.node("Concat", x.name, newest, axis=axis) if whole else newest

    def _next_state(self, state: State, decision: Decision) -> str:
        made = self.g.tensors[self.derived.step.outputs[state.next]].name
        if decision.parents is None or state.batch is None:
            return made
        return self.g.node("Gather", made, decision.parents, axis=state.batch)


def fixed_nodes(step: Graph, handed: Iterable[str]) -> list[Node]:
    """The nodes of `step` that read only weights and what is handed over, in order."""
    known = {step.inputs[n] for n in handed}
    symbols = {s for v in known for d in v.type.shape for s in d.symbols()}
    known |= set(step.parameters.values())
    found = []
    for node, results in step.nodes:
        dims = [d for r in results for d in r.type.shape] + [*_dims(node.op.attributes().values())]
        told = all(d.symbols() <= symbols for d in dims)
        if told and not isinstance(node.op, ops.Scan) and all(a is None or a in known for a in node.args):
            known.update(results)
            found.append(node)
    return found


def _dims(attributes: Iterable[object]) -> Iterable[Dim]:
    for value in attributes:
        if isinstance(value, Dim):
            yield value
        elif isinstance(value, tuple):
            yield from _dims(value)


def _growing_axis(type: Type, derived: Derived) -> int:
    """The axis of a step's input that is as long as what is given, or as all there is."""
    new = derived.step.inputs[derived.growing].type.shape[1]
    return next(n for n, d in enumerate(type.shape) if d.symbols() & new.symbols())


def _unknown(name: str, growing: str) -> NoReturn:
    fail(
        "E0944",
        f"nothing says what `{name}` is for the rows of `{growing}` that are written",
        notes=["inside a model that decodes by itself only an input that says which rows exist is known"],
        helps=[f"give it a default in the spec: `{name}: … = expression of {growing}`"],
    )


def _own(g: Emitter, results: Sequence[str]) -> list[str]:
    """Results under names that the body itself makes, each once, as ONNX wants them."""
    made = {name for node in g.bodies[-1].nodes for name in node.output}
    found: list[str] = []
    for name in results:
        found.append(name if name in made and name not in found else g.alias(name, g.place("result")))
    return found


def _after(carry: Carry) -> Type:
    """The type of a carry after a step: lengths that change have no name there."""
    shape = enumerate(carry.type.shape)
    return Type(carry.type.dtype, tuple(d if d.number else Dim.symbol(f"{carry.wish}.{n}") for n, d in shape))
