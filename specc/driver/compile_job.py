"""State of one compile: the spec, the options, and what is inferred before lowering."""

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
"""How weights are stored, by value of `weights_as`."""


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of `compile`.

    The parameters come from `weights`, the seed `init`, or the spec's own file; a missing
    head is initialized from the seed `init_missing`, and the `adapter` directory is merged.
    `dtype` is the storage type of float32 matrices, `f16`, `bf16` or `f32`; empty keeps
    that of the checkpoint. `weights_as` is `link`, `copy`, `inline`, or empty for the best.
    `parts` are the graphs of a package (`score`, `encode`, `step`, `generate`), `names` the
    export profile (`specc.driver.profiles`), `settings` the generation settings of
    `generate` (`specc.decode.generation_settings`). `precision` overrides the spec's
    `quantize` section; `for_quantizers` prepares the model for external quantizers.
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
    """A spec, the options, and what follows from both.

    `model` is the elaborated spec; `graph` is its graph with the requested taps and inlined
    defaults, as the manifest shows it. `values` are its parameters. `folders` are the
    directories searched for a tokenizer, `reading` the preprocessing of inputs and display of
    outputs, `remarks` notes from files next to the weights. `forms` is filled with how the
    backend lowers each attention. `ready` are int4 weights already quantized on calibration
    data, `recipe` describes that; `scales` are KV cache scales, by parameter name.
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
        """The compiler backend. Raise E0801 if it cannot be loaded."""
        return backend.load_compiler()

    @cached_property
    def target(self) -> Target:
        """The target runtime. Raise E0822 for an unknown name, E0753 if other quantizers
        cannot read its models.
        """
        target = self.compiler.get_target(self.options.target)
        if self.options.for_quantizers:
            return precision.check_unquantized_export(target, self.rounding)
        return target

    @property
    def opset(self) -> int:
        """The requested opset, or the default of the backend."""
        return self.options.opset or self.compiler.DEFAULT_OPSET

    @property
    def weights_as(self) -> How:
        """How the weights are stored."""
        return HOW.get(self.options.weights_as, "copy")

    @property
    def sources(self) -> dict[str, str]:
        """The source text of each spec file, by path."""
        modules = self.spec.library.modules.values()
        return {m.path: m.file.span.source.text for m in modules if m.file.span}

    @cached_property
    def rounding(self) -> QuantizeRequest:
        """The quantization that the spec and the options request."""
        return merge_quantize_options(self.spec.program, self.options.precision)

    @cached_property
    def simplified(self) -> Graph:
        """The simplified graph that targets lower, not yet quantized."""
        return pass_pipeline.simplify_graph(self.graph, fused=self.rounding.wish is None)

    @cached_property
    def precision(self) -> QuantizationDecision:
        """The quantization plan. Raise E0850 to E0853."""
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
        """The norms to fold into linear layers before quantization, if requested."""
        if not self.rounding.fold:
            return ()
        return find_norm_folds(self.simplified, find_ties(self.values), self.precision.plan)

    @cached_property
    def full(self) -> ParameterValues:
        """The parameters before quantization."""
        return self.folded or self.values

    @cached_property
    def folded(self) -> FoldedValues | None:
        """The parameters with norms folded; None if none is."""
        return FoldedValues(self.values, self.folds) if self.folds else None

    @cached_property
    def low(self) -> QuantizedValues | None:
        """The parameters with quantized weights; None if none is quantized."""
        plan = self.precision.plan
        return QuantizedValues(self.full, plan, self.ready) if plan else None

    @cached_property
    def narrow(self) -> Mapping[str, NarrowDtype]:
        """Parameters stored with more bits than they are computed with."""
        plan, dtype = self.precision.plan, self.options.dtype
        return precision.half_precision_parameters(self.simplified, plan, dtype, self.target)

    @property
    def numbers(self) -> ParameterValues:
        """The parameters as stored: `values`, quantized if requested, and KV cache scales.
        Values computed in 16 bits are checked to be in range.
        """
        stored: ParameterValues = self.low or self.full
        if self.scales:
            stored = ValuesWithScales(stored, self.scales)
        moved = self.folded.changed if self.folded else ()
        return RangeCheckedValues(stored, self.narrow, moved) if self.narrow else stored

    def rounded(self, source: ModelSource) -> ModelSource:
        """Return the source of a model with the planned weights quantized."""
        return precision.quantize_source(source, self.precision.plan)

    @property
    def told(self) -> Graph:
        """The full graph for the manifest: that of the spec, or the lowered one if that has
        casts to 16 bits, whose place depends on how loops were split.
        """
        narrow = self.computed(self.simplified)
        return self.graph if narrow is self.simplified else narrow

    def computed(self, graph: Graph) -> Graph:
        """Return the graph in the compute dtype of the target."""
        return precision.convert_graph_dtype(graph, self.options.dtype, self.target)

    def computed_apart(self, derived: DerivedGraphs) -> DerivedGraphs:
        """Return derived graphs in the compute dtype of the target."""
        return precision.convert_derived_dtype(derived, self.options.dtype, self.target)

    def with_reading(self, reading: PreprocessingConfig) -> "CompileJob":
        """Return the job with file names of readings as in the output."""
        return replace(self, reading=reading)


def report_compiled(job: CompileJob, written: WrittenModel, *remarks: str) -> CompileReport:
    """Return the report of `written`; `remarks` precede those about weights."""
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
        *_storage_remarks(written, job.options, job.spec),
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
    """Return every input file of the compile; outputs must not overwrite them."""
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
        # the file itself or a checkpoint directory may be named
        files += [config, config / "config.json"]
    if job.rounding.by.data:
        files.append(Path(job.rounding.by.data))
    return sorted(set(files))


@contextmanager
def open_job(spec: OpenedSpec, options: CompileOptions) -> Iterator[CompileJob]:
    """Elaborate the spec, open its weights and resolve its readings; weight files are closed
    on exit. Raise Failed with the diagnostics of the first stage that fails.
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
        # quantized weights have a layout of their own
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
    """Return the manifest of a model of `job`; `graph` is what it computes.

    A graph that is not `whole` is derived: its inputs have no preprocessing, and it does
    not generate by itself. The manifest of a self-contained generator (`decodes`) has the
    spec's inputs, no inlined defaults and no attentions; `scoring` is the graph that
    `verify` decodes with.
    """
    model, described = job.model, scoring or graph
    job.forms.extend(precision.describe_attention_forms(graph.name, emitted))
    # a generator computes its defaults in any case, and does not list them
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
        precision=_quantization_facts(job, described, emitted),
        target=job.target.name,
        opset=job.opset,
        attentions=emitted.attentions if decodes is None else (),
        decodes=decodes,
        scoring=scoring,
    )


