"""The ONNX graph under construction: nodes, constants, names, nested bodies.

Equal nodes are emitted once, so layers share masks, shapes and position tables. Nodes go into
the innermost open `GraphBody`; lengths are computed outside (`specc_onnx.lower.dynamic_shapes`).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from specc.ir.array import Array
from specc.ir.dim import DimLike
from specc.ir.graph import Value
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.emitter_state import (
    BodyStack,
    GraphBody,
    GraphFacts,
    LayoutCache,
    LoweringSite,
    NameTable,
    Tensor,
    ValueTable,
)
from specc_onnx.lower.onnx_nodes import iterate_node_inputs
from specc_onnx.lower.onnx_targets import NUMPY_DTYPES, ONNX_TYPE_CODES

CONTRIB_DOMAIN = "com.microsoft"

Operand: TypeAlias = str | Tensor | bool | int | float | Sequence[int] | None
"""An operand of a node: a value by name or as a tensor, a constant (a Python integer is i64, a
float f32, a sequence of integers i64[n]), or None if it is absent."""


@dataclass(kw_only=True)
class Emitter:
    """Builder of ONNX nodes for one target and opset. `lengths` computes dynamic lengths, `site` is
    the IR node being lowered, `attentions` are notes on where attention weights are.
    """

    target: Target
    opset: int
    lengths: LengthResolver
    names: NameTable
    values: ValueTable = field(default_factory=ValueTable)
    bodies: BodyStack = field(default_factory=BodyStack)
    layouts: LayoutCache = field(default_factory=LayoutCache)
    facts: GraphFacts = field(default_factory=GraphFacts)
    site: LoweringSite = field(default_factory=LoweringSite)
    attentions: list[dict[str, str]] = field(default_factory=list)

    def has(self, kind: str) -> bool:
        """Return whether target and opset have the fused operator `kind`."""
        return kind in self.target.fused_operators and onnx_targets.is_operator_available(
            kind, self.opset
        )

    def lacks(self, kind: str, dtype: str) -> bool:
        """Return whether the target has no kernel of an operator for an element type."""
        return bool({kind, f"{kind} {dtype}"} & self.target.missing_kernels)

    def node(self, kind: str, *inputs: Operand, domain: str = "", **attributes: Any) -> str:
        """Emit an ONNX node, or reuse an equal one; return its result."""
        return self.nodes(kind, 1, *inputs, domain=domain, **attributes)[0]

    def nodes(
        self, kind: str, results: int, *inputs: Operand, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Emit an ONNX node, or reuse an equal one; return its first `results` results. Missing
        inputs at the end are dropped.
        """
        given = [_emit_operand(self, operand) for operand in inputs]
        while given and not given[-1]:
            given.pop()
        kept = {k: v for k, v in attributes.items() if v is not None}
        key = (
            kind,
            results,
            domain,
            tuple(given),
            tuple((k, _make_hashable(v)) for k, v in kept.items()),
        )
        for body in self.bodies.open[self.bodies.isolated :]:
            if (known := body.known.get(key)) is not None:
                return known
        name = self.unique(self.scoped_name(kind))
        names = (name, *(self.unique(f"{name}:{n}") for n in range(1, results)))
        self.bodies.open[-1].nodes.append(make_node(kind, name, given, names, domain, kept))
        self.bodies.open[-1].known[key] = names
        return names

    def scoped_name(self, word: str) -> str:
        """Return a name under the current scope, such as `encoder/layers/3/Gemm`."""
        return "/".join([self.scope_prefix, word])

    @property
    def scope_prefix(self) -> str:
        """Return the current scope as a node name prefix, never empty."""
        parts = [*filter(None, self.site.scope.split("."))]
        return "/".join(parts) or self.names.graph or "main"

    def alias(self, name: str, wish: str) -> str:
        """Emit an `Identity` in the innermost body; return the new name."""
        result = self.unique(wish)
        self.bodies.open[-1].nodes.append(make_node("Identity", result, [name], [result], "", {}))
        return result

    def unique(self, wish: str) -> str:
        """Return `wish`, or `wish_2`, `wish_3`, … if it is taken."""
        name = make_unique_name(wish, self.names.taken)
        self.names.preferred[name] = wish
        return name

    def new_tensor(self, word: str, type: Type, value: Value | None = None) -> Tensor:
        """Return a tensor with a unique name under the current scope."""
        return Tensor(self.unique(self.scoped_name(word)), type, value)

    def new_loop_inputs(self, word: str) -> tuple[Tensor, Tensor]:
        """Return the first two inputs of a `Loop` body: iteration i64[], condition bool[]."""
        return self.new_tensor(word, Type("i64", ())), self.new_tensor("go", Type("bool", ()))

    @contextmanager
    def body(self, *, isolated: bool = False) -> Iterator[GraphBody]:
        """Open a body that collects emitted nodes; `isolated`: without reuse of outer values."""
        site, opened, before = self.site, GraphBody(), self.bodies.isolated
        self.bodies.open.append(opened)
        if isolated:
            self.bodies.isolated = len(self.bodies.open) - 1
        try:
            yield opened
        finally:
            self.bodies.open.pop()
            self.site, self.bodies.isolated = site, before

    @contextmanager
    def enter_graph(self, lengths: LengthResolver) -> Iterator[None]:
        """Lower a separate graph, with its own `lengths`, into the innermost body."""
        before, root = self.lengths, self.bodies.root
        self.lengths, self.bodies.root = lengths, len(self.bodies.open) - 1
        try:
            yield
        finally:
            self.lengths, self.bodies.root = before, root

    @contextmanager
    def outside(self, scope: str, *, level: int | None = None) -> Iterator[None]:
        """Emit into the body where lengths are known, or into the main graph with `level` 0."""
        bodies, site, isolated = self.bodies.open, self.site, self.bodies.isolated
        self.bodies.open, self.site, self.bodies.isolated = (
            bodies[: (self.bodies.root if level is None else level) + 1],
            LoweringSite((scope,)),
            0,
        )
        try:
            yield
        finally:
            self.bodies.open, self.site, self.bodies.isolated = bodies, site, isolated

    def constant(self, value: object, dtype: str) -> str:
        """Emit a constant tensor, or reuse an equal one."""
        array = np.asarray(value).astype(NUMPY_DTYPES[dtype])
        base, n = _suggest_constant_name(array, dtype), 1
        name = base
        while name in self.names.taken:
            # the name may be that of another constant of this shape, or of a value
            if (known := self.values.constants.get(name)) and _is_same_constant(known, array):
                return name
            n += 1
            name = f"{base}_{n}"
        self.values.constants[name] = make_tensor_proto(name, array, dtype)
        self.names.taken.add(name)
        return name

    def dim(self, length: DimLike) -> str:
        """Emit a length as a scalar, i64[]."""
        return self.lengths.emit_scalar(self, length)

    def shape(self, dims: Sequence[DimLike]) -> str:
        """Emit lengths as a vector, i64[n]; a constant if all are known."""
        return self.lengths.vector(self, dims)

    def vector(self, *numbers: int) -> str:
        """Emit integers as a constant vector."""
        return self.constant(list(numbers), "i64")


