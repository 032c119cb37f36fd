"""A text as it stands in an editor → all that is known of it.

A check as `specc check` does it, with the texts of the editor in place of the files. What
names stand for is written down on the way.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from specc.compiler.spec import Checked, Spec, check, open_spec
from specc.elaborate.context import Module
from specc.elaborate.noted import NOTES, Notes, Reading
from specc.lang import tree
from specc.lang.read import answered, read
from specc.lang.read import syntax as syntax_of
from specc.library.files import Files, root, shipped
from specc.passes.prove.facts import report
from specc.text.diagnostic import Diagnostic, Failed, folded
from specc.text.source import Source, Span

Shapes = Mapping[tuple[int, int], tuple[str, ...]]
"""What stands at places of a text, by their offsets."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What was found in one state of a text.

    `file` is its tree, `module` that made ready for look-up, `spec` the program: each
    where it could be made. `readings` are the elaborations, of which each says what
    stood where.
    """

    path: Path
    source: Source
    syntax: str
    library: Files
    file: tree.File | None = None
    module: Module | None = None
    spec: Spec | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    readings: tuple[Reading, ...] = field(default=(), repr=False)

    @cached_property
    def shapes(self) -> Shapes:
        """What stands where with every length a symbol. A reading that found no fault
        comes first.
        """
        symbolic = [r for r in self.readings if r.symbolic]
        return self._said(sorted(symbolic, key=lambda r: not r.whole))

    @cached_property
    def numbers(self) -> Shapes:
        """What stands where with the numbers of the config, where it has them."""
        return self._said([r for r in self.readings if not r.symbolic and r.whole])

    def _said(self, readings: list[Reading]) -> Shapes:
        found: dict[tuple[int, int], tuple[str, ...]] = {}
        for reading in readings:
            for span, said in reading.at.items():
                if self.is_here(span):
                    found.setdefault((span.start, span.end), tuple(said))
        return found

    def is_here(self, span: Span) -> bool:
        """Whether a place is in this text, and not in a file that it uses."""
        there = span.source
        # a tree that was read before has a source of its own, of the same name and text
        return there is self.source or (
            there.name == self.source.name and there.text == self.source.text
        )

    def path_of(self, span: Span) -> Path | None:
        """The file that a place is in; None for a text that is no file."""
        if self.is_here(span):
            return self.path
        name = span.source.name
        for path, module in self.library.modules.items():
            there = module.file.span
            if there is not None and there.source.name == name:
                return path
        if name.startswith("std/"):
            return root() / name
        return next((p for p in shipped().values() if p.name == name), None)


def analyses(
    path: Path, text: str, unsaved: Mapping[Path, str] | None = None
) -> Iterator[Analysis]:
    """What is known of a text that is to lie at `path`, and more of it each time: the
    graphs of a spec one after the other, the usual one first. Never fails for what the
    text says.

    `unsaved` are the texts of other files, by their resolved paths.
    """
    library = Files(unsaved={**(unsaved or {}), path.resolve(): text})
    source = Source(str(path), text)
    syntax = "specc" if path.suffix == ".specc" else "yaml"
    known = Analysis(path=path, source=source, syntax=syntax, library=library)
    try:
        known = replace(known, syntax=syntax_of(source), file=read(source))
        known = replace(known, module=library.module(path, str(path)))
        spec = open_spec(str(path), library=library)
    except Failed as failed:
        yield replace(known, diagnostics=tuple(answered(failed.diagnostics)))
        return
    known = replace(known, spec=spec)
    for graph in _graphs(spec):
        known = _with_graph(known, spec, graph)
        yield known


def _graphs(spec: Spec) -> Iterator[str]:
    """The graphs of a spec by name, first the one that `specc check` means."""
    yield ""
    graphs = [b for b, _ in spec.program.items(tree.Block) if b.kind == "graph"]
    yield from (block.name for block in graphs[1:])


def _with_graph(known: Analysis, spec: Spec, graph: str) -> Analysis:
    """The same with what the check of one more graph says."""
    notes = Notes()
    before = NOTES.set(notes)
    said: list[Diagnostic] = []
    try:
        found = check(spec, graph)
        # warnings are about the graph that a command means when nobody names one: some
        # of them hang on numbers that others would be given
        said += [] if graph else _of_graph(found)
    except Failed as failed:
        said += failed.diagnostics
    finally:
        NOTES.reset(before)
    new = [d for d in answered(folded(said)) if d not in known.diagnostics]
    return replace(
        known,
        diagnostics=(*known.diagnostics, *new),
        readings=(*known.readings, *notes.readings),
    )


def _of_graph(found: Checked) -> Iterator[Diagnostic]:
    """Warnings of a graph that checks, and what is proved to be wrong with it."""
    model = found.model or found.trials[0].model
    grows = model.generation
    proved = (
        report(model.graph, grows.growing, grows.source, model.defaults)
        if grows
        else report(model.graph)
    )
    yield from found.warnings
    yield from proved.warnings
    yield from proved.errors


def analyze(
    path: Path, text: str, unsaved: Mapping[Path, str] | None = None
) -> Analysis:
    """All that is known of a text."""
    return list(analyses(path, text, unsaved))[-1]


def used_by(known: Analysis, module: Module, use: tree.Use) -> Module | None:
    """The file that a `use` names; None where it cannot be read."""
    with suppress(Failed):
        return known.library.used(use.path, module, None)
    return None
