"""The body of the loop: the step, then the choice, then what the next step is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto

from specc.ir.derived import Derived, State
from specc.ir.dim import Dim
from specc.ir.graph import Node
from specc.ir.types import Type
from specc_onnx.generate.deciding import Carry, Decision, Strategy
from specc_onnx.generate.following import following
from specc_onnx.generate.work import Work
from specc_onnx.lower.arrange import cast, unsqueeze
from specc_onnx.lower.emitter import Emitter, Site, Tensor, declare, graph_of
from specc_onnx.lower.lengths import Lengths
from specc_onnx.lower.table import lower_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a turn of the loop is made from.

    The carries come in three groups: `feed`, the tokens and the inputs beside them;
    `states`, the caches; and those of `chooser`. `handed` is the same at every step,
    and `hoisted` the nodes that have been computed from it already. `first` are the
    logits of texts without a prompt, where there may be such; `empty` says which are.
    """

    feed: Sequence[Carry]
    states: Sequence[Carry]
    chooser: Strategy
    handed: Mapping[str, Tensor]
    hoisted: set[Node]
    first: Tensor | None = None
    empty: str | None = None

    @property
    def carries(self) -> list[Carry]:
        """Every carry, in the order in which the loop has them."""
        return [*self.feed, *self.states, *self.chooser.carries]


def body_of(work: Work, turn: Turn) -> GraphProto:
    """The body as ONNX wants it: the number of the turn, whether to go on, the carries;
    then whether to go on, and the carries after it.
    """
    g, step, carries = work.g, work.derived.step, turn.carries
    stateful = len(turn.feed) + len(turn.states)
    with g.body() as opened:
        g.site = Site(("step",))
        iteration, going = (
            Tensor(g.unique(g.place(n)), Type(t, ()))
            for n, t in (("i", "i64"), ("go", "bool"))
        )
        names = [Tensor(g.unique(g.place(c.wish)), c.type) for c in carries]
        inner = {c.wish: t for c, t in zip(carries[:stateful], names, strict=False)}
        told = {t.name: t.type for t in (*inner.values(), *turn.handed.values())}
        # The loop is not entered for a batch of no rows.
        least = {**step.least, str(work.batch): 1}
        with g.rooted(Lengths(told, step.facts, least)):
            work.enter(step, {**inner, **turn.handed})
            if turn.first is None:
                logits = _stepped(work, turn)
            else:
                logits = begun(work, turn, turn.first, inner, iteration.name)
            g.site = Site(("choose",))
            before = [t.name for t in names[stateful:]]
            decision = turn.chooser.step(g, logits, iteration.name, before)
            after = _after(work, inner, decision)
        results = _own(g, [decision.more, *after])
    inputs = [declare(t.name, t.type) for t in (iteration, going, *names)]
    types = [Type("bool", ()), *(_type_after(c) for c in carries)]
    return graph_of("step", opened, results, types, inputs)


def _stepped(work: Work, turn: Turn) -> str:
    """The step, written where one stands; gives its logits."""
    g, step = work.g, work.derived.step
    lower_nodes(g, step, {node for node, _ in step.nodes} - turn.hoisted)
    g.site = Site(("choose",))
    return _logits(work)


def begun(
    work: Work, turn: Turn, first: Tensor, inner: Mapping[str, Tensor], iteration: str
) -> str:
    """Logits of a turn that may be the first one of a text without a prompt: then there
    is nothing to step over, and states stay what they are.
    """
    g, states = work.g, work.derived.states
    afters = [work.derived.step.outputs[s.next] for s in states]
    row = Type("f32", (work.batch, first.type.shape[-1]))
    tokens = inner[work.derived.growing].name
    count = g.node("Shape", tokens, start=1, end=2)
    some = g.node("Squeeze", g.node("Greater", count, g.vector(0)))
    with g.body() as body:
        logits = _stepped(work, turn)
        made = [logits, *(g.tensors[value].name for value in afters)]
        types = [row, *(value.type for value in afters)]
        stepped = graph_of("stepped", body, _own(g, made), types)
    with g.body() as body:
        known = [first.name, *(inner[s.name].name for s in states)]
        types = [row, *(c.type for c in turn.states)]
        waiting = graph_of("begun", body, _own(g, known), types)
    g.site = Site(("start",))
    logits, *after = g.nodes(
        "If", len(types), some, then_branch=stepped, else_branch=waiting
    )
    for value, name in zip(afters, after, strict=True):
        g.tensors[value] = Tensor(name, value.type, value)
    if turn.empty is None:
        return logits
    # Some texts of the batch may have a prompt and others none.
    begins = g.node("Equal", iteration, g.constant(0, "i64"))
    with g.body() as body:
        mixed = g.node("Where", turn.empty, first.name, logits)
        here = graph_of("mixed", body, _own(g, [mixed]), [row])
    with g.body() as body:
        there = graph_of("going", body, _own(g, [logits]), [row])
    (logits,) = g.nodes("If", 1, begins, then_branch=here, else_branch=there)
    return logits


