"""The ONNX graph under construction: nodes, constants, names, nested bodies.

Names are made here and nowhere else. A node that was written before is not written
again, so masks, shapes and position tables are shared by all layers. Nodes go into the
innermost open `GraphBody`; a body sees everything outside it, as in ONNX. Lengths are always
computed outside (`specc_onnx.lower.dynamic_shapes`).
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from specc.ir.array import Array
from specc.ir.dim import DimLike
from specc.ir.graph import Value
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.element_types import NUMPY_DTYPES, ONNX_TYPE_CODES
from specc_onnx.lower.liveness import find_live_nodes

if TYPE_CHECKING:
    from specc_onnx.lower.predictive_local_attention import NearKeys

CONTRIB_DOMAIN = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value by the name it has in the ONNX graph. `value` is the IR's, for rules that
    look behind it.
    """

    name: str
    type: Type
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class LoweringSite:
    """The IR node being lowered: its scope paths, the types of its results, and which are read."""

    scopes: tuple[str, ...] = ()
    types: tuple[Type, ...] = ()
    wanted: tuple[bool, ...] = ()

    @property
    def scope(self) -> str:
        """The path it was first built under."""
        return self.scopes[0] if self.scopes else ""


@dataclass(slots=True)
class GraphBody:
    """The nodes of one ONNX graph (the main one or a loop's), what they were made from,
    and known types.

    The types are written down: ONNX's own inference forgets lengths on the way, and
    they are worth seeing.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    known: dict[Hashable, tuple[str, ...]] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)


@dataclass
class Emitter:
    """Writes nodes for one target at one opset.

    `wishes` holds what names would be if none were taken (`specc_onnx.emit.onnx_graph`).
    `packed` maps a `[b, h, t, d]` tensor to the same numbers as `[b, t, h·d]`, where
    they exist. `rows` maps a recurrent layer's result to what says which rows exist,
    and to the same numbers with time in front and those rows first, as the next layer
    takes them. `padded` tells, for each input that says which rows exist, on which side
    some may be missing. `attentions` notes, per attention, its scope, the node that
    computes it and where its weights are. `stored` holds the types of weights as they
    lie in a file, by their names in the model, `narrow` the names of those that are
    widened, by the names of what is made of them. `buffers` are inputs that attention
    writes into, at their end (`specc_onnx.emit.kv_buffers`). `root` is the body in which
    lengths are known: 0, the main graph, or that of a loop around a whole graph.
    Nodes written before into bodies outside of number `apart` are written again.
    `hoisted` are values that an `If` makes for several attentions, by what they are.
    `readers` says how often a value is read, `tiled` where pieces of its axes end;
    `near` tells of weights outside of which keys they are zeros. `most` bounds lengths
    from above; beyond what `beyond` notes the model goes another way. `home` is the name
    of the graph, under which nodes stand that no scope has.
    """

    target: Target
    opset: int
    lengths: LengthResolver
    taken: set[str]
    wishes: dict[str, str] = field(default_factory=dict)
    tensors: dict[Value, Tensor] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    packed: dict[str, str] = field(default_factory=dict)
    rows: dict[str, tuple[str, str]] = field(default_factory=dict)
    padded: dict[Value, str] = field(default_factory=dict)
    attentions: list[dict[str, str]] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    site: LoweringSite = field(default_factory=LoweringSite)
    bodies: list[GraphBody] = field(default_factory=lambda: [GraphBody()])
    stored: dict[str, Type] = field(default_factory=dict)
    narrow: dict[str, str] = field(default_factory=dict)
    buffers: set[Value] = field(default_factory=set)
    root: int = 0
    apart: int = 0
    hoisted: dict[Hashable, str] = field(default_factory=dict)
    readers: dict[Value, int] = field(default_factory=dict)
    tiled: dict[Value, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    near: dict[str, "NearKeys"] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    home: str = ""

    def has(self, kind: str) -> bool:
        """Whether the fused operator `kind` is to be used."""
        return kind in self.target.fused and onnx_targets.is_operator_available(kind, self.opset)

    def lacks(self, kind: str, dtype: str) -> bool:
        """Whether the target has no kernel of an operator for an element type."""
        return bool({kind, f"{kind} {dtype}"} & self.target.lacks)

    def node(self, kind: str, *inputs: str | None, domain: str = "", **attributes: Any) -> str:
        """The result of an ONNX node, written now or before."""
        return self.nodes(kind, 1, *inputs, domain=domain, **attributes)[0]

    def nodes(
        self, kind: str, results: int, *inputs: str | None, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """The first `results` results of an ONNX node. Missing inputs at the end are dropped."""
        given = [i or "" for i in inputs]
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
        for body in self.bodies[self.apart :]:
            if (known := body.known.get(key)) is not None:
                return known
        name = self.unique(self.place(kind))
        names = (name, *(self.unique(f"{name}:{n}") for n in range(1, results)))
        self.bodies[-1].nodes.append(make_node(kind, name, given, names, domain, kept))
        self.bodies[-1].known[key] = names
        return names

    def place(self, word: str) -> str:
        """A name under the scope of what is being lowered, `encoder/layers/3/Gemm`."""
        return "/".join([self.folder, word])

    @property
    def folder(self) -> str:
        """The scope of what is being lowered as names have it; every node is in one."""
        parts = [*filter(None, self.site.scope.split("."))]
        return "/".join(parts) or self.home or "main"

    def alias(self, name: str, wish: str) -> str:
        """A value again under a name of its own, in the innermost body."""
        result = self.unique(wish)
        self.bodies[-1].nodes.append(make_node("Identity", result, [name], [result], "", {}))
        return result

    def unique(self, wish: str) -> str:
        """`wish`, or `wish_2` and so on where it is taken."""
        name = make_unique_name(wish, self.taken)
        self.wishes[name] = wish
        return name

    @contextmanager
    def body(self, *, apart: bool = False) -> Iterator[GraphBody]:
        """A loop's body: what is written meanwhile goes into it; with `apart` also what
        was written outside before.
        """
        site, opened, before = self.site, GraphBody(), self.apart
        self.bodies.append(opened)
        if apart:
            self.apart = len(self.bodies) - 1
        try:
            yield opened
        finally:
            self.bodies.pop()
            self.site, self.apart = site, before

    @contextmanager
    def rooted(self, lengths: LengthResolver) -> Iterator[None]:
        """Lower a graph of its own into the innermost body, whose inputs tell its `lengths`."""
        before, root = self.lengths, self.root
        self.lengths, self.root = lengths, len(self.bodies) - 1
        try:
            yield
        finally:
            self.lengths, self.root = before, root

    @contextmanager
    def outside(self, scope: str, *, level: int | None = None) -> Iterator[None]:
        """Write where lengths are known, whatever body is open; with `level` 0 into the
        main graph.
        """
        bodies, site, apart = self.bodies, self.site, self.apart
        self.bodies, self.site, self.apart = (
            bodies[: (self.root if level is None else level) + 1],
            LoweringSite((scope,)),
            0,
        )
        try:
            yield
        finally:
            self.bodies, self.site, self.apart = bodies, site, apart

    def constant(self, value: object, dtype: str) -> str:
        """A constant tensor, shared by all that use the same one."""
        array = np.asarray(value).astype(NUMPY_DTYPES[dtype])
        base, n = _suggest_constant_name(array, dtype), 1
        name = base
        while name in self.taken:
            # the name may be that of another constant of this shape, or of a value
            if (known := self.constants.get(name)) and _is_same_constant(known, array):
                return name
            n += 1
            name = f"{base}_{n}"
        self.constants[name] = make_tensor_proto(name, array, dtype)
        self.taken.add(name)
        return name

    def dim(self, length: DimLike) -> str:
        """A length as a scalar, i64[]."""
        return self.lengths.scalar(self, length)

    def shape(self, dims: Sequence[DimLike]) -> str:
        """Lengths as one vector, i64[n]; a constant where all are known."""
        return self.lengths.vector(self, dims)

    def vector(self, *numbers: int) -> str:
        """Whole numbers as a constant vector."""
        return self.constant(list(numbers), "i64")


def _suggest_constant_name(array: Array, dtype: str) -> str:
    """What a constant would be called: by its numbers if they are few, else its shape."""
    if array.size <= 8:
        return f"{dtype}:{str(array.tolist()).replace(' ', '')}"
    return f"{dtype}:{'x'.join(map(str, array.shape))}"


def _is_same_constant(known: TensorProto, array: Array) -> bool:
    """Whether a constant is these numbers in this shape."""
    same = known.raw_data == array.tobytes()
    return same and list(known.dims) == list(array.shape)


def make_unique_name(wish: str, taken: set[str]) -> str:
    """`wish`, or `wish_2` and so on where it is taken; it is taken afterwards.

    The number is found by doubling and halving: thousands of nodes of one kind may
    stand in one scope.
    """
    name = wish
    if name in taken:
        low, high = 1, 2  # a number that is taken, and one to try
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
    """A NodeProto, written field by field (several times faster than `onnx.helper.make_node`)."""
    node = NodeProto(op_type=kind, name=name, input=inputs, output=outputs)
    if domain:
        node.domain = domain
    for key in sorted(attributes):
        node.attribute.append(_make_attribute(key, attributes[key]))
    return node


def make_tensor_proto(name: str, array: Array, dtype: str) -> TensorProto:
    """A TensorProto that holds `array` (little-endian bytes)."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return TensorProto(
        name=name, data_type=ONNX_TYPE_CODES[dtype], dims=array.shape, raw_data=little.tobytes()
    )


