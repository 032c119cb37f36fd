"""`specc compile`: a spec to an ONNX model on disk, with its weights and its manifest, all of it or nothing."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specc import backend, loading, readings
from specc.beside import Beside
from specc.driver import Spec, elaborated
from specc.elaborate.budget import deep
from specc.elaborate.context import Env
from specc.elaborate.model import context_of, requirements
from specc.input import shown
from specc.ir.graph import Graph
from specc.ir.model import Model
from specc.lang import tree
from specc.manifest import KEY, Manifest
from specc.output import plain_stem
from specc.passes.fuse_scan import fuse_scan
from specc.passes.inline import inline_defaults
from specc.passes.rewrite import rewrite
from specc.passes.split_scan import split_scan
from specc.place import MODEL, place
from specc.reading.record import Reading
from specc.reading.tokenizer import SUFFIX
from specc.text.diagnostic import Diagnostic, fail
from specc.weight_rules import own_weights, rules_of, wanted_of
from specc.weights.values import Binding, Seeded, Values


@dataclass(frozen=True)
class Options:
    """What `compile` is told. `weights`, `init` or the spec's own file give the numbers.

    `weights_as` is `link`, `copy`, `inline`, or empty for what fits best. `parts` are the graphs of a package (`score`,
    `encode`, `step`, `generate`), `names` whose names its inputs and outputs have (`specc.profiles`), `settings` how
    the one that decodes by itself chooses tokens (`specc.generation.settings`).
    """

    output: str
    weights: str = ""
    init: int | None = None
    target: str = "ort-cpu"
    opset: int = 0
    graph: str = ""
    taps: tuple[str, ...] = ()
    defaults_inside: bool = False
    weights_as: str = ""
    parts: tuple[str, ...] = ()
    names: str = "specc"
    settings: Mapping[str, Any] = field(default_factory=dict)
    hash_full: bool = False
    force: bool = False
    try_load: bool = True


@dataclass(frozen=True)
class Compiled:
    """What `compile` wrote: files with their sizes, and what the user should know."""

    path: Path
    files: tuple[tuple[Path, int], ...]
    model: Model
    remarks: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = field(default=())


def compile_spec(spec: Spec, options: Options) -> Compiled:
    """Elaborate, bind the weights, lower, write. Fails with a diagnostic of the stage that cannot go on."""
    model = elaborated(spec, options.graph)
    graph = with_taps(model.graph, options.taps)
    if options.defaults_inside and model.defaults:
        graph = inline_defaults(graph, model.defaults)
    with closing(values_of(spec, graph, options)) as values:
        return _compiled(spec, options, model, graph, values)


def _compiled(spec: Spec, options: Options, model: Model, graph: Graph, values: Values) -> Compiled:
    given = readings.folders_of(options.weights, spec.config_file)
    path = place(options.output, MODEL, inputs=files_read(spec, model, values, given), force=options.force)
    reading = readings.reading_of(spec.program, model, given).placed(plain_stem(path.stem))
    onnx = backend.load("onnx")
    target = onnx.target(options.target)
    opset = options.opset or onnx.USUAL

    def manifest(built: Any, stored: Any) -> Mapping[str, str]:
        made = Manifest(
            model.name,
            model.doc,
            graph,
            None if options.defaults_inside else model.defaults,
            reading,
            model.config,
            vars(model.generation) if model.generation else None,
            {m.path: _text_of(m.file) for m in spec.library.modules.values()},
            weights_facts(values, options, stored.beside),
            {name: built.weights[stored.ties.get(name, name)].name for name in graph.parameters},
            target.name,
            opset,
            attentions=built.attentions,
        )
        return {KEY: made.dump()}

    written = onnx.package(
        rewrite(graph, [fuse_scan, split_scan]),
        path,
        values,
        target=target,
        opset=opset,
        weights_as=options.weights_as or "auto",
        metadata=manifest,
        load=options.try_load,
        beside=[(SUFFIX, file.content) for file in reading.files if file.name],
    )
    warnings = values.warnings if isinstance(values, Binding) else ()
    remarks = (*spec.remarks, *readings.remarks(model, given), *remarks_of(written, options))
    return Compiled(written.path, files_of(written, reading), model, remarks, (*warnings, *model.warnings))


def files_of(written: Any, reading: Reading) -> tuple[tuple[Path, int], ...]:
    """The files a model consists of that were written now, with their sizes."""
    beside = [*([written.data] if written.data else []), *(file.name for file in reading.files if file.name)]
    names = [written.path, *(written.path.parent / name for name in beside)]
    return tuple((path, path.stat().st_size) for path in names)


def remarks_of(written: Any, options: Options) -> tuple[str, ...]:
    """What became of the weights, where there was a choice."""
    linked, reasons = len(written.plan.linked), sorted(set(written.plan.reasons.values()))
    if linked:
        return (f"{linked} weights stay in their own file, which the model refers to: keep it beside the model",)
    if options.weights and reasons and not options.weights_as:
        return (f"weights were copied: {reasons[0]}",)
    return ()


def files_read(spec: Spec, model: Model, values: Values, given: Sequence[Path]) -> list[Path]:
    """Every file that a model is made from, none of which it may be written over."""
    found = [*spec.library.modules, *readings.files_of(spec.program, model, given)]
    if isinstance(values, Binding):
        found += [values.checkpoint.path, *(file.path for file in values.checkpoint.files)]
    if spec.config_file:
        found += [Path(spec.config_file), Path(spec.config_file) / "config.json"]
    return sorted(set(found))


def _text_of(file: tree.File) -> str:
    return file.span.source.text if file.span else ""


def weights_facts(values: Values, options: Options, beside: Mapping[str, Beside]) -> dict[str, Any]:
    """Where the numbers came from and where they are, for the manifest."""
    facts = {**_origin(values, options), "beside": {name: file.dump() for name, file in beside.items()}}
    return {**facts, "every_load": True} if options.hash_full else facts


def _origin(values: Values, options: Options) -> dict[str, Any]:
    """The seed, or each file's size and header hash."""
    if not isinstance(values, Binding):
        return {} if options.init is None else {"seed": options.init}
    files = list({id(f): f for f in map(values.checkpoint.file_of, values.checkpoint.tensors)}.values())
    facts = [{"name": f.path.name, "bytes": f.size, "header": f.header_hash} for f in files]
    if options.hash_full:
        facts = [{**fact, "sha256": content_hash(f.path)} for fact, f in zip(facts, files, strict=True)]
    return {"files": sorted(facts, key=lambda f: str(f["name"]))}


