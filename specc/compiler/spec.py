"""From what a user names to a checked model: the part of the pipeline that needs no
number and no backend.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from specc.compiler import reading as readings
from specc.compiler.rules import check_rules
from specc.compiler.ties import with_ties
from specc.elaborate.check import Trial, check_symbolic
from specc.elaborate.config import Reader
from specc.elaborate.context import Env
from specc.elaborate.model import context_of, elaborate, requirements
from specc.elaborate.modules import Assigned, Program, assign, flatten, program_of
from specc.elaborate.published import check_expected
from specc.elaborate.unshared import unshared
from specc.files.read import shown
from specc.ir.graph import Graph
from specc.ir.model import Model
from specc.lang import tree
from specc.lang.dsl.parse import parse_expression
from specc.library.config_file import config_at, has_config
from specc.library.files import Files
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


def _expected(program: Program) -> list[tree.Expect]:
    """What a spec says a config.json must hold."""
    entries = [
        entry for item, _ in program.items(tree.Config) for entry in item.entries
    ]
    return [entry for entry in entries if isinstance(entry, tree.Expect)]


def open_spec(
    spec: str, *, config: str = "", sets: Sequence[str] = (), weights: str = ""
) -> Spec:
    """Read a spec, what it extends, a config file and the values of `--set`.

    The config.json of a checkpoint folder `weights` is read where the spec takes values
    from one and no other is given.
    """
    library = Files()
    program = program_of(library.open(spec), library)
    program = assign(program, _assigned(sets))
    remarks: tuple[str, ...] = ()
    takes = any(field.sources for field in program.fields())
    if not config and takes and has_config(weights):
        config = weights
        remarks = (f"config values come from the config.json in `{shown(weights)}`",)
    data = config_at(config) if config else None
    if data is not None:
        check_expected(_expected(program), data)
    reader = Reader(published=library.published if data else None, raw=data)
    return Spec(program, library, reader, spec, config, remarks)


@dataclass
class Checked:
    """What `check` found: the symbolic readings, and the model with numbers where every
    value is known.
    """

    trials: list[Trial]
    model: Model | None
    missing: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()


def check(spec: Spec, graph: str = "") -> Checked:
    """Elaborate with symbols, then with numbers where the config is complete."""
    trials = check_symbolic(spec.program, spec.library, graph)
    try:
        model = elaborate(spec.program, spec.library, spec.reader, graph)
    except Failed as failed:
        # Values that only a checkpoint's config would give are no fault of the spec.
        missing = [d for d in failed.diagnostics if d.code == "E0401"]
        if len(missing) < len(failed.diagnostics):
            raise
        return Checked(trials, None, tuple(missing), _unshared(spec, trials))
    _check_beside(spec, model)
    return Checked(
        trials, model, (), (*_unshared(spec, trials, model), *model.warnings)
    )


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
    trials = check_symbolic(spec.program, spec.library, graph)
    model = elaborate(spec.program, spec.library, spec.reader, graph)
    _check_beside(spec, model)
    _unshared(spec, trials, model)
    return with_ties(spec.program, spec.library, spec.reader, model)


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
