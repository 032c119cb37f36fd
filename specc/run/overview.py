"""`specc show` of a package: its files, and what goes from one step to the next."""

from collections.abc import Iterator, Sequence
from math import inf

from specc.artifact.facts import Facts
from specc.artifact.facts import load as load_facts
from specc.files.read import shown
from specc.ir.derived import State
from specc.run.package import Package


def overview(package: Package) -> list[str]:
    """What a package holds, a line a graph and one for each further file."""
    index = package.index
    graphs, extras = sorted(index.graphs.items()), sorted(index.extras.items())
    named = {name for _, name in (*graphs, *extras)}
    rows = [(role, name, index.files[name].bytes) for role, name in (*graphs, *extras)]
    rows += [("weights", n, f.bytes) for n, f in index.files.items() if n not in named]
    rows += [("weights", name, facts.bytes) for name, facts in index.linked.items()]
    cells = [
        (shown(role), shown(name), f"{size:,} bytes".replace(",", " "))
        for role, name, size in rows
    ]
    widths = [max(len(row[n]) for row in cells) for n in range(3)]
    count = f"{len(graphs)} graph{'' if len(graphs) == 1 else 's'}"
    files = [
        f"  {role.ljust(widths[0])}  {name.ljust(widths[1])}  {size.rjust(widths[2])}"
        for role, name, size in cells
    ]
    title = f"package of `{shown(index.model)}`, {count}"
    return [title, *files, *_between_steps(package)]


def _between_steps(package: Package) -> list[str]:
    """What `encode` hands over and what a step hands to the next, where the package says so."""
    about = package.index.about
    if "step" not in package.roles or not about or not package.described("step"):
        return []
    step = package.manifest("step").graph
    facts = load_facts(about, step, str(package.path))
    rows = [("handed over", n, str(step.inputs[n].type), "") for n in facts.handed]
    for state in facts.states:
        name = state.name.removeprefix("past.")
        rows.append(("kept", name, str(state.type), _growth(state, facts)))
    return ["between steps", *_columns([tuple(map(shown, row)) for row in rows])]


def _growth(state: State, facts: Facts) -> str:
    """How a state changes from step to step, in words; empty: it stays as large as it is."""
    if state.rows is None:
        return ""
    if state.most < inf:
        return f"at most {int(state.most)} rows"
    return "a buffer, in place" if state.name in facts.in_place else "grows"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of four cells, the last of which needs no room behind it."""
    widths = [max(len(row[n]) for row in rows) for n in range(3)] if rows else []
    for row in rows:
        cells = [
            text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)
        ]
        yield f"  {'  '.join(cells).rstrip()}"
