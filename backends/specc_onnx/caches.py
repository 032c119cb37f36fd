"""Caches that are written in place: keys and values in buffers that the caller owns, of a length it chooses.

`Attention` makes a new, longer cache at each step, and copies the old one to do so. ONNX Runtime's
`GroupQueryAttention` writes the new rows into the buffer it is given, when that is bound as its result as well; what
a step costs then no longer grows with what is only kept. It is used where keys and values serve one attention and
nothing else, one mask holds for all heads (being causal, as the kernel is, the rest of it is a bias), nobody reads the
weights, which the kernel does not give, and it takes heads of their width. Where it takes less than a step may ask
(several rows at once behind others, in a batch) the runner gives it less at a time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from specc.ir import ops
from specc.ir.derived import OFFSET, State
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.types import Type
from specc_onnx import legal
from specc_onnx.arrange import always, cast, cut, full, typed
from specc_onnx.build import Built, enter_parameters, finished
from specc_onnx.emit import CONTRIB, Emitter, Tensor
from specc_onnx.lengths import Lengths
from specc_onnx.table import lower_nodes
from specc_onnx.targets import Target

HIDDEN = float("-inf")
"""The bias of a key that is not seen, below any that is. A row that sees none is made zeros afterwards."""

OLDEST = 18
"""The opset from which reductions take their axes as they are given here."""

WIDTH = 8
"""The kernel takes heads whose width is a multiple of this."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The states of one attention: the names of the inputs, and of the outputs that replace them."""

    key: str
    value: str
    next_key: str
    next_value: str


