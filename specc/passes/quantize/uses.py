"""What reads each weight of a graph, also in the bodies of loops: which can be rounded is
a property of that, not of a model.

A weight can be where all that reads it are linear maps, in which it is the matrix, and
lookups by tokens, in which it is the table; on its way there it may be turned over, and
cut along its results. A stack of matrices can be where experts take one each. A table
that row numbers are looked up in is small, and every row of a text reads it: it stays
as it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op
from specc.passes.quantize.products import Product, product_of

TOKENS = (
    *(ops.Insert, ops.Squeeze, ops.Expand, ops.Split, ops.Merge, ops.Transpose),
    *(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Roll, ops.Concat, ops.Stride),
    *(ops.Delay, ops.Where, ops.Arith, ops.Pad),
)
"""Operations whose results are tokens where one operand is."""


STACK = 3
"""The axes of a stack of matrices."""


@dataclass(kw_only=True)
class Uses:
    """The places where a weight is read, by scope.

    `linear` are linear maps; `turned` says of each whether the weight lies as `[in,
    out]`. `table` are lookups. `looped` are those of them in the body of a loop, `routed`
    in that of experts, `cut` those of some of its rows. `other` are ops that need it as
    it is.
    """

    linear: list[str] = field(default_factory=list)
    turned: set[bool] = field(default_factory=set)
    table: list[str] = field(default_factory=list)
    looped: bool = False
    routed: bool = False
    cut: bool = False
    other: list[str] = field(default_factory=list)

    @property
    def scopes(self) -> list[str]:
        """Every scope that it is read in."""
        return list(
            dict.fromkeys(scope for scope in (*self.linear, *self.table) if scope)
        )

    def joined(self, also: "Uses") -> "Uses":
        """Those of two names of one weight."""
        return Uses(
            linear=[*self.linear, *also.linear],
            turned=self.turned | also.turned,
            table=[*self.table, *also.table],
            looped=self.looped or also.looped,
            routed=self.routed or also.routed,
            cut=self.cut or also.cut,
            other=[*self.other, *also.other],
        )


@dataclass(frozen=True)
class Sight:
    """A weight as a value shows it: turned over or not, and cut along which of its axes;
    or a `stack` of one for each expert.
    """

    name: str
    flipped: bool = False
    cut: frozenset[int] = frozenset()
    stack: bool = False


Sights: TypeAlias = Mapping[Value, Sight]


def uses_of(graph: Graph) -> dict[str, Uses]:
    """What reads each matrix of f32 among the weights, and each stack of them."""
    walk = _Walk({n: Uses() for n, v in graph.parameters.items() if is_matrix(v)})
    seen = {
        v: Sight(n, stack=v.type.rank == STACK)
        for n, v in graph.parameters.items()
        if n in walk.found
    }
    walk.graph(graph, seen, _token_inputs(graph), "")
    stacks = {sight.name for sight in seen.values() if sight.stack}
    # other weights of three axes, such as those of convolutions, are no matrices
    return {n: u for n, u in walk.found.items() if n not in stacks or u.routed}


def _token_inputs(graph: Graph) -> set[Value]:
    """The inputs that hold tokens: whole numbers below the size of a vocabulary."""
    below = [n for n, facts in graph.input_facts.items() if facts.below is not None]
    return {graph.inputs[n] for n in below if is_whole(graph.inputs[n])}


def is_matrix(value: Value) -> bool:
    """Whether a weight is a matrix, or a stack of them, of f32 of known, positive lengths."""
    lengths = [d.number for d in value.type.shape]
    return value.type.dtype == "f32" and len(lengths) in (2, STACK) and all(lengths)


@dataclass
class _Walk:
    """One walk over a graph and the bodies in it; `depth` counts the loops that are open,
    `routes` those of experts.
    """

    found: dict[str, Uses]
    depth: int = 0
    routes: int = 0

    def graph(
        self, graph: Graph, seen: Sights, tokens: Iterable[Value], around: str
    ) -> None:
        """Note what the nodes of a graph do with the weights that `seen` shows."""
        here, known = dict(seen), set(tokens)
        for node, results in graph.nodes:
            scope = _scope(graph, node) or around
            if isinstance(node.op, TOKENS) and not known.isdisjoint(node.args):
                known.update(filter(is_whole, results))
            if isinstance(node.op, ops.Scan | ops.Route):
                self._body(node, node.op, here, known, scope)
                continue
            for place, value in enumerate(node.args):
                if value is not None and value in here:
                    shown = self._read(node, place, here[value], known, scope)
                    here |= {results[0]: shown} if shown else {}
        for value in graph.outputs.values():
            if value in here:
                self.found[here[value].name].other.append("a result")

    def _read(
        self, node: Node, place: int, sight: Sight, tokens: set[Value], scope: str
    ) -> Sight | None:
        """What an op shows of a weight that it moves; None where it reads the numbers,
        which is noted.
        """
        uses = self.found[sight.name]
        # The axes of a stack are others: only experts know what to do with it.
        if sight.stack:
            uses.other.append(told(node.op, scope))
            return None
        if (shown := moved(node, sight)) is not None:
            return shown
        product = product_of(node)
        match node.op:
            case _ if (
                product and place == product.matrix and _whole_rows(product, sight)
            ):
                uses.linear.append(scope)
                uses.turned.add(sight.flipped != product.turned)
            case ops.Embedding() if place == 1 and _looks_up(node, sight, tokens):
                uses.table.append(scope)
                uses.turned.add(False)
            case _:
                uses.other.append(told(node.op, scope))
        uses.looped |= self.depth > 0
        uses.routed |= self.routes > 0
        uses.cut |= bool(sight.cut)
        return None

    def _body(
        self,
        node: Node,
        op: ops.Scan | ops.Route,
        here: Sights,
        tokens: set[Value],
        scope: str,
    ) -> None:
        """Go into a loop, with what is captured under the names inside."""
        inside = dict(inside_of(op, node))
        fixed = set(captured(op, node))
        stacked = set(stacked_of(op, node))
        shown: dict[Value, Sight] = {}
        for inner, outer in inside.items():
            sight = here.get(outer)
            if sight is None:
                continue
            if sight.stack and outer in stacked:
                shown[inner] = replace(sight, stack=False)
            elif outer in fixed:
                shown[inner] = sight
        for value in node.args:
            # What is scanned or carried changes from turn to turn: no weight there. Nor
            # can one of several be a weight of its own, and all of them a stack.
            if value is None or value not in here or value in fixed:
                continue
            if not (value in stacked and here[value].stack):
                self.found[here[value].name].other.append(told(op, scope))
        routed = isinstance(op, ops.Route)
        self.depth += not routed
        self.routes += routed
        tokens_in = {inner for inner, a in inside.items() if a in tokens}
        self.graph(op.body, shown, tokens_in, scope)
        self.depth -= not routed
        self.routes -= routed


def moved(node: Node, sight: Sight) -> Sight | None:
    """What a node shows of a weight that it turns over or cuts; None where it does
    something else.
    """
    match node.op:
        case ops.Transpose(order=(1, 0)):
            return Sight(sight.name, not sight.flipped, sight.cut)
        case ops.Slice(axis=axis):
            # the axis of the weight itself, which is the other one where it lies turned
            cut = sight.cut | {axis ^ int(sight.flipped)}
            return Sight(sight.name, sight.flipped, cut)
    return None


def captured(op: ops.Scan | ops.Route, node: Node) -> tuple[Value, ...]:
    """The operands of a loop that its body takes as they are."""
    before = op.stacked + 1 if isinstance(op, ops.Route) else op.scanned + op.carries
    count = len(op.body.inputs) - before
    values = [a for a in node.args if a is not None]
    return tuple(values[len(values) - count :])


def stacked_of(op: ops.Scan | ops.Route, node: Node) -> tuple[Value, ...]:
    """The operands of which each expert takes its part."""
    if not isinstance(op, ops.Route):
        return ()
    values = [a for a in node.args if a is not None]
    return tuple(values[op.first : op.first + op.stacked])


def inside_of(op: ops.Scan | ops.Route, node: Node) -> Iterator[tuple[Value, Value]]:
    """Each input of a body, and what it is, or is a row of, outside."""
    values = [a for a in node.args if a is not None]
    inner = list(op.body.inputs.values())
    if isinstance(op, ops.Route):
        values = [values[0], *values[op.first :]]
    else:
        values = values[op.first :]
    yield from zip(inner, values, strict=True)


def _scope(graph: Graph, node: Node) -> str:
    """Where a node was first built."""
    made = graph.made.get(node)
    return made.scopes[0] if made and made.scopes else ""


def told(op: Op, scope: str) -> str:
    """An op for people: `embedding` in `wpe`."""
    return f"`{op.name}` in `{scope}`" if scope else f"`{op.name}`"


def is_whole(value: Value) -> bool:
    """Whether a value holds whole numbers."""
    return value.type.dtype in ("i64", "i32")


def _whole_rows(product: Product, sight: Sight) -> bool:
    """Whether a matrix is cut along its results alone: what one is made of is all there."""
    return sight.cut <= {int(sight.flipped != product.turned)}


def _looks_up(node: Node, sight: Sight, tokens: set[Value]) -> bool:
    return node.args[0] in tokens and not sight.flipped and not sight.cut
