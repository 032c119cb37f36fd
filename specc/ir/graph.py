"""The IR graph: values, nodes that compute the values, and the graph builder.

Graphs are immutable. The builder merges equal nodes into one node. The origins and names of nodes
are stored separately and do not affect equality.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from specc.diagnostics.diagnostic import Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_repr, format_value_types
from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.types import Type


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A tensor of the graph. `node` is the node that computes the value (None for inputs and
    parameters), and `index` is the value's index among the node's results.
    """

    type: Type
    node: "Node | None" = field(default=None, repr=False)
    index: int = 0

    @property
    def op(self) -> Op | None:
        """The op that computes the value, or None for inputs and parameters."""
        return self.node.op if self.node else None

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The size of each axis."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.type.shape)

    @property
    def dtype(self) -> str:
        """The element type."""
        return self.type.dtype


NodeResults: TypeAlias = tuple[Value, ...]
NodeOperands: TypeAlias = Sequence[Value | None]


@immutable_dataclass
class Node:
    """An application of `op` to the operands `args` (None for an absent operand). Equal nodes
    compute equal values. The hash of a node is computed once.
    """

    op: Op
    args: tuple[Value | None, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.args)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def first_operand(self) -> Value | None:
        """The first operand, or None if it is absent."""
        return self.args[0] if self.args else None

    @property
    def operands(self) -> tuple[Value, ...]:
        """The operands that are not absent (None)."""
        return tuple(a for a in self.args if a is not None)

    def infer_types(self) -> tuple[Type, ...]:
        """Return the inferred types of the results."""
        return self.op.infer_result_types(*(a.type if a else None for a in self.args))

    def get_operand(self, index: int = 0) -> Value:
        """Return the operand with the index `index`. The operand must not be absent."""
        value = self.args[index]
        assert value is not None, f"operand {index + 1} of {self.op.name} is given"
        return value


@immutable_dataclass(kw_only=True)
class Parameter:
    """A weight of the model: full name, type, initializer, source location, and the built-in
    function that declares the weight. `tied_to` is the weight to which the parameter is tied, or ""
    for an untied parameter.
    """

    name: str
    type: Type
    initializer: str
    span: Span | None = field(default=None, compare=False)
    declared_by: str = field(default="", compare=False)
    tied_to: str = field(default="", compare=False)


@immutable_dataclass
class Input:
    """A graph input and its type. A padding mask also has a padding side ("" for other inputs), and
    ids have an exclusive upper bound (None for other inputs).
    """

    type: Type
    padding_side: Literal["", "left", "right", "any"] = ""
    upper_bound: Dim | None = None
    span: Span | None = field(default=None, compare=False)


