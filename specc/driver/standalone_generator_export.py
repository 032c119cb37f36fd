"""The source of a standalone generator: its graphs and decoding settings, with errors for settings
that cannot be exported.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields

from specc.analysis.causality import find_time_symbol
from specc.analysis.time_axis import find_padding_strides
from specc.artifact.generation_facts import convert_length_bounds_to_json
from specc.artifact.manifest import RECORDED_SETTINGS
from specc.decode.generation_settings import GenerationSettings, merge_settings
from specc.decode.settings_errors import VocabularySizes
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.driver.compile_job import CompileJob
from specc.driver.generation_graphs import (
    derive_graphs,
    find_other_length_bounds,
    find_position_limit,
    get_vocabulary_size,
    require_generation,
)
from specc.ir.graph import Graph
from specc.ir.model import (
    DecodingConfig,
    DerivedGraphs,
    GenerateSection,
    SelfDecodingGraph,
    resolve_absent_inputs,
)
from specc.transforms import pass_pipeline


def get_decode_settings(job: CompileJob, source: SelfDecodingGraph) -> dict[str, object]:
    """Return the metadata of a self-contained generator: its settings, maximum length,
    vocabulary size, and whether an empty prompt is allowed (`begins`).
    """
    generation, graph = require_generation(job.model), source.graph
    limit = find_position_limit(job, graph)
    # tuples become lists, because JSON has no tuples
    recorded = {
        RECORDED_SETTINGS[name]: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(merge_job_settings(job)).items()
        if name in RECORDED_SETTINGS
    }
    return {
        **recorded,
        "context": limit.max_length if limit else None,
        "vocabulary": graph.outputs[generation.logits_output].type.shape[-1].number,
        "bounds": convert_length_bounds_to_json(find_other_length_bounds(job, graph)),
        "strides": {**find_padding_strides(graph)},
        "begins": bool(source.derived.initial_logits_output),
    }


def build_generator_source(
    job: CompileJob, graph: Graph, derived: DerivedGraphs | None = None
) -> SelfDecodingGraph:
    """Return the source of a self-contained generator; `derived` are the derived graphs of
    `graph` if they exist already.
    """
    generation = require_generation(job.model)
    full_graph = _inline_defaults(job, graph, generation)
    if derived is None or full_graph is not graph:
        derived = derive_graphs(full_graph, generation, defaults=job.model.defaults)
    chosen = merge_job_settings(job)
    check_exportable_settings(chosen)
    _check_token_settings(full_graph, generation, job.options.generation_config)
    setting_values, names = asdict(chosen), {f.name for f in fields(DecodingConfig)}
    decoding = DecodingConfig(
        logits_output=generation.logits_output,
        start_token_ids=chosen.start,
        stop_token_ids=chosen.stop,
        pad_token_id=chosen.pad,
        first_token_choices=chosen.begin,
        has_repetition_penalty=chosen.repetition_penalty != 1,
        **{name: value for name, value in setting_values.items() if name in names},
    )
    return SelfDecodingGraph(full_graph, derived, decoding, job.model.defaults)


UNSUPPORTED_SETTINGS = ("typical_p", "epsilon_cutoff", "eta_cutoff")
"""Settings that the `generate` graph does not support because they require sorting the
distribution."""


def check_exportable_settings(settings: GenerationSettings) -> None:
    """Raise E0733 for settings in `UNSUPPORTED_SETTINGS`."""
    requested, default_values = asdict(settings), asdict(GenerationSettings())
    for name in UNSUPPORTED_SETTINGS:
        if requested[name] != default_values[name]:
            raise_error(
                "E0733",
                f"`{name}` is not supported by the `generate` graph",
                helps=[
                    "compile a package instead: `--graphs step`",
                    f"or leave `{name}` out of the settings",
                ],
            )


def _check_token_settings(
    graph: Graph, generation: GenerateSection, settings: Mapping[str, object]
) -> None:
    """Raise E0703 unless tokens are sampled from logits. Raise the error of a setting that names a
    token outside the vocabulary.
    """
    size = get_vocabulary_size(graph, generation)
    below = graph.input_facts[generation.sequence_input].upper_bound
    vocabulary = VocabularySizes(below.number if below is not None else None, size)
    for word, value in settings.items():
        if fault := vocabulary.check_token_id(word, value):
            raise Failed(fault)


def merge_job_settings(job: CompileJob) -> GenerationSettings:
    """Return the spec's settings, overridden by the settings in the options."""
    return merge_settings(require_generation(job.model).settings, **job.options.generation_config)


def _inline_defaults(job: CompileJob, graph: Graph, generation: GenerateSection) -> Graph:
    """Return the graph with the defaults of inputs other than masks inlined, or `graph` itself if
    there are none.
    """
    source, defaults = job.graph, job.model.defaults
    if defaults is None:
        return graph
    time_symbol = find_time_symbol(source, generation.sequence_input)
    inlined = []
    for name in defaults.outputs:
        facts = source.input_facts.get(name)
        if facts is None or name == generation.sequence_input or facts.padding_side:
            continue
        # e.g. position ids: each new token needs a value that only the default computes
        if any(d.name == time_symbol for d in facts.type.shape):
            inlined.append(name)
    if not inlined:
        return graph
    return pass_pipeline.simplify_graph(
        pass_pipeline.inline_default_inputs(source, resolve_absent_inputs(defaults, inlined)),
        fuses_loops=job.quantize.weight_request is None,
    )
