"""Spec files made ready for look-up: items by name, instances merged into what they extend."""

from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TypeVar

from specc.elaborate.context import Library, Module
from specc.elaborate.instances import (
    configs,
    named_in,
    new_names,
    no_loose_assigns,
    only_an_instance,
)
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Span
from specc.text.suggest import suggest

AnItem = TypeVar("AnItem", bound=tree.Item)


@dataclass(frozen=True)
class Assigned:
    """A value an instance or the command line gives to a config field, and the text
    that says so. Its names are those of `module`; on the command line, of the spec that
    is named there.
    """

    value: tree.Expr
    span: Span | None
    module: Module | None = None


@dataclass(eq=False, kw_only=True)
class Program:
    """A spec with what it extends: one module, the values given to its config, the rest
    of its items.

    `reading`, `weights` and `generate` of an instance stand before those of what it
    extends; `home` is the file they came from, for paths written in them. `parts` are
    the specs it uses that have a config of their own.
    """

    module: Module
    assigned: dict[str, Assigned] = field(default_factory=dict)
    name: str = ""
    doc: str = ""
    chain: tuple[Module, ...] = ()
    parts: "tuple[Part, ...]" = ()

    @property
    def shipped(self) -> bool:
        """Whether all of it comes with specc, but for the values that are given."""
        return all(m.shipped for m in self.chain) and all(
            one.shipped for part in self.parts for one in part.programs
        )

    def identity(self) -> Hashable:
        """What tells the program from others: its trees, which are the same objects
        wherever a text is read again, the values given, and which specs its parts are.
        """
        given = {
            (path, a.value, id(a.module.file) if a.module else 0)
            for path, a in self.assigned.items()
        }
        parts = [
            (part.chosen, *(one.identity() for one in part.programs))
            for part in self.parts
        ]
        trees = [id(module.file) for module in self.chain]
        return frozenset(given), tuple(parts), tuple(trees)

    def paths(self) -> dict[str, tree.Field]:
        """Every config field by its dotted path, those of its parts below their names,
        and which spec a part is where that is not settled.
        """
        found: dict[str, tree.Field] = {}
        for part in self.parts:
            if part.open:
                found[part.name] = part.field
            inner = part.program.paths().items()
            found |= {f"{part.name}.{path}": entry for path, entry in inner}
        return found | paths_of(self.fields())

    def fields(self) -> Iterator[tree.Field]:
        """The config fields the spec declares."""
        for config in configs(self.module.file):
            yield from (e for e in config.entries if isinstance(e, tree.Field))

    def items(self, kind: type[AnItem]) -> Iterator[tuple[AnItem, Module]]:
        """Items of one class, the instance's first, each with the module it stands in."""
        for module in self.chain:
            for item in module.file.items:
                if isinstance(item, kind):
                    yield item, module


@dataclass(frozen=True, eq=False)
class Part:
    """A spec that another uses with a config and weights of its own: `programs` are those
    that it may be, of which the one that is `chosen` counts, else the first.
    """

    use: tree.Use
    programs: tuple[Program, ...]
    chosen: int | None = None

    @property
    def name(self) -> str:
        """What the spec that uses it calls it, its config and its blocks."""
        return self.use.name

    @property
    def program(self) -> Program:
        """The spec that it is."""
        return self.programs[self.chosen or 0]

    @property
    def path(self) -> str:
        """The file that it is, as the `use` has it."""
        return self.use.paths[self.chosen or 0]

    @property
    def open(self) -> bool:
        """Whether nothing says yet which of several specs it is."""
        return self.chosen is None and len(self.programs) > 1

    @property
    def field(self) -> tree.Field:
        """Which of the specs it is, as a config field: the first, unless said otherwise."""
        kind = tree.TypeName(name="choice", names=self.use.paths)
        first = tree.Name(self.use.path)
        return tree.Field(name=self.name, type=kind, default=first, span=self.use.span)

    def called(self, name: str) -> "Part | None":
        """The part, settled on the spec of that name, its file's or without the ending;
        None where it cannot be that.
        """
        for names in (self.use.paths, self.short):
            if name in names:
                return replace(self, chosen=names.index(name))
        return None

    @property
    def short(self) -> tuple[str, ...]:
        """What the specs that it may be are called without ending and folder."""
        return tuple(PurePosixPath(path).stem for path in self.use.paths)