@dataclass(frozen=True)
class InPlace:
    """A step graph, and the caches of it that are buffers."""

    graph: Graph
    caches: tuple[Cache, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that are buffers."""
        return tuple(n for c in self.caches for n in (c.key, c.value))


def caches_of(graph: Graph, states: Sequence[State], target: Target, opset: int) -> tuple[Cache, ...]:
    """The caches of a step graph that can be written in place."""
    if not target.in_place or opset < OLDEST:
        return ()
    known = {graph.inputs[s.name]: s for s in states if s.rows == 2 and s.most == inf}
    readers = Counter(a for node, _ in graph.nodes for a in node.args if a)
    readers.update(graph.outputs.values())
    found = []
    for node, results in graph.nodes:
        if isinstance(node.op, ops.Attend) and _fits(node) and not readers[results[1]]:
            key, value = (_state(a, known, readers) for a in node.args[1:3])
            if key and value and key is not value:
                found.append(Cache(key.name, value.name, key.next, value.next))
    return tuple(found)


def _fits(node: Node) -> bool:
    """Whether the kernel does what this attention asks for."""
    op, (q, k, v) = node.op, node.args[:3]
    assert isinstance(op, ops.Attend)
    assert q
    assert k
    assert v
    sinks = len(node.args) > 5 and node.args[5] is not None
    numbers = [q.type.shape[1].number, k.type.shape[1].number, q.type.shape[3].number]
    same = q.type.shape[3] == v.type.shape[3] and None not in numbers
    mask = node.args[3] if len(node.args) > 3 else None
    alike = mask is not None and mask.type.shape[1] == 1  # one mask for all heads; without one nothing is causal
    return same and alike and not sinks and op.scale > 0 and q.type.dtype == "f32" and (numbers[2] or 0) % WIDTH == 0


def _state(value: Value | None, known: Mapping[Value, State], readers: Counter[Value]) -> State | None:
    """The state whose rows stand before the new ones in `value`, which is read here and given out, no more."""
    node = value.node if value else None
    if value is None or node is None or not isinstance(node.op, ops.Concat) or len(node.args) != 2:
        return None
    past = node.args[0]
    return known.get(past) if past and readers[past] == 1 and readers[value] == 2 else None


def build_in_place(
    model: InPlace,
    target: Target,
    opset: int = legal.USUAL,
    stored: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> Built:
    """The step graph with buffers for caches: their length is the caller's, `past.rows` says how much is filled."""
    graph = model.graph
    capacity = Dim.symbol("capacity")
    types = {n: v.type for n, v in graph.inputs.items()}
    for name in model.names:
        types[name] = _at(types[name], capacity)
    past = graph.inputs[model.caches[0].key].type.shape[2].name or ""
    types[OFFSET] = Type("i64", ())
    lengths = Lengths(types, graph.facts, graph.least, {past: OFFSET})
    g = Emitter(target, opset, lengths, {*types, *graph.outputs})
    for name, value in graph.inputs.items():
        g.tensors[value] = Tensor(name, value.type, value)
        g.padded[value] = graph.input_facts[name].keep
    g.buffers.update(graph.inputs[n] for n in model.names)
    weights = enter_parameters(g, graph.parameters, stored or {}, ties or {})
    lower_nodes(g, graph)
    outputs = {n: g.tensors[v] for n, v in graph.outputs.items()}
    for cache in model.caches:
        for name in (cache.next_key, cache.next_value):
            outputs[name] = replace(outputs[name], type=_at(outputs[name].type, capacity))
    return finished(g, graph, types, outputs, weights)


def _at(type: Type, capacity: Dim) -> Type:
    return Type(type.dtype, (*type.shape[:2], capacity, type.shape[3]))


def cached_attention(
    op: ops.Attend, g: Emitter, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, add: Tensor | None
) -> str:
    """One `GroupQueryAttention`; the buffers it has written into take the places of `k` and `v`."""
    assert k.value
    assert v.value
    assert k.value.node
    b, h, rows, d = q.type.shape
    whole = k.type.shape[2]
    groups = k.type.shape[1]
    new = k.value.node.args[1]
    assert new
    count = new.type.shape[2]
    query = _packed(g, q)
    if rows != count:
        query = _behind_nothing(g, query, (b, count - rows, h * d), q.type.dtype)
    joined = [x.node.args for x in (k.value, v.value) if x.node]
    past = [g.tensors[args[0]].name for args in joined if args[0]]
    fresh = [_packed(g, g.tensors[args[1]]) for args in joined if args[1]]
    with g.outside("lengths"):
        total = cast(g, g.dim(whole), "i64", "i32")
        filled = g.node("Expand", cast(g, g.dim(whole - 1), "i64", "i32"), g.shape([b]))
    result, keys, values = g.nodes(
        "GroupQueryAttention",
        3,
        query,
        *fresh,
        *past,
        filled,
        total,
        None,
        None,
        None,
        _bias(g, count, mask, add, whole),
        domain=CONTRIB,
        num_heads=h.number,
        kv_num_heads=groups.number,
        scale=op.scale,
        softcap=op.cap if op.cap > 0 else None,
    )
    g.tensors[k.value] = Tensor(keys, k.type, k.value)
    g.tensors[v.value] = Tensor(values, v.type, v.value)
    if rows != count:
        result = cut(g, result, 1, count - rows, count)
    if mask is not None and not always(mask):
        result = _seeing(g, result, mask, q.type.dtype)
    opened = g.node("Reshape", result, g.vector(0, 0, h.number or 0, d.number or 0))
    turned = g.node("Transpose", opened, perm=[0, 2, 1, 3])
    g.packed[turned] = result
    return turned


def _packed(g: Emitter, x: Tensor) -> str:
    """`[b, h, t, d]` as `[b, t, h·d]`."""
    if (known := g.packed.get(x.name)) is not None:
        return known
    _, h, _, d = x.type.shape
    turned = g.node("Transpose", x.name, perm=[0, 2, 1, 3])
    return g.node("Reshape", turned, g.vector(0, 0, (h.number or 0) * (d.number or 0)))


def _behind_nothing(g: Emitter, query: str, shape: Sequence[Dim], dtype: str) -> str:
    """The newest queries alone, where the kernel wants one for every new key: zeros stand for the others."""
    return g.node("Concat", full(g, 0, dtype, shape), query, axis=1)


def _bias(g: Emitter, queries: Dim, mask: Tensor | None, add: Tensor | None, keys: Dim) -> str | None:
    """What is added to scores, of full query and key length; the kernel hides later rows by itself."""
    dtype = "f32"
    if mask is not None and not always(mask):
        zero = add.name if add else g.constant(0.0, dtype)
        shown = g.node("Where", mask.name, zero, g.constant(HIDDEN, dtype))
        sides = mask.type.shape
        if add is not None:
            sides = tuple(m if a == 1 else a for m, a in zip(sides, add.type.shape, strict=True))
        bias = typed(shown, dtype, sides)
    elif add is not None:
        bias = add
    else:
        return None
    wanted = (*bias.type.shape[:2], queries, keys)
    return bias.name if bias.type.shape == wanted else g.node("Expand", bias.name, g.shape(wanted))


def _seeing(g: Emitter, result: str, mask: Tensor, dtype: str) -> str:
    """Zeros for the rows that see no key; `result` is `[b, t, h·d]`, the mask the same for all heads."""
    seen = g.node("ReduceMax", cast(g, mask.name, "bool", "f32"), g.vector(3), keepdims=0)
    rows = g.node("Transpose", seen, perm=[0, 2, 1])
    return g.node("Where", cast(g, rows, "f32", "bool"), result, g.constant(0.0, dtype))
