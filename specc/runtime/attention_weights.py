"""Find the attentions of a graph and compute their weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specc import backend
from specc.diagnostics.render import format_repr, render_html_table
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Node, Value, collect_needed_nodes
from specc.ir.op import Op


@dataclass(frozen=True)
class AttentionLocation:
    """Attention weights [… query, key]: `value` inside the nested `loops`, outermost first."""

    value: Value
    queries: Dim
    keys: Dim
    loops: tuple[Node, ...] = ()
    mask: Value | None = None
    """The mask of the attention, if known."""


def find_attentions(graph: Graph) -> dict[str, AttentionLocation]:
    """Return every attention by scope, in graph order; repeated scopes are numbered."""
    found: dict[str, AttentionLocation] = {}
    for scope, place in _find_places(graph, ()):
        name, n = scope, 1
        while name in found:
            n += 1
            name = f"{scope} {n}"
        found[name] = place
    return found


def _get_weights_and_mask(
    node: Node, results: Sequence[Value | None]
) -> tuple[Value, Value | None] | None:
    """Return the weights and the mask of an attention; None for any other node."""
    match node.op:
        case ops.Attend() as op:
            weights = results[1]
            return (weights, op.mask(node)) if weights is not None else None
        case ops.Weigh():
            weights = node.first
            return (weights, _mask_of(weights)) if weights is not None else None
    return None


def _find_places(graph: Graph, loops: tuple[Node, ...]) -> Iterator[tuple[str, AttentionLocation]]:
    for node, results in graph.nodes:
        if isinstance(node.op, ops.Scan):
            yield from _find_places(node.op.body, (*loops, node))
            continue
        seen = _get_weights_and_mask(node, results)
        if seen is None:
            continue
        value, mask = seen
        queries, keys = value.type.shape[-2:]
        # One query per iteration: over all iterations there are as many as the loop has.
        if loops and queries.number == 1:
            queries = _get_length(loops[-1])
        made = graph.node_origins.get(node)
        for scope in (made.scopes if made else ()) or ("attention",):
            yield scope, AttentionLocation(value, queries, keys, loops, mask)


def _mask_of(weights: Value | None) -> Value | None:
    """Return the mask of the masked softmax that computed the weights."""
    node = weights.node if weights else None
    if node is None or not isinstance(node.op, ops.MaskedWeights):
        return None
    return node.op.mask(node)


def _get_length(loop: Node) -> Dim:
    """Return the number of iterations of a loop, as a symbolic dimension."""
    op = loop.op
    assert isinstance(op, ops.Scan)
    row = op.get_first_scanned(loop)
    assert row is not None, "a scan has no optional operands"
    return row.type.shape[op.axis]


def compute_attention_weights(
    graph: Graph,
    given: Mapping[str, Array],
    told: Mapping[str, Array],
    parameters: Callable[[], Mapping[str, Array]],
) -> dict[str, Array]:
    """Compute the weights of every attention by scope, [batch, heads, query, key], for prepared
    inputs. `told` are those that the compiled model returns; `parameters` loads its weights if the
    rest need them.
    """
    places = find_attentions(graph)
    found = _read_weights(graph, given, told, parameters)
    shaped = {name: _reshape_weights(found[name], place) for name, place in places.items()}
    return {n: w for name, each in shaped.items() for n, w in _by_turn(name, each)}


def find_masked_positions(
    graph: Graph,
    given: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    parameters: Callable[[], Mapping[str, Array]],
) -> dict[str, Array]:
    """Compute the masked-out positions, bool[batch, heads, query, key] by scope, for attentions
    whose weights have these `shapes`. Attentions without a mask are left out.
    """
    masked = {n: p for n, p in find_attentions(graph).items() if p.mask is not None}
    if not masked:
        return {}
    tapped = _tap_attention(graph, {n: (p.loops, p.mask) for n, p in masked.items() if p.mask})
    needed = parameters() if tapped.parameters else {}
    made = backend.load_reference().evaluate_graph(tapped, given, needed)
    found: dict[str, Array] = {}
    for name, place in masked.items():
        hidden = ~np.asarray(made[f"weights of {name}"], np.bool_)
        for turn, each in _by_turn(name, _reshape_weights(hidden, place)):
            if turn in shapes:
                found[turn] = np.broadcast_to(each, shapes[turn])
    return found


def _read_weights(
    graph: Graph,
    given: Mapping[str, Array],
    told: Mapping[str, Array],
    parameters: Callable[[], Mapping[str, Array]],
) -> dict[str, Array]:
    """Compute the weights of every attention, stacked by its loops."""
    places = find_attentions(graph)
    found = {n: told[n] for n, p in places.items() if _is_told(n, p, told, places)}
    rest = {n: (p.loops, p.value) for n, p in places.items() if n not in found}
    if rest:
        tapped = _tap_attention(graph, rest)
        made = backend.load_reference().evaluate_graph(tapped, given, parameters())
        found |= {n: np.asarray(made[f"weights of {n}"], np.float32) for n in rest}
    return found


ITERATION_SEPARATOR = " turn "
"""Separates the scope of an attention in a loop from the iteration."""


def _by_turn(name: str, weights: Array) -> Iterator[tuple[str, Array]]:
    """Yield [batch, heads, iteration, query, key] as one map per loop iteration, from 1."""
    if weights.ndim != 5:
        yield name, weights
        return
    for turn in range(weights.shape[2]):
        yield f"{name}{ITERATION_SEPARATOR}{turn + 1}", weights[:, :, turn]


def _reshape_weights(weights: Array, place: AttentionLocation) -> Array:
    """Move loop axes to the query axis and add a heads axis after the batch if there is none."""
    turns = len(place.loops)
    for at, loop in enumerate(place.loops):  # the outermost stacked last
        assert isinstance(loop.op, ops.Scan)
        weights = np.moveaxis(weights, at + loop.op.axis, at)
    for _ in range(turns):
        weights = np.moveaxis(weights, 0, -3)
    if turns and weights.shape[-2] == 1:
        weights = weights[..., 0, :]
    return weights[:, None] if weights.ndim == 3 else weights


def _tap_attention(graph: Graph, wanted: Mapping[str, tuple[tuple[Node, ...], Value]]) -> Graph:
    """Return the graph with only the wanted outputs, and the parameters that these need."""
    made, taps = _with_outputs(graph, wanted)
    read = {a for node in collect_needed_nodes(taps.values()) for a in node.args} | {*taps.values()}
    return replace(
        made,
        parameters={n: v for n, v in made.parameters.items() if v in read},
        outputs={f"weights of {name}": value for name, value in taps.items()},
        names={},
    )


def _is_told(
    name: str,
    place: AttentionLocation,
    told: Mapping[str, Array],
    places: Mapping[str, AttentionLocation],
) -> bool:
    """Return whether the model's output under a name is this attention's weights."""
    # A loop returns a slice per iteration, and of two attentions of one scope a model compiled by
    # another version may mean either.
    if place.loops or name not in told or {f"{name} 2"} & {*told, *places}:
        return False
    return np.ndim(told[name]) == place.value.type.rank


def _with_outputs(
    graph: Graph, wanted: Mapping[str, tuple[tuple[Node, ...], Value]]
) -> tuple[Graph, dict[str, Value]]:
    """Return a copy of the graph whose loops output the wanted values, and these values in it."""
    builder = Builder()
    now = builder.copy_ports(graph)
    taps: dict[str, Value] = {}
    for node, results in graph.nodes:
        inner = _find_within(node, wanted)
        op, names = _collect_weights(node.op, inner) if inner else (node.op, ())
        made = builder.add(op, *(now[a] if a else None for a in node.args))
        now.update(zip(results, made, strict=False))
        taps.update(zip(names, made[len(results) :], strict=True))
    taps.update({n: now[value] for n, (loops, value) in wanted.items() if not loops})
    outputs = {n: now[v] for n, v in graph.outputs.items()}
    return builder.finish(
        graph.name,
        {**outputs, **taps},
        min_lengths=graph.min_lengths,
        length_equations=graph.length_equations,
    ), taps


def _find_within(
    loop: Node, wanted: Mapping[str, tuple[tuple[Node, ...], Value]]
) -> dict[str, tuple[tuple[Node, ...], Value]]:
    """Return the wanted values inside the body of a loop, as seen from the body."""
    return {
        name: (loops[1:], value)
        for name, (loops, value) in wanted.items()
        if loops and loops[0] is loop
    }


def _collect_weights(
    op: Op, inner: Mapping[str, tuple[tuple[Node, ...], Value]]
) -> tuple[Op, tuple[str, ...]]:
    """Return the loop that also stacks wanted values of its body, and their names in order. A loop
    with early exit then runs all iterations, which changes no result.
    """
    assert isinstance(op, ops.Scan)
    body, taps = _with_outputs(op.body, inner)
    outputs = {n: v for n, v in body.outputs.items() if n in op.body.outputs}
    return replace(
        op,
        body=replace(body, outputs={**outputs, **{f"weights of {n}": v for n, v in taps.items()}}),
        until=-1,
    ), tuple(taps)


class AttentionWeights(dict[str, Array]):
    """[batch, heads, query, key] by the scope of the attention, in the model's order."""

    def __repr__(self) -> str:
        first = ", ".join(f"{scope} {list(x.shape)}" for scope, x in self.items())
        return format_repr(f"attention of {len(self)} scopes: {first}")

    def _repr_html_(self) -> str:
        """Return scopes and shapes as an HTML table for notebooks."""
        shapes = [(scope, str(list(x.shape))) for scope, x in self.items()]
        return render_html_table("attention: batch, heads, query, key", shapes)
