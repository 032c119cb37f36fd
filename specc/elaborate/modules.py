"""Spec files made ready for look-up: items by name, instances merged into what they extend."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from specc.elaborate.context import Library, Module
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


@dataclass(eq=False)
class Program:
    """A spec with what it extends: one module, the values given to its config, the rest
    of its items.

    `reading`, `weights` and `generate` of an instance stand before those of what it
    extends; `home` is the file they came from, for paths written in them.
    """

    module: Module
    assigned: dict[str, Assigned] = field(default_factory=dict)
    name: str = ""
    doc: str = ""
    chain: tuple[Module, ...] = ()

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


def configs(file: tree.File) -> list[tree.Config]:
    """The `config` items of a file."""
    return [i for i in file.items if isinstance(i, tree.Config)]


def module_of(file: tree.File, path: str, *, standard: bool = False) -> Module:
    """A file by its names. E0217 where one name is given twice."""
    module = Module(file=file, path=path, standard=standard)
    seen: dict[str, Span | None] = {}
    faults: list[Diagnostic] = []
    for item in file.items:
        for name, span in _named(item):
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


def _named(item: tree.Item) -> Iterator[tuple[str, Span | None]]:
    match item:
        case tree.Block() | tree.Definition():
            yield item.name, item.name_span
        case tree.Dims():
            yield from ((d.name, d.span) for d in item.names)
        case tree.Use():
            yield item.name, item.span
        case tree.Config():
            yield from (
                (e.name, e.span) for e in item.entries if isinstance(e, tree.Field)
            )


def program_of(module: Module, library: Library) -> Program:
    """The spec with its chain of `extends` followed. E0218 when the chain bites its tail."""
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
    # the farthest first, so that the nearest has the last word
    for instance, base in reversed(list(pairwise(chain))):
        _only_an_instance(instance)
        _new_names(instance, base)
        instance.extended = base
        for config in configs(instance.file):
            for entry in config.entries:
                if isinstance(entry, tree.Assign):
                    flatten(entry.name, entry.value, entry.span, assigned, instance)
    program = Program(
        chain[-1],
        assigned,
        module.file.model,
        module.file.doc or chain[-1].file.doc,
        tuple(chain),
    )
    _no_loose_assigns(chain[-1])
    _known(program)
    return program


def _only_an_instance(module: Module) -> None:
    """E0209 for what would change the meaning of the spec that is extended."""
    for item in module.file.items:
        match item:
            case tree.Block(kind="graph"):
                spoken = "a graph"
            case tree.Dims() | tree.Require():
                spoken = f"`{type(item).__name__.lower()}`"
            case _:
                continue
        fail(
            "E0209",
            f"{spoken} cannot stand in a spec that extends another",
            item.span,
            "this belongs into a spec of its own",
            notes=[
                "such a spec gives values to the config of the other, and may define "
                "masks, scores, biases, normalizers and blocks for them; it may also say "
                "how inputs are read, where weights come from and what is generated"
            ],
            helps=["drop `extends`, or move this"],
        )


def _new_names(module: Module, base: Module) -> None:
    """E0225 for names of an instance that what it extends has already: they would stand
    for one thing in its config values and for another in the graph.
    """
    faults: list[Diagnostic] = []
    for item in module.file.items:
        for name, span in _named(item):
            first = _place_of(name, base)
            if isinstance(first, _Nowhere):
                continue
            title = (
                f"`{name}` is a name of `{base.file.model}`, which this spec extends"
            )
            faults.append(
                Diagnostic(
                    "E0225",
                    title,
                    Label(span, "again here") if span else None,
                    (Label(first, "first here"),) if first else (),
                    (
                        "what an instance defines is for its config values: it replaces "
                        "nothing in the graph of the other",
                    ),
                    (
                        f"give it a name of its own, such as `{name}_here`, and name that "
                        "in `config`",
                    ),
                )
            )
    if faults:
        raise Failed(*faults)


class _Nowhere:
    """No such name. None is for a name whose place is not known."""


def _place_of(name: str, module: Module) -> Span | _Nowhere | None:
    """Where a module, or what it extends, gives a meaning to a name."""
    for item in module.file.items:
        for known, span in _named(item):
            if known == name:
                return span
    return _place_of(name, module.extended) if module.extended else _Nowhere()


def _no_loose_assigns(module: Module) -> None:
    for config in configs(module.file):
        for entry in config.entries:
            if isinstance(entry, tree.Assign):
                helps = [
                    f"declare it: `{entry.name}: {_declared(entry.value)}`",
                    "or name the spec whose value it is: `extends …`",
                ]
                fail(
                    "E0220",
                    f"`{entry.name}` is given a value but has no type",
                    entry.span,
                    helps=helps,
                )


def _declared(value: tree.Expr) -> str:
    """The type that a value would be declared with, and the value."""
    text = value.span.text if value.span else "…"
    match value:
        case tree.Num(text=number):
            return f"{'int' if number.isdigit() else 'float'} = {number}"
        case tree.Name(path="true" | "false" as truth):
            return f"bool = {truth}"
        case tree.Text():
            return f"text = {text}"
    return f"int = {text}" if "\n" not in text else "int = …"


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
    known = paths_of(program.fields())
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


def assign(program: Program, assigned: dict[str, Assigned]) -> Program:
    """The program with further values, which win over those it has."""
    made = replace(program, assigned={**program.assigned, **assigned})
    _known(made)
    return made
