"""An architecture as a tree of blocks: what each gives, holds and costs, what flows inside
it, and which lines of the spec say so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from specc.compiler.architecture.flow import Flow, flow_of, is_inside, scope_of
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node
from specc.passes.measure.formula import formula
from specc.passes.measure.outline import Part, outline
from specc.text.source import Span
from specc.text.summary import summary

MOST_LINES = 24
"""Lines of a spec that are shown for a block."""

KINDS: Mapping[str, tuple[type, ...]] = {
    "attention": (ops.Attend, ops.Weigh),
    "recurrent": (ops.Rnn, ops.Gru, ops.Lstm, ops.LstmQ, ops.Scan),
    "convolution": (ops.Conv, ops.ConvTranspose, ops.Patches),
    "norm": (ops.LayerNorm, ops.RMSNorm, ops.GroupNorm),
    "embedding": (ops.Embedding, ops.EmbeddingQ, ops.Sinusoid),
    "experts": (ops.Route,),
    "linear": (ops.Linear, ops.LinearQ, ops.MatMul, ops.Einsum),
    "activation": (ops.Pointwise, ops.Softmax, ops.MaskedSoftmax, ops.Rotate),
}
"""What a block is, by what is in it: the first kind of which it has anything."""

ORDER = (
    "attention",
    "experts",
    "recurrent",
    "convolution",
    "linear",
    "embedding",
    "norm",
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a spec, by the name of its file and its number."""

    file: str
    number: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Block:
    """A scope, or several that are alike. `path` is that of the first."""

    name: str
    path: str
    kind: str
    op: str
    gives: str
    weights: Dim
    work: Dim
    spared: Dim
    times: int
    meaning: str
    lines: tuple[Line, ...]
    flow: Flow
    inner: Mapping[str, "Block"] = field(default_factory=dict)

    def all(self) -> Iterator["Block"]:
        """This block and those inside, from the outside in."""
        yield self
        for block in self.inner.values():
            yield from block.all()


@dataclass(frozen=True, kw_only=True)
class _Maker:
    graph: Graph
    at: Mapping[str, int]

    def block(self, part: Part, name: str, path: str) -> Block:
        """A part of the outline as a block, with all that is inside."""
        inner: dict[str, Block] = {}
        names: dict[str, str] = {}
        for child in part.parts.values():
            made = self._child(child, path)
            inner[made.name] = made
            names |= dict.fromkeys(child.members, made.name)
        nodes = [n for n, _ in self.graph.nodes if is_inside(self._scope(n), path)]
        return Block(
            name=name,
            path=path,
            kind=kind_of(nodes),
            op="" if inner else part.op,
            gives=self._gives(part),
            weights=part.all_weights(),
            work=part.all_work(),
            spared=part.all_spared(),
            times=part.times,
            meaning="" if inner else _meaning(part.op, nodes),
            lines=tuple(self._lines(path, nodes))[:MOST_LINES],
            flow=flow_of(self.graph, path, lambda n: names.get(n, "")),
            inner=inner,
        )

    def _child(self, part: Part, path: str) -> Block:
        """A part inside another. One that only holds one other is shown with it."""
        below, times = [part.name], 1
        first = f"{path}.{part.members[0]}".lstrip(".")
        while len(part.parts) == 1 and not part.weights.terms and not part.work.terms:
            times *= part.times
            (part,) = part.parts.values()
            below.append(part.name)
            first = f"{first}.{part.members[0]}"
        made = self.block(part, ".".join(below), first)
        return made if times == 1 else _times(made, times)

    def _scope(self, node: Node) -> str:
        return scope_of(self.graph, node)

    def _gives(self, part: Part) -> str:
        if part.type is None:
            return ""
        return f"[{', '.join(formula(d, self.at) for d in part.type.shape)}]"

    def _lines(self, path: str, nodes: list[Node]) -> Iterator[Line]:
        """The lines that asked for the nodes of a scope and of those right below it."""
        seen: set[tuple[str, int]] = set()
        for node in nodes:
            below = scope_of(self.graph, node).removeprefix(path).strip(".")
            if below.count(".") > 0 and path:
                continue
            made = self.graph.made.get(node)
            for span in made.spans[:1] if made else ():
                line = _line(_of_user(span) if not path else span)
                if (line.file, line.number) not in seen:
                    seen.add((line.file, line.number))
                    yield line


def _meaning(op: str, nodes: list[Node]) -> str:
    """What the operation of a block computes, as its first paragraph says."""
    heavy = next((n for n in nodes if n.op.name == op), None)
    return summary(heavy.op.__doc__) if heavy else ""


def _of_user(span: Span) -> Span:
    """The user's own text that led to a place in the standard library."""
    while span.caller is not None:
        span = span.caller
    return span


def _line(span: Span) -> Line:
    number = span.line
    return Line(
        file=span.source.name, number=number, text=span.source.line(number).strip()
    )


def _times(block: Block, times: int) -> Block:
    """A block that stands for more, because those around it do."""
    made = dict(vars(block))
    made.update(
        times=block.times * times,
        weights=block.weights * times,
        work=block.work * times,
        spared=block.spared * times,
    )
    return Block(**made)


def kind_of(nodes: list[Node]) -> str:
    """What a block is, for its color: `attention` where anything in it attends."""
    found = {k for k, types in KINDS.items() for n in nodes if isinstance(n.op, types)}
    return next((k for k in (*ORDER, *KINDS) if k in found), "other")


def blocks_of(graph: Graph, at: Mapping[str, int] | None = None) -> Block:
    """The tree of a graph, its root named after it."""
    return _Maker(graph=graph, at=at or {}).block(outline(graph, at), graph.name, "")
