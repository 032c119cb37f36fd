"""`share` rules that nothing needs: a name misspelled, or a sharing that is gone."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from specc.elaborate.check import check_symbolic
from specc.elaborate.context import Library
from specc.elaborate.modules import Program
from specc.ir.model import Model
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label
from specc.text.suggest import suggestion
from specc.weights.names import Pattern, nearest


def unshared(
    program: Program, library: Library, models: Sequence[Model]
) -> list[Diagnostic]:
    """E0527 for a rule that names no weights of any graph, W0505 for one whose weights
    no two calls use.

    `models` are the readings of one graph; the others are read only where a rule is not
    needed by this one.
    """
    rules = [
        r
        for item, _ in program.items(tree.Weights)
        for r in item.rules
        if isinstance(r, tree.Share)
    ]
    everywhere = list(models)
    others = _others(program, library, models[0].graph.name)
    # a reading of another graph takes as long as this one's: no more than are asked for
    while missing := [r for r in rules if not _needed(r, everywhere)]:
        more = next(others, None)
        if more is None:
            break
        everywhere += more
    return [_fault(r, everywhere) for r in missing if _meant(r, everywhere)]


def _needed(rule: tree.Share, models: Iterable[Model]) -> bool:
    return any(m.shares.get(rule.name.text) for m in models)


def _meant(rule: tree.Share, models: Iterable[Model]) -> bool:
    """Whether its condition held somewhere."""
    return any(rule.name.text in m.shares for m in models)


def _others(program: Program, library: Library, known: str) -> Iterator[list[Model]]:
    """The readings of each other graph of a spec; the faults of these are found when
    they are checked.
    """
    for item in program.module.items.values():
        if isinstance(item, tree.Block) and item.kind == "graph" and item.name != known:
            with suppress(Failed):
                trials = check_symbolic(program, library, item.name)
                yield [t.model for t in trials]


def _fault(rule: tree.Share, models: Iterable[Model]) -> Diagnostic:
    path = rule.name.text
    label = Label(rule.span, "named by this `share`") if rule.span else None
    names = {
        p: None for m in models for name in m.graph.parameters for p in _upward(name)
    }
    if any(map(Pattern(path).matches, names)):
        help_ = "take it away, or give both calls this name by `@`"
        return Diagnostic(
            "W0505",
            f"no two calls share `{path}`",
            label,
            helps=(help_,),
            severity="warning",
        )
    close = nearest(path, names)
    hint = suggestion(close) if close else "`specc show` lists the names of all weights"
    return Diagnostic(
        "E0527", f"there are no weights at `{path}` to share", label, helps=(hint,)
    )


def _upward(name: str) -> list[str]:
    """`a.b.c`, `a.b`, `a`."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
