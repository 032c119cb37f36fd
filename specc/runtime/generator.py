"""Generate tokens and text with a generative model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specc.analysis.padding_loops import find_right_padded_masks
from specc.analysis.padding_offsets import find_padding_mask_strides
from specc.analysis.time_axis_prefix_and_chunks import find_time_axis
from specc.artifact.generation_metadata import (
    GenerationMetadata,
    check_encoder_outputs,
    compute_dim_upper_bound,
    parse_generation_metadata,
    parse_length_bounds,
)
from specc.decode.decode_loop import check_delay_pattern
from specc.decode.generation_settings import GenerationSettings, merge_caller_settings
from specc.decode.setting_names_and_limits import PREFILL_CHUNK_SIZE
from specc.decode.setting_validation import SUPPRESSING_SETTINGS
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr
from specc.io.json_io import get_exact_integer
from specc.ir.array import Arrays
from specc.ir.graph import Graph
from specc.ir.input_shapes_and_defaults import find_default_inputs
from specc.ir.model_definition import GenerateSection, has_token_logits
from specc.preprocessing.input_checks import LengthBound
from specc.runtime.decoder_sessions import (
    FullForwardSession,
    KVCacheSession,
    StepSessions,
    infer_dim_sizes,
)
from specc.runtime.generation_request import (
    GenerativeModel,
    check_context_length,
    check_generation_settings,
    compute_max_new_tokens,
    prepare_prompt_inputs,
)
from specc.runtime.generation_stream_and_results import GenerationStream
from specc.runtime.model_inputs import ModelInputs
from specc.runtime.model_package import ModelPackage
from specc.runtime.single_model_file import LoadedModel
from specc.runtime.standalone_generator import check_compiled_settings, select_compiled_settings


@dataclass(kw_only=True)
class Generator(GenerativeModel):
    """A generative model. `generate` starts the generation of sequences."""

    def __repr__(self) -> str:
        generation = self.generation
        return format_repr(
            f"generator {generation.name}: {generation.sequence_input} from "
            f"{generation.logits_output}"
        )

    def generate(self, *values: object, **settings: object) -> GenerationStream:
        """Start a generation from inputs, which are passed by name or in the order of the spec.

        An input is an array, a nested list, a string or a list of strings. Other keyword arguments
        are settings (docs/generation.md): `max_tokens`, `strategy`, `temperature`, `top_k`,
        `top_p`, `min_p`, `repetition_penalty`, `num_beams`, `length_penalty`, `early_stopping`,
        `num_return_sequences`, `stop`, `stop_strings`, `seed`, `log_probs`. Raise E09xx if an input
        is invalid, E0731 to E0733 if a setting is invalid, and E0943 if a prompt exceeds the
        context length.
        """
        names = [n for n in settings if n in self.input_signature.graph.inputs]
        inputs = {name: settings.pop(name) for name in names}
        unassigned = [name for name in self.input_signature.required_inputs if name not in inputs]
        if len(values) > len(unassigned):
            raise_error(
                "E0910",
                f"expected {len(unassigned)} inputs, got {len(values)}",
                helps=[f"inputs: {', '.join(unassigned)}"],
            )
        inputs |= dict(zip(unassigned, values, strict=False))
        return self.start_generation(inputs, self.resolve_settings(settings))

    def resolve_settings(self, caller_settings: Mapping[str, object]) -> GenerationSettings:
        """Merge and check settings. The settings of the caller take precedence over compiled
        settings, and compiled settings over the settings of the spec.
        """
        compiled_settings = select_compiled_settings(
            self.compiled_settings, caller_settings.get("strategy")
        )
        settings = merge_caller_settings(
            self.generation.settings, **{**compiled_settings, **caller_settings}
        )
        # The compiler has checked the stop tokens of the spec. Suppressed tokens of the spec are
        # not checked: published generation configs often contain tokens of related models.
        checked_names = ("stop", *SUPPRESSING_SETTINGS)
        self.vocabulary_sizes.check_token_id_settings(
            {name: caller_settings.get(name) for name in checked_names}
        )
        if self.standalone_session is not None:
            check_compiled_settings(settings, self.compiled_settings)
            if settings.log_probs and settings.strategy == "beam":
                raise_error(
                    "E0733",
                    "log-probabilities are not available from a standalone generator with "
                    "beam search",
                )
        return settings

    def start_generation(
        self, inputs: Mapping[str, object], settings: GenerationSettings
    ) -> GenerationStream:
        """Start a generation from inputs by name and from checked settings."""
        sequence_input = self.input_signature.sequence_input
        starts_without_prompt = sequence_input not in inputs and (
            bool(settings.start) or self.allows_empty_prompt
        )
        prepared = prepare_prompt_inputs(
            self.input_signature, inputs, settings.start, self.allows_empty_prompt
        )
        prompt = prepared[sequence_input]
        limited_generator = self._limit_context(prepared)
        check_context_length(limited_generator, prompt)
        check_generation_settings(self, settings)
        if not prompt.shape[1] and not self.allows_empty_prompt:
            raise_error(
                "E0912", f"`{sequence_input}` is empty, expected a prompt of at least one token"
            )
        prompt_length = prompt.shape[1] if len(prompt) else 0
        max_tokens = compute_max_new_tokens(limited_generator, settings, prompt_length)
        check_delay_pattern(settings, max_tokens)
        return GenerationStream(
            model=limited_generator,
            settings=settings,
            prepared_inputs=prepared,
            prompt=prompt,
            padding_mask=prepared.get(self.input_signature.mask_input),
            max_new_tokens=max_tokens,
            starts_without_prompt=starts_without_prompt,
        )

    def _limit_context(self, prepared: Arrays) -> "Generator":
        """Return a generator whose maximum context excludes the positions that other inputs (e.g.
        images) occupy in the position embedding.
        """
        time_symbol = str(self.input_signature.sequence_length)
        lengths = infer_dim_sizes(self.input_signature.graph, prepared)
        other_lengths = {name: length for name, length in lengths.items() if name != time_symbol}
        max_context = compute_dim_upper_bound(
            self.input_signature.length_bounds, time_symbol, other_lengths
        )
        if max_context is None or max_context == self.max_context:
            return self
        return replace(self, max_context=min(max_context, self.max_context or max_context))


def make_generator(model: LoadedModel) -> Generator | None:
    """Create the generator of a single-graph model. Return None if the model is not generative."""
    generation, graph = model.manifest.generate_section, model.manifest.graph
    if generation is None:
        return None
    sequence_value = graph.inputs.get(generation.sequence_input)
    if sequence_value is None:
        return None
    if model.manifest.decoding is not None:
        return _make_standalone_generator(model, generation, model.manifest.decoding)
    logits = graph.outputs.get(generation.logits_output)
    if logits is None or not has_token_logits(sequence_value.type, logits.type):
        return None

    def make_session(prepared: Arrays) -> FullForwardSession:
        return FullForwardSession(
            model.session, model.input_signature, generation.logits_output, prepared
        )

    bound = model.input_signature.length_bounds.get(
        sequence_value.shape[1].name or "", LengthBound()
    )
    return Generator(
        input_signature=model.input_signature,
        generation=generation,
        preprocessing=model.manifest.preprocessing,
        max_context=bound.high,
        random_init_metadata=model.manifest.random_init_metadata,
        create_decoder_session=make_session,
        logits_vocabulary_size=get_logits_vocabulary_size(graph, generation),
        allows_empty_prompt=_can_sample_first_token(graph, generation),
    )


def _make_standalone_generator(
    model: LoadedModel, generation: GenerateSection, decode_settings: Mapping[str, object]
) -> Generator:
    """Create the generator of a standalone model file, based on its metadata."""
    manifest, session, input_signature = model.manifest, model.raw_session, model.input_signature
    defaults = manifest.defaults.outputs if manifest.defaults else ()
    read = {generation.sequence_input, *session.inputs, *session.optional_inputs, *defaults}
    return Generator(
        input_signature=replace(
            input_signature,
            length_bounds={
                **input_signature.length_bounds,
                **parse_length_bounds(decode_settings.get("bounds")),
            },
            unused_inputs=_find_unused_inputs(manifest.graph, None, read),
            padding_strides=_parse_strides(decode_settings.get("strides")),
            right_padded_masks=find_right_padded_masks(manifest.scoring_graph or manifest.graph),
        ),
        generation=generation,
        preprocessing=manifest.preprocessing,
        max_context=get_exact_integer(decode_settings.get("context")),
        random_init_metadata=manifest.random_init_metadata,
        create_decoder_session=_raise_no_step_graph,
        standalone_session=session,
        compiled_settings=decode_settings,
        logits_vocabulary_size=get_exact_integer(decode_settings.get("vocabulary")),
        allows_empty_prompt=decode_settings.get("begins") is True,
    )


def _can_sample_first_token(graph: Graph, generation: GenerateSection) -> bool:
    """Return True if the full-forward graph returns logits for an empty prompt."""
    time_symbol = graph.inputs[generation.sequence_input].shape[1].name
    logits_type = graph.outputs[generation.logits_output].type
    # an input with a minimum size of 1 cannot be empty
    if time_symbol is None or graph.min_lengths.get(time_symbol) or logits_type.rank < 3:
        return False
    return find_time_axis(graph, time_symbol).has_prefix_positions(logits_type.shape[1])


def get_logits_vocabulary_size(graph: Graph, generation: GenerateSection) -> int | None:
    """Return the size of the logits' vocabulary axis, or None if the size is dynamic."""
    return graph.outputs[generation.logits_output].shape[-1].number


