"""Quantize weights of linear, embedding and recurrent layers, and KV caches.

    y = linear(x, w, b)        →    y = quantized_linear(x, w:int8, w:scale, b)
    e = embedding(ids, t)           e = quantized_embedding(ids, t:int8, t:scale)
    h = lstm(x, w, u)               h = quantized_lstm(x, w:int8, u:int8, w:scale, u:scale)
    k = concat(past, new)           kept = concat(past:i8, quantize(new, scale))
                                    k = dequantize(kept, scale)

Each weight, including weights inside loops, is replaced by two parameters: codes (quantized values)
and scales. A slice of a weight becomes a slice of the codes and a slice of the scales. A KV cache
has one scale per head and feature. The scales are a parameter of the step.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import (
    Graph,
    GraphBuilder,
    Input,
    Node,
    NodeResults,
    Parameter,
    Value,
    select_entries,
)
from specc.ir.model_definition import KVCacheNames
from specc.ir.op import Op
from specc.ir.ops.loop import remove_axis
from specc.ir.ops.quantized import (
    ActivationRoundingMode,
    QuantizationFormat,
    QuantizationPlan,
    TensorRole,
)
from specc.ir.recurrent_as_loop import expand_recurrent_to_scan
from specc.ir.types import Type
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.quantizable_weights import find_underlying_weight, match_matmul


def expand_recurrent_layers(graph: Graph, weight_names: Collection[str] | None = None) -> Graph:
    """Expand recurrent layers to loops: all layers, or layers that use one of `weight_names`."""
    layers = (ops.Rnn, ops.Gru, ops.Lstm)
    if not any(isinstance(node.op, layers) for node, _ in graph.nodes):
        return graph

    def expand_layer(b: GraphBuilder, op: Op, args: Sequence[Value | None]) -> NodeResults | None:
        if not isinstance(op, layers):
            return None
        weights = select_entries(b.parameters, weight_names or ()).values()
        # the operands that can be quantized are weights or views of weights
        if weight_names is None or any(find_underlying_weight(a) in weights for a in args[1:3]):
            return expand_recurrent_to_scan(b, op, args)
        return None

    return rewrite_graph(graph, [expand_layer])


def list_lstm_weight_pairs(graph: Graph) -> list[tuple[str, str]]:
    """Return pairs of names (input weight, recurrent weight) of the LSTMs without projection."""
    names = {value: name for name, value in graph.parameters.items()}
    pairs: list[tuple[str, str]] = []
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Lstm) and node.op.projection(node) is None:
            weights = node.op.input_weights(node), node.op.recurrent_weights(node)
            if names.keys() >= set(weights):
                pairs.append((names[weights[0]], names[weights[1]]))
    return pairs


def find_lstm_only_weights(graph: Graph) -> frozenset[str]:
    """Return the names of weights that are used only by LSTMs without projection."""
    lstm_weights = {name for pair in list_lstm_weight_pairs(graph) for name in pair}
    users, outputs = graph.collect_users(), set(graph.outputs.values())
    values = ((n, graph.parameters[n]) for n in lstm_weights)
    return frozenset(
        n for n, v in values if v not in outputs and all(_is_lstm_weight(*use) for use in users[v])
    )


def _is_lstm_weight(node: Node, operand_index: int) -> bool:
    """Return True if an operand is a weight of an LSTM without projection."""
    if not isinstance(node.op, ops.Lstm) or node.op.projection(node) is not None:
        return False
    return operand_index in (node.op.input_weights.index, node.op.recurrent_weights.index)


@dataclass(frozen=True)
class QuantizedParameters:
    """The codes, scales and zero points (None if absent) of a quantized weight, or of a transposed
    or sliced view of the weight. `is_transposed` is True for a transposed view.
    """

    codes: Value
    scales: Value
    format: QuantizationFormat
    is_transposed: bool = False
    zero_points: Value | None = None

    @property
    def components(self) -> tuple[Value, ...]:
        """Return the codes, the scales, and the zero points if there are any."""
        zeros = () if self.zero_points is None else (self.zero_points,)
        return self.codes, self.scales, *zeros

    def map_components(self, convert: Callable[[str, Value], Value]) -> "QuantizedParameters":
        """Return the weight with each component replaced by `convert(name, parameter)`."""
        zeros = self.zero_points
        return replace(
            self,
            codes=convert("codes", self.codes),
            scales=convert("scales", self.scales),
            zero_points=None if zeros is None else convert("zero_points", zeros),
        )


def quantize_graph(graph: Graph, plan: QuantizationPlan) -> Graph:
    """Return `graph` with the weights in `plan` quantized. Names of unknown weights are ignored."""
    parameter_formats = select_entries(plan, graph.parameters)
    if not parameter_formats:
        return graph
    graph = expand_recurrent_layers(
        graph, {n for n, form in parameter_formats.items() if form.rounding != "layer"}
    )
    builder = GraphBuilder()
    for name, input_facts in graph.input_facts.items():
        builder.add_input(name, input_facts)
    quantized_weights: dict[Value, QuantizedParameters] = {}
    new_values = {value: builder.inputs[name] for name, value in graph.inputs.items()}
    for name, value in graph.parameters.items():
        facts = graph.parameter_facts[name]
        if name in parameter_formats:
            format = parameter_formats[name]
            quantized_weights[value] = _make_quantized_weight(builder, facts, format)
        else:
            new_values[value] = builder.add_parameter(facts)
    _WeightQuantizer(builder, new_values, quantized_weights).convert_nodes(graph)
    return builder.clone_graph(graph, new_values)


def _make_quantized_weight(
    builder: GraphBuilder, parameter: Parameter, format: QuantizationFormat
) -> QuantizedParameters:
    """Return the parameters that replace a weight: codes, scales and zero points."""
    shape = tuple(d.number or 0 for d in parameter.type.shape)

    def add_tensor(role: TensorRole) -> Value:
        tied = format.format_tensor_name(parameter.tied_to, role) if parameter.tied_to else ""
        name = format.format_tensor_name(parameter.name, role)
        type = Type.of(format.get_dtype(role), *format.compute_tensor_shape(shape, role))
        return builder.add_parameter(replace(parameter, name=name, type=type, tied_to=tied))

    tensors = {role: add_tensor(role) for role in format.tensor_roles}
    return QuantizedParameters(
        tensors["codes"], tensors["scales"], format, zero_points=tensors.get("zero_points")
    )


@dataclass
class _WeightQuantizer:
    """A graph converter that replaces weights with quantized weights. `new_values` maps old values
    to new values, and `quantized_weights` maps weights and their views to quantized weights.
    """

    builder: GraphBuilder
    new_values: dict[Value, Value]
    quantized_weights: dict[Value, QuantizedParameters] = field(default_factory=dict)

    def convert_nodes(self, graph: Graph) -> None:
        """Convert every node of a graph, in order."""
        for node, results in graph.nodes:
            new_results = self._convert_node(node, results)
            # views of a weight have no corresponding values in the new graph
            self.new_values.update(zip(results, new_results, strict=False))
            self.builder.copy_origin(graph, node, new_results)

    def _convert_node(self, node: Node, results: NodeResults) -> NodeResults:
        """Convert a node, or return () if the node is a view of a weight."""
        weights = [a for a in node.operands if a in self.quantized_weights]
        if not weights:
            return self.builder.add_node(node.op, *(a and self.new_values[a] for a in node.args))
        weight = self.quantized_weights[weights[0]]
        match node.op:
            case ops.Transpose():
                self.quantized_weights[results[0]] = replace(
                    weight, is_transposed=not weight.is_transposed
                )
                return ()
            case ops.Cast(to):
                # if a layer computes in 16 bits, its scales are 16-bit floats
                scales = self.builder.add_op(ops.Cast(to), weight.scales)
                self.quantized_weights[results[0]] = replace(weight, scales=scales)
                return ()
            case ops.Slice():
                self.quantized_weights[results[0]] = self._slice_weight(node.op, weight)
                return ()
            case ops.Scan() | ops.MixtureOfExperts():
                return self._convert_loop(node, node.op)
            case ops.Embedding():
                return self._convert_lookup(node, weight)
            case ops.Lstm():
                return self._convert_layer(node, node.op)
        return self._convert_linear(node, weight)

    def _slice_weight(self, op: ops.Slice, weight: QuantizedParameters) -> QuantizedParameters:
        """Slice codes, scales and zero points along the last axis for the layout `columns`,
        otherwise along the first axis.
        """
        is_last_axis = weight.format.layout == "columns"
        return weight.map_components(
            lambda _, v: self.builder.add_op(replace(op, axis=v.rank - 1 if is_last_axis else 0), v)
        )

    def _convert_linear(self, node: Node, weight: QuantizedParameters) -> NodeResults:
        format = weight.format
        # Per-layer scales become per-tensor scales, because the layer may be in a loop of a derived
        # graph.
        mode: ActivationRoundingMode = "tensor" if format.rounding == "layer" else format.rounding
        op = ops.QuantizedLinear(format.bits, format.group_size, format.layout, mode)
        product = match_matmul(node)
        assert product is not None, "only MatMuls and embeddings use the weights in the plan"
        x = node.get_operand(product.activation_index)
        bias = ops.Linear.bias(node) if isinstance(node.op, ops.Linear) else None
        return self.builder.add_node(
            op,
            self.new_values[x],
            weight.codes,
            weight.scales,
            bias and self.new_values[bias],
            *weight.components[2:],
        )

    def _convert_layer(self, node: Node, op: ops.Lstm) -> NodeResults:
        """Convert an LSTM with two quantized weights to a `quantized_lstm`."""
        weights = [
            self.quantized_weights[v] for v in (op.input_weights(node), op.recurrent_weights(node))
        ]
        # a quantized LSTM has no projection operand
        other_operands = [*node.args[op.input_bias.index : op.peepholes.index + 1]]
        return self.builder.add_node(
            ops.QuantizedLstm(op.reverse),
            self.new_values[op.sequence(node)],
            *(weight.codes for weight in weights),
            *(weight.scales for weight in weights),
            *(a and self.new_values[a] for a in other_operands),
        )

    def _convert_lookup(self, node: Node, weight: QuantizedParameters) -> NodeResults:
        ids, table = node.operands
        format = weight.format
        op = ops.QuantizedEmbedding(table.shape[1], format.bits, format.group_size, format.layout)
        return self.builder.add_node(op, self.new_values[ids], weight.codes, weight.scales)

    def _convert_loop(self, node: Node, op: ops.Scan | ops.MixtureOfExperts) -> NodeResults:
        """Convert a loop or a mixture of experts. The codes, scales and zero points of each
        quantized weight become inputs of the loop body or expert body. Stacked weights are sliced
        into one weight per expert.
        """
        operands = op.split_operands(node.operands)
        inputs = list(op.body.inputs.items())
        stacked_count = len(operands.stacked_operands)
        # The inputs of a body are the values that change in each iteration, followed by the
        # captures. Captured values may be weights. The last operands of the loop are the captures.
        changing_count = len(inputs) - len(operands.captured) - stacked_count
        values = node.operands
        outer_count = len(values) - (len(inputs) - changing_count)
        args = [self.new_values[a] for a in values[:outer_count]]
        body_builder = GraphBuilder()
        quantizer = _WeightQuantizer(body_builder, {})
        for name, value in inputs[:changing_count]:
            quantizer.new_values[value] = body_builder.add_input(name, op.body.input_facts[name])
        # A quantized stack of weights is replaced by stacks of codes, scales and zero points.
        added_count = 0
        for operand_index, operand in enumerate(values[outer_count:]):
            name, value = inputs[changing_count + operand_index]
            facts = op.body.input_facts[name]
            if operand not in self.quantized_weights:
                quantizer.new_values[value] = body_builder.add_input(name, facts)
                args.append(self.new_values[operand])
                continue
            weight, is_stacked = self.quantized_weights[operand], operand_index < stacked_count
            added_count += is_stacked * (len(weight.components) - 1)
            quantizer.quantized_weights[value] = _add_quantized_body_inputs(
                body_builder, name, facts, weight, is_stacked=is_stacked
            )
            args += weight.components
        quantizer.convert_nodes(op.body)
        body = body_builder.clone_graph(op.body, quantizer.new_values)
        if isinstance(op, ops.MixtureOfExperts):
            return self.builder.add_node(
                replace(op, body=body, stacked_count=stacked_count + added_count), *args
            )
        return self.builder.add_node(replace(op, body=body), *args)


def _add_quantized_body_inputs(
    body_builder: GraphBuilder,
    name: str,
    input_facts: Input,
    quantized_weight: QuantizedParameters,
    *,
    is_stacked: bool,
) -> QuantizedParameters:
    """Add body inputs for codes, scales and zero points, and return the quantized weight."""
    labels = {"codes": "numbers"}

    def add_input(part: str, value: Value) -> Value:
        type = remove_axis(value.type, 0) if is_stacked else value.type
        return body_builder.add_input(
            f"{name} {labels.get(part, part)}", replace(input_facts, type=type)
        )

    return quantized_weight.map_components(add_input)


KV_SCALE_SUFFIX = ":scale"
"""The suffix in the parameter name of a KV cache's scales."""


