"""What a checkpoint's config.json says of the spec that it belongs to: the family, and
which of the family's graphs.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from specc.elaborate.beside import graphs_of
from specc.elaborate.json_nodes import JsonList, JsonObject, JsonScalar, Member
from specc.elaborate.modules import Program
from specc.elaborate.parts import TYPE
from specc.files.read import shown
from specc.lang import tree
from specc.library.config_file import NAME, config_at
from specc.library.files import Files, read_file, shipped
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean, suggestion

CLASSES = "architectures"
ENOUGH = 0.8
"""The share of the most keys that the spec of a type which is spelled alike has to read."""


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
        near = _nearest_type(value, data)
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


def _nearest_type(kind: str, data: JsonObject) -> str:
    """Return the supported type that a config.json of another type is most like; empty
    where no spec reads any of its keys.

    A type that is spelled alike is meant where its spec reads nearly as many of the keys
    as the spec that reads most.
    """
    types = types_read()
    read = keys_read(data, types.values())
    best = next(iter(read), "")
    alike = did_you_mean(kind, types) or ""
    # keys such as `vocab_size` are in every config.json: two in common mean nothing
    if alike and (read[best] <= 2 or read[types[alike]] >= ENOUGH * read[best]):
        return alike
    if not read[best]:
        return ""
    return best if best in types else next(t for t, s in types.items() if s == best)


def keys_read(data: JsonObject, among: Iterable[str] = ()) -> dict[str, int]:
    """Return how many keys of a config.json each shipped spec reads, the one that reads
    most first, and of several the one that reads the fewest others.
    """
    keys = set(data.members)
    chosen = set(among)
    found = {
        name: _sources(path)
        for name, path in shipped().items()
        if not chosen or name in chosen
    }
    counts = {name: len(keys & sources) for name, sources in found.items()}
    return dict(
        sorted(counts.items(), key=lambda one: (-one[1], len(found[one[0]]), one[0]))
    )


def _sources(path: Path) -> set[str]:
    """Return the keys of a config.json that a spec reads, of its outermost table."""
    entries = [
        entry
        for item in read_file(path, path.name).items
        if isinstance(item, tree.Config)
        for entry in item.entries
        if isinstance(entry, tree.Field)
    ]
    texts = (s.value for e in entries for s in e.sources if isinstance(s, tree.Text))
    return {text.split(".")[0] for text in texts}


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
