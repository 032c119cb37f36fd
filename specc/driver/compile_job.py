"""One compile: the spec, the options, and everything inferred from both before lowering."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from specc import backend
from specc.artifact.manifest import Manifest
from specc.backend import CompilerBackend, EmittedModel, How, WrittenModel
from specc.driver import precision
from specc.driver import reading_section as readings
from specc.driver.compile_report import CompileReport
from specc.driver.quantize_section import QuantizeOptions, QuantizeRequest, merge_quantize_options
from specc.driver.spec_loader import OpenedSpec, elaborate_other_graphs, elaborate_spec
from specc.driver.taps import add_taps
from specc.driver.weight_sources import (
    WeightSources,
    check_memory,
    count_values,
    keep_stored_order,
    load_parameter_values,
    weight_source_facts,
)
from specc.huggingface.adapter_config import adapter_config_files, adapter_language
from specc.huggingface.generation_config import apply_generation_config
from specc.huggingface.model_task import with_task
from specc.ir.array import Array
from specc.ir.derived_graphs import DerivedGraphs, ModelSource
from specc.ir.graph import Graph
from specc.ir.model import ModelDefinition
from specc.ir.quantization_format import NormFold
from specc.ir.target import Target
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.transforms import pass_pipeline
from specc.transforms.fold_norms import find_norm_folds
from specc.transforms.quantization_plan import QuantizationDecision
from specc.weights.norm_folding import FoldedValues
from specc.weights.parameter_values import (
    CheckpointBinding,
    ParameterValues,
    SeededValues,
    find_ties,
)
from specc.weights.quantized_values import PrequantizedWeight, QuantizedValues, ValuesWithScales
from specc.weights.range_check import NarrowDtype, RangeCheckedValues

HOW: Mapping[str, How] = {"": "auto", "auto": "auto", "link": "link", "inline": "inline"}
"""Where weights go, by the word of the options."""


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What `compile` is told. `weights`, `init` or the spec's own file give the
    numbers; `init_missing` is the seed of a head that the weights lack, `adapter` a
    folder of changes that are merged in.

    `dtype` is the type in which matrices of f32 are stored, `f16`, `bf16` or `f32`;
    empty, that of the checkpoint where they stay in it. `weights_as` is `link`, `copy`,
    `inline`, or empty for what fits best. `parts` are the graphs of a package (`score`,
    `encode`, `step`, `generate`), `names` whose names its inputs and outputs have
    (`specc.driver.profiles`), `settings` how the one that decodes by itself chooses
    tokens (`specc.decode.generation_settings`). `precision` says which weights are rounded, beside
    what the spec says of it; `for_quantizers` that other programs are to round them.
    """

    output: str
    weights: str = ""
    init: int | None = None
    init_missing: int | None = None
    adapter: str = ""
    target: str = "ort-cpu"
    opset: int = 0
    graph: str = ""
    taps: tuple[str, ...] = ()
    defaults_inside: bool = False
    weights_as: str = ""
    dtype: str = ""
    parts: tuple[str, ...] = ()
    names: str = "specc"
    settings: Mapping[str, object] = field(default_factory=dict)
    precision: QuantizeOptions = field(default_factory=QuantizeOptions)
    for_quantizers: bool = False
    hash_full: bool = False
    force: bool = False
    try_load: bool = True


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """A spec, the options, and what they come to.

    `model` is what the spec elaborates to; `graph` is the model's, with the taps and
    defaults that were asked for, as the manifest shows it. `values` are the numbers of
    its parameters. `folders` are those that a tokenizer may lie in, `reading` says how
    inputs are read and results shown, `remarks` what files beside the weights say.
    `forms` is filled with what the backend tells of attentions. `ready` are weights
    of 4 bits that are rounded already, by inputs, `recipe` how these are rounded, for people;
    `scales` are those of states that are kept in 8 bits, by their names as parameters.
    """

    spec: OpenedSpec
    options: CompileOptions
    model: ModelDefinition
    graph: Graph
    values: CheckpointBinding | SeededValues
    folders: tuple[Path, ...]
    reading: PreprocessingConfig
    remarks: tuple[str, ...] = ()
    forms: list[str] = field(default_factory=list)
    ready: Mapping[str, PrequantizedWeight] = field(default_factory=dict)
    recipe: str = ""
    scales: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def compiler(self) -> CompilerBackend:
        """The backend. E0801 where it cannot be loaded."""
        return backend.load_compiler()

    @cached_property
    def target(self) -> Target:
        """The runtime that is written for. E0822 where there is none of that name, E0753
        where it cannot be for quantizers.
        """
        target = self.compiler.get_target(self.options.target)
        if self.options.for_quantizers:
            return precision.check_unquantized_export(target, self.rounding)
        return target

    @property
    def opset(self) -> int:
        """The one asked for, or the backend's usual one."""
        return self.options.opset or self.compiler.DEFAULT_OPSET

    @property
    def weights_as(self) -> How:
        """Where the weights go."""
        return HOW.get(self.options.weights_as, "copy")

    @property
    def sources(self) -> dict[str, str]:
        """The texts of the spec's files by their names."""
        modules = self.spec.library.modules.values()
        return {m.path: m.file.span.source.text for m in modules if m.file.span}

    @cached_property
    def rounding(self) -> QuantizeRequest:
        """Which weights the spec and the options want rounded."""
        return merge_quantize_options(self.spec.program, self.options.precision)

    @cached_property
    def simplified(self) -> Graph:
        """The graph as targets get it, its weights not yet rounded."""
        return pass_pipeline.simplify_graph(self.graph, fused=self.rounding.wish is None)

    @cached_property
    def precision(self) -> QuantizationDecision:
        """Which weights are rounded. Fails with E0850 to E0853."""
        return precision.plan_quantization(
            self.simplified,
            self.rounding,
            self.target,
            self.opset,
            find_ties(self.values),
            lambda: elaborate_other_graphs(self.spec, self.graph.name),
        )

    @cached_property
    def folds(self) -> tuple[NormFold, ...]:
        """The norms whose gains are moved before rounding, where that is asked for."""
        if not self.rounding.fold:
            return ()
        return find_norm_folds(self.simplified, find_ties(self.values), self.precision.plan)

    @cached_property
    def full(self) -> ParameterValues:
        """The numbers with all their bits, as they are rounded."""
        return self.folded or self.values

    @cached_property
    def folded(self) -> FoldedValues | None:
        """The numbers with the gains of norms moved; None where none is."""
        return FoldedValues(self.values, self.folds) if self.folds else None

    @cached_property
    def low(self) -> QuantizedValues | None:
        """The weights that are rounded, among all; None where none is."""
        plan = self.precision.plan
        return QuantizedValues(self.full, plan, self.ready) if plan else None

    @cached_property
    def narrow(self) -> Mapping[str, NarrowDtype]:
        """Parameters that are stored in more bits than they are computed in."""
        plan, dtype = self.precision.plan, self.options.dtype
        return precision.half_precision_parameters(self.simplified, plan, dtype, self.target)

    @property
    def numbers(self) -> ParameterValues:
        """The numbers as they are stored: `values`, rounded where that was asked for, and
        scales beside them. What is computed in 16 bits is told if it does not fit there.
        """
        stored: ParameterValues = self.low or self.full
        if self.scales:
            stored = ValuesWithScales(stored, self.scales)
        moved = self.folded.changed if self.folded else ()
        return RangeCheckedValues(stored, self.narrow, moved) if self.narrow else stored

    def rounded(self, source: ModelSource) -> ModelSource:
        """What a model is made from, with the weights rounded that are to be."""
        return precision.quantize_source(source, self.precision.plan)

    @property
    def told(self) -> Graph:
        """The whole graph as the manifest shows it: as the spec has it, or with the casts
        of the one that is lowered, which stand where loops were split.
        """
        narrow = self.computed(self.simplified)
        return self.graph if narrow is self.simplified else narrow

    def computed(self, graph: Graph) -> Graph:
        """A graph in the width that the target computes in."""
        return precision.convert_graph_dtype(graph, self.options.dtype, self.target)

    def computed_apart(self, derived: DerivedGraphs) -> DerivedGraphs:
        """The same of one that was taken apart."""
        return precision.convert_derived_dtype(derived, self.options.dtype, self.target)

    def with_reading(self, reading: PreprocessingConfig) -> "CompileJob":
        """The same job, its readings under the names that files have in the output."""
        return replace(self, reading=reading)


