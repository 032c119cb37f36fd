"""From what a user names to a checked model: the part of the pipeline that needs no
number and no backend.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.compiler import reading as readings
from specc.compiler.family import graph_for, spec_for
from specc.compiler.rounding import Asked, check_spoken, spoken
from specc.compiler.rules import check_rules
from specc.compiler.sentence_transformers import (
    Wrapped,
    encoder_of,
    part_of,
    wrapped_spec,
)
from specc.compiler.ties import with_ties
from specc.compiler.vocabularies import unreached_in
from specc.elaborate.blame import blamed
from specc.elaborate.check import Trial, check_symbolic
from specc.elaborate.config import Reader
from specc.elaborate.context import Env
from specc.elaborate.json_nodes import JsonObject
from specc.elaborate.model import context_of, elaborate, requirements
from specc.elaborate.modules import Assigned, Program, assign, flatten, program_of
from specc.elaborate.parts import TYPE, chosen, entries_of, section, uses_config
from specc.elaborate.published import check_expected, check_quantized
from specc.elaborate.published_keys import limited_contexts, unread
from specc.elaborate.unshared import unshared
from specc.files.read import shown
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.model import Model
from specc.lang import tree
from specc.lang.dsl.parse import parse_expression
from specc.library.config_file import config_at, has_config
from specc.library.files import Files, is_built_in, shadow_note, shadowed_path
from specc.text.brief import brief, card
from specc.text.diagnostic import Diagnostic, Failed, fail
from specc.text.source import Source


@dataclass
class Spec:
    """A spec opened: its program, the library it was read through, and how its config
    is to be read.
    """

    program: Program
    library: Files
    reader: Reader
    named: str
    config_file: str = ""
    remarks: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    checkpoint: str = ""
    """The folder of weights that was named in place of a spec."""
    repository: str = ""
    """The directory that was named, of which `checkpoint` may be a part."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """The weights of modules behind the checkpoint, by the prefix of their tensors."""


def _assigned(sets: Sequence[str]) -> dict[str, Assigned]:
    """The values of `--set`, by path. Fails with E0407."""
    assigned: dict[str, Assigned] = {}
    for setting in sets:
        path, equals, text = setting.partition("=")
        if not equals:
            fail(
                "E0407",
                f"`--set {shown(setting)}` gives no value",
                helps=["write --set heads=4"],
            )
        expr = parse_expression(Source(f"--set {path}", text))
        flatten(path.strip(), expr, expr.span, assigned)
    return assigned


def open_spec(
    spec: str | Source,
    *,
    config: str = "",
    sets: Sequence[str] = (),
    weights: str = "",
    own: str = "",
    longest: int = 0,
    library: Files | None = None,
) -> Spec:
    """Read a spec, what it extends, a config file and the values of `--set`.

    The config.json of a checkpoint folder `weights` is read where the spec takes values
    from one and no other is given. `spec` may be a checkpoint folder itself: then its
    config.json tells the spec, unless that is `own`. `longest` is how long texts may
    be, where that decides how positions turn. A `Source` is the text of a spec.
    `library` is where specs are looked for.
    """
    library = library or Files()
    folder = _folder(spec)
    encoder = encoder_of(folder)
    remarks: tuple[str, ...]
    named = _name(spec)
    wrapped = _wrapped(folder, own, library)
    if folder:
        config = config or encoder
        spec = wrapped.source if wrapped else own or spec_for(config)
        remarks = wrapped.remarks if wrapped else (_read_by(folder, _name(spec)),)
    else:
        remarks = _of_a_name(_name(spec), own)
    program = program_of(library.open(spec), library)
    if not config and uses_config(program) and has_config(weights):
        config = weights
        remarks += (f"config values come from the config.json in `{shown(weights)}`",)
    data = _config_of(config, wrapped)
    program = program if data is None else chosen(program, data)
    program = assign(program, _assigned(sets))
    reader = Reader(longest=longest)
    made = Spec(program, library, reader, named, config, remarks, checkpoint=encoder)
    made.repository, made.modules = folder, wrapped.weights if wrapped else {}
    return made if data is None else _configured(made, data)


def _of_a_name(name: str, own: str) -> tuple[str, ...]:
    """The notes of a spec that is no directory. E0222 where `own` is given for one."""
    if own:
        _no_folder(name)
    note = shadow_note(name)
    return (note,) if note else ()


def _config_of(config: str, wrapped: Wrapped | None) -> JsonObject | None:
    """The config file that is named, as the spec reads it."""
    data = config_at(config) if config else None
    return part_of(data) if data is not None and wrapped else data


def _read_by(folder: str, name: str) -> str:
    return f"`{shown(folder)}` is read by the spec `{shown(name)}`"


def _wrapped(folder: str, own: str, library: Files) -> Wrapped | None:
    """The spec of a sentence-transformers directory, unless one is named."""
    if own:
        return None
    return wrapped_spec(folder, lambda name: program_of(library.open(name), library))


def _name(spec: str | Source) -> str:
    """What messages call a spec."""
    return spec.name if isinstance(spec, Source) else spec


def _folder(spec: str | Source) -> str:
    """Return the checkpoint directory that is given in place of a spec; empty for any
    other path, and for the name of a built-in spec.
    """
    if (
        isinstance(spec, Source)
        or is_built_in(spec)
        or not has_config(encoder_of(spec))
    ):
        return ""
    return spec


def _configured(spec: Spec, data: JsonObject) -> Spec:
    """The spec with what a config.json says, and keys of it that nobody reads."""
    family = _expected(spec.program, data)
    check_quantized(data)
    # Only files of a published family have keys that are known to be its own.
    return replace(
        spec,
        reader=replace(spec.reader, published=spec.library.published, raw=data),
        warnings=(
            *(unread_of(spec.program, data) if family else ()),
            *([] if spec.reader.longest else _limited_contexts(spec.program, data)),
        ),
    )


def _expected(program: Program, data: JsonObject, *, used: bool = False) -> bool:
    """Whether a spec is for files of a family. Fails with E0405 where the file, or a part
    of it that a used spec reads, is none such.
    """
    wanted = [e for e in entries_of(program) if isinstance(e, tree.Expect)]
    # A part that does not say what it is about is what the spec that uses it takes it for.
    silent = used and data.given(TYPE) is None
    check_expected([e for e in wanted if not silent or e.key != TYPE], data)
    for part in program.parts:
        if (inner := section(part, data)) is not None:
            with blamed(part.use):
                _expected(part.program, inner, used=True)
    return any(e.key == TYPE for e in wanted)


def unread_of(program: Program, data: JsonObject) -> Iterator[Diagnostic]:
    """W0418 for the keys that nothing names, in each part of the file on its own."""
    keys = [key for part in program.parts for key in part.use.sources]
    yield from unread([*entries_of(program), tree.Unread(tuple(keys))], data)
    for part in program.parts:
        if (inner := section(part, data)) is not None:
            yield from unread_of(part.program, inner)


def _limited_contexts(program: Program, data: JsonObject) -> Iterator[Diagnostic]:
    """Yield W0436 for the rotary settings of the file, in each of its parts."""
    yield from limited_contexts(entries_of(program), data)
    for part in program.parts:
        if (inner := section(part, data)) is not None:
            yield from _limited_contexts(part.program, inner)


def _usual(spec: Spec) -> str:
    """The graph that the config asks for where nobody else does; empty: the first."""
    return graph_for(spec.program, spec.reader.raw) if spec.reader.raw else ""


def _no_folder(spec: str) -> NoReturn:
    fail(
        "E0222",
        f"`{shown(spec)}` is no folder with a config.json, and `--spec` is for such",
        helps=[
            f"`{spec}` names the built-in spec; write `{shown(path)}` for the directory"
            if (path := shadowed_path(spec))
            else "name the spec alone, or the folder of a checkpoint behind --spec"
        ],
    )


@dataclass
class Checked:
    """What `check` found: the symbolic readings, and the model with numbers where every
    value is known.
    """

    trials: list[Trial]
    model: Model | None
    missing: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(f"check: {self._found}, {self._counted}")

    def _repr_html_(self) -> str:
        """What was found, for a notebook."""
        return card(
            "specc check",
            [
                ("model", self._found),
                ("tried", self._counted),
                *(("missing", d.title) for d in self.missing),
                *(("remark", remark) for remark in self.remarks),
                *(("warning", f"{d.code}: {d.title}") for d in self.warnings),
            ],
        )

    @property
    def _found(self) -> str:
        if self.model is None:
            # a config file would say what is missing
            return f"right for every size, {len(self.missing)} values are missing"
        return f"{self.model.name}, {self.model.graph.signed()}"

    @property
    def _counted(self) -> str:
        warnings = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"{len(self.trials)} symbolic readings{warnings}"


def check(spec: Spec, graph: str = "") -> Checked:
    """Elaborate with symbols, then with numbers where the config is complete."""
    graph = graph or _usual(spec)
    trials = _symbolic(spec, graph)
    # the words of `quantize` need no value of the config, its patterns do
    spoken(spec.program, Asked())
    try:
        model = elaborate(spec.program, spec.library, spec.reader, graph)
    except Failed as failed:
        # Values that only a checkpoint's config would give are no fault of the spec.
        missing = [d for d in failed.diagnostics if d.code == "E0401"]
        if len(missing) < len(failed.diagnostics):
            raise
        warnings = (*spec.warnings, *_unshared(spec, trials))
        return Checked(trials, None, tuple(missing), warnings, spec.remarks)
    _check_beside(spec, model)
    check_spoken(spec.program, model.graph, lambda: others(spec, model.graph.name))
    _check_longest(spec, model)
    unneeded = _unshared(spec, trials, model)
    warnings = (
        *spec.warnings,
        *unneeded,
        *model.warnings,
        *_unreached(spec, model),
    )
    return Checked(trials, model, (), warnings, spec.remarks)


def _symbolic(spec: Spec, graph: str) -> list[Trial]:
    """The readings with symbols."""
    filed = spec.reader.raw is not None
    return check_symbolic(spec.program, spec.library, graph, filed=filed)


def _unreached(spec: Spec, model: Model) -> tuple[Diagnostic, ...]:
    """W0756, of vocabularies in the spec and beside it: those beside weights are tables of
    words in general, most of which no text of a model needs.
    """
    try:
        reading = readings.reading_of(spec.program, model)
    except Failed:
        return ()
    return tuple(unreached_in(spec.program, reading))


def _check_beside(spec: Spec, model: Model) -> None:
    """What the spec says beside its graph, about weights and readings: all that is
    wrong with it whatever the files.
    """
    context = context_of(spec.library)
    config = requirements(context, spec.program, spec.reader)
    check_rules(
        spec.program,
        context,
        Env(module=spec.program.module, config=config),
        model.graph,
        lambda: others(spec, model.graph.name),
    )
    if faults := readings.faults_of(spec.program, model):
        raise Failed(*faults)


def _check_longest(spec: Spec, model: Model) -> None:
    """E0435 for a length of texts that nothing in the model hangs on."""
    wanted = spec.reader.longest
    if not wanted or _turns_up_to(wanted, model.graph):
        return
    fail(
        "E0435",
        f"`--context {wanted}` changes nothing: positions of this model do not turn by "
        "frequencies that the length of a text decides",
        helps=["leave it out"],
    )


def _turns_up_to(longest: int, graph: Graph) -> bool:
    """Whether something in a graph, bodies of loops included, turns so far."""
    found = (
        op.most == longest
        if isinstance(op, ops.RopeAngles)
        else isinstance(op, ops.Scan) and _turns_up_to(longest, op.body)
        for op in (node.op for node, _ in graph.nodes)
    )
    return any(found)


def others(spec: Spec, graph: str) -> Iterator[Graph]:
    """The other graphs of a spec, those that can be made with its config."""
    for block, _ in spec.program.items(tree.Block):
        if block.kind == "graph" and block.name != graph:
            with suppress(Failed):
                yield elaborate(
                    spec.program, spec.library, spec.reader, block.name
                ).graph


def elaborated(spec: Spec, graph: str = "") -> Model:
    """The model with numbers, after the symbolic check has passed."""
    graph = graph or _usual(spec)
    trials = _symbolic(spec, graph)
    model = elaborate(spec.program, spec.library, spec.reader, graph)
    _check_beside(spec, model)
    _check_longest(spec, model)
    _unshared(spec, trials, model)
    told = replace(model, warnings=(*model.warnings, *_unreached(spec, model)))
    return with_ties(spec.program, spec.library, spec.reader, told)


def _unshared(
    spec: Spec, trials: Sequence[Trial], *models: Model
) -> tuple[Diagnostic, ...]:
    """Warnings about `share` rules that are not needed. Fails with E0527 for one that
    names nothing.
    """
    found = unshared(spec.program, spec.library, [*(t.model for t in trials), *models])
    if errors := [d for d in found if d.severity == "error"]:
        raise Failed(*errors)
    return tuple(found)
