"""Encoder and step graphs of a generative model, their metadata, and whether sequences batch."""

from collections.abc import Mapping
from dataclasses import asdict

from specc.analysis.causality import find_time_symbol
from specc.analysis.length_limits import LengthLimit, find_length_limits
from specc.analysis.padding_check import can_padding_reach
from specc.analysis.time_axis_strides import find_padding_strides
from specc.artifact.generation_facts import GenerationFacts, bounds_to_json
from specc.artifact.length_bounds import find_length_bounds
from specc.artifact.manifest import TOLD, RandomWeights
from specc.decode.generation_settings import GenerationSettings, merge_settings
from specc.decode.settings_errors import VocabularySizes
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.driver.compile_job import CompileJob
from specc.incremental.step_plan import OutputPositions
from specc.ir.derived_graphs import (
    PAST_LENGTH_INPUT,
    DecodeState,
    DecodingConfig,
    DerivedGraphs,
    SelfDecodingGraph,
)
from specc.ir.graph import Graph
from specc.ir.input_defaults import extract_tokenwise_default, resolve_absent_inputs
from specc.ir.model import GenerateSection, ModelDefinition
from specc.preprocessing.input_checks import LengthBound
from specc.preprocessing.text_batches import find_mask_input
from specc.transforms import pass_pipeline
from specc.weights.parameter_values import CheckpointBinding

ANY_LEFT = ("any", "left")


def can_batch_unequal_lengths(model: ModelDefinition, derived: DerivedGraphs) -> bool:
    """Whether texts of unequal age go on together as each would alone."""
    graph, growing = model.graph, derived.growing
    generation = model.generation
    assert generation is not None, "what is derived generates"
    keep = find_mask_input(graph, growing)
    length = graph.inputs[growing].type.shape[1]
    others = {n for n, v in graph.inputs.items() if length in v.type.shape}
    if others - {growing, keep}:
        return False  # of which nobody knows what they are for columns in front
    if not keep:
        return _has_one_shape(derived)
    if graph.input_facts[keep].keep not in ANY_LEFT or not _known(model, keep, growing):
        return False
    # Windows that move by strides take other rows where columns stand in front.
    if keep in find_padding_strides(graph) or not all(map(_fits, derived.states)):
        return False
    return not can_padding_reach(graph, keep, (generation.source,))


def _has_one_shape(derived: DerivedGraphs) -> bool:
    """Whether all that is kept is as large at every step, and each text has its own: no
    row of the past, nor how many there were.
    """
    fixed = all(s.rows is None and s.batch is not None for s in derived.states)
    return fixed and not derived.whole and PAST_LENGTH_INPUT not in derived.step.inputs


def _known(model: ModelDefinition, keep: str, growing: str) -> bool:
    """Whether a token that is written exists by itself, whatever stands before it."""
    defaults = model.defaults
    if defaults is None or keep not in defaults.outputs:
        return True
    return extract_tokenwise_default(defaults, keep, growing) is not None


def _fits(state: DecodeState) -> bool:
    """Whether columns can be put in front of a state, or dropped there."""
    if state.batch is None:
        return state.name == PAST_LENGTH_INPUT  # the columns of all texts are as many
    # a window that rows of a head have left, or not, is no matter of columns
    return state.rows is None or not state.initial or state.most == float("inf")


def require_generation(model: ModelDefinition) -> GenerateSection:
    """What the model says it generates. E0701 where it says nothing, E0977 for one whose
    rows are given.
    """
    if model.generation is None and model.streaming is not None:
        raise_error(
            "E0977",
            f"`{model.name}` is streamed and writes nothing",
            notes=[f"rows of `{model.streaming.growing}` are given, not drawn"],
            helps=["compile it with `--for score,step`"],
        )
    if model.generation is None:
        raise_error(
            "E0701",
            f"`{model.name}` does not say what it generates",
            notes=["only `--for score` can be made of it"],
            helps=[
                "add `generate NAME of INPUT from RESULT { … }` to the spec",
                "where that is said of another of its graphs, choose that: --graph NAME",
            ],
        )
    return model.generation


def growing_input(model: ModelDefinition) -> str:
    """The input that grows, as a text or as a stream. E0701 where none does."""
    stream = model.streaming if model.generation is None else None
    return stream.growing if stream else require_generation(model).growing


