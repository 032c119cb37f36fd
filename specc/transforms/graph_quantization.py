"""Quantize weights of linear, embedding and recurrent layers, and KV caches.

    y = linear(x, w, b)        →    y = quantized_linear(x, w:int8, w:scale, b)
    e = embedding(ids, t)           e = quantized_embedding(ids, t:int8, t:scale)
    h = lstm(x, w, u)               h = quantized_lstm(x, w:int8, u:int8, w:scale, u:scale)
    k = concat(past, new)           kept = concat(past:i8, quantize(new, scale))
                                    k = dequantize(kept, scale)

Each weight becomes two parameters, codes (quantized values) and scales, also inside loops; a slice
of the weight becomes a slice of each. A KV cache has one scale per head and feature, which is a
parameter of the step.
"""

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field, replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Node, NodeResults, Parameter, Value
from specc.ir.model import KVCache
from specc.ir.op import Op
from specc.ir.ops.quantized import ActivationRoundingMode, QuantizationFormat, QuantizationPlan
from specc.ir.ops.recurrent import remove_axis
from specc.ir.recurrent_as_loop import expand_to_scan
from specc.ir.types import Type
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.weight_uses import find_matrix_product


def expand_recurrent_layers(graph: Graph, weight_names: Collection[str] | None = None) -> Graph:
    """Expand recurrent layers to loops; if `weight_names` is given, only layers that read one of
    these weights.
    """
    layers = (ops.Rnn, ops.Gru, ops.Lstm)
    if not any(isinstance(node.op, layers) for node, _ in graph.nodes):
        return graph

    def rule(b: GraphBuilder, op: Op, args: Sequence[Value | None]) -> NodeResults | None:
        if not isinstance(op, layers):
            return None
        read = [v for n, v in b.parameters.items() if weight_names is None or n in weight_names]
        # The operands are weights or views of weights.
        if weight_names is None or any(find_underlying_weight(a) in read for a in args[1:3]):
            return expand_to_scan(b, op, args)
        return None

    return rewrite_graph(graph, [rule])


def list_lstm_weight_pairs(graph: Graph) -> list[tuple[str, str]]:
    """Return the pairs of weights (input and recurrent) of LSTMs without projection, if both are
    parameters.
    """
    names = {value: name for name, value in graph.parameters.items()}
    found: list[tuple[str, str]] = []
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Lstm) and node.op.projection(node) is None:
            read = node.op.input_weights(node), node.op.recurrent_weights(node)
            if names.keys() >= set(read):
                found.append((names[read[0]], names[read[1]]))
    return found


def find_lstm_only_weights(graph: Graph) -> frozenset[str]:
    """Return the weights that only LSTMs without projection read."""
    inside = {
        name for quantized_weight in list_lstm_weight_pairs(graph) for name in quantized_weight
    }
    users, shown = graph.map_users(), set(graph.outputs.values())
    values = ((n, graph.parameters[n]) for n in inside)
    return frozenset(
        n for n, v in values if v not in shown and all(_is_lstm_weight(*use) for use in users[v])
    )


def _is_lstm_weight(node: Node, operand_index: int) -> bool:
    """Return True if an operand is a weight of an LSTM without projection."""
    if not isinstance(node.op, ops.Lstm) or node.op.projection(node) is not None:
        return False
    return operand_index in (node.op.input_weights.index, node.op.recurrent_weights.index)


def find_underlying_weight(value: Value | None) -> Value | None:
    """Return the weight of which `value` is a view, or `value` itself."""
    while value is not None and value.node is not None:
        if not isinstance(value.node.op, ops.Slice | ops.Transpose):
            break
        value = value.node.args[0]
    return value


@dataclass(frozen=True)
class QuantizedParameters:
    """A quantized weight: its codes, its scales, its zero points if it has any, and the orientation
    of the current view (`is_transposed`).
    """

    codes: Value
    scales: Value
    format: QuantizationFormat
    is_transposed: bool = False
    zero_points: Value | None = None

    @property
    def parts(self) -> tuple[Value, ...]:
        """Return the codes, the scales, and the zero points if there are any."""
        zeros = () if self.zero_points is None else (self.zero_points,)
        return self.codes, self.scales, *zeros

    def convert_parts(self, convert: Callable[[str, Value], Value]) -> "QuantizedParameters":
        """Return the weight with its codes, scales and zero points replaced by `convert(name,
        parameter)`.
        """
        zeros = self.zero_points
        return replace(
            self,
            codes=convert("codes", self.codes),
            scales=convert("scales", self.scales),
            zero_points=None if zeros is None else convert("zero_points", zeros),
        )