def _emit_operand(g: Emitter, operand: Operand) -> str:
    """Return the name of an operand, "" if it is absent; emit constants."""
    match operand:
        case str():
            return operand
        case Tensor():
            return operand.name
        case None:
            return ""
        case bool():
            return g.constant(operand, "bool")
        case float():
            return g.constant(operand, "f32")
    return g.constant(operand, "i64")


def _suggest_constant_name(array: Array, dtype: str) -> str:
    """Return a name for a constant: its values if they are few, else its shape."""
    if array.size <= 8:
        return f"{dtype}:{str(array.tolist()).replace(' ', '')}"
    return f"{dtype}:{'x'.join(map(str, array.shape))}"


def _is_same_constant(known: TensorProto, array: Array) -> bool:
    """Return whether a constant has these values and this shape."""
    same = known.raw_data == array.tobytes()
    return same and list(known.dims) == list(array.shape)


def make_unique_name(wish: str, taken: set[str]) -> str:
    """Return `wish`, or `wish_2`, … if taken, by binary search, and add it to `taken`."""
    name = wish
    if name in taken:
        low, high = 1, 2  # a used name, and one to try
        while f"{wish}_{high}" in taken:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if f"{wish}_{middle}" in taken else (low, middle)
        name = f"{wish}_{high}"
    taken.add(name)
    return name