def module_of(file: tree.File, path: str, *, standard: bool = False) -> Module:
    """A file by its names. E0217 where one name is given twice."""
    module = Module(file=file, path=path, standard=standard)
    seen: dict[str, Span | None] = {}
    faults: list[Diagnostic] = []
    for item in file.items:
        for name, span in named_in(item):
            if name in seen:
                first = seen[name]
                others = (Label(first, "first here"),) if first else ()
                primary = Label(span, "again here") if span else None
                faults.append(
                    Diagnostic("E0217", f"`{name}` is defined twice", primary, others)
                )
            seen[name] = span
        if isinstance(item, tree.Block | tree.Definition):
            module.items[item.name] = item
        elif isinstance(item, tree.Dims):
            module.dims.update({d.name: d.least for d in item.names})
        elif isinstance(item, tree.Use):
            module.uses[item.name] = item
    if faults:
        raise Failed(*faults)
    return module


def program_of(
    module: Module, library: Library, inside: tuple[Module, ...] = ()
) -> Program:
    """The spec with its chain of `extends` followed, and the specs that it uses with a
    config of their own. E0218 when a chain bites its tail; `inside` is what uses this.
    """
    chain = [module]
    # from the instance to the spec that has the graph
    while chain[-1].file.extends:
        file = chain[-1].file
        base = library.used(file.extends, chain[-1], file.extends_span)
        if any(base.path == m.path for m in chain):
            loop = " → ".join(m.path for m in (*chain, base))
            fail("E0218", f"this spec extends itself: {loop}", file.extends_span)
        chain.append(base)
    assigned: dict[str, Assigned] = {}
    parts = _parts_of(chain[-1], library, (*inside, chain[-1]))
    # the farthest first, so that the nearest has the last word
    for instance, base in reversed(list(pairwise(chain))):
        only_an_instance(instance)
        new_names(instance, base)
        instance.extended = base
        given: dict[str, Assigned] = {}
        for config in configs(instance.file):
            for entry in config.entries:
                if isinstance(entry, tree.Assign):
                    flatten(entry.name, entry.value, entry.span, given, instance)
        assigned |= _of_parts(given, {*_open_paths(parts)})
    program = Program(
        module=chain[-1],
        assigned=assigned,
        name=module.file.model,
        doc=module.file.doc or chain[-1].file.doc,
        chain=tuple(chain),
        parts=parts,
    )
    no_loose_assigns(chain[-1])
    _known(program)
    return _settled(program)


def _parts_of(
    module: Module, library: Library, inside: tuple[Module, ...]
) -> tuple[Part, ...]:
    """The specs that a file uses with a config of their own."""
    parts: list[Part] = []
    for use in module.uses.values():
        if not use.owns:
            continue
        used = [library.used(path, module, use.span) for path in use.paths]
        for other in used:
            if other in inside:
                loop = " → ".join(m.path for m in (*inside, other))
                fail("E0218", f"this spec uses itself: {loop}", use.span)
        _no_holes(use)
        programs = tuple(program_of(other, library, inside) for other in used)
        parts.append(Part(use, programs))
    return tuple(parts)


def _no_holes(use: tree.Use) -> None:
    """E0226 for a path of weights that is a pattern: rules are about names below it."""
    if use.under is not None and set("{}*") & set(use.under.text):
        fail(
            "E0226",
            "the weights of a used spec stand under one plain path",
            use.under.span,
            "this is a pattern",
            helps=["write a path such as `under decoder.model`"],
        )