def quantize_graph(graph: Graph, plan: QuantizationPlan) -> Graph:
    """Return `graph` with the weights of `plan` quantized."""
    parameter_formats = {name: form for name, form in plan.items() if name in graph.parameters}
    if not parameter_formats:
        return graph
    graph = expand_recurrent_layers(
        graph, {n for n, form in parameter_formats.items() if form.rounding != "layer"}
    )
    builder = GraphBuilder()
    for name, given in graph.input_facts.items():
        builder.add_input(name, given)
    pairs: dict[Value, QuantizedParameters] = {}
    now = {value: builder.inputs[name] for name, value in graph.inputs.items()}
    for name, value in graph.parameters.items():
        facts = graph.parameter_facts[name]
        if name in parameter_formats:
            pairs[value] = _make_quantized_weight(builder, facts, parameter_formats[name])
        else:
            now[value] = builder.add_parameter(facts)
    _WeightQuantizer(builder, now, pairs).convert_nodes(graph)
    return builder.finish_copy(graph, now)


def _make_quantized_weight(
    builder: GraphBuilder, parameter: Parameter, format: QuantizationFormat
) -> QuantizedParameters:
    """Return the parameters that replace a weight: codes, scales and zero points."""
    shape = tuple(d.number or 0 for d in parameter.type.shape)
    numbers, scales = format.compute_shapes(shape)

    def add_part(rename: Callable[[str], str], type: Type) -> Value:
        tied = rename(parameter.tied_to) if parameter.tied_to else ""
        return builder.add_parameter(
            replace(parameter, name=rename(parameter.name), type=type, tied_to=tied)
        )

    codes = add_part(format.format_codes_name, Type.of(format.dtype, *numbers))
    made = QuantizedParameters(
        codes, add_part(format.format_scales_name, Type.of("f32", *scales)), format
    )
    if not format.has_zero_points:
        return made
    zero_type = Type.of(format.dtype, *format.compute_zero_points_shape(shape))
    return replace(made, zero_points=add_part(format.format_zero_points_name, zero_type))


