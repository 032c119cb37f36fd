"""The check before any number is known: every length a symbol, every choice tried.

A config value that decides structure (a count, a condition, a choice) is tried at its
default, at both truths, at every word, at counts 1 and 2; everything else stays a
symbol. Sizes that the spec's own `require` forbids are not tried.
"""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

from specc.elaborate.budget import Steps
from specc.elaborate.config import Reader, derived, first_tried
from specc.elaborate.context import Library, undecided
from specc.elaborate.model import context_of, elaborate, requirements
from specc.elaborate.modules import Program
from specc.elaborate.needs import NeedsValue
from specc.elaborate.parts import tried
from specc.elaborate.values import Known, Picked, Record
from specc.ir.dim import Dim
from specc.ir.model import Model
from specc.lang import tree
from specc.text.brief import brief
from specc.text.diagnostic import Diagnostic, Failed, Label

MOST_TRIALS = 48


@dataclass(frozen=True)
class Trial:
    """One symbolic reading: what was tried and the model it gave."""

    values: dict[str, str]
    model: Model

    def __repr__(self) -> str:
        tried = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return brief(f"trial {tried or 'of all symbols'}")


def check_symbolic(
    program: Program, library: Library, graph: str = "", *, filed: bool = False
) -> list[Trial]:
    """Elaborate with symbols. Raises Failed; a fault that shows only under some trial
    says under which.

    A number that follows from others by its default (`side = image / patch`) is at first
    a symbol as well, so that what holds for any other value is seen. Where the spec needs
    it to be what it follows as, it is that.

    `filed`: a config file has other numbers than the defaults. Lengths that are given
    need not fit defaults then; whether they fit the file is seen with numbers.
    """
    if program.shipped:
        asked = (program.identity(), graph, filed)
        return [*_of_shipped(_Question(asked, program, library, graph, filed))]
    return _checked(program, library, graph, filed=filed)


@dataclass(frozen=True, slots=True)
class _Question:
    """A check of a shipped spec. `asked` is all that its answer hangs on."""

    asked: Hashable
    program: Program = field(compare=False)
    library: Library = field(compare=False)
    graph: str = field(compare=False)
    filed: bool = field(compare=False)


@lru_cache(maxsize=512)
def _of_shipped(question: _Question) -> list[Trial]:
    """The readings of a shipped spec, made once: its files and those it uses stay as they
    are, and who compiles one twice in a process waits for them once.
    """
    program, library = question.program, question.library
    return _checked(program, library, question.graph, filed=question.filed)


def _checked(
    program: Program, library: Library, graph: str, *, filed: bool
) -> list[Trial]:
    try:
        return _free_or_derived(program, library, graph)
    except Failed as failed:
        # a size that is given may fit the values of a file, not the defaults
        if filed and program.assigned and _of_sizes(failed):
            with suppress(Failed):
                return _free_or_derived(replace(program, assigned={}), library, graph)
        return _overridden(program, library, graph, failed)


def _overridden(
    program: Program, library: Library, graph: str, failed: Failed
) -> list[Trial]:
    """The readings without a number that is given and follows from others, where both
    are one: `side = 8` of 32 / 4. Raises a fault that is there because they are not
    shown at that number, and any other as it is.
    """
    fields = program.paths()
    given = {
        p: a for p, a in program.assigned.items() if p in fields and derived(fields[p])
    }
    if not given or not _of_shapes(failed):
        raise failed from None
    others = {p: a for p, a in program.assigned.items() if p not in given}
    without = replace(program, assigned=others)
    try:
        trials = _free_or_derived(without, library, graph)
    except Failed:
        raise failed from None
    if _alike(library, program, without, given):
        return trials
    found, (path, value) = failed.diagnostics[0], next(iter(given.items()))
    default, primary = fields[path].default, found.primary
    if value.span is None or default is None or default.span is None:
        raise failed from None
    says = f"left out, `{path}` is {default.span.text}"
    raise Failed(
        replace(
            found,
            title=f"`{path}` does not fit what it follows from: {found.title}",
            primary=Label(value.span, says),
            others=(*((primary,) if primary else ()), *found.others),
            helps=(f"leave `{path}` out, or change what it follows from",),
        )
    ) from None