@immutable_dataclass
class NodeOrigin:
    """The origin of a node: the scope paths and source spans from which it was built."""

    scopes: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()

    def merge(self, other: "NodeOrigin") -> "NodeOrigin":
        """Return the union of this origin and `other`."""
        scopes, spans = (*self.scopes, *other.scopes), (*self.spans, *other.spans)
        return NodeOrigin(tuple(dict.fromkeys(scopes)), tuple(dict.fromkeys(spans)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """A graph of nodes in topological order, with ordered `inputs`, `parameters` and `outputs`.
    `names` maps scope paths (`encoder.layers.3.self_attn:weights`) to values. `min_lengths` maps
    symbols to their lower bounds. `length_equations` are equations `symbol = dim` that all inputs
    satisfy.
    """

    name: str
    inputs: Mapping[str, Value]
    input_facts: Mapping[str, Input]
    parameters: Mapping[str, Value]
    parameter_facts: Mapping[str, Parameter]
    nodes: tuple[tuple[Node, NodeResults], ...]
    outputs: Mapping[str, Value]
    names: Mapping[str, Value] = field(default_factory=dict)
    node_origins: Mapping[Node, NodeOrigin] = field(default_factory=dict)
    min_lengths: Mapping[str, int] = field(default_factory=dict)
    length_equations: Mapping[str, Dim] = field(default_factory=dict)

    def __repr__(self) -> str:
        return format_repr(f"graph {self.format_signature()}, {len(self.nodes)} nodes")

    def format_signature(self) -> str:
        """Format the inputs and outputs, as in `predict: x f32[batch, 2] -> y f32[batch, 1]`."""
        inputs = {name: value.type for name, value in self.inputs.items()}
        outputs = {name: value.type for name, value in self.outputs.items()}
        return f"{self.name}: {format_value_types(inputs)} -> {format_value_types(outputs)}"

    def get_origin(self, node: Node | None) -> NodeOrigin:
        """Return the origin of a node, or an empty origin if no origin is recorded."""
        return self.node_origins.get(node, NodeOrigin()) if node else NodeOrigin()

    def collect_users(self) -> dict[Value, list[tuple[Node, int]]]:
        """Return the users of each value as pairs (node, operand index)."""
        users: dict[Value, list[tuple[Node, int]]] = {}
        for node, _ in self.nodes:
            for n, value in enumerate(node.args):
                if value is not None:
                    users.setdefault(value, []).append((node, n))
        return users

    def get_scope(self, node: Node | None) -> str:
        """Return the scope path of the first call that built a node, or "" if none is recorded."""
        return next(iter(self.get_origin(node).scopes), "")


@dataclass(kw_only=True)
class GraphBuilder:
    """A graph builder with common subexpression elimination: equal nodes are merged."""

    inputs: dict[str, Value] = field(default_factory=dict)
    input_facts: dict[str, Input] = field(default_factory=dict)
    parameters: dict[str, Value] = field(default_factory=dict)
    parameter_facts: dict[str, Parameter] = field(default_factory=dict)
    nodes: dict[Node, NodeResults] = field(default_factory=dict)
    names: dict[str, Value] = field(default_factory=dict)
    node_origins: dict[Node, NodeOrigin] = field(default_factory=dict)
    origin_scopes_and_spans: dict[Node, tuple[NodeOrigin, set[str | Span | None]]] = field(
        default_factory=dict
    )
    """The scopes and spans of each node, as sets, because a node may have thousands of scopes."""
    node_indices: dict[Node, int] = field(default_factory=dict)
    """The index of each node, in insertion order."""
    nodes_by_symbolic_length: dict[str, dict[Node, None]] = field(default_factory=dict)
    """The nodes that depend on a symbolic dimension of an expert body, keyed by dimension name."""

    def add_input(self, name: str, info: Input) -> Value:
        """Add an input and return its value. Input names must be unique."""
        assert name not in self.inputs, f"two inputs have the name {name}"
        self.input_facts[name] = info
        self.inputs[name] = Value(info.type)
        return self.inputs[name]

    def add_parameter(self, info: Parameter) -> Value:
        """Add a parameter, or return the existing parameter with the same name and type."""
        if info.name not in self.parameters:
            self.parameter_facts[info.name] = info
            self.parameters[info.name] = Value(info.type)
        value = self.parameters[info.name]
        assert value.type == info.type, f"{info.name} is {value.type} and {info.type}"
        return value

    def add_node(
        self, op: Op, *args: Value | None, scope: str = "", span: Span | None = None
    ) -> NodeResults:
        """Add a node and return its results. Raise ShapeError if the operands are invalid."""
        node = Node(op, args)
        # equal nodes, e.g. the masks of all layers, are merged
        if (results := self.nodes.get(node)) is None:
            results = tuple(Value(t, node, n) for n, t in enumerate(node.infer_types()))
            self.node_indices[node] = len(self.nodes)
            self.nodes[node] = results
        if scope or span:
            self._record_origin(node, scope, span)
        return results

    def add_op(
        self, op: Op, *args: Value | None, scope: str = "", span: Span | None = None
    ) -> Value:
        """Add a node and return its first result."""
        return self.add_node(op, *args, scope=scope, span=span)[0]

    def _record_origin(self, node: Node, scope: str, span: Span | None) -> None:
        """Add a scope path and a source span to the origin of `node`."""
        origin = self.node_origins.get(node, NodeOrigin())
        cached_origin, recorded = self.origin_scopes_and_spans.get(node, (None, set()))
        if cached_origin is not origin:
            recorded = {*origin.scopes, *origin.spans}
        scopes = origin.scopes if not scope or scope in recorded else (*origin.scopes, scope)
        spans = origin.spans if not span or span in recorded else (*origin.spans, span)
        new_origin = self.node_origins[node] = NodeOrigin(scopes, spans)
        recorded.update((scope, span))
        self.origin_scopes_and_spans[node] = new_origin, recorded

    def copy_inputs_and_parameters(self, graph: Graph) -> dict[Value, Value]:
        """Add the inputs and parameters of `graph`. Return the new values, keyed by old value."""
        new_values = {v: self.add_input(n, graph.input_facts[n]) for n, v in graph.inputs.items()}
        for name, value in graph.parameters.items():
            new_values[value] = self.add_parameter(graph.parameter_facts[name])
        return new_values

    def copy_node(
        self, graph: Graph, node: Node, new_values: Mapping[Value, Value], op: Op | None = None
    ) -> NodeResults:
        """Add a copy of `node`, with its operands replaced according to `new_values`. If `op` is
        not None, it replaces the node's op. Return the results of the copy.
        """
        results = self.add_node(op or node.op, *(a and new_values[a] for a in node.args))
        self.copy_origin(graph, node, results)
        return results

    def copy_nodes(
        self,
        graph: Graph,
        new_values: dict[Value, Value],
        only_nodes: Container[Node] | None = None,
    ) -> None:
        """Add copies of all nodes of `graph`, or only of the nodes in `only_nodes`. Add the results
        of the copies to `new_values`.
        """
        for node, results in graph.nodes:
            if only_nodes is None or node in only_nodes:
                new_values.update(
                    zip(results, self.copy_node(graph, node, new_values), strict=True)
                )

    def copy_origin(self, graph: Graph, node: Node, results: Sequence[Value]) -> None:
        """Copy the origin of `node` in `graph` to the node that computes `results`."""
        origin = graph.node_origins.get(node)
        if origin and results and results[0].node:
            self.node_origins[results[0].node] = origin

    def clone_graph(
        self,
        graph: Graph,
        new_values: Mapping[Value, Value],
        outputs: Mapping[str, Value] | None = None,
    ) -> Graph:
        """Build the copy of `graph`, with the same names, length bounds and equations. `outputs`
        are the copy's outputs. By default, they are the copied outputs of `graph`.
        """
        self.names = {n: new_values[v] for n, v in graph.names.items() if v in new_values}
        if outputs is None:
            outputs = {n: new_values[v] for n, v in graph.outputs.items()}
        bounds, equations = graph.min_lengths, graph.length_equations
        return self.build_graph(graph.name, outputs, min_lengths=bounds, length_equations=equations)

    def build_graph(
        self,
        name: str,
        outputs: Mapping[str, Value],
        *,
        min_lengths: Mapping[str, int] | None = None,
        length_equations: Mapping[str, Dim] | None = None,
    ) -> Graph:
        """Build the graph that computes `outputs`, without dead nodes or unused parameters."""
        # drop dead nodes: a checkpoint may lack their weights
        live = collect_required_nodes(outputs.values())
        live_nodes = tuple((n, r) for n, r in self.nodes.items() if n in live)
        used_values = {a for n, _ in live_nodes for a in n.args} | set(outputs.values())
        # keep the names of unused results of live nodes
        live_names = {n for n, v in self.names.items() if v in used_values or v.node in live}
        used_parameters = {k for k, v in self.parameters.items() if v in used_values}
        return Graph(
            name=name,
            inputs=dict(self.inputs),
            input_facts=dict(self.input_facts),
            parameters=select_entries(self.parameters, used_parameters),
            parameter_facts=select_entries(self.parameter_facts, used_parameters),
            nodes=live_nodes,
            outputs=dict(outputs),
            names=select_entries(self.names, live_names),
            node_origins=select_entries(self.node_origins, live),
            min_lengths=dict(min_lengths or {}),
            length_equations=dict(length_equations or {}),
        )


K = TypeVar("K")
V = TypeVar("V")


def select_entries(entries: Mapping[K, V], keys: Container[K]) -> dict[K, V]:
    """Return the entries of a mapping with the given `keys`, in the order of the mapping."""
    return {key: value for key, value in entries.items() if key in keys}


def collect_shape_symbols(values: Iterable[Value]) -> set[str]:
    """Return the symbolic dimensions in the shapes of values."""
    return {symbol for v in values for dim in v.type.shape for symbol in dim.symbols()}


def collect_required_nodes(
    values: Iterable[Value],
    get_operands: Callable[[Node], Iterable[Value | None]] = lambda node: node.args,
) -> set[Node]:
    """Return all nodes on which `values` depend. `get_operands` returns the operands of a node that
    the traversal visits.
    """
    required_nodes: set[Node] = set()
    # use an explicit stack instead of recursion, because graphs are thousands of nodes deep
    worklist = [v.node for v in values]
    while worklist:
        node = worklist.pop()
        if node and node not in required_nodes:
            required_nodes.add(node)
            worklist += [a.node for a in get_operands(node) if a]
    return required_nodes


def substitute_graph_symbols(graph: Graph, lengths: Mapping[str, Dim]) -> Graph:
    """Replace symbolic dimensions of `graph` according to `lengths`, and infer all types again."""
    facts = {
        name: replace(input, type=Type(t.dtype, tuple(d.substitute(lengths) for d in t.shape)))
        for name, input in graph.input_facts.items()
        for t in (input.type,)
    }
    equations = graph.length_equations.items()
    graph = replace(
        graph,
        input_facts=facts,
        # lower bounds and equations of replaced symbols no longer apply
        min_lengths={n: least for n, least in graph.min_lengths.items() if n not in lengths},
        length_equations={n: d.substitute(lengths) for n, d in equations if n not in lengths},
    )
    b = GraphBuilder()
    new_values = b.copy_inputs_and_parameters(graph)
    for node, results in graph.nodes:
        new_results = b.copy_node(graph, node, new_values, substitute_dims_in_op(node.op, lengths))
        new_values.update(zip(results, new_results, strict=True))
    return b.clone_graph(graph, new_values)


def substitute_dims_in_op(op: Op, lengths: Mapping[str, Dim]) -> Op:
    """Replace symbolic dimensions in the attributes and the loop body of `op` with `lengths`."""

    def substitute_attribute(attribute: object) -> object:
        if isinstance(attribute, Dim):
            return attribute.substitute(lengths)
        if isinstance(attribute, tuple):
            return tuple(substitute_attribute(a) for a in attribute)
        if isinstance(attribute, Graph):
            return substitute_graph_symbols(attribute, lengths)
        return attribute

    # most ops have no dimensions as attributes and are returned unchanged
    may_change = any(isinstance(v, Dim | tuple | Graph) for v in op.get_attributes().values())
    return op.map_attributes(substitute_attribute) if may_change else op
