"""Choose the quantized weights and the 16-bit compute dtype of a compilation, and check that the
target supports them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.driver.quantize_option_errors import check_weight_patterns, find_ineffective_options
from specc.driver.quantize_section import QuantizeRequest, check_group_size
from specc.io.safe_read import escape_text
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.model_definition import KVBufferGraph, ModelSource, StandaloneGenerator
from specc.ir.ops.quantized import FoldedNorm, PackedWeightFormat, QuantizationPlan, WeightLayout
from specc.ir.target import Target
from specc.transforms import pass_pipeline
from specc.transforms.mixed_precision import HalfDtype
from specc.transforms.quantizable_weights import find_underlying_weight
from specc.transforms.quantization_plan import (
    QuantizationDecision,
    QuantizationKind,
    QuantizationOptions,
    choose_weight_formats,
)
from specc.weights.norm_folding_and_weight_range_checks import WeightRangeCheck


def make_weight_range_checks(
    graph: Graph, plan: QuantizationPlan, half_dtype: HalfDtype | None
) -> dict[str, WeightRangeCheck]:
    """Return a range check for each float32 parameter that the graph casts to 16 bits, keyed by
    name.

    If `plan` quantizes a weight, the check applies to the scales, and `max_code` is the largest
    absolute value of the codes.
    """
    if half_dtype is None:
        return {}
    graph = pass_pipeline.apply_quantization_plan(
        pass_pipeline.convert_to_half_precision(graph, half_dtype), plan
    )
    quantized_names = {
        format.format_tensor_name(name, "scales"): name for name, format in plan.items()
    }
    names = {value: name for name, value in graph.parameters.items()}
    range_checks: dict[str, WeightRangeCheck] = {}
    for node, _ in graph.nodes:
        weight = find_underlying_weight(node.args[0]) if node.op == ops.Cast(half_dtype) else None
        name = names.get(weight) if weight else None
        if name is None:
            continue
        quantized_name, max_code = quantized_names.get(name, name), 1.0
        if name in quantized_names:
            format = plan[quantized_name]
            # int4 codes are in the range -8..7, or -15..15 after subtraction of zero points
            max_code = 15.0 if format.has_zero_points else {4: 8.0, 8: 127.0}[format.bits]
        range_checks[name] = WeightRangeCheck(half_dtype, quantized_name, max_code)
    return range_checks


MISREAD_OPERATORS = frozenset({"Attention"})
"""Operators that external quantization tools misinterpret. The quantizer of ONNX Runtime mistakes
`Attention` for the contrib operator of the same name, and produces an invalid model.
"""
TENSOR_SCALED_KIND: QuantizationKind = "int8-tensor"
"""The quantization kind with per-tensor activation scales, i.e. one scale for all positions."""
INTEGER_LAYERS = "int8 lstm"
"""Name of a target capability: recurrent layers with int8 weights."""
TENSOR_SCALE_WARNING = (
    f"`{TENSOR_SCALED_KIND}`: in recurrent layers and loops the quantization error of a sequence "
    "depends on the other sequences of its batch; --quantize int8 avoids that"
)
DEQUANTIZED_AT_RUN_TIME = (
    "`generate`: group-wise quantized weights are dequantized to float32 at run time, which "
    "only saves file size; --quantize int8, or --target ort-cpu, is faster"
)
INT4_SINCE = 21
"""The first ONNX opset with the int4 type."""


def plan_quantization(
    graph: Graph,
    request: QuantizeRequest,
    target: Target,
    opset: int,
    ties: Mapping[str, str],
    other_graphs: Callable[[], Iterable[Graph]],
) -> QuantizationDecision:
    """Choose a weight format for each parameter of `graph`. `other_graphs` builds the spec's other
    graphs.

    Raise E0850 if a pattern has no match, E0851 if the target has no int4 support, E0852 if no
    weight can be quantized, E0853 if the group size is invalid, and E0963 if no layer can use
    per-tensor activation scales.
    """
    weight_options, labels = request.weight_options, request.option_labels
    if weight_options is None:
        return QuantizationDecision({}, {})
    check_group_size(weight_options.group_size)
    _check_target(weight_options, target, opset)
    layout: WeightLayout = "rows" if target.quantized_matmul_mode else "columns"

    choose_formats = partial(
        choose_weight_formats,
        graph,
        layout=layout,
        ties=ties,
        quantizes_activations=target.quantized_matmul_mode == "rows",
        has_quantized_lstm=INTEGER_LAYERS in target.recurrent_features,
    )
    decision = choose_formats(weight_options)
    plan = decision.plan
    check_weight_patterns(
        decision.unmatched_patterns, decision.weight_names, request.pattern_spans, other_graphs
    )
    if not plan:
        _raise_nothing_to_quantize(graph, decision)
    if TENSOR_SCALED_KIND in weight_options.weight_kinds and not has_shared_scales(plan):
        raise_error(
            "E0963",
            f"`{TENSOR_SCALED_KIND}` is for recurrent layers and loops, but no layer of "
            f"`{escape_text(graph.name)}` supports it",
            notes=["for other layers, use `int8`: its per-token scales are as fast"],
            helps=["compile with `--quantize int8`"],
        )
    remarks = find_ineffective_options(
        weight_options, labels, plan, lambda options: choose_formats(options).plan
    )
    return replace(decision, ineffective_options=tuple(remarks))


def choose_checkpoint_weight_formats(
    graph: Graph, ties: Mapping[str, str], packed_formats: Mapping[str, PackedWeightFormat]
) -> QuantizationDecision:
    """Choose the format of weights whose 4-bit codes are stored in the checkpoint."""
    return choose_weight_formats(
        graph, QuantizationOptions(kind=None, packed_weight_formats=packed_formats), "rows", ties
    )


def restrict_target_operators(target: Target, request: QuantizeRequest) -> Target:
    """Return the target without operators that external quantizers misinterpret. Raise E0753 if the
    target uses contrib operators, or if the weights are quantized already.
    """
    if target.name != "onnx":
        raise_error(
            "E0753",
            "`--for-external-quantization` requires standard operators, but "
            f"`{target.name}` uses contrib operators of ONNX Runtime",
            helps=["add `--target onnx`"],
        )
    if request.weight_options is not None:
        raise_error(
            "E0753",
            "external quantizers cannot quantize weights that specc has quantized",
            helps=["remove --quantize or --for-external-quantization"],
        )
    return replace(target, fused_operators=target.fused_operators - MISREAD_OPERATORS)


def has_shared_scales(plan: QuantizationPlan) -> bool:
    """Return True if per-tensor activation scales are used for a weight in the plan."""
    return any(format.rounding in ("tensor", "layer") for format in plan.values())


def describe_quantization(
    decision: QuantizationDecision,
    norm_folds: Sequence[FoldedNorm],
    request: QuantizeRequest,
    target: Target,
    graph_names: Sequence[str],
) -> tuple[str, ...]:
    """Return remarks on the quantization plan, on folded norms, and on a `generate` graph that
    dequantizes group-wise weights at run time (because the target has only standard operators).
    """
    remarks = [*decision.ineffective_options]
    if has_shared_scales(decision.plan):
        remarks.append(TENSOR_SCALE_WARNING)
    if norm_folds:
        layer_count = sum(len(fold.linear_weights) for fold in norm_folds)
        remarks.append(
            f"folded the weights of {len(norm_folds)} norms into {layer_count} linear layers"
        )
    elif request.fold_norms:
        remarks.append(
            "no norm weights were folded: all consumers of a norm must be quantized linear "
            "layers, and the norm must not be in a loop"
        )
    has_groups = any(format.group_size for format in decision.plan.values())
    if has_groups and "generate" in graph_names and not target.quantized_matmul_mode:
        remarks.append(DEQUANTIZED_AT_RUN_TIME)
    return tuple(remarks)


def _check_target(weight_options: QuantizationOptions, target: Target, opset: int) -> None:
    """Raise E0851 for int4 below opset 21, and E0964 for unsupported per-tensor scales."""
    if TENSOR_SCALED_KIND in weight_options.weight_kinds and target.provider != "cpu":
        raise_error(
            "E0964",
            f"`{target.name}` has no operator with per-tensor activation scales",
            helps=[
                "compile with `--quantize int8` (per-token scales)",
                f"or `{TENSOR_SCALED_KIND}` with `--target ort-cpu` or `onnx`",
            ],
        )
    if (
        "int4" in weight_options.weight_kinds
        and not target.quantized_matmul_mode
        and opset < INT4_SINCE
    ):
        raise_error(
            "E0851",
            f"opset {opset} does not support int4, which requires opset {INT4_SINCE}",
            helps=[
                f"compile with `--opset {INT4_SINCE}` or newer",
                "or with `--target ort-cpu`, which uses contrib operators of ONNX Runtime",
            ],
        )


def _raise_nothing_to_quantize(graph: Graph, decision: QuantizationDecision) -> NoReturn:
    """Raise E0852 because no weight of the graph can be quantized."""
    reasons = [
        f"`{escape_text(n)}`: {escape_text(reason)}"
        for n, reason in decision.unquantized_reasons.items()
    ][:8]
    raise_error(
        "E0852",
        f"`{graph.name}` has no weight that can be quantized",
        notes=reasons or ["the graph contains no weight matrices"],
        helps=["compile it without `--quantize`"],
    )


def quantize_model_graphs(source: ModelSource, plan: QuantizationPlan) -> ModelSource:
    """Return `source` with the weights of `plan` quantized in each of its graphs."""
    if not plan:
        return source

    def quantize_graph(graph: Graph) -> Graph:
        return pass_pipeline.apply_quantization_plan(graph, plan)

    match source:
        case KVBufferGraph(graph=graph):
            return replace(source, graph=quantize_graph(graph))
        case StandaloneGenerator(graph=graph, derived_graphs=derived_graphs):
            encode = derived_graphs.encode and quantize_graph(derived_graphs.encode)
            quantized = replace(
                derived_graphs, encode=encode, step=quantize_graph(derived_graphs.step)
            )
            return replace(source, graph=quantize_graph(graph), derived_graphs=quantized)
    return quantize_graph(source)