def _alike(
    library: Library, one: Program, other: Program, paths: Iterable[str]
) -> bool:
    """Whether two programs have the same numbers at some paths, with the values and
    defaults that there are.
    """
    try:
        both = [
            requirements(context_of(library), program, Reader())
            for program in (one, other)
        ]
    except (Failed, NeedsValue):
        return False
    return all(_at(both[0], path) == _at(both[1], path) for path in paths)


def _at(values: Mapping[str, Known], path: str) -> Known:
    name, _, rest = path.partition(".")
    value = values.get(name)
    return _at(value.fields, rest) if rest and isinstance(value, Record) else value


def _free_or_derived(program: Program, library: Library, graph: str) -> list[Trial]:
    """The readings with every number free or, where these fail, what follows derived."""
    try:
        return _trials(program, library, graph, derived=False)
    except Failed as free:
        says = _follows(program)
        if not says or not _of_shapes(free):
            raise
    trials = _trials(program, library, graph, derived=True)
    return [replace(trials[0], values=says | trials[0].values), *trials[1:]]


def _follows(program: Program) -> dict[str, str]:
    """The fields that follow from others, and as what."""
    return {
        path: entry.default.span.text
        for path, entry in program.paths().items()
        if derived(entry)
        and path not in program.assigned
        and entry.default is not None
        and entry.default.span is not None
    }


def _of_shapes(failed: Failed) -> bool:
    """Whether all that is wrong is that lengths do not meet."""
    return all(d.code.startswith("E03") for d in failed.diagnostics)


def _of_sizes(failed: Failed) -> bool:
    """Whether all that is wrong is that lengths do not meet, or are not what the spec
    requires.
    """
    return all(_required(d) or _of_shapes(Failed(d)) for d in failed.diagnostics)


def _trials(
    program: Program, library: Library, graph: str, *, derived: bool
) -> list[Trial]:
    """The readings of `check_symbolic`, with numbers that follow from others as such or
    as symbols.
    """
    fixed: dict[str, Known] = {}
    settling = _Settling(program, library, graph, Steps(), derived)
    try:
        model = settling.settle(fixed)
    except Failed as failed:
        raise Failed(*_seen_with(failed, fixed)) from None
    trials = [Trial({k: _shown(v) for k, v in fixed.items()}, model)]
    faults: list[Diagnostic] = []
    # what the first reading took already is not tried again
    others = [(p, v) for p, v in _alternatives(program, fixed) if fixed.get(p) != v]
    fields = program.paths()
    for path, value in others[:MOST_TRIALS]:
        # the value that the first reading had anyway, with the same model
        if path not in fixed and value == _taken(fields[path]):
            trials.append(Trial({path: _shown(value)}, model))
            continue
        try:
            made = settling.settle(_but_below(path, fixed) | {path: value})
            trials.append(Trial({path: _shown(value)}, made))
        except Failed as failed:
            seen = _seen_with(failed, {path: value})
            faults += [d for d in seen if not _required(d)]
    if faults:
        raise Failed(*faults[:20])
    return trials


def _but_below(path: str, fixed: Mapping[str, Known]) -> dict[str, Known]:
    """What is fixed but for what lies below a path: what was tried for one of several
    used specs is not for another.
    """
    inside = f"{path}."
    return {p: v for p, v in fixed.items() if not p.startswith(inside)}


def _seen_with(failed: Failed, sizes: Mapping[str, Known]) -> list[Diagnostic]:
    """Faults of a reading that took sizes of its own, which the spec does not show."""
    if not sizes:
        return list(failed.diagnostics)
    values = ", ".join(f"{path} = {_shown(value)}" for path, value in sizes.items())
    return [
        replace(d, notes=(*d.notes, f"seen with {values}")) for d in failed.diagnostics
    ]


def _required(diagnostic: Diagnostic) -> bool:
    """A trial that the spec itself rules out says nothing about the spec."""
    return diagnostic.code == "E0404"


