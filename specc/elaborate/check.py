"""The check before any number is known: every length a symbol, every choice tried.

A config value that decides structure (a count, a condition, a choice) is tried at its default, at both
truths, at every word, at counts 1 and 2; everything else stays a symbol.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from specc.elaborate.budget import Steps
from specc.elaborate.config import Reader
from specc.elaborate.context import Library, NeedsValue, undecided
from specc.elaborate.model import elaborate
from specc.elaborate.modules import Program, paths_of
from specc.elaborate.values import Picked
from specc.ir.dim import Dim
from specc.ir.model import Model
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed

MOST_TRIALS = 48


@dataclass(frozen=True)
class Trial:
    """One symbolic reading: what was tried and the model it gave."""

    values: dict[str, str]
    model: Model


def check_symbolic(program: Program, library: Library, graph: str = "") -> list[Trial]:
    """Elaborate with symbols. Raises Failed; a fault that shows only under some trial says under which."""
    fixed: dict[str, Any] = {}
    steps = Steps()
    model = _settle(program, library, graph, fixed, steps)
    trials = [Trial({k: _shown(v) for k, v in fixed.items()}, model)]
    faults: list[Diagnostic] = []
    others = [(p, v) for p, v in _alternatives(program, fixed) if fixed.get(p) != v]
    for path, value in others[:MOST_TRIALS]:
        tried = {**fixed, path: value}
        try:
            trials.append(Trial({path: _shown(value)}, _settle(program, library, graph, tried, steps)))
        except Failed as failed:
            note = f"seen with {path} = {_shown(value)}"
            faults += [replace(d, notes=(*d.notes, note)) for d in failed.diagnostics if not _required(d)]
    if faults:
        raise Failed(*faults[:20])
    return trials


def _required(diagnostic: Diagnostic) -> bool:
    """A trial that the spec itself rules out says nothing about the spec."""
    return diagnostic.code == "E0404"


def _settle(program: Program, library: Library, graph: str, fixed: dict[str, Any], steps: Steps) -> Model:
    """Elaborate, fixing fields that turn out to decide structure."""
    fields = paths_of(program.fields())
    for _ in range(len(fields) + 2):
        try:
            return elaborate(program, library, Reader(symbolic=True, fixed=fixed, steps=steps), graph)
        except NeedsValue as need:
            found = [p for s in need.symbols for p in _fields_of(s) if p in fields and p not in fixed]
            if not found:
                undecided(need)
            for path in found:
                fixed[path] = _usual(fields[path])
    raise AssertionError("a field was fixed twice")


def _fields_of(symbol: str) -> list[str]:
    """The config fields behind a symbol, also behind the quotient `a / b` of a requirement."""
    return [part.strip(" ()") for part in symbol.replace("*", "/").split("/")]


def _usual(entry: tree.Field) -> Dim:
    if isinstance(entry.default, tree.Num) and entry.default.text.isdigit() and int(entry.default.text) <= 2:
        return Dim.of(int(entry.default.text))
    return Dim.of(2)


def _alternatives(program: Program, fixed: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Other values to try, one at a time."""
    for path, entry in paths_of(program.fields()).items():
        if path in program.assigned:
            continue
        match entry.type.name:
            case "bool":
                yield path, True
                yield path, False
            case "choice":
                yield from ((path, Picked(w, entry.type.names)) for w in entry.type.names)
            case "int" if path in fixed:
                yield path, Dim.of(1)
                yield path, Dim.of(2)


def _shown(value: Any) -> str:
    match value:
        case Picked(word):
            return word
        case bool(b):
            return str(b).lower()
        case other:
            return str(other)