@dataclass
class _WeightQuantizer:
    """Rebuilds nodes with quantized weights. `new_values` maps old values to new values;
    `quantized_weights` maps weights and views of weights to quantized weights.
    """

    builder: GraphBuilder
    new_values: dict[Value, Value]
    quantized_weights: dict[Value, QuantizedParameters] = field(default_factory=dict)

    def convert_nodes(self, graph: Graph) -> None:
        """Convert every node of a graph, in order."""
        for node, results in graph.nodes:
            new = self._convert_node(node, results)
            # views of a weight have no values in the new graph
            self.new_values.update(zip(results, new, strict=False))
            self.builder.copy_origin(graph, node, new)

    def _convert_node(self, node: Node, results: NodeResults) -> NodeResults:
        """Convert a node; return () if the node is a view of a weight."""
        read = [a for a in node.operands if a in self.quantized_weights]
        if not read:
            return self.builder.add_node(node.op, *(a and self.new_values[a] for a in node.args))
        quantized_weight = self.quantized_weights[read[0]]
        match node.op:
            case ops.Transpose():
                self.quantized_weights[results[0]] = replace(
                    quantized_weight, is_transposed=not quantized_weight.is_transposed
                )
                return ()
            case ops.Cast(to):
                # the scales of a layer that is computed in 16 bits are 16-bit floats
                scales = self.builder.add_op(ops.Cast(to), quantized_weight.scales)
                self.quantized_weights[results[0]] = replace(quantized_weight, scales=scales)
                return ()
            case ops.Slice():
                self.quantized_weights[results[0]] = self._slice_weight(node.op, quantized_weight)
                return ()
            case ops.Scan() | ops.MixtureOfExperts():
                return self._convert_loop(node, node.op)
            case ops.Embedding():
                return self._convert_lookup(node, quantized_weight)
            case ops.Lstm():
                return self._convert_layer(node, node.op)
        return self._convert_linear(node, quantized_weight)

    def _slice_weight(
        self, op: ops.Slice, quantized_weight: QuantizedParameters
    ) -> QuantizedParameters:
        """Slice codes, scales and zero points: along the last axis in the layout `columns`, and
        along the first axis in other layouts.
        """
        last = quantized_weight.format.layout == "columns"
        return quantized_weight.convert_parts(
            lambda _, v: self.builder.add_op(replace(op, axis=v.rank - 1 if last else 0), v)
        )

    def _convert_linear(self, node: Node, quantized_weight: QuantizedParameters) -> NodeResults:
        form = quantized_weight.format
        # a derived graph may contain the layer in a loop, so per-token scales become per-tensor
        # scales
        rounding: ActivationRoundingMode = "tensor" if form.rounding == "layer" else form.rounding
        op = ops.QuantizedLinear(form.bits, form.group_size, form.layout, rounding)
        product = find_matrix_product(node)
        assert product is not None, "the plan has no other consumer"
        x = node.args[product.activation_operand]
        bias = ops.Linear.bias(node) if isinstance(node.op, ops.Linear) else None
        return self.builder.add_node(
            op,
            x and self.new_values[x],
            quantized_weight.codes,
            quantized_weight.scales,
            bias and self.new_values[bias],
            *quantized_weight.parts[2:],
        )

    def _convert_layer(self, node: Node, op: ops.Lstm) -> NodeResults:
        """Convert an LSTM whose two weights are quantized to a `quantized_lstm`."""
        pairs = [
            self.quantized_weights[v] for v in (op.input_weights(node), op.recurrent_weights(node))
        ]
        # the omitted operand is the projection, which a quantized LSTM lacks
        rest = [*node.args[op.input_bias.index : op.peepholes.index + 1]]
        return self.builder.add_node(
            ops.QuantizedLstm(op.reverse),
            self.new_values[op.sequence(node)],
            *(quantized_weight.codes for quantized_weight in pairs),
            *(quantized_weight.scales for quantized_weight in pairs),
            *(a and self.new_values[a] for a in rest),
        )

    def _convert_lookup(self, node: Node, quantized_weight: QuantizedParameters) -> NodeResults:
        form, ids = quantized_weight.format, node.args[0]
        table = node.args[1]
        assert table is not None
        op = ops.QuantizedEmbedding(table.shape[1], form.bits, form.group_size, form.layout)
        return self.builder.add_node(
            op, ids and self.new_values[ids], quantized_weight.codes, quantized_weight.scales
        )

    def _convert_loop(self, node: Node, op: ops.Scan | ops.MixtureOfExperts) -> NodeResults:
        """Convert a loop or a mixture of experts. The body gets the codes, scales and zero points
        of each quantized weight as inputs; stacked weights are sliced by expert.
        """
        given = op.split_operands(node.operands)
        inputs = list(op.body.inputs.items())
        stacked = len(given.stacked)
        # The inputs of a body are values that change in each iteration, followed by captures, which
        # may be weights. The operands of the loop end with these captures, too.
        changing = len(inputs) - len(given.captured) - stacked
        values = node.operands
        outside = len(values) - (len(inputs) - changing)
        args = [self.new_values[a] for a in values[:outside]]
        inner = GraphBuilder()
        inside = _WeightQuantizer(inner, {})
        for name, value in inputs[:changing]:
            inside.new_values[value] = inner.add_input(name, op.body.input_facts[name])
        # A quantized stack of weights is replaced by stacks of codes, scales and zero points.
        more = 0
        for operand_index, outer in enumerate(values[outside:]):
            name, value = inputs[changing + operand_index]
            facts = op.body.input_facts[name]
            if outer not in self.quantized_weights:
                inside.new_values[value] = inner.add_input(name, facts)
                args.append(self.new_values[outer])
                continue
            quantized_weight, first = self.quantized_weights[outer], operand_index < stacked
            more += first * (len(quantized_weight.parts) - 1)
            inside.quantized_weights[value] = _add_quantized_body_inputs(
                inner, name, facts, quantized_weight, is_stacked=first
            )
            args += quantized_weight.parts
        inside.convert_nodes(op.body)
        body = inner.finish_copy(op.body, inside.new_values)
        if isinstance(op, ops.MixtureOfExperts):
            return self.builder.add_node(
                replace(op, body=body, stacked_count=stacked + more), *args
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
    """Declare the body inputs for the codes, scales and zero points of a quantized weight."""
    labels = {"codes": "numbers"}

    def add_input(part: str, value: Value) -> Value:
        type = remove_axis(value.type, 0) if is_stacked else value.type
        return body_builder.add_input(
            f"{name} {labels.get(part, part)}", replace(input_facts, type=type)
        )

    return quantized_weight.convert_parts(add_input)


STATE_SCALE_SUFFIX = ":scale"
"""Suffix of the name of the scales of a KV cache."""


def quantize_kv_states(step: Graph, caches: Sequence[KVCache]) -> Graph:
    """Return `step` with the given KV caches stored in int8."""
    keys = {c.key: c.present_key for c in caches}
    after = keys | {c.value: c.present_value for c in caches}
    joined = {step.outputs[result]: name for name, result in after.items()}
    builder = GraphBuilder()
    facts = _quantize_input_facts(step, after)
    now = builder.copy_inputs_and_parameters(replace(step, input_facts=facts))
    scales = {name: builder.add_parameter(_make_state_scale(step, name)) for name in after}
    kept: dict[Value, Value] = {}
    for node, results in step.nodes:
        whole = results[0]
        if whole not in joined:
            now.update(zip(results, builder.copy_node(step, node, now), strict=True))
            continue
        # past and new positions are stored in int8 and dequantized before use
        past, fresh = (now[a] for a in node.operands)
        scale = scales[joined[whole]]
        kept[whole] = builder.add_op(node.op, past, builder.add_op(ops.Quantize(), fresh, scale))
        now[whole] = builder.add_op(ops.Dequantize(), kept[whole], scale)
    return builder.finish_copy(step, now, {n: kept.get(v, now[v]) for n, v in step.outputs.items()})


def _quantize_input_facts(step: Graph, names: Container[str]) -> dict[str, Input]:
    """Return the descriptions of the inputs of `step`, with the dtype int8 for those in `names`."""
    return {
        name: replace(f, type=Type("i8", f.type.shape)) if name in names else f
        for name, f in step.input_facts.items()
    }


def _make_state_scale(step: Graph, name: str) -> Parameter:
    """Return the parameter with the scales of a KV cache, one per head and feature."""
    _, heads, _, width = step.inputs[name].shape
    shape = Type("f32", (heads, Dim.from_value(1), width))
    return Parameter(name=name + STATE_SCALE_SUFFIX, type=shape, initializer="ones")