@dataclass(frozen=True, slots=True)
class _Settling:
    """What the readings of one check have in common."""

    program: Program
    library: Library
    graph: str
    steps: Steps
    derived: bool

    def _read(self, fixed: Mapping[str, Known]) -> Model:
        reader = Reader(
            symbolic=True, derived=self.derived, fixed=fixed, steps=self.steps
        )
        program = tried(self.program, fixed)
        return elaborate(program, self.library, reader, self.graph)

    def settle(self, fixed: dict[str, Known]) -> Model:
        """Elaborate, fixing fields that turn out to decide structure at sizes the spec
        allows.
        """
        fields = tried(self.program, fixed).paths()
        free: dict[str, tree.Field] = {}
        sizes: Iterator[dict[str, Known]] = iter(())
        forbidden: Failed | None = None
        while True:
            try:
                return self._read(fixed)
            except NeedsValue as need:
                # the config values behind the symbols: `d / heads` hangs on two of them
                behind = [p for s in need.symbols for p in _fields_of(s)]
                found = {p: fields[p] for p in behind if p in fields and p not in fixed}
                # a length that only an input tells: no trial would decide that
                if not found:
                    undecided(need)
                free |= found
                sizes = _sizes(free)
                fixed.update(next(sizes))
            except Failed as failed:
                # A fault of the spec is one at any size; only what its own `require`
                # forbids is asked for again at others.
                if not all(map(_required, failed.diagnostics)):
                    raise failed from None
                # the first refusal is the one to show if every size is refused: its numbers
                # are the simplest
                forbidden = forbidden or failed
                other = next(sizes, None)
                if other is None:
                    raise forbidden from None
                fixed.update(other)


FIELD = re.compile(r"[A-Za-z_][\w.]*")


def _fields_of(symbol: str) -> list[str]:
    """The config fields behind a symbol: itself, or those in a quotient or another
    number made of several.
    """
    return FIELD.findall(symbol)


LARGER = (4, 8, 16, 3, 6, 12, 32, 64, 24, 48, 96, 128, 256)
"""Sizes that are tried where what a spec requires forbids the usual ones."""


def _sizes(fields: Mapping[str, tree.Field]) -> Iterator[dict[str, Known]]:
    """Values for fields that decide structure: small ones, then the defaults, then
    others, alone and together.

    Sizes that the spec's own `require` forbids are passed over for the next.
    """
    usual: dict[str, Known] = {p: _usual(entry) for p, entry in fields.items()}
    yield dict(usual)
    defaults = {path: _default(entry) for path, entry in fields.items()}
    yield usual | {path: d for path, d in defaults.items() if d is not None}
    whole = [path for path, entry in fields.items() if entry.type.name == "int"]
    sizes: list[Known] = [Dim.of(size) for size in (1, *LARGER)]
    for path in whole:
        yield from (usual | {path: size} for size in sizes)
    if len(whole) > 1:  # `require a == b` holds for none of those
        yield from (usual | dict.fromkeys(whole, size) for size in sizes)


def _default(entry: tree.Field) -> Dim | float | None:
    if not isinstance(entry.default, tree.Num):
        return None
    text = entry.default.text
    return Dim.of(int(text)) if text.isdigit() else float(text)


def _usual(entry: tree.Field) -> Dim | float:
    if entry.type.name == "float":
        return 0.5
    value = _default(entry)
    return value if isinstance(value, Dim) and value.number in (0, 1, 2) else Dim.of(2)


def _alternatives(
    program: Program, fixed: dict[str, Known]
) -> Iterator[tuple[str, Known]]:
    """Other values to try, one at a time."""
    for path, entry in program.paths().items():
        # Values that are given to one of several used specs are not for another.
        given = any(p == path or p.startswith(f"{path}.") for p in program.assigned)
        if given:
            continue
        match entry.type.name:
            case "bool":
                yield path, True
                yield path, False
            case "choice":
                yield from (
                    (path, Picked(w, entry.type.names)) for w in entry.type.names
                )
            case "int" if path in fixed:
                yield path, Dim.of(1)
                yield path, Dim.of(2)


def _taken(entry: tree.Field) -> Known:
    """What the first reading takes a truth or a choice for, where that is one word: to
    try it would be the same reading again. None where that is not seen.
    """
    if entry.default is None:
        return None if entry.type.optional else first_tried(entry.type)
    if not isinstance(entry.default, tree.Name):
        return None
    word = entry.default.path
    if entry.type.name == "bool":
        return {"true": True, "false": False}.get(word)
    return Picked(word, entry.type.names) if word in entry.type.names else None


def _shown(value: Known) -> str:
    match value:
        case Picked(word):
            return word
        case bool(b):
            return str(b).lower()
        case other:
            return str(other)
