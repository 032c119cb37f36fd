"""The ONNX graph under construction: nodes, constants, names, nested bodies.

Equal nodes are emitted once, so layers share masks, shapes and position tables. Nodes go into
the innermost open `GraphBody`; lengths are computed outside (`specc_onnx.lower.dynamic_shapes`).
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

from specc.ir.dim import Dim, DimLike
from specc.ir.graph import Value
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.onnx_nodes import (
    find_live_nodes,
    make_hashable,
    make_node,
    make_tensor_proto,
    make_unique_name,
    make_value_info,
)
from specc_onnx.lower.onnx_targets import NUMPY_DTYPES

if TYPE_CHECKING:
    from specc_onnx.lower.predictive_local_attention import NearKeys

CONTRIB_DOMAIN = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the ONNX graph by its name; `value` is its IR value, if it has one."""

    name: str
    type: Type
    value: Value | None = None

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Return the length of each axis."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Return the element type."""
        return self.type.dtype

    @property
    def rank(self) -> int:
        """Return the number of axes."""
        return self.type.rank


@dataclass(frozen=True, slots=True)
class LoweringSite:
    """The IR node being lowered: its scope paths, result types, and which results are used."""

    scopes: tuple[str, ...] = ()
    types: tuple[Type, ...] = ()
    is_used: tuple[bool, ...] = ()

    @property
    def scope(self) -> str:
        """Return the scope path under which the node was first built."""
        return self.scopes[0] if self.scopes else ""


@dataclass(slots=True)
class GraphBody:
    """Nodes of a graph or subgraph, their results by hash key (`known`), and the IR types of these,
    which ONNX's shape inference would lose.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    known: dict[Hashable, tuple[str, ...]] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)


@dataclass(slots=True)
class NameTable:
    """Names in use (`taken`), their preferred names (set by `Emitter.unique`, read by
    `specc_onnx.emit.onnx_graph`), and the name of the graph.
    """

    taken: set[str]
    preferred: dict[str, str] = field(default_factory=dict)
    graph: str = ""


@dataclass(slots=True, kw_only=True)
class ValueTable:
    """IR values and their names: `tensors` set by `lower_nodes`, shared `constants`, `parameters`
    by the spec's names, their `stored_types`, `narrow_weights` (widened values to their 16-bit
    initializers), and KV `buffers` that attention appends to.
    """

    tensors: dict[Value, Tensor] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    stored_types: dict[str, Type] = field(default_factory=dict)
    narrow_weights: dict[str, str] = field(default_factory=dict)
    buffers: set[Value] = field(default_factory=set)


@dataclass(slots=True)
class BodyStack:
    """The open graph bodies, the innermost last. Lengths are known in number `root` (0, or a loop
    around a whole graph); nodes below number `isolated` are not reused.
    """

    open: list[GraphBody] = field(default_factory=lambda: [GraphBody()])
    root: int = 0
    isolated: int = 0


@dataclass(slots=True)
class LayoutCache:
    """Values in another layout: `packed` heads `[b, t, h*d]` of `[b, h, t, d]`; padding mask and
    packed output of `recurrent` layers; `hoisted` masks; `near_keys` outside which attention
    weights are zero (local-p).
    """

    packed: dict[str, str] = field(default_factory=dict)
    recurrent: dict[str, tuple[str, str]] = field(default_factory=dict)
    hoisted: dict[Hashable, Tensor] = field(default_factory=dict)
    near_keys: dict[str, "NearKeys"] = field(default_factory=dict)


@dataclass(slots=True)
class GraphFacts:
    """Facts known before lowering: sides of padding masks, use counts, ends of the pieces that axes
    are split into, upper bounds of lengths. `branch_lengths` collects lengths beyond which the
    model takes another branch.
    """

    padding_sides: dict[Value, str] = field(default_factory=dict)
    use_counts: dict[Value, int] = field(default_factory=dict)
    split_ends: dict[Value, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    max_lengths: Mapping[str, int] = field(default_factory=dict)
    branch_lengths: dict[str, int] = field(default_factory=dict)

    def add_branch_length(self, length: Dim, above: int) -> None:
        """Add a length beyond which the model takes another branch."""
        if length.name is not None:
            known = self.branch_lengths.get(length.name, 0)
            self.branch_lengths[length.name] = max(above, known)


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
        options = tuple((k, make_hashable(v)) for k, v in kept.items())
        key = (kind, results, domain, tuple(given), options)
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
        proto = make_tensor_proto(array, dtype)
        for n in count(1):
            name = proto.name if n == 1 else f"{proto.name}_{n}"
            known = self.values.constants.get(name)
            if known and known.raw_data == proto.raw_data and known.dims == proto.dims:
                return name
            # the name may be that of another constant of this shape, or of a value
            if name not in self.names.taken:
                break
        proto.name = name
        self.values.constants[name] = proto
        self.names.taken.add(name)
        return name

    def dim(self, length: DimLike) -> str:
        """Emit a length as a scalar, i64[]."""
        return self.lengths.emit_scalar(self, length)

    def shape(self, dims: Sequence[DimLike]) -> str:
        """Emit lengths as a vector, i64[n]; a constant if all are known."""
        return self.lengths.vector(self, dims)

    def list_names(self, values: Iterable[Value]) -> list[str]:
        """Return the names of IR values."""
        return [self.values.tensors[value].name for value in values]


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


def emit_if(
    g: Emitter,
    condition: str,
    types: Sequence[Type],
    branches: Mapping[str, Callable[[], Sequence[str]]],
    isolated: Collection[str] = (),
) -> tuple[str, ...]:
    """Emit an `If` of two named `branches`, for true and for false, each with the function that
    emits its results; `isolated` are the names of branches that reuse no outer values.
    """
    then, otherwise = (
        make_branch(g, name, types, write, isolated=name in isolated)
        for name, write in branches.items()
    )
    return g.nodes("If", len(types), condition, then_branch=then, else_branch=otherwise)


def list_value_infos(body: GraphBody, results: Sequence[str]) -> list[ValueInfoProto]:
    """Return the types of the values of a body except its results."""
    made = dict.fromkeys(name for node in body.nodes for name in node.output if name in body.types)
    return [make_value_info(name, body.types[name]) for name in made if name not in results]