def report_compiled(job: CompileJob, written: WrittenModel, *remarks: str) -> CompileReport:
    """What is told of `written`; `remarks` come before those about weights."""
    warnings = job.values.warnings if isinstance(job.values, CheckpointBinding) else ()
    remarks = (
        *job.spec.remarks,
        *readings.reading_notes(job.model, job.folders),
        *job.remarks,
        *job.rounding.remarks,
        *([job.recipe] if job.recipe else []),
        *precision.quantization_notes(job.precision, job.folds, job.rounding),
        *precision.standalone_quantization_notes(job.precision.plan, job.target, job.options.parts),
        *remarks,
        *_remarks_of(written, job.options, job.spec),
        *check_memory(job.numbers, count_values(job.values)),
    )
    return CompileReport(
        path=written.path,
        files=written.files,
        model=job.model,
        remarks=remarks,
        warnings=(*job.spec.warnings, *warnings, *job.model.warnings),
        forms=tuple(job.forms),
    )


def job_input_files(job: CompileJob) -> list[Path]:
    """Every file that the model is made from, none of which it may be written over."""
    files = [
        *job.spec.library.modules,
        *readings.reading_files(job.spec.program, job.model, job.folders),
    ]
    if isinstance(job.values, CheckpointBinding):
        checkpoint = job.values.checkpoint
        files += [checkpoint.path, *(file.path for file in checkpoint.every_file)]
    files += adapter_config_files(job.options.adapter)
    if job.spec.config_file:
        config = Path(job.spec.config_file)
        # it may be named by itself, or by the folder of a checkpoint
        files += [config, config / "config.json"]
    if job.rounding.by.calibrate:
        files.append(Path(job.rounding.by.calibrate))
    return sorted(set(files))


