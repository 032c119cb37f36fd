"""Mixed precision: compute in fp16 or bf16 where rounding errors stay small, and in fp32 elsewhere.

    y = linear(x, w)       →    y = linear(cast(x, f16), cast(w, f16))

Devices accumulate products and norms in 32 bits. Softmax, means, recurrences and position encodings
are computed in fp32. Layers with a standardized input are also computed in fp32, because a standard
deviation close to zero makes the input large. Each f32 value has a precision class. A value is
*half* if it is computed in 16 bits, *float32* if it is computed in 32 bits, and *neutral* if it is
a constant, position embedding or weight, which is cast to the dtype of the other operands. Inputs
and outputs stay f32, except between derived graphs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from specc.ir import ops
from specc.ir.graph import Graph, GraphBuilder, Input, Node, Value
from specc.ir.model_definition import DecodeState, DerivedGraphs
from specc.ir.op import Op

ALWAYS_HALF_OPS: tuple[type[Op], ...] = (
    *(ops.Attend, ops.Conv, ops.Einsum, ops.Embedding, ops.Linear, ops.MatMul, ops.PatchEmbedding),
    *(ops.MixtureOfExperts, ops.WeightedSum),
)
"""Ops that are always computed in 16 bits."""

NORM_OPS: tuple[type[Op], ...] = (ops.LayerNorm, ops.RMSNorm)
"""Norms that lower to a single operator, which accumulates in 32 bits."""

DATA_MOVEMENT_OPS: tuple[type[Op], ...] = (
    *(ops.Concat, ops.Delay, ops.Expand, ops.Flip, ops.Gather, ops.Index, ops.Insert, ops.Last),
    *(ops.MaxPool, ops.Merge, ops.Roll, ops.Slice, ops.Split, ops.Squeeze, ops.StridedSlice),
    *(ops.Transpose, ops.Where),
)
"""Ops whose results are elements of their operands."""

INDEX_OPS: tuple[type[Op], ...] = (ops.ArgMax, ops.Sort, ops.TopK)
"""Ops whose results are indices, which may change if their operand is rounded."""

UNIT_TABLE_OPS: tuple[type[Op], ...] = (ops.OneHot, ops.RopeAngles, ops.Sinusoid)
"""Ops without float operands. The results are in [-1, 1] and cannot overflow in 16 bits."""

ERROR_STABLE_FUNCTIONS = frozenset(
    ("abs", "gelu", "gelu_tanh", "neg", "relu", "sigmoid", "silu", "tanh")
)
"""`Pointwise` functions that do not amplify errors of their argument."""

ERROR_STABLE_ARITHMETIC = frozenset(("add", "max", "min", "mul", "sub"))
"""`Arith` functions that do not amplify errors of their operands."""

BOUNDED_RESULT_OPS = (
    ops.GroupNorm,
    ops.LayerNorm,
    ops.AttentionNormalizer,
    ops.RMSNorm,
    ops.Softmax,
)
"""Ops whose results are bounded for operands of any magnitude."""

BOUNDED_FUNCTIONS = frozenset(("cos", "erf", "sigmoid", "sign", "sin", "tanh"))
"""`Pointwise` functions whose results are between -1 and 1."""


def can_compute_in_operand_dtype(op: Op) -> bool:
    """Return True if an op does not amplify rounding errors and can use its operands' dtype."""
    match op:
        case ops.Pointwise(fn):
            return fn in ERROR_STABLE_FUNCTIONS
        case ops.Arith(fn):
            return fn in ERROR_STABLE_ARITHMETIC
    return isinstance(op, (*DATA_MOVEMENT_OPS, *NORM_OPS, ops.Rotate))


def is_precision_preserving(op: Op) -> bool:
    """Return True if an op only moves, scales or shifts the elements of a MatMul result. The result
    of the op then has the precision of the MatMul. Norms are excluded.
    """
    return can_compute_in_operand_dtype(op) and not isinstance(op, NORM_OPS)


HalfDtype: TypeAlias = Literal["f16", "bf16"]
PrecisionClass: TypeAlias = Literal["half", "float32", "neutral"]

