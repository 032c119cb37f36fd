"""The opened spec of one compile: its sized model, its weights, and the chosen target."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from specc import backend
from specc.backend import CompilerBackend, How
from specc.driver import precision
from specc.driver import reading_section as readings
from specc.driver.compile_options import CompileOptions
from specc.driver.quantize_section import QuantizeRequest, merge_quantize_options
from specc.driver.spec_loader import OpenedSpec, elaborate_spec
from specc.driver.taps import add_taps
from specc.driver.weight_sources import WeightSources, keep_stored_order, load_parameter_values
from specc.huggingface.adapter_config import adapter_config_files, adapter_language
from specc.huggingface.generation_config import apply_generation_config
from specc.huggingface.model_task import with_task
from specc.ir.graph import Graph
from specc.ir.model import ModelDefinition
from specc.ir.target import Target
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.transforms import pass_pipeline
from specc.weights.parameter_values import CheckpointBinding, SeededValues

HOW: Mapping[str, How] = {"": "auto", "auto": "auto", "link": "link", "inline": "inline"}
"""How weights are stored, by value of `weights_as`."""


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """A spec with its weights open, and the options of the compile.

    `model` is the elaborated spec; `graph` is its graph with the requested taps and inlined
    defaults, as the manifest shows it. `values` are its parameters. `folders` are the
    directories searched for a tokenizer, `reading` the preprocessing of inputs and display of
    outputs, `remarks` notes from files next to the weights. `quantize` is what the spec and
    the options request. `forms` is filled with how the backend lowers each attention.
    """

    spec: OpenedSpec
    options: CompileOptions
    model: ModelDefinition
    graph: Graph
    values: CheckpointBinding | SeededValues
    folders: tuple[Path, ...]
    reading: PreprocessingConfig
    compiler: CompilerBackend
    target: Target
    quantize: QuantizeRequest
    remarks: tuple[str, ...] = ()
    forms: list[str] = field(default_factory=list)

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


@contextmanager
def open_job(spec: OpenedSpec, options: CompileOptions) -> Iterator[CompileJob]:
    """Elaborate the spec, choose the target, open the weights and resolve the readings; weight
    files are closed on exit. Raise Failed with the diagnostics of the first stage that fails.
    """
    weights = options.weights or spec.checkpoint
    folders = readings.tokenizer_directories(weights, spec.config_file)
    language = adapter_language(options.adapter)
    configured = apply_generation_config(elaborate_spec(spec, options.graph), folders)
    model = configured.model
    graph = add_taps(model.graph, options.taps)
    if options.defaults_inside and model.defaults:
        graph = pass_pipeline.inline_default_inputs(graph, model.defaults)
    choices = _choose_target(spec, options)
    sources = WeightSources(
        path=options.weights,
        init=options.init,
        missing=options.init_missing,
        adapter=options.adapter,
    )
    with closing(load_parameter_values(spec, graph, sources)) as values:
        # quantized weights have a layout of their own
        if not choices["quantize"].wish:
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
            remarks=configured.remarks,
            **choices,
        )


def _choose_target(spec: OpenedSpec, options: CompileOptions) -> dict[str, Any]:
    """Return the backend, the target and the quantization request of a compile.

    Raise E0801 if the backend cannot be loaded, E0822 for an unknown target, E0753 if other
    quantizers cannot read its models, and the errors of the `quantize` section.
    """
    quantize = merge_quantize_options(spec.program, options.precision)
    compiler = backend.load_compiler()
    target = compiler.get_target(options.target)
    if options.for_quantizers:
        target = precision.check_unquantized_export(target, quantize)
    return {"compiler": compiler, "target": target, "quantize": quantize}


def reopen_job(job: CompileJob, options: CompileOptions) -> CompileJob:
    """Return a job for other options over the same model and weights."""
    same = {f.name: getattr(job, f.name) for f in fields(CompileJob)}
    chosen = _choose_target(job.spec, options)
    return CompileJob(**{**same, **chosen, "options": options, "forms": []})


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
    if job.quantize.by.data:
        files.append(Path(job.quantize.by.data))
    return sorted(set(files))
