"""From a graph that generates to what a program that writes needs: `encode` and `step`,
the facts beside them, or all of it for a model that decodes by itself.
"""

from collections.abc import Mapping
from dataclasses import asdict

from specc.artifact.bounds import bounds_of
from specc.artifact.chance import Chance
from specc.artifact.decodes import TOLD
from specc.artifact.facts import Facts, bounds_data
from specc.compiler.apart import stand_apart
from specc.compiler.job import Job
from specc.data.check import Bound
from specc.decode.option_faults import Vocabulary
from specc.decode.settings import Settings, settings_of
from specc.ir.defaults import closed
from specc.ir.derived import Decoding, Derived, Generating
from specc.ir.graph import Graph
from specc.ir.model import Generation, Model
from specc.passes import pipeline
from specc.passes.derive.plan import Rows
from specc.passes.measure.limits import Limit, limits
from specc.passes.measure.strides import strides_before
from specc.passes.prove.causality import growing_symbol
from specc.text.diagnostic import Failed, fail
from specc.weights.values import Binding


def generation_of(model: Model) -> Generation:
    """What the model says it generates. E0701 where it says nothing, E0977 for one whose
    rows are given.
    """
    if model.generation is None and model.streaming is not None:
        fail(
            "E0977",
            f"`{model.name}` is streamed and writes nothing",
            notes=[f"rows of `{model.streaming.growing}` are given, not drawn"],
            helps=["compile it with `--for score,step`"],
        )
    if model.generation is None:
        fail(
            "E0701",
            f"`{model.name}` does not say what it generates",
            notes=["only `--for score` can be made of it"],
            helps=[
                "add `generate NAME of INPUT from RESULT { … }` to the spec",
                "where that is said of another of its graphs, choose that: --graph NAME",
            ],
        )
    return model.generation


def growing_of(model: Model) -> str:
    """The input that grows, as a text or as a stream. E0701 where none does."""
    stream = model.streaming if model.generation is None else None
    return stream.growing if stream else generation_of(model).growing


def derived_of(
    graph: Graph,
    generation: Generation,
    rows: Rows = "newest",
    bounded: bool = True,
    defaults: Graph | None = None,
    begins: bool = True,
) -> Derived:
    """`encode` and `step` for the result that is drawn from, and for results that can
    be had beside it. Where it `begins` and no token starts a text, the first one is drawn
    from rows before it, if there are any.

    Fails with the proof's errors, E0711 to E0718, where the model cannot be generated.
    """
    return pipeline.derive(
        pipeline.Work(
            graph=graph,
            defaults=defaults,
            generation=generation,
            rows=rows,
            bounded=bounded,
            begins=begins and generation.settings.get("start") is None,
        )
    )


def writes_tokens(graph: Graph, generation: Generation) -> bool:
    """Whether our own runner can drive the step: rows that are tokens, drawn from logits."""
    grows = graph.inputs[generation.growing].type
    source = graph.outputs[generation.source].type
    return grows.rank == 2 and source.rank in (2, 3)


def facts_of(
    job: Job, graph: Graph, derived: Derived, in_place: tuple[str, ...]
) -> Facts:
    """What the program that generates has to know; `graph` is the one that was derived
    from, `in_place` are the states that are buffers.
    """
    generation = generation_of(job.model)
    limit = limit_of(job, graph)
    return Facts(
        generation=generation,
        signature=signature_of(job, graph),
        defaults=job.model.defaults,
        reading=job.reading,
        states=derived.states,
        handed=derived.handed,
        whole=derived.whole,
        first=derived.first,
        context=limit.most if limit else None,
        table=limit.table if limit else "",
        # drawn weights come from the seed, which then says how to draw again
        chance=chance_of(job),
        in_place=in_place,
        bounds=lengths_of(job, graph),
        apart=stand_apart(job.model, derived),
    )


def chance_of(job: Job) -> Chance | None:
    """Which weights were drawn: all of them, or those of a new head."""
    if not isinstance(job.values, Binding):
        seed = job.options.init
        return None if seed is None else Chance(seed)
    drawn = job.values.drawn
    return Chance(drawn.seed, len(drawn.wanted)) if drawn is not None else None


def signature_of(job: Job, graph: Graph) -> Graph:
    """The inputs of the spec and nothing else; what grows may be empty before it is begun."""
    spec = job.model.graph
    symbol = growing_symbol(graph, growing_of(job.model))
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


