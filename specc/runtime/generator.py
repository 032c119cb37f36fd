"""Generative models: from inputs to tokens and text."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specc.analysis.time_axis import find_padding_strides, find_time_axis
from specc.artifact.generation_facts import (
    GenerationFacts,
    check_encoder_outputs,
    compute_max_context_length,
    parse_bounds,
)
from specc.artifact.generation_facts import parse_generation_facts as load_facts
from specc.artifact.manifest import RECORDED_SETTINGS
from specc.decode.generation_settings import GenerationSettings, merge_settings
from specc.decode.setting_table import GENERATION_OPTIONS
from specc.decode.settings_errors import SUPPRESSING_SETTINGS
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.render import format_repr
from specc.io.json_io import as_exact_integer
from specc.ir.array import Arrays
from specc.ir.graph import Graph
from specc.ir.model import GenerateSection
from specc.preprocessing.input_checks import LengthBound
from specc.runtime.generation import GenerationStream
from specc.runtime.generation_request import (
    GenerativeModel,
    check_context,
    check_generation_settings,
    max_new_tokens,
    prepare_prompts,
)
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.model_inputs import ModelInputs, find_unread_inputs
from specc.runtime.model_package import ModelPackage
from specc.runtime.standalone_generator import check_compiled_settings
from specc.runtime.steppers import (
    PREFILL_CHUNK_SIZE,
    FullForwardStepper,
    KVCacheStepper,
    StepGraphs,
    infer_lengths,
)


@dataclass(kw_only=True)
class Generator(GenerativeModel):
    """A generative model: `generate` starts a sequence."""

    def __repr__(self) -> str:
        made = self.generation
        return format_repr(f"writer of {made.name}: {made.growing} from {made.source}")

    def generate(self, *given: object, **settings: object) -> GenerationStream:
        """Start generation from inputs by name, or in the order of the spec.

        An input is an array, a nested list, a text or a list of texts. Other names are settings
        (docs/generation.md): `max_tokens`, `strategy`, `temperature`, `top_k`, `top_p`, `min_p`,
        `repetition_penalty`, `num_beams`, `length_penalty`, `early_stopping`,
        `num_return_sequences`, `stop`, `stop_strings`, `seed`, `log_probs`. Fails with E09xx on
        inputs, E0731 to E0733 on settings, E0943 for prompts longer than the context.
        """
        names = [n for n in settings if n in self.input_signature.graph.inputs]
        inputs = {name: settings.pop(name) for name in names}
        free = [name for name in self.input_signature.asked if name not in inputs]
        if len(given) > len(free):
            raise_error(
                "E0910",
                f"got {len(given)} inputs, expected {len(free)}",
                helps=[f"they are {', '.join(free)}"],
            )
        inputs |= dict(zip(free, given, strict=False))
        return self.begin(inputs, self.chosen(settings))

    def chosen(self, given: Mapping[str, object]) -> GenerationSettings:
        """Merge and check settings: the caller's, then the compiled ones, then the spec's."""
        settled = self._read_compiled_settings(given.get("strategy"))
        chosen = merge_settings(self.generation.settings, **{**settled, **given})
        # stop tokens of the spec were checked by `check`; suppressed tokens of a published file are
        # often those of a whole family
        for word in ("stop", *SUPPRESSING_SETTINGS):
            if fault := self.vocabulary.check_token_id(word, given.get(word)):
                raise Failed(fault)
        if self.itself is not None:
            check_compiled_settings(chosen, self.compiled)
            if chosen.log_probs and chosen.strategy == "beam":
                raise_error(
                    "E0733",
                    "a standalone generator with beam search has no log-probabilities of tokens",
                )
        return chosen

    def _read_compiled_settings(self, asked: object) -> dict[str, object]:
        """Return the compiled settings, which apply unless the caller overrides the strategy."""
        kind = self.compiled.get("strategy")
        own = asked is None or (isinstance(asked, str) and asked == kind)
        options = [
            o for o in GENERATION_OPTIONS if not o.strategies or (own and kind in o.strategies)
        ]
        return {
            o.name: self.compiled[RECORDED_SETTINGS[o.name]]
            for o in options
            if RECORDED_SETTINGS.get(o.name) in self.compiled
        }

    def begin(self, inputs: Mapping[str, object], settings: GenerationSettings) -> GenerationStream:
        """Begin with inputs by name and settings that are checked."""
        growing = self.input_signature.growing
        begun = growing not in inputs and (bool(settings.start) or self.begins)
        prepared = prepare_prompts(self.input_signature, inputs, settings.start, self.begins)
        prompt = prepared[growing]
        seeing = self._with_context(prepared)
        check_context(seeing, prompt)
        check_generation_settings(self, settings)
        if not prompt.shape[1] and not self.begins:
            raise_error("E0912", f"`{growing}` is empty: a prompt needs at least one token")
        length = prompt.shape[1] if len(prompt) else 0
        room = max_new_tokens(seeing, settings, length)
        return GenerationStream(
            writer=seeing,
            settings=settings,
            prepared=prepared,
            prompt=prompt,
            keep=prepared.get(self.input_signature.mask),
            room=room,
            begun=begun,
        )

    def _with_context(self, prepared: Arrays) -> "Generator":
        """Return the generator with the context that these inputs leave in a position table."""
        rows = str(self.input_signature.length)
        lengths = infer_lengths(self.input_signature.graph, prepared)
        others = {name: length for name, length in lengths.items() if name != rows}
        context = compute_max_context_length(self.input_signature.bounds, rows, others)
        if context is None or context == self.context:
            return self
        return replace(self, context=min(context, self.context or context))


def standalone_generator_of(model: LoadedModel) -> Generator | None:
    """Return the generator of a single-graph model; None if the model is not generative."""
    generation, graph = model.manifest.generate_section, model.manifest.graph
    if generation is None:
        return None
    grows = graph.inputs.get(generation.growing)
    if grows is None or grows.type.rank != 2:
        return None
    if model.manifest.decoding is not None:
        return _by_itself(model, generation, model.manifest.decoding)
    source = graph.outputs.get(generation.source)
    if source is None or source.type.rank not in (2, 3):
        return None

    def make_stepper(prepared: Arrays) -> FullForwardStepper:
        return FullForwardStepper(model.session, model.input_signature, generation.source, prepared)

    bound = model.input_signature.bounds.get(grows.type.shape[1].name or "", LengthBound())
    return Generator(
        input_signature=model.input_signature,
        generation=generation,
        reading=model.manifest.reading,
        context=bound.high,
        random_init=model.manifest.random_init,
        stepper=make_stepper,
        drawn=sampled_vocabulary_size(graph, generation),
        begins=_begins(graph, generation),
    )


def _by_itself(
    model: LoadedModel, generation: GenerateSection, decodes: Mapping[str, object]
) -> Generator:
    """Return the generator of a standalone file, whose lengths and vocabulary are metadata."""
    manifest, session, input_signature = model.manifest, model.runtime, model.input_signature
    defaults = manifest.defaults.outputs if manifest.defaults else ()
    read = {generation.growing, *session.inputs, *session.optional_inputs, *defaults}
    return Generator(
        input_signature=replace(
            input_signature,
            bounds={**input_signature.bounds, **parse_bounds(decodes.get("bounds"))},
            unread=find_unread_inputs(manifest.graph, None, read),
            strides=_parse_strides(decodes.get("strides")),
        ),
        generation=generation,
        reading=manifest.reading,
        context=as_exact_integer(decodes.get("context")),
        random_init=manifest.random_init,
        stepper=_no_stepper,
        itself=session,
        compiled=decodes,
        drawn=as_exact_integer(decodes.get("vocabulary")),
        begins=decodes.get("begins") is True,
    )


def _begins(graph: Graph, generation: GenerateSection) -> bool:
    """Return whether the full forward gives logits before any token."""
    grows = graph.inputs[generation.growing].type.shape[1].name
    made = graph.outputs[generation.source].type
    # Inputs that require positions are not run with none.
    if grows is None or graph.min_lengths.get(grows) or made.rank != 3:
        return False
    return find_time_axis(graph, grows).has_prefix(made.shape[1])


def sampled_vocabulary_size(graph: Graph, generation: GenerateSection) -> int | None:
    """Return the size of the logits' vocabulary axis."""
    return graph.outputs[generation.source].type.shape[-1].number