def _find_stored(job: CompileJob, graph: Graph, emitted: EmittedModel) -> dict[str, str]:
    """Return the initializer of each parameter; none for one whose shape alone is used (an
    axis of a decoded graph).
    """
    named = {n: stored_initializer(job, n) for n in graph.parameters}
    return {n: emitted.held[i] for n, i in named.items() if i in emitted.held}


def stored_initializer(job: CompileJob, name: str) -> str:
    """Return the initializer of a parameter: itself, or its integers if quantized."""
    form = job.precision.plan.get(name)
    return form.numbers(name) if form else name


def _quantization_facts(job: CompileJob, graph: Graph, emitted: EmittedModel) -> dict[str, object]:
    """Return the manifest's facts about quantized weights; empty if there are none."""
    if job.low is None:
        return {}
    kept = job.precision.kept
    return precision.precision_facts(graph, job.low, kept, emitted, job.recipe)


def _storage_remarks(
    written: WrittenModel, options: CompileOptions, spec: OpenedSpec
) -> tuple[str, ...]:
    """Return a remark on where the weights are stored, if that was open."""
    if linked := len(written.plan.linked):
        return (
            f"{linked} weights are external data in their original file: "
            "keep that file next to the model",
        )
    reasons = sorted(set(written.plan.reasons.values()))
    # no remark if the user chose the storage, or the weights are random
    named = options.weights or spec.checkpoint
    if named and reasons and not options.weights_as:
        return (f"weights were copied: {reasons[0]}",)
    return ()