def decodes_of(job: Job, source: Generating) -> dict[str, object]:
    """What a model that decodes by itself says of itself: how it was settled to choose,
    how far it can write, of how many tokens, whether a text `begins` with none.
    """
    generation, graph = generation_of(job.model), source.graph
    chosen = asdict(chosen_settings(job))
    limit = limit_of(job, graph)
    # JSON knows no tuples
    told = {n: list(v) if isinstance(v, tuple) else v for n, v in chosen.items()}
    return {
        **{name: value for name, value in told.items() if name in TOLD},
        "context": limit.most if limit else None,
        "vocabulary": graph.outputs[generation.source].type.shape[-1].number,
        "bounds": bounds_data(lengths_of(job, graph)),
        "strides": {**strides_before(graph)},
        "begins": bool(source.derived.first),
    }


def generating(job: Job, graph: Graph, derived: Derived | None = None) -> Generating:
    """What the model that decodes by itself is made from. `derived` is what `graph` was
    taken apart to, if it was.
    """
    generation = generation_of(job.model)
    whole = _with_defaults(job, graph, generation)
    if derived is None or whole is not graph:
        derived = derived_of(whole, generation, defaults=job.model.defaults)
    chosen = chosen_settings(job)
    check_standalone(chosen)
    _check_tokens(whole, generation, job.options.settings)
    decoding = Decoding(
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
    return Generating(whole, derived, decoding, job.model.defaults)


def chosen_settings(job: Job) -> Settings:
    """Return the spec's settings, overridden by those of the options."""
    return settings_of(generation_of(job.model).settings, **job.options.settings)


ALONE = ("typical_p", "epsilon_cutoff", "eta_cutoff")
"""Settings that a loop in a graph does not follow: they look at all probabilities together."""


def check_standalone(chosen: Settings) -> None:
    """Raise E0733 for settings of `ALONE`."""
    asked, usual = asdict(chosen), asdict(Settings())
    for name in ALONE:
        if asked[name] != usual[name]:
            fail(
                "E0733",
                f"`{name}` is for a program that writes, not for a model that does by itself",
                helps=[
                    "compile a package, which writes the same: `--for step`",
                    f"or leave `{name}` out of the settings",
                ],
            )


def _check_tokens(
    graph: Graph, generation: Generation, settings: Mapping[str, object]
) -> None:
    """Raise E0703 where rows are no tokens drawn from logits, and the fault of a setting
    that names a token beyond the vocabulary.
    """
    size = tokens_of(graph, generation)
    below = graph.input_facts[generation.growing].below
    vocabulary = Vocabulary(below.number if below is not None else None, size)
    for word, value in settings.items():
        if fault := vocabulary.beyond(word, value):
            raise Failed(fault)


def tokens_of(graph: Graph, generation: Generation) -> int:
    """Return the size of the vocabulary that tokens are drawn from.

    Raises E0703 where the growing input is no ids, or the result no logits.
    """
    grows = graph.inputs[generation.growing].type
    source = graph.outputs[generation.source].type
    size = source.shape[-1].number if source.shape else None
    ids = grows.dtype == "i64" and grows.rank == 2
    if ids and source.rank in (2, 3) and size is None:
        # a pointer network, which chooses among the positions of another input
        fail(
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
        fail(
            "E0703",
            f"`{generation.growing}` is no text of tokens drawn from `{generation.source}`",
            notes=[f"they are {grows} and {source}"],
            helps=[
                "`--for generate` needs ids [batch, length] and logits [batch, "
                "length, vocabulary]"
            ],
        )
    return size


def _with_defaults(job: Job, graph: Graph, generation: Generation) -> Graph:
    """The graph with what follows from the growing input inside, but for what says
    which rows exist; `graph` itself where there is none.
    """
    source, defaults = job.graph, job.model.defaults
    if defaults is None:
        return graph
    length = growing_symbol(source, generation.growing)
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
    return pipeline.simplify(
        pipeline.inline(source, closed(defaults, inside)),
        fused=job.options.precision is None,
    )


def limit_of(job: Job, graph: Graph) -> Limit | None:
    """What bounds the text: a table of positions, if there is one."""
    symbol = growing_symbol(graph, growing_of(job.model))
    return limits(job.model.graph).get(symbol or "")


def lengths_of(job: Job, graph: Graph) -> dict[str, Bound]:
    """What lengths other than the growing one may be."""
    growing = growing_symbol(graph, growing_of(job.model))
    bounds = bounds_of(job.model.graph)
    return {name: bound for name, bound in bounds.items() if name != growing}
