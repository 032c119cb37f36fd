"""Quantization plan and compute type (f32, f16, bf16) of a compile."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NoReturn, get_args

from specc.backend import EmittedModel
from specc.diagnostics.diagnostic import raise_error
from specc.driver.quantize_option_checks import check_patterns_match, find_ineffective_options
from specc.driver.quantize_section import QuantizeRequest, check_group_size
from specc.io.safe_read import escape_text
from specc.ir import ops
from specc.ir.derived_graphs import DerivedGraphs, KVBufferGraph, ModelSource, SelfDecodingGraph
from specc.ir.graph import Graph
from specc.ir.ops.quantized import WeightLayout
from specc.ir.quantization_format import NormFold, QuantizationPlan
from specc.ir.target import Target
from specc.transforms import pass_pipeline
from specc.transforms.mixed_precision import HalfDtype
from specc.transforms.quantization_plan import (
    QuantizationDecision,
    QuantizationKind,
    QuantizationRequest,
    choose_weight_formats,
)
from specc.transforms.quantize_weights import find_viewed_weight
from specc.weights.quantized_values import QuantizedValues
from specc.weights.range_check import NarrowDtype


def half_precision_dtype(dtype: str, target: Target) -> HalfDtype | None:
    """The type of 16 bits that `--dtype` asks `target` to compute in, if it can."""
    known: tuple[HalfDtype, ...] = get_args(HalfDtype)
    return next((h for h in known if h == dtype and h in target.computes), None)


def half_precision_parameters(
    graph: Graph, plan: QuantizationPlan, dtype: str, target: Target
) -> dict[str, NarrowDtype]:
    """The parameters of f32 that a graph computes with in 16 bits, in whatever bits they
    are stored; of weights rounded by `plan` the scales, which the numbers are as large as.
    """
    half = half_precision_dtype(dtype, target)
    if half is None:
        return {}
    graph = pass_pipeline.apply_quantization_plan(
        pass_pipeline.apply_half_precision(graph, half), plan
    )
    rounded = {form.scales(name): name for name, form in plan.items()}
    # 7 is the greatest of 4 bits, -8 the farthest from zero
    most = {4: 8.0, 8: 127.0}
    names = {value: name for name, value in graph.parameters.items()}
    found: dict[str, NarrowDtype] = {}
    for node, _ in graph.nodes:
        read = find_viewed_weight(node.args[0]) if node.op == ops.Cast(half) else None
        name = names.get(read) if read else None
        if name is None:
            continue
        weight = rounded.get(name, name)
        size = most[plan[weight].bits] if name in rounded else 1.0
        found[name] = NarrowDtype(half, weight, size)
    return found


def convert_graph_dtype(graph: Graph, dtype: str, target: Target) -> Graph:
    """A graph in that width; itself where the target computes in f32 whatever is stored."""
    half = half_precision_dtype(dtype, target)
    return graph if half is None else pass_pipeline.apply_half_precision(graph, half)


def convert_derived_dtype(derived: DerivedGraphs, dtype: str, target: Target) -> DerivedGraphs:
    """A graph taken apart in that width, keys and values between its steps too."""
    half = half_precision_dtype(dtype, target)
    return derived if half is None else pass_pipeline.apply_half_precision_to_derived(derived, half)


def convert_generator_dtype(
    source: SelfDecodingGraph, dtype: str, target: Target
) -> SelfDecodingGraph:
    """What decodes by itself, in that width."""
    return SelfDecodingGraph(
        convert_graph_dtype(source.graph, dtype, target),
        convert_derived_dtype(source.derived, dtype, target),
        source.decoding,
        source.defaults,
    )


MISREAD = frozenset({"Attention"})
"""Operators that other programs take for others: ONNX Runtime's quantizer knows one of
its own by this name, and makes an invalid model of the standard's.
"""
TOGETHER: QuantizationKind = "int8-tensor"
"""The kind by which rows share a scale."""
WHOLE_LAYERS = "whole numbers"
"""What the cells of a target are called that has a layer by whole numbers."""
DEPENDS = (
    f"`{TOGETHER}`: in recurrent layers and loops what a text gives depends, by what "
    "rounding loses, on the texts beside it; --quantize int8 does not"
)
AGAIN_WHOLE = (
    "`generate`: weights in blocks are numbers of 32 bits again when it runs, and save "
    "room in the file alone; --quantize int8, or --target ort-cpu, is faster"
)
BLOCKS_OF_4 = 21
"""The opset from which the standard has numbers of 4 bits."""


def plan_quantization(
    graph: Graph,
    told: QuantizeRequest,
    target: Target,
    opset: int,
    ties: Mapping[str, str],
    others: Callable[[], Iterable[Graph]],
) -> QuantizationDecision:
    """What becomes of each weight of `graph`; `others` are those of the same spec.

    E0850 for a pattern that names nothing, E0851 for a target that has no such numbers,
    E0852 where nothing can be rounded, E0853 for a block of another size, E0963 where
    no rows can share a scale.
    """
    wish = told.wish
    if wish is None:
        return QuantizationDecision({}, {})
    check_group_size(wish.block)
    _check_target(wish, target, opset)
    layout: WeightLayout = "rows" if target.rounded else "columns"
    rounds = target.rounded == "rows"
    layers = WHOLE_LAYERS in target.cells

    def by(wish: QuantizationRequest) -> QuantizationDecision:
        return choose_weight_formats(graph, wish, layout, ties, rounds=rounds, layers=layers)

    found = by(wish)
    check_patterns_match(found.unmatched, found.names, told.places, others)
    if not found.plan:
        _nothing(graph, found)
    if TOGETHER in wish.kinds and not has_shared_scales(found.plan):
        _nothing_together(graph)
    lines = find_ineffective_options(wish, told.said, found.plan, lambda other: by(other).plan)
    return replace(found, idle=tuple(lines))


def check_unquantized_export(target: Target, told: QuantizeRequest) -> Target:
    """A target whose models other programs can round. E0753 for one that they cannot
    read, and where weights are rounded already.
    """
    if target.name != "onnx":
        raise_error(
            "E0753",
            "`--for-quantizers` writes what other programs can read, and "
            f"`{target.name}` has operators of ONNX Runtime's own",
            helps=["add `--target onnx`"],
        )
    if told.wish is not None:
        raise_error(
            "E0753",
            "weights are rounded here or by another program, not by both",
            helps=["leave out --quantize or --for-quantizers"],
        )
    return replace(target, fused=target.fused - MISREAD)


def has_shared_scales(plan: QuantizationPlan) -> bool:
    """Whether rows that meet a weight of the plan share a scale."""
    return any(form.rounding in ("tensor", "layer") for form in plan.values())


def quantization_notes(
    found: QuantizationDecision, folds: Sequence[NormFold], told: QuantizeRequest
) -> tuple[str, ...]:
    """What whoever compiles is to know of a plan, and of the norms that were folded."""
    remarks = [*found.idle, *([DEPENDS] if has_shared_scales(found.plan) else [])]
    if told.fold:
        maps = sum(len(fold.maps) for fold in folds)
        moved = f"the gains of {len(folds)} norms are in the {maps} maps behind them"
        why = (
            "no gain was moved: no norm is read by rounded maps alone, or it is in a "
            "loop, where norms are left as they are"
        )
        remarks.append(moved if folds else why)
    return tuple(remarks)


def standalone_quantization_notes(
    plan: QuantizationPlan, target: Target, parts: Sequence[str]
) -> tuple[str, ...]:
    """That what decodes by itself gains no speed by weights in blocks, where a target has
    only the standard's form of them.
    """
    blocks = any(form.block for form in plan.values())
    found = blocks and "generate" in parts and not target.rounded
    return (AGAIN_WHOLE,) if found else ()


def _nothing_together(graph: Graph) -> NoReturn:
    """E0963."""
    raise_error(
        "E0963",
        f"`{TOGETHER}` is for recurrent layers and loops, and none of "
        f"`{escape_text(graph.name)}` can be rounded so",
        notes=["elsewhere a scale for each row costs as little, and is what `int8` has"],
        helps=["compile with `--quantize int8`"],
    )


def _check_target(wish: QuantizationRequest, target: Target, opset: int) -> None:
    """E0851 and E0964."""
    if TOGETHER in wish.kinds and target.provider != "cpu":
        raise_error(
            "E0964",
            f"`{target.name}` has no operator that rounds rows together",
            helps=[
                "compile with `--quantize int8`, by which each row has its scale",
                f"or `{TOGETHER}` with `--target ort-cpu` or `onnx`",
            ],
        )
    if "int4" in wish.kinds and not target.rounded and opset < BLOCKS_OF_4:
        raise_error(
            "E0851",
            f"opset {opset} has no numbers of 4 bits",
            helps=[
                f"compile with `--opset {BLOCKS_OF_4}` or a newer one",
                "or with `--target ort-cpu`, whose operators are ONNX Runtime's own",
            ],
        )


def _nothing(graph: Graph, found: QuantizationDecision) -> NoReturn:
    """E0852."""
    reasons = [f"`{escape_text(n)}`: {escape_text(why)}" for n, why in found.kept.items()][:8]
    raise_error(
        "E0852",
        f"`{graph.name}` has no weight that can be rounded",
        notes=reasons or ["it has no matrices"],
        helps=["compile it as it is, without `--quantize`"],
    )


def quantize_source(source: ModelSource, plan: QuantizationPlan) -> ModelSource:
    """What a model is made from, with the weights of `plan` rounded in each graph."""
    if not plan:
        return source
    match source:
        case KVBufferGraph(graph=graph, caches=caches):
            return KVBufferGraph(_one(graph, plan), caches)
        case SelfDecodingGraph():
            derived = source.derived
            encode = derived.encode and _one(derived.encode, plan)
            return SelfDecodingGraph(
                _one(source.graph, plan),
                replace(derived, encode=encode, step=_one(derived.step, plan)),
                source.decoding,
                source.defaults,
            )
    return _one(source, plan)


def _one(graph: Graph, plan: QuantizationPlan) -> Graph:
    return pass_pipeline.apply_quantization_plan(graph, plan)


def precision_facts(
    graph: Graph,
    values: QuantizedValues,
    kept: Mapping[str, str],
    emitted: EmittedModel,
    recipe: str,
) -> dict[str, object]:
    """What a manifest says of each rounded weight of a graph, and of those that are not;
    `recipe` says by what numbers of 4 bits are rounded.
    """
    facts: dict[str, object] = {}
    for name in graph.parameters:
        form = values.plan.get(name)
        if form is None:
            continue
        made = values.made[values.base.tied_to(name) or name]
        loss = made.loss
        facts[name] = {
            "bits": form.bits,
            "block": form.block,
            "layout": form.layout,
            "rounding": form.rounding,
            "turned": form.turned,
            "scales": emitted.held[form.scales(name)],
            "recipe": made.recipe,
            "error": float(f"{loss.relative:.4g}"),
            "worst": float(f"{loss.worst:.4g}"),
        }
    return {
        "rounded": facts,
        "recipe": recipe,
        "kept": {n: why for n, why in kept.items() if n in graph.parameters},
    }


def describe_attention_forms(graph: str, emitted: EmittedModel) -> Iterator[str]:
    """Yield how each attention of a graph is lowered; consecutive equal ones share a line."""
    told = ((a["how"], a["scope"]) for a in emitted.attentions if "how" in a)
    for how, alike in groupby(told, key=lambda one: one[0]):
        scopes = [scope for _, scope in alike]
        few = scopes if len(scopes) < 3 else [scopes[0], "…", scopes[-1]]
        yield f"{graph}: {' '.join(few)}: {how}"
