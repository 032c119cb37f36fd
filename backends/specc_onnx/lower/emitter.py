"""Build an ONNX graph: nodes, constants and names.

Equal nodes are emitted once, so that layers share masks, shapes and position embeddings. Nodes are
added to the innermost open `GraphBody`, but nodes for dynamic dimensions are hoisted
(`specc_onnx.lower.dynamic_shapes`).
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from specc.ir.array import Array
from specc.ir.dim import Dim, DimLike
from specc.ir.graph import Value
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.onnx_targets import NUMPY_DTYPES, ONNX_TYPE_CODES
from specc_onnx.lower.onnx_values import (
    OnnxValue,
    Operand,
    Tensor,
    UnrankedTensor,
    choose_constant_dtype,
    infer_result_dtypes,
)

if TYPE_CHECKING:
    from specc_onnx.lower.predictive_local_attention import WindowKeys

CONTRIB_DOMAIN = "com.microsoft"


@dataclass(frozen=True, slots=True)
class LoweringContext:
    """The IR node that is being lowered. It has scope paths, result types, a flag for each used
    result, and a flag for a sigmoid that requires a small relative error.
    """

    scopes: tuple[str, ...] = ()
    types: tuple[Type, ...] = ()
    used_results: tuple[bool, ...] = ()
    needs_accurate_sigmoid: bool = False

    @property
    def scope(self) -> str:
        """Return the scope path under which the node was first built."""
        return self.scopes[0] if self.scopes else ""


@dataclass(slots=True)
class GraphBody:
    """The nodes of a graph or subgraph, their results by node hash key, and the IR types of the
    results.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    results_by_key: dict[Hashable, tuple[OnnxValue, ...]] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)


@dataclass(slots=True)
class NameTable:
    """The `used` names of values, their `preferred` names, and the name of the graph.
    `Emitter.reserve_name` adds the preferred names.
    """

    used: set[str]
    preferred: dict[str, str] = field(default_factory=dict)
    graph_name: str = ""


@dataclass(slots=True, kw_only=True)
class ValueTable:
    """Emitted values. `tensors` maps IR values to ONNX tensors. `stored_types` are the types that
    weights have before a cast. If a weight is cast to a wider type, `narrow_weights` maps the name
    of the cast weight to the initializer. `kv_buffers` contains the KV buffers to which attention
    layers append.
    """

    tensors: dict[Value, Tensor] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    stored_types: dict[str, Type] = field(default_factory=dict)
    narrow_weights: dict[str, OnnxValue] = field(default_factory=dict)
    kv_buffers: set[Value] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class GraphBodyStack:
    """The open graph bodies. The last body in the list is the innermost. Dimensions are computed in
    the body at `root_index`, which is 0 or the index of a loop around a whole graph. Nodes in
    bodies before `isolated_index` are not reused.
    """

    open_bodies: tuple[GraphBody, ...] = field(default_factory=lambda: (GraphBody(),))
    root_index: int = 0
    isolated_index: int = 0


@dataclass(slots=True)
class LoweringCache:
    """Emitted values that later nodes may reuse. They include packed heads `[b, t, h*d]` of values
    `[b, h, t, d]`, padding masks and time-major outputs of recurrent layers, and masks outside
    loops. For local-p attention, `window_keys` selects the keys whose attention weights may be
    nonzero.
    """

    packed_heads: dict[str, OnnxValue] = field(default_factory=dict)
    time_major_outputs: dict[str, tuple[str, OnnxValue]] = field(default_factory=dict)
    hoisted_masks: dict[Hashable, Tensor] = field(default_factory=dict)
    window_keys: dict[str, "WindowKeys"] = field(default_factory=dict)


