"""The state of one compilation: the opened spec, its weights, the target and the graph to lower."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from specc import backend
from specc.backend import CompilerBackend
from specc.decode.generation_settings import GenerationSettings, merge_caller_settings
from specc.diagnostics.diagnostic import raise_error
from specc.driver import preprocessing_section
from specc.driver.compile_options import CompileOptions
from specc.driver.quantization_and_half_precision import (
    choose_checkpoint_weight_formats,
    make_weight_range_checks,
    plan_quantization,
    quantize_model_graphs,
    restrict_target_operators,
)
from specc.driver.quantize_section import QuantizeRequest, merge_quantize_options
from specc.driver.spec_check_and_elaboration import elaborate_spec, iterate_sibling_graphs
from specc.driver.spec_loader import LoadedSpec
from specc.driver.taps import add_intermediate_outputs
from specc.driver.weight_sources import keep_checkpoint_weight_layout, load_parameters
from specc.huggingface.adapter_config import (
    find_embedded_adapter,
    get_adapter_language,
    list_adapter_config_files,
)
from specc.huggingface.generation_config import apply_generation_config
from specc.huggingface.model_task import add_pipeline_task
from specc.ir.array import Arrays
from specc.ir.graph import Graph
from specc.ir.model_definition import DerivedGraphs, GenerateSection, ModelDefinition, ModelSource
from specc.ir.ops.quantized import FoldedNorm
from specc.ir.target import Target
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.transforms import pass_pipeline
from specc.transforms.mixed_precision import HalfDtype
from specc.transforms.quantization_plan import QuantizationDecision
from specc.transforms.transposed_weights_and_norm_folding import find_foldable_norms
from specc.weights.checkpoint_weight_streaming import CheckpointWeights
from specc.weights.norm_folding_and_weight_range_checks import (
    NormFoldedWeights,
    RangeCheckedWeights,
    WeightRangeCheck,
)
from specc.weights.parameter_sources import ParameterSource, RandomInitWeights, find_tied_parameters
from specc.weights.quantized_checkpoint import (
    find_copyable_quantized_weights,
    get_stored_weight_scales,
)
from specc.weights.quantized_weights import KVCacheScaleOverrides, QuantizedWeights


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """A spec with its opened weights, and the options of a compilation.

    `model` is the elaborated spec. `graph` is the graph that the manifest stores: the model's graph
    with taps, and with the defaults of its inputs inlined. `parameter_source` provides the
    parameters. `directories` lists the directories to search for a tokenizer. `preprocessing`
    describes the preprocessing of inputs and the postprocessing of outputs. `remarks` contains
    notes about files next to the weights. `quantize` is the quantization request, merged from the
    spec and the options. `attention_lowerings` records how the backend lowers each attention layer.
    """

    spec: LoadedSpec
    options: CompileOptions
    model: ModelDefinition
    graph: Graph
    parameter_source: CheckpointWeights | RandomInitWeights
    directories: tuple[Path, ...]
    preprocessing: PreprocessingConfig
    compiler: CompilerBackend
    target: Target
    quantize: QuantizeRequest
    remarks: tuple[str, ...] = ()
    attention_lowerings: list[str] = field(default_factory=list)

    @property
    def half_dtype(self) -> HalfDtype | None:
        """Return the 16-bit dtype set by `--dtype`, or None if the target does not support it."""
        half_dtypes: tuple[HalfDtype, ...] = get_args(HalfDtype)
        supported = {self.options.dtype} & {*self.target.compute_dtypes}
        return next((dtype for dtype in half_dtypes if dtype in supported), None)

    @property
    def opset(self) -> int:
        """The requested ONNX opset version, or the default opset of the backend."""
        return self.options.opset or self.compiler.get_default_opset()

    @property
    def embedded_adapter(self) -> str:
        """Return the checkpoint directory if it contains a LoRA adapter, otherwise ""."""
        return find_embedded_adapter(self.options.weights or self.spec.checkpoint)

    @property
    def spec_sources(self) -> dict[str, str]:
        """Return the source text of each spec file of the model, keyed by file path."""
        modules = self.spec.library.modules.values()
        return {m.path: m.file.span.source.text for m in modules if m.file.span}


@contextmanager
def open_compile_job(spec: LoadedSpec, options: CompileOptions) -> Iterator[CompileJob]:
    """A context manager that elaborates the spec, chooses the target, opens the weights and builds
    the preprocessing config. Weight files are closed on exit. Raise SpeccError with the diagnostics
    of the first stage that fails.
    """
    weights = options.weights or spec.checkpoint
    directories = preprocessing_section.find_tokenizer_directories(weights, spec.config_file)
    language = get_adapter_language(options.adapter)
    configured = apply_generation_config(elaborate_spec(spec, options.graph), directories)
    model = configured.model_definition
    graph = add_intermediate_outputs(model.graph, options.taps)
    if options.inline_defaults and model.defaults:
        graph = pass_pipeline.inline_default_inputs(graph, model.defaults)
    choices = _choose_target(spec, options)
    with closing(load_parameters(spec, graph, options)) as parameter_source:
        # weights can stay in the checkpoint only if they are unquantized and keep the checkpoint's
        # layout
        if not choices["quantize"].weight_options:
            graph, parameter_source = keep_checkpoint_weight_layout(graph, parameter_source)
        yield CompileJob(
            spec=spec,
            options=options,
            model=model,
            graph=graph,
            parameter_source=parameter_source,
            directories=directories,
            preprocessing=add_pipeline_task(
                preprocessing_section.build_preprocessing_config(
                    spec.program, model, directories, language
                ),
                spec.program,
                model,
                spec.config_options.config_file,
                preprocessing_section.find_tokenizer_directories(
                    *map(str, directories), spec.repository
                ),
            ),
            remarks=configured.remarks,
            **choices,
        )


def _choose_target(spec: LoadedSpec, options: CompileOptions) -> dict[str, Any]:
    """Return the backend, the target and the quantization request as keyword arguments of
    `CompileJob`.

    Raise E0801 if the backend cannot be loaded, E0822 if the target is unknown, E0753 if external
    quantizers cannot read models of the target, and the errors of the spec's `quantize` section.
    """
    quantize = merge_quantize_options(spec.program, options.precision)
    compiler = backend.load_compiler()
    target = compiler.get_target(options.target)
    if options.for_external_quantization:
        target = restrict_target_operators(target, quantize)
    return {"compiler": compiler, "target": target, "quantize": quantize}


def copy_job_with_options(job: CompileJob, options: CompileOptions) -> CompileJob:
    """Return a copy of `job` with different options that shares the model and the weights."""
    return replace(
        job, options=options, attention_lowerings=[], **_choose_target(job.spec, options)
    )


def list_job_input_files(job: CompileJob) -> list[Path]:
    """Return the input files of the compilation, so that no output file overwrites them."""
    files = [
        *job.spec.library.modules,
        *preprocessing_section.list_preprocessing_files(
            job.spec.program, job.model, job.directories
        ),
    ]
    if isinstance(job.parameter_source, CheckpointWeights):
        checkpoint = job.parameter_source.checkpoint
        files += [checkpoint.path, *(file.path for file in checkpoint.all_files)]
    files += list_adapter_config_files(job.options.adapter or job.embedded_adapter)
    if job.spec.config_file:
        config = Path(job.spec.config_file)
        # `options.weights` may be a file or a checkpoint directory
        files += [config, config / "config.json"]
    if job.quantize.calibration.data_file:
        files.append(Path(job.quantize.calibration.data_file))
    return sorted(set(files))


@dataclass(frozen=True, kw_only=True)
class LoweringJob(CompileJob):
    """A compile job whose graphs are ready for lowering.

    `simplified_graph` is the graph after simplification and before quantization.
    `quantization_decision` lists the weights to quantize. `norm_folds` lists the norm weights that
    are folded into linear layers before quantization. `unquantized_weights` contains the parameters
    before quantization. `quantized` contains the quantized parameters, or is None if no parameter
    is quantized. `range_checks` maps parameters that are stored in float32 to their 16-bit compute
    dtypes. Calibration sets `int4_method` (the quantization method of int4 weights) and
    `kv_cache_scales` (the scales of KV caches by parameter name).
    """

    simplified_graph: Graph
    quantization_decision: QuantizationDecision
    norm_folds: tuple[FoldedNorm, ...]
    unquantized_weights: ParameterSource
    quantized: QuantizedWeights | None
    range_checks: Mapping[str, WeightRangeCheck]
    int4_method: str = ""
    kv_cache_scales: Arrays = field(default_factory=dict)

    @property
    def stored_parameters(self) -> ParameterSource:
        """The parameter values to store, including KV cache scales. The values are quantized if
        quantization is requested. Parameters that are converted to 16 bits are checked for
        overflow.
        """
        base = self.unquantized_weights
        values: ParameterSource = self.quantized or base
        if self.kv_cache_scales:
            values = KVCacheScaleOverrides(values, self.kv_cache_scales)
        if not self.range_checks:
            return values
        folded_parameters = base.parameter_folds if isinstance(base, NormFoldedWeights) else ()
        return RangeCheckedWeights(values, self.range_checks, folded_parameters)

    @property
    def manifest_graph(self) -> Graph:
        """The full-forward graph for the manifest, converted to 16 bits if this is requested."""
        converted = self.convert_dtype(self.simplified_graph)
        return self.graph if converted is self.simplified_graph else converted

    def convert_dtype(self, graph: Graph) -> Graph:
        """Convert a graph to the 16-bit compute dtype `half_dtype`, unless the dtype is None."""
        half = self.half_dtype
        return pass_pipeline.convert_to_half_precision(graph, half) if half else graph

    def convert_derived_graphs_dtype(self, derived_graphs: DerivedGraphs) -> DerivedGraphs:
        """Convert derived graphs and their KV caches to `half_dtype`, unless the dtype is None."""
        half = self.half_dtype
        return (
            pass_pipeline.convert_derived_graphs_to_half_precision(derived_graphs, half)
            if half
            else derived_graphs
        )

    def quantize_model_graphs(self, source: ModelSource) -> ModelSource:
        """Return `source` with the weights of `quantization_decision` quantized in all graphs."""
        return quantize_model_graphs(source, self.quantization_decision.plan)


STORED_RECIPE = "int4 weights: codes and scales are those of the checkpoint"


def prepare_lowering(job: CompileJob) -> LoweringJob:
    """Simplify the graph, and choose the storage and compute dtypes of its weights.

    Raise E0850 to E0853 or E0963 if the requested quantization is not possible.
    """
    weight_options = job.quantize.weight_options
    # if the target has no quantized operators, the weights are dequantized
    keeps_stored_codes = (
        weight_options is None
        and not job.quantize.dequantize_checkpoint
        and job.target.quantized_matmul_mode
    )
    source = job.parameter_source
    packed_weight_formats = find_copyable_quantized_weights(source) if keeps_stored_codes else {}
    graph = pass_pipeline.simplify_graph(
        job.graph, fuse_loops=weight_options is None and not packed_weight_formats
    )
    ties = find_tied_parameters(source)
    if packed_weight_formats:
        decision = choose_checkpoint_weight_formats(graph, ties, packed_weight_formats)
    else:
        decision = plan_quantization(
            graph,
            job.quantize,
            job.target,
            job.opset,
            ties,
            lambda: iterate_sibling_graphs(job.spec, job.graph.name),
        )
    plan = decision.plan
    scales = get_stored_weight_scales(source) if plan and packed_weight_formats else None
    folds = find_foldable_norms(graph, ties, plan) if job.quantize.fold_norms else ()
    unquantized = NormFoldedWeights(source, folds) if folds else source
    return LoweringJob(
        **{f.name: getattr(job, f.name) for f in fields(CompileJob)},
        simplified_graph=graph,
        quantization_decision=decision,
        norm_folds=folds,
        unquantized_weights=unquantized,
        quantized=QuantizedWeights(unquantized, plan, stored_scales=scales) if plan else None,
        int4_method=STORED_RECIPE if scales is not None else "",
        range_checks=make_weight_range_checks(graph, plan, job.half_dtype),
    )


def get_generate_section(model: ModelDefinition) -> GenerateSection:
    """Return the `generate` section of a model. Raise E0701 if the spec has no `generate` section,
    and E0977 for a streaming model.
    """
    if model.generation is None and model.streaming is not None:
        raise_error(
            "E0977",
            f"`{model.name}` is a streaming model and does not generate sequences",
            notes=[f"`{model.streaming.sequence_input}` is an input stream, not generated"],
            helps=["compile it with `--graphs score,step`"],
        )
    if model.generation is None:
        raise_error(
            "E0701",
            f"`{model.name}` has no `generate` section",
            notes=["only `--graphs score` can be compiled"],
            helps=[
                "add `generate NAME of INPUT from RESULT { … }` to the spec",
                "or select a graph with a `generate` section: --graph NAME",
            ],
        )
    return model.generation


def merge_generation_settings(job: CompileJob) -> GenerationSettings:
    """Return the spec's generation settings, overridden by the settings in the options."""
    return merge_caller_settings(
        get_generate_section(job.model).settings, **job.options.generation_config
    )
