"""The architecture as a tree of scopes, with what each makes and costs; equal layers
are one line.

Scopes are the paths weights live under: `h.3.attn.c_proj` is part of `h.3.attn`, which
is part of `h.3`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

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

    `spared` is what its attentions in blocks do not do of the work.
    """

    name: str
    type: Type | None = None
    op: str = ""
    weights: Dim = field(default_factory=lambda: Dim.of(0))
    work: Dim = field(default_factory=lambda: Dim.of(0))
    spared: Dim = field(default_factory=lambda: Dim.of(0))
    parts: dict[str, "Part"] = field(default_factory=dict)
    times: int = 1

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
        """What must agree for two parts to be shown as one."""
        inner = tuple((n, p.shape_of_it()) for n, p in self.parts.items())
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
    for node, results in graph.nodes:
        _enter(graph, root, node, results[0].type).spared += _spared(node, padded, rows)
    for name, facts in graph.parameter_facts.items():
        part = _at(root, _owner(name))
        part.weights = part.weights + product(facts.type.shape)
    for name, value in graph.names.items():
        if ":" not in name and (found := _find(root, name)):
            found.type = value.type
    root.type = None
    _fold(root)
    return root


def _enter(graph: Graph, root: Part, node: Node, type: Type) -> Part:
    """Put a node into the part that it belongs to, which is given."""
    scopes = graph.made[node].scopes if node in graph.made else ()
    part = _at(root, scopes[0] if scopes else "")
    part.work = part.work + multiply_adds(node)
    part.type = type
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
    """Runs of numbered parts that are alike become one: `0 … 11`."""
    for inner in part.parts.values():
        _fold(inner)
    folded: dict[str, Part] = {}
    run: list[Part] = []
    for inner in part.parts.values():
        if run and (
            not inner.name.isdigit() or run[0].shape_of_it() != inner.shape_of_it()
        ):
            _close(run, folded)
            run = []
        if inner.name.isdigit():
            run.append(inner)
        else:
            folded[inner.name] = inner
    _close(run, folded)
    part.parts = folded


def _close(run: list[Part], into: dict[str, Part]) -> None:
    if not run:
        return
    first = run[0]
    if len(run) > 1:
        first.name = f"{first.name} … {run[-1].name}"
        first.times = len(run)
    into[first.name] = first


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
