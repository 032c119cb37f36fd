"""What flows inside a scope: its blocks and the operations between them, and which reads
which.

Views of a tensor (splits, transposes), constants, masks and whole numbers are left
out: what stands behind them is read through them. Layers that are alike are one item.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.types import LETTER

Role: TypeAlias = Literal["block", "op", "port", "result"]

THROUGH = (
    ops.Cast, ops.Constant, ops.Split, ops.Merge, ops.Transpose, ops.Insert, ops.Squeeze,
    ops.Expand, ops.RopeAngles, ops.Extent, ops.Size, ops.Range, ops.KeepRows,
)  # fmt: skip
"""Operations that no drawing shows: they change how numbers lie, or make none of a model's."""

SIGNS = {"add": "+", "sub": "−", "mul": "×", "div": "÷", "pow": "^"}


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something in a drawing: a block by its name, an operation, what comes in from
    outside, or what goes out.
    """

    role: Role
    name: str
    node: Node | None = None


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Items in the order in which they work, and pairs of their numbers: the second
    reads the first.
    """

    items: tuple[Item, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()


@dataclass(kw_only=True)
class _Walk:
    """One walk over the nodes of a scope. `origins` are the items that a value comes from."""

    graph: Graph
    scope: str
    block_of: Callable[[str], str]
    items: list[Item] = field(default_factory=list)
    numbers: dict[Item, int] = field(default_factory=dict)
    edges: dict[tuple[int, int], None] = field(default_factory=dict)
    origins: dict[Value, tuple[int, ...]] = field(default_factory=dict)

    def number(self, item: Item) -> int:
        """The number of an item, which is put behind the others where it is new."""
        if item not in self.numbers:
            self.numbers[item] = len(self.items)
            self.items.append(item)
        return self.numbers[item]

    def read(self, value: Value) -> tuple[int, ...]:
        """The items that a value comes from."""
        if value not in self.origins:
            self.origins[value] = tuple(self._outside(value))
        return self.origins[value]

    def _outside(self, value: Value) -> Iterator[int]:
        """What comes in: an input of the graph, or what another scope made."""
        name = _input(self.graph, value)
        if name and not self.graph.input_facts[name].keep:
            yield self.number(Item(role="port", name=name))
        elif value.node is not None and isinstance(value.node.op, THROUGH):
            # a constant that several scopes share comes from none of them
            yield from (o for a in value.node.args if a for o in self.read(a))
        elif value.node is not None and is_float(value):
            scope = scope_of(self.graph, value.node)
            yield self.number(Item(role="port", name=_other(scope, self.scope)))

    def enter(self, node: Node, results: tuple[Value, ...]) -> None:
        """Put a node of the scope among the items, or read through it."""
        sources = dict.fromkeys(o for a in node.args if a for o in self.read(a))
        item = self._item(node, results[0], len(sources))
        found = tuple(sources)
        if item is not None:
            number = self.number(item)
            self.edges |= {(s, number): None for s in sources if s != number}
            found = (number,)
        for result in results:
            # a mask says what may be read, and is not read itself
            self.origins[result] = found if LETTER[result.type.dtype] != "b" else ()

    def _item(self, node: Node, result: Value, sources: int) -> Item | None:
        """What a node is shown as; None where it is read through."""
        rest = scope_of(self.graph, node).removeprefix(self.scope).lstrip(".")
        hidden = isinstance(node.op, THROUGH) or not is_float(result)
        if hidden and not sources:
            return None
        if rest:
            block = self.block_of(rest.split(".")[0])
            return Item(role="block", name=block) if block else None
        # a number added to a tensor, or a factor of it, is no place where two meet
        if hidden or (isinstance(node.op, ops.Arith) and sources < 2):
            return None
        return Item(role="op", name=label_of(node), node=node)


def is_float(value: Value) -> bool:
    """Whether a tensor holds numbers with fractions."""
    return LETTER[value.type.dtype] == "f"


def label_of(node: Node) -> str:
    """An operation in one word or sign."""
    match node.op:
        case ops.Arith(fn):
            return SIGNS.get(fn, fn)
        case ops.Pointwise(fn):
            return fn
        case ops.Reduce(fn):
            return fn
    return node.op.name.replace("_", " ")


def scope_of(graph: Graph, node: Node) -> str:
    """The path that a node was first built under."""
    made = graph.made.get(node)
    return made.scopes[0] if made and made.scopes else ""


def is_inside(scope: str, of: str) -> bool:
    """Whether a path is another or below it."""
    return not of or scope == of or scope.startswith(f"{of}.")


def flow_of(graph: Graph, scope: str, block_of: Callable[[str], str]) -> Flow:
    """The flow inside a scope. `block_of` gives the block to which a name right below
    the scope belongs.
    """
    walk = _Walk(graph=graph, scope=scope, block_of=block_of)
    inside = [n for n in graph.nodes if is_inside(scope_of(graph, n[0]), scope)]
    for node, results in inside:
        walk.enter(node, results)
    for name, value in _results(graph, scope, inside):
        number = walk.number(Item(role="result", name=name))
        walk.edges |= {(s, number): None for s in walk.read(value) if s != number}
    return _forward(walk)


def _results(
    graph: Graph, scope: str, inside: list[tuple[Node, tuple[Value, ...]]]
) -> Iterator[tuple[str, Value]]:
    """What leaves a scope: the results of the graph, or what others read."""
    if not scope:
        yield from graph.outputs.items()
        return
    nodes = {n for n, _ in inside}
    read = [a for node, _ in graph.nodes if node not in nodes for a in node.args if a]
    # in the order in which they are read, each once
    leaving = dict.fromkeys(value for value in read if is_float(value))
    leaving |= dict.fromkeys(graph.outputs.values())
    made = {v for _, results in inside for v in results}
    yield from (("", value) for value in leaving if value in made)


def _forward(walk: _Walk) -> Flow:
    """The walk as a flow without what leads back: layers that are one item also read
    what stands between them. What nothing reads is left out, but for blocks.
    """
    is_port = [item.role == "port" for item in walk.items]
    # what comes in is there before anything, also where it is read late
    edges = [(a, b) for a, b in walk.edges if a < b or is_port[a]]
    kept = _that_are_read(walk.items, edges)
    order = sorted(kept, key=lambda n: (not is_port[n], n))
    place = {old: new for new, old in enumerate(order)}
    return Flow(
        items=tuple(walk.items[n] for n in order),
        edges=tuple((place[a], place[b]) for a, b in edges if {a, b} <= kept),
    )


def _that_are_read(items: Sequence[Item], edges: Sequence[tuple[int, int]]) -> set[int]:
    """The items that something reads which is kept itself, and blocks and results."""
    kept = {*range(len(items))}
    while True:
        read = {a for a, b in edges if b in kept}
        lost = {n for n in kept - read if items[n].role in ("op", "port")}
        if not lost:
            return kept
        # without these, what only they read is read by nobody
        kept -= lost


def _input(graph: Graph, value: Value) -> str:
    """The name of an input of the graph; nothing for another value."""
    if value.node is not None:
        return ""
    return next((n for n, v in graph.inputs.items() if v is value), "")


def _other(scope: str, here: str) -> str:
    """What another scope is called from here: its name behind what both have in common."""
    theirs, ours = scope.split("."), here.split(".")
    common = 0
    while common < min(len(theirs), len(ours)) and theirs[common] == ours[common]:
        common += 1
    name = theirs[common] if common < len(theirs) else ""
    # the layer before this one, or what stands before all of them
    return "" if name.isdecimal() else name
