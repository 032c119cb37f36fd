"""What a checkpoint's config.json says of the spec that it belongs to: the family, and
which of the family's graphs.
"""

from collections.abc import Iterator
from pathlib import Path

from specc.elaborate.beside import graphs_of
from specc.elaborate.json_nodes import JsonList, JsonObject, JsonScalar, Member
from specc.elaborate.modules import Program
from specc.elaborate.parts import TYPE
from specc.files.read import shown
from specc.lang import tree
from specc.library.config_file import NAME, config_at
from specc.library.files import Files, shipped
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean, suggestion

CLASSES = "architectures"


def spec_for(folder: str) -> str:
    """The shipped spec that reads checkpoints of the type that a folder's config.json
    names.

    Fails with E0419 where it names none, or one that no spec reads.
    """
    data = config_at(folder)
    member = data.given(TYPE)
    value = member.value.value if member and isinstance(member.value, JsonScalar) else 0
    where = shown(str(Path(folder) / NAME))
    if not isinstance(value, str):
        fail(
            "E0419",
            f"`{where}` does not say what kind of model it is",
            member.value.span if member else None,
            notes=[f'"{TYPE}" is missing, or no text'],
            helps=["name the spec: specc compile --spec my.specc DIR"],
        )
    found = next((n for n, types in _types(value) if value in types), "")
    if not found:
        known = sorted(types_read())
        near = did_you_mean(value, known)
        fail(
            "E0419",
            f"no spec reads checkpoints of the type `{shown(value)[:60]}`",
            member.value.span if member else None,
            helps=[
                *([f"the nearest that one reads is `{near}`"] if near else []),
                "`specc list types` names those that one reads",
                "write one, and name it: specc compile --spec my.specc DIR "
                "(docs/families.md)",
            ],
        )
    return found


def types_read() -> dict[str, str]:
    """Every type of checkpoint that a shipped spec reads, with the name of the spec that
    reads it: of several, the first, as in `spec_for`.
    """
    specs: dict[str, str] = {}
    for name, types in _types():
        for kind in types:
            specs.setdefault(kind, name)
    return specs


def _types(named: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    """Each shipped spec that reads published checkpoints, with the types it reads; only
    those whose text has `named` in it.
    """
    mark = f'expect "{TYPE}" in'
    # A library of its own: what is only looked at is no source of the model.
    library = Files()
    for name, path in shipped().items():
        if path.suffix != ".specc":
            continue
        # Reading the text is quick; making a tree of each file is not.
        text = path.read_text(encoding="utf-8")
        if mark in text and named in text:
            yield name, _expected(library.module(path, path.name).file)


def _expected(file: tree.File) -> frozenset[str]:
    """The types that a spec's config expects."""
    entries = [
        entry
        for item in file.items
        if isinstance(item, tree.Config)
        for entry in item.entries
    ]
    wanted = [e for e in entries if isinstance(e, tree.Expect) and e.key == TYPE]
    return frozenset(value for entry in wanted for value in entry.values)


def graph_for(program: Program, data: JsonObject) -> str:
    """The graph that is made for an architecture which a config.json names; empty where
    the spec's graphs name none, or the file does not.

    Fails with E0420 for an architecture that no graph is made for.
    """
    graphs = [g for g in graphs_of(program) if g.made_for]
    member = data.given(CLASSES)
    named = _classes(member) if member else []
    # Nothing is said on one side or the other, so the first graph is meant.
    if not graphs or not named or member is None:
        return ""
    for graph in graphs:
        if set(named) & set(graph.made_for):
            return graph.name
    every = [name for graph in graphs for name in graph.made_for]
    near = did_you_mean(named[0], every)
    fail(
        "E0420",
        f"no graph of `{program.module.path}` is made for `{shown(named[0])[:80]}`",
        member.value.span,
        notes=[f"there are graphs for {', '.join(every)}"],
        helps=[
            *([suggestion(near)] if near else []),
            f"choose a graph yourself: --graph {graphs[0].name}",
        ],
    )


def _classes(member: Member) -> list[str]:
    """The classes that a config.json names: a list of texts, null, or one text, which
    stands for a list of it. Fails with E0420 for anything else.
    """
    value = member.value
    items = value.items if isinstance(value, JsonList) else (value,)
    said = [item.value for item in items if isinstance(item, JsonScalar)]
    if said == [None]:
        return []
    names = [name for name in said if isinstance(name, str)]
    if len(names) < len(items):
        fail(
            "E0420",
            f'"{CLASSES}" is no list of names of classes',
            value.span,
            helps=[
                'write names, as in ["BertForMaskedLM"], or choose a graph: --graph'
            ],
        )
    return names
