"""One compile on its way: everything that the spec and the options come to, before any
graph is derived or lowered.

Both ways to compile, to one model (`specc.compiler.model`) and to a package
(`specc.compiler.package`), begin with `open_job` and hand the one value on.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

from specc import backend
from specc.artifact.manifest import Manifest
from specc.backend import Compiler, Emitted, How, Written
from specc.compiler import computing, precision
from specc.compiler import reading as readings
from specc.compiler.adapter import described_by, language_of
from specc.compiler.compiled import Compiled
from specc.compiler.generation_file import as_published
from specc.compiler.room import count_of, too_large_here
from specc.compiler.rounding import Asked, Spoken, spoken
from specc.compiler.spec import Spec, elaborated, others
from specc.compiler.taps import with_taps
from specc.compiler.tasks import with_task
from specc.compiler.weights import Sources, as_stored, facts_of, values_of
from specc.data.reading import Reading
from specc.ir.array import Array
from specc.ir.derived import Derived, Source
from specc.ir.graph import Graph
from specc.ir.model import Model
from specc.ir.precision import Fold
from specc.ir.target import Target
from specc.passes import pipeline
from specc.passes.quantize.folds import folds_of
from specc.passes.quantize.plan import Decision
from specc.weights.fitting import Fitting, Narrow
from specc.weights.folded import Folded
from specc.weights.quantized import Quantized, Ready
from specc.weights.scales import WithScales
from specc.weights.values import Binding, Seeded, Values, ties_of

HOW: Mapping[str, How] = {
    "": "auto",
    "auto": "auto",
    "link": "link",
    "inline": "inline",
}
"""Where weights go, by the word of the options."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `compile` is told. `weights`, `init` or the spec's own file give the
    numbers; `init_missing` is the seed of a head that the weights lack, `adapter` a
    folder of changes that are merged in.

    `dtype` is the type in which matrices of f32 are stored, `f16`, `bf16` or `f32`;
    empty, that of the checkpoint where they stay in it. `weights_as` is `link`, `copy`,
    `inline`, or empty for what fits best. `parts` are the graphs of a package (`score`,
    `encode`, `step`, `generate`), `names` whose names its inputs and outputs have
    (`specc.compiler.profiles`), `settings` how the one that decodes by itself chooses
    tokens (`specc.decode.settings`). `precision` says which weights are rounded, beside
    what the spec says of it; `for_quantizers` that other programs are to round them.
    """

    output: str
    weights: str = ""
    init: int | None = None
    init_missing: int | None = None
    adapter: str = ""
    target: str = "ort-cpu"
    opset: int = 0
    graph: str = ""
    taps: tuple[str, ...] = ()
    defaults_inside: bool = False
    weights_as: str = ""
    dtype: str = ""
    parts: tuple[str, ...] = ()
    names: str = "specc"
    settings: Mapping[str, object] = field(default_factory=dict)
    precision: Asked = field(default_factory=Asked)
    for_quantizers: bool = False
    hash_full: bool = False
    force: bool = False
    try_load: bool = True


@dataclass(frozen=True, kw_only=True)
class Job:
    """A spec, the options, and what they come to.

    `model` is what the spec elaborates to; `graph` is the model's, with the taps and
    defaults that were asked for, as the manifest shows it. `values` are the numbers of
    its parameters. `folders` are those that a tokenizer may lie in, `reading` says how
    inputs are read and results shown, `remarks` what files beside the weights say.
    `forms` is filled with what the backend tells of attentions. `ready` are weights
    of 4 bits that are rounded already, by inputs, `recipe` how these are rounded, for people;
    `scales` are those of states that are kept in 8 bits, by their names as parameters.
    """

    spec: Spec
    options: Options
    model: Model
    graph: Graph
    values: Binding | Seeded
    folders: tuple[Path, ...]
    reading: Reading
    remarks: tuple[str, ...] = ()
    forms: list[str] = field(default_factory=list)
    ready: Mapping[str, Ready] = field(default_factory=dict)
    recipe: str = ""
    scales: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def compiler(self) -> Compiler:
        """The backend. E0801 where it cannot be loaded."""
        return backend.compiler()

    @cached_property
    def target(self) -> Target:
        """The runtime that is written for. E0822 where there is none of that name, E0753
        where it cannot be for quantizers.
        """
        target = self.compiler.target(self.options.target)
        if self.options.for_quantizers:
            return precision.for_quantizers(target, self.rounding)
        return target

    @property
    def opset(self) -> int:
        """The one asked for, or the backend's usual one."""
        return self.options.opset or self.compiler.USUAL

    @property
    def weights_as(self) -> How:
        """Where the weights go."""
        return HOW.get(self.options.weights_as, "copy")

    @property
    def sources(self) -> dict[str, str]:
        """The texts of the spec's files by their names."""
        modules = self.spec.library.modules.values()
        return {m.path: m.file.span.source.text for m in modules if m.file.span}

    @cached_property
    def rounding(self) -> Spoken:
        """Which weights the spec and the options want rounded."""
        return spoken(self.spec.program, self.options.precision)

    @cached_property
    def simplified(self) -> Graph:
        """The graph as targets get it, its weights not yet rounded."""
        return pipeline.simplify(self.graph, fused=self.rounding.wish is None)

    @cached_property
    def precision(self) -> Decision:
        """Which weights are rounded. Fails with E0850 to E0853."""
        return precision.decided(
            self.simplified,
            self.rounding,
            self.target,
            self.opset,
            ties_of(self.values),
            lambda: others(self.spec, self.graph.name),
        )

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        """The norms whose gains are moved before rounding, where that is asked for."""
        if not self.rounding.fold:
            return ()
        return folds_of(self.simplified, ties_of(self.values), self.precision.plan)

    @cached_property
    def full(self) -> Values:
        """The numbers with all their bits, as they are rounded."""
        return self.folded or self.values

    @cached_property
    def folded(self) -> Folded | None:
        """The numbers with the gains of norms moved; None where none is."""
        return Folded(self.values, self.folds) if self.folds else None

    @cached_property
    def low(self) -> Quantized | None:
        """The weights that are rounded, among all; None where none is."""
        plan = self.precision.plan
        return Quantized(self.full, plan, self.ready) if plan else None

    @cached_property
    def narrow(self) -> Mapping[str, Narrow]:
        """Parameters that are stored in more bits than they are computed in."""
        plan, dtype = self.precision.plan, self.options.dtype
        return computing.read_narrow(self.simplified, plan, dtype, self.target)

    @property
    def numbers(self) -> Values:
        """The numbers as they are stored: `values`, rounded where that was asked for, and
        scales beside them. What is computed in 16 bits is told if it does not fit there.
        """
        stored: Values = self.low or self.full
        if self.scales:
            stored = WithScales(stored, self.scales)
        moved = self.folded.changed if self.folded else ()
        return Fitting(stored, self.narrow, moved) if self.narrow else stored

    def rounded(self, source: Source) -> Source:
        """What a model is made from, with the weights rounded that are to be."""
        return precision.rounded(source, self.precision.plan)

    @property
    def told(self) -> Graph:
        """The whole graph as the manifest shows it: as the spec has it, or with the casts
        of the one that is lowered, which stand where loops were split.
        """
        narrow = self.computed(self.simplified)
        return self.graph if narrow is self.simplified else narrow

    def computed(self, graph: Graph) -> Graph:
        """A graph in the width that the target computes in."""
        return computing.graph_in(graph, self.options.dtype, self.target)

    def computed_apart(self, derived: Derived) -> Derived:
        """The same of one that was taken apart."""
        return computing.derived_in(derived, self.options.dtype, self.target)

    def with_reading(self, reading: Reading) -> "Job":
        """The same job, its readings under the names that files have in the output."""
        return replace(self, reading=reading)