def _settled(program: Program) -> Program:
    """The program, each part the spec that the values given so far say it is. E0203
    for one that it cannot be.
    """
    parts: list[Part] = []
    assigned = dict(program.assigned)
    for part in program.parts:
        given = assigned.pop(part.name, None) if len(part.programs) > 1 else None
        if given is None:
            parts.append(part)
            continue
        match given.value:
            case tree.Name(path=text) | tree.Text(value=text):
                found = part.called(text)
            case _:
                found = None
        if found is None:
            title = f"`{part.name}` is one of {', '.join(part.use.paths)}"
            fail("E0203", title, given.span, helps=[f"write `{part.use.path}`"])
        parts.append(found)
    return replace(program, parts=tuple(parts), assigned=assigned)


def _open_paths(parts: tuple[Part, ...], prefix: str = "") -> Iterator[str]:
    """The paths of parts that may be several specs."""
    for part in parts:
        path = f"{prefix}{part.name}"
        if len(part.programs) > 1:
            yield path
        for program in part.programs:
            yield from _open_paths(program.parts, f"{path}.")


def _of_parts(given: Mapping[str, Assigned], paths: Set[str]) -> dict[str, Assigned]:
    """Values where `encoder = swin(window=7)` is a part's spec and values for that."""
    found: dict[str, Assigned] = {}
    for path, one in given.items():
        match one.value:
            case tree.Call(function=name, args=(), weights=None) if path in paths:
                inner: dict[str, Assigned] = {}
                values = tree.RecordOf(one.value.options)
                flatten(path, values, one.span, inner, one.module)
                found[path] = replace(one, value=name)
                found |= _of_parts(inner, paths)
            case _:
                found[path] = one
    return found


def flatten(
    path: str,
    value: tree.Expr,
    span: Span | None,
    into: dict[str, Assigned],
    module: Module | None = None,
) -> None:
    """Nested values as dotted paths, so that they merge key by key."""
    if isinstance(value, tree.RecordOf):
        for option in value.fields:
            at = option.span or span
            flatten(f"{path}.{option.name}", option.value, at, into, module)
    else:
        into[path] = Assigned(value, span, module)


def paths_of(
    fields: Iterator[tree.Field] | tuple[tree.Field, ...], prefix: str = ""
) -> dict[str, tree.Field]:
    """Every config field by its dotted path, records opened."""
    found: dict[str, tree.Field] = {}
    for entry in fields:
        path = f"{prefix}{entry.name}"
        found[path] = entry
        found.update(paths_of(entry.type.fields, f"{path}."))
    return found


def _known(program: Program) -> None:
    """E0201 for values given to fields that do not exist."""
    known = _every_path(program)
    faults = []
    for path, given in program.assigned.items():
        if path in known:
            continue
        parent, _, last = path.rpartition(".")
        level = [k for k in known if k.rpartition(".")[0] == parent]
        names = [k.rpartition(".")[2] for k in level]
        helps = suggest(last, names, f"there are {', '.join(level) or 'none'}")
        primary = Label(given.span, "unknown key") if given.span else None
        title = f"the config of `{program.module.file.model}` has no `{path}`"
        faults.append(Diagnostic("E0201", title, primary, helps=tuple(helps)))
    if faults:
        raise Failed(*faults)


def _every_path(program: Program) -> dict[str, tree.Field]:
    """The config fields by their paths, for whatever specs its parts may be."""
    known: dict[str, tree.Field] = {}
    for part in program.parts:
        if len(part.programs) > 1:
            known[part.name] = part.field
        for one in part.programs:
            inner = _every_path(one).items()
            known |= {f"{part.name}.{path}": entry for path, entry in inner}
    return known | paths_of(program.fields())


def assign(program: Program, assigned: dict[str, Assigned]) -> Program:
    """The program with further values, which win over those it has."""
    given = _of_parts(assigned, {*_open_paths(program.parts)})
    made = replace(program, assigned={**program.assigned, **given})
    _known(made)
    return _settled(made)
