"""`specc show` of a package: its files, and what goes from one step to the next."""

from collections.abc import Iterator, Sequence
from math import inf

from specc.artifact.facts import Facts
from specc.artifact.facts import load as load_facts
from specc.artifact.index import Index
from specc.files.read import shown
from specc.ir.derived import State
from specc.run.package import Package


def overview(package: Package) -> list[str]:
    """What a package holds, a line a graph and one for each further file."""
    cells = [
        (shown(role), shown(name), f"{size:,} bytes".replace(",", " "))
        for role, name, size in _files(package.index)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    graphs = package.index.graphs
    count = f"{len(graphs)} graph{'' if len(graphs) == 1 else 's'}"
    files = [
        f"  {role.ljust(widths[0])}  {name.ljust(widths[1])}  {size.rjust(widths[2])}"
        for role, name, size in cells
    ]
    title = f"package of `{shown(package.index.model)}`, {count}"
    return [title, *files, *_between_steps(package)]


def _files(index: Index) -> list[tuple[str, str, int]]:
    """The role, name and bytes of every file: graphs first, weights last."""
    named = [*sorted(index.graphs.items()), *sorted(index.extras.items())]
    rows = [(role, name, index.files[name].bytes) for role, name in named]
    others = index.files.keys() - {name for _, name in named}
    rows += [("weights", n, f.bytes) for n, f in index.files.items() if n in others]
    # Weights that stay in the checkpoint's own files.
    rows += [("weights", name, facts.bytes) for name, facts in index.linked.items()]
    return rows


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