MIN_NORMAL: Mapping[HalfDtype, float] = {"f16": 6.104e-5, "bf16": 1.18e-38}
"""The minimum normal magnitude of each 16-bit type."""
MAX_FINITE: Mapping[HalfDtype, float] = {"f16": 65504.0, "bf16": 3.38e38}
"""The maximum finite magnitude of each 16-bit type."""

HALF_STATE_ROLES = ("key", "value")
"""The roles of decode states that grow with the sequence (KV caches)."""


def convert_graph_to_half(graph: Graph, half_dtype: HalfDtype) -> Graph:
    """Convert a graph to compute in `half_dtype`. Inputs and outputs keep their types."""
    return _convert_graph(graph, half_dtype, {}, dict.fromkeys(graph.outputs, "f32"))[0]


def convert_derived_graphs_to_half(
    derived_graphs: DerivedGraphs, half_dtype: HalfDtype
) -> DerivedGraphs:
    """Convert the encoder and the decode step to `half_dtype`. KV caches have the dtype
    `half_dtype`, and all other states are f32. Outputs of the encoder keep the dtype in which they
    are computed.
    """
    states = tuple(_convert_state(s, half_dtype) for s in derived_graphs.states)
    half_states = {s.name for s in states if s.type.dtype == half_dtype}
    loop_invariant_inputs: dict[str, str] = {}
    encode = derived_graphs.encode
    if encode is not None:
        # the initial value of a state has the same dtype as the state
        state_dtypes = {s.initial_output: s.type.dtype for s in states if s.initial_output}
        undetermined = (
            set(derived_graphs.loop_invariant_inputs)
            - state_dtypes.keys()
            - {derived_graphs.initial_logits_output}
        )
        determined = (n for n in encode.outputs if n not in undetermined)
        encoder_dtypes = {n: state_dtypes.get(n, "f32") for n in determined}
        encode, loop_invariant_inputs = _convert_graph(encode, half_dtype, {}, encoder_dtypes)
    input_dtypes = {**dict.fromkeys(half_states, half_dtype), **loop_invariant_inputs}
    next_states = {s.next_output: s.type.dtype for s in states}
    outputs = {n: next_states.get(n, "f32") for n in derived_graphs.step.outputs}
    step, _ = _convert_graph(derived_graphs.step, half_dtype, input_dtypes, outputs)
    return replace(derived_graphs, encode=encode, step=step, states=states)


def _convert_state(state: DecodeState, half_dtype: HalfDtype) -> DecodeState:
    if state.role in HALF_STATE_ROLES and state.type.dtype == "f32":
        return replace(state, type=replace(state.type, dtype=half_dtype))
    return state


def _convert_graph(
    graph: Graph,
    half_dtype: HalfDtype,
    input_dtypes: Mapping[str, str],
    output_dtypes: Mapping[str, str],
) -> tuple[Graph, dict[str, str]]:
    """Convert a graph. `input_dtypes` and `output_dtypes` map names of float inputs and outputs to
    dtypes. All other outputs keep the dtype in which they are computed. Return the graph, and map
    the names of outputs that are not in `output_dtypes` to their dtypes.
    """
    builder = GraphBuilder()
    half = _HalfConverter(
        builder=builder,
        half_dtype=half_dtype,
        output_matmuls=_find_output_matmuls(graph, output_dtypes),
        unbounded_values=_find_unbounded_values(graph),
    )
    for name, value in graph.inputs.items():
        facts = _convert_input(graph.input_facts[name], half_dtype, input_dtypes.get(name))
        half.register_value(value, builder.add_input(name, facts))
    for name, value in graph.parameters.items():
        half.register_value(value, builder.add_parameter(graph.parameter_facts[name]), "neutral")
    half.convert_nodes(graph)
    builder.names = {n: half.get_computed_value(v) for n, v in graph.names.items()}
    outputs: dict[str, Value] = {}
    chosen_dtypes: dict[str, str] = {}
    for name, value in graph.outputs.items():
        dtype = output_dtypes.get(name)
        if dtype is None:
            outputs[name] = half.get_computed_value(value)
            chosen_dtypes[name] = outputs[name].dtype
        else:
            outputs[name] = (
                half.convert_to_half(value)
                if dtype == half_dtype
                else half.convert_to_original_dtype(value)
            )
    return builder.build_graph(
        graph.name, outputs, min_lengths=graph.min_lengths, length_equations=graph.length_equations
    ), chosen_dtypes