def _no_stepper(prepared: Arrays) -> FullForwardStepper:
    raise AssertionError("a standalone generator has no step graph")


def open_step_graphs(package: ModelPackage, provider: str, threads: int) -> StepGraphs:
    """Open the step of a package. Raise E0831, E0832, or E0921 and E0922 for the provider."""
    role, where = package.role("step"), str(package.path)
    graph = package.manifest(role).graph
    facts = load_facts(package.index.metadata, graph, where)
    step = package.session(role, provider=provider, threads=threads)
    encode = None
    if "encode" in package.roles:
        encode = package.session("encode", provider=provider, threads=threads)
    inputs, outputs = (encode.inputs, encode.outputs) if encode else ((), ())
    check_encoder_outputs(facts, inputs, outputs, where)
    return StepGraphs(
        facts=facts,
        input_signature=_step_inputs(facts, graph, package),
        encode=encode,
        step=step,
        graph=graph,
    )


def open_generator(
    package: ModelPackage,
    provider: str = "cpu",
    threads: int = 0,
    prefill_chunk_size: int = PREFILL_CHUNK_SIZE,
) -> Generator:
    """Return the generator of a package, with the errors of `open_step_graphs`."""
    opened = open_step_graphs(package, provider, threads)
    facts, input_signature = opened.facts, opened.input_signature

    def make_stepper(prepared: Arrays) -> KVCacheStepper:
        return KVCacheStepper(**vars(opened), prepared=prepared, chunk_size=prefill_chunk_size)

    return Generator(
        input_signature=input_signature,
        generation=facts.generation,
        reading=input_signature.reading,
        context=facts.max_context,
        table=facts.limiting_table,
        random_init=facts.random_init,
        stepper=make_stepper,
        drawn=sampled_vocabulary_size(opened.graph, facts.generation),
        begins=bool(facts.first_output),
        apart=facts if facts.allows_mixed_lengths else None,
    )


def _parse_strides(data: object) -> dict[str, int]:
    """Parse strides from JSON data; invalid entries are dropped."""
    strides = data if isinstance(data, dict) else {}
    return {
        name: stride for name, stride in strides.items() if isinstance(stride, int) and stride > 1
    }


def _step_inputs(facts: GenerationFacts, step: Graph, package: ModelPackage) -> ModelInputs:
    """Return the inputs of the spec that `encode` or the step read."""
    signature, growing = facts.signature, facts.generation.growing
    encode = package.manifest("encode").graph if "encode" in package.roles else None
    read = {growing, *step.inputs, *(encode.inputs if encode else ())}
    known = read & signature.inputs.keys()
    # The signature has no nodes: the graphs tell how they depend on positions.
    strides = find_padding_strides(encode) if encode else {}
    return ModelInputs(
        graph=signature,
        reading=facts.reading.load_files(Path(package.path)),
        defaults=facts.defaults,
        growing=growing,
        bounds={**{n: LengthBound(v) for n, v in signature.min_lengths.items()}, **facts.bounds},
        unread=find_unread_inputs(signature, facts.defaults, known),
        strides={**find_padding_strides(step), **strides},
    )
