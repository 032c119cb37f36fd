"""Low precision of a compile: what was asked for becomes a plan, graphs that follow it,
and the numbers that they read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from specc.backend import Emitted
from specc.compiler.rounding import Spoken, check_block
from specc.compiler.rounding_idle import idle
from specc.compiler.rounding_patterns import check_matched
from specc.files.read import shown
from specc.ir.derived import Generating, InPlace, Source
from specc.ir.graph import Graph
from specc.ir.ops.quantized import Layout
from specc.ir.precision import Fold, Plan
from specc.ir.target import Target
from specc.passes import pipeline
from specc.passes.quantize.plan import Decision, Kind, Wish, decide
from specc.text.diagnostic import fail
from specc.weights.quantized import Quantized

MISREAD = frozenset({"Attention"})
"""Operators that other programs take for others: ONNX Runtime's quantizer knows one of
its own by this name, and makes an invalid model of the standard's.
"""
TOGETHER: Kind = "int8-tensor"
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


def decided(
    graph: Graph,
    told: Spoken,
    target: Target,
    opset: int,
    ties: Mapping[str, str],
    others: Callable[[], Iterable[Graph]],
) -> Decision:
    """What becomes of each weight of `graph`; `others` are those of the same spec.

    E0850 for a pattern that names nothing, E0851 for a target that has no such numbers,
    E0852 where nothing can be rounded, E0853 for a block of another size, E0963 where
    no rows can share a scale.
    """
    wish = told.wish
    if wish is None:
        return Decision({}, {})
    check_block(wish.block)
    _check_target(wish, target, opset)
    layout: Layout = "rows" if target.rounded else "columns"
    rounds = target.rounded == "rows"
    layers = WHOLE_LAYERS in target.cells

    def by(wish: Wish) -> Decision:
        return decide(graph, wish, layout, ties, rounds=rounds, layers=layers)

    found = by(wish)
    check_matched(found.unmatched, found.names, told.places, others)
    if not found.plan:
        _nothing(graph, found)
    if TOGETHER in wish.kinds and not shares_scales(found.plan):
        _nothing_together(graph)
    lines = idle(wish, told.said, found.plan, lambda other: by(other).plan)
    return replace(found, idle=tuple(lines))


def for_quantizers(target: Target, told: Spoken) -> Target:
    """A target whose models other programs can round. E0753 for one that they cannot
    read, and where weights are rounded already.
    """
    if target.name != "onnx":
        fail(
            "E0753",
            "`--for-quantizers` writes what other programs can read, and "
            f"`{target.name}` has operators of ONNX Runtime's own",
            helps=["add `--target onnx`"],
        )
    if told.wish is not None:
        fail(
            "E0753",
            "weights are rounded here or by another program, not by both",
            helps=["leave out --quantize or --for-quantizers"],
        )
    return replace(target, fused=target.fused - MISREAD)


def shares_scales(plan: Plan) -> bool:
    """Whether rows that meet a weight of the plan share a scale."""
    return any(form.rounding in ("tensor", "layer") for form in plan.values())


def remarks_of(found: Decision, folds: Sequence[Fold], told: Spoken) -> tuple[str, ...]:
    """What whoever compiles is to know of a plan, and of the norms that were folded."""
    remarks = [*found.idle, *([DEPENDS] if shares_scales(found.plan) else [])]
    if told.fold:
        maps = sum(len(fold.maps) for fold in folds)
        moved = f"the gains of {len(folds)} norms are in the {maps} maps behind them"
        why = (
            "no gain was moved: no norm is read by rounded maps alone, or it is in a "
            "loop, where norms are left as they are"
        )
        remarks.append(moved if folds else why)
    return tuple(remarks)


def in_one_file(plan: Plan, target: Target, parts: Sequence[str]) -> tuple[str, ...]:
    """That what decodes by itself gains no speed by weights in blocks, where a target has
    only the standard's form of them.
    """
    blocks = any(form.block for form in plan.values())
    found = blocks and "generate" in parts and not target.rounded
    return (AGAIN_WHOLE,) if found else ()


def _nothing_together(graph: Graph) -> NoReturn:
    """E0963."""
    fail(
        "E0963",
        f"`{TOGETHER}` is for recurrent layers and loops, and none of "
        f"`{shown(graph.name)}` can be rounded so",
        notes=[
            "elsewhere a scale for each row costs as little, and is what `int8` has"
        ],
        helps=["compile with `--quantize int8`"],
    )


def _check_target(wish: Wish, target: Target, opset: int) -> None:
    """E0851 and E0964."""
    if TOGETHER in wish.kinds and target.provider != "cpu":
        fail(
            "E0964",
            f"`{target.name}` has no operator that rounds rows together",
            helps=[
                "compile with `--quantize int8`, by which each row has its scale",
                f"or `{TOGETHER}` with `--target ort-cpu` or `onnx`",
            ],
        )
    if "int4" in wish.kinds and not target.rounded and opset < BLOCKS_OF_4:
        fail(
            "E0851",
            f"opset {opset} has no numbers of 4 bits",
            helps=[
                f"compile with `--opset {BLOCKS_OF_4}` or a newer one",
                "or with `--target ort-cpu`, whose operators are ONNX Runtime's own",
            ],
        )


def _nothing(graph: Graph, found: Decision) -> NoReturn:
    """E0852."""
    reasons = [f"`{shown(n)}`: {shown(why)}" for n, why in found.kept.items()][:8]
    fail(
        "E0852",
        f"`{graph.name}` has no weight that can be rounded",
        notes=reasons or ["it has no matrices"],
        helps=["compile it as it is, without `--quantize`"],
    )


def rounded(source: Source, plan: Plan) -> Source:
    """What a model is made from, with the weights of `plan` rounded in each graph."""
    if not plan:
        return source
    match source:
        case InPlace(graph=graph, caches=caches):
            return InPlace(_one(graph, plan), caches)
        case Generating():
            derived = source.derived
            encode = derived.encode and _one(derived.encode, plan)
            return Generating(
                _one(source.graph, plan),
                replace(derived, encode=encode, step=_one(derived.step, plan)),
                source.decoding,
                source.defaults,
            )
    return _one(source, plan)


def _one(graph: Graph, plan: Plan) -> Graph:
    return pipeline.quantize(graph, plan)


def facts_of(
    graph: Graph,
    values: Quantized,
    kept: Mapping[str, str],
    emitted: Emitted,
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