def _convert_input(input_facts: Input, half_dtype: HalfDtype, passed_dtype: str | None) -> Input:
    """Return `input_facts` with the dtype `half_dtype` if the input is f32 and the dtype of the
    passed value, `passed_dtype` (None: f32), is `half_dtype`.
    """
    if passed_dtype == half_dtype and input_facts.type.dtype == "f32":
        return replace(input_facts, type=replace(input_facts.type, dtype=half_dtype))
    return input_facts


def _find_output_matmuls(graph: Graph, output_dtypes: Mapping[str, str]) -> set[Node]:
    """Return the MatMul nodes that compute logits or router scores. These MatMuls are computed in
    f32, because their results are f32 outputs or select indices, possibly after ops that move or
    shift values.
    """
    inner_values: set[Value] = set()
    products: set[Node] = set()
    exposed_values = {v for n, v in graph.outputs.items() if output_dtypes.get(n) == "f32"}
    # A MatMul result that is also an operand of another MatMul is excluded, even if it is an
    # output. Nodes are visited in reverse order, so that the users of a value come first.
    for node, results in reversed(graph.nodes):
        is_exposed = not exposed_values.isdisjoint(results) and inner_values.isdisjoint(results)
        if isinstance(node.op, ops.Linear | ops.MatMul) and is_exposed:
            products.add(node)
        is_preserving = is_precision_preserving(node.op) or isinstance(node.op, ops.Softmax)
        is_passed = isinstance(node.op, INDEX_OPS) or (is_exposed and is_preserving)
        (exposed_values if is_passed else inner_values).update(node.operands)
    return products


def _find_unbounded_values(graph: Graph) -> set[Value]:
    """Return the quotients whose value depends only on inputs, such as a time series divided by its
    standard deviation. Also return the values computed from these quotients, up to a norm or
    another op with bounded results. If the divisor is close to zero, the quotients overflow
    float16.
    """
    input_values = {v for v in graph.inputs.values() if v.dtype == "f32"}
    weight_dependent = {*graph.parameters.values()}
    unbounded: set[Value] = set()
    for node, results in graph.nodes:
        operands = [a for a in node.operands if a.dtype == "f32"]
        if not weight_dependent.isdisjoint(operands):
            weight_dependent.update(results)
        elif not input_values.isdisjoint(operands):
            input_values.update(results)
        is_quotient = node.op == ops.Arith("div") and node.args[1] in input_values
        passed = _list_passed_operands(node, operands)
        if (is_quotient and results[0] in input_values) or not unbounded.isdisjoint(passed):
            unbounded.update(results)
    return unbounded


def _list_passed_operands(node: Node, operands: Collection[Value]) -> Collection[Value]:
    """Return the operands whose magnitude determines the magnitude of the results."""
    match node.op:
        case ops.Pointwise(fn) if fn in BOUNDED_FUNCTIONS:
            return ()
        case ops.Attend():
            return [a for a in node.args[2:3] if a]
    return () if isinstance(node.op, BOUNDED_RESULT_OPS) else operands