def make_node(
    kind: str,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    domain: str,
    attributes: dict[str, Any],
) -> NodeProto:
    """Build a NodeProto field by field (several times faster than `onnx.helper.make_node`)."""
    node = NodeProto(op_type=kind, name=name, input=inputs, output=outputs)
    if domain:
        node.domain = domain
    for key in sorted(attributes):
        node.attribute.append(_make_attribute(key, attributes[key]))
    return node


def make_tensor_proto(name: str, array: Array, dtype: str) -> TensorProto:
    """Build a TensorProto that holds `array` (little-endian bytes)."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return TensorProto(
        name=name, data_type=ONNX_TYPE_CODES[dtype], dims=array.shape, raw_data=little.tobytes()
    )


def make_value_info(name: str, type: Type) -> ValueInfoProto:
    """Return a ValueInfoProto; a dynamic length is written as its formula."""
    dims = [d.number if d.number is not None else str(d) for d in type.shape]
    made: ValueInfoProto = helper.make_tensor_value_info(name, ONNX_TYPE_CODES[type.dtype], dims)
    return made


def make_body_graph(
    name: str,
    body: GraphBody,
    results: Sequence[str],
    types: Sequence[Type],
    inputs: Sequence[Tensor] = (),
) -> GraphProto:
    """Return a finished body as a graph without unused nodes."""
    outputs = [make_value_info(r, t) for r, t in zip(results, types, strict=True)]
    body.nodes = find_live_nodes(body.nodes, results)
    return GraphProto(
        name=name,
        node=body.nodes,
        input=[make_value_info(t.name, t.type) for t in inputs],
        output=outputs,
        value_info=list_value_infos(body, results),
    )


def emit_body_results(g: Emitter, results: Sequence[str]) -> list[str]:
    """Return results under names defined in the innermost body, without duplicates, as ONNX
    requires: a carry passed through or an outer value is copied.
    """
    made = {name for node in g.bodies.open[-1].nodes for name in node.output}
    found: list[str] = []
    for name in results:
        own = name in made and name not in found
        found.append(name if own else g.alias(name, g.scoped_name("result")))
    return found


def make_branch(
    g: Emitter,
    name: str,
    types: Sequence[Type],
    write: Callable[[], Sequence[str]],
    *,
    isolated: bool = False,
) -> GraphProto:
    """Return a branch of an `If` with what `write` emits; `isolated` as in `Emitter.body`."""
    with g.body(isolated=isolated) as body:
        results = emit_body_results(g, write())
    return make_body_graph(name, body, results, types)


def list_value_infos(body: GraphBody, results: Sequence[str]) -> list[ValueInfoProto]:
    """Return the types of the values of a body except its results."""
    made = dict.fromkeys(name for node in body.nodes for name in node.output if name in body.types)
    return [make_value_info(name, body.types[name]) for name in made if name not in results]


def _make_attribute(key: str, value: Any) -> AttributeProto:
    if isinstance(value, bool | int):
        return AttributeProto(name=key, type=AttributeProto.INT, i=int(value))
    if isinstance(value, float):
        return AttributeProto(name=key, type=AttributeProto.FLOAT, f=value)
    if isinstance(value, str):
        return AttributeProto(name=key, type=AttributeProto.STRING, s=value.encode())
    if isinstance(value, GraphProto):
        return AttributeProto(name=key, type=AttributeProto.GRAPH, g=value)
    made: AttributeProto = helper.make_attribute(key, value)
    return made


class _IdentityKey:
    """A hash key that compares graphs by identity, and keeps them alive so that ids are unique."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.graph is other.graph

    def __hash__(self) -> int:
        return id(self.graph)


def _make_hashable(value: Any) -> Hashable:
    """Return an attribute as a hash key; graphs are compared by identity."""
    if isinstance(value, GraphProto):
        return _IdentityKey(value)
    return tuple(value) if isinstance(value, list) else value


def record_attention_note(g: Emitter, dtype: str, found: Mapping[str, str]) -> None:
    """Record where the weights of an attention outside loops can be read."""
    if len(g.bodies.open) == 1:
        g.attentions += (
            {"scope": scope, "dtype": dtype, **found} for scope in g.site.scopes or ("attention",)
        )


def find_live_nodes(nodes: list[NodeProto], wanted: Iterable[str]) -> list[NodeProto]:
    """Return the nodes that `wanted` depends on."""
    read, kept = set(wanted), []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(iterate_node_inputs(node))
    return kept[::-1]