def _logits(work: Work) -> str:
    """The newest row's, f32[rows, vocabulary]."""
    tensor, g = work.g.tensors[work.derived.step.outputs[work.decoding.source]], work.g
    # A step gives the logits of its last row, with that axis of length 1 or without it.
    one_row = tensor.type.rank == 2
    name = tensor.name if one_row else g.node("Squeeze", tensor.name, g.vector(1))
    # Scores are f32 whatever the model computes in: they are sums over many steps.
    return cast(g, name, tensor.type.dtype, "f32")


def _after(work: Work, inner: Mapping[str, Tensor], decision: Decision) -> list[str]:
    """The carries after the turn, in the order of `Turn.carries`."""
    token = _next_feed(work, decision)
    return [
        token,
        *(_next_side(work, n, inner[n], token, decision) for n in work.sides),
        *(_next_state(work, s, decision) for s in work.derived.states),
        *decision.after,
    ]


def _next_feed(work: Work, decision: Decision) -> str:
    dtype = work.derived.step.inputs[work.derived.growing].type.dtype
    return cast(work.g, unsqueeze(work.g, decision.tokens, 1), "i64", dtype)


def _next_side(work: Work, name: str, x: Tensor, token: str, decision: Decision) -> str:
    """An input that says which rows exist for the next step: one more row, which does,
    unless its default says otherwise of the token.
    """
    g, known = work.g, x.name
    each = following(work, name)
    axis = work.batch_axis(x.type)
    # The rows of a text are all the same as long as every written token exists: which
    # of them a beam continues makes no difference then.
    alike = work.repeats > 1 and each is None
    if decision.parents is not None and axis is not None and not alike:
        known = g.node("Gather", known, decision.parents, axis=axis)
    at = _growing_axis(x.type, work.derived)
    if each is None:
        # As wide as a row of what is there, whatever its other axes are; there may be
        # no row yet.
        front, back = (
            g.node("Shape", known, start=0, end=at),
            g.node("Shape", known, start=at + 1),
        )
        row = g.node("Concat", front, g.vector(1), back, axis=0)
        newest = g.node("Expand", g.constant(True, "bool"), row)
    else:
        value = each.inputs[work.derived.growing]
        g.tensors[value] = Tensor(token, value.type)
        # Types that would be noted are not true here: beams fan out, and `batch` is not
        # what it was.
        types, g.bodies[-1].types = g.bodies[-1].types, {}
        lower_nodes(g, each)
        g.bodies[-1].types = types
        newest = g.tensors[each.outputs[name]].name
    # Some inputs cover all rows that there are, others only those of this step.
    if name in work.derived.whole:
        return g.node("Concat", known, newest, axis=at)
    return newest


def _next_state(work: Work, state: State, decision: Decision) -> str:
    name = work.g.tensors[work.derived.step.outputs[state.next]].name
    # A beam goes on with the cache of the one it continues. A state without a batch is
    # the same for all of them.
    if decision.parents is None or state.batch is None:
        return name
    return work.g.node("Gather", name, decision.parents, axis=state.batch)


def _growing_axis(type: Type, derived: Derived) -> int:
    """The axis of a step's input that is as long as what is given, or as all there is."""
    new = derived.step.inputs[derived.growing].type.shape[1]
    return next(n for n, d in enumerate(type.shape) if d.symbols() & new.symbols())


def _own(g: Emitter, results: Sequence[str]) -> list[str]:
    """Results under names that the body itself makes, each once, as ONNX wants them."""
    made = {name for node in g.bodies[-1].nodes for name in node.output}
    found: list[str] = []
    for name in results:
        # A carry that is handed on unchanged, or a value of the main graph, may not be
        # a result of the body under its own name; nor may one value be two results.
        own = name in made and name not in found
        found.append(name if own else g.alias(name, g.place("result")))
    return found


def _type_after(carry: Carry) -> Type:
    """The type of a carry after a step: lengths that change have no name there."""
    # Under the name it had before, ONNX's inference would hold a grown axis to its
    # former length, and refuse the model.
    shape = tuple(
        d if d.number else Dim.symbol(f"{carry.wish}.{n}")
        for n, d in enumerate(carry.type.shape)
    )
    return Type(carry.type.dtype, shape)
