"""What is decided between elaboration and lowering: the graph, and how weights are stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from specc.driver import precision
from specc.driver.compile_job import CompileJob
from specc.driver.spec_loader import elaborate_other_graphs
from specc.ir.array import Array
from specc.ir.derived_graphs import DerivedGraphs, ModelSource
from specc.ir.graph import Graph
from specc.ir.quantization_format import NormFold
from specc.transforms import pass_pipeline
from specc.transforms.fold_norms import find_norm_folds
from specc.transforms.quantization_plan import QuantizationDecision
from specc.weights.norm_folding import FoldedValues, NarrowDtype, RangeCheckedValues
from specc.weights.parameter_values import ParameterValues, find_ties
from specc.weights.quantized_values import QuantizedValues, ValuesWithScales
from specc.weights.stored_codes import find_stored_codes, read_stored_scales


@dataclass(frozen=True, kw_only=True)
class LoweringJob(CompileJob):
    """A compile that is ready to lower.

    `simplified` is the graph that targets lower, not yet quantized. `decision` says which
    weights are quantized, `folds` which norms are folded into linear layers first. `full` are
    the parameters before quantization, `quantized` those of the decision (None if there are
    none), `narrow` the parameters stored with more bits than they are computed with.
    Calibration adds `recipe`, how int4 weights were quantized, and `scales`, those of the KV
    cache by parameter name.
    """

    simplified: Graph
    decision: QuantizationDecision
    folds: tuple[NormFold, ...]
    full: ParameterValues
    quantized: QuantizedValues | None
    narrow: Mapping[str, NarrowDtype]
    recipe: str = ""
    scales: Mapping[str, Array] = field(default_factory=dict)

    @property
    def stored(self) -> ParameterValues:
        """The parameters as stored: quantized if requested, and KV cache scales. Values
        computed in 16 bits are checked to be in range.
        """
        values: ParameterValues = self.quantized or self.full
        if self.scales:
            values = ValuesWithScales(values, self.scales)
        changed = self.full.changed if isinstance(self.full, FoldedValues) else ()
        return RangeCheckedValues(values, self.narrow, changed) if self.narrow else values

    @property
    def documented(self) -> Graph:
        """The full graph for the manifest: that of the spec, or the lowered one if that has
        casts to 16 bits, whose place depends on how loops were split.
        """
        converted = self.convert_dtype(self.simplified)
        return self.graph if converted is self.simplified else converted

    def convert_dtype(self, graph: Graph) -> Graph:
        """Return the graph in the compute dtype of the target."""
        return precision.convert_graph_dtype(graph, self.options.dtype, self.target)

    def convert_derived_dtype(self, derived: DerivedGraphs) -> DerivedGraphs:
        """Return derived graphs in the compute dtype of the target."""
        return precision.convert_derived_dtype(derived, self.options.dtype, self.target)

    def quantize_source(self, source: ModelSource) -> ModelSource:
        """Return the source of a model with the weights of the decision quantized."""
        return precision.quantize_source(source, self.decision.plan)


STORED_RECIPE = "int4 weights: the codes and scales of the checkpoint"


def plan_lowering(job: CompileJob) -> LoweringJob:
    """Simplify the graph and decide how its weights are stored and computed with.

    Raise E0850 to E0853 and E0963 for quantization that is not possible.
    """
    wish = job.quantize.wish
    # runtimes of the standard operators decide themselves to round activations too
    keeps = wish is None and not job.quantize.dequantizes and job.target.rounded
    stored = find_stored_codes(job.values) if keeps else {}
    graph = pass_pipeline.simplify_graph(job.graph, fused=wish is None and not stored)
    ties = find_ties(job.values)
    if stored:
        decision = precision.plan_stored_codes(graph, ties, stored)
    else:
        decision = precision.plan_quantization(
            graph,
            job.quantize,
            job.target,
            job.opset,
            ties,
            lambda: elaborate_other_graphs(job.spec, job.graph.name),
        )
    plan = decision.plan
    scales = read_stored_scales(job.values) if plan and stored else None
    folds = find_norm_folds(graph, ties, plan) if job.quantize.fold else ()
    full = FoldedValues(job.values, folds) if folds else job.values
    return LoweringJob(
        **{f.name: getattr(job, f.name) for f in fields(CompileJob)},
        simplified=graph,
        decision=decision,
        folds=folds,
        full=full,
        quantized=QuantizedValues(full, plan, stored=scales) if plan else None,
        recipe=STORED_RECIPE if scales is not None else "",
        narrow=precision.half_precision_parameters(graph, plan, job.options.dtype, job.target),
    )