def quantize_kv_caches(step: Graph, caches: Sequence[KVCacheNames]) -> Graph:
    """Return the graph `step` with the KV caches `caches` stored in int8."""
    keys = {c.key: c.present_key for c in caches}
    present_by_past = keys | {c.value: c.present_value for c in caches}
    past_by_value = {step.outputs[result]: name for name, result in present_by_past.items()}
    builder = GraphBuilder()
    facts = {
        name: replace(f, type=Type("i8", f.type.shape)) if name in present_by_past else f
        for name, f in step.input_facts.items()
    }
    new_values = builder.copy_inputs_and_parameters(replace(step, input_facts=facts))
    parameters = {name: _make_kv_scale(step, name) for name in present_by_past}
    scales = {name: builder.add_parameter(facts) for name, facts in parameters.items()}
    int8_caches: dict[Value, Value] = {}
    for node, results in step.nodes:
        cache = results[0]
        if cache not in past_by_value:
            new_values.update(zip(results, builder.copy_node(step, node, new_values), strict=True))
            continue
        # past and new positions are stored in int8, and all positions are dequantized before use
        past, new_positions = (new_values[a] for a in node.operands)
        scale = scales[past_by_value[cache]]
        new_codes = builder.add_op(ops.Quantize(), new_positions, scale)
        int8_caches[cache] = builder.add_op(node.op, past, new_codes)
        new_values[cache] = builder.add_op(ops.Dequantize(), int8_caches[cache], scale)
    outputs = {n: int8_caches.get(v, new_values[v]) for n, v in step.outputs.items()}
    return builder.clone_graph(step, new_values, outputs)


def _make_kv_scale(step: Graph, name: str) -> Parameter:
    """Return the parameter that contains a KV cache's scales, one per head and feature."""
    _, heads, _, width = step.inputs[name].shape
    shape = Type("f32", (heads, Dim.from_value(1), width))
    return Parameter(name=name + KV_SCALE_SUFFIX, type=shape, initializer="ones")
