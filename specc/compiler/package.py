"""`specc compile --for`: a package of the graphs derived from one spec, over weights
that are stored once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from specc.artifact.manifest import DOC, KEY
from specc.backend import About, Emitted, Extra, Part, Texts
from specc.compiler.available_parts import drop_unavailable_parts
from specc.compiler.calibrating import calibrated, no_cache
from specc.compiler.companions import companions, paths, remarks
from specc.compiler.compiled import Compiled
from specc.compiler.computing import generating_in
from specc.compiler.generating import (
    decodes_of,
    derived_of,
    facts_of,
    generating,
    generation_of,
    signature_of,
    writes_tokens,
)
from specc.compiler.job import (
    Job,
    Options,
    files_read,
    manifest_of,
    open_job,
    report_of,
)
from specc.compiler.profiles.dress import ROWS, check_profile, dressed
from specc.compiler.spec import Spec
from specc.compiler.streaming import stream_facts, streamed
from specc.data.tokenizer import SUFFIX
from specc.files.place import MODEL, place, settled
from specc.files.read import shown
from specc.files.write import plain_stem
from specc.ir.derived import Derived, Generating, InPlace
from specc.ir.graph import Graph
from specc.ir.model import Streaming
from specc.passes import pipeline
from specc.text.diagnostic import fail

PARTS = ("score", "encode", "step", "generate")
"""What a package can hold: the graph as it is written, what is computed once, one step,
and all of it in one file.
"""


@dataclass(frozen=True)
class Contents:
    """What a package holds: graphs by role, further files, and what `specc.json` tells
    the program that writes with it.
    """

    parts: Mapping[str, Part]
    extras: tuple[Extra, ...] = ()
    facts: Mapping[str, object] | None = None


def compile_package(spec: Spec, options: Options) -> Compiled:
    """Derive, bind the weights, lower, write `options.output`: a folder, or one file
    that decodes by itself. Fails as `compile_spec` does.

    E0701 where the spec does not generate, E0711 to E0717 where it cannot; E0934 where
    the target cannot run a model that decodes by itself.
    """
    check_profile(options.names)
    with open_job(spec, options) as opened:
        job, left = opened, tuple[str, ...]()
        # settings of the command are those of the graph that decodes by itself
        if options.parts == PARTS and not options.settings:
            job, left = drop_unavailable_parts(opened)
        with calibrated(job, write_folder) as ready:
            _check_decodes(job)
            if options.parts == ("generate",) and options.output.endswith(".onnx"):
                return _one_file(ready)
            made = write_folder(ready)
            return replace(made, remarks=(*made.remarks, *left))


def _check_decodes(job: Job) -> None:
    """E0934: what such a target would compute is wrong, and it would not say so."""
    if "generate" in job.options.parts and not job.target.decodes:
        others = [p for p in (job.options.parts) if p != "generate"] or ["step"]
        fail(
            "E0934",
            f"`{job.target.name}` cannot run a model that decodes by itself",
            notes=[
                "caches that grow inside a loop come out wrong there, or not at all"
            ],
            helps=[
                f"compile with `--for {','.join(others)}`, and have a program run the steps",
                "or with `--target onnx`, for ONNX Runtime in any language",
            ],
        )


def parts_of(said: object) -> tuple[str, ...]:
    """The graphs a package is to hold, of names, a text of names with commas, or `all`.
    E0754 for unknown names.
    """
    if said == "all":
        return PARTS
    names = said.split(",") if isinstance(said, str) else said
    if not isinstance(names, list | tuple | set | frozenset):
        _no_part(said)
    if not all(isinstance(name, str) for name in names):
        _no_part(said)
    for name in names:
        if name not in PARTS:
            _no_part(name)
    return tuple(part for part in PARTS if part in names)


def _no_part(name: object) -> NoReturn:
    fail(
        "E0754",
        f"a package has no part called `{shown(str(name))[:60]}`",
        helps=[f"there are {', '.join(PARTS)}, and `all`"],
    )


def _one_file(job: Job) -> Compiled:
    """Tokens in and tokens out, with nothing beside it but what is too large."""
    path = place(
        job.options.output, MODEL, inputs=files_read(job), force=job.options.force
    )
    job = job.with_reading(job.reading.placed(plain_stem(path.stem)))
    # A target or backend that is not there is told of before the graph is proven.
    target = job.target
    graph = job.simplified
    source = in_width(job, generating(job, graph))
    written = job.compiler.package(
        job.rounded(source),
        path,
        job.numbers,
        target=target,
        opset=job.opset,
        weights_as=job.weights_as,
        dtype=job.options.dtype,
        metadata=_decoding_texts(job, source),
        load=job.options.try_load,
        beside=[(SUFFIX, file.content) for file in job.reading.files if file.name],
    )
    return report_of(job, written, *_left_out(job))


def write_folder(job: Job) -> Compiled:
    """The package, over none of the files that it is made from."""
    tokenizers = {file.sha256: "tokenizer.json" for file in job.reading.files}
    job = job.with_reading(job.reading.named(tokenizers))
    target = job.target  # as in `_one_file`
    contents = contents_of(job)
    texts = [Extra(f.name, f.content, role="tokenizer") for f in job.reading.files]
    names = job.options.names
    # a program of another form loads them itself, by their usual names
    taken = [extra.name for extra in (*texts, *contents.extras)]
    beside = tuple(companions(names, job.folders, taken))
    written = job.compiler.package_graphs(
        {
            role: replace(part, graph=job.rounded(part.graph))
            for role, part in contents.parts.items()
        },
        settled(job.options.output),
        job.numbers,
        target=target,
        about=About(job.model.name, contents.facts or {}, job.sources),
        opset=job.opset,
        weights_as=job.weights_as,
        dtype=job.options.dtype,
        extras=[*texts, *contents.extras, *beside],
        load=job.options.try_load,
        inputs=[*files_read(job), *(paths(job.folders) if beside else ())],
        force=job.options.force,
        every_load=job.options.hash_full,
    )
    missed = remarks(names, job.folders)
    return report_of(job, written, *_left_out(job), *missed)


def _facts(
    job: Job, derived: Derived, buffers: tuple[str, ...]
) -> Mapping[str, object] | None:
    """What our own runner has to know to write texts; None of what writes no tokens."""
    if not writes_tokens(job.model.graph, generation_of(job.model)):
        return None
    computed = job.computed_apart(derived)
    return facts_of(job, job.simplified, computed, buffers).dump()


def contents_of(job: Job) -> Contents:
    """The graphs that are wanted, and what goes with them."""
    wanted, graph = job.options.parts, job.simplified
    parts: dict[str, Part] = {}
    if "score" in wanted:
        texts = _texts(job, job.told, whole=True)
        parts["score"] = Part(job.computed(graph), "score.onnx", texts)
    # The whole graph alone needs no proof that it can go on.
    if wanted == ("score",):
        return Contents(parts)
    if job.model.generation is None and job.model.streaming is not None:
        return _streaming(job, job.model.streaming, parts)
    return _writing(job, parts)


def _writing(job: Job, parts: dict[str, Part]) -> Contents:
    """These graphs, and those of a model that writes."""
    wanted, graph = job.options.parts, job.simplified
    ours = job.options.names == "specc"
    derived = derived_of(
        graph,
        generation_of(job.model),
        ROWS[job.options.names],
        bounded=ours,
        defaults=job.model.defaults,
        begins=ours,
    )
    extras: tuple[Extra, ...] = ()
    buffers: tuple[str, ...] = ()
    if {"encode", "step"} & set(wanted):
        computed = job.computed_apart(derived)
        forms = dressed(job.options.names, job.model, computed)
        for stem, form in forms.graphs.items():
            parts[stem] = Part(form, f"{stem}.onnx", _texts(job, form, whole=False))
        extras = tuple(Extra.of_data(n, data) for n, data in forms.files.items())
        # Only our own runner knows how to feed a buffer; others are given caches that
        # grow.
        if ours:
            parts["step"], buffers = _in_place(job, forms.graphs["step"], computed)
    facts = _facts(job, derived, buffers) if ours else None
    if "generate" in wanted:
        # other programs' names want other rows of the logits, so that what was derived
        # for them is not what decodes
        source = in_width(job, generating(job, graph, derived if ours else None))
        parts["generate"] = Part(source, "generate.onnx", _decoding_texts(job, source))
    return Contents(parts, extras, facts)


def in_width(job: Job, source: Generating) -> Generating:
    """What decodes by itself, in the width that the target computes in."""
    return generating_in(source, job.options.dtype, job.target)


def _streaming(job: Job, streaming: Streaming, parts: Mapping[str, Part]) -> Contents:
    """The graphs of a stream: only our own runner knows how to feed them. E0977 for
    what only a text has.
    """
    other = job.options.names if job.options.names != "specc" else ""
    if other or "generate" in job.options.parts:
        asked = f"--names {other}" if other else "--for generate"
        fail(
            "E0977",
            f"`{asked}` is for what writes, and `{job.model.name}` is streamed",
            notes=[f"rows of `{streaming.growing}` are given, not drawn"],
            helps=["compile it with `--for score,step`"],
        )
    stream = streamed(job, streaming)
    found = dict(parts)
    graphs = {"encode": stream.derived.encode, "step": stream.derived.step}
    for stem, graph in graphs.items():
        if graph is not None:
            found[stem] = Part(graph, f"{stem}.onnx", _texts(job, graph, whole=False))
    return Contents(found, facts=stream_facts(job, stream).dump())


def _in_place(job: Job, step: Graph, derived: Derived) -> tuple[Part, tuple[str, ...]]:
    """A step that our own runner drives has buffers for caches, where the target can
    write into them; gives the part, and the inputs that are buffers.
    """
    caches = job.compiler.caches_of(step, derived.states, job.target, job.opset)
    # The target cannot write in place, or no attention is of a form that its kernel
    # has.
    if not caches:
        # scales were measured on a package of the usual options, which had buffers
        if job.scales:
            why = "no attention writes into buffers with these options"
            no_cache(why, job.rounding.cache)
        return Part(step, "step.onnx", _texts(job, step, whole=False)), ()
    if job.scales:
        step = pipeline.keep_small(step, caches)
    source = InPlace(step, caches)
    return Part(source, "step.onnx", _texts(job, step, whole=False)), source.names


def _texts(job: Job, graph: Graph, *, whole: bool) -> Texts:
    """What a graph of the package carries; the spec's texts stand in `specc.json`."""

    def texts(emitted: Emitted) -> Mapping[str, str]:
        told = manifest_of(job, graph, emitted, whole=whole)
        return {KEY: told.dump(), DOC: told.doc}

    return texts


def _decoding_texts(job: Job, source: Generating) -> Texts:
    """What a model that decodes by itself carries."""
    decodes, signature = decodes_of(job, source), signature_of(job, source.graph)

    def texts(emitted: Emitted) -> Mapping[str, str]:
        told = manifest_of(
            job,
            signature,
            emitted,
            decodes=decodes,
            scoring=source.graph,
        )
        return {KEY: told.dump(), DOC: told.doc}

    return texts


def _left_out(job: Job) -> tuple[str, ...]:
    """What a spec says of generating that a model which knows only tokens cannot do."""
    generation = job.model.generation
    if "generate" not in job.options.parts or generation is None:
        return ()
    if not generation.settings.get("stop_strings"):
        return ()
    return (
        "the stop strings are not in the model that decodes by itself: it knows "
        "tokens, not text",
    )