def content_hash(path: Path) -> str:
    """The SHA-256 of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def values_of(spec: Spec, graph: Graph, options: Options) -> Binding | Seeded:
    """The numbers of the parameters: a checkpoint's, the spec's own file's, or a seed's. E0523 names the three."""
    wanted = wanted_of(graph)
    context = context_of(spec.library)
    with deep(spec.program.module.file.span):
        config = requirements(context, spec.program, spec.reader)
    rules = rules_of(context, spec.program, Env(spec.program.module, config))
    if options.init is not None:
        _check_seed(options)
        return loading.seeded(graph, wanted, rules, options.init)
    path = options.weights or own_weights(spec.program)
    if path:
        return loading.bound(wanted, rules, path)
    if wanted:
        fail(
            "E0523",
            f"nothing says where the weights of `{spec.program.name}` come from",
            helps=[
                "--weights FILE or DIR reads a checkpoint",
                '`weights { from "model.safetensors" }` in the spec names one beside it',
                "--init SEED draws random ones, to try the architecture",
            ],
        )
    return loading.seeded(graph, wanted, rules, 0)


def _check_seed(options: Options) -> None:
    if options.weights:
        fail("E0525", "weights come from a file or from a seed, not from both", helps=["leave out --weights or --init"])
    if options.init is not None and not 0 <= options.init < 2**64:
        fail("E0525", f"the seed {options.init} is no number from 0 to 2^64 - 1")


def with_taps(graph: Graph, patterns: tuple[str, ...]) -> Graph:
    """The graph with values inside it as further results: `encoder.layers.*.self_attn:weights`."""
    outputs = dict(graph.outputs)
    for pattern in patterns:
        hits = [name for name in graph.names if fnmatchcase(name, pattern)]
        if not hits:
            some = ", ".join(list(graph.names)[:8])
            fail("E0408", f"nothing in the model is called `{shown(pattern)}`", helps=[f"there are {some} …"])
        outputs.update({_output_name(n, outputs): graph.names[n] for n in hits})
    return Graph(**{**graph.__dict__, "outputs": outputs})


def _output_name(name: str, taken: Mapping[str, object]) -> str:
    made = name.replace(":", ".")
    while made in taken:
        made += "_"
    return made
