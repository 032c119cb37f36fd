"""What states inside a loop over another axis begin as: values of its body where nothing
has grown, one a turn.

The loop is run once more with those values collected, which `encode` does where no row
grows: its body then works on rows of heads alone, or on none.

    scan row in memory along src carry y {        scan row in memory along src carry y
      h = gru(y, start=linear(row))         →         collect first {
      y = y + h                                     first = linear(row)  …
    }                                             }
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value, needed
from specc.passes.derive.blocks import blocks_of
from specc.passes.derive.crossed import Crossed
from specc.passes.derive.encode import First


def collected(
    loop: Crossed, starts: Mapping[str, First], batch: Dim | None
) -> dict[str, First]:
    """These beginnings as values of the graph around the loop, stacked along its axis."""
    body = _Closed.of(loop)
    made: dict[str, tuple[First, Value]] = {}
    for name, first in starts.items():
        value, axis = body.value(first.value), first.axis
        # Rows of the batch that were merged with others are taken apart, or beams could
        # not be put in another order.
        if blocks := blocks_of(value.type, batch):
            # Turn by turn, as the state goes in and out.
            sizes = (blocks.batch, blocks.size)
            value = body.add(ops.Split(blocks.axis, sizes), value)
            axis = None if axis is None else blocks.place(axis)
        made[name] = replace(first, axis=axis), value
    wide = _loop(loop, body, {name: value for name, (_, value) in made.items()})
    types = wide.op.infer(*(a.type if a else None for a in wide.args))
    found: dict[str, First] = {}
    behind = len(types) - len(made)
    for n, (name, (first, _)) in enumerate(made.items(), behind):
        axis = None if first.axis is None else first.axis + (first.axis >= loop.turns)
        found[name] = replace(first, value=Value(types[n], wide, n), axis=axis)
    return found


def _loop(loop: Crossed, body: "_Closed", wanted: Mapping[str, Value]) -> Node:
    """The loop with nothing in it but what these values of its body need."""
    op, plain, given = loop.op, loop.op.body, loop.op.parts(loop.node.args)
    needs = _Needs.of(op, wanted.values())
    starts = _those(op.inner().starts, given.starts, needs.carried)
    taken = _those(op.inner().captured, given.captured, needs.read)
    names = {value: name for name, value in plain.inputs.items()}
    inputs = [names[v] for v in (*op.inner().rows, *starts, *taken)]
    after = {f"next {names[c]}": needs.after[c] for c in starts}
    cut = replace(
        plain,
        inputs={n: plain.inputs[n] for n in inputs},
        input_facts={n: plain.input_facts[n] for n in inputs},
        nodes=tuple(n for n in (*plain.nodes, *body.more) if n[0] in needs.live),
        outputs={**after, **wanted},
    )
    wide = replace(op, body=cut, carries=len(starts), until=-1)
    keep = () if given.keep is None else (given.keep,)
    return Node(wide, (*keep, *given.rows, *starts.values(), *taken.values()))


def _those(
    inner: Sequence[Value], outer: Sequence[Value | None], some: Container[Value | None]
) -> dict[Value, Value | None]:
    """What stands outside for some inputs of a body, in their order."""
    return {v: x for v, x in zip(inner, outer, strict=True) if v in some}


@dataclass(frozen=True)
class _Needs:
    """What values of a body need: carries, nodes, and all that these read. `after` says
    what each carry becomes.
    """

    carried: frozenset[Value]
    live: set[Node]
    read: set[Value | None]
    after: Mapping[Value, Value]

    @classmethod
    def of(cls, op: ops.Scan, wanted: Iterable[Value]) -> "_Needs":
        """Of the body of `op`; what a carry becomes needs others again."""
        starts, values = op.inner().starts, list(wanted)
        after = dict(zip(starts, op.nexts(), strict=True))
        carried: frozenset[Value] = frozenset()
        # What a carry becomes may need other carries: until no more are needed.
        while True:
            ends = [*values, *(after[c] for c in carried)]
            live = needed(ends)
            read = {a for node in live for a in node.args} | set(ends)
            more = frozenset(s for s in starts if s in read)
            if more <= carried:
                return cls(carried, live, read, after)
            carried |= more


@dataclass
class _Closed:
    """The body of a loop as the loop has it, with what captures stand for; `known` maps
    values of the opened body to its own, `more` are nodes that it lacks.
    """

    known: dict[Value, Value]
    more: list[tuple[Node, tuple[Value, ...]]] = field(default_factory=list)

    @classmethod
    def of(cls, loop: Crossed) -> "_Closed":
        """The body of `loop`."""
        op, opened = loop.op, loop.body
        known = {v: v for v in loop.inputs}
        captured = zip(
            op.parts(loop.node.args).captured, op.inner().captured, strict=True
        )
        known |= {outer: inner for outer, inner in captured if outer is not None}
        for (_, ours), (_, own) in zip(opened.nodes, op.body.nodes, strict=True):
            known.update(zip(ours, own, strict=True))
        return cls(known)

    def value(self, value: Value) -> Value:
        """The body's own value for one of the opened body; a loop inside it that collects
        more than the body's is added.
        """
        if value not in self.known:
            node = value.node
            # A loop within the loop that collects more than the body had it do.
            assert node is not None, "every input of a body is known"
            args = [a and self.value(a) for a in node.args]
            results = self.results(Node(node.op, tuple(args)))
            self.known[value] = results[value.index]
        return self.known[value]

    def add(self, op: ops.Split, value: Value) -> Value:
        """One more node."""
        return self.results(Node(op, (value,)))[0]

    def results(self, node: Node) -> tuple[Value, ...]:
        """What one more node gives."""
        types = node.op.infer(*(a.type if a else None for a in node.args))
        made = tuple(Value(t, node, n) for n, t in enumerate(types))
        self.more.append((node, made))
        return made
