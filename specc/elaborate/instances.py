"""What a spec may say that extends another: values for its config, and names for these."""

from collections.abc import Iterator

from specc.elaborate.context import Module
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Span


def configs(file: tree.File) -> list[tree.Config]:
    """The `config` items of a file."""
    return [i for i in file.items if isinstance(i, tree.Config)]


def named_in(item: tree.Item) -> Iterator[tuple[str, Span | None]]:
    """The names that an item gives a file, with their places."""
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


def only_an_instance(module: Module) -> None:
    """E0209 for what would change the meaning of the spec that is extended."""
    for item in module.file.items:
        match item:
            case tree.Block(kind="graph"):
                spoken = "a graph"
            case tree.Dims():
                spoken = "`dims`"
            case tree.Use(owns=True):
                spoken = "a spec with a config and weights of its own"
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
                "what it requires of them, how inputs are read, where weights come from "
                "and what is generated"
            ],
            helps=["drop `extends`, or move this"],
        )


def new_names(module: Module, base: Module) -> None:
    """E0225 for names of an instance that what it extends has already: they would stand
    for one thing in its config values and for another in the graph.
    """
    faults: list[Diagnostic] = []
    for item in module.file.items:
        for name, span in named_in(item):
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
        for known, span in named_in(item):
            if known == name:
                return span
    return _place_of(name, module.extended) if module.extended else _Nowhere()


def no_loose_assigns(module: Module) -> None:
    """E0220 for a value in a file that extends none, and so must say its type."""
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