@dataclass(kw_only=True)
class _HalfConverter:
    """A converter that rebuilds each node of a graph in its precision class. `output_matmuls` are
    the MatMul nodes that are computed in f32. `float32_values` and `half_values` map values of the
    original graph to converted values.
    """

    builder: GraphBuilder
    half_dtype: HalfDtype
    output_matmuls: Collection[Node] = ()
    unbounded_values: Collection[Value] = ()
    precision_classes: dict[Value, PrecisionClass] = field(default_factory=dict)
    float32_values: dict[Value, Value] = field(default_factory=dict)
    half_values: dict[Value, Value] = field(default_factory=dict)

    def register_value(
        self, value: Value, new: Value, precision: PrecisionClass = "float32"
    ) -> None:
        """Register the converted value of an original value, with its precision class."""
        is_half = value.dtype == "f32" and new.dtype == self.half_dtype
        (self.half_values if is_half else self.float32_values)[value] = new
        self.precision_classes[value] = "half" if is_half else precision

    def convert_to_original_dtype(self, value: Value) -> Value:
        """Return the converted value in the original dtype, which is f32 for floats."""
        if value not in self.float32_values:
            half = self.half_values[value]
            self.float32_values[value] = self.builder.add_op(ops.Cast("f32"), half)
        return self.float32_values[value]

    def convert_to_half(self, value: Value) -> Value:
        """Return the converted value. Floats are in the 16-bit dtype, and others are unchanged."""
        if value.dtype != "f32":
            return self.convert_to_original_dtype(value)
        if value not in self.half_values:
            node = value.node
            is_neutral = self.precision_classes[value] == "neutral"
            # Views of weights remain views, because the lowering finds the stored weight by
            # following views.
            if node is not None and is_neutral and isinstance(node.op, DATA_MOVEMENT_OPS):
                args = [a and self.convert_to_half(a) for a in node.args]
                self.half_values[value] = self.builder.add_node(node.op, *args)[value.index]
            else:
                original, cast = self.convert_to_original_dtype(value), ops.Cast(self.half_dtype)
                self.half_values[value] = self.builder.add_op(cast, original)
        return self.half_values[value]

    def get_computed_value(self, value: Value) -> Value:
        """Return the converted value in the dtype of its precision class."""
        return (
            self.half_values[value]
            if self.precision_classes[value] == "half"
            else self.convert_to_original_dtype(value)
        )

    def convert_nodes(self, graph: Graph) -> None:
        """Convert every node of a graph, in order."""
        for node, results in graph.nodes:
            precision = self._choose_precision(node)
            new_results = self._convert_node(node, precision)
            for result, value in zip(results, new_results, strict=True):
                self.register_value(
                    result, value, "neutral" if precision == "neutral" else "float32"
                )
            self.builder.copy_origin(graph, node, new_results)

    def _convert_node(self, node: Node, precision: PrecisionClass) -> tuple[Value, ...]:
        """Convert a node to the class `precision`. Operands are cast to the dtype of the class."""
        if precision != "half":
            return self.builder.add_node(
                node.op, *(a and self.convert_to_original_dtype(a) for a in node.args)
            )
        op: Op = node.op
        if isinstance(op, ops.MixtureOfExperts):
            op = replace(op, body=self._convert_expert(op.body))
        return self.builder.add_node(op, *(a and self.convert_to_half(a) for a in node.args))

    def _convert_expert(self, body: Graph) -> Graph:
        """Convert an expert body to 16-bit inputs and results."""
        input_dtypes = dict.fromkeys(body.inputs, self.half_dtype)
        output_dtypes = dict.fromkeys(body.outputs, self.half_dtype)
        return _convert_graph(body, self.half_dtype, input_dtypes, output_dtypes)[0]

    def _choose_precision(self, node: Node) -> PrecisionClass:
        """Return the precision class of a node."""
        op = node.op
        if isinstance(op, ALWAYS_HALF_OPS):
            operands = self._list_float_operands(node)
            is_unbounded = any(a in self.unbounded_values for a in operands)
            return (
                "float32" if node in self.output_matmuls or is_unbounded or not operands else "half"
            )
        if isinstance(op, ops.Constant):
            return "neutral" if self._fits_half(op) else "float32"
        if isinstance(op, UNIT_TABLE_OPS):
            return "neutral"
        if not can_compute_in_operand_dtype(op):
            return "float32"
        # If one operand is f32, the result is also f32, because a 16-bit addition would lose
        # precision.
        classes = {self.precision_classes[a] for a in self._list_float_operands(node)}
        if "float32" in classes or not classes:
            return "float32"
        return "half" if "half" in classes else "neutral"

    def _list_float_operands(self, node: Node) -> list[Value]:
        return [a for a in node.operands if a.dtype == "f32"]

    def _fits_half(self, constant: ops.Constant) -> bool:
        """Return True if a constant is zero or within the normal range of the 16-bit dtype."""
        magnitude = abs(float(constant.value))
        return (
            magnitude == 0
            or MIN_NORMAL[self.half_dtype] <= magnitude <= MAX_FINITE[self.half_dtype]
        )