def derive_graphs(
    graph: Graph,
    generation: GenerateSection,
    rows: OutputPositions = "newest",
    bounded: bool = True,
    defaults: Graph | None = None,
    begins: bool = True,
) -> DerivedGraphs:
    """`encode` and `step` for the result that is drawn from, and for results that can
    be had beside it. Where it `begins` and no token starts a text, the first one is drawn
    from rows before it, if there are any.

    Fails with the proof's errors, E0711 to E0718, where the model cannot be generated.
    """
    return pass_pipeline.derive_with_passes(
        pass_pipeline.PassState(
            graph=graph,
            defaults=defaults,
            generation=generation,
            rows=rows,
            bounded=bounded,
            begins=begins and generation.settings.get("start") is None,
        )
    )


def writes_tokens(graph: Graph, generation: GenerateSection) -> bool:
    """Whether our own runner can drive the step: rows that are tokens, drawn from logits."""
    grows = graph.inputs[generation.growing].type
    source = graph.outputs[generation.source].type
    return grows.rank == 2 and source.rank in (2, 3)


def generation_facts(
    job: CompileJob, graph: Graph, derived: DerivedGraphs, in_place: tuple[str, ...]
) -> GenerationFacts:
    """What the program that generates has to know; `graph` is the one that was derived
    from, `in_place` are the states that are buffers.
    """
    generation = require_generation(job.model)
    limit = position_limit(job, graph)
    return GenerationFacts(
        generation=generation,
        signature=spec_signature(job, graph),
        defaults=job.model.defaults,
        reading=job.reading,
        states=derived.states,
        handed=derived.handed,
        whole=derived.whole,
        first=derived.first,
        context=limit.most if limit else None,
        table=limit.table if limit else "",
        # drawn weights come from the seed, which then says how to draw again
        chance=random_weights_of(job),
        in_place=in_place,
        bounds=fixed_lengths(job, graph),
        apart=can_batch_unequal_lengths(job.model, derived),
    )


def random_weights_of(job: CompileJob) -> RandomWeights | None:
    """Which weights were drawn: all of them, or those of a new head."""
    if not isinstance(job.values, CheckpointBinding):
        seed = job.options.init
        return None if seed is None else RandomWeights(seed)
    drawn = job.values.drawn
    return RandomWeights(drawn.seed, len(drawn.wanted)) if drawn is not None else None


def spec_signature(job: CompileJob, graph: Graph) -> Graph:
    """The inputs of the spec and nothing else; what grows may be empty before it is begun."""
    spec = job.model.graph
    symbol = find_time_symbol(graph, growing_input(job.model))
    least = {name: rows for name, rows in spec.least.items() if name != symbol}
    return Graph(
        name="inputs",
        inputs=spec.inputs,
        input_facts=spec.input_facts,
        parameters={},
        parameter_facts={},
        nodes=(),
        outputs={},
        least=least,
    )


def decode_settings_of(job: CompileJob, source: SelfDecodingGraph) -> dict[str, object]:
    """What a model that decodes by itself says of itself: how it was settled to choose,
    how far it can write, of how many tokens, whether a text `begins` with none.
    """
    generation, graph = require_generation(job.model), source.graph
    chosen = asdict(choose_settings(job))
    limit = position_limit(job, graph)
    # JSON knows no tuples
    told = {n: list(v) if isinstance(v, tuple) else v for n, v in chosen.items()}
    return {
        **{name: value for name, value in told.items() if name in TOLD},
        "context": limit.most if limit else None,
        "vocabulary": graph.outputs[generation.source].type.shape[-1].number,
        "bounds": bounds_to_json(fixed_lengths(job, graph)),
        "strides": {**find_padding_strides(graph)},
        "begins": bool(source.derived.first),
    }


def build_generator_source(
    job: CompileJob, graph: Graph, derived: DerivedGraphs | None = None
) -> SelfDecodingGraph:
    """What the model that decodes by itself is made from. `derived` is what `graph` was
    taken apart to, if it was.
    """
    generation = require_generation(job.model)
    whole = _with_defaults(job, graph, generation)
    if derived is None or whole is not graph:
        derived = derive_graphs(whole, generation, defaults=job.model.defaults)
    chosen = choose_settings(job)
    check_standalone(chosen)
    _check_tokens(whole, generation, job.options.settings)
    decoding = DecodingConfig(
        source=generation.source,
        strategy=chosen.strategy,
        start=chosen.start,
        stop=chosen.stop,
        pad=chosen.pad,
        suppress=chosen.suppress,
        begin_suppress=chosen.begin_suppress,
        min_tokens=chosen.min_tokens,
        min_length=chosen.min_length,
        no_repeat=chosen.no_repeat,
        banned=chosen.banned,
        renormalize=chosen.renormalize,
        begin=chosen.begin,
        last_token=chosen.last_token,
        penalized=chosen.repetition_penalty != 1,
        beams=chosen.beams,
        best=chosen.n_best,
        length_penalty=chosen.length_penalty,
        early=chosen.early_stopping,
    )
    return SelfDecodingGraph(whole, derived, decoding, job.model.defaults)