def report_of(job: Job, written: Written, *remarks: str) -> Compiled:
    """What is told of `written`; `remarks` come before those about weights."""
    warnings = job.values.warnings if isinstance(job.values, Binding) else ()
    remarks = (
        *job.spec.remarks,
        *readings.remarks(job.model, job.folders),
        *job.remarks,
        *job.rounding.remarks,
        *([job.recipe] if job.recipe else []),
        *precision.remarks_of(job.precision, job.folds, job.rounding),
        *precision.in_one_file(job.precision.plan, job.target, job.options.parts),
        *remarks,
        *_remarks_of(written, job.options, job.spec),
        *too_large_here(job.numbers, count_of(job.values)),
    )
    return Compiled(
        path=written.path,
        files=written.files,
        model=job.model,
        remarks=remarks,
        warnings=(*job.spec.warnings, *warnings, *job.model.warnings),
        forms=tuple(job.forms),
    )


def files_read(job: Job) -> list[Path]:
    """Every file that the model is made from, none of which it may be written over."""
    files = [
        *job.spec.library.modules,
        *readings.files_of(job.spec.program, job.model, job.folders),
    ]
    if isinstance(job.values, Binding):
        checkpoint = job.values.checkpoint
        files += [checkpoint.path, *(file.path for file in checkpoint.every_file)]
    files += described_by(job.options.adapter)
    if job.spec.config_file:
        config = Path(job.spec.config_file)
        # it may be named by itself, or by the folder of a checkpoint
        files += [config, config / "config.json"]
    if job.rounding.by.calibrate:
        files.append(Path(job.rounding.by.calibrate))
    return sorted(set(files))