@dataclass(slots=True)
class GraphAnalysis:
    """Properties of the graph that are computed before lowering. They are padding sides of masks,
    use counts of values, ends of slices that partition an axis, and upper bounds of dimensions.
    `branch_thresholds` collects the sizes above which the model takes a different branch.
    """

    padding_sides: dict[Value, str] = field(default_factory=dict)
    use_counts: dict[Value, int] = field(default_factory=dict)
    split_ends: dict[Value, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    max_lengths: Mapping[str, int] = field(default_factory=dict)
    branch_thresholds: dict[str, int] = field(default_factory=dict)

    def add_branch_threshold(self, length: Dim, threshold: int) -> None:
        """Record that the model takes a different branch if a dimension exceeds `threshold`."""
        if length.name is not None:
            previous_limit = self.branch_thresholds.get(length.name, 0)
            self.branch_thresholds[length.name] = max(threshold, previous_limit)


@dataclass(kw_only=True)
class Emitter:
    """An ONNX node builder for a target and an opset. `lengths` computes dynamic sizes. `context`
    describes the current IR node. `attention_weight_locations` lists sources of attention weights.
    """

    target: Target
    opset: int
    lengths: DimResolver
    name_table: NameTable
    values: ValueTable = field(default_factory=ValueTable)
    bodies: GraphBodyStack = field(default_factory=GraphBodyStack)
    cache: LoweringCache = field(default_factory=LoweringCache)
    analysis: GraphAnalysis = field(default_factory=GraphAnalysis)
    context: LoweringContext = field(default_factory=LoweringContext)
    attention_weight_locations: list[dict[str, str]] = field(default_factory=list)

    @property
    def innermost_body(self) -> GraphBody:
        """Return the innermost open subgraph, to which nodes are added."""
        return self.bodies.open_bodies[-1]

    def has_operator(self, op_type: str) -> bool:
        """Return True if the target and the opset have the fused operator `op_type`."""
        is_available = onnx_targets.is_operator_available(op_type, self.opset)
        return is_available and op_type in self.target.fused_operators

    def has_kernel(self, op_type: str, dtype: str) -> bool:
        """Return True if the target has a kernel for operator `op_type` with type `dtype`."""
        return self.target.missing_kernels.isdisjoint({op_type, f"{op_type} {dtype}"})

    def emit_node(
        self, op_type: str, *inputs: Operand, domain: str = "", **attributes: Any
    ) -> OnnxValue:
        """Emit an ONNX node, or reuse an equal node, and return its result."""
        return self.emit_multi_output_node(op_type, 1, *inputs, domain=domain, **attributes)[0]

    def emit_multi_output_node(
        self, op_type: str, result_count: int, *inputs: Operand, domain: str = "", **attributes: Any
    ) -> tuple[OnnxValue, ...]:
        """Emit a node, or reuse an equal node. Return the node's first `result_count` results."""
        operands = _emit_operands(self, op_type, inputs)
        input_names = tuple(x.name if x else "" for x in operands)
        attributes = {k: v for k, v in attributes.items() if v is not None}
        options = tuple((k, make_hashable(v)) for k, v in attributes.items())
        key = (op_type, result_count, domain, input_names, options)
        for body in self.bodies.open_bodies[self.bodies.isolated_index :]:
            if (previous_results := body.results_by_key.get(key)) is not None:
                return previous_results
        name = self.reserve_name(self.make_scoped_name(op_type))
        names = (name, *(self.reserve_name(f"{name}:{n}") for n in range(1, result_count)))
        node = make_node(op_type, name, input_names, names, domain, attributes)
        self.innermost_body.nodes.append(node)
        dtypes = infer_result_dtypes(op_type, operands, attributes, result_count)
        results = tuple(UnrankedTensor(self, n, d) for n, d in zip(names, dtypes, strict=True))
        self.innermost_body.results_by_key[key] = results
        return results

    def make_scoped_name(self, suffix: str) -> str:
        """Return a name under the current scope, such as `encoder/layers/3/Gemm`."""
        return f"{self.scope_prefix}/{suffix}"

    @property
    def scope_prefix(self) -> str:
        """Return the current scope as a node name prefix, which is never empty."""
        parts = [*filter(None, self.context.scope.split("."))]
        return "/".join(parts) or self.name_table.graph_name or "main"

    def emit_identity(self, value: OnnxValue, suffix: str) -> OnnxValue:
        """Emit an `Identity` whose result has a name that ends with `suffix`."""
        name = self.reserve_name(self.make_scoped_name(suffix))
        self.innermost_body.nodes.append(make_node("Identity", name, [value.name], [name], "", {}))
        return UnrankedTensor(self, name, value.dtype)

    def reserve_name(self, preferred_name: str) -> str:
        """Reserve a unique name, which is the preferred name with a numeric suffix if necessary."""
        name = make_unique_name(preferred_name, self.name_table.used)
        self.name_table.preferred[name] = preferred_name
        return name

    def new_tensor(self, suffix: str, type: Type, value: Value | None = None) -> Tensor:
        """Return a tensor with a unique name under the current scope."""
        return Tensor(self, self.reserve_name(self.make_scoped_name(suffix)), type, value)

    def make_loop_inputs(self) -> tuple[Tensor, Tensor]:
        """Return a `Loop` body's first two inputs: iteration i64[] and condition bool[]."""
        i64, boolean = Type("i64", ()), Type("bool", ())
        return self.new_tensor("iteration", i64), self.new_tensor("condition", boolean)

    @contextmanager
    def open_body(self, *, is_isolated: bool = False) -> Iterator[GraphBody]:
        """Open a subgraph in a `with` block. An isolated subgraph does not reuse outer nodes."""
        context, bodies, body = self.context, self.bodies, GraphBody()
        isolated_index = len(bodies.open_bodies) if is_isolated else bodies.isolated_index
        open_bodies = (*bodies.open_bodies, body)
        self.bodies = replace(bodies, open_bodies=open_bodies, isolated_index=isolated_index)
        try:
            yield body
        finally:
            self.context, self.bodies = context, bodies

    @contextmanager
    def enter_graph(self, lengths: DimResolver) -> Iterator[None]:
        """Lower a separate graph into the innermost subgraph, with the dimensions `lengths`."""
        outer_lengths, bodies = self.lengths, self.bodies
        self.lengths, self.bodies = lengths, replace(bodies, root_index=len(bodies.open_bodies) - 1)
        try:
            yield
        finally:
            self.lengths, self.bodies = outer_lengths, bodies

    @contextmanager
    def hoist_nodes(self, scope: str, *, level: int | None = None) -> Iterator[None]:
        """Emit nodes into the subgraph of dynamic sizes, or into the main graph for level 0."""
        bodies, context = self.bodies, self.context
        body_count = (bodies.root_index if level is None else level) + 1
        self.bodies = replace(bodies, open_bodies=bodies.open_bodies[:body_count], isolated_index=0)
        self.context = LoweringContext((scope,))
        try:
            yield
        finally:
            self.bodies, self.context = bodies, context

    def emit_constant(self, value: object, dtype: str) -> OnnxValue:
        """Emit a constant tensor, or reuse an equal constant."""
        array = np.asarray(value).astype(NUMPY_DTYPES[dtype])
        proto = make_tensor_proto(array, dtype)
        for n in count(1):
            name = proto.name if n == 1 else f"{proto.name}_{n}"
            constant = self.values.constants.get(name)
            if constant and constant.raw_data == proto.raw_data and constant.dims == proto.dims:
                return UnrankedTensor(self, name, dtype)
            # the name may already belong to a different constant or to another value of the graph
            if name not in self.name_table.used:
                break
        proto.name = name
        self.values.constants[name] = proto
        self.name_table.used.add(name)
        return UnrankedTensor(self, name, dtype)

    def emit_length(self, length: DimLike) -> OnnxValue:
        """Emit a dimension as i64[]."""
        return self.lengths.emit_dim_scalar(self, length)

    def emit_shape(self, dims: Sequence[DimLike]) -> OnnxValue:
        """Emit dimensions as a vector i64[n], which is a constant if all of them are static."""
        return self.lengths.emit_dim_vector(self, dims)

    def get_tensors(self, values: Iterable[Value]) -> list[Tensor]:
        """Return the ONNX values of IR values."""
        return [self.values.tensors[value] for value in values]


def _emit_operands(g: Emitter, op_type: str, operands: Sequence[Operand]) -> list[OnnxValue | None]:
    """Return an operator's operands up to the last one that is present. Emit constants."""
    values = [
        x
        if isinstance(x, OnnxValue | None)
        else g.emit_constant(x, choose_constant_dtype(op_type, operands, x))
        for x in operands
    ]
    while values and values[-1] is None:
        values.pop()
    return values


def make_unique_name(preferred_name: str, used_names: set[str]) -> str:
    """If the preferred name is in `used_names`, append a numeric suffix, starting with 2. Return
    the name and add it to `used_names`. A binary search finds an unused suffix.
    """
    name = preferred_name
    if name in used_names:
        used_number, free_number = 1, 2  # `free_number` is doubled until it is an unused suffix
        while f"{preferred_name}_{free_number}" in used_names:
            used_number, free_number = free_number, 2 * free_number
        while free_number - used_number > 1:
            middle = (used_number + free_number) // 2
            used_number, free_number = (
                (middle, free_number)
                if f"{preferred_name}_{middle}" in used_names
                else (used_number, middle)
            )
        name = f"{preferred_name}_{free_number}"
    used_names.add(name)
    return name


def make_node(
    op_type: str,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    domain: str,
    attributes: dict[str, Any],
) -> NodeProto:
    """Build a NodeProto field by field, several times faster than `onnx.helper.make_node`."""
    node = NodeProto(op_type=op_type, name=name, input=inputs, output=outputs)
    if domain:
        node.domain = domain
    for key in sorted(attributes):
        node.attribute.append(_make_attribute(key, attributes[key]))
    return node


def _make_attribute(key: str, value: Any) -> AttributeProto:
    if isinstance(value, bool | int):
        return AttributeProto(name=key, type=AttributeProto.INT, i=int(value))
    if isinstance(value, float):
        return AttributeProto(name=key, type=AttributeProto.FLOAT, f=value)
    if isinstance(value, str):
        return AttributeProto(name=key, type=AttributeProto.STRING, s=value.encode())
    if isinstance(value, GraphProto):
        return AttributeProto(name=key, type=AttributeProto.GRAPH, g=value)
    attribute: AttributeProto = helper.make_attribute(key, value)
    return attribute


def make_tensor_proto(array: Array, dtype: str) -> TensorProto:
    """Build a TensorProto from `array`. The name of the constant consists of `dtype` and the values
    (up to 8 elements) or the shape of the array, such as `i64:[0,1]` or `f32:512x512`.
    """
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    is_small = array.size <= 8
    content = str(array.tolist()).replace(" ", "") if is_small else "x".join(map(str, array.shape))
    return TensorProto(
        name=f"{dtype}:{content}",
        data_type=ONNX_TYPE_CODES[dtype],
        dims=array.shape,
        raw_data=little_endian.tobytes(),
    )


class _IdentityKey:
    """A hash key that compares graphs by identity. The key keeps its graph alive, so `id` values
    are unique.
    """

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.graph is other.graph

    def __hash__(self) -> int:
        return id(self.graph)


def make_hashable(value: Any) -> Hashable:
    """Return a hash key for a node attribute's value. Graphs are compared by identity."""
    if isinstance(value, GraphProto):
        return _IdentityKey(value)
    return tuple(value) if isinstance(value, list) else value