def make_value_info(name: str, type: Type) -> ValueInfoProto:
    """The name and type of a graph's input or result; a length without a number is
    written as its formula.
    """
    dims = [d.number if d.number is not None else str(d) for d in type.shape]
    made: ValueInfoProto = helper.make_tensor_value_info(name, ONNX_TYPE_CODES[type.dtype], dims)
    return made


def make_body_graph(
    name: str,
    body: GraphBody,
    results: Sequence[str],
    types: Sequence[Type],
    inputs: Sequence[ValueInfoProto] = (),
) -> GraphProto:
    """A finished body as a graph of its own, without what nobody reads."""
    outputs = [make_value_info(r, t) for r, t in zip(results, types, strict=True)]
    body.nodes = find_live_nodes(body.nodes, results)
    return GraphProto(
        name=name,
        node=body.nodes,
        input=inputs,
        output=outputs,
        value_info=list_value_infos(body, results),
    )


def list_value_infos(body: GraphBody, results: Sequence[str]) -> list[ValueInfoProto]:
    """The types of the values that the nodes of a body make, its results apart."""
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
    """A graph as part of a key: equal to itself alone. It is held, because the place in
    memory of one that is gone may be that of the next.
    """

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.graph is other.graph

    def __hash__(self) -> int:
        return id(self.graph)


def _make_hashable(value: Any) -> Hashable:
    """An attribute as part of a key; two graphs are the same only if they are one object."""
    if isinstance(value, GraphProto):
        return _IdentityKey(value)
    return tuple(value) if isinstance(value, list) else value


def record_attention_note(g: Emitter, dtype: str, found: Mapping[str, str]) -> None:
    """Remember where the weights of this attention can be read; inside a loop they cannot."""
    if len(g.bodies) == 1:
        g.attentions += (
            {"scope": scope, "dtype": dtype, **found} for scope in g.site.scopes or ("attention",)
        )
