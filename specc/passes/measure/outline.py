"""The architecture as a tree of scopes, with what each makes and costs; equal layers
are one line.

Scopes are the paths weights live under: `h.3.attn.c_proj` is part of `h.3.attn`, which
is part of `h.3`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from specc.ir.dim import Dim, product, total
from specc.ir.graph import Graph, Node, Value
from specc.ir.types import Type
from specc.passes.measure.cost import in_blocks, multiply_adds
from specc.passes.measure.limits import limits
from specc.passes.prove.local import Local, local_of


@dataclass(kw_only=True)
class Part:
    """One scope: its own name, what it gives, its weights, its work, and the scopes
    inside.

    `spared` is what its attentions in blocks do not do of the work. `members` are the
    names of the parts that this one stands for, its own where it is alone.
    """

    name: str
    type: Type | None = None
    op: str = ""
    weights: Dim = field(default_factory=lambda: Dim.of(0))
    work: Dim = field(default_factory=lambda: Dim.of(0))
    spared: Dim = field(default_factory=lambda: Dim.of(0))
    parts: dict[str, "Part"] = field(default_factory=dict)
    times: int = 1
    members: tuple[str, ...] = ()

    def all_weights(self) -> Dim:
        """Numbers held by this scope and those inside."""
        return (
            self.weights + total(p.all_weights() for p in self.parts.values())
        ) * self.times

    def all_work(self) -> Dim:
        """Multiply-adds done by this scope and those inside."""
        return (
            self.work + total(p.all_work() for p in self.parts.values())
        ) * self.times

    def all_spared(self) -> Dim:
        """Multiply-adds spared in this scope and those inside."""
        return (
            self.spared + total(p.all_spared() for p in self.parts.values())
        ) * self.times

    def shape_of_it(self) -> tuple[object, ...]:
        """What must agree for two parts to be shown as one: everything but the order of
        what is inside, which is that of the text that asked first.
        """
        inner = tuple((n, self.parts[n].shape_of_it()) for n in sorted(self.parts))
        own = (self.weights, self.work, self.spared, self.times)
        return (str(self.type), self.op, *own, inner)


def _owner(parameter: str) -> str:
    """The scope that a weight is counted for."""
    scope, _, leaf = parameter.rpartition(".")
    return scope if leaf in ("weight", "bias") else parameter


def outline(graph: Graph, at: Mapping[str, int] | None = None) -> Part:
    """The tree of a graph, its root named after it. Where `at` says how long an axis
    is, attentions are done in blocks only if it is long enough.
    """
    root = Part(name=graph.name)
    padded = [graph.inputs[n] for n, f in graph.input_facts.items() if f.keep]
    # The number of rows where it is told, or how many there are at most.
    rows = {s: limit.most for s, limit in limits(graph).items()} | dict(at or {})
    _in_order(graph, root)
    for node, results in graph.nodes:
        _enter(graph, root, node, results[0].type).spared += _spared(node, padded, rows)
    for name, facts in graph.parameter_facts.items():
        part = _at(root, _owner(name))
        part.weights = part.weights + product(facts.type.shape)
    # What a call gives is named by its path, in place of whatever was built last in it;
    # names with a colon are of values inside.
    for name, value in graph.names.items():
        if ":" not in name and (found := _find(root, name)):
            found.type = value.type
    # The last node of the graph is no result of the whole model.
    root.type = None
    _fold(root)
    return root


def _in_order(graph: Graph, root: Part) -> None:
    """Open the parts in the order in which their weights are read. What has none, such
    as a mask that is made ahead of everything, says nothing about who comes first.
    """
    weights = set(graph.parameters.values())
    for node, _ in graph.nodes:
        if node.op.heavy or weights.intersection(node.args):
            _at(root, _scope(graph, node))


def _scope(graph: Graph, node: Node) -> str:
    """The path that a node was first built under."""
    scopes = graph.made[node].scopes if node in graph.made else ()
    return scopes[0] if scopes else ""


def _enter(graph: Graph, root: Part, node: Node, type: Type) -> Part:
    """Put a node into the part that it belongs to, which is given."""
    part = _at(root, _scope(graph, node))
    part.work = part.work + multiply_adds(node)
    part.type = type
    # A part is called after what costs most in it, not after the reshapes around that.
    if node.op.heavy or not part.op:
        part.op = node.op.name
    return part


def _spared(node: Node, padded: Collection[Value], most: Mapping[str, int]) -> Dim:
    """What a node does not do of its work because it is done in blocks."""
    local = _local(node, padded, most)
    return multiply_adds(node) - in_blocks(node, local) if local else Dim.of(0)


def _local(
    node: Node, padded: Collection[Value], most: Mapping[str, int]
) -> Local | None:
    found = local_of(node, padded)
    if found is None or node.args[0] is None:
        return None
    rows = most.get(node.args[0].type.shape[2].name or "")
    # Of a length without a limit the model can be given enough rows.
    return found if rows is None or rows > found.above else None


def _at(root: Part, scope: str) -> Part:
    part = root
    for name in scope.split(".") if scope else []:
        part = part.parts.setdefault(name, Part(name=name))
    return part


def _find(root: Part, scope: str) -> Part | None:
    part: Part | None = root
    for name in scope.split("."):
        part = part.parts.get(name) if part else None
    return part


def _fold(part: Part) -> None:
    """Numbered parts that are alike become one, also where others stand between them:
    `0 … 11`, `0, 2 … 24`.
    """
    for inner in part.parts.values():
        _fold(inner)
    alike: dict[object, list[Part]] = {}
    for inner in part.parts.values():
        # Named parts stay apart, however equal: `query` and `key` are not layers.
        kind = inner.shape_of_it() if inner.name.isdecimal() else inner.name
        alike.setdefault(kind, []).append(inner)
    part.parts = {}
    for run in alike.values():
        # by number: a layer may be read before those below it
        run.sort(key=lambda p: int(p.name) if p.name.isdecimal() else 0)
        first = run[0]
        first.members = tuple(p.name for p in run)
        if len(run) > 1:
            first.name = numbers_text([int(p.name) for p in run])
            first.times = len(run)
        part.parts[first.name] = first


MOST_RUNS = 3
"""Runs of layers that are named before a list is cut."""


def numbers_text(numbers: Sequence[int]) -> str:
    """Rising numbers, at least two, in few words: `0 … 11`, `1, 3 … 25`, `0 … 2, 4 … 6, …`."""
    steps = {b - a for a, b in pairwise(numbers)}
    if steps == {1}:
        return f"{numbers[0]} … {numbers[-1]}"
    if len(steps) == 1 and len(numbers) > 2:
        return f"{numbers[0]}, {numbers[1]} … {numbers[-1]}"
    texts = [str(r[0]) if len(r) == 1 else f"{r[0]} … {r[-1]}" for r in _runs(numbers)]
    more = ["…"] if len(texts) > MOST_RUNS else []
    return ", ".join([*texts[:MOST_RUNS], *more])


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Rising numbers, those that follow one another together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def walk(part: Part, depth: int = 0) -> Iterator[tuple[int, Part]]:
    """Parts from the root down; a scope that only holds one other is shown with it: `h.0 … 11`."""
    shown = part
    while (
        depth
        and len(shown.parts) == 1
        and not shown.weights.terms
        and not shown.work.terms
    ):
        (inner,) = shown.parts.values()
        shown = replace(
            inner,
            name=f"{shown.name}.{inner.name}",
            times=shown.times * inner.times,
        )
    yield depth, shown
    for inner in shown.parts.values():
        yield from walk(inner, depth + 1)