@contextmanager
def open_job(spec: OpenedSpec, options: CompileOptions) -> Iterator[CompileJob]:
    """Elaborate, find the weights and the readings; the files of weights are let go of
    afterwards. Fails with a diagnostic of the stage that cannot go on.
    """
    weights = options.weights or spec.checkpoint
    folders = readings.tokenizer_directories(weights, spec.config_file)
    language = adapter_language(options.adapter)
    told = apply_generation_config(elaborate_spec(spec, options.graph), folders)
    model = told.model
    graph = add_taps(model.graph, options.taps)
    if options.defaults_inside and model.defaults:
        graph = pass_pipeline.inline_default_inputs(graph, model.defaults)
    sources = WeightSources(
        path=options.weights,
        init=options.init,
        missing=options.init_missing,
        adapter=options.adapter,
    )
    with closing(load_parameter_values(spec, graph, sources)) as values:
        # rounded weights have an order of their own
        if not merge_quantize_options(spec.program, options.precision).wish:
            graph, values = keep_stored_order(graph, values)
        yield CompileJob(
            spec=spec,
            options=options,
            model=model,
            graph=graph,
            values=values,
            folders=folders,
            reading=with_task(
                readings.build_record(spec.program, model, folders, language),
                spec.program,
                model,
                spec.reader.raw,
                readings.tokenizer_directories(*map(str, folders), spec.repository),
            ),
            remarks=told.remarks,
        )


def build_manifest(
    job: CompileJob,
    graph: Graph,
    emitted: EmittedModel,
    *,
    whole: bool = True,
    sources: Mapping[str, str] | None = None,
    decodes: Mapping[str, object] | None = None,
    scoring: Graph | None = None,
) -> Manifest:
    """What a model of `job` says about itself; `graph` is what it computes.

    A graph that is not `whole` was derived: it has inputs of its own, which nobody reads
    from a picture or a text, and generates nothing alone. A model that `decodes` by
    itself shows of the spec no more than its inputs, in which no default is inside, and
    no attention of it can be looked at; `scoring` is the graph that `verify` decodes.
    """
    model, described = job.model, scoring or graph
    job.forms.extend(precision.describe_attention_forms(graph.name, emitted))
    # A file that decodes computes them itself in any case, and says nothing of them.
    inside = job.options.defaults_inside and decodes is None
    return Manifest(
        name=model.name,
        doc=model.doc,
        graph=graph,
        defaults=model.defaults if whole and not inside else None,
        reading=job.reading if whole else PreprocessingConfig(),
        config=model.config,
        generation=vars(model.generation) if whole and model.generation else None,
        streaming=model.streaming if whole else None,
        sources=sources or {},
        weights=weight_source_facts(
            job.values, job.options.init, emitted.beside, contents=job.options.hash_full
        ),
        stored=_find_stored(job, described, emitted),
        precision=_precision_of(job, described, emitted),
        target=job.target.name,
        opset=job.opset,
        attentions=emitted.attentions if decodes is None else (),
        decodes=decodes,
        scoring=scoring,
    )


def _find_stored(job: CompileJob, graph: Graph, emitted: EmittedModel) -> dict[str, str]:
    """Return the initializer of each parameter. A parameter of which the model reads only
    the length (an axis of a decoded graph) has none.
    """
    named = {n: stored_initializer(job, n) for n in graph.parameters}
    return {n: emitted.held[i] for n, i in named.items() if i in emitted.held}


def stored_initializer(job: CompileJob, name: str) -> str:
    """What holds the numbers of a parameter: itself, or its whole numbers."""
    form = job.precision.plan.get(name)
    return form.numbers(name) if form else name


def _precision_of(job: CompileJob, graph: Graph, emitted: EmittedModel) -> dict[str, object]:
    """What the manifest says of rounded weights; nothing where there are none."""
    if job.low is None:
        return {}
    kept = job.precision.kept
    return precision.precision_facts(graph, job.low, kept, emitted, job.recipe)


def _remarks_of(
    written: WrittenModel, options: CompileOptions, spec: OpenedSpec
) -> tuple[str, ...]:
    """What became of the weights, where there was a choice."""
    if linked := len(written.plan.linked):
        return (
            f"{linked} weights stay in their own file, which the model refers to: "
            "keep it beside the model",
        )
    reasons = sorted(set(written.plan.reasons.values()))
    # who says where weights go, or draws them, does not wonder where they went
    named = options.weights or spec.checkpoint
    if named and reasons and not options.weights_as:
        return (f"weights were copied: {reasons[0]}",)
    return ()