def _raise_no_step_graph(prepared: Arrays) -> FullForwardSession:
    raise AssertionError("a standalone generator has no step graph")


def open_step_sessions(package: ModelPackage, provider: str, threads: int) -> StepSessions:
    """Open the step graph and the encoder of a package. Raise E0831 or E0832 if the package is
    invalid, and E0921 or E0922 if the execution provider is not available.
    """
    role, path = package.resolve_graph_name("step"), str(package.path)
    graph = package.read_manifest(role).graph
    metadata = parse_generation_metadata(package.index.metadata, graph, path)
    step_session = package.open_session(role, provider=provider, threads=threads)
    encoder_session = None
    if "encode" in package.graph_names:
        encoder_session = package.open_session("encode", provider=provider, threads=threads)
    inputs = encoder_session.inputs if encoder_session else ()
    outputs = encoder_session.outputs if encoder_session else ()
    check_encoder_outputs(metadata, inputs, outputs, path)
    return StepSessions(
        metadata=metadata,
        input_signature=_build_step_inputs(metadata, graph, package),
        encoder_session=encoder_session,
        step_session=step_session,
        graph=graph,
    )


def open_generator(
    package: ModelPackage,
    provider: str = "cpu",
    threads: int = 0,
    prefill_chunk_size: int = PREFILL_CHUNK_SIZE,
) -> Generator:
    """Open the generator of a package. Raise the errors of `open_step_sessions`."""
    step_graphs = open_step_sessions(package, provider, threads)
    metadata, input_signature = step_graphs.metadata, step_graphs.input_signature

    def make_session(prepared: Arrays) -> KVCacheSession:
        return KVCacheSession(step_graphs, prepared, prefill_chunk_size)

    return Generator(
        input_signature=input_signature,
        generation=metadata.generation,
        preprocessing=input_signature.preprocessing,
        max_context=metadata.max_context,
        length_limiting_table=metadata.length_limiting_table,
        random_init_metadata=metadata.random_init_metadata,
        create_decoder_session=make_session,
        logits_vocabulary_size=get_logits_vocabulary_size(step_graphs.graph, metadata.generation),
        allows_empty_prompt=bool(metadata.first_token_logits),
        continuous_batching_metadata=metadata if metadata.allows_mixed_lengths else None,
    )