@contextmanager
def open_job(spec: Spec, options: Options) -> Iterator[Job]:
    """Elaborate, find the weights and the readings; the files of weights are let go of
    afterwards. Fails with a diagnostic of the stage that cannot go on.
    """
    weights = options.weights or spec.checkpoint
    folders = readings.folders_of(weights, spec.config_file)
    language = language_of(options.adapter)
    told = as_published(elaborated(spec, options.graph), folders)
    model = told.model
    graph = with_taps(model.graph, options.taps)
    if options.defaults_inside and model.defaults:
        graph = pipeline.inline(graph, model.defaults)
    sources = Sources(
        path=options.weights,
        init=options.init,
        missing=options.init_missing,
        adapter=options.adapter,
    )
    with closing(values_of(spec, graph, sources)) as values:
        # rounded weights have an order of their own
        if not spoken(spec.program, options.precision).wish:
            graph, values = as_stored(graph, values)
        yield Job(
            spec=spec,
            options=options,
            model=model,
            graph=graph,
            values=values,
            folders=folders,
            reading=with_task(
                readings.reading_of(spec.program, model, folders, language),
                spec.program,
                model,
                spec.reader.raw,
                readings.folders_of(*map(str, folders), spec.repository),
            ),
            remarks=told.remarks,
        )


def manifest_of(
    job: Job,
    graph: Graph,
    emitted: Emitted,
    *,
    whole: bool = True,
    sources: Mapping[str, str] | None = None,
    decodes: Mapping[str, object] | None = None,
    scoring: Graph | None = None,
) -> Manifest:
    """What a model of `job` says about itself; `graph` is what it computes.

    A graph that is not `whole` was derived: it has inputs of its own, which nobody reads
    from a picture or a text, and generates nothing alone. A model that `decodes` by
    itself shows of the spec no more than its inputs, in which no default is inside, and
    no attention of it can be looked at; `scoring` is the graph that `verify` decodes.
    """
    model, described = job.model, scoring or graph
    job.forms.extend(_forms(graph.name, emitted))
    # A file that decodes computes them itself in any case, and says nothing of them.
    inside = job.options.defaults_inside and decodes is None
    return Manifest(
        name=model.name,
        doc=model.doc,
        graph=graph,
        defaults=model.defaults if whole and not inside else None,
        reading=job.reading if whole else Reading(),
        config=model.config,
        generation=vars(model.generation) if whole and model.generation else None,
        streaming=model.streaming if whole else None,
        sources=sources or {},
        weights=facts_of(
            job.values, job.options.init, emitted.beside, contents=job.options.hash_full
        ),
        stored={n: emitted.held[stored_as(job, n)] for n in described.parameters},
        precision=_precision_of(job, described, emitted),
        target=job.target.name,
        opset=job.opset,
        attentions=emitted.attentions if decodes is None else (),
        decodes=decodes,
        scoring=scoring,
    )


def stored_as(job: Job, name: str) -> str:
    """What holds the numbers of a parameter: itself, or its whole numbers."""
    form = job.precision.plan.get(name)
    return form.numbers(name) if form else name


def _precision_of(job: Job, graph: Graph, emitted: Emitted) -> dict[str, object]:
    """What the manifest says of rounded weights; nothing where there are none."""
    if job.low is None:
        return {}
    kept = job.precision.kept
    return precision.facts_of(graph, job.low, kept, emitted, job.recipe)


def _forms(graph: str, emitted: Emitted) -> Iterator[str]:
    """How the attentions of a graph are done, a line for neighbors that are alike."""
    told = ((a["how"], a["scope"]) for a in emitted.attentions if "how" in a)
    for how, alike in groupby(told, key=lambda one: one[0]):
        scopes = [scope for _, scope in alike]
        few = scopes if len(scopes) < 3 else [scopes[0], "…", scopes[-1]]
        yield f"{graph}: {' '.join(few)}: {how}"


def _remarks_of(written: Written, options: Options, spec: Spec) -> tuple[str, ...]:
    """What became of the weights, where there was a choice."""
    if linked := len(written.plan.linked):
        return (
            f"{linked} weights stay in their own file, which the model refers to: "
            "keep it beside the model",
        )
    reasons = sorted(set(written.plan.reasons.values()))
    # who says where weights go, or draws them, does not wonder where they went
    named = options.weights or spec.checkpoint
    if named and reasons and not options.weights_as:
        return (f"weights were copied: {reasons[0]}",)
    return ()
