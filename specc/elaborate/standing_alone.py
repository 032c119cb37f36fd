"""A spec that says all of itself: an instance as the spec that it extends with its values,
and what it takes of std written down in it.

    extends: encoder_decoder          config { width: int = 256  … }
    config: {width: 256, act: gelu}   graph translate(…) { … encoder_layer(…) … }
                                      block encoder_layer(…) { … }

What it means stays the same to the last node; `specc.compiler.expanding` looks that it does.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from specc.elaborate.context import Library
from specc.elaborate.instances import named_in
from specc.elaborate.modules import Assigned, Program, paths_of
from specc.elaborate.vocabulary import WORDS
from specc.lang import tree
from specc.lang.walk import NAMES, NODES, walk
from specc.text.diagnostic import fail

AnyNode = TypeVar("AnyNode", bound=tree.Node)

ONE = (tree.Generate, tree.Stream)
"""Items of which those of the nearest file count alone."""


def standing_alone(program: Program, library: Library) -> tree.File:
    """The program as one file. E0982 for values of a part, which only an instance can
    give.
    """
    file = merged(program)
    return replace(file, items=(*file.items, *_of_std(file, library)))


def standing_apart(
    program: Program, library: Library
) -> tuple[tree.File, dict[str, str]]:
    """The program as one file where names of its own would hide those that blocks of std
    mean, and what became of such names.

    A config value gets an underscore behind its name, in the whole file: what std means
    by it may be a word, which has no other name. A block of the file keeps its name, and
    that of std gets one.
    """
    file = merged(program)
    items = _meant_of_std(file, library)
    known = {*WORDS, *library.standard_names()}
    hidden = {f.name for f in program.fields()} & known & _free(items)
    mine = {name: f"{name}_" for name in sorted(hidden)}
    own = _named(file.items) - hidden
    other = {name: f"{name}_" for name in own.intersection(i.name for i in items)}
    kept = tuple(_without(i, mine, _paths(mine, program)) for i in file.items)
    clashing = _named(kept)
    taken = [_renamed(_apart(item, clashing), other) for item in items]
    taken = [replace(i, name=other.get(i.name, i.name)) for i in taken]
    return replace(file, items=(*kept, *taken)), mine


def _named(items: Iterable[tree.Item]) -> set[str]:
    """What items give names to."""
    return {name for item in items for name, _ in named_in(item)}


def _free(items: Iterable[tree.Block | tree.Definition]) -> set[str]:
    """What items mean of all that is called by a name; not their own parameters."""
    found: set[str] = set()
    for item in items:
        found.update({*_names(item)}.difference(p.name for p in item.params or ()))
    return found


def _without(
    item: tree.Item, fields: Mapping[str, str], paths: Mapping[str, str]
) -> tree.Item:
    """An item in which config values, and the paths that begin with them, are renamed."""
    made = _renamed(item, paths)
    return _with_fields(made, fields) if isinstance(made, tree.Config) else made


def _paths(names: Mapping[str, str], program: Program) -> dict[str, str]:
    """Paths that begin with one of these names, and what they become."""
    every = [(*path.split("."),) for path in paths_of(program.fields())]
    found = {
        ".".join(path): ".".join((names[path[0]], *path[1:]))
        for path in every
        if path[0] in names
    }
    return found | {f"config.{old}": f"config.{new}" for old, new in found.items()}


def _with_fields(item: tree.Config, names: Mapping[str, str]) -> tree.Config:
    """A config whose fields have these names."""
    entries = tuple(
        replace(e, name=names.get(e.name, e.name)) if isinstance(e, tree.Field) else e
        for e in item.entries
    )
    return replace(item, entries=entries)


def _meant_of_std(
    file: tree.File, library: Library
) -> list[tree.Block | tree.Definition]:
    """The items of std that the file names, and those that these mean, whatever the
    file calls so.
    """
    standard = {*library.standard_names()} - WORDS.keys()
    own = {i.name for i in file.items if isinstance(i, tree.Block | tree.Definition)}
    waiting = [n for item in file.items for n in _names(item) if n not in own]
    items: dict[str, tree.Block | tree.Definition] = {}
    while waiting:
        name = waiting.pop(0)
        if name in items or name not in standard:
            continue
        found = library.standard(name)
        assert found is not None, name
        items[name] = found[0]
        waiting += _names(found[0])
    return [*items.values()]


def merged(program: Program) -> tree.File:
    """The chain of a program as one file, which still takes from std what it names."""
    base = program.module.file
    known = paths_of(program.fields())
    for path, given in program.assigned.items():
        if path not in known:
            fail(
                "E0982",
                f"`{path}` is a value of a spec that this one uses with a config of its own",
                given.span,
                "only an instance can give it",
                helps=["expand it without this value, and keep the instance for that"],
            )
    said = [i for m in program.chain[:-1] for i in m.file.items]
    own = [i for i in said if not isinstance(i, tree.Config)]
    # The nearest file decides what is written or streamed.
    taken = {kind for kind in ONE for i in own if isinstance(i, kind)}
    rest = [i for i in base.items if not isinstance(i, (tree.Config, *taken))]
    configs = [
        replace(i, entries=tuple(_entry(e, program.assigned) for e in i.entries))
        for i in base.items
        if isinstance(i, tree.Config)
    ]
    return replace(
        base,
        model=program.name,
        doc=program.doc,
        items=(*configs, *own, *rest),
    )


def _entry(
    entry: tree.ConfigEntry, assigned: Mapping[str, Assigned]
) -> tree.ConfigEntry:
    return _field(entry, assigned, "") if isinstance(entry, tree.Field) else entry


def _field(
    field: tree.Field, assigned: Mapping[str, Assigned], prefix: str
) -> tree.Field:
    """A field with the value that it is given for a default, and those of its record."""
    path = f"{prefix}{field.name}"
    inner = tuple(_field(f, assigned, f"{path}.") for f in field.type.fields)
    kind = replace(field.type, fields=inner)
    given = assigned.get(path)
    if given is None:
        return replace(field, type=kind)
    # A value that an instance gives stands before that of a config.json.
    return replace(field, type=kind, default=given.value, sources=())


def _of_std(file: tree.File, library: Library) -> Iterator[tree.Item]:
    """The items of std that the file names, and those that these name."""
    # A name that is a word of the language too stays in std: here it would be no word.
    standard = {*library.standard_names()} - WORDS.keys()
    taken = {name for item in file.items for name, _ in named_in(item)}
    # To a block of std these are lengths of its own; in a file that has them, its.
    clashing = {name for name in taken if name not in standard}
    waiting: list[tree.Node] = [*file.items]
    while waiting:
        for name in _names(waiting.pop(0)):
            if name in taken or name not in standard:
                continue
            taken.add(name)
            found = library.standard(name)
            assert found is not None, name
            waiting.append(found[0])
            yield _apart(found[0], clashing)


def _names(item: tree.Node) -> Iterator[str]:
    """What an item calls or names."""
    return (node.path for node in walk(item) if isinstance(node, tree.Name))


def _apart(
    item: tree.Block | tree.Definition, clashing: Collection[str]
) -> tree.Block | tree.Definition:
    """An item whose lengths have other names than those of the file."""
    if isinstance(item, tree.Definition):
        return item
    params = {p.name for p in item.params}
    types = [p.type for p in (*item.params, *item.results)]
    lengths = {
        node.path
        for kind in types
        for node in walk(kind)
        if isinstance(node, tree.Name)
    }
    mine = {name: f"{name}_" for name in (lengths & {*clashing}) - params}
    return _renamed(item, mine) if mine else item


def _renamed(node: AnyNode, names: Mapping[str, str]) -> AnyNode:
    """The same with other names."""
    if isinstance(node, tree.Name):
        return replace(node, path=names.get(node.path, node.path))
    changed: dict[str, object] = {}
    same: tree.Node = node
    for key in NAMES[type(same)]:
        value = getattr(node, key)
        if isinstance(value, NODES):
            changed[key] = _renamed(value, names)
        elif isinstance(value, tuple):
            changed[key] = tuple(
                _renamed(v, names) if isinstance(v, NODES) else v for v in value
            )
    return replace(node, **changed)  # type: ignore[arg-type]  # fields of its own class