def _parse_strides(data: object) -> dict[str, int]:
    """Parse the strides of padding masks from JSON data. Invalid entries are dropped."""
    strides = data if isinstance(data, dict) else {}
    return {
        name: stride for name, stride in strides.items() if isinstance(stride, int) and stride > 1
    }


def _find_unused_inputs(
    graph: Graph, defaults: Graph | None, read_names: Iterable[str]
) -> frozenset[str]:
    """Return the inputs that are neither in `read_names` nor used by the default of an input in
    `read_names`.
    """
    pending, used_names = list(read_names), set[str]()
    while pending:
        name = pending.pop()
        if name not in used_names and defaults and name in defaults.outputs:
            pending += find_default_inputs(defaults, name)
        used_names.add(name)
    return frozenset(graph.inputs.keys() - used_names)


def _build_step_inputs(
    metadata: GenerationMetadata, step: Graph, package: ModelPackage
) -> ModelInputs:
    """Return the model inputs. The encoder and the step graph each use a subset of these inputs."""
    signature, sequence_input = metadata.signature, metadata.generation.sequence_input
    encode = package.read_manifest("encode").graph if "encode" in package.graph_names else None
    read_names = {sequence_input, *step.inputs, *(encode.inputs if encode else ())}
    known_names = read_names & signature.inputs.keys()
    # the signature graph has no nodes, so look up the consumers of inputs in the encoder and step
    # graphs
    strides = find_padding_mask_strides(encode) if encode else {}
    masks = find_right_padded_masks(encode) if encode else frozenset[str]()
    return ModelInputs(
        graph=signature,
        preprocessing=metadata.preprocessing.load_tokenizer_files(Path(package.path)),
        defaults=metadata.defaults,
        sequence_input=sequence_input,
        length_bounds={
            **{n: LengthBound(v) for n, v in signature.min_lengths.items()},
            **metadata.length_bounds,
        },
        unused_inputs=_find_unused_inputs(signature, metadata.defaults, known_names),
        padding_strides={**find_padding_mask_strides(step), **strides},
        right_padded_masks=find_right_padded_masks(step) | masks,
        spec_sources=package.index.sources,
    )
