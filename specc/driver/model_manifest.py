"""Build the manifest that is stored in a compiled model's metadata."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby

from specc.artifact.manifest import DOC_METADATA_KEY, METADATA_KEY, Manifest
from specc.backend import EmittedModel, MetadataBuilder
from specc.driver.compile_job import LoweringJob
from specc.driver.generation_graphs import build_input_signature, get_decode_settings
from specc.driver.weight_sources import build_weight_manifest
from specc.ir.graph import Graph, select_entries
from specc.ir.model_definition import StandaloneGeneratorSource
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.weights.quantized_weights import QuantizedWeights


def describe_graph(
    job: LoweringJob, graph: Graph, *, is_full_forward: bool, sources: bool = False
) -> MetadataBuilder:
    """Return the metadata of a graph. If `is_full_forward` is false, the graph is a derived graph,
    whose inputs have no preprocessing and which cannot generate tokens by itself. `sources` is true
    for a single model file, which stores the spec sources. A package stores them in its index.
    """
    # list spec files whose source text is unknown by name
    files = {module.path: "" for module in job.spec.library.modules.values()} | job.spec_sources
    return partial(
        build_manifest,
        job,
        graph,
        is_full_forward=is_full_forward,
        sources=files if sources else {},
    )


def make_generator_metadata_builder(
    job: LoweringJob, source: StandaloneGeneratorSource
) -> MetadataBuilder:
    """Return the metadata of a standalone generator."""
    signature, decode_settings = (
        build_input_signature(job, source.graph),
        get_decode_settings(job, source),
    )
    return partial(
        build_manifest, job, signature, decode_settings=decode_settings, scoring_graph=source.graph
    )


def build_manifest(
    job: LoweringJob,
    graph: Graph,
    emitted_model: EmittedModel,
    *,
    is_full_forward: bool = True,
    sources: Mapping[str, str] = {},
    decode_settings: Mapping[str, object] | None = None,
    scoring_graph: Graph | None = None,
) -> dict[str, str]:
    """Return the metadata entries, including the manifest, of the model that `job` compiles from
    `graph`.

    The manifest of a standalone generator (with `decode_settings`) lists the spec's inputs, without
    inlined defaults and attention metadata. `specc verify` decodes with `scoring_graph`.
    """
    model, declared_graph = job.model, scoring_graph or graph
    unquantized_reasons = job.quantization_decision.unquantized_reasons
    job.attention_forms.extend(describe_attention_lowerings(graph.name, emitted_model))
    # a standalone generator computes the defaults of its inputs, so the manifest lists no defaults
    inlines_defaults = job.options.inline_defaults and decode_settings is None
    manifest = Manifest(
        name=model.name,
        doc=model.doc,
        graph=graph,
        defaults=model.defaults if is_full_forward and not inlines_defaults else None,
        preprocessing=job.preprocessing if is_full_forward else PreprocessingConfig(),
        config=model.config,
        generation=model.generation.to_json() if is_full_forward and model.generation else None,
        streaming=model.streaming if is_full_forward else None,
        sources=sources,
        weights=build_weight_manifest(
            job.parameter_source,
            job.options.init,
            emitted_model.weight_files,
            hash_contents=job.options.hash == "full",
        ),
        initializers=_find_initializers(job, declared_graph, emitted_model),
        precision=build_weight_precision_metadata(
            declared_graph, job.quantized, unquantized_reasons, emitted_model, job.int4_method
        )
        if job.quantized
        else {},
        target=job.target.name,
        opset=job.opset,
        attentions=emitted_model.attention_weight_locations if decode_settings is None else (),
        decoding=decode_settings,
        scoring_graph=scoring_graph,
    )
    return {METADATA_KEY: manifest.dump(), DOC_METADATA_KEY: manifest.doc}


def _find_initializers(
    job: LoweringJob, graph: Graph, emitted_model: EmittedModel
) -> dict[str, str]:
    """Return the initializer of each parameter whose values the graph uses."""
    plan = job.quantization_decision.plan
    # the initializer of a quantized parameter contains its codes
    initializer_names = {
        n: plan[n].format_tensor_name(n, "codes") if n in plan else n for n in graph.parameters
    }
    return {
        n: emitted_model.initializer_names[i]
        for n, i in initializer_names.items()
        if i in emitted_model.initializer_names
    }


def build_weight_precision_metadata(
    graph: Graph,
    values: QuantizedWeights,
    kept_reasons: Mapping[str, str],
    emitted_model: EmittedModel,
    int4_method: str,
) -> dict[str, object]:
    """Return the manifest entry of each quantized weight, and the reason why each other weight is
    not quantized.

    `int4_method` is the quantization method of int4 weights. In an entry, `error` is a relative
    error, and `worst` is the maximum absolute error of an element.
    """
    entries: dict[str, object] = {}
    initializers = emitted_model.initializer_names
    for name in graph.parameters:
        format = values.plan.get(name)
        if format is None:
            continue
        quantized = values.streams[values.base.get_tied_source(name) or name]
        error = quantized.error
        entries[name] = {
            "bits": format.bits,
            "block": format.group_size,
            "layout": format.layout,
            "rounding": format.rounding,
            "turned": format.is_transposed,
            **{
                str(role): initializers[format.format_tensor_name(name, role)]
                for role in format.tensor_roles[1:]
            },
            "recipe": quantized.recipe,
            "error": float(f"{error.relative_error:.4g}"),
            "worst": float(f"{error.max_error:.4g}"),
        }
    return {
        "rounded": entries,
        "recipe": int4_method,
        "kept": select_entries(kept_reasons, graph.parameters),
    }


def describe_attention_lowerings(graph: str, emitted_model: EmittedModel) -> Iterator[str]:
    """Describe how attention is lowered, once per group of consecutive equal layers."""
    lowerings = (
        (a["how"], a["scope"]) for a in emitted_model.attention_weight_locations if "how" in a
    )
    for how, entries in groupby(lowerings, key=lambda lowering: lowering[0]):
        scopes = [scope for _, scope in entries]
        scope_texts = scopes if len(scopes) < 3 else [scopes[0], "…", scopes[-1]]
        yield f"{graph}: {' '.join(scope_texts)}: {how}"