def choose_settings(job: CompileJob) -> GenerationSettings:
    """Return the spec's settings, overridden by those of the options."""
    return merge_settings(require_generation(job.model).settings, **job.options.settings)


ALONE = ("typical_p", "epsilon_cutoff", "eta_cutoff")
"""Settings that a loop in a graph does not follow: they look at all probabilities together."""


def check_standalone(chosen: GenerationSettings) -> None:
    """Raise E0733 for settings of `ALONE`."""
    asked, usual = asdict(chosen), asdict(GenerationSettings())
    for name in ALONE:
        if asked[name] != usual[name]:
            raise_error(
                "E0733",
                f"`{name}` is for a program that writes, not for a model that does by itself",
                helps=[
                    "compile a package, which writes the same: `--for step`",
                    f"or leave `{name}` out of the settings",
                ],
            )


def _check_tokens(
    graph: Graph, generation: GenerateSection, settings: Mapping[str, object]
) -> None:
    """Raise E0703 where rows are no tokens drawn from logits, and the fault of a setting
    that names a token beyond the vocabulary.
    """
    size = vocabulary_size(graph, generation)
    below = graph.input_facts[generation.growing].below
    vocabulary = VocabularySizes(below.number if below is not None else None, size)
    for word, value in settings.items():
        if fault := vocabulary.beyond(word, value):
            raise Failed(fault)


def vocabulary_size(graph: Graph, generation: GenerateSection) -> int:
    """Return the size of the vocabulary that tokens are drawn from.

    Raises E0703 where the growing input is no ids, or the result no logits.
    """
    grows = graph.inputs[generation.growing].type
    source = graph.outputs[generation.source].type
    size = source.shape[-1].number if source.shape else None
    ids = grows.dtype == "i64" and grows.rank == 2
    if ids and source.rank in (2, 3) and size is None:
        # a pointer network, which chooses among the positions of another input
        raise_error(
            "E0703",
            f"`{generation.source}` chooses among `{source.shape[-1]}` tokens, which only "
            "an input tells",
            notes=[f"`{generation.source}` is {source}"],
            helps=[
                "a graph that decodes by itself has a vocabulary of a fixed size: "
                "`--for step` writes the steps"
            ],
        )
    if grows.rank != 2 or source.rank not in (2, 3) or size is None:
        raise_error(
            "E0703",
            f"`{generation.growing}` is no text of tokens drawn from `{generation.source}`",
            notes=[f"they are {grows} and {source}"],
            helps=[
                "`--for generate` needs ids [batch, length] and logits [batch, length, vocabulary]"
            ],
        )
    return size


def _with_defaults(job: CompileJob, graph: Graph, generation: GenerateSection) -> Graph:
    """The graph with what follows from the growing input inside, but for what says
    which rows exist; `graph` itself where there is none.
    """
    source, defaults = job.graph, job.model.defaults
    if defaults is None:
        return graph
    length = find_time_symbol(source, generation.growing)
    inside = []
    for name in defaults.outputs:
        facts = source.input_facts.get(name)
        if facts is None or name == generation.growing or facts.keep:
            continue
        # positions, say: a row more for every token, which only the default knows
        if any(d.name == length for d in facts.type.shape):
            inside.append(name)
    if not inside:
        return graph
    return pass_pipeline.simplify_graph(
        pass_pipeline.inline_default_inputs(source, resolve_absent_inputs(defaults, inside)),
        fused=job.options.precision is None,
    )


def position_limit(job: CompileJob, graph: Graph) -> LengthLimit | None:
    """What bounds the text: a table of positions, if there is one."""
    symbol = find_time_symbol(graph, growing_input(job.model))
    return find_length_limits(job.model.graph).get(symbol or "")


def fixed_lengths(job: CompileJob, graph: Graph) -> dict[str, LengthBound]:
    """What lengths other than the growing one may be."""
    growing = find_time_symbol(graph, growing_input(job.model))
    bounds = find_length_bounds(job.model.graph)
    return {name: bound for name, bound in bounds.items() if name != growing}
